"""The list of conversations on the page of a real gateway: search, rename, pin, delete, and many of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from gateway.contract.channel import Address
from gateway.session.log import SessionRow
from gateway.testing.served import Served, serving
from tests.e2e.page_browser import (
    act,
    answers,
    chat,
    message_field,
    questions,
    say,
    scroll_list_to,
    session_of,
)

pytestmark = pytest.mark.slow

PHONE = {"width": 390, "height": 844}


def rows(page: Page) -> Locator:
    return page.get_by_role("navigation").get_by_role("listitem")


async def put(served: Served, *titles: tuple[str, datetime]) -> None:
    """Store conversations of the page with their last activity."""
    ops = [
        SessionRow(
            id=f"s{n}",
            channel="websocket",
            owner="local",
            address=Address("websocket"),
            title=title,
            seq=1,
            created_at=int(at.timestamp() * 1000),
            updated_at=int(at.timestamp() * 1000),
        ).put()
        for n, (title, at) in enumerate(titles)
    ]
    for start in range(0, len(ops), 5_000):
        await served.gateway.parts.store.write(*ops[start : start + 5_000])


async def test_conversations_are_grouped_by_the_day_of_their_last_message(
    browser: Browser, tmp_path: Path
) -> None:
    # Noon, so that the groups are the same in every zone that is near.
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0)
    async with serving(tmp_path) as served:
        given = [("now", noon), ("before", noon - timedelta(days=1)), ("days ago", noon - timedelta(days=4))]
        await put(served, *given, ("long ago", datetime(2001, 3, 9, 12, tzinfo=UTC)))
        await served.ask("PATCH", "/api/sessions/s2", json={"pinned": True})
        async with chat(browser, served.url, timezone_id="UTC", locale="en-GB") as page:
            groups = page.get_by_role("navigation").get_by_role("region")
            await expect(groups.get_by_role("heading")).to_have_text(
                ["Pinned", "Today", "Yesterday", "March 2001"]
            )
            await expect(groups.get_by_role("listitem").locator(".title")).to_have_text(
                ["days ago", "now", "before", "long ago"]
            )


async def test_a_conversation_is_renamed_in_place_and_pinned_permanently(
    browser: Browser, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "first talk")
        await expect(answers(page)).to_contain_text("You said")
        await act(page, "first talk", "Rename")
        field = page.get_by_role("textbox", name="Title")
        await expect(field).to_be_focused()
        await field.fill("not this")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("link", name="first talk")).to_be_focused()
        await page.keyboard.press("F2")
        await field.fill("Better name")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("link", name="Better name")).to_be_focused()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Better name")
        await act(page, "Better name", "Pin")
        await expect(page.get_by_role("region", name="Pinned").get_by_role("listitem")).to_have_count(1)
        await page.reload()
        await expect(
            page.get_by_role("region", name="Pinned").get_by_role("link", name="Better name")
        ).to_be_visible()
        await act(page, "Better name", "Unpin")
        await expect(page.get_by_role("region", name="Today").get_by_role("listitem")).to_have_count(1)


async def test_deleting_by_the_keyboard_asks_first_and_moves_to_the_next_row(
    browser: Browser, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    async with serving(tmp_path) as served:
        await put(served, *((f"talk {n}", now - timedelta(minutes=n)) for n in range(3)))
        async with chat(browser, served.url) as page:
            await page.get_by_role("link", name="talk 0").focus()
            await page.keyboard.press("ArrowDown")
            await expect(page.get_by_role("link", name="talk 1")).to_be_focused()
            await page.keyboard.press("Delete")
            await expect(page.get_by_role("dialog")).to_contain_text("“talk 1” and all its messages")
            await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
            await expect(rows(page)).to_have_count(2)
            await expect(page.get_by_role("link", name="talk 2")).to_be_focused()
            assert (await served.ask("GET", "/api/sessions/s1"))[0] == 404


@pytest.mark.parametrize("size", [None, PHONE], ids=["desktop", "390px"])
async def test_titles_and_messages_are_searched(
    browser: Browser, tmp_path: Path, size: dict[str, int] | None
) -> None:
    async with serving(tmp_path) as served:
        for session, text in (("a", "Lentil dal <b>for</b> 12"), ("b", "Something else"), ("c", "Nothing")):
            await served.ask("POST", f"/api/sessions/{session}/messages", json={"text": text})
            await served.idle(session)
        await served.ask("PATCH", "/api/sessions/b", json={"title": "Dal, once more"})
        search = served.gateway.parts.conversations.search
        await search.catch_up()
        context: dict[str, Any] = {} if size is None else {"viewport": size}
        async with chat(browser, served.url, **context) as page:
            if size is not None:
                await page.get_by_role("button", name="Conversations").click()
            field = page.get_by_role("searchbox", name="Search all messages")
            await field.fill("dal")
            results = page.get_by_role("region", name="Search results")
            await expect(results.get_by_role("status")).to_have_text("4 found")
            await expect(results.locator(".hits").first.locator(".title")).to_have_text(
                ["Dal, once more", "Lentil dal <b>for</b> 12"]
            )
            await expect(results.locator(".hits").last.locator("mark").first).to_have_text("dal")
            await expect(results.locator(".hits").last).to_contain_text("You: Lentil dal <b>for</b> 12")
            await expect(page.locator("tl-list")).to_be_hidden()
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            await field.fill("milk")
            await expect(results.get_by_role("status")).to_have_text("Nothing found for “milk”")
            await field.fill("once")
            await page.keyboard.press("ArrowDown")
            await expect(results.get_by_role("link").first).not_to_be_focused()
            await expect(results.get_by_role("status")).to_have_text("1 found")
            await page.keyboard.press("ArrowDown")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", level=1)).to_have_text("Dal, once more")
            if size is None:
                await field.press("Escape")
                await expect(page.locator("tl-list")).to_be_visible()
                await expect(results).to_be_hidden()


async def test_a_list_of_very_many_conversations_draws_only_what_is_visible(
    browser: Browser, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    async with serving(tmp_path) as served:
        await put(served, *((f"talk {n}", now - timedelta(minutes=n)) for n in range(3_000)))
        async with chat(browser, served.url) as page:
            await expect(rows(page).first).to_contain_text("talk 0")
            shown = page.locator("tl-list")
            await scroll_list_to(page, "talk 2999")
            assert await rows(page).count() <= 200
            await shown.evaluate("(list) => list.scrollTo(0, 0)")
            await expect(rows(page).filter(has_text="talk 0")).to_have_count(1)
            await page.get_by_role("link", name="talk 0").focus()
            await page.keyboard.press("End")
            await expect(page.get_by_role("link", name="talk 2999")).to_be_focused()


async def test_conversations_of_another_device_appear_when_the_tab_is_shown_again(
    browser: Browser, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    async with serving(tmp_path) as served:
        await put(served, *((f"talk {n}", now - timedelta(minutes=n)) for n in range(250)))
        async with chat(browser, served.url) as page:
            await scroll_list_to(page, "talk 240")
            await put(served, ("from the phone", now + timedelta(minutes=1)))
            async with page.expect_response("**/api/sessions?*pinned=true*") as answered:
                await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
            await (await answered.value).finished()
            await expect(page.get_by_role("link", name="talk 240")).to_be_in_viewport()
            await page.locator("tl-list").evaluate("(list) => (list.scrollTop = 0)")
            await expect(page.get_by_role("link", name="from the phone")).to_be_visible()
            await scroll_list_to(page, "talk 249")


async def test_a_conversation_that_another_tab_deletes_is_said_to_be_gone(
    browser: Browser, tmp_path: Path
) -> None:
    """A message to it would begin another conversation, whose answer this tab would not get."""
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "first talk")
        await expect(answers(page)).to_contain_text("You said")
        await message_field(page).press("ArrowUp")
        await page.get_by_role("textbox", name="New text of the message").fill("an edit")
        await page.locator("#message").fill("a draft")
        file: Any = {"name": "plan.txt", "mimeType": "text/plain", "buffer": b"dig"}
        await page.locator("input[type=file]").set_input_files(file)
        await expect(page.locator("tl-chip[data-state=done]")).to_have_count(1)
        status, _ = await served.ask("DELETE", f"/api/sessions/{session_of(page)}")
        assert status == 204
        await expect(page.get_by_role("heading", name="This conversation does not exist")).to_be_in_viewport()
        await expect(questions(page)).to_have_count(0)
        await expect(rows(page)).to_have_count(0)
        await page.get_by_role("main").get_by_role("link", name="New chat").click()
        # What was written is not lost with the conversation.
        await expect(message_field(page)).to_have_value("an edit\n\na draft")
        await expect(message_field(page)).to_be_focused()
        await expect(page.locator("tl-chip")).to_have_text("plan.txt")
        await say(page, "second talk")
        await expect(answers(page)).to_contain_text("You said: second talk")
