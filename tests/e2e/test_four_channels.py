"""One configuration, four channels, four platforms: each is answered once, also over a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from channels.discord.fake import FakeDiscord
from channels.slack.fake import FakeSlack
from channels.telegram.fake import FakeTelegram
from gateway.app import Gateway
from gateway.server import Server
from gateway.settings import Settings
from gateway.testing.models import FakeModels


class Town:
    """The platforms, with a person on each who writes to the bot."""

    def __init__(self, telegram: FakeTelegram, discord: FakeDiscord, slack: FakeSlack) -> None:
        self.telegram, self.discord, self.slack = telegram, discord, slack
        self._chat = telegram.private("Ada")
        self._dm = discord.dm("ada")

    def settings(self, directory: Path, models: FakeModels) -> Settings:
        """One configuration for all of them."""
        channels: dict[str, Any] = {
            "websocket": {},
            "telegram": {"token": self.telegram.token, "api_base_url": self.telegram.url},
            "discord": {"token": self.discord.token, "api_base_url": self.discord.api_url},
            "slack": {
                "bot_token": self.slack.bot_token,
                "app_token": self.slack.app_token,
                "api_base_url": self.slack.api_url,
            },
        }
        for platform in ("telegram", "discord", "slack"):
            channels[platform]["allow"] = "*"
        return Settings.model_validate(
            {
                "data_dir": directory,
                "model": "openai/fake-small",
                "providers": {"openai": {"base_url": models.openai_url, "api_key": "none"}},
                "channels": channels,
                "server": {"port": 0},
            }
        )

    def say(self, text: str) -> None:
        """Each person writes."""
        self.telegram.say(self._chat, text)
        self.discord.say(self._dm, text)
        self.slack.say("@ada", text)

    def answers(self) -> list[list[str]]:
        """What stands in each of their chats."""
        said = self.discord.answers(self._dm)
        return [self.telegram.answers(self._chat), said, self.slack.answers("@ada")]

    def check(self) -> None:
        """Every platform agrees with all that it was asked."""
        for fake in (self.telegram, self.discord, self.slack):
            fake.transcript.check()


@asynccontextmanager
async def town() -> AsyncGenerator[tuple[Town, FakeModels]]:
    """All platforms, and a model."""
    async with (
        FakeTelegram() as telegram,
        FakeDiscord() as discord,
        FakeSlack() as slack,
        FakeModels() as models,
    ):
        yield Town(telegram, discord, slack), models


async def until(value: Callable[[], Any], wanted: Any) -> None:
    """Wait until something that nobody tells of is as wanted."""
    try:
        async with asyncio.timeout(30):
            while value() != wanted:
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{value()} instead of {wanted}") from None


async def test_one_configuration_runs_all_four_and_each_is_answered_once(tmp_path: Path) -> None:
    async with town() as (platforms, models):
        settings = platforms.settings(tmp_path, models)
        gateway = Gateway(settings)
        async with gateway.running(), Server(gateway) as server:
            await until(lambda: [name for name, (ok, _) in gateway.health().items() if not ok], [])
            platforms.say("hello")
            await until(platforms.answers, [["You said: hello"]] * 3)
            async with aiohttp.ClientSession() as http, http.ws_connect(f"{server.url}/ws") as socket:
                await socket.send_json({"type": "message", "client_msg_id": "1", "text": "hello"})
                while (frame := await socket.receive_json())["type"] != "complete":
                    assert frame["type"] != "error"
            await until(lambda: gateway.dispatcher.waiting, 0)
        platforms.say("while you were away")
        async with Gateway(settings).running():
            wanted = ["You said: hello", "You said: while you were away"]
            await until(platforms.answers, [wanted] * 3)
        platforms.check()
