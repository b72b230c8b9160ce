"""Pictures of the chat page, light, dark and on a phone, of a gateway that has conversations.

``TRUNKLINE_TEST_PICTURES=docs/console`` keeps them there; else only those of the light theme are made.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, expect

from gateway.contract.channel import Address
from gateway.contract.plugin import Plugin
from gateway.contract.provider import ToolDefinition
from gateway.contract.tool import Tool, ToolContext
from gateway.session.log import SessionRow
from gateway.testing.fake_models.script import Refusal, Reply, Say, Tokens, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import Served, serving
from tests.e2e.page_browser import answers, chat, questions, say

FOLDER = os.environ.get("TRUNKLINE_TEST_PICTURES", "")
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
SIZES: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "phone": {**PHONE, "color_scheme": "light"},
}
OTHERS = (
    ("Bread for Sunday", 0),
    ("Letter to the landlord", 0),
    ("Bike route along the river", 1),
    ("Which plug fits in Lisbon?", 1),
    ("Notes from the parents' evening", 3),
    ("Names for a grey cat", 4),
    ("Compare two washing machines", 6),
    ("Latin for the school play", 33),
    ("Tax form, page 2", 35),
)
TALK = "Which of our plants needs water?"
EDITED = "Which of our plants needs water today? Only those on the balcony."
ANSWER = (
    "Two of the four need water **today**. The basil is the thirstiest; the fern can wait until "
    "**Thursday**.\n\n"
    "| Plant | Last watered | Soil | Needs water |\n|---|--:|--:|---|\n"
    "| Basil | 3 days ago | 14 % | today |\n| Tomato | 2 days ago | 22 % | today |\n"
    "| Lavender | 5 days ago | 31 % | no |\n| Fern | yesterday | 48 % | no |\n\n"
    "Water in the evening, when the balcony is in the shade."
)


class Garden(Plugin):
    """Registers a tool that reads the moisture of the soil."""

    name = "garden"

    def tools(self) -> Sequence[Tool]:
        schema = {"type": "object", "properties": {"place": {"type": "string"}}}
        return (Tool(definition=ToolDefinition("soil", "Read the soil of a place", schema), execute=_soil),)


async def _soil(arguments: dict[str, Any], _ctx: ToolContext) -> str:
    return f"{arguments['place']}: basil 14 %, tomato 22 %, lavender 31 %, fern 48 %"


async def fill(served: Served) -> None:
    """Store the other conversations of the list."""
    now = datetime.now(UTC)
    for number, (title, days) in enumerate(OTHERS):
        at = round((now - timedelta(days=days, minutes=7 * number)).timestamp() * 1000)
        row = SessionRow(
            id=f"talk-{number}",
            channel="websocket",
            owner="local",
            address=Address("websocket"),
            title=title,
            seq=1,
            created_at=at,
            updated_at=at,
        )
        await served.gateway.parts.store.write(row.put())
    for number in (4, 7):
        await served.ask("PATCH", f"/api/sessions/talk-{number}", json={"pinned": True})


async def talk(page: Page, models: FakeModels) -> None:
    """Ask, edit the question, and get an answer with a tool and a table."""
    used = Tokens(1_650, 240)
    models.then(Reply((Say("Basil, tomato and fern."),), tokens=used))
    await say(page, TALK)
    await expect(answers(page)).to_contain_text("Basil")
    models.then(
        Reply((Use("soil", '{"place": "balcony"}'),), "tools", tokens=used),
        Reply((Say(ANSWER),), tokens=used),
    )
    await questions(page).hover()
    await questions(page).get_by_role("button", name="Edit").click()
    await page.get_by_role("textbox", name="New text of the message").fill(EDITED)
    await page.keyboard.press("Control+Enter")
    await expect(answers(page)).to_contain_text("in the shade")
    await expect(answers(page).locator("footer")).to_contain_text("tokens")
    # Each version has its own draft, so what is written before they are known stays with the old one.
    await expect(questions(page).get_by_role("group", name="Versions")).to_be_visible()


async def take(page: Page, name: str) -> None:
    """Take a picture, when nothing moves."""
    await page.evaluate("document.fonts.ready")
    assert len(await page.screenshot(path=f"{FOLDER}/{name}.png" if FOLDER else None)) > 10_000


async def take_dialogs(page: Page) -> None:
    """Take a picture of each dialog and menu of the thread."""
    await page.get_by_role("button", name="Agent and model of this conversation").click()
    await expect(page.get_by_role("option", name="main")).to_be_visible()
    await take(page, "chat-picker-light")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Share…").click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await take(page, "chat-share-light")
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Settings").click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await take(page, "chat-settings-light")
    await page.keyboard.press("Escape")
    row = page.get_by_role("navigation").get_by_role("listitem").filter(has_text="Letter to the landlord")
    await row.hover()
    await row.get_by_role("button").click()
    await take(page, "chat-menu-light")
    await page.keyboard.press("Escape")


async def test_each_state_of_the_page_has_its_picture(browser: Browser, tmp_path: Path) -> None:
    share = {"enabled": True, "base_url": "http://127.0.0.1"}
    prices = {"openai/fake-small": {"input_price": 3, "output_price": 15}}
    async with (
        FakeModels() as models,
        serving(tmp_path, Garden(), fake=models, share=share, models=prices) as served,
    ):
        await fill(served)
        async with chat(browser, served.url, **SIZES["light"], locale="en-GB") as page:
            await talk(page, models)
            address = page.url
            models.then(Refusal(401, "invalid_api_key: Incorrect API key provided"))
            await page.get_by_role("link", name="New chat").click()
            await expect(page.get_by_role("heading", name="What can I do for you?")).to_be_visible()
            await say(page, "And indoors?")
            await expect(answers(page).locator(".error-part")).to_be_visible()
            broken = page.url
        for size, how in SIZES.items() if FOLDER else [*SIZES.items()][:1]:
            async with chat(browser, served.url, **how, locale="en-GB", reduced_motion="reduce") as page:
                await take(page, f"chat-empty-{size}")
                await page.goto(address)
                await expect(answers(page)).to_contain_text("in the shade")
                await take(page, f"chat-{size}")
                await page.get_by_role("button", name="2 of 2").click()
                await expect(page.get_by_role("menu", name="Versions")).to_be_visible()
                await take(page, f"chat-versions-{size}")
                await page.keyboard.press("Escape")
                if size == "phone":
                    await page.get_by_role("button", name="Conversations").click()
                    await take(page, f"chat-list-{size}")
                    await page.keyboard.press("Escape")
                if size == "light":
                    await take_dialogs(page)
                await page.goto("about:blank")  # the focus and the pointer are not in the next picture
                await page.goto(broken)
                await page.mouse.move(0, 0)
                await expect(answers(page).locator(".error-part")).to_be_visible()
                await take(page, f"chat-error-{size}")
