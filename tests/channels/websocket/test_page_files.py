"""Files of the page: served from memory, revalidated with each request; other files are not served."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

import channels.websocket
from gateway.testing.served import serving

APP = (Path(channels.websocket.__file__).parent / "page" / "app.js").read_bytes()


async def test_a_file_that_a_browser_has_is_not_sent_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, aiohttp.ClientSession() as http:
        async with http.get(f"{server.url}/page/app.js") as first:
            content = await first.read()
        assert (first.status, first.headers["Cache-Control"]) == (200, "no-cache")
        assert first.content_type in ("text/javascript", "application/javascript")
        assert content == APP
        known = {"If-None-Match": first.headers["ETag"]}
        async with http.get(f"{server.url}/page/app.js", headers=known) as again:
            assert (again.status, await again.read()) == (304, b"")
        async with http.get(f"{server.url}/page/app.js", headers={"If-None-Match": '"other"'}) as other:
            assert await other.read() == content


@pytest.mark.parametrize("name", ["..%2fchannel.py", "missing.js", "app.js%00"])
async def test_nothing_but_the_page_is_served(tmp_path: Path, name: str) -> None:
    async with (
        serving(tmp_path) as server,
        aiohttp.ClientSession() as http,
        http.get(f"{server.url}/page/{name}") as answer,
    ):
        assert answer.status == 404
