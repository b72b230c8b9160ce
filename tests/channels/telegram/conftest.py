"""A fake Telegram, and a bot of python-telegram-bot that talks to it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from telegram import Bot

from channels.telegram.fake import FakeTelegram
from tests.channels.telegram.bots import bot_of


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    """A fake platform with nobody on it."""
    async with FakeTelegram() as fake:
        yield fake


@pytest.fixture
async def bot(fake: FakeTelegram) -> AsyncIterator[Bot]:
    """The bot of the fake platform."""
    async with bot_of(fake) as bot:
        yield bot
