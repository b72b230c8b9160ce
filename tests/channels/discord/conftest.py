"""A fake Discord for every test, held against the platform's own descriptions when the test is over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from channels.discord.fake import FakeDiscord, relaxed
from tests.channels.discord.raw_bot import RawBot, misfits


@pytest.fixture
async def fake() -> AsyncIterator[FakeDiscord]:
    """A platform without limits on the rate of calls."""
    async with FakeDiscord(figures=relaxed()) as fake:
        yield fake
    assert misfits(fake) == []


@pytest.fixture
async def bot(fake: FakeDiscord) -> AsyncIterator[RawBot]:
    """A bot that only does what it is told."""
    async with aiohttp.ClientSession() as http:
        yield RawBot(fake, http)


@pytest.fixture
def general(fake: FakeDiscord) -> int:
    """The channel of the guild."""
    return fake.channel("general").id
