"""Calls that a proxy answers instead of the platform: nothing is refused by that, lost or doubled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway.app import Gateway
from gateway.settings import Settings
from gateway.store import schema as t
from gateway.testing.contracts.channel_platform import Platform, freeze_after_placing, settled, until
from gateway.testing.fake_models.server import FakeModels
from tests.channels.discord.test_contract import DiscordPlatform
from tests.channels.matrix.test_contract import MatrixPlatform
from tests.channels.slack.test_contract import SlackPlatform
from tests.channels.telegram.test_contract import TelegramPlatform

pytestmark = pytest.mark.slow

PLACES = {
    "telegram": "/sendMessage",
    "discord": "/messages",
    "slack": "/chat.postMessage",
    "matrix": "/send/",
}
SEARCHES = {
    "telegram": "/editMessageReplyMarkup",
    "discord": "/messages",
    "slack": "/conversations.history",
    "matrix": "/send/",
}


@pytest.fixture(params=[TelegramPlatform, DiscordPlatform, SlackPlatform, MatrixPlatform])
def platform(request: pytest.FixtureRequest) -> Any:
    return request.param()


@asynccontextmanager
async def running(platform: Platform, directory: Path) -> AsyncGenerator[Gateway]:
    async with FakeModels() as models:
        given = {
            "data_dir": directory,
            "model": "openai/fake-small",
            "providers": {"openai": {"base_url": models.openai_url, "api_key": "k"}},
            "channels": {platform.name: {**platform.settings(), "envelope": "off"}},
        }
        gateway = Gateway(Settings.model_validate(given))
        async with gateway.running():
            async with asyncio.timeout(60):
                await platform.connected(gateway, "")
            yield gateway


async def states(gateway: Gateway) -> set[str]:
    return await gateway.parts.store.read(lambda c: {*c.execute(select(t.inbox.c.state)).scalars()})


@pytest.mark.parametrize("status", [302, 400, 403, 407])
async def test_a_page_of_a_proxy_refuses_no_answer(platform: Any, tmp_path: Path, status: int) -> None:
    async with platform, running(platform, tmp_path) as gateway:
        platform.fake.intercept(PLACES[platform.name], status, status)
        platform.write("one")
        await until(lambda: [*platform.shown()] == ["You said: one"])
        await settled(gateway)
        assert await states(gateway) == {"done"}
        platform.check()


@pytest.mark.parametrize("status", [302, 403])
async def test_a_page_of_a_proxy_does_not_end_a_search(platform: Any, tmp_path: Path, status: int) -> None:
    async with platform:
        async with running(platform, tmp_path) as gateway:
            placed = freeze_after_placing(gateway, platform.name)
            platform.write("one")
            async with asyncio.timeout(60):
                await placed.wait()
            gateway.parts.dispatcher.cancel()
        platform.fake.intercept(SEARCHES[platform.name], status, status)
        async with running(platform, tmp_path) as gateway:
            await settled(gateway)
            assert [*platform.shown()] == ["You said: one"]
            assert await states(gateway) == {"done"}
