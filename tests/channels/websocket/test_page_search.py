"""A result of the search opens its conversation at the message, also if the message is not loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from gateway.contract.channel import Address
from gateway.contract.messages import Message, TextPart
from gateway.session.log import SessionRow, put_message
from gateway.testing.served import Served, serving
from tests.channels.websocket.test_page_axe import violations
from tests.e2e.page_browser import answers, chat, message_field, say

pytestmark = pytest.mark.slow

LONG_AGO = 1_700_000_000_000
MANY = 800


async def store_talk(served: Served, count: int, **needles: str) -> None:
    """Store a conversation of so many messages; ``m40="needle"`` is a word of the 40th."""
    row = SessionRow(
        id="long",
        channel="websocket",
        owner="local",
        address=Address("websocket"),
        title="A long talk",
        seq=count,
        messages=count,
        context_from=count,
        created_at=LONG_AGO,
        updated_at=LONG_AGO + count,
    )
    ops = [row.put()]
    for n in range(1, count + 1):
        text = f"Line {n} {needles.get(f'm{n}', '')}\n\n" + "and more of it\n\n" * 3
        role: Any = "user" if n % 2 else "assistant"
        message = Message(
            session_id="long", role=role, parts=(TextPart(text),), id=f"m{n}", created_at=LONG_AGO + n
        )
        ops += put_message(message, n)
    await served.gateway.parts.store.write(*ops)
    await served.gateway.parts.conversations.search.catch_up()


async def open_hit(page: Page, word: str, *, phone: bool) -> None:
    if phone:
        await page.get_by_role("button", name="Conversations").click()
    await page.get_by_role("searchbox").fill(word)
    results = page.get_by_role("region", name="Search results")
    await results.get_by_role("link").filter(has_text=word).click()


def message(page: Page, n: int) -> Locator:
    return page.locator(f"tl-message[data-id=m{n}]")


@pytest.mark.parametrize("width", [1280, 390])
async def test_a_result_opens_the_conversation_at_its_message(
    browser: Browser, foreign: Path, tmp_path: Path, width: int
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    size: dict[str, Any] = {"viewport": {"width": width, "height": 800}, "bypass_csp": True}
    async with serving(tmp_path) as served:
        await store_talk(served, 60, m20="haystack", m41="pitchfork")
        async with chat(browser, served.url, **size) as page:
            await open_hit(page, "haystack", phone=width < 800)
            await expect(message(page, 20)).to_be_in_viewport()
            await expect(message(page, 20)).to_be_focused()
            await expect(page.locator("[data-found]")).to_have_count(1)
            await expect(message(page, 60)).not_to_be_in_viewport()
            assert await violations(page, axe) == []
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await expect(page.locator("[data-found]")).to_have_count(0)
            await open_hit(page, "pitchfork", phone=width < 800)
            await expect(message(page, 41)).to_be_in_viewport()
            # The same result again, after the user has gone elsewhere in the conversation.
            await page.get_by_role("button", name="Jump to latest").click()
            await expect(message(page, 41)).not_to_be_in_viewport()
            await open_hit(page, "pitchfork", phone=width < 800)
            await expect(message(page, 41)).to_be_in_viewport()
            await page.reload()
            await expect(message(page, 41)).to_be_in_viewport()


async def test_a_message_that_is_older_than_the_loaded_ones_is_shown_with_those_around_it(
    browser: Browser, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served:
        await store_talk(served, MANY, m120="haystack")
        async with chat(browser, served.url + "/#/s/long") as page:
            await expect(message(page, MANY)).to_be_in_viewport()
            await expect(message(page, 120)).to_have_count(0)
            await open_hit(page, "haystack", phone=False)
            await expect(message(page, 120)).to_be_in_viewport()
            await expect(message(page, 70)).to_have_count(1)
            await expect(message(page, 69)).to_have_count(0)
            await expect(page.get_by_text("Messages in between are not shown")).to_have_count(1)
            await expect(message(page, MANY)).to_have_count(1)
            await message_field(page).focus()
            await say(page, "go on")
            await expect(answers(page).last).to_contain_text("You said")
            await expect(answers(page).last).to_be_in_viewport()


async def test_a_message_that_is_gone_is_named_in_a_notice(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await store_talk(served, 3)
        async with chat(browser, served.url + "/#/s/long?m=never") as page:
            await expect(page.locator("#notice")).to_contain_text("not in the conversation any more")
            await expect(message(page, 3)).to_be_in_viewport()


async def test_more_results_are_asked_for_once(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await store_talk(served, 50)
        async with chat(browser, served.url) as page:
            await page.get_by_role("searchbox").fill("line")
            hits = page.get_by_role("region", name="Search results").get_by_role("listitem")
            await expect(hits.filter(has_text="more of it")).to_have_count(30)
            asked: list[str] = []
            page.on("request", lambda one: asked.append(one.url) if "cursor=" in one.url else None)
            await page.get_by_role("button", name="More results").dblclick()
            await expect(hits.filter(has_text="more of it")).to_have_count(50)
            assert len(asked) == 1
