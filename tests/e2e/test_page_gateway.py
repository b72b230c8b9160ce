"""The web page on the real gateway, as a new user meets it: no key, no settings, the built-in demo."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, Route, expect

from gateway.testing.fake_models.script import Gate, Reply, Say, titling
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import serving
from tests.documents import pdf
from tests.e2e.page_browser import act, answers, chat, connection, message_field, questions, say, words
from tests.e2e.page_scripts import picture

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """A port to use again: a page finds its gateway under the same address after a restart."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@asynccontextmanager
async def gateway(home: Path, port: int) -> AsyncIterator[Process]:
    """A gateway process with nothing but its own empty home; killed at the end."""
    plain = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT)}
    log = (home / "log").open("ab")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "run", "--port", str(port), "--data-dir", str(home / "data")),
        cwd=home,
        env=plain,
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
    )
    try:
        assert process.stdout is not None
        said = await process.stdout.readline()
        assert said.startswith(b"Trunkline is ready"), f"{said.decode()} {(home / 'log').read_text()}"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        log.close()


async def test_a_new_user_gets_an_answer_with_a_tool_and_finds_it_again(
    browser: Browser, tmp_path: Path
) -> None:
    port = free_port()
    async with gateway(tmp_path, port), chat(browser, f"http://127.0.0.1:{port}/") as page:
        await page.get_by_role("button", name="Ask the clock").click()
        await expect(page.locator(".tool-name")).to_have_text("looking at the clock")
        await expect(page.locator(".tool-status")).to_contain_text("done")
        await expect(answers(page)).to_have_attribute("data-status", "done")
        await expect(answers(page).locator("code")).to_contain_text(["OPENAI_API_KEY", "ANTHROPIC_API_KEY"])
        before = await words(answers(page)).inner_text()
        await page.reload()
        await expect(words(answers(page))).to_have_text(before, use_inner_text=True)
        await expect(questions(page)).to_have_count(1)


