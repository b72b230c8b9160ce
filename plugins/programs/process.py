"""A program as a child process: lines in, lines out, and no remaining process at its end.

The program runs in its own session without a terminal. Callbacks read its pipes into bounded buffers, so
no task has to run beside the one that waits for the next line.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import Struct

LINE_BYTES = 10 * 1024 * 1024
"""The size limit of a line, in bytes."""


class LineTooLongError(Exception):
    """A line is longer than allowed."""


class Pieces:
    """A splitter that passes output on in the pieces in which it arrives."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the piece."""
        return [data]

    def close(self) -> list[bytes]:
        """Return nothing: no piece is kept."""
        return []


class LineSplitter:
    """A splitter of a byte stream into lines; it skips blank ones."""

    def __init__(self, limit: int = LINE_BYTES) -> None:
        self._limit = limit
        self._partial: list[bytes] = []
        self._length = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in this piece. Raises LineTooLongError and drops the partial line."""
        first, *rest = data.split(b"\n")
        self._partial.append(first)
        self._length += len(first)
        if not rest:
            self._check(self._length)
            return []
        lines = [b"".join(self._partial), *rest[:-1]]
        self._partial, self._length = [rest[-1]], len(rest[-1])
        self._check(max(map(len, (*lines, rest[-1]))))
        return [line for line in lines if line.strip()]

    def close(self) -> list[bytes]:
        """Return the last line if the stream ended without a line end."""
        last = b"".join(self._partial)
        self._partial, self._length = [], 0
        return [last] if last.strip() else []

    def _check(self, length: int) -> None:
        if length > self._limit:
            self._partial, self._length = [], 0
            raise LineTooLongError(f"a line is longer than {self._limit} bytes")


def parse_message(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line, or None for anything else, such as a banner."""
    try:
        value: object = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf").strip())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


MARK = "TRUNKLINE_DISPATCH"
"""An environment variable that identifies all processes of a dispatch; children inherit it."""


def kill_marked(mark: str) -> int:
    """Kill every process with this mark. Return their number; 0 on systems without ``/proc``.

    Killing the process group is not enough: programs start children in their own groups and sessions.
    """
    entry = f"{MARK}={mark}".encode()
    killed = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                killed += 1
        except OSError:
            continue
    return killed


GRACE_SECONDS = 0.5
"""The time between SIGTERM and SIGKILL."""
DRAIN_SECONDS = 0.5
"""The time for which output is read after the program ended, if other processes keep the pipe open."""
STDOUT_BYTES = 64 * 1024 * 1024
"""The limit of a program's whole output, in bytes."""
STDERR_LINES = 100
STDERR_BYTES = 10 * 1024 * 1024
"""The limit of all output on stderr, in bytes; the first 100 lines are kept."""

_MAX_BUFFERED_BYTES = 1024 * 1024
_STDERR_LINE_BYTES = 20_000
_REAP_SECONDS = 5


class OutputLimitError(Exception):
    """The program wrote more than allowed."""


class StallError(Exception):
    """The program wrote nothing for too long."""


class DeadlineError(Exception):
    """The program ran for too long."""


class Launch(Struct, frozen=True):
    """The start of a program: its absolute path and arguments, its environment and its folder."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str


class TimeLimits(Struct, frozen=True):
    """The limits of a wait: ``until`` is in the loop's time, ``stall`` is the longest time without output."""

    until: float
    stall: float


