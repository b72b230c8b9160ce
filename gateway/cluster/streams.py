"""Streams: the connections of many clients over one connection between two nodes.

A frame has the number of its stream, a kind, and a payload of ``MOST_BYTES`` at most. The node that connected
opens streams, and the other one accepts or refuses each. Either side sends on a stream only what the other
one gave it credit for, so that a client which does not read holds up no other and bounds what is kept for it.
A stream ends for both sides at once, after what was sent; there is no half-closed one.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Set
from typing import Any, cast

import structlog

log = structlog.get_logger("trunkline.cluster")

PROTOCOL = "trunkline-streams-1"
"""Name of the protocol in the TLS handshake. Nodes of another version have another one, or none."""
OTHER_VERSION = "its version has another protocol between nodes; replace the older one"
REPLACED = "its certificate was replaced"
MOST_BYTES = 16_384
WINDOW = 65_536
"""Bytes that may be under way on a stream in one direction."""
MOST_STREAMS = 65_536
ALIVE_SECONDS = 5.0
"""Pause between two signs of life. A connection without any of the other node for three of them is closed."""
HEAD = struct.Struct(">QBH")
"""The number of the stream, the kind and the length of the payload."""
OPEN, ACCEPT, DATA, CREDIT, CLOSE, ALIVE = range(1, 7)
"""``OPEN`` has what the stream is for, ``CREDIT`` a number of bytes, ``CLOSE`` the reason of a refusal, and
``ALIVE`` no stream."""
_LONGEST_OPENING = 1024
_LONGEST_REASON = 512
_MOST_SILENT = 3
_UNUSED = 12
"""Pauses after which a connection without a stream is closed by the node that opened it."""
_BATCH_BYTES = 65_536
"""Bytes that are sent at once; less waits for the end of the event loop's round."""
_HIGH_WATER, _LOW_WATER = 65_536, 16_384
"""Bytes not sent on a stream, above and below which its protocol pauses and resumes."""
_CONGESTED_BYTES = 262_144
"""Bytes not sent on a connection, above which streams keep theirs."""
_MOST_UNSENT = 4_194_304
"""Bytes that a node which does not read may cause."""

Admit = Callable[[bytes], tuple[asyncio.Protocol, dict[str, Any]]]
"""Makes the protocol of a stream and the facts of its transport from an opening.

Raises ConnectionRefusedError with the reason of a refusal.
"""


class _ViolationError(Exception):
    """The other node broke the protocol."""


