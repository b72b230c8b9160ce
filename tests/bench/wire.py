"""A websocket client cheap enough that it is never what is measured: RFC 6455 over a bare protocol."""

from __future__ import annotations

import asyncio
import os
from typing import cast

MASK = b"\x37\xfa\x21\x3d"
_HANDSHAKE = (
    "GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10


def frame(payload: bytes, opcode: int = _TEXT) -> bytes:
    """A masked client frame of less than 64 KiB."""
    size = len(payload)
    head = (
        bytes((0x80 | opcode, 0x80 | size))
        if size < 126
        else bytes((0x80 | opcode, 0xFE, size >> 8, size & 255))
    )
    pad = (MASK * (size // 4 + 1))[:size]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(pad, "big")
    return head + MASK + masked.to_bytes(size, "big")


class Client(asyncio.Protocol):
    """One connection. ``text`` is called with the payload of every text frame."""

    def __init__(self, port: int) -> None:
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.frames = 0
        self.transport: asyncio.Transport
        self._port = port
        self._rest = b""

    async def connect(self, source: str | None = None) -> None:
        """Open the websocket, from the address ``source`` if one is given."""
        local = None if source is None else (source, 0)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, "127.0.0.1", self._port, local_addr=local)
        await self.opened

    def send(self, payload: bytes) -> None:
        """Send a text frame."""
        self.transport.write(frame(payload))

    def ping(self, payload: bytes) -> None:
        """Send a ping."""
        self.transport.write(frame(payload, _PING))

    def text(self, payload: bytes) -> None:
        """Take a text frame in."""

    def pong(self, payload: bytes) -> None:
        """Take the answer to a ping in."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(_HANDSHAKE.format(port=self._port).encode())

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.opened.done():
            self.opened.set_exception(exc or ConnectionError("closed during the handshake"))

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        if not self.opened.done():
            head, end, data = data.partition(b"\r\n\r\n")
            if not end:
                self._rest = head
                return
            self._opened(head)
        self._rest = self._frames(data)

    def _told(self, payload: bytes) -> None:
        """A protocol's exception is only logged by the loop; here it has to end the measurement."""
        try:
            self.text(payload)
        except ValueError as error:
            print(f"failed: {error}", flush=True)
            os._exit(1)

    def _opened(self, head: bytes) -> None:
        if head.startswith(b"HTTP/1.1 101"):
            self.opened.set_result(None)
        else:
            self.opened.set_exception(ConnectionError(head.split(b"\r\n")[0].decode()))

    def _frames(self, data: bytes) -> bytes:
        """Cut the frames off; what is left belongs to the next."""
        at, end = 0, len(data)
        while end - at >= 2:
            size, start = data[at + 1], at + 2
            if size == 126:
                start += 2
                size = int.from_bytes(data[at + 2 : start], "big")
            elif size == 127:
                start += 8
                size = int.from_bytes(data[at + 2 : start], "big")
            if start + size > end:
                break
            self._frame(data[at] & 15, data[start : start + size])
            at = start + size
        return data[at:]

    def _frame(self, opcode: int, payload: bytes) -> None:
        if opcode == _TEXT:
            self.frames += 1
            self._told(payload)
        elif opcode == _PING:
            self.transport.write(frame(payload, _PONG))
        elif opcode == _PONG:
            self.pong(payload)
        elif opcode == _CLOSE:
            self.transport.close()
