"""A websocket of the gateway: frames, heartbeats, and compression."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec
from aiohttp import WSMsgType, web

from channels.discord.fake.limits import Figures
from gateway.testing.fake_platform import Clock, Window


class Packer(Protocol):
    """Packs one payload after the other."""

    def __call__(self, payload: bytes) -> str | bytes: ...


def packer(name: str) -> Packer:
    """The packing that a connection asked for. Raises LookupError for one that does not exist."""
    return {"": Plain, "zlib-stream": ZlibStream, "zstd-stream": ZstdStream}[name]()


class Plain:
    """Text. When the bot said ``compress`` as it logged in, large payloads are packed one by one."""

    def __init__(self) -> None:
        self.compress = False

    def __call__(self, payload: bytes) -> str | bytes:
        if self.compress and len(payload) > 1024:
            return zlib.compress(payload)
        return payload.decode()


class ZlibStream:
    """One zlib stream, flushed after every payload."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj()

    def __call__(self, payload: bytes) -> bytes:
        return self._stream.compress(payload) + self._stream.flush(zlib.Z_SYNC_FLUSH)


class ZstdStream:
    """One zstd frame that does not end, flushed after every payload."""

    def __init__(self) -> None:
        # Only bots that have zstandard ask for this.
        import zstandard

        self._flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK
        self._stream = zstandard.ZstdCompressor().compressobj()

    def __call__(self, payload: bytes) -> bytes:
        return self._stream.compress(payload) + self._stream.flush(self._flush)


CLOSED: Final[Mapping[int, str]] = {
    4000: "Unknown error.",
    4001: "Unknown opcode.",
    4002: "Error while decoding payload.",
    4003: "Not authenticated.",
    4004: "Authentication failed.",
    4005: "Already authenticated.",
    4007: "Invalid seq.",
    4008: "Rate limited.",
    4009: "Session timed out.",
    4010: "Invalid shard.",
    4011: "Sharding required.",
    4012: "Invalid API version.",
    4013: "Invalid intent(s).",
    4014: "Disallowed intent(s).",
}
"""Why the gateway closes a connection."""

HEARTBEAT, IDENTIFY, RESUME, RECONNECT, INVALID_SESSION, HELLO, ACK = 1, 2, 6, 7, 9, 10, 11
_MOST_WAITING: Final = 20_000
_TOLERANCE: Final = 1.5


class Closing(Exception):
    """The gateway closes the connection, with one of its codes."""

    def __init__(self, code: int, problem: str | None = None) -> None:
        super().__init__(CLOSED[code])
        self.code = code
        self.problem = problem


class Connection:
    """Sends payloads in order. ``mute`` stops that while the connection stays open, as of a zombie.

    ``closed`` is the code that the gateway closed it with, if it was not the bot.
    """

    def __init__(self, socket: web.WebSocketResponse, pack: Packer, clock: Clock, figures: Figures) -> None:
        self.mute = False
        self.closed: int | None = None
        self._socket = socket
        self._pack = pack
        self._figures = figures
        self._waiting: deque[object] = deque()
        self._news = asyncio.Event()
        self._received = Window(clock, figures.gateway_events, figures.gateway_window)
        self._transport: asyncio.Transport | None = None

    def send(self, payload: object) -> None:
        """Send a payload: an object, or text that goes out as it is."""
        self._waiting.append(payload)
        if len(self._waiting) > _MOST_WAITING:  # nobody reads
            self.abort()
        self._news.set()

    def send_op(self, op: int, data: object = None) -> None:
        """Send what is not an event."""
        self.send({"t": None, "s": None, "op": op, "d": data})

    def compress(self) -> None:
        """The bot takes packed payloads. Streams are packed anyway."""
        if isinstance(self._pack, Plain):
            self._pack.compress = True

    def attach(self, transport: asyncio.Transport | None) -> None:
        """The transport under the socket."""
        self._transport = transport

    def abort(self) -> None:
        """Cut the connection without a word."""
        if self._transport is not None:
            self._transport.abort()

    async def serve(self, receive: Callable[[int, Any], None], closes: Callable[[Closing], None]) -> None:
        """Read and write until one side closes. ``closes`` is called first if it is this side."""
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._write())
            try:
                await self._read(receive)
            except Closing as closing:
                closes(closing)
                self.closed = closing.code
                if not self.mute:
                    await self._socket.close(code=closing.code, message=CLOSED[closing.code].encode())
            finally:
                writer.cancel()

    async def _read(self, receive: Callable[[int, Any], None]) -> None:
        loop = asyncio.get_running_loop()
        self.send_op(HELLO, {"heartbeat_interval": int(self._figures.heartbeat * 1000), "_trace": ["fake"]})
        patience = self._figures.heartbeat * _TOLERANCE
        try:
            async with asyncio.timeout(patience) as deadline:
                async for frame in self._socket:
                    op, data = self._decoded(frame.type, frame.data)
                    if op == HEARTBEAT:
                        deadline.reschedule(loop.time() + patience)
                        self.send_op(ACK)
                    receive(op, data)
        except TimeoutError:
            raise Closing(4009, "no heartbeat came in time") from None

    def _decoded(self, kind: WSMsgType, data: Any) -> tuple[int, Any]:
        raw: bytes = data.encode() if isinstance(data, str) else bytes(data)
        if kind not in (WSMsgType.TEXT, WSMsgType.BINARY) or len(raw) > self._figures.gateway_bytes:
            raise Closing(4002, f"a payload of {len(raw)} bytes")
        self._received.count()
        if self._received.used > self._received.most:
            raise Closing(4008, "more than 120 payloads in a minute")
        try:
            payload: Any = msgspec.json.decode(raw)
            return int(payload["op"]), payload.get("d")
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError, KeyError, ValueError) as error:
            raise Closing(4002, "a payload that cannot be read") from error

    async def _write(self) -> None:
        while not self._socket.closed:
            await self._news.wait()
            self._news.clear()
            while self._waiting and not self.mute:
                payload = self._waiting.popleft()
                if isinstance(payload, Closing):
                    self.closed = payload.code
                    await self._socket.close(code=payload.code, message=CLOSED[payload.code].encode())
                    return
                raw = payload.encode() if isinstance(payload, str) else msgspec.json.encode(payload)
                packed = self._pack(raw)
                if isinstance(packed, str):
                    await self._socket.send_str(packed)
                else:
                    await self._socket.send_bytes(packed)
