"""The plugin's end of the connection with the gateway.

A frame is 4 bytes of length, big-endian, and JSON in UTF-8 of at most 1 MiB: ``{"i","m","p","d"}`` is a call
with ``d`` ms left, ``{"i","r"}`` its result, ``{"i","e":{"name","message"}}`` its error, and a frame without
``i`` an event. A result with ``"f": 1`` brings a file descriptor (SCM_RIGHTS).
"""

from __future__ import annotations

import array
import asyncio
import inspect
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .api import Block, CapabilityDenied

MOST_BYTES = 1 << 20
_READ = 1 << 16
_MOST_FDS = 16
_FD_SPACE = socket.CMSG_SPACE(_MOST_FDS * array.array("i").itemsize)

Serve = Callable[[str, Any], Any]
"""Answers a call; returns the result or an awaitable of it."""


class RemoteError(Exception):
    """An error that the gateway returned; ``name`` is its type there."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


class Descriptor(NamedTuple):
    """A result that brings an open file."""

    fd: int
    value: Any


class Peer:
    """The connection: serves the calls of the gateway, and makes calls.

    ``in_flight`` bounds the open calls in each direction: further calls of the plugin wait, further calls of
    the gateway are refused.
    """

    def __init__(self, sock: socket.socket, serve: Serve) -> None:
        sock.setblocking(False)
        self.bound(64)
        self._sock = sock
        self._serve = serve
        self._received = bytearray()
        self._sending = bytearray()
        self._fds: deque[int] = deque()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._running: dict[int, asyncio.Task[None]] = {}
        self._last = 0

    def bound(self, in_flight: int) -> None:
        """Set the most open calls in each direction, before the plugin makes its first one."""
        self.in_flight, self._slots = in_flight, asyncio.Semaphore(in_flight)

    async def run(self) -> None:
        """Serve calls until the gateway closes the connection; then cancel those that run."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                loop.add_reader(self._sock, self._on_readable)
                try:
                    await self._ended
                finally:
                    loop.remove_reader(self._sock)
                    loop.remove_writer(self._sock)
                raise _Closed
        except* _Closed:
            pass
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionError("the gateway closed the connection"))
            while self._fds:
                os.close(self._fds.popleft())

    async def call(self, method: str, params: Mapping[str, Any]) -> Any:
        """Call the gateway and return the result, a ``Descriptor`` if it brings one; the caller closes it.

        Raises CapabilityDenied, RemoteError, or ConnectionError if the connection ends.
        """
        async with self._slots:
            self._last += 1
            self._send({"i": self._last, "m": method, "p": params})
            # The entry of a cancelled call stays until its late answer comes.
            waiting = self._waiting[self._last] = asyncio.get_running_loop().create_future()
            return await waiting

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send an event to the gateway."""
        self._send({"m": method, "p": params})

    def _on_readable(self) -> None:
        try:
            data, ancillary, _, _ = self._sock.recvmsg(_READ, _FD_SPACE, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, ancillary = b"", []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = content[: len(content) - len(content) % array.array("i").itemsize]
                self._fds.extend(array.array("i", whole))
        if not data:
            if not self._ended.done():
                self._ended.set_result(None)
            return
        received = self._received
        received += data
        begin = 0
        while len(received) - begin >= 4:
            end = begin + 4 + int.from_bytes(received[begin : begin + 4], "big")
            if len(received) < end:
                break
            frame = json.loads(received[begin + 4 : end].decode())
            begin = end
            self._on_frame(frame)
        del received[:begin]

    def _on_frame(self, frame: dict[str, Any]) -> None:
        if frame.get("m") == "cancel" and "i" not in frame:
            running = self._running.get(frame["p"]["i"])
            if running is not None:
                running.cancel()
            return
        if "m" in frame:
            self._on_call(frame)
            return
        waiting = self._waiting.pop(frame["i"], None)
        result = frame.get("r")
        if frame.get("f"):
            result = Descriptor(self._fds.popleft(), result)
        if waiting is None or waiting.done():
            if isinstance(result, Descriptor):
                os.close(result.fd)
        elif (error := frame.get("e")) is None:
            waiting.set_result(result)
        elif error["name"] == CapabilityDenied.__name__:
            waiting.set_exception(CapabilityDenied(error["message"]))
        else:
            waiting.set_exception(RemoteError(error["name"], error["message"]))

    def _on_call(self, frame: dict[str, Any]) -> None:
        # Not its "d", the time that is left: the gateway cancels a call, and stops the clock while it asks.
        number = frame.get("i")
        if number is not None and len(self._running) >= self.in_flight:
            self._send_error(number, "OverloadedError", f"more than {self.in_flight} calls at once")
            return
        try:
            result = self._serve(frame["m"], frame.get("p"))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of the plugin's code
            self._fail(number, error)
            return
        if not inspect.isawaitable(result):
            self._answer(number, result)
            return
        task = self._tasks.create_task(self._finish(number, result))
        if number is not None:
            self._running[number] = task

    async def _finish(self, number: int | None, result: Any) -> None:
        try:
            self._answer(number, await result)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of the plugin's code
            self._fail(number, error)
        except asyncio.CancelledError:
            self._fail(number, TimeoutError("no result within its time"))
            raise
        finally:
            if number is not None:
                del self._running[number]

    def _answer(self, number: int | None, result: Any) -> None:
        if number is None:
            return
        try:
            self._send({"i": number, "r": result})
        except (TypeError, ValueError, RecursionError) as error:
            self._send_error(number, type(error).__name__, f"the result cannot be sent: {error}")

    def _fail(self, number: int | None, error: BaseException) -> None:
        if number is None:
            self.notify("failed", {"error": f"{type(error).__name__}: {error}"[:2000]})
            return
        name = Block.__name__ if isinstance(error, Block) else type(error).__name__
        self._send_error(number, name, str(error))

    def _send_error(self, number: int, name: str, message: str) -> None:
        # A lone surrogate cannot be sent, and would end the process.
        text = message[:8000].encode(errors="replace").decode()
        self._send({"i": number, "e": {"name": name, "message": text}})

    def _send(self, frame: Mapping[str, Any]) -> None:
        """Send a frame. Raises TypeError or ValueError for a value that JSON cannot have or that is long."""
        text = json.dumps(frame, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
        if len(text) > MOST_BYTES:
            raise ValueError(f"a frame of {len(text)} bytes is longer than {MOST_BYTES}")
        data = len(text).to_bytes(4, "big") + text
        if self._sending:
            self._sending += data
            return
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            return  # the reader finds the end of the connection
        if sent < len(data):
            self._sending += data[sent:]
            asyncio.get_running_loop().add_writer(self._sock, self._on_writable)

    def _on_writable(self) -> None:
        try:
            sent = self._sock.send(self._sending)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._sending.clear()
            sent = 0
        del self._sending[:sent]
        if not self._sending:
            asyncio.get_running_loop().remove_writer(self._sock)


class _Closed(Exception):
    """The end of the connection, which ends the tasks of calls."""
