"""Discovery on the local network: a gateway announces its address by mDNS, and commands find it.

Every machine in the network can announce any name and address. So an announcement is only a hint: it has no
secret, the user confirms the address, and no token of the settings is sent to it.

The library is the extra ``discovery``. It is imported when it is used: a start without it costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import re
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast
from urllib.parse import urlsplit

import structlog
import typer
from msgspec import Struct

from gateway.cli.options import FAILED, REFUSED, fail
from gateway.contract.errors import SettingsError
from gateway.settings import Settings, is_loopback

SERVICE = "_trunkline._tcp.local."

LOOK_SECONDS = 3.0
"""Time to look for gateways."""
MOST_SECONDS = 10.0
"""Time to look until the first one is found."""

_ANSWER_MS = 2_000
_WITHDRAW_SECONDS = 3.0
_MOST_FOUND = 20
_LONGEST_NAME = 60
_PATH = re.compile(r"/[\w.~/-]{0,200}", re.ASCII)

log = structlog.get_logger("trunkline")


class Discovered(Struct, frozen=True, order=True):
    """An announced gateway: the name that it gives itself, and its URL."""

    name: str
    url: str


def is_installed() -> bool:
    """Return whether the extra ``discovery`` is installed."""
    return importlib.util.find_spec("zeroconf") is not None


def missing() -> str:
    """Return the message that the extra ``discovery`` is missing."""
    checkout = "in a checkout, make install REQUIREMENTS=requirements-discovery.txt"
    return f"the extra discovery is not installed. Run pip install 'trunkline[discovery]'; {checkout}."


def check_announcement(settings: Settings) -> None:
    """Raise SettingsError if the gateway is to be announced without the extra."""
    if settings.server.announce and not is_installed():
        raise SettingsError(f"server.announce = true: {missing()}")


async def announce(settings: Settings, url: str) -> None:
    """Announce a gateway until cancelled, then withdraw the announcement. ``url`` is its address.

    A failure is logged: without an announcement the gateway works all the same.
    """
    # Imported here: see the module.
    from zeroconf import Error
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

    host = settings.server.host.strip("[]")
    parts = urlsplit(url)
    name = f"Trunkline on {socket.gethostname().partition('.')[0]}"[:_LONGEST_NAME]
    try:
        addresses = await _addresses(host)
        # The announcement goes where the server listens: not to the network for a server on loopback.
        async with AsyncZeroconf(["127.0.0.1"] if is_loopback(host) else addresses) as network:
            info = AsyncServiceInfo(
                SERVICE,
                f"{name}.{SERVICE}",
                parsed_addresses=addresses,
                port=parts.port,
                # The server has no TLS; a proxy with TLS has another address.
                properties={"txtvers": "1", "path": "/", "tls": "no"},
                server=f"trunkline-{secrets.token_hex(4)}.local.",
            )
            try:
                register = cast("Callable[..., Awaitable[Awaitable[None]]]", network.async_register_service)  # pyright: ignore[reportUnknownMemberType]
                await (await register(info, allow_name_change=True))
                log.info("announced on the local network", name=info.get_name(), addresses=addresses)
                await asyncio.Event().wait()
            finally:
                async with asyncio.timeout(_WITHDRAW_SECONDS):
                    await network.async_unregister_all_services()
    except (OSError, Error, TimeoutError) as error:
        log.warning("cannot be announced on the local network", error=str(error) or type(error).__name__)


async def find(
    interface: str | None = None, seconds: float = LOOK_SECONDS, most: float = MOST_SECONDS
) -> list[Discovered]:
    """Return the gateways that are announced, sorted by name.

    ``interface`` is the address of the network interface to look at; all if None. Looks for some seconds, and
    up to ``most`` until one is found. Raises OSError.
    """
    # Imported here: see the module.
    from zeroconf import Error, InterfaceChoice
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

    names: dict[str, None] = {}
    seen = asyncio.Event()

    def changed(**change: Any) -> None:
        if len(names) < _MOST_FOUND:
            names[change["name"]] = None
            seen.set()

    async with AsyncZeroconf([interface] if interface else InterfaceChoice.All) as network:
        browser = AsyncServiceBrowser(network.zeroconf, SERVICE, handlers=[changed])
        try:
            async with asyncio.timeout(most):
                await seen.wait()
        except TimeoutError:
            return []
        await asyncio.sleep(seconds)  # others may answer, too
        infos: list[AsyncServiceInfo] = []
        for name in names:
            with contextlib.suppress(Error):  # a forged name, for example with control characters
                infos.append(AsyncServiceInfo(SERVICE, name))
        await asyncio.gather(*(info.async_request(network.zeroconf, _ANSWER_MS) for info in infos))
        await browser.async_cancel()
    found = {
        described
        for info in infos
        if (described := _described(info.get_name(), info.parsed_addresses(), info.port, info.properties))
    }
    return sorted(found)


def discover(*, token: bool, yes: bool, interface: str | None) -> str:
    """Find a gateway and return its URL; the user confirms it unless ``yes``. A failure ends the command.

    ``token`` is whether the command sends a token there.
    """
    if not is_installed():
        fail(missing(), REFUSED)
    try:
        found = asyncio.run(find(interface))
    except (OSError, ValueError) as error:
        fail(f"the local network cannot be searched: {error}", FAILED)
    if not found:
        fail(f"no gateway was found on the local network within {MOST_SECONDS:.0f} s; name it with --url")
    if len(found) > 1:
        lines = "\n".join(f"  --url {one.url}   {one.name}" for one in found)
        fail(f"{len(found)} gateways were found; pick one:\n{lines}", REFUSED)
    [only] = found
    if not yes:
        _confirm(only, "the message and your token" if token else "the message")
    return only.url


def _confirm(gateway: Discovered, what: str) -> None:
    if not sys.stdin.isatty():
        fail(f"found {gateway.url} ({gateway.name}); use it with --url {gateway.url}, or add --yes", REFUSED)
    typer.echo("Every machine in the network can announce any name.", err=True)
    if not typer.confirm(f"Send {what} to {gateway.url} ({gateway.name})?", err=True):
        raise typer.Exit(FAILED)


def _described(
    name: str, addresses: Sequence[str], port: int | None, properties: dict[bytes, bytes | None]
) -> Discovered | None:
    """Return an announcement as a gateway; None if it has no valid address. All of it may be forged."""
    path = (properties.get(b"path") or b"/").decode("ascii", "replace")
    if not port or not _PATH.fullmatch(path):
        return None
    scheme = "https" if properties.get(b"tls") == b"yes" else "http"
    for address in addresses:
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:  # with the zone of an interface
            continue
        if not (ip.is_multicast or ip.is_unspecified or (ip.version == 6 and ip.is_link_local)):
            host = f"[{ip}]" if ip.version == 6 else str(ip)
            # No control characters, and no marks that reverse the direction of text.
            shown = "".join(each if each.isprintable() else " " for each in name)
            return Discovered(
                " ".join(shown.split())[:_LONGEST_NAME], f"{scheme}://{host}:{port}{path.rstrip('/')}"
            )
    return None


async def _addresses(host: str) -> list[str]:
    """Return the addresses at which other machines reach a server."""
    import ifaddr  # a dependency of the extra

    if is_loopback(host):
        return ["127.0.0.1" if host.lower() == "localhost" else host]
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, family=socket.AF_INET)
        return sorted({str(each[4][0]) for each in found})
    if not ip.is_unspecified:
        return [host]
    # The address of an IPv6 interface is a tuple.
    own = [ipaddress.ip_address(str(ip.ip)) for one in ifaddr.get_adapters() for ip in one.ips if ip.is_IPv4]
    return [str(ip) for ip in own if not ip.is_loopback] or ["127.0.0.1"]
