"""A fake Discord for every test; after the test its output is checked against Discord's schema."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from channels.discord.fake import FakeDiscord, relaxed
from tests.channels.discord.raw_bot import RawBot, misfits


@pytest.fixture
async def fake() -> AsyncIterator[FakeDiscord]:
    """Return a platform without rate limits."""
    async with FakeDiscord(figures=relaxed()) as fake:
        yield fake
    assert misfits(fake) == []


@pytest.fixture
async def bot(fake: FakeDiscord) -> AsyncIterator[RawBot]:
    """Return a bot that acts only when a test calls it."""
    async with aiohttp.ClientSession() as http:
        yield RawBot(fake, http)


@pytest.fixture
def general(fake: FakeDiscord) -> int:
    """Return the id of the guild's channel."""
    return fake.channel("general").id
