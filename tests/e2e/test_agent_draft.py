"""/agent new on the web page: the draft is shown in a question, and saved once the user agrees."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Browser, expect

from gateway.testing.fake_models.script import Reply, Say
from gateway.testing.served import serving
from tests.e2e.page_browser import answers, chat, say

DRAFT = """---
name: counter
description: Counts things
tools: ["calculator"]
---
You count what the user names. <b>Never</b> guess.
"""


async def test_a_draft_is_shown_saved_and_used_on_the_page(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        served.models.then(Reply((Say(DRAFT),)))
        await say(page, '/agent new "counts what I name"')
        card = page.locator("tl-approval")
        await expect(card).to_contain_text("Save this agent as counter?")
        await expect(card).to_contain_text("You count what the user names. <b>Never</b> guess.")
        await card.get_by_role("button", name="Yes").click()
        await expect(answers(page).last).to_contain_text("The agent counter is saved.")
        await say(page, "/agent counter")
        await expect(answers(page).last).to_contain_text("This session now uses the agent counter.")
        await say(page, "three apples")
        await expect(answers(page).last).to_contain_text("You said: three apples")
        system = served.models.requests[-1].body["messages"][0]
        assert (system["role"], system["content"]) == (
            "system",
            "You count what the user names. <b>Never</b> guess.",
        )
        folder = served.gateway.settings.data_dir / "saved_agents"
        assert [file.name for file in folder.iterdir()] == ["counter.md"]