class ChildProcess(asyncio.SubprocessProtocol):
    """A running program."""

    def __init__(self, mark: str, split: LineSplitter | Pieces) -> None:
        self._loop = asyncio.get_running_loop()
        self._mark = mark
        self._split = split
        self._stdout_bytes = 0
        self._lines: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._wake = asyncio.Event()
        self._gone = asyncio.Event()
        self._closed = False
        self._overflow_error: OutputLimitError | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._paused = False
        self._errors: list[str] = []
        self._errors_ended = asyncio.Event()
        self._error_split = LineSplitter(_STDERR_LINE_BYTES)
        self._error_bytes = 0
        self._active_at = self._gone_at = self._loop.time()
        self.stopping = False
        """True once the gateway has asked the program to end."""
        self.on_gone: Callable[[], None] | None = None

    @classmethod
    async def start(cls, launch: Launch, split: LineSplitter | Pieces | None = None) -> ChildProcess:
        """Start a program, whose output is split into lines by default. Raises OSError if that fails."""
        mark = uuid.uuid4().hex
        _, child = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(mark, split or LineSplitter()),
            *launch.argv,
            env={**launch.env, MARK: mark},
            cwd=launch.cwd,
            start_new_session=True,
        )
        return child

    @property
    def code(self) -> int | None:
        """The exit status after the end, negative for a signal; None before."""
        return None if self._transport is None else self._transport.get_returncode()

    @property
    def errors(self) -> Sequence[str]:
        """The first lines of stderr."""
        return self._errors

    def write(self, data: bytes) -> None:
        """Write to stdin. Data for a closed pipe is dropped."""
        pipe = self._pipe(0)
        if pipe is not None and not pipe.is_closing():
            cast("asyncio.WriteTransport", pipe).write(data)

    def close_input(self) -> None:
        """Close stdin."""
        pipe = self._pipe(0)
        if pipe is not None:
            pipe.close()

    def mark_active(self) -> None:
        """Restart the measurement of time without output."""
        self._active_at = self._loop.time()

    async def read_line(self, limits: TimeLimits) -> bytes | None:
        """Return the next line of stdout, or None at its end.

        Raises StallError, DeadlineError, or OutputLimitError.
        """
        while not self._lines:
            if self._overflow_error is not None:
                raise self._overflow_error
            if self._closed or self._is_drained():
                return None
            await self._wait_for_output(limits)
        line = self._lines.popleft()
        self._buffered_bytes -= len(line)
        if self._paused and self._buffered_bytes < _MAX_BUFFERED_BYTES // 2:
            self._paused = False
            self._stdout().resume_reading()
        return line

    async def wait_exit(self, seconds: float) -> bool:
        """Wait for the program to end by itself. Return whether it did."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        return self._gone.is_set()

    async def wait_errors(self) -> None:
        """Wait until stderr is read to its end, but not long if other processes keep it open."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._errors_ended.wait()

    async def end(self) -> None:
        """End the program and all processes that it started: SIGTERM, then SIGKILL. Return when they are
        gone.
        """
        self.stopping = True
        try:
            self.close_input()
            if not self._gone.is_set():
                self._signal(signal.SIGTERM)
                await self.wait_exit(GRACE_SECONDS)
        finally:
            self._signal(signal.SIGKILL)
            kill_marked(self._mark)
            try:
                await self.wait_exit(_REAP_SECONDS)
            finally:
                if self._transport is not None:
                    self._transport.close()

    def stop(self) -> None:
        """End the program from another task; the task that reads its lines gets the end and cleans up."""
        self.stopping = True
        self._signal(signal.SIGTERM)
        self._closed = True
        self._wake.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (called by asyncio)."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Buffer output (called by asyncio)."""
        if fd == 2:
            self._receive_stderr(data)
            return
        self._stdout_bytes += len(data)
        if self._stdout_bytes > STDOUT_BYTES:
            self._fail_overflow(f"more than {STDOUT_BYTES} bytes on stdout")
            return
        try:
            self._queue_lines(self._split.feed(data))
        except LineTooLongError as error:
            self._fail_overflow(str(error))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Handle the end of a pipe (called by asyncio)."""
        if fd == 1:
            self._queue_lines(self._split.close())
            self._closed = True
            self._wake.set()
        elif fd == 2:
            self._keep_errors(self._error_split.close())
            self._errors_ended.set()

    def process_exited(self) -> None:
        """Kill the rest of the process group and wake readers (called by asyncio)."""
        self._signal(signal.SIGKILL)
        self._gone_at = self._loop.time()
        self._gone.set()
        self._wake.set()
        if self.on_gone is not None:
            self.on_gone()

    async def _wait_for_output(self, limits: TimeLimits) -> None:
        self._wake.clear()
        by = min(limits.until, self._active_at + limits.stall)
        if self._gone.is_set():
            by = min(by, self._gone_at + DRAIN_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(by):
                await self._wake.wait()
        now = self._loop.time()
        if self._wake.is_set() or self._gone.is_set():
            return
        if now >= limits.until:
            raise DeadlineError
        if now >= self._active_at + limits.stall:
            raise StallError

    def _is_drained(self) -> bool:
        return self._gone.is_set() and self._loop.time() >= self._gone_at + DRAIN_SECONDS

    def _queue_lines(self, lines: list[bytes]) -> None:
        self._lines.extend(lines)
        self._buffered_bytes += sum(map(len, lines))
        if self._buffered_bytes > _MAX_BUFFERED_BYTES and not self._paused and not self._closed:
            self._paused = True
            self._stdout().pause_reading()
        if lines:
            self._wake.set()

    def _receive_stderr(self, data: bytes) -> None:
        self._active_at = self._loop.time()
        self._error_bytes += len(data)
        if self._error_bytes > STDERR_BYTES:
            self._fail_overflow(f"more than {STDERR_BYTES} bytes on stderr")
        if len(self._errors) < STDERR_LINES:
            with contextlib.suppress(LineTooLongError):
                self._keep_errors(self._error_split.feed(data))

    def _keep_errors(self, lines: list[bytes]) -> None:
        room = STDERR_LINES - len(self._errors)
        self._errors += [line.decode(errors="replace").strip() for line in lines[:room]]

    def _fail_overflow(self, reason: str) -> None:
        self._overflow_error = self._overflow_error or OutputLimitError(reason)
        self._lines.clear()
        self._wake.set()
        self._signal(signal.SIGKILL)

    def _pipe(self, fd: int) -> asyncio.BaseTransport | None:
        return None if self._transport is None else self._transport.get_pipe_transport(fd)

    def _stdout(self) -> asyncio.ReadTransport:
        return cast("asyncio.ReadTransport", self._pipe(1))

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group, whose number is that of its first process.

        Once that process is gone, another group may have the number, so no signal is sent.
        """
        if self._transport is not None and not self._gone.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._transport.get_pid(), number)


