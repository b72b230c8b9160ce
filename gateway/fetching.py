"""Fetching what a message names: from public addresses alone, however they are reached.

Whoever writes to the bot, and any model, may name an address. None of them may make the gateway ask this
machine, its network or a cloud's metadata service. So there is one door: ``fetch``. It judges the very
address that a connection goes to, after names were resolved, on every hop of a redirect; a name that changes
its mind between a look and a connection gains nothing. What operators write into the settings, such as the
address of a model server, is theirs to say and not judged here.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import aiohttp
from msgspec import Struct
from yarl import URL

from gateway.errors import AddressRefusedError, FetchError

Network = IPv4Network | IPv6Network

REDIRECTS = 5
LONGEST_ADDRESS = 8192

_REFUSED = "not a public address"
_TRANSLATED = IPv6Network("64:ff9b::/96")
"""IPv4 addresses as networks without IPv4 write them: judged by what they stand for."""
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
    """How far a fetch may go: networks that are allowed though they are not public, bytes, and seconds."""

    allow: tuple[Network, ...] = ()
    most_bytes: int = 5_000_000
    seconds: float = 20.0


REACH = Reach()
"""The usual one."""


class Fetched(Struct, frozen=True):
    """What was fetched: from where in the end, as what it was sent, and its bytes."""

    url: str
    mime_type: str
    data: bytes


def is_public(address: str) -> bool:
    """Whether an IP address is of the internet at large: of no private network, and no way into one."""
    ip = _plain(address)
    if isinstance(ip, IPv6Address) and ip not in _UNICAST:
        return False
    return ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)


async def fetch(url: str, reach: Reach = REACH) -> Fetched:
    """Fetch from an http or https address. Proxies are not used: they would choose the way.

    Raises AddressRefusedError if it, or what it redirects to, lies where messages may not reach, and
    FetchError if nothing comes of it.
    """
    address = _address(url)
    try:
        async with asyncio.timeout(reach.seconds), _session(reach) as session:
            for _ in range(REDIRECTS + 1):
                async with session.get(address, allow_redirects=False) as answer:
                    if answer.status not in (301, 302, 303, 307, 308):
                        return await _content(address, answer, reach.most_bytes)
                    address = _address(str(address.join(URL(answer.headers.get("Location", "")))))
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, _NotPublic):
            raise AddressRefusedError(f"{_place(address)} is {_REFUSED}") from None
        raise FetchError(f"{_place(address)} cannot be reached") from None
    except TimeoutError:
        raise FetchError(f"{_place(address)} did not answer within {reach.seconds:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError):
        raise FetchError(f"{_place(address)} does not answer as a web server does") from None
    raise FetchError(f"{_place(address)} redirects in circles")


class _NotPublic(OSError):
    """How the door is shut; the connector tries the other addresses of a name, and tells if none is left."""


def _session(reach: Reach) -> aiohttp.ClientSession:
    """A session for one fetch: nothing of it is kept, and its sockets are made by the door alone."""
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
    """The socket for a connection, if it may be made. This is the door."""
    family, kind, protocol, _, address = info
    ip = _plain(address[0])
    if not (is_public(address[0]) or any(ip in network for network in allow)):
        raise _NotPublic(errno.EACCES, _REFUSED)
    return socket.socket(family, kind, protocol)


def _plain(address: str) -> IPv4Address | IPv6Address:
    """An address without its zone; one of IPv4 that is written as one of IPv6 is what it stands for."""
    ip = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return ip.ipv4_mapped
        if ip in _TRANSLATED:
            return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip


def _address(url: str) -> URL:
    try:
        address = URL(url) if len(url) <= LONGEST_ADDRESS else URL()
        host, port = address.host, address.port
    except ValueError:
        raise FetchError("what was named is no web address") from None
    if address.scheme not in ("http", "https") or not host or not port:
        raise FetchError("only what has an http or https address can be fetched")
    if address.user is not None or address.password is not None:
        raise FetchError(f"{_place(address)}: an address with a name or password in it is not fetched")
    return address


async def _content(address: URL, answer: aiohttp.ClientResponse, most: int) -> Fetched:
    if answer.status != 200:
        raise FetchError(f"{_place(address)} answered with status {answer.status}")
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise FetchError(f"{_place(address)} sent it compressed, which was not asked for")
    pieces, size = list[bytes](), 0
    while piece := await answer.content.readany():
        size += len(piece)
        if size > most:
            raise FetchError(f"{_place(address)} has more than {most} bytes there")
        pieces.append(piece)
    return Fetched(str(address), answer.content_type, b"".join(pieces))


def _place(address: URL) -> str:
    return f"{address.host}:{address.port}"
