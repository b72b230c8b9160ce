"""Files are loaded from Slack alone, whatever it is redirected to: each step is shown the token."""

from __future__ import annotations

import pytest
from aiohttp import web

from channels.slack.api import Api, RefusedError
from tests.gateway.test_fetching import site, to


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
        with pytest.raises(RefusedError, match="in circles"):
            await Api("xoxb-1", slack).fetch(f"{slack}/file", 1000)
