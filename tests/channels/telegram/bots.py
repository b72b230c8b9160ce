"""A bot of python-telegram-bot at a fake platform, and what it is told when it is refused."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest
from telegram import Bot
from telegram.error import BadRequest

from channels.telegram.fake import FakeTelegram


def bot_of(fake: FakeTelegram) -> Bot:
    """A client for a fake platform, to be entered."""
    return Bot(fake.token, base_url=fake.base_url, base_file_url=fake.base_file_url)


async def refused(call: Awaitable[object], error: type[Exception] = BadRequest) -> str:
    """The platform's words for a call that it refuses; the library changes their case."""
    with pytest.raises(error) as caught:
        await call
    return str(caught.value)
