"""The gateway's side of a program's network: which hosts it reaches, and with which key its model service.

In: the streams of a keeper. Out: connections of the gateway, to public addresses of allowed hosts. A stream
begins with a line: ``connect HOST PORT`` is a tunnel, whose TLS is the program's own; ``http`` is a request
to the model service, in which the gateway replaces a placeholder by the real key where a request has its key.
The answer is ``ok`` or ``refused REASON``.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Protocol
from urllib.parse import SplitResult, urlsplit

import structlog
from msgspec import Struct

from gateway.provider_http import FetchError, connect_public
from plugins.programs.hosts import HTTPS, HostRule, is_address, is_name

log = structlog.get_logger("trunkline.coding_agents")

MOST_STREAMS = 128
"""Open streams of a session; further ones are refused."""
_HEAD_BYTES, _CHUNK = 65_536, 65_536
_HEAD_SECONDS, _IDLE_SECONDS = 60.0, 1_800.0
_METHODS = frozenset((b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS"))
_REQUEST = re.compile(rb"([A-Z]{3,7}) (/[\x21-\x7e]*) HTTP/1\.1")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_OWN_HEADERS = frozenset((b"host", b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization"))
_KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"x-goog-api-key", b"api-key"))
_EVERYWHERE: tuple[IPv4Network | IPv6Network, ...] = (ip_network("0.0.0.0/0"), ip_network("::/0"))


class Stream(Protocol):
    """A connection from inside the sandbox."""

    async def read(self, most: int = 65536) -> bytes:
        """Return the next bytes; b"" at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes."""
        ...

    def write_eof(self) -> None:
        """Tell the other side that nothing more follows."""
        ...


class RefusedError(Exception):
    """A stream that the program may not have, with the reason."""


class ModelService(Struct, frozen=True):
    """The service of a program's models, by its base address.

    ``named``: the operator named the address, so it may be private. ``placeholder`` is the key that the
    program has, and ``key`` the real one; without it there are no ``http`` streams.
    """

    url: str
    key: str = ""
    placeholder: str = ""
    named: bool = False

    @property
    def parts(self) -> SplitResult:
        """The parts of its address."""
        return urlsplit(self.url)

    @property
    def host(self) -> str:
        """Its host."""
        return self.parts.hostname or ""

    @property
    def port(self) -> int:
        """Its port."""
        return self.parts.port or (HTTPS if self.parts.scheme == "https" else 80)


class NetworkExit:
    """The connections of one session to hosts outside of its sandbox."""

    def __init__(self, session: str, rules: Sequence[HostRule], service: ModelService | None) -> None:
        self._session = session
        self._rules = rules
        self._service = service
        self._open = 0

    async def serve(self, words: Sequence[str], stream: Stream) -> None:
        """Serve a stream to its end; ``words`` are those of its first line."""
        self._open += 1
        try:
            if self._open > MOST_STREAMS:
                raise RefusedError(f"more than {MOST_STREAMS} connections at once")
            if words[0] == "connect" and len(words) == 3:
                await self._connect(words[1], words[2], stream)
            elif tuple(words) == ("http",):
                await self._request(stream)
            else:
                raise RefusedError("unknown service")
        except RefusedError as error:
            log.info("a coding agent was refused a connection", session=self._session, reason=str(error))
            await stream.write(f"refused {error}\n".encode())
        except (OSError, TimeoutError) as error:
            log.debug("a connection of a coding agent ended", session=self._session, reason=str(error))
        finally:
            self._open -= 1

    def allows(self, host: str, port: int) -> bool:
        """Return whether the program may connect to a host."""
        return self._is_service(host, port) or any(rule.fits(host, port) for rule in self._rules)

    def _is_service(self, host: str, port: int) -> bool:
        return self._service is not None and (host, port) == (self._service.host, self._service.port)

    async def _connect(self, host: str, port: str, stream: Stream) -> None:
        host = host.lower().rstrip(".")
        number = int(port) if port.isascii() and port.isdecimal() and len(port) <= 5 else 0
        if not 0 < number < 65_536 or not (is_address(host) or is_name(host)):
            raise RefusedError("not a host and a port")
        if not self.allows(host, number):
            raise RefusedError(
                f"{host}:{number} is not among the allowed hosts; an operator can add it to allow_hosts, "
                'with network = "list"'
            )
        async with self._reach(host, number, encrypted=False) as (reader, writer):
            await stream.write(b"ok\n")
            await _relay(stream, reader, writer)

    @asynccontextmanager
    async def _reach(
        self, host: str, port: int, *, encrypted: bool
    ) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Connect to a host, at an address that is public or named. Raises RefusedError."""
        named = self._service is not None and self._service.named and self._is_service(host, port)
        networks = [rule.network for rule in self._rules if rule.network is not None]
        try:
            sock = await connect_public(host, port, _EVERYWHERE if named else networks)
        except FetchError as error:
            raise RefusedError(str(error)) from None
        try:
            context = ssl.create_default_context() if encrypted else None
            name = host if encrypted else None
            opened = await asyncio.open_connection(sock=sock, ssl=context, server_hostname=name)
        except (OSError, ssl.SSLError) as error:
            sock.close()
            raise RefusedError(f"{host}:{port}: {error}") from None
        try:
            yield opened
        finally:
            opened[1].transport.abort()

    async def _request(self, stream: Stream) -> None:
        """Pass one request on to the model service, with the real key, and its answer back."""
        service = self._service
        if service is None or not service.key:
            raise RefusedError("this program has no model service with a key of the gateway")
        await stream.write(b"ok\n")
        try:
            async with asyncio.timeout(_HEAD_SECONDS):
                head, rest = await _read_head(stream)
            if not head:
                return
            changed = _with_key(head, service)
            encrypted = service.parts.scheme == "https"
            async with self._reach(service.host, service.port, encrypted=encrypted) as (reader, writer):
                writer.write(changed + rest)
                await _relay(stream, reader, writer)
        except RefusedError as error:
            log.info("a request to a model was refused", session=self._session, reason=str(error))
            text = f"trunkline: {error}\n".encode()
            answer = b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nConnection: close\r\n"
            await stream.write(answer + b"Content-Length: %d\r\n\r\n%s" % (len(text), text))


