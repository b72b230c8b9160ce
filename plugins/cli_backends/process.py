"""Newline-delimited JSON, as it comes out of a pipe: in pieces, with blanks and banners between."""

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
"""Bytes of one line. A longer one is no message."""


class OverlongLineError(Exception):
    """A line does not end."""


class LineSplitter:
    """Cuts a stream of bytes into lines. Blank ones are left out."""

    def __init__(self, limit: int = LINE_BYTES) -> None:
        self._limit = limit
        self._open: list[bytes] = []
        self._length = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in this piece. Raises OverlongLineError; what was begun is dropped then."""
        first, *rest = data.split(b"\n")
        self._open.append(first)
        self._length += len(first)
        if not rest:
            self._check(self._length)
            return []
        whole = [b"".join(self._open), *rest[:-1]]
        self._open, self._length = [rest[-1]], len(rest[-1])
        self._check(max(map(len, (*whole, rest[-1]))))
        return [line for line in whole if line.strip()]

    def close(self) -> list[bytes]:
        """The last line, if the stream ended without a line end."""
        last = b"".join(self._open)
        self._open, self._length = [], 0
        return [last] if last.strip() else []

    def _check(self, length: int) -> None:
        if length > self._limit:
            self._open, self._length = [], 0
            raise OverlongLineError(f"a line of more than {self._limit} bytes")


def message_in(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line, or None for anything else, such as a banner."""
    try:
        value: object = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf").strip())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


MARK = "TRUNKLINE_DISPATCH"
"""The variable that holds the mark."""


def kill_family(mark: str) -> int:
    """Kill every process that carries the mark. Returns how many; 0 where the system does not tell."""
    wanted = f"{MARK}={mark}".encode()
    killed = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)
                killed += 1
        except OSError:
            continue
    return killed


GRACE_SECONDS = 0.5
"""Between the request to end and the end."""
LINGER_SECONDS = 0.5
"""How long a pipe may stay open behind a program that is gone, when others hold it."""
STDOUT_BYTES = 64 * 1024 * 1024
"""What a program may say in all."""
STDERR_LINES = 100
STDERR_BYTES = 10 * 1024 * 1024
"""What a program may write on stderr in all; 100 lines of it are kept."""

_AHEAD_BYTES = 1024 * 1024
_STDERR_LINE = 20_000
_REAP_SECONDS = 5


class FloodError(Exception):
    """The program writes more than can be meant."""


class SilenceError(Exception):
    """The program said nothing for too long."""


class DeadlineError(Exception):
    """The program ran for too long."""


class Launch(Struct, frozen=True):
    """What to start: the program by its absolute path, its arguments, environment and folder."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str


class Patience(Struct, frozen=True):
    """How long to wait: ``until`` is the loop's time of the hard end, ``stall`` seconds of silence."""

    until: float
    stall: float


