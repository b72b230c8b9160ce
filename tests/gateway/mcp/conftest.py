"""Local servers for tests: their settings, their processes, and waiting for what they do."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway import Message, ToolResultPart
from gateway.mcp import McpPlugin
from gateway.mcp.server import Server
from gateway.testing.chat import Chat, chatting
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.testing.served import until

HOSTILE = Path(__file__).with_name("hostile.py")
SECONDS = 60


class Servers:
    """The local servers of one test, each with a folder that it may write to."""

    def __init__(self, folder: Path) -> None:
        self.tmp = folder
        self.folder = folder / "server"
        self.folder.mkdir()
        (self.folder / "pids").touch()

    def settings(self, behaviour: str = "plain", **more: Any) -> dict[str, Any]:
        """The settings of a server with this behaviour."""
        files = {"filesystem": {"roots": [str(self.folder)], "write": True}}
        command = [sys.executable, str(HOSTILE), behaviour, str(self.folder)]
        return {"command": command, "capabilities": files, **more}

    @property
    def starts(self) -> int:
        """How often a server was started."""
        return len((self.folder / "pids").read_text().splitlines())

    def processes(self) -> list[int]:
        """The processes of the servers, as the machine numbers them."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().split(b"\0")
            except OSError:
                continue
            if str(self.folder).encode() in words:
                found.append(int(path.parent.name))
        return found

    async def gone(self) -> None:
        """Wait until no process of a server remains."""
        await until(lambda: not self.processes())

    @asynccontextmanager
    async def chat(self, behaviour: str = "plain", *, rules: Any = None, **more: Any) -> AsyncGenerator[Chat]:
        """A gateway with the server ``demo``, whose tools it knows; ``rules`` are permissions."""
        default = {f"demo_{name}": "allow" for name in ("add", "look", "run")}
        settings = {"permissions": default if rules is None else rules}
        servers = {"demo": self.settings(behaviour, **more)}
        async with chatting(self.tmp / "data", mcp=servers, **settings) as chat:
            await until(lambda: bool(server(chat).status.tools or server(chat).problem))
            yield chat


@pytest.fixture
def servers(tmp_path: Path) -> Servers:
    return Servers(tmp_path)


def plugin(chat: Chat) -> McpPlugin:
    found = chat.gateway.registry.get("mcp")
    assert isinstance(found, McpPlugin)
    return found


def server(chat: Chat, name: str = "demo") -> Server:
    return plugin(chat).server(name)


def result(message: Message) -> ToolResultPart:
    return next(part for part in message.parts if isinstance(part, ToolResultPart))


async def use(chat: Chat, tool: str, session: str = "s", **arguments: Any) -> ToolResultPart:
    """Let the model call a tool, and return the result that it got."""
    call = Use(tool, msgspec.json.encode(arguments).decode())
    chat.model.then(Reply((call,), "tools"), Reply((Say("Done."),)))
    return result(await chat.say("go", session))
