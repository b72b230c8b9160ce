"""The agent and the model of a conversation, selected on the page of a real gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from gateway.testing.served import serving
from tests.e2e.page_browser import answers, chat, say, session_of

pytestmark = pytest.mark.slow

SETTINGS: dict[str, Any] = {
    "agents": {"clerk": {"description": "Fills in forms", "model": "openai/fake-other"}},
    "aliases": {"quick": "openai/fake-large"},
}


@pytest.mark.parametrize("width", [1280, 390])
async def test_the_agent_and_the_model_are_selected_by_the_keyboard(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    async with (
        serving(tmp_path, **SETTINGS) as served,
        chat(browser, served.url, viewport={"width": width, "height": 800}) as page,
    ):
        await say(page, "Hi")
        await expect(answers(page)).to_contain_text("You said")
        picker = page.get_by_role("button", name="Agent and model of this conversation")
        await picker.press("Enter")
        dialog = page.get_by_role("dialog", name="Agent and model")
        await expect(dialog.get_by_role("option", selected=True)).to_have_count(2)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await page.keyboard.type("forms")
        await expect(dialog.get_by_role("option")).to_have_count(1)
        await page.keyboard.press("Enter")
        await expect(picker).to_have_text("clerk · openai/fake-other")
        await expect(picker).to_be_focused()
        await page.keyboard.press("Enter")
        await page.keyboard.type("quick")
        await expect(dialog.get_by_role("option")).to_contain_text("openai/fake-large")
        await page.keyboard.press("Enter")
        await expect(picker).to_have_text("clerk · quick")
        await page.reload()
        await expect(picker).to_have_text("clerk · quick")
        _, shown = await served.ask("GET", f"/api/sessions/{session_of(page)}")
        assert (shown["agent"], shown["model"]) == ("clerk", "quick")
        await say(page, "/agent default")
        await expect(picker).to_have_text("quick")


async def test_a_new_chat_begins_with_the_selected_model(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path, **SETTINGS) as served, chat(browser, served.url) as page:
        await page.get_by_role("button", name="Agent and model of this conversation").click()
        await page.get_by_role("dialog").get_by_role("option", name="quick").click()
        await expect(page.locator(".model")).to_have_text("quick")
        await say(page, "Hi")
        await expect(answers(page).last).to_contain_text("You said: Hi")
        await expect(answers(page).last.locator("footer")).to_contain_text("fake-large")
