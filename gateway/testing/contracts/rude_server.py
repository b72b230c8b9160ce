"""A server that answers HTTP requests with arbitrary bytes, however invalid.

::

    async with RudeServer(http_response(b"<html>Please log in</html>", "text/html")) as rude:
        ...  # a provider with base_url = rude.url
        await rude.wait_disconnected()
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Literal

from msgspec import Struct

_PATIENCE = 60.0
_LENGTH = b"content-length:"


class Flood(Struct, frozen=True):
    """The same bytes without end, until the client disconnects."""

    data: bytes


class Drip(Struct, frozen=True):
    """The same bytes without end, with a pause (milliseconds) after each time."""

    data: bytes
    ms: float


Piece = bytes | Flood | Drip | Literal["hang"]
"""A piece of the response: bytes, a flood, a drip, or silence on an open connection."""


class RudeServer:
    """A server that answers every request with the same pieces, then closes. ``requests`` are the request
    heads.
    """

    def __init__(self, *answer: Piece) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self.url = ""
        self._open = 0
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> RudeServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=16 * 1024 * 1024)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._ended.set()
        self._server.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._server.wait_closed()

    async def wait_disconnected(self) -> None:
        """Wait until no client is connected. Raises TimeoutError if one stays."""
        async with asyncio.timeout(_PATIENCE):
            while self._open:
                self._changed.clear()
                await self._changed.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            writer.close()
            self._open -= 1
            self._changed.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.requests.append(head)
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(_LENGTH)]
        await reader.readexactly(int(lengths[0].removeprefix(_LENGTH)) if lengths else 0)
        for piece in self.answer:
            match piece:
                case bytes():
                    writer.write(piece)
                    await writer.drain()
                case Flood() | Drip():
                    while not (reader.at_eof() or self._ended.is_set()):
                        writer.write(piece.data)
                        await writer.drain()
                        if isinstance(piece, Drip):
                            await asyncio.sleep(piece.ms / 1000)
                case _:
                    await self._until_left(reader)

    async def _until_left(self, reader: asyncio.StreamReader) -> None:
        """Wait until the client disconnects or the server is closed."""
        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(reader.read()), tasks.create_task(self._ended.wait())]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()


def http_response(
    body: bytes = b"", kind: str = "text/event-stream", status: str = "200 OK", more: str = "", size: int = -1
) -> bytes:
    """Return an HTTP response. ``size`` overrides the Content-Length."""
    length = len(body) if size < 0 else size
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{more}Content-Length: {length}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


def response_head(kind: str = "text/event-stream", more: str = "") -> bytes:
    """Return the head of an HTTP response whose body ends with the connection."""
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{more}Connection: close\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    """Return a chunk of a body in chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(data), data)
