"""Frames: calls, results and events in both directions over one socket.

A frame is a length of 4 bytes, big-endian, and UTF-8 JSON of at most 1 MiB. ``{"i", "m", "p", "d"}`` is a
call with ``d`` ms left, ``{"i", "r"}`` its result, ``{"i", "e"}`` its error; one without ``i`` is an event.
Each direction numbers its own calls. A result with ``"f": 1`` brings a descriptor, sent with its first byte.

The other side is not trusted. All it sends is bounded, and what it may never send ends the connection with
ProtocolViolation: a broken frame, an answer to a call that was never made, too many frames, or ever more
calls whose answers it does not read.
"""

from __future__ import annotations

import array
import asyncio
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import structlog
from msgspec import UNSET, Struct, UnsetType

from gateway.contract.errors import PluginError, TrunklineError
from gateway.extensions.deadlines import Deadline

log = structlog.get_logger("trunkline.plugins")

MOST_BYTES = 1 << 20
"""Longest frame, without its length."""
MOST_EVENTS = 256
"""Events that wait for the other side; beyond them the oldest is dropped."""
MOST_FRAMES = 5_000
"""Calls and events of the other side in one second. Results do not count: this side asked for them."""

_LENGTH = 4
_CHUNK = 262_144
_MOST_ABANDONED = 1_000
_BATCH = 65_536


class ProcessEnded(PluginError):
    """The process of a plugin ended, or is not running; the text says why."""


class RemoteError(PluginError):
    """An error that the other side answered with. ``remote`` is its name there."""

    def __init__(self, remote: str, message: str) -> None:
        super().__init__(message)
        self.remote = remote


class ProtocolViolation(PluginError):
    """The other side sent what it must not send; the connection is over."""


class Reply(Struct, frozen=True):
    """A result with a file descriptor, which is closed after it was sent."""

    value: Any
    fd: int | None = None


Serve = Callable[[str, Any], Awaitable["Reply | Any"]]


class _Failure(Struct, frozen=True):
    name: str
    message: str


class _Frame(Struct, frozen=True, forbid_unknown_fields=True):
    """A received frame."""

    i: int | UnsetType = UNSET
    m: str | UnsetType = UNSET
    p: Any = None
    d: int | None = None
    r: Any = UNSET
    e: _Failure | UnsetType = UNSET
    f: int = 0


class _Call(Struct, frozen=True):
    i: int
    m: str
    p: Any
    d: int


class _Event(Struct, frozen=True):
    m: str
    p: Any


class _Result(Struct, frozen=True, omit_defaults=True):
    i: int
    r: Any
    f: int = 0


class _Error(Struct, frozen=True):
    i: int
    e: _Failure


class _Outgoing:
    """A frame that waits. ``data`` becomes empty if it is dropped."""

    __slots__ = ("data", "fd", "weight")

    def __init__(self, data: bytes, fd: int | None = None, *, weight: int = 0) -> None:
        self.data = data
        self.fd = fd
        self.weight = weight


