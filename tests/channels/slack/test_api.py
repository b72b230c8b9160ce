"""Rate limits of the Web API, and downloads, which show the token to Slack alone."""

from __future__ import annotations

import pytest
from aiohttp import web

from channels.slack.api import Api, RateLimiter, RefusedError
from tests.gateway.test_fetching import site, to


async def test_signs_are_left_out_when_there_is_no_room_for_them() -> None:
    limiter = RateLimiter()
    shown = [await limiter.try_acquire("reactions.remove") for _ in range(21)]
    assert shown == [*[True] * 20, False]
    assert await limiter.try_acquire("reactions.add")


async def test_a_workspace_that_is_granted_more_is_called_more_often() -> None:
    limiter = RateLimiter(10)
    assert [await limiter.try_acquire("reactions.remove") for _ in range(200)] == [True] * 200
    assert not await limiter.try_acquire("reactions.remove")


async def test_calls_that_are_owed_count_as_made() -> None:
    limiter = RateLimiter()
    assert limiter.has_capacity("chat.update", 0.5, reserved=24)
    assert not limiter.has_capacity("chat.update", 0.5, reserved=25)


async def test_a_method_that_is_to_wait_holds_up_no_other() -> None:
    limiter = RateLimiter()
    limiter.hold("chat.update", 60)
    assert not await limiter.try_acquire("chat.update")
    assert await limiter.try_acquire("chat.postMessage")
    await limiter.acquire("chat.postMessage", "C1")


async def test_what_may_be_left_out_leaves_room_for_what_may_not() -> None:
    now = 0.0
    limiter = RateLimiter(clock=lambda: now)
    for _ in range(25):
        assert limiter.has_capacity("chat.update", 0.5)
        await limiter.acquire("chat.update")
    assert not limiter.has_capacity("chat.update", 0.5)
    assert limiter.has_capacity("chat.update", 0.8)
    now = 61.0
    assert limiter.has_capacity("chat.update", 0.5)
    limiter.hold("chat.update", 60)
    assert not limiter.has_capacity("chat.update", 0.5)


async def test_a_spare_turn_is_taken_of_all_methods_or_of_none() -> None:
    limiter = RateLimiter()
    spared = 0
    while await limiter.try_acquire("reactions.add", "reactions.remove"):
        spared += 1
    assert spared == 20
    assert await limiter.try_acquire("reactions.add")
    assert not await limiter.try_acquire("reactions.add", "reactions.remove")


async def test_a_file_that_is_moved_out_of_slack_is_not_loaded() -> None:
    asked: list[str] = []

    async def elsewhere(request: web.Request) -> web.Response:
        asked.append(request.headers.get("Authorization", ""))
        return web.Response(body=b"secret")

    async with site(elsewhere) as other, site(to(f"{other}/file")) as slack:
        for url in (f"{slack}/file", f"{other}/file", "http://169.254.169.254/"):
            with pytest.raises(RefusedError, match="outside of Slack"):
                await Api("xoxb-1", slack).fetch(url, 1000)
    assert asked == []


async def test_a_file_that_is_moved_within_slack_is_followed_but_not_for_ever() -> None:
    async def moved(request: web.Request) -> web.Response:
        if request.path == "/file":
            return web.Response(status=302, headers={"Location": "/there"})
        return web.Response(text=request.headers["Authorization"])

    async with site(moved) as slack:
        assert await Api("xoxb-1", slack).fetch(f"{slack}/file", 1000) == b"Bearer xoxb-1"
    async with site(to("/again")) as slack:
        with pytest.raises(RefusedError, match="too many redirects"):
            await Api("xoxb-1", slack).fetch(f"{slack}/file", 1000)
