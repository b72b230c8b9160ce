"""Gateway processes ("lives"), forked from one that has imported everything already."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from forks import ForkedProcess, ForkServer

ONLY = "gateway"
"""The name of a gateway without a cluster."""


class BrokenStormError(Exception):
    """The storm itself failed, so it proves nothing about the gateway."""


class Life:
    """One process of a gateway, as its parent reports it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.joined = asyncio.Event()
        """Set once it has joined the cluster, or has ended."""
        self.joined_at = 0.0
        """Time of the event loop at which it joined."""
        self.begun = asyncio.Event()
        """Set once it is ready, or has ended."""
        self.over = asyncio.Event()
        """Set once it is no longer ready: its node was drained (and may return), or it has ended."""
        self.gone = asyncio.Event()
        self.status: int | None = None

    @property
    def is_ready(self) -> bool:
        """Return whether it is ready."""
        return self.begun.is_set() and not self.gone.is_set()

    def note(self, what: str) -> None:
        """Note its new state: ``joined``, ``ready``, ``drained`` or ``gone:STATUS``."""
        match what.partition(":"):
            case "joined", *_:
                self.joined_at = asyncio.get_running_loop().time()
                self.joined.set()
            case "ready", *_:
                self.joined.set()
                self.begun.set()
                self.over.clear()
            case "drained", *_:
                self.begun.clear()
                self.over.set()
            case _, _, status:
                self.status = int(status)
                for event in (self.gone, self.joined, self.begun, self.over):
                    event.set()

    async def ends_within(self, seconds: float) -> bool:
        """Wait for its end. Returns whether it ended in time."""
        try:
            async with asyncio.timeout(seconds):
                await self.gone.wait()
        except TimeoutError:
            return False
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if not self.gone.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def kill(self) -> None:
        """Kill it, unless it has ended, and wait for its end."""
        self.send(signal.SIGKILL)
        await self.gone.wait()


class Parent:
    """The process that gateways are forked from."""

    def __init__(self, directory: Path, fork_server: ForkServer) -> None:
        self._directory = directory
        self._fork_server = fork_server
        self._process: asyncio.subprocess.Process | ForkedProcess | None = None
        self._write: Callable[[bytes], object] = lambda _line: None
        self._forking = asyncio.Lock()
        self._forked: asyncio.Queue[Life] = asyncio.Queue(1)
        self._lives: dict[int, Life] = {}

    async def warm_up(self, config: Path, environment: dict[str, str], version: Path | None = None) -> None:
        """Start the process; ``version`` is the folder of another version of the gateway."""
        with (self._directory / "gateway.log").open("ab") as log:
            if version is None:
                self._process = await self._fork_server.start("victim", [str(config)], environment, log)
                self._write = self._process.write
            else:
                path = f"{version}{os.pathsep}{environment['PYTHONPATH']}"
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    str(Path(__file__).parent / "victim.py"),
                    str(config),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env=environment | {"PYTHONPATH": path},
                )
                assert self._process.stdin is not None
                self._write = self._process.stdin.write
        assert self._process.stdout is not None
        if not await self._process.stdout.readline():
            raise BrokenStormError(f"no gateway can be started: {self.log_end}")

    async def listen(self) -> None:
        """Read the reports of the process until it ends."""
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            what, _, pid = line.decode().strip().partition(" ")
            if what == "forked":
                self._lives[int(pid)] = Life(int(pid))
                await self._forked.put(self._lives[int(pid)])
                continue
            self._lives[int(pid)].note(what)

    async def fork(self, name: str = ONLY, ahead: float = 0) -> Life:
        """Fork a gateway whose wall clock is some seconds ahead."""
        async with self._forking:
            self._write(f"start {name} {ahead}\n".encode())
            return await self._forked.get()

    async def stop(self) -> None:
        """End the process, and all gateways with it."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    @property
    def log_end(self) -> str:
        """The last lines of the gateways' log."""
        return end_of(self._directory / "gateway.log")


def end_of(log: Path) -> str:
    """The last lines of a log."""
    return log.read_text()[-2000:]
