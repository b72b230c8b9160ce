"""Files of the page: served from memory, compressed, and revalidated; other files are not served."""

from __future__ import annotations

import gzip
from pathlib import Path

import aiohttp
import pytest
from playwright.async_api import Browser

import channels.websocket
from gateway.server.pages.compact import compact
from gateway.testing.served import serving
from tests.e2e.page_browser import chat

APP = compact(Path(channels.websocket.__file__).parent / "page" / "app.js")


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


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1.0, GZIP;q=0.5", True),
        ("*", True),
        ("identity", False),
        ("", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000, *", False),
    ],
)
async def test_a_file_is_compressed_for_a_browser_that_accepts_it(
    tmp_path: Path, accepted: str, packed: bool
) -> None:
    async with serving(tmp_path) as server, aiohttp.ClientSession(auto_decompress=False) as http:
        headers = {"Accept-Encoding": accepted}
        async with http.get(f"{server.url}/page/app.js", headers=headers) as answer:
            content = await answer.read()
        assert answer.headers.get("Content-Encoding") == ("gzip" if packed else None)
        assert answer.headers["Vary"] == "Accept-Encoding"
        assert int(answer.headers["Content-Length"]) == len(content)
        assert (gzip.decompress(content) if packed else content) == APP
        again = headers | {"If-None-Match": answer.headers["ETag"]}
        async with http.get(f"{server.url}/page/app.js", headers=again) as known:
            assert (known.status, known.headers["Vary"]) == (304, "Accept-Encoding")
        # The other form of the file is another content, so its tag is another one.
        other = again | {"Accept-Encoding": "identity" if packed else "gzip"}
        async with http.get(f"{server.url}/page/app.js", headers=other) as fresh:
            assert fresh.status == 200


async def test_a_picture_is_not_compressed_again(tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as server,
        aiohttp.ClientSession() as http,
        http.get(f"{server.url}/page/icon-192.png", headers={"Accept-Encoding": "gzip"}) as answer,
    ):
        assert "Content-Encoding" not in answer.headers
        assert "Vary" not in answer.headers
        assert (await answer.read()).startswith(b"\x89PNG")


async def test_a_browser_gets_the_page_compressed(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as server, chat(browser, server.url) as page:
        sizes = await page.evaluate(
            "performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/page/app.js'))"
            ".map(({ encodedBodySize, decodedBodySize }) => [encodedBodySize, decodedBodySize])"
        )
        assert sizes == [[len(gzip.compress(APP, mtime=0)), len(APP)]]
