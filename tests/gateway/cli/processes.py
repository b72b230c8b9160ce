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

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "gateway"]
PATIENCE = 30.0
"""Seconds until a test gives up; nothing here is measured."""
_OURS = ("TERM", "NO_COLOR", "COLUMNS")


def environment(home: Path, **more: str) -> dict[str, str]:
    """An environment without keys and settings of whoever runs the tests."""
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


def trunkline(*args: str, home: Path, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [*COMMAND, *args],
        cwd=home,
        env=environment(home, **environ),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


class RunningGateway:
    """A gateway in a process of its own; ``url`` is where it listens."""

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
    process = subprocess.Popen(
        [*COMMAND, "run", *(args or ("--port", "0"))],
        cwd=home,
        env=environment(home, **environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
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
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.chdir(home)
            os.execvpe(COMMAND[0], [*COMMAND, *args], environment(home, **environ))
        termios.tcsetwinsize(self._fd, (40, 100))
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
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """End it, however far it is."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._fd)

    def _take_in(self, seconds: float) -> None:
        if not select.select([self._fd], [], [], seconds)[0]:
            return
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # how Linux says that nobody has the other end open
            raise EOFError from None
        if not data:
            raise EOFError
        self.screen += data.decode(errors="replace")


def displayed(output: str) -> list[str]:
    """The lines that stand on a terminal after this output: overwritten and erased ones are gone."""
    lines: list[str] = [""]
    row = column = 0
    for code, up, char in re.findall(r"(\x1b\[([0-9;?]*)[A-Za-z])|([^\x1b\x01\x02\x07])", output, re.DOTALL):
        if code.endswith("A"):
            row = max(0, row - int(up or 1))
        elif code.endswith("K"):
            lines[row] = "" if up == "2" else lines[row][:column]
        elif code.endswith("J"):
            lines[row:] = [lines[row][:column]]
        elif char == "\r":
            column = 0
        elif char == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif char:
            lines[row] = lines[row].ljust(column)[:column] + char + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]