class Child(asyncio.SubprocessProtocol):
    """A running program."""

    def __init__(self, mark: str, line_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._mark = mark
        self._split = LineSplitter(line_bytes)
        self._said_bytes = 0
        self._lines: deque[bytes] = deque()
        self._ahead = 0
        self._wake = asyncio.Event()
        self._gone = asyncio.Event()
        self._closed = False
        self._flood: FloodError | None = None
        self._transport: asyncio.SubprocessTransport | None = None
        self._paused = False
        self._errors: list[str] = []
        self._error_split = LineSplitter(_STDERR_LINE)
        self._error_bytes = 0
        self._active_at = self._gone_at = self._loop.time()
        self.stopping = False
        """Whether somebody asked it to end."""
        self.on_gone: Callable[[], None] | None = None

    @classmethod
    async def start(cls, launch: Launch, line_bytes: int = LINE_BYTES) -> Child:
        """Start a program. Raises OSError if it cannot be started."""
        mark = uuid.uuid4().hex
        _, child = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(mark, line_bytes),
            *launch.argv,
            env={**launch.env, MARK: mark},
            cwd=launch.cwd,
            start_new_session=True,
        )
        return child

    @property
    def code(self) -> int | None:
        """The exit status, once it is gone; negative for a signal."""
        return None if self._transport is None else self._transport.get_returncode()

    @property
    def errors(self) -> Sequence[str]:
        """The first lines of stderr."""
        return self._errors

    def write(self, data: bytes) -> None:
        """Send it something. What it does not read any more is dropped."""
        pipe = self._pipe(0)
        if pipe is not None and not pipe.is_closing():
            cast("asyncio.WriteTransport", pipe).write(data)

    def close_input(self) -> None:
        """Say that nothing more will be sent."""
        pipe = self._pipe(0)
        if pipe is not None:
            pipe.close()

    def touch(self) -> None:
        """Count its silence from now on."""
        self._active_at = self._loop.time()

    async def line(self, patience: Patience) -> bytes | None:
        """The next line of its output, None at the end.

        Raises SilenceError, DeadlineError, or FloodError.
        """
        while not self._lines:
            if self._flood is not None:
                raise self._flood
            if self._closed or self._lingered():
                return None
            await self._news(patience)
        line = self._lines.popleft()
        self._ahead -= len(line)
        if self._paused and self._ahead < _AHEAD_BYTES // 2:
            self._paused = False
            self._reading().resume_reading()
        return line

    async def gone(self, seconds: float) -> bool:
        """Wait for it to end by itself. Returns whether it did."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        return self._gone.is_set()

    async def end(self) -> None:
        """End it and all that it started: first asked, then forced. Nothing is left when this returns."""
        self.stopping = True
        try:
            self.close_input()
            if not self._gone.is_set():
                self._signal(signal.SIGTERM)
                await self.gone(GRACE_SECONDS)
        finally:
            self._signal(signal.SIGKILL)
            kill_family(self._mark)
            try:
                await self.gone(_REAP_SECONDS)
            finally:
                if self._transport is not None:
                    self._transport.close()

    def stop(self) -> None:
        """Make it end, from elsewhere: whoever reads its lines sees the end and cleans up."""
        self.stopping = True
        self._signal(signal.SIGTERM)
        self._closed = True
        self._wake.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It runs."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """It said something."""
        if fd == 2:
            self._complain(data)
            return
        self._said_bytes += len(data)
        if self._said_bytes > STDOUT_BYTES:
            self._overflow(f"more than {STDOUT_BYTES} bytes")
            return
        try:
            self._take(self._split.feed(data))
        except OverlongLineError as error:
            self._overflow(str(error))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """It has closed a pipe."""
        if fd == 1:
            self._take(self._split.close())
            self._closed = True
            self._wake.set()
        elif fd == 2:
            self._keep(self._error_split.close())

    def process_exited(self) -> None:
        """It is gone; what it started in its own group goes with it."""
        self._signal(signal.SIGKILL)
        self._gone_at = self._loop.time()
        self._gone.set()
        self._wake.set()
        if self.on_gone is not None:
            self.on_gone()

    async def _news(self, patience: Patience) -> None:
        self._wake.clear()
        by = min(patience.until, self._active_at + patience.stall)
        if self._gone.is_set():
            by = min(by, self._gone_at + LINGER_SECONDS)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(by):
                await self._wake.wait()
        now = self._loop.time()
        if self._wake.is_set() or self._gone.is_set():
            return
        if now >= patience.until:
            raise DeadlineError
        if now >= self._active_at + patience.stall:
            raise SilenceError

    def _lingered(self) -> bool:
        return self._gone.is_set() and self._loop.time() >= self._gone_at + LINGER_SECONDS

    def _take(self, lines: list[bytes]) -> None:
        self._lines.extend(lines)
        self._ahead += sum(map(len, lines))
        if self._ahead > _AHEAD_BYTES and not self._paused and not self._closed:
            self._paused = True
            self._reading().pause_reading()
        if lines:
            self._wake.set()

    def _complain(self, data: bytes) -> None:
        self._active_at = self._loop.time()
        self._error_bytes += len(data)
        if self._error_bytes > STDERR_BYTES:
            self._overflow(f"more than {STDERR_BYTES} bytes on stderr")
        if len(self._errors) < STDERR_LINES:
            with contextlib.suppress(OverlongLineError):
                self._keep(self._error_split.feed(data))

    def _keep(self, lines: list[bytes]) -> None:
        room = STDERR_LINES - len(self._errors)
        self._errors += [line.decode(errors="replace").strip() for line in lines[:room]]

    def _overflow(self, reason: str) -> None:
        self._flood = self._flood or FloodError(reason)
        self._lines.clear()
        self._wake.set()
        self._signal(signal.SIGKILL)

    def _pipe(self, fd: int) -> asyncio.BaseTransport | None:
        return None if self._transport is None else self._transport.get_pipe_transport(fd)

    def _reading(self) -> asyncio.ReadTransport:
        return cast("asyncio.ReadTransport", self._pipe(1))

    def _signal(self, number: signal.Signals) -> None:
        """To its whole process group, which has the number of its first process; never once that is gone."""
        if self._transport is not None and not self._gone.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._transport.get_pid(), number)


class Output(Struct, frozen=True):
    """What a short program said, and its exit status."""

    code: int
    text: str


async def captured(launch: Launch, seconds: float) -> Output:
    """Run a program that takes no input to its end.

    Raises OSError if it cannot be started, TimeoutError if it takes longer, FloodError if it says too much.
    """
    child = await Child.start(launch)
    try:
        child.close_input()
        patience = Patience(asyncio.get_running_loop().time() + seconds, seconds)
        lines: list[bytes] = []
        while (line := await child.line(patience)) is not None:
            lines.append(line)
        if not await child.gone(LINGER_SECONDS):
            raise TimeoutError
        code = child.code
        return Output(-1 if code is None else code, b"\n".join(lines).decode(errors="replace"))
    except (SilenceError, DeadlineError):
        raise TimeoutError from None
    finally:
        await child.end()
