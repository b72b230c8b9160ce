"""Questions on the web page: choices, several choices, texts, their ends, two devices, and a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from playwright.async_api import Browser, Locator, Page, expect

from gateway.channel import Address
from gateway.testing.fake_models.script import ModelRequest, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import Served, serving
from tests.channels.test_questions import QUESTIONS, Painter
from tests.e2e.page_browser import answers, chat, connection, say

HOME = (Address("websocket", "", "home"), "ada")
TITLE = "Which <b>*colour*</b>?"


def card(page: Page, title: str = TITLE) -> Locator:
    return page.locator("tl-approval").filter(has_text=title)


async def ended(painter: Painter, number: int) -> tuple[str, ...]:
    """Return the values of the latest end, once there are that many."""
    async with asyncio.timeout(60):
        while len(painter.ended) < number:
            await asyncio.sleep(0.01)
    return painter.ended[-1].values


async def home(page: Page, served: Served) -> None:
    await page.goto(f"{served.url}/#/s/home")
    await expect(connection(page)).to_have_text("Connected")


async def test_a_question_in_a_new_conversation_is_answered_on_one_of_two_devices(
    browser: Browser, tmp_path: Path
) -> None:
    painter = Painter()
    async with serving(tmp_path, painter) as served, chat(browser, served.url) as page:
        await painter.ask(HOME)
        await home(page, served)
        async with chat(browser, f"{served.url}/#/s/home") as other:
            for one in (page, other):
                await expect(card(one).get_by_role("button")).to_have_text(["Red", "Blue", "Green"])
                await expect(card(one)).to_contain_text("Blue: as the sky")
            await card(page).get_by_role("button", name="Blue").click()
            assert await ended(painter, 1) == ("blue",)
            for one in (page, other):
                await expect(card(one)).to_have_text(f"{TITLE} Blue")
                await expect(card(one).get_by_role("button")).to_have_count(0)
        await say(page, "hello")
        await expect(answers(page)).to_contain_text("You said: hello")
        assert painter.ended[0].by == "owner"


async def test_several_choices_and_texts_are_answered_after_an_answer(
    browser: Browser, tmp_path: Path
) -> None:
    painter = Painter()
    async with serving(tmp_path, painter) as served, chat(browser, served.url) as page:
        await painter.ask(HOME, "1", multiple=True, free_text=True)
        await home(page, served)
        await card(page).get_by_label("Red").check()
        await card(page).get_by_label("Green").check()
        await card(page).get_by_label("Your own answer").fill("grey")
        await card(page).get_by_role("button", name="Answer").click()
        assert await ended(painter, 1) == ("red", "green", "grey")
        await expect(card(page)).to_have_text(f"{TITLE} Red, Green, grey")
        await say(page, "hello")
        await expect(answers(page)).to_contain_text("You said: hello")
        await painter.ask(HOME, "2", choices=())
        await expect(card(page)).to_have_count(2)
        await card(page).get_by_label("Your answer").fill("ochre <i>")
        await page.keyboard.press("Enter")
        assert await ended(painter, 2) == ("ochre <i>",)
        await say(page, "/paint")
        await expect(answers(page)).to_have_count(2)
        await painter.ask(painter.places[-1], "3", choices=())
        await expect(card(page)).to_have_count(3)
        await say(page, "typed below")
        assert await ended(painter, 3) == ("typed below",)
        await say(page, "thanks")
        await expect(answers(page).last).to_contain_text("You said: thanks")
        await expect(answers(page)).to_have_count(3)


async def test_the_end_of_a_question_is_shown(browser: Browser, tmp_path: Path) -> None:
    painter = Painter()
    async with serving(tmp_path, painter) as served, chat(browser, served.url) as page:
        withdrawn = await painter.ask(HOME, "1")
        await home(page, served)
        await expect(card(page).get_by_role("button")).to_have_count(3)
        await painter.withdraw(withdrawn)
        await expect(card(page)).to_have_text(f"{TITLE} no longer needed")
        await painter.ask(HOME, "2", timeout_ms=5_000)
        await ended(painter, 1)
        await expect(card(page).nth(1)).to_have_text(f"{TITLE} not answered in time")


async def test_an_open_question_is_there_after_a_reload_and_a_restart(
    browser: Browser, tmp_path: Path
) -> None:
    first, second = Painter(), Painter()
    async with serving(tmp_path, first) as served, chat(browser, served.url) as page:
        await first.ask(HOME)
        await home(page, served)
        await expect(card(page).get_by_role("button")).to_have_count(3)
        await page.reload()
        await expect(card(page).get_by_role("button")).to_have_count(3)
    async with serving(tmp_path, second) as served, chat(browser, served.url) as page:
        await home(page, served)
        await card(page).get_by_role("button", name="Green").click()
        assert await ended(second, 1) == ("green",)


async def test_the_model_asks_four_questions_on_the_page(browser: Browser, tmp_path: Path) -> None:
    def answer(request: ModelRequest) -> Reply:
        if request.results:
            return Reply((Say("Thank you."),))
        return Reply((Use("question", json.dumps({"questions": QUESTIONS})),), "tools")

    async with FakeModels(answer) as models, serving(tmp_path, fake=models) as served:
        async with chat(browser, served.url) as page:
            await say(page, "go")
            await card(page, "Which colour?").get_by_role("button", name="Blue").click()
            rooms = card(page, "Which rooms?")
            await rooms.get_by_label("Hall").check()
            await rooms.get_by_label("Bath").check()
            await rooms.get_by_role("button", name="Answer").click()
            await card(page, "Which name?").get_by_label("Your own answer").fill("Ada")
            await page.keyboard.press("Enter")
            await card(page, "Which of these?").get_by_role("button", name="9 xxx").click()
            await expect(answers(page)).to_contain_text("Thank you.")
        expected = ["Colour: Blue", "Rooms: Hall, Bath", "Name: Ada", f"Long: 9 {'x' * 57}"]
        assert models.requests[-1].results[-1] == "\n".join(expected)
