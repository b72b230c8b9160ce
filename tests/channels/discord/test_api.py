"""Calls take turns within Discord's limit on all of them together; what can be left out is, before that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from channels.discord.api import Api, Later
from channels.discord.fake import FakeDiscord, relaxed

TYPING = "/channels/{channel_id}/typing"


async def typing(api: Api, rooms: Sequence[int]) -> int:
    """In how many of so many rooms at once a sign is shown."""
    calls = (api.call("POST", TYPING, channel_id=str(room), spare=True) for room in rooms)
    told = await asyncio.gather(*calls, return_exceptions=True)
    failed = [one for one in told if isinstance(one, BaseException)]
    assert all(isinstance(one, Later) for one in failed)
    return len(rooms) - len(failed)


@pytest.mark.parametrize(("pace", "shown"), [(1.0, 20), (0.1, 2), (100.0, 40)])
async def test_signs_are_left_out_where_answers_need_the_room(pace: float, shown: int) -> None:
    async with FakeDiscord(figures=relaxed()) as fake:
        api, rooms = Api(fake.api_url, lambda: fake.token, pace), [fake.dm(f"user{n}") for n in range(40)]
        async with api.opened():
            assert await typing(api, rooms) == shown
            if shown < 5:
                return
            told = await api.place(
                "POST", "/channels/{channel_id}/messages", {"content": "hello"}, channel_id=str(rooms[0])
            )
            assert told["content"] == "hello"