async def _read_head(stream: Stream) -> tuple[bytes, bytes]:
    """Return the head of a request with its last line end, and what came after it; b"" without a request."""
    data, end = bytearray(), -1
    while end < 0:
        piece = await stream.read(_CHUNK)
        if not piece:
            return b"", b""
        data += piece
        end = data.find(b"\r\n\r\n")
        if max(end, len(data) if end < 0 else 0) > _HEAD_BYTES:
            raise RefusedError(f"the head of the request has more than {_HEAD_BYTES} bytes")
    return bytes(data[: end + 2]), bytes(data[end + 4 :])


def _with_key(head: bytes, service: ModelService) -> bytes:
    """Return the head for the model service: its host, the real key, and one request for each connection."""
    first, *lines = head.split(b"\r\n")[:-1]
    request = _REQUEST.fullmatch(first)
    headers = [_HEADER.fullmatch(line) for line in lines]
    if request is None or request[1] not in _METHODS or None in headers:
        raise RefusedError("the request is not one of HTTP/1.1")
    placeholder, key = service.placeholder.encode(), service.key.encode()
    # Only where a service reads its key: its errors quote other values, such as the name of a model in a
    # path, and would show the key to the program.
    kept = [
        (found[1], found[2].replace(placeholder, key) if found[1].lower() in _KEY_HEADERS else found[2])
        for found in headers
        if found is not None and found[1].lower() not in _OWN_HEADERS
    ]
    upgrades = any(name.lower() == b"upgrade" for name, _ in kept)
    host = service.parts.netloc.rpartition("@")[2].encode()
    kept += [(b"Host", host), (b"Connection", b"Upgrade" if upgrades else b"close")]
    path, mark, query = request[2].partition(b"?")
    fields = (b"key=" + key if each == b"key=" + placeholder else each for each in query.split(b"&"))
    target = path + mark + b"&".join(fields)
    return b"".join(
        (b"%s %s HTTP/1.1\r\n" % (request[1], target), *(b"%s: %s\r\n" % pair for pair in kept), b"\r\n")
    )


async def _relay(stream: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on in both directions until the far side ends, or nothing moves for half an hour."""
    loop = asyncio.get_running_loop()

    async def send() -> None:
        while data := await stream.read(_CHUNK):
            idle.reschedule(loop.time() + _IDLE_SECONDS)
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    async def receive() -> None:
        while data := await reader.read(_CHUNK):
            idle.reschedule(loop.time() + _IDLE_SECONDS)
            await stream.write(data)
        stream.write_eof()

    async with asyncio.timeout(_IDLE_SECONDS) as idle:
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(send())
                await receive()
                sending.cancel()
        except* OSError as errors:
            log.debug("a connection of a coding agent broke", reason=str(errors.exceptions[0]))
