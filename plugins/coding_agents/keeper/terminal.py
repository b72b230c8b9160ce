"""The program in its terminal, the processes that it starts, and the questions that it asks the terminal.

In: a launch, input, signals. Out: output, answers, and the exit status.
"""

from __future__ import annotations

import fcntl
import os
import struct
import termios
import time

from .wire import clamp_size, unpack

TYPE_CHECKING = False  # the module typing costs memory
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
else:
    import _signal as signal  # as in server

CHUNK = 64 * 1024
"""Bytes that are read at once."""
MOST_ANSWERS = 4096
"""Bytes of answers that may wait for the program to read its input."""
_MOST_INPUT = 1024 * 1024


LOOK_BACK = 8 * 1024
"""Bytes of output from which the position of the cursor is found."""
CURSOR = b"\x1b[R"
"""The answer that is replaced by the position of the cursor."""

_ANSWERS = (
    (b"\x1b[c", b"\x1b[?62;22c"),
    (b"\x1b[0c", b"\x1b[?62;22c"),
    (b"\x1b[>c", b"\x1b[>0;10;0c"),
    (b"\x1b[>0c", b"\x1b[>0;10;0c"),
    (b"\x1b[5n", b"\x1b[0n"),
    (b"\x1b[6n", CURSOR),
    (b"\x1b[?u", b"\x1b[?0u"),
    (b"\x1b]10;?\x07", b"\x1b]10;rgb:ffff/ffff/ffff\x07"),
    (b"\x1b]10;?\x1b\\", b"\x1b]10;rgb:ffff/ffff/ffff\x1b\\"),
    (b"\x1b]11;?\x07", b"\x1b]11;rgb:0000/0000/0000\x07"),
    (b"\x1b]11;?\x1b\\", b"\x1b]11;rgb:0000/0000/0000\x1b\\"),
)
"""Questions of programs to their terminal, and its answers."""
_LONGEST_QUERY = max(len(query) for query, _ in _ANSWERS)


class Queries:
    """A finder of questions to the terminal in output, however it is cut."""

    def __init__(self) -> None:
        self._tail = b""

    def answer(self, data: bytes) -> bytes:
        """Return the answers to the questions in this piece, in their order."""
        data = self._tail + data
        found: list[tuple[int, int, bytes]] = []
        if b"\x1b" in data:
            for query, answer in _ANSWERS:
                at = data.find(query)
                while at >= 0 and len(found) < MOST_ANSWERS:
                    found.append((at, at + len(query), answer))
                    at = data.find(query, at + len(query))
        found.sort()
        last = found[-1][1] if found else 0
        self._tail = data[max(last, len(data) - _LONGEST_QUERY + 1) :]
        return b"".join(answer for _, _, answer in found)


def find_cursor(data: bytes, rows: int, columns: int) -> tuple[int, int]:
    """Return the row and column of the cursor after some output, counted from 1.

    Programs that draw with a terminal's own lines ask where they are. All characters count as one cell, which
    is wrong for wide ones until the next absolute move; the gateway alone renders the output exactly.
    """
    row, column = 1, 1
    at = 0
    while at < len(data):
        byte = data[at]
        at += 1
        if byte == 0x1B:
            at, final, numbers = _sequence(data, at)
            row, column = _moved(row, column, final, numbers)
        elif byte == 0x0D:
            column = 1
        elif byte == 0x0A:
            row += 1
        elif byte == 0x08:
            column -= 1
        elif byte == 0x09:
            column += 8 - (column - 1) % 8
        elif byte >= 0x20 and not 0x80 <= byte < 0xC0:
            if column > columns:
                row, column = row + 1, 1
            column += 1
        row, column = min(max(row, 1), rows), min(max(column, 1), columns + 1)
    return row, min(column, columns)


def _sequence(data: bytes, at: int) -> tuple[int, int, list[int]]:
    """Return the end of an escape sequence; and of a control sequence, its last byte and numbers."""
    kind = data[at : at + 1]
    if kind == b"[":
        end = at + 1
        while end < len(data) and 0x20 <= data[end] < 0x40:
            end += 1
        words = data[at + 1 : end].split(b";")
        final = data[end] if end < len(data) and all(word.isdigit() or not word for word in words) else 0
        return end + 1, final, [min(int(word[:5] or 0), 9999) for word in words] if final else []
    if kind and kind in b"]P_^X":
        ends = [end + len(mark) for mark in (b"\x07", b"\x1b\\") if (end := data.find(mark, at)) >= 0]
        return min(ends, default=len(data)), 0, []
    while at < len(data) and 0x20 <= data[at] < 0x30:
        at += 1
    return at + 1, 0, []


def _moved(row: int, column: int, final: int, numbers: list[int]) -> tuple[int, int]:
    """Return the position after a control sequence."""
    first = max(numbers[0], 1) if numbers else 1
    if final in b"Hf" and numbers:
        return first, max(numbers[1], 1) if len(numbers) > 1 else 1
    if final in b"G`":
        return row, first
    if final == 0x64:  # d
        return first, column
    if final in b"EF":
        return row + (first if final == 0x45 else -first), 1
    down = {0x41: -first, 0x42: first}.get(final, 0)
    right = {0x43: first, 0x44: -first}.get(final, 0)
    return row + down, column + right


