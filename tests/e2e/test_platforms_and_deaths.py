"""The gateway as a process on all platforms: killed, started again, moved between, and with wrong tokens."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.testing.fake_models.script import ModelRequest, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from tests.e2e.gateway_process import ROOT, GatewayProcess
from tests.e2e.town import Town, toml, town, until

LAUNCHING = """
from pathlib import Path
from gateway import Plugin, tool_from

async def launch() -> str:
    '''Launch it.'''
    with Path("launches").open("a") as launches:
        launches.write("launched\\n")
    return "launched"

class Launching(Plugin):
    name = "launching"

    def tools(self):
        return (tool_from(launch),)

plugin = Launching()
"""


REFUSED = re.compile("token|invalid_auth")
"""What a channel says that is not let in; one that is on its way to its platform says other things."""


@asynccontextmanager
async def gateway_in(
    platforms: Town, directory: Path, models: FakeModels, more: str = "", **tables: dict[str, Any]
) -> AsyncGenerator[GatewayProcess]:
    """A gateway that runs, and has come to all platforms that let it in."""
    settings = f"{more}\n{toml(platforms.channels | tables)}"
    async with GatewayProcess(directory, models.openai_url, settings) as gateway:
        assert await gateway.start()
        await come(gateway)
        yield gateway


async def come(gateway: GatewayProcess) -> dict[str, Any]:
    """Wait until each channel works, or says that it is not let in. Returns what they say."""
    async with asyncio.timeout(60):
        while True:
            told = (await ask(f"{gateway.url}/api/status"))[1]["channels"]
            if all(one["ok"] or REFUSED.search(one.get("detail", "")) for one in told.values()):
                return told
            await asyncio.sleep(0.05)


async def again(gateway: GatewayProcess) -> None:
    """Kill it, and start it again."""
    await gateway.stop(signal.SIGKILL)
    assert await gateway.start()


async def ask(url: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as http, http.get(url) as response:
        return response.status, await response.json()


def said_to(models: FakeModels) -> list[str]:
    """What the user has said, as the model was told last."""
    return [one["content"] for one in models.requests[-1].body["messages"] if one["role"] == "user"]


def code_in(text: str) -> str:
    found = re.search(r"`/\w+ (\w+)`", text) or re.search(r"/\w+ ([A-Z0-9]{6,})", text)
    assert found is not None, text
    return found[1]


@pytest.mark.timeout(120)
async def test_what_is_written_during_an_outage_is_answered_once_after_it(tmp_path: Path) -> None:
    async with (
        town() as platforms,
        FakeModels() as models,
        gateway_in(platforms, tmp_path, models) as gateway,
    ):
        said: list[str] = []

        async def everybody_hears_of(text: str) -> None:
            platforms.say(text)
            said.append(f"You said: {text}")
            await until(platforms.answers, [said] * 3)

        await everybody_hears_of("one")
        logins = len(platforms.discord.transcript.of("IDENTIFY"))
        await gateway.stop(signal.SIGKILL)
        platforms.say("two")
        assert await gateway.start()
        said.append("You said: two")
        await until(platforms.answers, [said] * 3)
        assert len(platforms.discord.transcript.of("IDENTIFY")) == logins
        assert platforms.discord.transcript.of("RESUME")

        await gateway.stop(signal.SIGKILL)
        platforms.say("three")
        platforms.discord.expire_sessions()
        read = len(platforms.slack.transcript.of("conversations.history"))
        assert await gateway.start()
        said.append("You said: three")
        await until(platforms.answers, [said] * 3)
        assert len(platforms.discord.transcript.of("IDENTIFY")) > logins
        assert platforms.discord.transcript.of("GET /channels/{channel_id}/messages")
        assert len(platforms.slack.transcript.of("conversations.history")) > read
        await everybody_hears_of("four")
        platforms.check()


@pytest.mark.timeout(120)
async def test_a_conversation_begun_in_telegram_continues_in_slack_and_knows_what_was_said(
    tmp_path: Path,
) -> None:
    async with (
        town() as platforms,
        FakeModels() as models,
        gateway_in(platforms, tmp_path, models) as gateway,
    ):
        telegram, slack = platforms.telegram, platforms.slack

        async def on_telegram(text: str) -> str:
            before = len(telegram.answers(platforms.chat))
            telegram.say(platforms.chat, text)
            await until(lambda: len(telegram.answers(platforms.chat)), before + 1)
            return telegram.answers(platforms.chat)[-1]

        async def on_slack(text: str) -> str:
            before = len(slack.answers("@ada"))
            await slack.until(lambda: slack.sockets.live)
            slack.command("@ada", text) if text.startswith("/") else slack.say("@ada", text)
            await until(lambda: len(slack.answers("@ada")), before + 1)
            await until(lambda: any(one.streaming for one in slack.messages("@ada")), False)
            return slack.answers("@ada")[-1]

        assert await on_slack("who are you?") == "You said: who are you?"
        assert await on_telegram("my number is 7") == "You said: my number is 7"
        assert "Linked" in await on_slack(f"/link {code_in(await on_telegram('/link'))}")
        assert "The conversation continues here" in await on_slack(
            f"/move {code_in(await on_telegram('/move'))}"
        )
        await again(gateway)
        assert await on_slack("and my number?") == "You said: and my number?"
        assert said_to(models) == ["my number is 7", "and my number?"]
        assert await on_telegram("what did I ask?") == "You said: what did I ask?"
        assert said_to(models) == ["my number is 7", "and my number?", "what did I ask?"]
        assert "has its own conversation again" in await on_slack("/move off")
        assert await on_slack("and now?") == "You said: and now?"
        assert said_to(models) == ["who are you?", "and now?"]
        platforms.check()


def launches(asked: ModelRequest) -> Reply:
    """A model that launches whatever it is asked about, once."""
    return Reply((Say("It flies."),)) if asked.results else Reply((Use("launch"),), "tools")


@pytest.mark.timeout(120)
async def test_buttons_of_before_a_crash_decide_after_it(tmp_path: Path) -> None:
    (tmp_path / "launching.py").write_text(LAUNCHING)
    more = 'plugins.enabled = ["launching"]\npermissions.launch = "ask"'
    async with (
        town() as platforms,
        FakeModels(launches) as models,
        gateway_in(platforms, tmp_path, models, more) as gateway,
    ):
        platforms.say("go")
        await until(lambda: [len(one) for one in prompts(platforms)], [1, 1, 1])
        old = [one[0] for one in prompts(platforms)]
        await until(lambda: placed_questions(gateway), 3)  # one whose place is unknown is asked again
        await again(gateway)
        await until(lambda: len(platforms.slack.sockets.live), 1)
        assert [one[0] for one in prompts(platforms)] == old, "nothing is asked twice"
        assert not (tmp_path / "launches").exists()
        press(platforms, old)
        await until(lambda: prompts(platforms), [[], [], []])
        await until(lambda: ["".join(said).count("It flies.") for said in platforms.answers()], [1, 1, 1])
        assert (tmp_path / "launches").read_text() == "launched\n" * 3
        platforms.check()


def prompts(platforms: Town) -> list[list[Any]]:
    """The messages with buttons in each person's chat."""
    telegram, discord, slack = platforms.telegram, platforms.discord, platforms.slack
    pressable = [
        one.ts
        for one in slack.messages("@ada")
        if any(block["type"] == "actions" for block in one.raw.get("blocks", ()))
    ]
    return [
        [one.id for one in telegram.messages(platforms.chat) if one.buttons],
        [one.id for one in discord.messages(platforms.dm) if one.components],
        pressable,
    ]


