"""Files of the pages: served from memory, compressed, and kept by browsers; other files are not served."""

from __future__ import annotations

import asyncio
import gzip
import re
from pathlib import Path

import aiohttp
import pytest
from playwright.async_api import Browser, Route, expect

import channels.websocket
from gateway.server.pages.compact import compact
from gateway.testing.served import serving
from tests.e2e.page_browser import chat

APP = compact(Path(channels.websocket.__file__).parent / "page" / "app.js")
PAGES = {"/": "/page/", "/console": "/console/page/"}


def without_digests(content: bytes) -> bytes:
    """Return a script as it is in its file."""
    return re.sub(rb"~[0-9a-f]{12}/", b"", content)


async def test_a_file_that_a_browser_has_is_not_sent_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, aiohttp.ClientSession() as http:
        async with http.get(f"{server.url}/page/app.js") as first:
            content = await first.read()
        assert (first.status, first.headers["Cache-Control"]) == (200, "no-cache")
        assert first.content_type in ("text/javascript", "application/javascript")
        assert without_digests(content) == APP != content
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
        assert without_digests(gzip.decompress(content) if packed else content) == APP
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
            "performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/app.js'))"
            ".map(({ encodedBodySize, decodedBodySize }) => [encodedBodySize, decodedBodySize])"
        )
        assert len(sizes) == 1
        assert len(APP) < sizes[0][1] < 2 * len(APP)
        assert sizes[0][0] < sizes[0][1] / 2


@pytest.mark.parametrize("document", PAGES)
async def test_a_document_names_all_that_the_page_starts_with(tmp_path: Path, document: str) -> None:
    async with serving(tmp_path) as server, aiohttp.ClientSession(server.url) as http:
        async with http.get(document) as answer:
            assert answer.headers["Cache-Control"] == "no-cache"
            text = await answer.text()
        [styles] = re.findall(r'<link rel="stylesheet" href="([^"]+)">', text)
        modules = re.findall(r'<script type="module" src="([^"]+)">', text)
        modules += re.findall(r'<link rel="modulepreload" href="([^"]+)">', text)
        assert len(set(modules)) == len(modules) >= 20
        for address in (styles, *modules):
            async with http.get(address) as answer:
                assert answer.headers["Cache-Control"] == "max-age=31536000, immutable"
                content = await answer.text()
            imported = re.findall(r'^(?:import|\}) ?.*?"(\./|/)(.+)";$', content, re.MULTILINE)
            base = address.rpartition("/")[0] + "/"
            assert {(base if root == "./" else root) + name for root, name in imported} <= {*modules}
        async with http.get(styles) as answer:
            style = await answer.text()
        assert ".brand" in style
        assert "#skip" in style


@pytest.mark.parametrize("root", [*PAGES.values(), "/shared/"])
async def test_only_a_file_of_that_digest_is_kept(tmp_path: Path, root: str) -> None:
    name = "dom.js" if root == "/shared/" else "app.js"
    async with serving(tmp_path) as server, aiohttp.ClientSession(server.url) as http:
        # The page was opened before the gateway was updated: it gets what there is.
        for address in (f"{root}{name}", f"{root}~0123456789ab/{name}"):
            async with http.get(address) as answer:
                assert (answer.status, answer.headers["Cache-Control"]) == (200, "no-cache")
        async with http.get(f"{root}~0123456789ab/missing.js") as answer:
            assert answer.status == 404


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("document", PAGES)
async def test_the_frame_is_painted_before_scripts_arrive(
    browser: Browser, tmp_path: Path, document: str, width: int
) -> None:
    released = asyncio.Event()

    async def hold(route: Route) -> None:
        await released.wait()
        await route.continue_()

    async with serving(tmp_path) as server, await browser.new_context() as context:
        page = await context.new_page()
        await page.set_viewport_size({"width": width, "height": 720})
        await page.route("**/app.js", hold)
        await page.goto(f"{server.url}{document}", wait_until="commit")
        await expect(page.get_by_text("Trunkline").filter(visible=True)).to_have_count(1)
        painted = "() => performance.getEntriesByName('first-contentful-paint').length"
        await page.wait_for_function(painted)
        released.set()
        await expect(page.get_by_role("main")).to_be_visible()
        await expect(page.locator("button:visible").first).to_be_visible()
