"""A user's chat on the websocket channel, in a gateway with coding agents, repositories and a forge.

::

    async with coding(tmp_path) as place:
        await place.say("/agents new shell echo hello")
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gateway import Message, ToolResultPart
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.testing.served import Frame, Served, SocketClient, serving
from plugins.coding_agents import CodingAgents
from plugins.coding_agents.records import SessionRecord
from tests.plugins.coding_agents.forges.fakes import TOKEN, FakeForge, fake_forge
from tests.plugins.coding_agents.workspaces import forge as hosts

SESSION = "s"
ALLOWED = {
    "*": "allow",
    "spawn_coding_agent": "allow",
    "send_to_coding_agent": "allow",
    "stop_coding_agent": "allow",
    "list_coding_agents": "allow",
    "provision_workspace": "allow",
    "finalize_workspace": "allow",
    "show_changes": "allow",
}
"""The tools of this plugin are asked about unless a rule names them."""
SECONDS = 60


def content(record: SessionRecord, name: str) -> str:
    """Return the text of a file in the folder of a session, "" without one."""
    path = Path(record.workdir, name)
    return path.read_text() if path.is_file() else ""


class Place:
    """The chat, the host of repositories, and the forge."""

    def __init__(
        self, served: Served, client: SocketClient, agents: CodingAgents, hub: hosts.Hub, fake: FakeForge
    ) -> None:
        self.served = served
        self.client = client
        self.agents = agents
        self.hub = hub
        self.fake = fake

    @property
    def repo(self) -> str:
        return f"{self.hub.url}/acme/app"

    async def say(self, text: str) -> Message | None:
        """Send a message; return the answer, None for a command that answers nothing."""
        ack = await self.client.say(text, session=SESSION)
        await self.client.until(
            lambda frame: frame["type"] == "complete" and frame["message_id"] == ack["answer_id"]
        )
        return next((one for one in await self.log() if one.id == ack["answer_id"]), None)

    async def ask(self, text: str) -> str:
        """Send a message; return the text of its answer. Raises AssertionError for an error."""
        answer = await self.say(text)
        assert answer is not None, text
        assert answer.text, (text, answer.parts)
        return answer.text

    async def tell(self, sentence: str, tool: str, /, **arguments: Any) -> str:
        """Send a sentence for which the model calls a tool; return the tool's output."""
        self.served.models.then(Reply((Use(tool, json.dumps(arguments)),), "tools"), Reply((Say("Done."),)))
        answer = await self.say(sentence)
        assert answer is not None
        (result,) = (part for part in answer.parts if isinstance(part, ToolResultPart))
        assert not result.is_error, result.output
        return result.output

    async def log(self) -> Sequence[Message]:
        return [message for _, message in await self.served.gateway.parts.sessions.read(SESSION)]

    async def announced(self, wanted: Callable[[Message], bool]) -> Message:
        """Return the newest message that matches, once there is one."""
        async with asyncio.timeout(SECONDS):
            while True:
                found = [one for one in await self.log() if one.role == "assistant" and wanted(one)]
                if found:
                    return found[-1]
                await asyncio.sleep(0.02)

    async def question(self, title: str) -> Frame:
        """Return the frame of a question, once it is asked."""
        while True:
            for frame in self.client.frames:
                if frame["type"] == "approval_request" and title in frame.get("title", ""):
                    return frame
            await self.client.read()

    async def press(self, asked: Frame, value: str) -> None:
        """Press a button of a question."""
        await self.client.send(
            type="approval", session=SESSION, approval_id=asked["approval_id"], decision=value
        )
        await self.client.until(
            lambda frame: (
                frame["type"] == "approval_resolved" and frame["approval_id"] == asked["approval_id"]
            )
        )

    async def records(self) -> Sequence[SessionRecord]:
        """Return the sessions of the user, the oldest first."""
        return (await self.agents.service()).list("owner")

    async def until(self, wanted: Callable[[Sequence[SessionRecord]], bool]) -> Sequence[SessionRecord]:
        """Wait until the sessions of the user match."""
        async with asyncio.timeout(SECONDS):
            while not wanted(found := await self.records()):
                await asyncio.sleep(0.02)
        return found


@asynccontextmanager
async def outside(tmp_path: Path, kind: str = "github") -> AsyncGenerator[tuple[hosts.Hub, FakeForge]]:
    """Run a host with the repository acme/app, and its forge."""
    async with hosts.serving(tmp_path / "hub") as hub, fake_forge(kind, "acme/app") as fake:
        hub.make()
        hub.tokens[TOKEN] = "write"
        yield hub, fake


@asynccontextmanager
async def gateway(
    tmp_path: Path, hub: hosts.Hub, fake: FakeForge, *, keep: bool = False, **settings: Any
) -> AsyncGenerator[Place]:
    """Run a gateway with coding agents, whose sessions end with it unless they are to be kept."""
    agents = CodingAgents()
    forge = {"kind": fake.kind, "base_url": fake.address, "token": TOKEN}
    given = {
        # Chats are tested where the kernel has no sandbox, too.
        "sandbox": "off",
        "min_free_memory_mb": 0,
        "forges": {hub.host: forge},
        "workspaces": {"hosts": [hub.url]},
        **settings,
    }
    async with (
        serving(tmp_path / "data", agents, plugins={"coding_agents": given}, permissions=ALLOWED) as served,
        served.socket() as client,
    ):
        try:
            yield Place(served, client, agents, hub, fake)
        finally:
            # A session outlives the gateway, and would outlive the test.
            for session in () if keep else (await agents.service()).running():
                await session.stop(force=True)


@asynccontextmanager
async def coding(tmp_path: Path, kind: str = "github", **settings: Any) -> AsyncGenerator[Place]:
    """Run a gateway with coding agents. ``settings`` are those of the plugin."""
    async with (
        outside(tmp_path, kind) as (hub, fake),
        gateway(tmp_path, hub, fake, **settings) as place,
    ):
        yield place
