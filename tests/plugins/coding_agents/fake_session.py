"""A session without a program, and a plugin that serves its terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

from gateway import Plugin, SlashCommand
from gateway.api import ApiCall, ApiConnection, ApiRoute, ApiSocket
from plugins.coding_agents.errors import SessionNotFoundError, WorkspaceNotFoundError
from plugins.coding_agents.keeper_client import Connect
from plugins.coding_agents.records import SessionRecord
from plugins.coding_agents.screen import Screen
from plugins.coding_agents.workspaces.checkouts import Changes

RECORD = SessionRecord(
    id="pty-1-abcd1234",
    agent="shell",
    status="ready",
    owner="owner",
    workdir="/home/me/code/app",
    created_at=1,
    last_activity=1,
    key="00" * 32,
)


class FakeSession:
    """A session whose program echoes what is typed. ``typed`` and ``sizes`` are what it received."""

    def __init__(self, folder: Path = Path("/nonexistent"), record: SessionRecord = RECORD) -> None:
        self.record = record
        self.folder = folder
        self.connect: Connect | None = None
        self.screen: Screen | None = Screen(10, 40)
        self.ended = asyncio.Event()
        self.typed = b""
        self.sizes: list[tuple[int, int]] = []
        self.holding: asyncio.Event | None = None
        """Typing waits for it."""
        self.driver: object | None = None
        self._watchers: list[Callable[[], None]] = []

    def show(self, data: bytes) -> None:
        """Render output."""
        assert self.screen is not None
        self.screen.feed(data)
        self._tell()

    def end(self, exit_status: int) -> None:
        """End the program."""
        self.record = structs.replace(self.record, status="stopped", exit_status=exit_status)
        self.ended.set()
        self._tell()

    def on_rendered(self, watcher: Callable[[], None]) -> Callable[[], None]:
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def subscribe(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        return self.on_rendered(lambda: listener(None))

    async def type_raw(self, data: bytes) -> None:
        if self.holding is not None:
            await self.holding.wait()
        self.typed += data
        self.show(data.replace(b"\r", b"\r\n").replace(b"\x1b", b"^["))

    def resize(self, rows: int, columns: int) -> None:
        assert self.screen is not None
        self.screen.resize(rows, columns)
        self.sizes.append((self.screen.rows, self.screen.columns))
        self._tell()

    @property
    def watchers(self) -> int:
        return len(self._watchers)

    def _tell(self) -> None:
        for watcher in tuple(self._watchers):
            watcher()


class SessionPath(Struct, frozen=True):
    """A session."""

    id: str


class TerminalQuery(Struct, frozen=True):
    """The view."""

    view: Literal["bytes", "rows"] = "bytes"
    after: int = 0


class Listed(Struct, frozen=True):
    """A session in the list."""

    id: str
    agent: str
    public_status: str
    workdir: str
    workspace: str


class SessionList(Struct, frozen=True):
    """The sessions."""

    sessions: list[Listed]


class FakeAgents(Plugin):
    """The routes of terminals, for fake sessions."""

    name = "agents"
    api_prefixes = ("/api/coding-agents", "/api/workspaces")

    def __init__(self, *sessions: FakeSession) -> None:
        self.changes: Changes | None = None
        """Those of all workspaces."""
        self.sessions = {session.record.id: session for session in sessions}

    def commands(self) -> Sequence[SlashCommand]:
        async def nothing(_rest: str, _ctx: object) -> str:
            return ""

        return [SlashCommand("agents", "List the coding agents.", nothing)]

    def routes(self) -> Sequence[ApiRoute | ApiSocket]:
        terminal = "/api/coding-agents/{id}/terminal"
        return [
            ApiRoute("GET", "/api/coding-agents", "List them.", self._list),
            ApiRoute("GET", "/api/workspaces/{id}/diff", "Show changes.", self._diff),
            ApiSocket(terminal, "Follow a terminal.", self._terminal, (SessionNotFoundError,)),
        ]

    async def _list(self, call: ApiCall[None, None, None]) -> SessionList:
        records = [session.record for session in self.sessions.values()]
        return SessionList(
            [Listed(one.id, one.agent, one.public_status, one.workdir, one.workspace) for one in records]
        )

    async def _diff(self, call: ApiCall[SessionPath, None, None]) -> Changes:
        if self.changes is None:
            raise WorkspaceNotFoundError("there is no such workspace of yours")
        return self.changes

    async def _terminal(self, call: ApiCall[SessionPath, TerminalQuery, None], client: ApiConnection) -> None:
        from plugins.coding_agents.terminal import serve_terminal

        session = self.sessions.get(call.path.id)
        if session is None:
            raise SessionNotFoundError("no such session")
        await serve_terminal(session, client, view=call.query.view, after=call.query.after)


FakeAgents.__module__ = "plugins.agents"  # as if it came with Trunkline: only these have the path