class Stream(asyncio.Transport):
    """One stream, as the transport of a protocol."""

    __slots__ = (
        "_closing",
        "_connection",
        "_credit",
        "_ended",
        "_granted",
        "_held",
        "_last",
        "_loop",
        "_number",
        "_paused",
        "_protocol",
        "_pushed_back",
        "_unsent",
    )

    def __init__(
        self, connection: Connection, number: int, protocol: asyncio.BaseProtocol, facts: dict[str, Any]
    ) -> None:
        super().__init__(facts)
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._number = number
        self._protocol = cast("asyncio.Protocol", protocol)
        self._credit = self._granted = WINDOW
        self._unsent, self._held = bytearray(), bytearray()
        self._paused = self._pushed_back = False
        self._closing = False
        """The protocol closed it."""
        self._last = False
        """The other node closed it; the protocol still gets what is held."""
        self._ended = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Let another protocol receive."""
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol."""
        return self._protocol

    def is_closing(self) -> bool:
        """Return whether it is closed, or about to be."""
        return self._closing or self._ended

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait for credit or for the connection."""
        return len(self._unsent)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes in order, up to the credit that the other node gave; the rest waits."""
        if self._closing or self._ended or self._last or not data:
            return
        size, connection = len(data), self._connection
        if not self._unsent and size <= self._credit and size <= MOST_BYTES and not connection.congested:
            self._credit -= size
            connection.put(self._number, DATA, bytes(data))
            return
        self._unsent += data
        self._send()
        if not self._pushed_back and len(self._unsent) > _HIGH_WATER:
            self._pushed_back = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send several byte strings."""
        self.write(b"".join(list_of_data))

    def add_credit(self, amount: int) -> None:
        """Send on with more credit. Raises _ViolationError if it is too much."""
        self._credit += amount
        if self._credit > WINDOW:
            raise _ViolationError("more credit than the window has")
        self._send()

    def _send(self) -> None:
        while not self._connection.congested and self.send_on():
            pass
        if self._unsent and self._credit:
            self._connection.wait(self)

    def send_on(self) -> bool:
        """Send one frame of what waits. Return whether another one could follow."""
        if not (self._unsent and self._credit):
            return False
        piece = bytes(self._unsent[: min(MOST_BYTES, self._credit)])
        del self._unsent[: len(piece)]
        self._credit -= len(piece)
        self._connection.put(self._number, DATA, piece)
        if self._pushed_back and len(self._unsent) <= _LOW_WATER:
            self._pushed_back = False
            self._protocol.resume_writing()
        if self._closing and not self._unsent:
            self.abort()
        return bool(self._unsent and self._credit)

    def receive(self, data: bytes) -> None:
        """Give bytes of the other node to the protocol. Raises _ViolationError if they are too many."""
        self._granted -= len(data)
        if self._granted < 0:
            raise _ViolationError("more bytes than it has credit for")
        if self._closing:
            return
        if self._paused or self._held:
            self._held += data
            return
        self._give(data)

    def _give(self, data: bytes) -> None:
        try:
            self._protocol.data_received(data)
        except Exception:
            # As a transport of asyncio does: the other streams are not affected.
            log.exception("the connection of a client failed")
            self.abort()
        self._grant()

    def _grant(self) -> None:
        # Half a window each time, so that few frames have no data.
        if self._granted <= WINDOW // 2 and not (self._paused or self._last or self.is_closing()):
            self._connection.put(self._number, CREDIT, (WINDOW - self._granted).to_bytes(4, "big"))
            self._granted = WINDOW

    def pause_reading(self) -> None:
        """Give no bytes to the protocol until ``resume_reading``; the other node sends a window at most."""
        self._paused = True

    def resume_reading(self) -> None:
        """Give bytes to the protocol again."""
        if self._paused:
            self._paused = False
            self._loop.call_soon(self._release)

    def _release(self) -> None:
        if self._paused or self.is_closing():
            return
        data = bytes(self._held)
        self._held.clear()
        self._give(data) if data else self._grant()
        if self._last:
            self.end(None)

    def close(self) -> None:
        """End it once everything was sent. The protocol receives no more."""
        if not self.is_closing():
            self._closing = True
            self._held.clear()
            if self._last or not self._unsent:
                self.abort()

    def abort(self) -> None:
        """End it now."""
        if not self._ended:
            if not self._last:
                self._connection.put(self._number, CLOSE, b"")
            self.end(None)

    def finish(self) -> None:
        """End it as the other node did: the protocol first gets what is held."""
        self._last = True
        self._connection.forget(self._number, self)
        if self._closing or not self._held:
            self.end(None)

    def end(self, error: Exception | None) -> None:
        """Tell the protocol that the stream has ended."""
        if not self._ended:
            self._ended = True
            self._unsent.clear()
            self._held.clear()
            self._connection.forget(self._number, self)
            self._loop.call_soon(self._protocol.connection_lost, error)


class Connection(asyncio.Protocol):
    """A connection between two nodes, and its streams. It is one of ``connections`` until it has ended.

    ``admit`` is None on the side that opens the streams. ``usable`` says whether that is still possible.
    ``trusted`` has the certificates that the other node may have, in DER; they change.
    """

    certificate: bytes | None = None
    """The certificate of the other node, in DER."""
    retiring: asyncio.TimerHandle | None = None
    """Set once no stream may begin any more."""

    def __init__(
        self,
        admit: Admit | None,
        connections: set[Connection],
        trusted: Set[bytes],
        alive_seconds: float = ALIVE_SECONDS,
    ) -> None:
        self._admit = admit
        self._alive_seconds = alive_seconds
        self._connections = connections
        self._trusted = trusted
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, Stream] = {}
        self._opening: dict[int, asyncio.Future[None]] = {}
        self._newest = 0
        self._rest = b""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_due = False
        self._waiting: dict[Stream, None] = {}
        """Streams with bytes and credit, which take turns once the connection is not congested."""
        self._silent = self._unused = 0
        self._failure = "the connection to it has ended"
        self.congested = False
        self.usable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_CONGESTED_BYTES)
        self._connections.add(self)
        self._timer = self._loop.call_later(self._alive_seconds, self._look)
        tls = transport.get_extra_info("ssl_object")
        self.certificate = tls.getpeercert(binary_form=True)
        if self.certificate not in self._trusted:
            # It was replaced during the handshake, or is another one that the key of an accepted one signed.
            self._failure = REPLACED
            self._break_off(REPLACED)
        elif tls.selected_alpn_protocol() != PROTOCOL:
            self._failure = OTHER_VERSION
            self._transport.write(OTHER_VERSION.encode())
            self.close()

    async def open(self, opening: bytes, protocol: asyncio.Protocol) -> Stream:
        """Open a stream. Raises OSError if the other node refuses it, or does not answer any more."""
        if not self.usable or self.retiring is not None:
            raise ConnectionRefusedError(self._failure if self.retiring is None else REPLACED)
        if len(opening) > _LONGEST_OPENING:
            raise ConnectionRefusedError("the request for it is too long")
        if len(self._streams) >= MOST_STREAMS:
            raise ConnectionRefusedError(f"more than {MOST_STREAMS:,} connections")
        self._newest += 1
        number = self._newest
        stream = self._streams[number] = Stream(self, number, protocol, {})
        accepted = self._opening[number] = self._loop.create_future()
        self.put(number, OPEN, opening)
        try:
            await accepted
        except BaseException:
            if self._streams.pop(number, None) is not None:
                self.put(number, CLOSE, b"")
            raise
        finally:
            del self._opening[number]
        return stream

    def put(self, number: int, kind: int, payload: bytes) -> None:
        """Send a frame, together with others of this round of the event loop."""
        self._out += (HEAD.pack(number, kind, len(payload)), payload)
        self._out_bytes += len(payload) + HEAD.size
        if self._out_bytes >= _BATCH_BYTES:
            self._flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_due = False
        self._flush()

    def _flush(self) -> None:
        if not self._out:
            return
        data = b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        if not self._transport.is_closing():
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > _MOST_UNSENT:
                self._break_off("it does not read")

    def wait(self, stream: Stream) -> None:
        """Let a stream send on once the connection is not congested."""
        self._waiting[stream] = None

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False
        while self._waiting and not self.congested:
            stream = next(iter(self._waiting))
            del self._waiting[stream]
            if stream.send_on():
                self._waiting[stream] = None

    def forget(self, number: int, stream: Stream) -> None:
        """Pass nothing more to a stream."""
        self._streams.pop(number, None)
        self._waiting.pop(stream, None)
        if self.retiring is not None and not self._streams:
            self.close()

    def retire(self, seconds: float) -> None:
        """Let no stream begin any more; end with the last one, or after a time."""
        if self.retiring is None:
            self.retiring = self._loop.call_later(seconds, self._break_off, REPLACED)
            if not self._streams:
                self.close()

    def data_received(self, data: bytes) -> None:
        self._silent = 0
        if self._rest:
            data = self._rest + data
        at, end = 0, len(data)
        try:
            while end - at >= HEAD.size and self.usable:
                number, kind, size = HEAD.unpack_from(data, at)
                if size > MOST_BYTES:
                    raise _ViolationError(f"a frame of {size:,} bytes")
                begin = at + HEAD.size
                if begin + size > end:
                    break
                at = begin + size
                self._take(number, kind, data[begin:at])
        except _ViolationError as violation:
            self._break_off(str(violation))
        self._rest = data[at:]

    def _take(self, number: int, kind: int, payload: bytes) -> None:
        """Act on a frame. One of a stream that is not known any more crossed its end."""
        stream = self._streams.get(number)
        if kind == DATA:
            if stream is not None:
                stream.receive(payload)
        elif kind == CREDIT:
            if stream is not None:
                stream.add_credit(int.from_bytes(payload, "big"))
        elif kind == OPEN:
            self._admit_stream(number, payload)
        elif kind == ACCEPT:
            self._settle(number, None)
        elif kind == CLOSE:
            reason = payload[:_LONGEST_REASON].decode(errors="replace")
            if not self._settle(number, ConnectionRefusedError(reason)) and stream is not None:
                stream.finish()
        elif kind != ALIVE:
            raise _ViolationError(f"a frame of the unknown kind {kind}")

    def _settle(self, number: int, error: OSError | None) -> bool:
        """End the wait for the answer to an opening. Return False if nothing waits for it."""
        accepted = self._opening.get(number)
        if accepted is None or accepted.done():
            return False
        if error is None:
            accepted.set_result(None)
        else:
            # Its protocol is not notified, because the caller of ``open`` gets the error.
            self._streams.pop(number, None)
            accepted.set_exception(error)
        return True

    def _admit_stream(self, number: int, opening: bytes) -> None:
        if self._admit is None or number <= self._newest or len(opening) > _LONGEST_OPENING:
            raise _ViolationError("an opening that is not allowed")
        self._newest = number
        try:
            if self.retiring is not None:
                raise ConnectionRefusedError(REPLACED)
            if len(self._streams) >= MOST_STREAMS:
                raise ConnectionRefusedError(f"more than {MOST_STREAMS:,} connections")
            protocol, facts = self._admit(opening)
        except ConnectionRefusedError as refusal:
            self.put(number, CLOSE, str(refusal).encode())
            return
        stream = self._streams[number] = Stream(self, number, protocol, facts)
        self.put(number, ACCEPT, b"")
        protocol.connection_made(stream)

    def _look(self) -> None:
        """Send a sign of life, and end a connection without one of the other side, or without use."""
        # In looks, not in seconds: this process may have been frozen, and have everything still to read.
        self._silent += 1
        self._unused = 0 if self._streams or self._admit is not None else self._unused + 1
        if self._silent > _MOST_SILENT:
            self._break_off("it sent nothing for a while")
        elif self._unused > _UNUSED:
            self.close()
        else:
            self.put(0, ALIVE, b"")
            self._timer = self._loop.call_later(self._alive_seconds, self._look)

    def _break_off(self, reason: str) -> None:
        peer = self._transport.get_extra_info("peername")
        log.warning("the connection to another node was ended", reason=reason, peer=peer and peer[0])
        self.usable = False
        self._transport.abort()

    def close(self) -> None:
        """End it once everything was sent."""
        self._flush()
        self.usable = False
        self._transport.close()

    def eof_received(self) -> None:
        self.usable = False
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._timer.cancel()
        if self.retiring is not None:
            self.retiring.cancel()
        self._connections.discard(self)
        for number in self._opening:
            self._settle(number, ConnectionResetError(self._failure))
        for stream in [*self._streams.values()]:
            stream.end(exc)
