"""Real processes of the command line: ones that end by themselves, a gateway, and one at a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

from tests import prefork

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "gateway"]
PATIENCE = 60.0
"""Seconds until a test gives up; nothing here is measured."""
ROWS = 40
"""Height of the pseudo-terminal."""
_OURS = ("TERM", "NO_COLOR", "COLUMNS", "PYTHONUNBUFFERED")


def environment(home: Path, **more: str) -> dict[str, str]:
    """An environment without keys and settings of the user who runs the tests."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TRUNKLINE_") and not name.endswith("_API_KEY") and name not in _OURS
    }
    ours = {
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "xdg"),
        "TRUNKLINE_DATA_DIR": str(home / "data"),
        "TRUNKLINE_LOG__LEVEL": "warning",
        "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        "TERM": "xterm",
        "COLUMNS": "100",
    }
    return {**clean, **ours, **more}


def started(*args: str, home: Path, **environ: str) -> subprocess.Popen[str]:
    """A command that runs, with pipes for its streams. It is forked unless Python itself has a setting."""
    kind = subprocess.Popen if any(name.startswith("PYTHON") for name in environ) else prefork.Popen
    pipe = subprocess.PIPE
    env = environment(home, **environ)
    return kind([*COMMAND, *args], cwd=home, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def trunkline(
    *args: str, home: Path, stdin: str = "", patience: float = PATIENCE, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    with started(*args, home=home, **environ) as process:
        try:
            output, errors = process.communicate(stdin, patience)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(args, process.returncode, output, errors)


class RunningGateway:
    """A gateway in its own process; ``url`` is where it listens."""

    def __init__(self, process: subprocess.Popen[str], first_line: str) -> None:
        self.process = process
        self.url = re.search(r"http://\S+", first_line)[0]
        self.port = self.url.rsplit(":", 1)[1]

    def lines(self, count: int) -> list[str]:
        """More lines of what it prints."""
        assert self.process.stdout is not None
        return [self.process.stdout.readline() for _ in range(count)]

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal; returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def gateway(home: Path, *args: str, **environ: str) -> Iterator[RunningGateway]:
    """A gateway on a free port that is ready; killed at the end if it still runs."""
    process = started("run", *(args or ("--port", "0")), home=home, **environ)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "ready" in line, (line, process.communicate())
        yield RunningGateway(process, line)
    finally:
        process.kill()
        process.communicate()


class Terminal:
    """A command at a pseudo-terminal: ``expect`` waits for what it prints, ``type`` types."""

    def __init__(self, home: Path, *args: str, **environ: str) -> None:
        self._fd, theirs = pty.openpty()
        termios.tcsetwinsize(self._fd, (ROWS, 100))
        self._process = prefork.server().fork(
            args, home, environment(home, **environ), [theirs] * 3, terminal=True
        )
        os.close(theirs)
        self.screen = ""
        """All that was printed so far."""
        self._read = 0

    def expect(self, pattern: str, patience: float = PATIENCE) -> str:
        """Wait until something like this comes after what was expected last. Returns what came up to it."""
        give_up = time.monotonic() + patience
        while not (match := re.compile(pattern).search(self.screen, self._read)):
            assert time.monotonic() < give_up, f"{pattern!r} did not come: {self.screen[self._read :]!r}"
            self._take_in(1.0)
        came = self.screen[self._read : match.end()]
        self._read = match.end()
        return came

    def expect_shown(self, text: str, patience: float = PATIENCE) -> None:
        """Wait until a line of the screen contains this: an editor prints only what changed."""
        give_up = time.monotonic() + patience
        while not any(text in line for line in self.lines):
            assert time.monotonic() < give_up, f"{text!r} is not shown: {self.lines!r}"
            self._take_in(1.0)

    def expect_no_echo(self, patience: float = PATIENCE) -> None:
        """Wait until what is typed is not shown: what was typed before a hidden prompt is thrown away."""
        give_up = time.monotonic() + patience
        while termios.tcgetattr(self._fd)[3] & termios.ECHO:
            assert time.monotonic() < give_up, "what is typed is still shown"
            time.sleep(0.01)

    @property
    def lines(self) -> list[str]:
        """What stands on the screen now, with what was scrolled out of it."""
        return displayed(self.screen)

    def type(self, text: str) -> None:
        """Type; a newline is the Enter key, \\x03 is Ctrl-C, \\x04 is Ctrl-D."""
        os.write(self._fd, text.encode())

    def interrupt(self, pattern: str) -> None:
        """Press Ctrl-C and expect something. A line editor that is busy with a key misses the first one."""
        self.type("\x03")
        try:
            self.expect(pattern, 2.0)
        except AssertionError:
            self.type("\x03")
            self.expect(pattern)

    def wait(self) -> int:
        """Read on until it ends. Returns its exit status."""
        with contextlib.suppress(EOFError):
            while True:
                self._take_in(PATIENCE)
        status = self._process.status(PATIENCE)
        assert status is not None
        return status

    def close(self) -> None:
        """End it, however far it is."""
        if self._process.status(0) is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.status(PATIENCE)
        os.close(self._fd)

    def _take_in(self, seconds: float) -> None:
        if not select.select([self._fd], [], [], seconds)[0]:
            return
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the error of Linux when the other end is closed
            raise EOFError from None
        if not data:
            raise EOFError
        self.screen += data.decode(errors="replace")
        # A line editor asks for the row of the cursor, to know how much room is below it.
        for _ in range(data.count(b"\x1b[6n")):
            os.write(self._fd, b"\x1b[%d;1R" % min(ROWS, cursor(self.screen)[1] + 1))


def displayed(output: str) -> list[str]:
    """The lines that a terminal shows after this output, without overwritten and erased ones."""
    return cursor(output)[0]


_MOVES = {"[A": (-1, 0), "[C": (0, 1), "[D": (0, -1), "\b": (0, -1), "\r": (0, -(10**6)), "\n": (1, 0)}
"""How a control moves the cursor: rows down and columns to the right."""


def cursor(output: str) -> tuple[list[str], int]:
    """The lines after this output, with those that were scrolled out, and the row of the cursor."""
    lines: list[str] = [""]
    row = column = 0
    for code, count, char in re.findall(
        r"(\x1b\[([0-9;?]*)[A-Za-z])|([^\x1b\x01\x02\x07])", output, re.DOTALL
    ):
        control = f"[{code[-1]}" if code else char
        if control in _MOVES:
            down, right = _MOVES[control]
            steps = int(count or 1)
            row, column = max(0, row + steps * down), max(0, column + steps * right)
            lines += [""] * (row + 1 - len(lines))
        elif control == "[K":
            lines[row] = "" if count == "2" else lines[row][:column]
        elif control == "[J":
            lines[row:] = [lines[row][:column]]
        elif char:
            lines[row] = lines[row].ljust(column)[:column] + char + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines], row
