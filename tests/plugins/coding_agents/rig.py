"""A gateway with the plugin, whose sessions are real shells in real keepers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway import Plugin
from gateway.testing.chat import Chat, chatting
from plugins.coding_agents import CodingAgents
from plugins.coding_agents.records import SessionRecord
from plugins.coding_agents.session import Session
from plugins.coding_agents.sessions import Sessions, SpawnRequest
from plugins.programs.process import MARK, kill_marked

SECONDS = 60
"""The limit of a wait; two loaded cores may need most of it."""
OWNER = "test:ada"
ADDRESS = {"channel": "test", "account": "bot", "chat": "room"}


class Agents:
    """The plugin in a running gateway, and its sessions."""

    def __init__(self, chat: Chat, plugin: CodingAgents, sessions: Sessions) -> None:
        self.chat = chat
        self.plugin = plugin
        self.sessions = sessions

    async def spawn(self, task: str = "", **fields: Any) -> Session:
        """Start a shell for a user."""
        given = {"agent": "shell", "owner": OWNER, "address": ADDRESS, "session": "s", "task": task}
        record = await self.sessions.spawn(SpawnRequest(**{**given, **fields}))
        return self.sessions.session(record.id, record.owner)

    def record(self, session: Session) -> SessionRecord:
        """Return the current record of a session."""
        return self.sessions.get(session.record.id, session.record.owner)


async def until(session: Session, holds: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Wait until something holds, looking after each rendering and each event of a session."""
    changed = asyncio.Event()
    stops = [session.subscribe(lambda _event: changed.set()), session.on_rendered(changed.set)]
    try:
        async with asyncio.timeout(seconds):
            while not holds():
                changed.clear()
                await changed.wait()
    except TimeoutError:
        raise AssertionError(f"it does not come to hold: {session.record}\n{session.tail(40)}") from None
    finally:
        for stop in stops:
            stop()


async def until_status(session: Session, *statuses: str) -> None:
    """Wait until a session has one of these statuses."""
    await until(session, lambda: session.record.status in statuses)


async def until_shown(session: Session, *lines: str) -> None:
    """Wait until the screen has these lines, one below the other."""
    await until(session, lambda: "\n".join(lines) in "\n".join(session.tail(40)))


@asynccontextmanager
async def agents(
    tmp_path: Path,
    *plugins: Plugin,
    permissions: Any = None,
    channels: Any = None,
    node: str = "",
    **settings: Any,
) -> AsyncGenerator[Agents]:
    """Run a gateway with the plugin, as a ``node`` of a cluster if it has a name. Its programs outlive the
    block, unless it stops them.
    """
    plugin = CodingAgents()
    table = {"min_free_memory_mb": 0, "sandbox": "off", **settings}
    rules = {"*": "allow"} if permissions is None else permissions
    given = {"permissions": rules, "channels": channels or {}, "plugins": {"coding_agents": table}}
    if node:
        given["cluster"] = {"url": "amqp://127.0.0.1/", "name": node}
    try:
        async with chatting(tmp_path, *plugins, plugin, **given) as chat:
            yield Agents(chat, plugin, await plugin.service())
    except BaseException:
        end_all(tmp_path)
        raise


def end_all(data: Path) -> None:
    """Kill what a failed test leaves: sessions outlive it."""
    for folder in (data / "coding-agents" / "sessions").glob("pty-*"):
        kill_marked(folder.name)


def processes(session_id: str) -> list[int]:
    """Return the ids of the processes of a session: its keeper, its program and all that these started."""
    entry = f"{MARK}={session_id}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found