class Connection:
    """One end of the socket. ``serve`` answers calls; a TrunklineError that it raises becomes an error.

    At most ``in_flight`` calls are open in each direction: ``call`` waits for its turn, and a call of the
    other side beyond them is answered with an error.
    """

    def __init__(self, sock: socket.socket, serve: Serve, *, in_flight: int = 64) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._fd = sock.fileno()
        self._serve = serve
        self._in_flight = in_flight
        self._loop = asyncio.get_running_loop()
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(_Frame).decode
        self._received = bytearray()
        self._out: deque[_Outgoing] = deque()
        self._events: deque[_Outgoing] = deque()
        self._writing = False
        self._flushing = False
        self._last = 0
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._abandoned: set[int] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._serving = 0
        self._unread = 0
        """Bytes of answers that wait; one with a descriptor counts as the longest."""
        self._second = 0.0
        self._frames = 0
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._tasks: asyncio.TaskGroup | None = None
        self._serving_tasks: set[asyncio.Task[None]] = set()
        self._closed: ProcessEnded | None = None
        self.dropped = 0
        """Events that were dropped because the other side did not read."""
        self.violation = ""
        """The violation of the protocol by the other side; "" if there is none."""
        self.open_calls = 0
        """Calls of this side without an answer."""

    async def run(self) -> None:
        """Serve until the end of the socket. Raises ProtocolViolation."""
        if self._closed is not None:
            return  # the process has ended already
        self._loop.add_reader(self._fd, self._readable)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                try:
                    await self._ended
                finally:
                    self.close("its connection was closed")
                    for task in self._serving_tasks:
                        task.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self.close("its connection was closed")

    def close(self, reason: str) -> None:
        """Fail all open calls at once with ProcessEnded, and close the socket."""
        if self._closed is not None:
            return
        self._closed = ProcessEnded(reason)
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        for future in (*self._calls.values(), *self._waiting):
            if not future.done():
                future.set_exception(ProcessEnded(reason))
        for waiting in self._out:
            if waiting.fd is not None:
                os.close(waiting.fd)
        self._out.clear()
        self._sock.close()
        if not self._ended.done():
            self._ended.set_result(None)

    async def call(self, method: str, params: Mapping[str, Any] | Struct, seconds: float) -> Any:
        """Call the other side. Raises RemoteError, TimeoutError or ProcessEnded."""
        until = self._loop.time() + seconds
        # A limit that can be paused, while an admin is asked for what the call needs.
        async with Deadline(seconds):
            if self.open_calls >= self._in_flight or self._waiting:
                await self._turn()
            if self._closed is not None:
                raise ProcessEnded(str(self._closed))
            self._last = number = self._last + 1
            left = until - self._loop.time()
            self._send(_Outgoing(self._framed(_Call(number, method, params, max(int(left * 1000), 1)))))
            future: asyncio.Future[Any] = self._loop.create_future()
            self._calls[number] = future
            self.open_calls += 1
            try:
                return await future
            finally:
                if self._calls.pop(number, None) is not None:
                    self._abandon(number)
                self._finish_call()

    def notify(self, method: str, params: Mapping[str, Any] | Struct) -> None:
        """Send an event. It never waits: if 256 are waiting, the oldest is dropped and counted."""
        if self._closed is not None:
            return
        event = _Outgoing(self._framed(_Event(method, params)))
        self._events.append(event)
        if len(self._events) > MOST_EVENTS:
            self._events.popleft().data = b""
            self.dropped += 1
        self._send(event)

    def _framed(self, value: Struct) -> bytes:
        data = self._encode(value)
        if len(data) > MOST_BYTES:
            raise PluginError(
                f"a frame has {len(data):,} bytes; at most {MOST_BYTES:,} can be sent to a plugin"
            )
        return len(data).to_bytes(_LENGTH, "big") + data

    async def _turn(self) -> None:
        """Wait until a call may be opened."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif self._closed is None:
                self._wake_next()
            raise

    def _finish_call(self) -> None:
        self.open_calls -= 1
        self._wake_next()

    def _wake_next(self) -> None:
        while self._waiting and self.open_calls < self._in_flight:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _abandon(self, number: int) -> None:
        """Remember a call that this side no longer waits for: its answer is late, not forged."""
        if self._closed is not None:
            return
        self._abandoned.add(number)
        if len(self._abandoned) > _MOST_ABANDONED:
            self._violate(f"it left {_MOST_ABANDONED:,} calls without an answer")
            return
        self.notify("cancel", {"i": number})

    # Writing.

    def _send(self, frame: _Outgoing) -> None:
        """Send a frame at the end of this step of the loop: calls made at once are one system call."""
        if self._closed is not None:
            if frame.fd is not None:
                os.close(frame.fd)
            return
        self._out.append(frame)
        if not self._writing and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self._writing and self._closed is None:
            self._write()

    def _write(self) -> None:
        try:
            while self._out:
                first = self._out[0]
                if first.fd is not None:
                    sent = self._sock.sendmsg([first.data], [_rights(first.fd)])
                    os.close(first.fd)
                    first.fd = None
                else:
                    sent = self._sock.send(first.data if len(self._out) == 1 else self._merged())
                self._consume(sent)
        except (BlockingIOError, InterruptedError):
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._fd, self._write)
            return
        except OSError:
            self.close("its connection is broken")
            return
        self._events.clear()
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def _merged(self) -> bytes:
        """Return the frames at the front as one piece, up to one with a descriptor."""
        data = bytearray()
        for frame in self._out:
            if frame.fd is not None or len(data) > _BATCH:
                break
            data += frame.data
        return bytes(data)

    def _consume(self, sent: int) -> None:
        """Remove what was sent from the front."""
        while self._out and sent >= len(self._out[0].data):
            done = self._out.popleft()
            sent -= len(done.data)
            self._unread -= done.weight
            if self._events and self._events[0] is done:
                self._events.popleft()
        if sent:
            first = self._out[0]
            first.data = first.data[sent:]
            # A frame of which a part was sent must be sent to its end.
            if self._events and self._events[0] is first:
                self._events.popleft()

    # Reading.

    def _readable(self) -> None:
        try:
            data = self._sock.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            if not self._ended.done():
                self._ended.set_result(None)
            return
        self._received += data
        try:
            self._take_frames()
        except ProtocolViolation as violation:
            self._violate(str(violation))

    def _violate(self, reason: str) -> None:
        self.violation = self.violation or reason
        if not self._ended.done():
            self._ended.set_exception(ProtocolViolation(reason))
        self.close(f"it broke the protocol: {reason}")

    def _take_frames(self) -> None:
        received, at = self._received, 0
        while len(received) - at >= _LENGTH:
            size = int.from_bytes(received[at : at + _LENGTH], "big")
            if size > MOST_BYTES:
                raise ProtocolViolation(f"a frame of {size:,} bytes; at most {MOST_BYTES:,} are allowed")
            end = at + _LENGTH + size
            if len(received) < end:
                break
            try:
                frame = self._decode(received[at + _LENGTH : end])
            except (msgspec.MsgspecError, UnicodeError, ValueError) as error:
                raise ProtocolViolation(f"a broken frame: {error}") from None
            except RecursionError:
                raise ProtocolViolation("a frame that is nested too deep") from None
            at = end
            self._take(frame)
        del received[:at]

    def _take(self, frame: _Frame) -> None:
        number, is_result, is_error = frame.i, frame.r is not UNSET, frame.e is not UNSET
        if isinstance(frame.m, str) and not is_result and not is_error:
            self._count()
            self._accept(number, frame.m, frame.p)
        elif isinstance(number, int) and frame.m is UNSET and is_result != is_error:
            self._settle(number, frame)
        else:
            raise ProtocolViolation("a frame that is neither a call, a result, an error nor an event")

    def _settle(self, number: int, frame: _Frame) -> None:
        future = self._calls.pop(number, None)
        if future is None:
            if number not in self._abandoned:
                raise ProtocolViolation(f"an answer to the call {number}, which was not made")
            self._abandoned.discard(number)
        elif not future.done():
            if isinstance(frame.e, _Failure):
                future.set_exception(RemoteError(frame.e.name, frame.e.message))
            else:
                future.set_result(frame.r)

    def _count(self) -> None:
        now = time.monotonic()
        if now - self._second >= 1:
            self._second, self._frames = now, 0
        self._frames += 1
        if self._frames > MOST_FRAMES:
            raise ProtocolViolation(f"more than {MOST_FRAMES:,} calls and events in a second")

    def _accept(self, number: int | UnsetType, method: str, params: Any) -> None:
        """Answer a call or an event in its own task, as far as the limit allows."""
        assert self._tasks is not None
        if self._serving >= self._in_flight:
            if isinstance(number, int):
                message = f"more than {self._in_flight} calls at once"
                self._answer(_Error(number, _Failure("OverloadedError", message)))
            else:
                self.dropped += 1
            return
        self._serving += 1
        task = self._tasks.create_task(self._serve_one(number, method, params))
        self._serving_tasks.add(task)
        task.add_done_callback(self._serving_tasks.discard)

    async def _serve_one(self, number: int | UnsetType, method: str, params: Any) -> None:
        fd: int | None = None
        answer: Struct | None = None
        try:
            value = await self._serve(method, params)
            if isinstance(value, Reply):
                value, fd = value.value, value.fd
            if isinstance(number, int):
                answer = _Result(number, value, 0 if fd is None else 1)
        except TrunklineError as error:
            if isinstance(number, int):
                answer = _Error(number, _Failure(error.name, str(error)))
        except Exception:
            log.exception("a call of a plugin's process failed", method=method[:100])
            if isinstance(number, int):
                answer = _Error(
                    number, _Failure("InternalError", "the gateway failed; its log has the details")
                )
        finally:
            self._serving -= 1
            if answer is None and fd is not None:
                os.close(fd)
        if answer is not None:
            self._answer(answer, fd)

    def _answer(self, answer: Struct, fd: int | None = None) -> None:
        try:
            data = self._framed(answer)
        except PluginError as error:
            assert isinstance(answer, _Result | _Error)
            data = self._framed(_Error(answer.i, _Failure(error.name, str(error)[:1000])))
            if fd is not None:
                os.close(fd)
                fd = None
        weight = len(data) if fd is None else MOST_BYTES
        self._unread += weight
        self._send(_Outgoing(data, fd, weight=weight))
        # A call counts as open until its answer is there, so no more answers can wait for a reader.
        if self._closed is None and self._unread > self._in_flight * (MOST_BYTES + _LENGTH):
            self._violate("it does not read the answers to its calls")


def _rights(fd: int) -> tuple[int, int, array.array[int]]:
    return socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd])