def placed_questions(gateway: GatewayProcess) -> int:
    """Return the number of questions whose place on their platform is stored."""
    with closing(sqlite3.connect(gateway.data / "trunkline.db")) as database:
        return database.execute("SELECT count(*) FROM question WHERE shown != ''").fetchone()[0]


def press(platforms: Town, messages: list[Any]) -> None:
    """Everybody allows what their message asks for, once."""
    telegram, discord, slack = messages
    platforms.telegram.press(platforms.chat, telegram, "Allow once")
    shown = platforms.discord.message(platforms.dm, discord)
    platforms.discord.press(platforms.dm, discord, shown.components[0]["components"][0]["custom_id"])
    platforms.slack.press("@ada", slack, "Allow once")


@pytest.mark.timeout(120)
async def test_wrong_tokens_are_reported_in_one_line_each_and_other_channels_run(tmp_path: Path) -> None:
    async with town() as platforms, FakeModels() as models:
        wrong = {
            "telegram": {**platforms.channels["telegram"], "token": "123:wrong-telegram-token"},
            "discord": {**platforms.channels["discord"], "token": "wrong-discord-token"},
            "slack.accounts.good": {"groups": "mention"},
            "slack.accounts.wrong": {"bot_token": "xoxb-wrong-slack-token", "app_token": "xapp-wrong-token"},
        }
        async with gateway_in(platforms, tmp_path, models, **wrong) as gateway:
            platforms.slack.say("@ada", "hello")
            await until(lambda: platforms.slack.answers("@ada"), ["You said: hello"])
            told = await come(gateway)
            assert told["websocket"]["ok"]
            assert told["slack.good"]["ok"]
            assert "token" in told["telegram"]["detail"]
            assert "token" in told["discord"]["detail"]
            assert "invalid_auth" in told["slack.wrong"]["detail"]
            status, readiness = await ask(f"{gateway.url}/readyz")
            assert status == 503
            assert readiness["parts"] == {"gateway": True, "store": True} | {
                name: one["ok"] for name, one in told.items()
            }
            # A refused channel logs in again now and then, and says so meanwhile.
            async with asyncio.timeout(60):
                while json.loads(shown := await channels_status(gateway)) != told:
                    told = await come(gateway)
        for channel in ("telegram", "discord", "slack.wrong"):
            lines = [line for line in gateway.errors.splitlines() if re.search(rf"\b{channel}\b", line)]
            assert [("token" in line or "invalid_auth" in line) for line in lines] == [True], lines
        assert "Traceback" not in gateway.errors
        assert "wrong-" not in gateway.errors + shown


async def channels_status(gateway: GatewayProcess) -> str:
    """What ``trunkline channels status`` prints, which exits with 1."""
    port = gateway.url.rpartition(":")[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gateway",
        "channels",
        "status",
        "--json",
        "--config",
        str(gateway.data.parent / "trunkline.toml"),
        cwd=ROOT,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "TRUNKLINE_SERVER__PORT": port},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 1
    return output.decode()
