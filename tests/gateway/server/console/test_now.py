"""The screen Now in a browser: live changes, shared by tabs, held while read, dated without a connection."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, expect

from gateway.testing.fake_models.script import Gate, Refusal, Reply, Say
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import serving
from tests.e2e.page_browser import chat
from tests.gateway.server.console.test_frame import FOREIGN, WIDTHS, is_narrow, violations

__all__ = ["FOREIGN"]

MARKUP = "<img src=x onerror=alert(1)> what is that?"


def streams_of(page: Page) -> list[str]:
    """Return the addresses of the streams that a page opens from now on."""
    opened: list[str] = []
    page.on("request", lambda one: opened.append(one.url) if "/api/now/events" in one.url else None)
    return opened


async def test_now_is_live_in_all_tabs_by_one_stream(browser: Browser, tmp_path: Path) -> None:
    done = asyncio.Event()
    async with AsyncExitStack() as stack, FakeModels() as fake:
        gateway = await stack.enter_async_context(AsyncExitStack())
        served = await gateway.enter_async_context(serving(tmp_path, fake=fake))
        page = await stack.enter_async_context(
            chat(browser, f"{served.url}/console/now", connected=False, expected="api/now")
        )
        await expect(page.get_by_role("heading", level=1)).to_have_text("Everything works.")
        await expect(page.get_by_role("status", name="State of the data")).to_have_text("Live")
        await expect(page.get_by_text("Nothing is being answered")).to_be_visible()
        second = await page.context.new_page()
        opened = streams_of(second)
        await second.goto(page.url)
        await expect(second.get_by_text("Nothing is being answered")).to_be_visible()

        client = await gateway.enter_async_context(served.socket())
        fake.then(Reply((Say("One"), Gate(done), Say(" two."))), Refusal(401, "wrong"))
        await client.say(MARKUP, session="s1")
        for tab in (page, second):
            row = tab.get_by_role("table", name="Running").get_by_role("row", name="Writes the answer")
            await expect(row).to_contain_text(MARKUP)
            assert await tab.locator("#main .running img").count() == 0
        assert opened == []
        # The tab with the stream is closed: the other one opens its own, and goes on.
        await page.close()
        page = second
        # A paused list does not move, and says what it holds back.
        await page.keyboard.press("p")
        await expect(page.get_by_role("button", name="Pause")).to_have_attribute("aria-pressed", "true")
        done.set()
        await client.until("complete")
        await client.say("And now?", session="s2")
        await expect(page.get_by_role("heading", level=1)).to_contain_text("1 thing needs you.")
        needs = page.get_by_role("region", name="Needs you").get_by_role("listitem")
        await expect(needs).to_contain_text("OpenAI rejects a key")
        await expect(page.get_by_text("paused, 2 new")).to_be_visible()
        await expect(page.get_by_role("table", name="Running")).to_contain_text(MARKUP)
        assert len(opened) == 1
        await page.keyboard.press("p")
        await expect(page.get_by_text("Nothing is being answered")).to_be_visible()
        feed = page.get_by_role("region", name="Activity").get_by_role("listitem")
        await expect(feed).to_have_count(2)
        await expect(feed.first).to_contain_text("got no answer")
        await gateway.aclose()
        await expect(page.get_by_role("status", name="State of the data")).to_contain_text(
            "Connection lost · as of"
        )
        await expect(needs).to_contain_text("OpenAI rejects a key")


async def test_now_is_accessible_in_german_at_every_width(
    browser: Browser, foreign: Path, tmp_path: Path
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"locale": "de-AT", "bypass_csp": True}
    done = asyncio.Event()
    async with (
        FakeModels() as fake,
        serving(tmp_path, fake=fake) as served,
        served.socket() as client,
        chat(browser, f"{served.url}/console/now", connected=False, **how) as page,
    ):
        fake.then(Refusal(401, "wrong"), Reply((Say("One"), Gate(done))))
        await client.say("Hello", session="s1")
        await client.until("complete")
        await client.say("Hello again", session="s2")
        await expect(page.get_by_role("table", name="Läuft")).to_contain_text("Hello again")
        await expect(page.get_by_role("heading", level=1)).to_contain_text("1 Sache braucht dich.")
        need = page.get_by_role("region", name="Braucht dich").get_by_role("listitem")
        await expect(need).to_contain_text("OpenAI lehnt einen Schlüssel ab")
        await expect(need).to_contain_text("antworten andere Modelle oder keines")
        await expect(need.get_by_role("link")).to_have_text("Schlüssel ersetzen")
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            assert await is_narrow(page), width
            if width in (320, 1280):
                assert await violations(page, axe) == [], width
        done.set()
        await client.until("complete")


async def test_a_state_that_cannot_be_read_is_a_failure_and_durations_are_whole(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        serving(tmp_path) as served,
        chat(browser, f"{served.url}/console/now", connected=False, expected="status of 500") as page,
    ):
        # A state that was never read is no state that still loads.
        await page.route("**/api/now", lambda route: route.fulfill(status=500, json={"message": "no luck"}))
        await page.reload()
        await expect(page.get_by_role("alert")).to_contain_text("no luck")
        await expect(page.locator(".loading")).to_have_count(0)
        await page.route("**/api/now", lambda route: route.fulfill(content_type="text/html", body="Sign in"))
        await page.reload()
        await expect(page.get_by_role("alert")).to_contain_text("is not the gateway (HTTP status 200)")
        await page.unroute("**/api/now")
        await expect(page.get_by_text("Nothing is being answered")).to_be_visible()
        await expect(page.get_by_role("alert")).to_have_count(0)
        lasted = """import('/console/page/amounts.js').then(
            ({ lasted }) => [59_960, 119_700, 3_599_900].map(lasted))"""
        assert await page.evaluate(lasted) == ["1 min 0 s", "2 min 0 s", "1 h 0 min"]
