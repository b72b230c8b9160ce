"""Deletions and stops are acknowledged when they are durable: the gateway is killed right after each."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy import select

from gateway.store import schema as t
from gateway.testing.fake_models.script import ModelRequest, Refusal, Reply, Say, Stall, echo
from gateway.testing.fake_models.server import FakeModels
from tests.e2e.gateway_process import GatewayProcess
from tests.e2e.test_platforms_and_deaths import come
from tests.e2e.town import Town, toml, town, until

SECRET = "my password is hunter2"

HOLDING = """
import asyncio
from pathlib import Path
from gateway import Plugin

class Holding(Plugin):
    '''Keeps every turn that was stopped from its end, in the first process.'''
    name = "holding"

    async def after_agent_run(self, reason, ctx):
        if reason == "aborted" and not Path("killed").exists():
            await asyncio.Event().wait()

plugin = Holding()
"""


class Stories:
    """A model that never comes to the end of a story until it may, and repeats all else."""

    def __init__(self) -> None:
        self.ends = False

    def __call__(self, asked: ModelRequest) -> Reply | Refusal:
        if "story" in asked.user_text and not self.ends:
            return Reply((Say("Once upon "), Stall()))
        return echo()(asked)


@asynccontextmanager
async def storytelling(
    directory: Path, platforms: Town
) -> AsyncGenerator[tuple[GatewayProcess, FakeModels, Stories]]:
    """A gateway on all platforms that is connected to each."""
    (directory / "holding.py").write_text(HOLDING)
    stories = Stories()
    settings = f'plugins.enabled = ["holding"]\n{toml(platforms.channels)}'
    async with (
        FakeModels(stories) as models,
        GatewayProcess(directory, models.openai_url, settings) as gateway,
    ):
        assert await gateway.start()
        await come(gateway)
        yield gateway, models, stories


async def kill(gateway: GatewayProcess, stories: Stories) -> None:
    """Kill it and start it again; from now on stories end."""
    await gateway.stop(signal.SIGKILL)
    (gateway.data.parent / "killed").touch()
    stories.ends = True
    assert await gateway.start()


async def accepted(gateway: GatewayProcess, count: int) -> None:
    """Wait until so many messages are accepted."""
    async with gateway.database() as engine:

        def known() -> int:
            with engine.connect() as connection:
                return len(connection.execute(select(t.inbox.c.id)).all())

        await until(known, count)


@pytest.mark.timeout(120)
async def test_a_deleted_message_is_never_sent_to_a_model_though_the_gateway_is_killed(
    tmp_path: Path,
) -> None:
    async with town() as platforms, storytelling(tmp_path, platforms) as (gateway, models, stories):
        platforms.discord.say(platforms.dm, "a story")
        platforms.slack.say("@ada", "a story")
        await until(lambda: len(models.requests), 2)
        on_discord = platforms.discord.say(platforms.dm, SECRET)
        on_slack = platforms.slack.say("@ada", SECRET)
        await accepted(gateway, 4)
        platforms.discord.delete(platforms.dm, on_discord)
        platforms.slack.delete("@ada", on_slack)
        deletion = await platforms.slack.deliveries[-1].settled()
        assert deletion.acknowledged
        await kill(gateway, stories)
        platforms.discord.say(platforms.dm, "thanks")
        platforms.slack.say("@ada", "thanks")
        said = ["You said: a story", "You said: thanks"]
        await until(lambda: platforms.answers()[1:], [said, said])
        assert SECRET not in json.dumps([asked.body for asked in models.requests])
        platforms.check()


@pytest.mark.timeout(120)
async def test_a_stopped_answer_stays_stopped_though_the_gateway_is_killed(tmp_path: Path) -> None:
    async with town() as platforms, storytelling(tmp_path, platforms) as (gateway, models, stories):
        telegram, slack = platforms.telegram, platforms.slack
        telegram.say(platforms.chat, "a story")
        thread = slack.say("general", "a story @trunkline")
        place = slack.chat("general").id, thread
        async with gateway.client() as client:
            session = (await client.say("a story"))["session"]
        await until(lambda: len(models.requests), 3)
        await until(lambda: len(telegram.drafts(platforms.chat)), 1)
        await slack.until(lambda: place in slack.state.sessions)
        telegram.stop(platforms.chat)
        slack.stop("general", thread)
        delivery = await slack.deliveries[-1].settled()
        assert delivery.acknowledged
        await until(lambda: len(telegram.world.updates.waiting), 0)
        async with aiohttp.ClientSession() as http:
            url = f"{gateway.url}/api/sessions/{session}/abort"
            async with http.post(url) as response:
                assert await response.json() == {"aborted": True}
        await kill(gateway, stories)
        telegram.say(platforms.chat, "thanks")
        slack.say("general", "thanks @trunkline", thread=thread)
        await until(lambda: telegram.answers(platforms.chat), ["You said: thanks"])
        await until(lambda: [said.split("\n")[-1] for said in slack.answers("general")], ["thanks"])
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{gateway.url}/api/sessions/{session}/messages") as response,
        ):
            told = (await response.json())["messages"]
        assert [(one["message"]["role"], one["message"]["metadata"].get("stop_reason")) for one in told] == [
            ("user", None),
            ("assistant", "cancelled"),
        ]
        assert len(models.requests) == 5, "only what was asked after the kill was sent to the model"
        platforms.check()
