"""Every face says an error in the same sentence: channels, terminal, exports, shared pages and the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from rich.console import Console

from channels.discord import render as discord
from channels.slack import render as slack
from channels.telegram import render as telegram
from gateway import Message
from gateway.cli.chat import screen
from gateway.contract import errors
from gateway.contract.errors import PluginError, ProviderError, TrunklineError, reason_of, sentence
from gateway.contract.provider import ProviderConfig
from gateway.files.answers import answer_markdown
from gateway.pipeline.agent import error_part
from gateway.provider_http.upstream_errors import parse_error_response, redact
from gateway.testing.fake_models.script import Refusal
from gateway.testing.served import serving
from tests.e2e.page_browser import answers, chat, say


def refused(status: int, said: str) -> ProviderError:
    """Return the error of a response, as its provider raises it."""
    error = parse_error_response(status, {}, f'{{"error": {{"message": "{said}"}}}}'.encode()).to_exception()
    return redact(error, ProviderConfig(id="acme"))


ERRORS = (
    (refused(401, "TypeError: bad key"), "acme rejected the API key (401)."),
    (refused(403, "no"), "acme denied access (403)."),
    (refused(400, "what"), "acme rejected the request (400)."),
    (refused(503, "busy"), "acme failed (503)."),
    (PluginError(""), "Something went wrong."),
)


def test_the_page_has_the_same_english_sentences() -> None:
    strings = Path("gateway/server/pages/shared/strings_en.js").read_text()
    found = dict(re.findall(r'"said\.(\w+Error)": "(.*)"', strings))
    assert len(found) == 9
    for name, text in found.items():
        error = getattr(errors, name)("no")
        assert text == f"{{provider}} {reason_of(error)}{{status}}."


@pytest.mark.parametrize(("error", "said"), ERRORS)
def test_all_channels_and_the_terminal_say_the_sentence_of_an_error(error: TrunklineError, said: str) -> None:
    assert sentence(error) == said
    part = error_part(error)
    answer = Message(id="a", session_id="s", role="assistant", parts=(part,))
    console = Console(width=200, record=True)
    console.print(getattr(screen, "_part")(part))  # noqa: B009 - private
    pages = [
        discord.pages(answer, discord.Style(), final=True)[0].text,
        str(slack.pages(answer, final=True)[0]),
        str(telegram.pages_of(answer, final=True)[0]),
        answer_markdown([part]),
        console.export_text(),
    ]
    for page in pages:
        assert said in page.replace("\\", "").replace("&#x27;", "'").replace('"', "'"), page
        assert type(error).__name__ not in page


async def test_the_page_exports_and_shared_pages_say_the_sentence_of_an_error(
    browser: Browser, tmp_path: Path
) -> None:
    share = {"enabled": True, "base_url": "http://127.0.0.1"}
    async with serving(tmp_path, share=share) as served, chat(browser, served.url) as page:
        served.models.then(Refusal(401, "wrong key"))
        await say(page, "Are you there?")
        told = answers(page).locator(".error-part > p").first
        await expect(told).to_be_visible()
        said = await told.inner_text()
        session = page.url.rpartition("/")[2]
        _, log = await served.ask("GET", f"/api/sessions/{session}/messages")
        assert log["messages"][-1]["message"]["parts"][-1]["message"] == said
        _, made = await served.ask("POST", f"/api/sessions/{session}/share", json={})
        for path in (
            f"/api/sessions/{session}/export?format=markdown",
            made["url"].removeprefix("http://127.0.0.1"),
        ):
            async with served.http.get(f"{served.url}{path}") as response:
                text = (await response.text()).replace("&#x27;", "'")
            assert said in text
            assert "AuthFailedError" not in text


async def test_the_page_says_the_error_of_a_provider_in_german(browser: Browser, tmp_path: Path) -> None:
    async with (
        serving(tmp_path) as served,
        chat(browser, served.url, connected=False, locale="de-DE") as page,
    ):
        served.models.then(Refusal(401, "wrong <b>key</b>"))
        await page.get_by_role("textbox", name="Nachricht").fill("Bist du da?")
        await page.keyboard.press("Enter")
        part = page.locator(".error-part")
        await expect(part.locator("> p").first).to_have_text("openai hat den API-Schlüssel abgelehnt (401).")
        # The provider's own words are one level below, as text.
        await expect(part).not_to_contain_text("server refused")
        await part.get_by_text("Einzelheiten").click()
        await expect(part.locator("pre")).to_contain_text("original: wrong <b>key</b>")
        assert await part.locator("pre b").count() == 0
        async with chat(
            browser, f"{served.url}/console/conversations", connected=False, locale="de-DE"
        ) as console:
            await console.goto(f"{served.url}/console/conversations/{page.url.rpartition('/')[2]}")
            await expect(console.locator(".bubble.failed")).to_have_text(
                "openai hat den API-Schlüssel abgelehnt (401)."
            )
