"""The screen Conversations in a browser: search, filters, reading, forking and deleting."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, expect

from gateway.store import Store
from gateway.testing.fake_models.script import Refusal, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import serving
from tests.channels.websocket.test_page_search import store_talk
from tests.e2e.page_browser import chat
from tests.gateway.server.console.test_frame import FOREIGN, WIDTHS, is_narrow, violations
from tests.gateway.why.cases import Case, line

__all__ = ["FOREIGN"]

MARKUP = "Where is order 4471? <img src=x onerror=alert(1)>"
HREF = "/console/conversations"


HUNDRED_THOUSAND = """
WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 100000)
INSERT INTO sessions (id, channel, owner, address, title, indexed_title, seq, messages, input_tokens,
    output_tokens, context_from, created_at, updated_at)
SELECT 's' || n, 'web', CASE WHEN n = 1 THEN 'old' ELSE 'u' || (n % 1000) END, '{"channel":"web"}',
    'Talk ' || n, 'Talk ' || n, 0, 0, 0, 0, 0, n, 1700000000000 + n FROM number"""


FOUND = """
INSERT INTO search (n, session_id, words)
SELECT created_at * 2097152, id, 'talk ' || substr(id, 2) FROM sessions"""


def unexpected(error: BaseException) -> None:
    raise AssertionError from error


async def talk(case: Case, fake: FakeModels) -> None:
    """Let a tool run for one message, fail another one, and answer one in another room."""
    fake.then(Reply((Say("Let me look. "), Use("door")), "tools"), Reply((Say("It is *packed*."),)))
    await case.write(MARKUP)
    await case.settled()
    fake.then(Refusal(401, "wrong"))
    failed = await case.write("And the refund?")
    await case.settled()
    await case.write("Hello there", chat="garden")
    await case.settled()
    assert failed.message_id


async def test_a_conversation_is_found_read_forked_and_deleted(browser: Browser, tmp_path: Path) -> None:
    async with (
        FakeModels() as fake,
        line(tmp_path, fake) as case,
        chat(browser, f"{case.served.url}{HREF}", connected=False) as page,
    ):
        await expect(page.get_by_text("No conversations yet")).to_be_visible()
        await talk(case, fake)
        await page.reload()
        rows = page.get_by_role("table", name="List of conversations").locator("tbody:not([aria-hidden]) tr")
        await expect(rows).to_have_count(2)
        # Words and filters come from one field, and are in the address.
        await page.locator("body").press("/")
        await page.keyboard.type("order channel:line")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{case.served.url}{HREF}?channel=line&q=order")
        # The index follows the commits: the screen repeats the search until it has caught up.
        await expect(page.locator(".snippet mark").first).to_have_text("order")
        await page.keyboard.type(" channel:slack")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Nothing found for")).to_be_visible()
        await page.get_by_role("button", name="channel: slack").press("Delete")
        await expect(page).to_have_url(f"{case.served.url}{HREF}?q=order")
        await expect(page.get_by_role("searchbox", name="Search messages and titles")).to_be_focused()
        await page.get_by_role("table", name="Matches").locator("a").first.press("Enter")
        said = page.locator(".turn")
        await expect(said).to_have_count(2)
        await expect(said.nth(0).locator(".bubble.mine")).to_have_text(MARKUP)
        assert await page.locator("#main img").count() == 0
        call = said.nth(0).locator("details")
        await call.locator("summary").press("Enter")
        await expect(call).to_contain_text("open")
        await expect(said.nth(0).get_by_role("group", name="What this turn did")).to_contain_text("door")
        await expect(said.nth(1)).to_contain_text("No answer")
        async with case.served.http.get(
            f"{case.served.url}/api/sessions/line:bot:kitchen/export?format=markdown&branch=shown"
        ) as exported:
            assert "4471" in await exported.text()
        await page.get_by_role("button", name="Export").press("Enter")
        await expect(page.get_by_role("menuitem", name="Markdown")).to_be_focused()
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="Fork").dblclick()
        await expect(page.get_by_text("forked", exact=True)).to_be_visible()
        _, listed = await case.served.ask("GET", "/api/sessions")
        assert len([one for one in listed["sessions"] if one["parent"]]) == 1
        delete = page.get_by_role("button", name="Delete")
        for refusal in ("Escape", "Enter"):  # the focus is at Cancel
            await delete.press("Enter")
            await expect(page.get_by_role("dialog")).to_be_visible()
            await page.keyboard.press(refusal)
            await expect(delete).to_be_focused()
        await delete.press("Enter")
        await page.get_by_role("dialog").get_by_role("button", name="Delete").press("Enter")
        await expect(page.get_by_text("No conversation is open")).to_be_visible()
        await expect(rows).to_have_count(2)
        # The row of the open conversation is marked, also when its address was opened.
        addresses = await rows.locator("a").evaluate_all("(all) => all.map((a) => a.getAttribute('href'))")
        for address in addresses:
            await page.goto(case.served.url + address)
            await expect(page.locator("tr[aria-current] a")).to_have_attribute("href", address)
        await page.goto(f"{case.served.url}{HREF}/line:bot:kitchen")
        await page.get_by_role("link", name="Why no answer").press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_contain_text("OpenAI rejected the API key")


async def test_a_day_begins_where_the_viewer_is(browser: Browser, tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as served,
        chat(browser, f"{served.url}{HREF}", connected=False, timezone_id="Asia/Tokyo") as page,
    ):
        async with page.expect_request(
            lambda request: "since=" in request.url and "/api/" in request.url
        ) as asked:
            await page.goto(f"{served.url}{HREF}?since=2026-11-01")
        midnight = datetime(2026, 10, 31, 15, tzinfo=UTC)
        assert f"since={round(midnight.timestamp() * 1000)}" in (await asked.value).url


async def test_filters_and_orders_are_the_servers_and_in_the_address(
    browser: Browser, tmp_path: Path
) -> None:
    async with FakeModels() as fake, line(tmp_path, fake) as case:
        await talk(case, fake)
        base = f"{case.served.url}{HREF}"
        async with chat(browser, f"{base}?person=ada&error=Auth", connected=False) as page:
            rows = page.get_by_role("table", name="List of conversations").locator(
                "tbody:not([aria-hidden]) tr"
            )
            await expect(rows).to_have_count(1)
            await expect(rows.first).to_contain_text("4471")
            await page.get_by_role("button", name="error: Auth").press("Enter")
            await expect(page).to_have_url(f"{base}?person=ada")
            await expect(rows).to_have_count(2)
            await page.get_by_role("link", name="Errors").press("Enter")
            await expect(page).to_have_url(f"{base}?person=ada&sort=errors")
            await expect(rows).to_have_count(1)
            await page.reload()
            await expect(page.get_by_role("link", name="Errors")).to_have_attribute("aria-current", "true")
            await expect(rows).to_have_count(1)
            await page.go_back()
            await expect(rows).to_have_count(2)
            await page.locator("body").press("/")
            await page.keyboard.type("person:nobody")
            await page.keyboard.press("Enter")
            await expect(page.get_by_text("Nothing found for")).to_be_visible()


async def test_a_hundred_thousand_conversations_scroll_with_two_hundred_rows(
    browser: Browser, tmp_path: Path
) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/trunkline.db", "relaxed", unexpected)
    await store.close()
    with closing(sqlite3.connect(tmp_path / "trunkline.db")) as connection, connection:
        connection.execute(HUNDRED_THOUSAND)
    async with (
        serving(tmp_path) as served,
        chat(browser, f"{served.url}{HREF}", connected=False) as page,
    ):
        table = page.get_by_role("table", name="List of conversations")
        rows = table.locator("tbody:not([aria-hidden]) tr")
        await expect(rows.first).to_contain_text("Talk 100000")
        await page.keyboard.press("j")
        for end in range(500, 5_001, 500):
            await page.keyboard.press("End")
            last = rows.filter(has=page.locator(":focus"))
            await expect(last).to_have_attribute("aria-rowindex", str(end + 1))
            await expect(page.locator(f"[aria-rowindex='{end + 2}']")).to_be_attached()
            assert await rows.count() <= 200
        await expect(last).to_contain_text("Talk 95001")
        # Of the oldest: the server reads on until it has found them.
        await page.goto(f"{served.url}{HREF}?person=u7")
        await expect(table).to_have_attribute("aria-rowcount", "101")
        await page.goto(f"{served.url}{HREF}?channel=web&person=old")
        await expect(rows).to_have_count(1)
        await expect(rows.first).to_contain_text("Talk 1")


async def test_a_hundred_thousand_matches_scroll_with_two_hundred_rows(
    browser: Browser, tmp_path: Path
) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/trunkline.db", "relaxed", unexpected)
    await store.close()
    with closing(sqlite3.connect(tmp_path / "trunkline.db")) as connection, connection:
        connection.execute(HUNDRED_THOUSAND)
        connection.execute(FOUND)
        connection.execute("UPDATE sessions SET title = 'Talk talk talk' WHERE id = 's99500'")
        connection.execute("UPDATE sessions SET indexed_title = title")
        connection.execute("UPDATE search SET words = 'talk talk talk' WHERE session_id = 's99500'")
        connection.execute("INSERT INTO search_words (search_words) VALUES ('rebuild')")
    async with (
        serving(tmp_path) as served,
        chat(browser, f"{served.url}{HREF}?q=talk", connected=False) as page,
    ):
        table = page.get_by_role("table", name="Matches")
        rows = table.locator("tbody:not([aria-hidden]) tr")
        await expect(rows.first).to_contain_text("Talk 100000")
        await expect(rows.first.locator("mark")).to_have_text("Talk")
        await page.keyboard.press("j")
        for end in range(300, 3_001, 300):
            await page.keyboard.press("End")
            last = rows.filter(has=page.locator(":focus"))
            await expect(last).to_have_attribute("aria-rowindex", str(end + 1))
            await expect(page.locator(f"[aria-rowindex='{end + 2}']")).to_be_attached()
            assert await rows.count() <= 200
        await expect(page.get_by_role("status").filter(has_text="matches and more")).to_be_visible()
        # The order is in the address, and a conversation opens beside the list.
        await page.get_by_role("link", name="Best match").press("Enter")
        await expect(page).to_have_url(f"{served.url}{HREF}?q=talk&sort=match")
        await expect(rows.first).to_contain_text("Talk talk talk")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(f"{served.url}{HREF}/s99500?q=talk&sort=match")
        # An order that a search does not have is the default one.
        await page.goto(f"{served.url}{HREF}?q=talk&sort=cost")
        await expect(page.get_by_role("link", name="Newest")).to_have_attribute("aria-current", "true")
        await expect(rows.first).to_contain_text("Talk 100000")


async def test_conversations_are_accessible_in_german_at_every_width(
    browser: Browser, foreign: Path, tmp_path: Path
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"locale": "de-AT", "bypass_csp": True}
    async with FakeModels() as fake, line(tmp_path, fake) as case:
        await talk(case, fake)
        async with chat(
            browser, f"{case.served.url}{HREF}?q=order", connected=False, expected="401", **how
        ) as page:
            await expect(page.locator(".snippet mark").first).to_be_visible()
            for session in ("", "/line:bot:kitchen"):
                await page.goto(f"{case.served.url}{HREF}{session}")
                await expect(page.get_by_role("heading", name="Unterhaltungen")).to_be_visible()
                if session:
                    await expect(page.locator(".turn")).to_have_count(2)
                for width in WIDTHS:
                    await page.set_viewport_size({"width": width, "height": 800})
                    assert await is_narrow(page), width
                    if not session and width != 320:
                        shown = "(one) => one.scrollWidth <= one.clientWidth"
                        assert await page.locator(".table-scroll").evaluate(shown), width
                    if width in (320, 1280):
                        assert await violations(page, axe) == [], width


async def test_a_phone_shows_whole_titles_and_the_cost_below(browser: Browser, tmp_path: Path) -> None:
    title = "Plan a journey from Hamburg to Vienna with all stops"
    phone: dict[str, Any] = {"viewport": {"width": 360, "height": 740}}
    async with serving(tmp_path) as served:
        await served.ask("POST", "/api/sessions/s/messages", json={"text": title})
        await served.idle("s")
        async with chat(browser, f"{served.url}{HREF}", connected=False, **phone) as page:
            shown = page.locator(".talks-list .row-open b")
            await expect(shown).to_have_text(title)
            assert await shown.evaluate("(one) => one.scrollWidth <= one.clientWidth")
            assert await shown.evaluate("(one) => one.clientWidth") > 150
            await expect(page.locator(".talks-list .row-open")).to_contain_text("2 messages · $0")
            await expect(page.get_by_role("columnheader")).to_have_text(["Conversation", "Last activity"])


async def test_a_long_conversation_is_read_back_to_its_beginning(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await store_talk(served, 450)
        async with chat(browser, f"{served.url}{HREF}/long", connected=False) as page:
            turns, earlier = page.locator(".turn"), page.get_by_role("button", name="Show earlier messages")
            await expect(turns).to_have_count(100)
            top = turns.filter(has_text="Line 251 ")
            await expect(top).to_have_count(1)
            await earlier.focus()
            height = "(one) => one.getBoundingClientRect().top"
            place = await top.evaluate(height)
            await page.keyboard.press("Enter")
            await expect(turns).to_have_count(200)
            await expect(earlier).to_be_focused()
            assert abs(await top.evaluate(height) - place) <= 1
            await page.keyboard.press("Enter")
            await expect(turns).to_have_count(225)
            await expect(earlier).to_have_count(0)
            await expect(page.locator(".turns")).to_be_focused()
            await expect(turns.first).to_contain_text("Line 1 ")


async def test_answers_are_shown_as_people_see_them(browser: Browser, tmp_path: Path) -> None:
    async with FakeModels() as fake, line(tmp_path, fake) as case:
        fake.then(Reply((Say(f"**Bold** and {MARKUP}\n\n```python\nprint(1)\n```"),)))
        await case.write("*plain*")
        await case.settled()
        url = f"{case.served.url}{HREF}/line:bot:kitchen"
        async with chat(browser, url, connected=False) as page:
            answer = page.locator(".turn .bubble.prose")
            await expect(answer.locator("strong")).to_have_text("Bold")
            await expect(answer).to_contain_text(MARKUP)
            await expect(answer.locator("figure.code code")).to_contain_text("print(1)")
            await expect(answer.get_by_role("button", name="Copy code")).to_be_visible()
            await expect(page.locator(".turn .bubble.mine")).to_have_text("*plain*")
            assert await page.locator("#main img").count() == 0
