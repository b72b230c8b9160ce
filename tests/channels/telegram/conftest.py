"""Fixtures: a fake Telegram, and a bot of python-telegram-bot."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from telegram import Bot

from channels.telegram.fake import FakeTelegram
from tests.channels.telegram.bots import bot_of


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    """Yield a fake platform without users."""
    async with FakeTelegram() as fake:
        yield fake


@pytest.fixture
async def bot(fake: FakeTelegram) -> AsyncIterator[Bot]:
    """Yield the bot of the fake platform."""
    async with bot_of(fake) as bot:
        yield bot
