"""The web page's microphone and player, in a browser whose microphone beeps."""

from __future__ import annotations

import base64
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.e2e.page_browser import answers, chat, message_field, questions, say, words
from tests.e2e.page_scripts import answering, complete
from tests.e2e.page_server import Frame, PageServer, Turn, stored
from tests.e2e.test_page_gateway import free_port, gateway
from tests.recordings import ogg_opus

_LENGTH = """(audio) => new Promise((done) => {
    audio.addEventListener("loadedmetadata", () => done(audio.duration));
    audio.load();
})"""
MAY_LISTEN: dict[str, Any] = {"permissions": ["microphone"]}


@pytest_asyncio.fixture(loop_scope="session")
async def browser(whole_chromium: Browser) -> AsyncIterator[Browser]:
    """The browser, in which nothing is open; what a test leaves open is closed."""
    yield whole_chromium
    for context in whole_chromium.contexts:
        await context.close()


async def speaking(turn: Turn) -> AsyncIterator[Frame]:
    """A tool that answers with a recording, and with something to look at."""
    recording = {"mime_type": "audio/ogg; codecs=opus", "data": encoded(ogg_opus(1.5)), "name": "said.ogg"}
    page = {"mime_type": "text/html", "data": encoded(b"<script>"), "name": "page.html"}
    call: Frame = {"type": "tool_call", "tool_call_id": "c", "tool_name": "speak", "arguments": {}}
    result = {"type": "tool_result", "tool_call_id": "c", "output": "said", "attachments": [recording, page]}
    yield complete(turn)
    yield stored(turn, [call, result])


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def recorded(page: Page, *, by_key: bool = False) -> None:
    """Record a second, and stop."""
    record = page.get_by_role("button", name="Record a voice message")
    if by_key:
        await record.press("Enter")
    else:
        await record.click()
    await expect(page.get_by_role("timer")).to_have_text(re.compile("0:0[1-9]"))
    stop = page.get_by_role("button", name="Stop recording")
    if by_key:
        await stop.press("Enter")
    else:
        await stop.click()
    await expect(page.get_by_role("button", name="Remove Voice message")).to_be_visible()


async def test_a_recording_that_an_answer_holds_can_be_played(browser: Browser) -> None:
    server = PageServer(speaking)
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "say it aloud")
        player = answers(page).locator("audio")
        await expect(player).to_be_visible()
        await expect(player).to_have_attribute("aria-label", "said.ogg")
        assert await player.evaluate(_LENGTH) == pytest.approx(1.5, abs=0.1)
        await expect(answers(page).get_by_role("link", name="page.html")).to_be_visible()
        await answers(page).locator("tl-tool summary").focus()
        await page.keyboard.press("Tab")
        await expect(player).to_be_focused()
        await page.keyboard.press("Space")
        await expect(player).to_have_js_property("ended", True)


@pytest.mark.parametrize("by_key", [True, False])
async def test_a_voice_message_is_recorded_and_sent(browser: Browser, by_key: bool) -> None:
    server = PageServer(answering("I see."))
    async with server.running(), chat(browser, server.url, **MAY_LISTEN) as page:
        await recorded(page, by_key=by_key)
        await expect(page.get_by_role("timer")).to_have_count(0)
        await expect(message_field(page)).to_be_focused()
        assert await page.locator("tl-attachments audio").evaluate(_LENGTH) is not None
        await say(page, "listen")
        await expect(page.locator("tl-attachments")).to_be_hidden()
        await expect(words(answers(page))).to_have_text("I see.")
        (sent,) = [frame for frame in server.received if frame["type"] == "message"]
        (held,) = [server.uploads[one] for one in sent["uploads"]]
        assert held["mime_type"].startswith("audio/webm")
        assert held["data"].startswith(b"\x1aE\xdf\xa3")


async def test_a_forbidden_microphone_is_reported(browser: Browser) -> None:
    server = PageServer(answering("I see."))
    async with server.running(), chat(browser, server.url, permissions=[]) as page:
        await page.get_by_role("button", name="Record a voice message").click()
        await expect(page.get_by_role("alert")).to_contain_text("Access to the microphone is blocked.")
        await expect(page.get_by_role("button", name="Stop recording")).to_have_count(0)


async def test_a_recording_is_attached_and_removed_and_there_is_one(browser: Browser) -> None:
    server = PageServer(answering("I see."))
    async with server.running(), chat(browser, server.url) as page:
        files: list[Any] = [
            {"name": name, "mimeType": "audio/ogg", "buffer": ogg_opus(1)} for name in ("a.ogg", "b.ogg")
        ]
        await page.locator("input[type=file]").set_input_files(files)
        await expect(page.get_by_role("alert")).to_contain_text(
            "b.ogg was left out: a message can have only one recording"
        )
        await page.get_by_role("button", name="Record a voice message").click()
        await expect(page.locator("#notice")).to_have_text("A message can have only one recording.Dismiss")
        await page.get_by_role("button", name="Remove b.ogg").click()
        await page.get_by_role("button", name="Remove a.ogg").click()
        await expect(page.locator("tl-attachments")).to_be_hidden()
        await page.locator("input[type=file]").set_input_files(files[1:])
        await say(page, "")
        await expect(words(questions(page))).to_have_count(1)
        (sent,) = [frame for frame in server.received if frame["type"] == "message"]
        (held,) = [server.uploads[one] for one in sent["uploads"]]
        assert (held["mime_type"], held["data"]) == ("audio/ogg", ogg_opus(1))


async def test_a_recording_that_is_too_large_is_said_to_be(browser: Browser) -> None:
    server = PageServer(answering("I see."))
    async with server.running(), chat(browser, server.url) as page:
        file: Any = {"name": "long.wav", "mimeType": "audio/wav", "buffer": bytes(10_000_001)}
        await page.locator("input[type=file]").set_input_files([file])
        await expect(page.get_by_role("alert")).to_contain_text("long.wav is too large")


async def test_a_voice_message_reaches_a_real_gateway(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    async with gateway(tmp_path, port), chat(browser, url, **MAY_LISTEN) as page:
        await recorded(page)
        await page.get_by_role("button", name="Send message").click()
        await expect(answers(page)).to_contain_text("I cannot listen to voice messages")
        await expect(words(questions(page))).to_have_text("[voice message]")
