"""Calls take turns within Discord's total limit; optional calls are left out before it is reached."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from channels.discord.api import Api, RateLimited
from channels.discord.fake import FakeDiscord, relaxed

TYPING = "/channels/{channel_id}/typing"


async def typing(api: Api, chats: Sequence[int]) -> int:
    """Return in how many of these chats a typing call is made, all at once."""
    calls = (api.call("POST", TYPING, channel_id=str(chat), optional=True) for chat in chats)
    told = await asyncio.gather(*calls, return_exceptions=True)
    failed = [one for one in told if isinstance(one, BaseException)]
    assert all(isinstance(one, RateLimited) for one in failed)
    return len(chats) - len(failed)


@pytest.mark.parametrize(("pace", "shown"), [(1.0, 20), (0.1, 2), (100.0, 40)])
async def test_typing_calls_are_left_out_where_answers_need_the_rate(pace: float, shown: int) -> None:
    async with FakeDiscord(figures=relaxed()) as fake:
        api, chats = Api(fake.api_url, lambda: fake.token, pace), [fake.dm(f"user{n}") for n in range(40)]
        async with api.opened():
            assert await typing(api, chats) == shown
            if shown < 5:
                return
            told = await api.place(
                "POST", "/channels/{channel_id}/messages", {"content": "hello"}, channel_id=str(chats[0])
            )
            assert told["content"] == "hello"
