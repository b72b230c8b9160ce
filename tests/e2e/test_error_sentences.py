"""Every face says an error in the same sentence: channels, terminal, exports, shared pages and the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect
from rich.console import Console

from channels.discord import render as discord
from channels.slack import render as slack
from channels.telegram import render as telegram
from gateway import Message
from gateway.cli.chat import screen
from gateway.contract.errors import AuthFailedError, FallbackExhaustedError, PluginError, sentence
from gateway.files.answers import answer_markdown
from gateway.pipeline.agent import error_part
from gateway.testing.fake_models.script import Refusal
from gateway.testing.served import serving
from tests.e2e.page_browser import answers, chat, say

ERRORS = (
    (AuthFailedError("The server rejected the API key (401)."), "The server rejected the API key (401)."),
    (
        PluginError("plugin 'x' failed in before_llm_call: ValueError: no luck"),
        "plugin 'x' failed in before_llm_call: no luck",
    ),
    (FallbackExhaustedError("no model could answer (AuthFailedError)"), "no model could answer"),
    (PluginError(""), "Something went wrong."),
)


@pytest.mark.parametrize(("error", "said"), ERRORS)
def test_all_channels_and_the_terminal_say_the_sentence_of_an_error(error: PluginError, said: str) -> None:
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
