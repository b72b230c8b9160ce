"""Messages before the newest 500 of a conversation are loaded when the user reads back to them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Browser, Locator, Page, Route, expect

from gateway.contract.messages import Message, TextPart
from gateway.testing.served import serving
from tests.channels.websocket.test_page_axe import violations
from tests.channels.websocket.test_page_search import LONG_AGO, MANY, message, open_hit, store_talk
from tests.e2e.page_browser import answers, chat, place_of, say

pytestmark = pytest.mark.slow

OLDEST = MANY - 500 + 1
"""The first message that the page gets when it opens the conversation."""


def loader(page: Page) -> Locator:
    return page.get_by_role("button", name="Load earlier messages")


def scroller(page: Page) -> Locator:
    return page.get_by_role("region", name="Messages")


async def shown(page: Page) -> list[str]:
    return await page.locator("tl-message").evaluate_all("(all) => all.map((one) => one.dataset.id)")


def numbered(first: int, last: int = MANY) -> list[str]:
    return [f"m{n}" for n in range(first, last + 1)]


@pytest.mark.parametrize("width", [1280, 360])
async def test_scrolling_to_the_top_loads_earlier_messages_and_stays_at_the_place(
    browser: Browser, foreign: Path, tmp_path: Path, width: int
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    async with serving(tmp_path) as served:
        await store_talk(served, MANY)
        address = served.url + "/#/s/long"
        size = {"width": width, "height": 700}
        async with chat(browser, address, viewport=size, bypass_csp=True) as page:
            await expect(message(page, MANY)).to_be_in_viewport()
            assert await shown(page) == numbered(OLDEST)
            await scroller(page).focus()
            await page.keyboard.press("Home")
            await expect(message(page, OLDEST - 100)).to_have_count(1)
            await expect(message(page, OLDEST)).to_be_in_viewport()
            await expect(message(page, OLDEST - 100)).not_to_be_in_viewport()
            assert await shown(page) == numbered(OLDEST - 100)
            place = await place_of(message(page, OLDEST))
            await page.evaluate("document.querySelector('.column').style.paddingBottom = '200px'")
            assert await place_of(message(page, OLDEST)) == place
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            for first in (OLDEST - 200, 1):
                await page.keyboard.press("Home")
                await expect(message(page, first)).to_have_count(1)
            await page.keyboard.press("Home")
            await expect(page.get_by_text("Beginning of the conversation")).to_be_in_viewport()
            await expect(loader(page)).to_have_count(0)
            assert await shown(page) == numbered(1)
            assert await violations(page, axe) == []
            await page.keyboard.press("End")
            await say(page, "go on")
            await expect(answers(page).last).to_contain_text("You said")
            await expect(answers(page).last).to_be_in_viewport()


async def test_earlier_messages_are_loaded_by_the_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await store_talk(served, 620)
        async with chat(browser, served.url + "/#/s/long") as page:
            await expect(message(page, 620)).to_be_in_viewport()
            # A button that is focused without scrolling, as by the cursor of a screen reader.
            await loader(page).evaluate("(button) => button.focus({ preventScroll: true })")
            await page.keyboard.press("Enter")
            await expect(page.locator("#announcements")).to_contain_text("Messages loaded: 100")
            await expect(loader(page)).to_be_focused()
            await page.keyboard.press("Enter")
            await expect(page.locator("#announcements")).to_contain_text("Messages loaded: 20")
            await expect(page.get_by_text("Beginning of the conversation")).to_be_focused()
            assert await shown(page) == numbered(1, 620)


async def test_a_conversation_that_is_loaded_as_a_whole_offers_no_earlier_messages(
    browser: Browser, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served:
        await store_talk(served, 500)
        async with chat(browser, served.url + "/#/s/long") as page:
            await expect(message(page, 500)).to_be_in_viewport()
            await expect(message(page, 1)).to_have_count(1)
            await expect(loader(page)).to_have_count(0)
            await expect(page.get_by_text("Beginning of the conversation")).to_be_hidden()


async def test_the_messages_around_a_result_of_the_search_are_loaded_on_both_sides(
    browser: Browser, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served:
        await store_talk(served, MANY, m220="haystack")
        async with chat(browser, served.url + "/#/s/long") as page:
            await expect(message(page, MANY)).to_be_in_viewport()
            await open_hit(page, "haystack", phone=False)
            await expect(message(page, 220)).to_be_in_viewport()
            await expect(page.locator("[data-found]")).to_have_count(0)
            assert await shown(page) == [*numbered(170, 270), *numbered(OLDEST)]
            fill = page.get_by_role("button", name="Show them")
            await fill.focus()
            await page.keyboard.press("Enter")
            await expect(message(page, 271)).to_be_focused()
            await expect(fill).to_have_count(0)
            assert await shown(page) == numbered(170)
            await scroller(page).focus()
            await page.keyboard.press("Home")
            await expect(message(page, 70)).to_have_count(1)
            assert await shown(page) == numbered(70)


async def test_what_could_not_be_loaded_is_named_and_loaded_later(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await store_talk(served, MANY)
        async with chat(browser, served.url + "/#/s/long") as page:
            await expect(message(page, MANY)).to_be_in_viewport()
            await page.route("**/api/sessions/long/messages?*", lambda route: route.abort())
            await scroller(page).focus()
            await page.keyboard.press("Home")
            await expect(page.locator("#notice")).to_contain_text("could not be loaded")
            await page.unroute_all()
            await loader(page).click()
            await expect(message(page, OLDEST - 100)).to_have_count(1)


async def test_earlier_messages_that_arrive_after_the_log_changed_are_dropped(
    browser: Browser, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served:
        await store_talk(served, MANY)
        await served.ask("POST", "/api/sessions/long/messages", json={"text": "go on"})
        await served.idle("long")
        async with chat(browser, served.url + "/#/s/long") as page:
            await expect(answers(page).last).to_contain_text("You said: go on")
            await expect(message(page, OLDEST + 1)).to_have_count(0)
            held = asyncio.Queue[Route]()
            await page.route("**/api/sessions/long/messages?*", held.put, times=1)
            await scroller(page).focus()
            await page.keyboard.press("Home")
            late = await held.get()
            assert (await served.ask("POST", "/api/sessions/long/undo"))[0] == 200
            await expect(message(page, OLDEST)).to_have_count(1)
            async with page.expect_response("**/api/sessions/long/messages?*"):
                await late.continue_()
            await loader(page).click()
            await expect(message(page, OLDEST - 100)).to_have_count(1)
            ids = await shown(page)
            assert ids == numbered(MANY - len(ids) + 1)


async def test_a_login_that_has_ended_is_asked_for_again(browser: Browser, tmp_path: Path) -> None:
    """The socket outlives it, but no request is answered."""
    token = "t" * 32
    async with serving(tmp_path, server={"token": token}) as served:
        await store_talk(served, MANY)
        async with chat(browser, served.url + "/#/s/long", connected=False) as page:
            field = page.get_by_role("textbox", name="Token")
            await field.fill(token)
            await page.keyboard.press("Enter")
            await expect(message(page, MANY)).to_be_in_viewport()
            await page.context.clear_cookies()
            await scroller(page).focus()
            await page.keyboard.press("Home")
            await expect(field).to_be_focused()
            await field.fill(token)
            await page.keyboard.press("Enter")
            await expect(field).to_be_hidden()
            await loader(page).click()
            await expect(message(page, OLDEST - 100)).to_have_count(1)


async def test_a_change_of_a_message_that_is_not_loaded_is_not_shown_as_a_new_one(
    browser: Browser, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served:
        await store_talk(served, MANY)
        async with chat(browser, served.url + "/#/s/long") as page:
            await expect(message(page, MANY)).to_be_in_viewport()
            session = await served.gateway.parts.sessions.find("long")
            for number in (7, MANY - 1):
                text = TextPart(f"Line {number} was changed")
                changed = Message(
                    session_id="long",
                    role="user",
                    parts=(text,),
                    id=f"m{number}",
                    created_at=LONG_AGO + number,
                )
                await session.replace_message(changed, [])
            await expect(message(page, MANY - 1)).to_contain_text("was changed")
            assert await shown(page) == numbered(OLDEST)
            await scroller(page).focus()
            for first in (OLDEST - 100, OLDEST - 200, 1):
                await page.keyboard.press("Home")
                await expect(message(page, first)).to_have_count(1)
            await expect(message(page, 7)).to_contain_text("was changed")
            assert await shown(page) == numbered(1)


async def test_an_answer_that_grows_makes_no_format_of_dates(browser: Browser, tmp_path: Path) -> None:
    """Each frame asks for the day of all messages; making a format takes longer than drawing one."""
    count = """(() => {
        const Made = Intl.DateTimeFormat;
        globalThis.made = 0;
        const construct = (...given) => (made++, Reflect.construct(...given));
        Intl.DateTimeFormat = new Proxy(Made, { construct });
    })()"""
    async with serving(tmp_path) as served:
        await store_talk(served, 200)
        async with chat(browser, served.url + "/#/s/long") as page:
            await page.add_init_script(count)
            await page.reload()
            await expect(message(page, 200)).to_be_in_viewport()
            before = await page.evaluate("made")
            await say(page, "go on")
            await expect(answers(page).last).to_contain_text("You said")
            assert await page.evaluate("made") == before
