"""Calls keep Telegram's rate limits; answers go before previews."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from channels.telegram.limits import RateLimiter


class Skipping:
    """Clock that skips short waits."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object], /) -> Any:
        if when - self.now < 1:
            self.now = max(self.now, when)
            asyncio.get_running_loop().call_soon(callback)
        return self

    def cancel(self) -> None: ...


def limiter_of(pace: float = 1.0) -> RateLimiter:
    return RateLimiter(pace, Skipping())


async def crowd(pace: RateLimiter, count: int) -> float:
    """Write to this many chats at once. Returns the seconds until a preview in another chat is allowed."""
    for number in range(count):
        async with pace.turn(str(number)):
            pass
    return pace.wait("99")


async def test_a_burst_is_followed_by_a_steady_flow() -> None:
    assert await crowd(limiter_of(), 9) == pytest.approx(0, abs=1e-6)
    assert 0.03 < await crowd(limiter_of(), 10) < 0.04


async def test_a_bot_that_is_granted_more_writes_more_often() -> None:
    assert await crowd(limiter_of(3.0), 29) == pytest.approx(0, abs=1e-6)
    assert await crowd(limiter_of(3.0), 30) > 1e-3
    assert await crowd(limiter_of(0.5), 5) > 1e-3


async def test_previews_in_a_group_leave_capacity_for_its_answers() -> None:
    pace, group = limiter_of(), "-5"
    for _ in range(4):
        async with pace.turn(group, preview=True):
            pass
    assert pace.wait(group) == 0
    async with pace.turn(group, preview=True):
        pass
    assert pace.wait(group) > 0
    assert pace.wait("7") == 0


async def test_a_held_chat_does_not_delay_others() -> None:
    pace = limiter_of()
    pace.hold("7", 30)
    assert (pace.held("7"), pace.held("8"), pace.wait("8")) == (30, 0, 0)
