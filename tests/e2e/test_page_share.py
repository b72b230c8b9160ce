"""Sharing and exporting conversations on the page of a real gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from gateway.testing.fake_models.script import Reply, Say
from gateway.testing.served import serving
from tests.e2e.page_browser import act, answers, chat, say

pytestmark = pytest.mark.slow

SHARE = {"enabled": True, "base_url": "http://127.0.0.1"}


@pytest.mark.parametrize("width", [1280, 390])
async def test_a_link_is_created_copied_opened_counted_and_revoked(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    async with (
        serving(tmp_path, share=SHARE) as served,
        chat(
            browser,
            served.url,
            viewport={"width": width, "height": 800},
            permissions=["clipboard-read", "clipboard-write"],
        ) as page,
    ):
        await say(page, "to be shared")
        await expect(answers(page)).to_contain_text("You said")
        await page.get_by_role("button", name="Actions for this conversation").click()
        await page.get_by_role("menuitem", name="Share…").click()
        dialog = page.get_by_role("dialog", name="Share this conversation")
        links = dialog.get_by_role("list", name="Links of this conversation").get_by_role("listitem")
        await expect(dialog).to_contain_text("messages up to now")
        await expect(links).to_have_count(0)
        await dialog.get_by_text("What the link shows").click()
        preview = dialog.get_by_role("group", name="What the link shows").get_by_role("article")
        await expect(preview.locator("p")).to_have_text(["to be shared", "You said: to be shared"])
        await dialog.get_by_role("combobox", name="Days until the link expires").select_option("30")
        await dialog.get_by_role("button", name="Create link").click()
        link = await dialog.get_by_role("textbox", name="Link").input_value()
        await dialog.get_by_role("button", name="Copy link").click()
        await expect(dialog.get_by_role("button", name="Copied")).to_be_visible()
        assert await page.evaluate("navigator.clipboard.readText()") == link
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        (made,) = await served.gateway.parts.host.shares.list()
        assert round((made.expires_at - made.created_at) / 86_400_000) == 30
        other = await page.context.new_page()
        await other.goto(link.replace("http://127.0.0.1", served.url))
        await expect(other.get_by_role("article").first).to_contain_text("to be shared")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("button", name="Actions for this conversation")).to_be_focused()
        await page.keyboard.press("Enter")
        await page.keyboard.press("Enter")
        await expect(links).to_contain_text("views: 1")
        await dialog.get_by_role("button", name="Revoke").click()
        await expect(links).to_have_count(0)
        answer = await other.request.get(link.replace("http://127.0.0.1", served.url))
        assert answer.status == 404


async def test_a_wide_formula_has_its_own_scrollbar(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path, share=SHARE) as served, served.socket() as client:
        terms = " + ".join(f"a_{{{number}}}" for number in range(60))
        served.models.then(Reply((Say(f"$$\n{terms}\n$$\n"),)))
        await client.say("Add them", session="s")
        await served.idle("s")
        _, shared = await served.ask("POST", "/api/sessions/s/share", json={"days": 1})
        address = shared["url"].replace("http://127.0.0.1", served.url)
        size = {"width": 360, "height": 700}
        async with chat(browser, address, connected=False, viewport=size) as page:
            await expect(page.locator("math")).to_be_visible()
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_sharing_that_the_operator_does_not_allow_is_refused_with_the_reason(
    browser: Browser, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "private")
        await expect(answers(page)).to_contain_text("You said")
        await act(page, "private", "Share…")
        await page.get_by_role("button", name="Create link").click()
        await expect(page.get_by_role("dialog").get_by_role("status")).to_contain_text("sharing is off")


@pytest.mark.parametrize(("choice", "end"), [("Markdown", "md"), ("JSON", "json")])
async def test_a_conversation_is_downloaded(browser: Browser, tmp_path: Path, choice: str, end: str) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await say(page, "keep this")
        await expect(answers(page)).to_contain_text("You said")
        await act(page, "keep this", "Export…")
        dialog = page.get_by_role("dialog", name="Export this conversation")
        await dialog.get_by_role("radio", name=choice).check()
        async with page.expect_download() as coming:
            await dialog.get_by_role("button", name="Download").click()
        await expect(dialog).to_have_count(0)
        download = await coming.value
        assert download.suggested_filename == f"keep-this.{end}"
        text = (await download.path()).read_text()
        assert "You said: keep this" in text
        assert end == "md" or json.loads(text)["session"]["title"] == "keep this"
