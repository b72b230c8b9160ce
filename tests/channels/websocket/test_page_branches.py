"""Versions on the page: a message is edited, an answer regenerated, and versions are shown again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, Route, expect

from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.served import serving
from tests.channels.websocket.test_page_axe import PHONE, violations
from tests.e2e.page_browser import act, answers, chat, message_field, questions, say, words

pytestmark = pytest.mark.slow


async def expect_talk(page: Page, *texts: str) -> None:
    """Expect the conversation to have these questions and answers, in turn."""
    await expect(words(questions(page))).to_have_text(texts[::2])
    await expect(words(answers(page))).to_have_text(texts[1::2])
    await expect(page.get_by_role("button", name="Stop answering")).to_have_count(0)


async def edit(page: Page, at: int, text: str) -> None:
    """Edit a question, by its place, and send it."""
    question = questions(page).nth(at)
    await question.hover()
    await question.get_by_role("button", name="Edit").click()
    await question.get_by_role("textbox", name="New text of the message").fill(text)
    await page.keyboard.press("Control+Enter")


def place(at: int, count: int) -> str:
    return f"\u2039{at} of {count}\u203a"


def versions(page: Page) -> Locator:
    return page.get_by_role("group", name="Versions")


async def test_004_t09_a_message_is_edited_and_its_versions_are_switched(
    tmp_path: Path, browser: Browser
) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "one")
        await expect_talk(page, "one", "You said: one")
        await say(page, "two")
        await expect_talk(page, "one", "You said: one", "two", "You said: two")
        await expect(versions(page)).to_have_count(0)
        await edit(page, 0, "eins")
        await expect_talk(page, "eins", "You said: eins")
        await expect(versions(page)).to_have_text(place(2, 2))
        await expect(versions(page).get_by_role("button", name="Next version")).to_be_disabled()
        await versions(page).get_by_role("button", name="Previous version").click()
        await expect_talk(page, "one", "You said: one", "two", "You said: two")
        await expect(versions(page)).to_have_text(place(1, 2))
        # Another answer is a version, too; the keys switch the last message that has versions.
        await answers(page).nth(1).hover()
        await answers(page).nth(1).get_by_role("button", name="Another answer").click()
        await expect(versions(page)).to_have_text([place(1, 2), place(2, 2)])
        await expect_talk(page, "one", "You said: one", "two", "You said: two")
        await page.get_by_role("region", name="Messages").focus()
        await page.keyboard.press("[")
        await expect(versions(page)).to_have_text([place(1, 2), place(1, 2)])
        await page.keyboard.press("]")
        await expect(versions(page)).to_have_text([place(1, 2), place(2, 2)])
        # Also after a reload, and by the list of versions.
        await page.reload()
        await versions(page).nth(0).get_by_role("button", name="1 of 2").click()
        listed = page.get_by_role("menu", name="Versions").get_by_role("menuitemradio")
        await expect(listed).to_have_count(2)
        await expect(listed.nth(0)).to_contain_text("4 messages")
        await expect(listed.nth(0)).to_be_focused()
        await page.keyboard.press("ArrowDown")
        await page.keyboard.press("Enter")
        await expect_talk(page, "eins", "You said: eins")


async def test_the_last_message_is_edited_by_the_keyboard(tmp_path: Path, browser: Browser) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "one")
        await expect_talk(page, "one", "You said: one")
        await message_field(page).press("ArrowUp")
        field = page.get_by_role("textbox", name="New text of the message")
        await expect(field).to_be_focused()
        await expect(field).to_have_value("one")
        await page.keyboard.press("Escape")
        await expect(field).to_have_count(0)
        await message_field(page).press("ArrowUp")
        await field.fill("uno")
        await page.keyboard.press("Enter")
        await expect_talk(page, "uno", "You said: uno")


async def test_the_focus_stays_in_the_conversation_when_its_version_changes(
    tmp_path: Path, browser: Browser
) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "one")
        await expect_talk(page, "one", "You said: one")
        button = questions(page).get_by_role("button", name="Edit")
        await button.focus()
        await page.keyboard.press("Enter")
        field = page.get_by_role("textbox", name="New text of the message")
        await expect(field).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(button).to_be_focused()
        await page.keyboard.press("Enter")
        await field.fill("eins")
        await page.keyboard.press("Enter")
        await expect_talk(page, "eins", "You said: eins")
        await expect(message_field(page)).to_be_focused()
        await expect(versions(page)).to_have_text(place(2, 2))
        await versions(page).get_by_role("button", name="Previous version").focus()
        await page.keyboard.press("Enter")
        await expect_talk(page, "one", "You said: one")
        await expect(questions(page)).to_be_focused()
        await page.keyboard.press("]")
        await expect_talk(page, "eins", "You said: eins")
        await answers(page).get_by_role("button", name="Another answer").focus()
        await page.keyboard.press("Enter")
        await expect(versions(page)).to_have_count(1)
        await expect(versions(page)).to_have_text(place(3, 3))
        await expect(page.locator("body")).not_to_be_focused()


async def test_each_version_has_its_own_draft(tmp_path: Path, browser: Browser) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "one")
        await expect_talk(page, "one", "You said: one")
        await message_field(page).fill("draft of one")
        await edit(page, 0, "eins")
        await expect_talk(page, "eins", "You said: eins")
        # The draft stays with the version in which it was written.
        await expect(message_field(page)).to_have_value("")
        await message_field(page).fill("draft of eins")
        await versions(page).get_by_role("button", name="Previous version").click()
        await expect(message_field(page)).to_have_value("draft of one")
        await page.get_by_role("region", name="Messages").focus()
        await page.keyboard.press("]")
        await expect(message_field(page)).to_have_value("draft of eins")
        await page.reload()
        await expect(message_field(page)).to_have_value("draft of eins")
        # A version that gets versions keeps its draft.
        await edit(page, 0, "uno")
        await expect_talk(page, "uno", "You said: uno")
        await expect(message_field(page)).to_have_value("")
        await expect(versions(page)).to_have_text(place(3, 3))
        await page.get_by_role("region", name="Messages").focus()
        await page.keyboard.press("[")
        await expect(message_field(page)).to_have_value("draft of eins")
        await page.keyboard.press("[")
        await expect(message_field(page)).to_have_value("draft of one")
        # A deleted conversation leaves no draft.
        await act(page, "one", "Delete…")
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(page.get_by_role("heading", name="What can I do for you?")).to_be_visible()
        kept = await page.evaluate("Object.keys(sessionStorage).filter((key) => key.includes('draft'))")
        assert kept == []


async def test_a_version_inside_of_a_version_has_its_own_draft(tmp_path: Path, browser: Browser) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "one")
        await expect_talk(page, "one", "You said: one")
        await edit(page, 0, "eins")
        await expect_talk(page, "eins", "You said: eins")
        await say(page, "two")
        await expect_talk(page, "eins", "You said: eins", "two", "You said: two")
        await message_field(page).fill("draft of two")
        await edit(page, 1, "zwei")
        await expect_talk(page, "eins", "You said: eins", "zwei", "You said: zwei")
        await expect(versions(page)).to_have_count(2)
        await expect(message_field(page)).to_have_value("")
        await message_field(page).fill("draft of zwei")
        await versions(page).nth(1).get_by_role("button", name="Previous version").click()
        await expect(message_field(page)).to_have_value("draft of two")
        await versions(page).nth(0).get_by_role("button", name="Previous version").click()
        await expect(message_field(page)).to_have_value("")
        await page.get_by_role("region", name="Messages").focus()
        await page.keyboard.press("]")
        await expect(message_field(page)).to_have_value("draft of two")
        await page.keyboard.press("]")
        await expect(message_field(page)).to_have_value("draft of zwei")


@pytest.mark.parametrize("at", ["edit", "branches"])
async def test_what_is_typed_before_a_new_version_is_known_belongs_to_it(
    tmp_path: Path, browser: Browser, at: str
) -> None:
    held, passed = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        held.set()
        await passed.wait()
        await route.continue_()

    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        field = page.locator("#message")
        await say(page, "one")
        await expect_talk(page, "one", "You said: one")
        await field.fill("draft of one")
        await page.locator("input[type=file]").set_input_files(
            {"name": "one.txt", "mimeType": "text/plain", "buffer": b"one"}
        )
        await expect(page.locator("tl-chip[data-state=done]")).to_have_count(1)
        await page.route(f"**/{at}*", hold)
        await edit(page, 0, "eins")
        await held.wait()
        await field.press("End")
        await field.press_sequentially(" and eins")
        await page.locator("input[type=file]").set_input_files(
            {"name": "eins.txt", "mimeType": "text/plain", "buffer": b"eins"}
        )
        await expect(page.locator("tl-chip[data-state=done]")).to_have_count(2)
        passed.set()
        await expect_talk(page, "eins", "You said: eins")
        await expect(field).to_have_value("and eins")
        await expect(field).to_be_focused()
        await expect(page.locator("tl-chip")).to_have_text("eins.txt")
        await versions(page).get_by_role("button", name="Previous version").click()
        await expect(field).to_have_value("draft of one")
        await expect(page.locator("tl-chip")).to_have_text("one.txt")


@pytest.mark.parametrize(("choice", "end"), [("Markdown", "md"), ("JSON", "json")])
async def test_all_versions_are_downloaded(tmp_path: Path, browser: Browser, choice: str, end: str) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "one")
        await expect_talk(page, "one", "You said: one")
        button = page.get_by_role("button", name="Export…")
        dialog = page.get_by_role("dialog", name="Export this conversation")
        await button.click()
        await expect(dialog.get_by_role("radio")).to_have_count(2)
        await page.keyboard.press("Escape")
        await expect(button).to_be_focused()
        await edit(page, 0, "eins")
        await expect_talk(page, "eins", "You said: eins")
        await expect(versions(page)).to_have_text(place(2, 2))
        for branch, held in (("The one that is shown", False), ("All versions", True)):
            await button.click()
            await dialog.get_by_role("radio", name=choice).check()
            await dialog.get_by_role("radio", name=branch).check()
            async with page.expect_download() as coming:
                await dialog.get_by_role("button", name="Download").click()
            download = await coming.value
            assert download.suggested_filename.endswith(f".{end}")
            text = (await download.path()).read_text()
            assert "You said: eins" in text
            assert ("You said: one" in text) is held


async def test_an_edit_during_an_answer_is_refused_and_kept(tmp_path: Path, browser: Browser) -> None:
    gate = Gate(asyncio.Event())
    async with serving(tmp_path) as served, chat(browser, served.url, expected="502") as page:
        await say(page, "one")
        await expect_talk(page, "one", "You said: one")
        served.models.then(Reply((Say("half"), gate, Say(" whole"))))
        await say(page, "two")
        await expect(answers(page).nth(1)).to_contain_text("half")
        await edit(page, 0, "eins")
        await expect(page.locator("#notice")).to_contain_text("an answer is being made")
        field = page.get_by_role("textbox", name="New text of the message")
        await expect(field).to_have_value("eins")
        gate.opened.set()
        await expect(answers(page).nth(1)).to_contain_text("half whole")
        # A proxy answers while the gateway is away.
        bad = {"status": 502, "content_type": "text/html", "body": "Bad"}
        await page.route("**/edit", lambda route: route.fulfill(**bad))
        await field.press("Enter")
        await expect(page.locator("#notice")).to_contain_text("The gateway cannot be reached.")
        await page.unroute("**/edit")
        await field.press("Enter")
        await expect_talk(page, "eins", "You said: eins")


async def test_a_version_is_listed_while_it_is_answered(tmp_path: Path, browser: Browser) -> None:
    gate = Gate(asyncio.Event())
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "one")
        await expect_talk(page, "one", "You said: one")
        served.models.then(Reply((Say("half"), gate, Say(" whole"))))
        await edit(page, 0, "eins")
        await expect(words(answers(page))).to_have_text("half")
        await expect(versions(page)).to_have_text(place(2, 2))
        await page.reload()
        await expect(versions(page)).to_have_text(place(2, 2))
        gate.opened.set()
        await expect_talk(page, "eins", "half whole")
        await expect(versions(page)).to_have_text(place(2, 2))


async def test_another_device_shows_the_switched_version(tmp_path: Path, browser: Browser) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "one")
        await expect_talk(page, "one", "You said: one")
        async with chat(browser, page.url) as other:
            await expect_talk(other, "one", "You said: one")
            await edit(page, 0, "eins")
            await expect_talk(other, "eins", "You said: eins")
            await expect(versions(other)).to_have_text(place(2, 2))
            await versions(other).get_by_role("button", name="Previous version").click()
            await expect_talk(page, "one", "You said: one")


HOLD_FRAME = """() => {
    const frame = window.requestAnimationFrame;
    window.requestAnimationFrame = (draw) => {
        window.release = () => { window.requestAnimationFrame = frame; draw(); };
    };
}"""
"""Let the page draw nothing until ``release()``."""


async def test_an_open_edit_outlives_changes_by_another_device(tmp_path: Path, browser: Browser) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        for text in ("one", "two"):
            await say(page, text)
            await expect(words(answers(page)).last).to_have_text(f"You said: {text}")
        field = page.get_by_role("textbox", name="New text of the message")
        for at, text in ((0, "uno"), (1, "due")):
            await questions(page).nth(at).hover()
            await questions(page).nth(at).get_by_role("button", name="Edit").click()
            await field.last.fill(text)
        await page.locator("#message").fill("draft")
        await field.first.focus()
        async with chat(browser, page.url) as other:
            await expect_talk(other, "one", "You said: one", "two", "You said: two")
            await say(other, "three")
            await expect_talk(
                page, "one", "You said: one", "two", "You said: two", "three", "You said: three"
            )
            await expect(field).to_have_count(2)
            # All that changes comes in one frame, as in a busy browser.
            await page.evaluate(HOLD_FRAME)
            async with page.expect_response(lambda response: "/branches" in response.url) as listed:
                await edit(other, 1, "zwei")
                await expect(words(answers(other))).to_have_text(["You said: one", "You said: zwei"])
            await (await listed.value).finished()
            await page.evaluate("() => release()")
            await expect(words(answers(page))).to_have_text(["You said: one", "You said: zwei"])
            # The edit of a message that is still there stays open, with its focus.
            await expect(field).to_have_count(1)
            await expect(field).to_have_value("uno")
            await expect(field).to_be_focused()
            # The text of the other one is in the draft of the version that is shown now.
            await expect(page.locator("#notice")).to_contain_text("message field")
            await expect(page.locator("#message")).to_have_value("due")
            # The draft of the other version is as it was.
            await versions(other).last.get_by_role("button", name="Previous version").click()
            await expect(page.locator("#message")).to_have_value("draft")
            await expect(field).to_have_value("uno")
        # Another conversation closes nothing.
        await page.get_by_role("link", name="New chat").click()
        await expect(field).to_have_count(0)
        await page.go_back()
        await expect(field).to_have_value("uno")
        await field.press("Enter")
        await expect_talk(page, "uno", "You said: uno")
        await expect(field).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", [{}, PHONE], ids=["desktop", "phone"])
async def test_axe_finds_nothing_in_versions(
    tmp_path: Path, browser: Browser, foreign: Path, scheme: Any, device: dict[str, Any]
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    async with (
        serving(tmp_path) as served,
        chat(browser, served.url, bypass_csp=True, color_scheme=scheme, **device) as page,
    ):
        await say(page, "one")
        await expect_talk(page, "one", "You said: one")
        await edit(page, 0, "eins")
        await expect(versions(page)).to_have_text(place(2, 2))
        await questions(page).get_by_role("button", name="Edit").click()
        assert await violations(page, axe) == []
        wide = "document.documentElement.scrollWidth <= innerWidth"
        assert await page.evaluate(wide)
        field = "[document.querySelector('.edit-form').getBoundingClientRect().right, innerWidth]"
        right, width = await page.evaluate(field)
        assert right <= width
        await page.keyboard.press("Escape")
        await versions(page).get_by_role("button", name="2 of 2").click()
        await expect(page.get_by_role("menu", name="Versions")).to_be_visible()
        assert await violations(page, axe) == []
        assert await page.evaluate(wide)