async def test_a_killed_gateway_still_gives_its_one_answer(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    async with AsyncExitStack() as stack:
        async with gateway(tmp_path, port) as process:
            page = await stack.enter_async_context(chat(browser, f"http://127.0.0.1:{port}/"))
            await say(page, "count slowly to 5")
            await expect(page.locator(".tool-status")).to_contain_text("running")
            process.kill()
        await expect(connection(page)).to_have_attribute("data-state", "waiting")
        await say(page, "what is 12 * 12?")
        await stack.enter_async_context(gateway(tmp_path, port))
        await page.evaluate("dispatchEvent(new Event('online'))")
        await expect(answers(page)).to_have_count(2)
        await expect(answers(page).nth(1)).to_contain_text("144")
        await expect(words(questions(page))).to_have_text(["count slowly to 5", "what is 12 * 12?"])
        await expect(answers(page).nth(0)).to_contain_text("The tool says")


async def test_a_real_answer_can_be_stopped(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    async with gateway(tmp_path, port), chat(browser, f"http://127.0.0.1:{port}/") as page:
        await say(page, "count slowly to 20")
        await expect(page.locator(".tool-status")).to_contain_text("running")
        await page.keyboard.press("Escape")
        await expect(answers(page).locator("footer")).to_contain_text("Stopped")
        await expect(page.get_by_role("button", name="Send message")).to_be_visible()


async def test_a_picture_is_taken_and_kept(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    async with gateway(tmp_path, port), chat(browser, f"http://127.0.0.1:{port}/") as page:
        file = {"name": "field.png", "mimeType": "image/png", "buffer": picture(300, 200)}
        await page.locator("input[type=file]").set_input_files([file])  # type: ignore[list-item]
        await say(page, "look at this")
        await expect(answers(page)).to_have_attribute("data-status", "done")
        await page.reload()
        await expect(questions(page).get_by_role("img", name="field.png")).to_be_visible()


async def test_documents_and_source_code_are_read_and_kept(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    async with gateway(tmp_path, port), chat(browser, f"http://127.0.0.1:{port}/") as page:
        pages = ("Revenue was 42", *["More"] * 50)
        report = {"name": "report.pdf", "mimeType": "application/pdf", "buffer": pdf(*pages)}
        source = {"name": "sum.py", "mimeType": "text/x-python", "buffer": b"total = 6 * 7"}
        await page.locator("input[type=file]").set_input_files([report, source])  # type: ignore[list-item]
        await expect(page.locator("tl-chip[data-state=done]")).to_have_count(2)
        await page.reload()
        await page.get_by_role("button", name="Remove sum.py").click()
        await page.locator("input[type=file]").set_input_files([source])  # type: ignore[list-item]
        await expect(page.locator(".thumbnail")).to_have_text(["report.pdf", "sum.py"])
        await say(page, "read these")
        await expect(answers(page)).to_have_attribute("data-status", "done")
        await page.reload()
        await expect(questions(page)).to_contain_text("Revenue was 42")
        await expect(questions(page)).to_contain_text("total = 6 * 7")
        box = await questions(page).bounding_box()
        assert box is not None
        assert box["height"] < 700


async def test_an_uploaded_file_survives_a_kill_before_its_message(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    async with gateway(tmp_path, port) as process, chat(browser, url) as page:
        source = {"name": "sum.py", "mimeType": "text/x-python", "buffer": b"total = 6 * 7"}
        await page.locator("input[type=file]").set_input_files([source])  # type: ignore[list-item]
        await expect(page.locator("tl-chip")).to_have_attribute("data-state", "done")
        process.kill()
        await process.wait()
        await expect(connection(page)).not_to_have_text("Connected")
        # A file that is attached without a connection is uploaded when there is one.
        late = {"name": "late.txt", "mimeType": "text/plain", "buffer": b"late text"}
        await page.locator("input[type=file]").set_input_files([late])  # type: ignore[list-item]
        await expect(page.locator("tl-chip").nth(1)).to_have_attribute("data-state", "waiting")
        await message_field(page).fill("read these")
        await message_field(page).press("Enter")
        async with gateway(tmp_path, port):
            await expect(answers(page)).to_have_attribute("data-status", "done")
            await page.reload()
            await expect(questions(page)).to_contain_text("total = 6 * 7")
            await expect(questions(page)).to_contain_text("late text")


async def test_004_t10_a_title_appears_on_the_page_as_soon_as_it_is_made(
    browser: Browser, tmp_path: Path
) -> None:
    settings = {"small_model": "openai/fake-title"}
    async with (
        FakeModels(titling("A trip to Rome")) as models,
        serving(tmp_path, fake=models, **settings) as served,
        chat(browser, served.url) as page,
    ):
        titled = asyncio.Event()

        async def hold(route: Route) -> None:
            """A response about the session that arrives after its title, and was made before it."""
            response = await route.fetch()
            await titled.wait()
            await route.fulfill(response=response, json={**await response.json(), "title": "Where do I go?"})

        await page.route(re.compile(r"/api/sessions/\w+$"), hold)
        await say(page, "Where do I go?")
        title, listed = page.locator("tl-bar h1"), page.locator("tl-sidebar .title")
        await expect(title).to_have_text("A trip to Rome")
        async with page.expect_response(re.compile(r"/api/sessions/\w+$")) as late:
            titled.set()
        await (await late.value).finished()
        await page.evaluate("fetch(location.href).then((page) => page.text())")
        await expect(title).to_have_text("A trip to Rome")
        await expect(listed).to_have_text("A trip to Rome")
        await say(page, "/title My <b>trip</b>")
        await expect(title).to_have_text("My <b>trip</b>")
        await expect(listed).to_have_text("My <b>trip</b>")


async def test_sessions_are_listed_and_can_be_deleted(browser: Browser, tmp_path: Path) -> None:
    port = free_port()
    async with gateway(tmp_path, port), chat(browser, f"http://127.0.0.1:{port}/") as page:
        await say(page, "what is 6 * 7?")
        await expect(answers(page)).to_have_attribute("data-status", "done")
        await page.reload()
        await expect(page.get_by_role("link", name="what is 6 * 7?")).to_be_visible()
        await act(page, "what is 6 * 7?", "Delete…")
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await expect(page.get_by_role("heading", name="What can I do for you?")).to_be_visible()
        await page.reload()
        await expect(connection(page)).to_have_text("Connected")
        await expect(page.get_by_role("navigation").get_by_role("listitem")).to_have_count(0)


async def test_a_message_for_which_there_is_no_room_says_so_and_can_be_sent_again(
    tmp_path: Path, browser: Browser
) -> None:
    gate = Gate(asyncio.Event())
    limits = {"session_inbox": 1, "session_backlog": 0}
    async with serving(tmp_path, limits=limits) as served, chat(browser, served.url) as page:
        served.models.then(Reply((Say("half"), gate, Say(" whole"))))
        await say(page, "one")
        await expect(answers(page)).to_contain_text("half")
        await say(page, "this gets a notice")
        await say(page, "no room")
        refused = questions(page).filter(has_text="no room")
        await expect(refused.locator("footer")).to_contain_text("Not sent: too many messages are waiting")
        await expect(page.locator("#announcements")).to_contain_text("too many messages are waiting")
        # It is kept over a reload: the gateway does not have it.
        await page.reload()
        await expect(refused.locator("footer")).to_contain_text("Not sent")
        await expect(refused.get_by_role("button", name="Copy")).to_be_visible()
        gate.opened.set()
        await expect(words(answers(page)).nth(1)).to_contain_text("Too many messages are waiting")
        await refused.get_by_role("button", name="Try again").click()
        await expect(words(answers(page)).last).to_have_text("You said: no room")
        await expect(refused).to_have_count(1)
