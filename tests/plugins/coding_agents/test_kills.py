"""The gateway is killed at random moments while a user starts an agent, answers it and sends it a text.

There is one session, each text is typed once, one question has one answer, and each end is announced once.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import SocketClient
from plugins.coding_agents.records import PublicStatus
from tests.e2e.gateway_process import GatewayProcess
from tests.plugins.coding_agents.rig import end_all, processes

pytestmark = pytest.mark.slow

KILLS = 5
SECONDS = 240
SETTINGS = """
permissions = {"*" = "allow"}
[plugins]
enabled = ["coding_agents"]
[plugins.coding_agents]
sandbox = "off"
min_free_memory_mb = 0
"""


class User:
    """A user on the page, whose connections break and who tries again."""

    def __init__(self, gateway: GatewayProcess, log: Path) -> None:
        self.gateway = gateway
        self.log = log
        self.asked: set[str] = set()

    async def act(self) -> None:
        """Start an agent, answer its question, and send it a text."""
        task = f"echo task >> {self.log}; read -p 'Go on? [y/n] ' a; echo answer $a >> {self.log}"
        await self._say("m1", f"/agents new shell {task}")
        await self._repeat(self._press)
        await self._until_status("completed")
        await self._say("m2", f"/agents 1 echo sent >> {self.log}")
        await self._until(lambda: "sent" in self.lines)
        await self._until_status("completed")

    @property
    def lines(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []

    async def _repeat(self, step: Callable[[SocketClient], Awaitable[None]]) -> None:
        """Do a step, again from its beginning if the connection breaks."""
        while True:
            try:
                async with self.gateway.client() as client:
                    await step(client)
                    return
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(0.05)

    async def _say(self, name: str, text: str) -> None:
        async def say(client: SocketClient) -> None:
            ack = await client.say(text, session="s", client_msg_id=name)
            assert ack["type"] == "ack", ack

        await self._repeat(say)

    async def _press(self, client: SocketClient) -> None:
        """Press the button of the question until the program has the answer."""
        await client.send(type="resume", session="s", after=0)
        while not any(line.startswith("answer") for line in self.lines):
            for frame in client.frames:
                if frame["type"] == "approval_request":
                    self.asked.add(frame["approval_id"])
            for question in self.asked:
                await client.send(type="approval", session="s", approval_id=question, decision="once")
            await client.send(type="ping")
            await client.until("pong")
            client.frames[:] = [one for one in client.frames if one["type"] == "approval_request"]
            await asyncio.sleep(0.05)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await asyncio.sleep(0.05)

    async def _until_status(self, status: PublicStatus) -> None:
        while True:
            found = await self.sessions()
            if found and found[0]["public_status"] == status:
                return
            await asyncio.sleep(0.05)

    async def sessions(self) -> list[dict[str, Any]]:
        return (await self.get("/api/coding-agents")).get("sessions", [])

    async def get(self, path: str) -> dict[str, Any]:
        """Return an answer of the gateway, {} while it is away."""
        try:
            async with aiohttp.ClientSession() as http, http.get(self.gateway.url + path) as response:
                return await response.json()
        except (aiohttp.ClientError, OSError, ValueError):
            return {}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder for the gateway, whose sessions end with the test."""
    yield tmp_path
    end_all(tmp_path / "data")


@pytest.mark.parametrize("seed", range(4))
async def test_a_gateway_that_is_killed_loses_and_repeats_nothing(home: Path, seed: int) -> None:
    moments = random.Random(seed)
    async with FakeModels() as models, GatewayProcess(home, models.openai_url, SETTINGS) as gateway:
        assert await gateway.start(), gateway.errors
        user = User(gateway, home / "log")
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
            acting = tasks.create_task(user.act())
            for _ in range(KILLS):
                await asyncio.sleep(moments.uniform(0.0, 2.5))
                await gateway.stop(signal.SIGKILL)
                assert await gateway.start(), gateway.errors
            await acting
        assert user.lines == ["task", "answer y", "sent"]
        [session] = await user.sessions()
        assert len(user.asked) == 1
        texts = await _texts(user)
        assert sum("has finished" in text for text in texts) == 2, texts
        async with aiohttp.ClientSession() as http:
            stop = f"{gateway.url}/api/coding-agents/{session['id']}/stop"
            async with http.post(stop, json={"force": True}) as response:
                assert response.status == 200
        async with asyncio.timeout(60):
            while processes(session["id"]):
                await asyncio.sleep(0.05)


async def _texts(user: User) -> list[str]:
    """Return the messages of the chat, once both ends are announced."""
    async with asyncio.timeout(60):
        while True:
            body = await user.get("/api/sessions/s/messages")
            texts = [str(message) for message in body.get("messages", [])]
            if sum("has finished" in text for text in texts) >= 2:
                return texts
            await asyncio.sleep(0.1)
