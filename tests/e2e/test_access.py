"""Unauthorised users of platforms: they get a pairing code once, and no answer until they are paired."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from channels.discord.fake import FakeDiscord
from channels.slack.fake import FakeSlack
from channels.telegram.fake import FakeTelegram
from gateway.access import THE_OWNER
from gateway.app import Gateway
from gateway.settings import Settings
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.fake_platform import Fault
from gateway.testing.polling_channel import PollingChannel
from gateway.testing.polling_platform import PollingPlatform
from gateway.testing.served import until
from tests.small_plugins import Brings


@asynccontextmanager
async def gateway_with(
    directory: Path, models: FakeModels, channels: dict[str, Any], line: str | None = None
) -> AsyncGenerator[Gateway]:
    settings = Settings.model_validate(
        {
            "data_dir": directory,
            "model": "openai/fake-small",
            "providers": {"openai": {"base_url": models.openai_url, "api_key": "none"}},
            "channels": channels,
        }
    )
    plugins = (
        [Brings(PollingChannel(line, lambda channel: gateway.parts.host.cursors(channel)))] if line else []
    )
    gateway = Gateway(settings, plugins=plugins)
    async with gateway.running():
        yield gateway


def code_in(text: str) -> str:
    """The code that a stranger was told."""
    found = re.search(r"pair approve ([34679CDFGHJKMNPQRTVWXY]{8})\b", text)
    assert found is not None, text
    return found[1]


@pytest.mark.parametrize("fault", ["slow_down", "fail_before", "fail_after", "drop_before", "drop_after"])
async def test_an_unauthorised_user_gets_one_code_after_any_failure(tmp_path: Path, fault: Fault) -> None:
    async with (
        FakeModels() as models,
        PollingPlatform(repeats=1) as platform,
        gateway_with(tmp_path, models, {}, platform.url) as gateway,
    ):
        platform.then(fault, fault)
        platform.say("kitchen", "let me in", user="eve")
        await until(lambda: gateway.parts.dispatcher.waiting == 0 and bool(platform.answers("kitchen")))
        [told] = platform.answers("kitchen")
        assert models.requests == []
        await gateway.parts.access.pairing.approve(code_in(told), THE_OWNER, "admin")
        platform.say("kitchen", "hello", user="eve")
        await until(lambda: platform.answers("kitchen")[1:] == ["You said: hello"])


async def test_an_unauthorised_user_gets_the_same_code_after_a_restart(tmp_path: Path) -> None:
    async with FakeModels() as models, PollingPlatform() as platform:
        platform.then(*["slow_down"] * 3)
        platform.say("kitchen", "let me in", user="eve")
        async with gateway_with(tmp_path, models, {}, platform.url) as gateway:
            await until(lambda: platform.sends >= 1)
            assert len(await gateway.parts.access.pairing.waiting()) == 1
            gateway.parts.dispatcher.cancel()
        async with gateway_with(tmp_path, models, {}, platform.url) as gateway:
            await until(lambda: gateway.parts.dispatcher.waiting == 0 and bool(platform.answers("kitchen")))
            [told] = platform.answers("kitchen")
            member = await gateway.parts.access.pairing.approve(code_in(told), THE_OWNER, "admin")
            assert member.user_id == "eve"
            assert await gateway.parts.access.pairing.waiting() == []


async def test_unauthorised_users_of_every_platform_pair_with_their_code(tmp_path: Path) -> None:
    async with (
        FakeTelegram() as telegram,
        FakeDiscord() as discord,
        FakeSlack() as slack,
        FakeModels() as models,
    ):
        chat, dm = telegram.private("Ada"), discord.dm("ada")
        channels = {
            "telegram": {"token": telegram.token, "api_base_url": telegram.url},
            "discord": {"token": discord.token, "api_base_url": discord.api_url},
            "slack": {
                "bot_token": slack.bot_token,
                "app_token": slack.app_token,
                "api_base_url": slack.api_url,
            },
        }

        def answers() -> list[list[str]]:
            return [telegram.answers(chat), discord.answers(dm), slack.answers("@ada")]

        async def ask(text: str, count: int) -> list[str]:
            telegram.say(chat, text)
            discord.say(dm, text)
            slack.say("@ada", text)
            await until(lambda: [len(said) for said in answers()] == [count] * 3)
            return [said[-1] for said in answers()]

        async with gateway_with(tmp_path, models, channels) as gateway:
            await until(lambda: all(ok for ok, _ in gateway.health().values()))
            told = await ask("let me in", 1)
            assert models.requests == []
            for text in told:
                await gateway.parts.access.pairing.approve(code_in(text), THE_OWNER, "admin")
            assert {m.channel for m in gateway.parts.access.members.list()} == {
                "telegram",
                "discord",
                "slack",
            }
            assert await ask("hello", 2) == ["You said: hello"] * 3
        for fake in (telegram, discord, slack):
            fake.transcript.check()
