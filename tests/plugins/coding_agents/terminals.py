"""Keepers as real processes, for tests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from plugins.coding_agents.keeper_client import Exit, KeeperClient, KeeperLaunch, Stream, start_keeper
from plugins.programs.process import MARK

PATIENCE = 60
"""Seconds after which a test fails that waits for another process."""


def marked(mark: str) -> set[int]:
    """Return the living processes of a session, with the keeper."""
    found: set[int] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
        except OSError:
            continue
    return found


class Terminal:
    """A session: the launch of its keeper, and what a client of it has received."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = os.urandom(32)
        self.mark = uuid.uuid4().hex
        self.output = bytearray()
        self.gaps: list[tuple[int, int]] = []
        self.exits: list[Exit] = []
        self.gone = asyncio.Event()
        self.streams: asyncio.Queue[Stream] = asyncio.Queue()
        self.changed = asyncio.Event()
        self.clients: list[KeeperClient] = []
        self.end = 0
        self.cwd = "/"

    async def start(self, *argv: str, orphan_ms: int = 86_400_000) -> None:
        env = {"PATH": os.environ["PATH"], "PS1": "pty> "}
        await start_keeper(
            KeeperLaunch(
                folder=self.folder,
                argv=argv,
                env=env,
                cwd=self.cwd,
                key=self.key,
                mark=self.mark,
                orphan_ms=orphan_ms,
            )
        )

    async def attach(self, offset: int = 0) -> KeeperClient:
        self.end = offset
        self.clients.append(
            await KeeperClient.attach(
                self.folder,
                self.key,
                offset,
                on_output=self.receive,
                on_exit=lambda exit: (self.exits.append(exit), self.changed.set()),
                on_gone=lambda: (self.gone.set(), self.changed.set()),
                on_stream=self.streams.put_nowait,
            )
        )
        return self.clients[-1]

    def receive(self, offset: int, data: bytes) -> None:
        if offset != self.end:
            self.gaps.append((self.end, offset))
        self.end = offset + len(data)
        self.output += data
        self.changed.set()

    async def until(self, happened: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not happened():
                self.changed.clear()
                await self.changed.wait()

    async def shows(self, text: str) -> None:
        await self.until(lambda: text.encode() in self.output)

    async def ends(self) -> Exit:
        await self.until(lambda: self.exits)
        return self.exits[-1]

    async def empty(self) -> None:
        """Wait until no process of the session is left."""
        async with asyncio.timeout(PATIENCE):
            while marked(self.mark):
                await asyncio.sleep(0.02)

    def keeper(self) -> int:
        """Return the process id of the keeper."""
        for pid in marked(self.mark):
            if b"__main__.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise ProcessLookupError("no keeper runs")


@contextlib.asynccontextmanager
async def new_terminal(folder: Path) -> AsyncIterator[Terminal]:
    """Yield a session without a keeper; end what was started at the end."""
    terminal = Terminal(folder)
    try:
        yield terminal
    finally:
        for client in terminal.clients:
            await client.close()
        for pid in marked(terminal.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