class Output(Struct, frozen=True):
    """The output of a short program, its exit status, and the first lines of stderr.

    ``is_cut`` says that the program wrote more; it was ended then, and the status is that of the signal.
    """

    code: int
    data: bytes
    errors: Sequence[str] = ()
    is_cut: bool = False

    @property
    def text(self) -> str:
        """The output as text; bytes that are not UTF-8 are replaced."""
        return self.data.decode(errors="replace")


async def capture_output(launch: Launch, seconds: float, most: int = STDOUT_BYTES) -> Output:
    """Run a program without input to its end, or until it wrote more than ``most`` bytes.

    Raises OSError if it cannot be started, TimeoutError if it takes longer, OutputLimitError if it writes too
    much on stderr.
    """
    child = await ChildProcess.start(launch, Pieces())
    found = bytearray()
    try:
        child.close_input()
        limits = TimeLimits(asyncio.get_running_loop().time() + seconds, seconds)
        while len(found) <= most and (piece := await child.read_line(limits)) is not None:
            found += piece
        if len(found) <= most and not await child.wait_exit(DRAIN_SECONDS):
            raise TimeoutError
        await child.wait_errors()
    except (StallError, DeadlineError):
        raise TimeoutError from None
    finally:
        await child.end()
    code = child.code
    return Output(-1 if code is None else code, bytes(found[:most]), tuple(child.errors), len(found) > most)
