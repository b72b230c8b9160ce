"""Requests to addresses that messages name: to public addresses only.

Users and models may name addresses, but must not make the gateway call its own machine, network or a cloud's
metadata service. So all such requests go through ``fetch``. It checks the address that a socket is about to
connect to, after name resolution and on every redirect, so a name that resolves differently a moment later
gains nothing. Addresses in the settings, such as a model server's, are the operator's and not checked here.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, TypeVar

import aiohttp
from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType]
from msgspec import Struct, structs
from yarl import URL

from gateway.contract.errors import AddressRefusedError, FetchError

T = TypeVar("T")

Network = IPv4Network | IPv6Network

REDIRECTS = 5
LONGEST_ADDRESS = 8192
_CONNECT_SECONDS = 20
_NEXT_ADDRESS_SECONDS = 0.25

_REFUSED = "not a public address"
_TRANSLATED = IPv6Network("64:ff9b::/96")
"""NAT64 (RFC 6052): the embedded IPv4 address is checked."""
_NOT_PUBLIC: tuple[Network, ...] = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "100.64.0.0/10",
            "192.0.0.0/24",
            "192.88.99.0/24",
            "198.18.0.0/15",
            "224.0.0.0/3",
            "64:ff9b:1::/48",
            "100::/64",
            "2001::/23",
            "2001:db8::/32",
            "2002::/16",
            "3fff::/20",
        ),
    )
)
_UNICAST = IPv6Network("2000::/3")


class Reach(Struct, frozen=True):
    """Limits of a fetch: private networks that are allowed, bytes of the answer, and seconds in all.

    ``https_only`` also applies to every address of a redirect. With ``same_host`` redirects to another host
    are refused: a permission may cover one host only.
    """

    allow: tuple[Network, ...] = ()
    most_bytes: int = 5_000_000
    seconds: float = 20.0
    https_only: bool = False
    same_host: bool = False


REACH = Reach()
"""The default limits."""


class Request(Struct, frozen=True):
    """A request. ``check`` is called with each address that it is redirected to, and raises to refuse it."""

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes = b""
    check: Callable[[URL], None] = lambda _address: None


class Response(Struct, frozen=True):
    """An answer of any status: its final address, its headers and its bytes."""

    url: str
    status: int
    headers: Mapping[str, str]
    data: bytes


class Fetched(Struct, frozen=True):
    """A fetched document: its final address, its media type and charset as declared, and its bytes."""

    url: str
    mime_type: str
    data: bytes
    charset: str = ""


def is_public(address: str) -> bool:
    """Return whether an IP address is public, and not a translation of a private one."""
    ip = _plain(address)
    if isinstance(ip, IPv6Address) and ip not in _UNICAST:
        return False
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)


async def fetch(url: str, reach: Reach = REACH) -> Fetched:
    """Fetch an http or https address, without a proxy: a proxy would resolve the name itself.

    Raises AddressRefusedError if it, or an address that it redirects to, is not allowed, and FetchError if
    the request fails.
    """
    return await _follow(Request("GET", url), reach, _content)


async def request(asked: Request, reach: Reach = REACH) -> Response:
    """Make a request with any method and return the answer of any status; see ``fetch``."""
    return await _follow(asked, reach, _response)


async def connect_public(host: str, port: int, allow: Sequence[Network] = ()) -> socket.socket:
    """Connect to a host by TCP, at one of its public or allowed addresses, and return the socket.

    Raises AddressRefusedError if all of its addresses are refused, and FetchError if it cannot be reached.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            vetted = [info for info in found if _is_allowed(str(info[4][0]), allow)]
            if not vetted:
                raise AddressRefusedError(f"{host}:{port} is {_REFUSED}")
            # To these very addresses, also if the name resolves differently a moment later.
            return await start_connection(vetted, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS)
    except TimeoutError:
        raise FetchError(f"{host}:{port} did not answer within {_CONNECT_SECONDS} s") from None
    except (OSError, UnicodeError):
        raise FetchError(f"{host}:{port} cannot be reached") from None