class Launch:
    """The order of the gateway: the program, its terminal, and the key."""

    def __init__(self, data: bytes) -> None:
        folder, cwd, key, mark, numbers, count, *rest = unpack(data)
        self.folder, self.cwd, self.key, self.mark = folder, cwd, key, mark
        self.rows, self.columns, self.orphan_ms = map(int, numbers.split())
        self.argv = rest[: int(count)]
        self.env = dict(entry.split(b"=", 1) for entry in rest[int(count) :])


class Program:
    """The program in its terminal."""

    def __init__(self, launch: Launch, umask: int) -> None:
        self.master, self._slave = os.openpty()
        self.resize(launch.rows, launch.columns)
        self.started_at = int(time.time() * 1000)
        self.exit: tuple[int, int] | None = None
        """Its exit status and the time of its end, in ms."""
        self._mark = launch.mark
        self._input: list[tuple[int, memoryview]] = []
        self.queued = 0
        """Bytes of input that wait for room in the terminal."""
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _become(launch, self._slave, writing, umask)
        os.close(writing)
        reason = os.read(reading, 4096)
        os.close(reading)
        if reason:
            os.waitpid(self.pid, 0)
            raise OSError(0, reason.decode(errors="replace"))
        # The slave stays open: without it the terminal would signal a hang-up to poll() all the time while no
        # process has it open. After the exit, a read that would block means that all output was read.
        os.set_blocking(self.master, False)

    @property
    def has_input(self) -> bool:
        """Return whether input waits for room in the terminal."""
        return bool(self._input)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the terminal."""
        self.size = clamp_size(rows, columns)
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", *self.size, 0, 0))

    def read(self) -> bytes:
        """Return some output; b"" if there is none at the moment."""
        try:
            return os.read(self.master, CHUNK)
        except OSError:
            return b""

    def type(self, number: int, data: bytes, most: int = _MOST_INPUT) -> bool:
        """Queue input; 0 numbers an answer of the terminal. Return whether there is room for it."""
        if self.queued + len(data) > most:
            return False
        self.queued += len(data)
        self._input.append((number, memoryview(data)))
        return True

    def waits_for(self, number: int) -> bool:
        """Return whether input with this number is still queued."""
        return any(queued == number for queued, _ in self._input)

    def write(self) -> list[int]:
        """Write queued input as far as the terminal takes it. Return the numbers of what is complete."""
        complete: list[int] = []
        while self._input:
            number, data = self._input[0]
            try:
                written = os.write(self.master, data) if data else 0
            except OSError:
                break
            self.queued -= written
            if written < len(data):
                self._input[0] = (number, data[written:])
                break
            del self._input[0]
            complete.append(number)
        return complete

    def signal(self, number: int) -> None:
        """Send a signal to the program and to what runs in the foreground of the terminal."""
        if self.exit is not None:
            return
        groups = {self.pid}
        try:
            groups.add(os.tcgetpgrp(self.master))
        except OSError:
            pass
        for group in groups - {0, os.getpgrp()}:
            _send(os.killpg, group, number)
            if number in (signal.SIGTERM, signal.SIGHUP):
                # A stopped process takes these signals only when it continues.
                _send(os.killpg, group, signal.SIGCONT)

    def reap(self) -> int | None:
        """Collect ended processes. Return the exit status of the program if it was one of them."""
        status = None
        while True:
            try:
                pid, code = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return status
            if pid == 0:
                return status
            if pid == self.pid:
                status = os.waitstatus_to_exitcode(code)

    def kill_rest(self) -> bool:
        """Kill all processes that the program has started. Return whether there were any."""
        own = os.getpid()
        found = [pid for pid in _descendants(own, self._mark) if pid != own]
        for pid in found:
            _send(os.kill, pid, signal.SIGKILL)
        return bool(found)


def _become(launch: Launch, slave: int, report: int, umask: int) -> None:
    """Become the program, in the child process."""
    try:
        os.login_tty(slave)
        os.umask(umask)
        for number in signal.valid_signals():
            if signal.getsignal(number) == signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.chdir(launch.cwd)
        os.execvpe(launch.argv[0], launch.argv, launch.env)
    except (OSError, ValueError) as error:
        name = getattr(error, "filename", None) or launch.argv[0]
        reason = getattr(error, "strerror", None) or str(error)
        os.write(report, os.fsencode(name) + b": " + os.fsencode(reason))
    finally:
        os._exit(127)


def _send(send: Callable[[int, int], None], to: int, number: int) -> None:
    try:
        send(to, number)
    except OSError:
        pass


def _descendants(root: int, mark: bytes) -> set[int]:
    """Return the living processes below a process or with the mark in their environment.

    Orphans below this process have it as parent, because it is their subreaper. The mark finds the others.
    """
    parents: dict[int, int] = {}
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state in (b"Z", b"X"):
                continue
            parents[int(name)] = int(parent)
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.add(int(name))
        except (OSError, ValueError):
            continue
    below = {root}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return (found | below) - {root}
