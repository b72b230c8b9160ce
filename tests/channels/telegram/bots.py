"""Bot of python-telegram-bot connected to the fake platform, and the errors that it gets."""

from __future__ import annotations

from collections.abc import Awaitable

import pytest
from telegram import Bot
from telegram.error import BadRequest

from channels.telegram.fake import FakeTelegram


def bot_of(fake: FakeTelegram) -> Bot:
    """Return a client of the fake platform, as a context manager."""
    return Bot(fake.token, base_url=fake.base_url, base_file_url=fake.base_file_url)


async def refused(call: Awaitable[object], error: type[Exception] = BadRequest) -> str:
    """Return the error of a refused call; the library changes its case."""
    with pytest.raises(error) as caught:
        await call
    return str(caught.value)