async def _follow(
    asked: Request, reach: Reach, read: Callable[[URL, aiohttp.ClientResponse, int], Awaitable[T]]
) -> T:
    """Make a request, follow its redirects, and read the answer."""
    address = _address(asked.url, reach)
    try:
        async with asyncio.timeout(reach.seconds), _session(reach) as session:
            for _ in range(REDIRECTS + 1):
                async with session.request(
                    asked.method,
                    address,
                    headers=asked.headers,
                    data=asked.body or None,
                    allow_redirects=False,
                ) as answer:
                    if answer.status not in (301, 302, 303, 307, 308):
                        return await read(address, answer, reach.most_bytes)
                    target = _address(str(address.join(URL(answer.headers.get("Location", "")))), reach)
                    if reach.same_host and not _is_same_host(address, target):
                        raise FetchError(f"{_place(address)} redirects to another host: {target}")
                    asked.check(target)
                    asked = _redirected(asked, answer.status, address, target)
                    address = target
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, _NotPublic):
            raise AddressRefusedError(f"{_place(address)} is {_REFUSED}") from None
        raise FetchError(f"{_place(address)} cannot be reached") from None
    except TimeoutError:
        raise FetchError(f"{_place(address)} did not answer within {reach.seconds:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError):
        raise FetchError(f"{_place(address)} did not answer with valid HTTP") from None
    raise FetchError(f"{_place(address)} redirects too often")


def _redirected(asked: Request, status: int, address: URL, target: URL) -> Request:
    """Return the request to make after a redirect, as browsers do."""
    # Credentials and other headers were meant for the first host.
    headers = asked.headers if _is_same_host(address, target) else dict[str, str]()
    if status in (307, 308) or asked.method in ("GET", "HEAD"):
        return structs.replace(asked, headers=headers)
    return structs.replace(asked, method="GET", headers=headers, body=b"")


class _NotPublic(OSError):
    """A refused address. The connector tries the other addresses of the name before it raises this."""


def _session(reach: Reach) -> aiohttp.ClientSession:
    """Return a session for one fetch, without cookies, whose sockets are created by ``_socket``."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            socket_factory=partial(_socket, reach.allow), force_close=True, use_dns_cache=False
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity", "User-Agent": "Trunkline"},
        auto_decompress=False,
        trust_env=False,
    )


def _socket(allow: Sequence[Network], info: tuple[Any, ...]) -> socket.socket:
    """Create the socket for a connection. Raises _NotPublic if its address is not allowed."""
    family, kind, protocol, _, address = info
    if not _is_allowed(address[0], allow):
        raise _NotPublic(errno.EACCES, _REFUSED)
    return socket.socket(family, kind, protocol)


def _is_allowed(address: str, allow: Sequence[Network]) -> bool:
    ip = _plain(address)
    return is_public(address) or any(ip in network for network in allow)


def _plain(address: str) -> IPv4Address | IPv6Address:
    """Return an address without its zone, and an IPv4 address that is embedded in IPv6 as IPv4."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return ip.ipv4_mapped
        if ip in _TRANSLATED:
            return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip


def _address(url: str, reach: Reach) -> URL:
    try:
        address = URL(url) if len(url) <= LONGEST_ADDRESS else URL()
        host, port = address.host, address.port
    except ValueError:
        raise FetchError("this is not a web address") from None
    if address.scheme not in ("http", "https") or not host or not port:
        raise FetchError("only http and https addresses can be fetched")
    if reach.https_only and address.scheme != "https":
        raise FetchError(f"{_place(address)}: only https addresses are allowed here")
    if address.user is not None or address.password is not None:
        raise FetchError(f"{_place(address)}: an address with a name or password in it is not fetched")
    return address


def _is_same_host(address: URL, target: URL) -> bool:
    """Return whether a redirect stays at its host and port, or goes from http to https there."""
    upgrade = (address.scheme, target.scheme) == ("http", "https")
    ports = address.is_default_port() and target.is_default_port()
    same = address.port == target.port and address.scheme == target.scheme
    return address.raw_host == target.raw_host and (same or (upgrade and ports))


async def _content(address: URL, answer: aiohttp.ClientResponse, most: int) -> Fetched:
    if answer.status != 200:
        raise FetchError(f"{_place(address)} answered with status {answer.status}")
    data = await _body(address, answer, most)
    return Fetched(str(address), answer.content_type, data, answer.charset or "")


async def _response(address: URL, answer: aiohttp.ClientResponse, most: int) -> Response:
    return Response(str(address), answer.status, dict(answer.headers), await _body(address, answer, most))


async def _body(address: URL, answer: aiohttp.ClientResponse, most: int) -> bytes:
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise FetchError(f"{_place(address)} sent a compressed answer that was not requested")
    pieces, size = list[bytes](), 0
    while piece := await answer.content.readany():
        size += len(piece)
        if size > most:
            raise FetchError(f"{_place(address)} sent more than {most} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _place(address: URL) -> str:
    return f"{address.host}:{address.port}"
