"""The three platforms with a person on each who writes to the bot, and one configuration for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from channels.discord.fake import FakeDiscord
from channels.slack.fake import FakeSlack
from channels.telegram.fake import FakeTelegram
from gateway.settings import Settings
from gateway.testing.fake_models.server import FakeModels


class Town:
    """The platforms. Ada has a private chat on each."""

    def __init__(self, telegram: FakeTelegram, discord: FakeDiscord, slack: FakeSlack) -> None:
        self.telegram, self.discord, self.slack = telegram, discord, slack
        self.chat = telegram.private("Ada")
        self.dm = discord.dm("ada")

    @property
    def channels(self) -> dict[str, dict[str, Any]]:
        """The tables of the channels."""
        return {
            "websocket": {},
            "telegram": {"allow": "*", "token": self.telegram.token, "api_base_url": self.telegram.url},
            "discord": {"allow": "*", "token": self.discord.token, "api_base_url": self.discord.api_url},
            "slack": {
                "allow": "*",
                "bot_token": self.slack.bot_token,
                "app_token": self.slack.app_token,
                "api_base_url": self.slack.api_url,
            },
        }

    def settings(self, directory: Path, models: FakeModels) -> Settings:
        """One configuration for a gateway in this process."""
        return Settings.model_validate(
            {
                "data_dir": directory,
                "model": "openai/fake-small",
                "providers": {"openai": {"base_url": models.openai_url, "api_key": "none"}},
                "channels": self.channels,
                "server": {"port": 0},
            }
        )

    def say(self, text: str) -> None:
        """Each person writes."""
        self.telegram.say(self.chat, text)
        self.discord.say(self.dm, text)
        self.slack.say("@ada", text)

    def answers(self) -> list[list[str]]:
        """What stands in each of their chats."""
        said = self.discord.answers(self.dm)
        return [self.telegram.answers(self.chat), said, self.slack.answers("@ada")]

    def check(self) -> None:
        """Every platform agrees with all that it was asked."""
        for fake in (self.telegram, self.discord, self.slack):
            fake.transcript.check()


@asynccontextmanager
async def town() -> AsyncGenerator[Town]:
    """All platforms."""
    async with FakeTelegram() as telegram, FakeDiscord() as discord, FakeSlack() as slack:
        yield Town(telegram, discord, slack)


def toml(channels: dict[str, dict[str, Any]]) -> str:
    """Tables of channels as they stand in a file."""
    lines: list[str] = []
    for name, table in channels.items():
        lines.append(f"[channels.{name}]")
        lines += [f'{key} = "{value}"' for key, value in table.items()]
    return "\n".join(lines)


async def until(value: Callable[[], Any], wanted: Any) -> None:
    """Wait until a state without an event is as expected."""
    try:
        async with asyncio.timeout(60):
            while value() != wanted:
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{value()} instead of {wanted}") from None
