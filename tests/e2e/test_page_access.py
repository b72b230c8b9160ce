"""The web page for everybody: by keyboard alone, by ear, on a phone, in the dark."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.e2e.page_browser import answers, chat, message_field, questions, say, session_of, words
from tests.e2e.page_scripts import answering, every_part, halting
from tests.e2e.page_server import PageServer

WIDE = (
    "```\n" + "a very long line of code " * 20 + "\n```\n\n"
    "| " + " | ".join(f"column {n}" for n in range(20)) + " |\n" + "|---" * 20 + "|\n\n"
    "https://example.org/" + "a" * 300 + "\n\n" + "w" * 300 + "\n"
)
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


async def test_the_page_has_landmarks_and_every_control_a_name(browser: Browser) -> None:
    server = PageServer(every_part)
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "Everything")
        server.turns[session_of(page)].go.set()
        await expect(answers(page).locator(".error-part")).to_be_visible()
        for role, name in (
            ("navigation", "Conversations"),
            ("form", "Write a message"),
            ("region", "Messages"),
        ):
            await expect(page.get_by_role(role, name=name)).to_be_visible()  # type: ignore[arg-type]
        await expect(page.get_by_role("main")).to_have_count(1)
        await expect(page.get_by_role("banner")).to_have_count(1)
        await expect(page.get_by_role("heading", level=1)).to_have_count(1)
        assert await _nameless(page) == []


async def _nameless(page: Page) -> list[str]:
    """Controls that a screen reader could not name, and pictures without a description."""
    return await page.evaluate(
        """() => [...document.querySelectorAll('button, a, input, textarea, summary, img')]
            .filter((e) => !e.getAttribute('aria-label') && !e.textContent.trim())
            .filter((e) => !e.hasAttribute('alt') && !e.labels?.length)
            .map((e) => e.outerHTML)"""
    )


async def test_only_finished_blocks_are_announced(browser: Browser) -> None:
    server = PageServer(halting("Finished.\n\nStill com", "ing.\n"))
    async with server.running(), chat(browser, server.url) as page:
        live = page.locator("[aria-live=polite]#announcements")
        await say(page, "Hello")
        await expect(answers(page)).to_contain_text("Still com")
        await expect(live).to_have_text("Finished.")
        server.turns[session_of(page)].go.set()
        await expect(live).to_have_text("Finished.Still coming.")


async def test_history_is_not_read_aloud(browser: Browser) -> None:
    server = PageServer(answering("Old news."))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "Hello")
        await expect(words(answers(page))).to_have_text("Old news.")
        await page.reload()
        await expect(words(answers(page))).to_have_text("Old news.")
        await expect(page.locator("#announcements")).to_be_empty()


async def test_everything_can_be_done_by_the_keyboard(browser: Browser) -> None:
    server = PageServer(answering("Yes."))
    async with server.running(), chat(browser, server.url) as page:
        await expect(message_field(page)).to_be_focused()
        await page.keyboard.type("line one")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("line two")
        await page.keyboard.press("Enter")
        await expect(words(questions(page))).to_have_text("line one\nline two", use_inner_text=True)
        await expect(message_field(page)).to_be_focused()
        skip = page.get_by_role("link", name="Skip to the message field")
        await skip.focus()
        await expect(skip).to_be_in_viewport()
        await page.keyboard.press("Enter")
        await expect(message_field(page)).to_be_focused()
        await expect(answers(page)).to_have_count(1)


async def test_a_phone_shows_all_without_scrolling_sideways(browser: Browser) -> None:
    server = PageServer(answering(WIDE))
    async with server.running(), chat(browser, server.url, **PHONE) as page:
        await say(page, "w" * 200)
        await expect(answers(page).locator("footer")).to_contain_text("tokens")
        assert await page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
        wider = await page.evaluate("document.querySelector('.scroller').scrollWidth")
        assert wider <= 360
        await expect(page.get_by_role("button", name="Send message")).to_be_in_viewport()


async def test_on_a_phone_a_long_title_and_a_lost_connection_can_be_read(browser: Browser) -> None:
    server = PageServer(answering("Yes."))
    async with AsyncExitStack() as stack:
        async with server.running():
            page = await stack.enter_async_context(chat(browser, server.url, **PHONE))
            await say(page, "What did we order for the party on Friday?")
            await expect(words(answers(page))).to_have_text("Yes.")
            title = page.get_by_role("heading", level=1)
            await expect(title).to_have_text("What did we order for the party on Friday?")
            whole = "(one) => one.scrollWidth <= one.clientWidth && one.scrollHeight <= one.clientHeight"
            assert await title.evaluate(whole)
        await expect(page.get_by_text("Connection lost, trying again…")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_on_a_phone_enter_breaks_the_line_until_one_chooses_otherwise(browser: Browser) -> None:
    server = PageServer(answering("Yes."))
    async with server.running(), chat(browser, server.url, **PHONE) as page:
        field = message_field(page)
        await field.fill("one")
        await field.press("Enter")
        await field.press_sequentially("two")
        await page.get_by_role("button", name="Send message").tap()
        await expect(words(questions(page))).to_have_text("one\ntwo", use_inner_text=True)
        await page.get_by_role("button", name="Conversations").tap()
        await page.get_by_role("button", name="Settings").tap()
        await page.get_by_label("Send messages with").select_option("Enter")
        await page.reload()
        await field.fill("three")
        await field.press("Enter")
        await expect(words(questions(page)).nth(1)).to_have_text("three")


async def test_a_long_title_leaves_the_model_its_place(browser: Browser) -> None:
    server = PageServer(answering("Yes."))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "What did we order for the party on Friday? " * 3)
        await expect(words(answers(page))).to_have_text("Yes.")
        whole = "(one) => one.scrollWidth <= one.clientWidth"
        assert not await page.get_by_role("heading", level=1).evaluate(whole)
        assert await page.locator(".model").evaluate(whole)


async def test_on_a_phone_the_choice_of_the_model_is_as_high_as_a_finger(browser: Browser) -> None:
    server = PageServer(answering("Yes."))
    async with server.running(), chat(browser, server.url, **PHONE) as page:
        await expect(page.locator(".picker")).to_contain_text("demo/small")
        box = await page.locator(".picker").bounding_box()
        assert box is not None
        top, bottom = box["y"] - 15, box["y"] + box["height"] + 4
        assert bottom - top >= 38
        for y in (top, (top + bottom) / 2, bottom):
            found = (
                f"document.elementFromPoint({box['x'] + box['width'] / 2}, {y}).closest('.picker') !== null"
            )
            assert await page.evaluate(found), y


async def test_on_a_phone_the_sessions_are_a_drawer(browser: Browser) -> None:
    server = PageServer(answering("Yes."))
    async with server.running(), chat(browser, server.url, **PHONE) as page:
        await say(page, "Hello")
        await expect(page.get_by_role("navigation")).to_have_count(0)
        opener = page.get_by_role("button", name="Conversations")
        await opener.click()
        await expect(page.get_by_role("link", name="New chat")).to_be_focused()
        await expect(page.get_by_role("link", name="Hello")).to_be_visible()
        # What the drawer covers is reached by neither keyboard nor screen reader.
        await expect(page.locator(".room")).to_have_js_property("inert", True)
        await page.keyboard.press("Escape")
        await expect(opener).to_be_focused()
        await expect(page.locator(".room")).to_have_js_property("inert", False)
        await expect(page.get_by_role("navigation")).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_is_light_or_dark_as_the_system_until_one_chooses(
    browser: Browser, scheme: Any
) -> None:
    server = PageServer(answering("Yes."))
    other = "dark" if scheme == "light" else "light"
    async with server.running(), chat(browser, server.url, color_scheme=scheme) as page:
        assert await _brightness(page) == scheme
        await page.get_by_role("button", name=f"Use the {other} theme").click()
        assert await _brightness(page) == other
        await page.reload()
        assert await _brightness(page) == other
        # On paper the whole conversation is in dark ink, without what is pressed.
        await say(page, WIDE * 5)
        await expect(answers(page).locator("footer")).to_contain_text("tokens")
        await page.emulate_media(media="print")
        assert await _brightness(page) == "light"
        await expect(page.get_by_role("button")).to_have_count(0)
        await expect(page.get_by_role("textbox")).to_have_count(0)
        assert await page.evaluate("document.documentElement.scrollHeight > 3 * innerHeight")


async def _brightness(page: Page) -> str:
    colour = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(colour.removeprefix("rgb(").split(",")[0])
    return "light" if red > 128 else "dark"
