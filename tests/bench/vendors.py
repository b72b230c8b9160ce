"""Model servers of every vendor, as cheap as can be: answers are prepared bytes, a token a write.

The model's name says what is wanted: ``bench-200-0`` is 200 tokens, one for each stream in every round of the
event loop; ``bench-50-20`` is 50 tokens, one every 20 ms. Tokens of the latter say when they were sent
(``@12.345678;``, monotonic seconds). ``bench-die-0`` begins an answer and closes; the next answer begins with
how long that was ago, as ``#0.012345#``. The path's beginning says whose protocol is spoken.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import uvloop

from gateway.testing.fake_models.dialect import Dialect
from gateway.testing.fake_models.script import ModelRequest, Reply, Say, Tokens
from gateway.testing.fake_models.vendors import DIALECTS

STAMP = b"@%015.6f;"
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_WANTED = re.compile(rb"bench-(\d+|die)-(\d+)")
_BLANK = "?????????????????"


@dataclass(frozen=True)
class Written:
    """An answer's pieces, in chunks; ``token`` makes the chunk of a text of the length of a stamp."""

    head: bytes
    begin: bytes
    token: Callable[[bytes], bytes]
    end: bytes


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def written(dialect: Dialect) -> Written:
    """What a vendor sends."""
    request = ModelRequest("", {}, {"model": "bench", "stream_options": {"include_usage": True}})
    reply = Reply((Say("x"),), tokens=Tokens(9, 9))
    wire = dialect.wire(request, reply)
    begin = wire.begin() + b"".join(wire.events(Say(" ")))
    event = b"".join(wire.events(Say(_BLANK)))

    def token(text: bytes) -> bytes:
        if _checked(dialect):
            return _chunk(b"".join(wire.events(Say(text.decode()))))
        return _chunk(event.replace(_BLANK.encode(), text))

    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"
    return Written(
        head % dialect.content_type.encode(), _chunk(begin), token, _chunk(wire.end(reply)) + b"0\r\n\r\n"
    )


def _checked(dialect: Dialect) -> bool:
    """Whether events carry a checksum, so that each has to be made."""
    return "eventstream" in dialect.content_type


class Server:
    """All vendors; ``last_death`` is when an answer was cut off."""

    def __init__(self) -> None:
        self.vendors: Mapping[bytes, Written] = {
            dialect.path.encode(): written(dialect)
            for dialect in sorted(DIALECTS.values(), key=lambda each: -len(each.path))
        }
        self.plain = {path: vendor.token(b"%17s" % b"word ") for path, vendor in self.vendors.items()}
        self.last_death = 0.0
        self._streams: deque[tuple[asyncio.Transport, bytes, bytes, int]] = deque()
        self._running = False

    def add(self, transport: asyncio.Transport, token: bytes, end: bytes, count: int) -> None:
        """Let a stream take part from the next round on."""
        self._streams.append((transport, token, end, count))
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_soon(self._round)

    def _round(self) -> None:
        for _ in range(len(self._streams)):
            transport, token, end, left = self._streams.popleft()
            if left:
                transport.write(token)
                self._streams.append((transport, token, end, left - 1))
            else:
                transport.write(end)
        self._running = bool(self._streams)
        if self._running:
            asyncio.get_running_loop().call_soon(self._round)


class Connection(asyncio.Protocol):
    """One kept-alive connection of a client, with one request at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._data = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head = self._data.find(b"\r\n\r\n")
        length = _LENGTH.search(self._data, 0, max(head, 0))
        if head >= 0 and len(self._data) >= head + 4 + (int(length[1]) if length else 0):
            request, self._data = self._data, b""
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        path = request.split(b" ", 2)[1]
        place, vendor = next((p, v) for p, v in self._server.vendors.items() if path.startswith(p))
        wanted = _WANTED.search(request)
        assert wanted is not None, request
        self._transport.write(vendor.head + vendor.begin)
        pause = int(wanted[2])
        if wanted[1] == b"die":
            self._transport.write(vendor.token(b"%17s" % b"half "))
            asyncio.get_running_loop().call_later(0.05, self._die)
        elif pause:
            due = asyncio.get_running_loop().time() + pause / 1000 * (hash(id(self)) % 97) / 97
            asyncio.get_running_loop().call_at(due, self._next, vendor, due, pause / 1000, int(wanted[1]))
        else:
            if self._server.last_death:
                ago = time.monotonic() - self._server.last_death
                self._server.last_death = 0.0
                self._transport.write(vendor.token(b"#%015.6f#" % ago))
            self._server.add(self._transport, self._server.plain[place], vendor.end, int(wanted[1]))

    def _die(self) -> None:
        self._server.last_death = time.monotonic()
        self._transport.abort()

    def _next(self, vendor: Written, due: float, pause: float, left: int) -> None:
        """Send a token when it is due; one that comes late does not delay those after it."""
        if self._transport.is_closing():
            return
        if left == 0:
            self._transport.write(vendor.end)
            return
        self._transport.write(vendor.token(STAMP % time.monotonic()))
        asyncio.get_running_loop().call_at(due + pause, self._next, vendor, due + pause, pause, left - 1)


async def main() -> None:
    """Serve until the process is ended; the first line of the output is the address."""
    served = Server()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(served), "127.0.0.1", 0, backlog=4096)
    print(f"ready: http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
