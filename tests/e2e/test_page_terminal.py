"""The terminals of coding agents on the page."""

from __future__ import annotations

import re
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from playwright.async_api import Browser, Locator, Page, expect

from gateway.testing.served import serving, until
from plugins.coding_agents import CodingAgents
from plugins.coding_agents.workspaces.checkouts import Changes, FileChange
from tests.e2e.page_browser import chat
from tests.plugins.coding_agents.fake_session import RECORD, FakeAgents, FakeSession
from tests.plugins.coding_agents.workspaces.forge import run_git

pytestmark = pytest.mark.slow

SHOWN = (
    "\x1b[1;32mme@host\x1b[0m:\x1b[34m~/app\x1b[0m$ \x1b[7mls\x1b[27m\r\n"
    "\x1b[38;5;208morange\x1b[0m \x1b[48;2;0;0;95mblue\x1b[0m \x1b[2mfaint\x1b[0m <b>no tag</b>\r\n"
    "日本|\r\n"
)


def screen(page: Page) -> Locator:
    return page.get_by_role("document", name="Screen of the program")


def row_with(page: Page, text: str) -> Locator:
    """Return the row of the screen that has this text alone."""
    return screen(page).locator(".rows > div").filter(has_text=re.compile(f"^{re.escape(text)}$"))


async def open_terminal(page: Page, *, phone: bool = False) -> None:
    if phone:
        await page.get_by_role("button", name="Conversations").click()
    await page.get_by_role("button", name="Coding agents").click()
    await page.get_by_role("dialog").get_by_role("button", name="shell").click()


async def take_keyboard(page: Page) -> Locator:
    await page.get_by_role("button", name="Take the keyboard").click()
    field = page.get_by_role("textbox", name="Type into the terminal")
    await expect(field).to_be_focused()
    return field


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_terminal_is_shown_and_typed_in(
    browser: Browser, tmp_path: Path, width: int, scheme: Any
) -> None:
    session = FakeSession()
    session.show(SHOWN.encode())
    blocked = structs.replace(RECORD, id="pty-2-beef0001", agent="claude", status="blocked")
    agents = FakeAgents(FakeSession(record=blocked), session)
    async with (
        serving(tmp_path, agents) as served,
        chat(browser, served.url, viewport={"width": width, "height": 700}, color_scheme=scheme) as page,
    ):
        if width < 800:
            await page.get_by_role("button", name="Conversations").click()
        await page.get_by_role("button", name="Coding agents").click()
        rows = page.get_by_role("dialog").get_by_role("listitem")
        await expect(rows).to_have_count(2)
        await expect(rows.nth(1)).to_contain_text("waits for you")
        await rows.nth(0).get_by_role("button").click()
        await expect(page.get_by_role("heading", name="Terminal abcd1234")).to_be_visible()
        await expect(screen(page)).to_contain_text("me@host:~/app$ ls")
        await expect(screen(page)).to_contain_text("<b>no tag</b>")
        await expect(screen(page).locator(".f208")).to_have_css("color", "rgb(255, 135, 0)")
        await expect(screen(page).locator(".f2.o")).to_have_text("me@host")
        await expect(page.get_by_role("textbox", name="Type into the terminal")).to_be_hidden()
        field = await take_keyboard(page)
        await field.press_sequentially("echo hü")
        await page.keyboard.press("Enter")
        await expect(screen(page)).to_contain_text("echo hü")
        await page.get_by_role("button", name="Ctrl+C").click()
        await page.keyboard.press("Escape")
        await page.keyboard.press("Tab")
        await until(lambda: session.typed == "echo hü\r\x03\x1b\t".encode())
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await page.keyboard.press("Control+.")
        await expect(page.get_by_role("button", name="Take the keyboard")).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await until(lambda: session.watchers == 0)


async def test_columns_are_aligned_and_the_cursor_is_where_the_text_ends(
    browser: Browser, tmp_path: Path
) -> None:
    session = FakeSession()
    session.show("日本|\r\n1234|\r\n🙂ab|".encode())
    async with serving(tmp_path, FakeAgents(session)) as served, chat(browser, served.url) as page:
        await open_terminal(page)
        await expect(screen(page)).to_contain_text("1234|")
        ends = (
            await screen(page)
            .locator(".rows > div")
            .evaluate_all(
                """(rows) => rows.slice(0, 3).map((row) => {
                const range = document.createRange();
                range.selectNodeContents(row);
                return Math.round(range.getBoundingClientRect().right);
            })"""
            )
        )
        cursor = await screen(page).locator(".cursor").bounding_box()
        assert cursor is not None
        assert all(abs(end - cursor["x"]) <= 2 for end in ends), (ends, cursor)


async def test_a_window_only_watches_while_another_one_types(browser: Browser, tmp_path: Path) -> None:
    session = FakeSession()
    async with (
        serving(tmp_path, FakeAgents(session)) as served,
        chat(browser, served.url) as first,
        chat(browser, served.url) as second,
    ):
        await open_terminal(first)
        await open_terminal(second)
        field = await take_keyboard(first)
        await second.get_by_role("button", name="Take the keyboard").click()
        await expect(second.get_by_role("alert").filter(has_text="Another window types")).to_be_visible()
        await field.press_sequentially("shared")
        await expect(screen(second)).to_contain_text("shared")
        await second.get_by_role("button", name="Take it from there").click()
        await expect(second.get_by_role("textbox", name="Type into the terminal")).to_be_focused()
        await expect(first.get_by_role("alert").filter(has_text="has taken the keyboard")).to_be_visible()
        await expect(first.get_by_role("textbox", name="Type into the terminal")).to_be_hidden()
        await second.keyboard.press("Control+.")
        await expect(second.get_by_role("button", name="Take the keyboard")).to_be_focused()
        await expect(second.get_by_role("dialog").get_by_role("alert")).to_be_hidden()
        await take_keyboard(first)
        await first.get_by_role("button", name="Close").click()
        await take_keyboard(second)


async def test_a_paste_and_the_size_of_the_window_reach_the_program(browser: Browser, tmp_path: Path) -> None:
    session = FakeSession()
    session.show(b"\x1b[?2004h")
    async with (
        serving(tmp_path, FakeAgents(session)) as served,
        chat(browser, served.url, permissions=["clipboard-read", "clipboard-write"]) as page,
    ):
        await open_terminal(page)
        await take_keyboard(page)
        await page.evaluate("navigator.clipboard.writeText('two\\nlines')")
        await page.keyboard.press("Control+v")
        await until(lambda: session.typed == b"\x1b[200~two\rlines\x1b[201~")
        await page.get_by_role("button", name="Fit to this window").click()
        await until(lambda: len(session.sizes) == 1)
        rows, columns = session.sizes[0]
        assert (20 < rows < 60, 80 < columns < 200) == (True, True)
        await expect(screen(page).locator(".rows > div")).to_have_count(rows)
        inside = "e => e.scrollWidth <= e.clientWidth && e.scrollHeight <= e.clientHeight"
        assert await screen(page).evaluate(inside)


async def test_a_lost_connection_is_reopened_and_an_end_is_shown(browser: Browser, tmp_path: Path) -> None:
    session = FakeSession()
    async with serving(tmp_path, agents := FakeAgents(session)) as served, chat(browser, served.url) as page:
        await open_terminal(page)
        session.show(b"before")
        await expect(screen(page)).to_contain_text("before")
        await served.gateway.registry.replace("agents", FakeAgents(session))
        session.show(b" and after")
        await expect(screen(page)).to_contain_text("before and after")
        await expect(page.get_by_role("dialog").get_by_role("alert")).to_be_hidden()
        session.end(1)
        await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("status 1")
        await expect(page.get_by_role("button", name="Take the keyboard")).to_be_disabled()
        assert agents is not None


PATCH = """\
diff --git a/new.py b/new.py
new file mode 100644
--- /dev/null
+++ b/new.py
@@ -0,0 +1,2 @@
+print("<b>")
+diff --git a/x b/x
diff --git a/old.txt b/old.txt
--- a/old.txt
+++ b/old.txt
@@ -1 +1 @@
-one
+two
"""


@pytest.mark.parametrize("width", [1280, 360])
async def test_the_changes_of_a_workspace_are_shown(browser: Browser, tmp_path: Path, width: int) -> None:
    agents = FakeAgents(FakeSession(record=structs.replace(RECORD, workspace="ws-1")))
    files = (
        FileChange("new.py", "A", 2, 0),
        FileChange("old.txt", "M", 1, 1),
        FileChange("p.png", "A", -1, -1),
    )
    async with (
        serving(tmp_path, agents) as served,
        chat(browser, served.url, viewport={"width": width, "height": 700}, expected="status of 404") as page,
    ):
        await open_terminal(page, phone=width < 800)
        await page.get_by_role("button", name="Changes").click()
        shown = page.get_by_role("dialog", name="Changes")
        await expect(shown.get_by_role("alert")).to_contain_text("no such workspace")
        await shown.get_by_role("button", name="Close").click()
        agents.changes = Changes("", files, PATCH, truncated=True)
        await page.get_by_role("button", name="Changes").click()
        await expect(shown).to_contain_text("3 files changed +3 \u22121")
        await shown.get_by_text("new.py").click()
        await expect(shown.get_by_role("group", name="Diff of new.py")).to_contain_text('+print("<b>")')
        await shown.get_by_text("old.txt").click()
        await expect(shown.get_by_role("group", name="Diff of old.txt")).to_contain_text("-one")
        await expect(shown.get_by_role("group", name="Diff of old.txt")).not_to_contain_text("print")
        await shown.get_by_text("p.png").click()
        await expect(shown.get_by_role("group", name="Diff of p.png")).to_contain_text("left out")
        await expect(shown.get_by_role("note")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog", name="Terminal")).to_be_visible()


async def test_without_the_plugin_there_is_no_button(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        await expect(page.get_by_role("button", name="Settings")).to_be_visible()
        await expect(page.get_by_role("button", name="Coding agents")).to_be_hidden()


async def test_a_real_shell_is_driven_from_a_phone_and_from_a_desk(browser: Browser, tmp_path: Path) -> None:
    plugin = CodingAgents()
    code = tmp_path / "code" / "app"
    code.mkdir(parents=True)
    (code / "old.txt").write_text("one\n")
    run_git(code, "init", "-q")
    run_git(code, "add", "-A")
    run_git(code, "commit", "-qm", "First")
    settings = {"min_free_memory_mb": 0, "sandbox": "off", "allowed_roots": [str(tmp_path / "code")]}
    async with (
        serving(tmp_path, plugin, plugins={"coding_agents": settings}) as served,
        chat(browser, served.url, viewport={"width": 360, "height": 700}) as phone,
        chat(browser, served.url) as desk,
    ):
        status, made = await served.ask("POST", "/api/workspaces", json={"repo": str(code)})
        assert status == 200, made
        body = {"agent": "shell", "workspace": made["id"]}
        status, view = await served.ask("POST", "/api/coding-agents", json=body)
        assert status == 200, view
        session = (await plugin.service()).session(view["id"], "owner")
        try:
            await open_terminal(phone, phone=True)
            await open_terminal(desk)
            field = await take_keyboard(phone)
            await field.press_sequentially("echo $((6*7)) 'grün'")
            await phone.get_by_role("button", name="Enter", exact=True).click()
            for page in (phone, desk):
                await expect(row_with(page, "42 grün")).to_be_visible()
            await desk.get_by_role("button", name="Changes").click()
            changes = desk.get_by_role("dialog", name="Changes")
            await expect(changes).to_contain_text("changed nothing yet")
            await changes.get_by_role("button", name="Close").click()
            await field.press_sequentially("echo two >> old.txt; echo '<b>' > new.py; echo written")
            await phone.keyboard.press("Enter")
            await expect(row_with(desk, "written")).to_be_visible()
            await desk.get_by_role("button", name="Changes").click()
            await expect(changes).to_contain_text("2 files changed +2 \u22120")
            for name, line in (("new.py", "+<b>"), ("old.txt", "+two")):
                await changes.get_by_text(name).click()
                await expect(changes.get_by_role("group", name=f"Diff of {name}")).to_contain_text(line)
            await changes.get_by_role("button", name="Close").click()
            await phone.get_by_role("button", name="Fit to this window").click()
            await field.press_sequentially("stty size; sleep 1000")
            await phone.keyboard.press("Enter")
            screen_of = session.screen
            assert screen_of is not None
            await expect(row_with(phone, f"{screen_of.rows} {screen_of.columns}")).to_be_visible()
            assert screen_of.columns < 60
            await phone.get_by_role("button", name="Ctrl+C").click()
            await phone.get_by_role("button", name="Close").click()
            field = await take_keyboard(desk)
            await field.press_sequentially(
                "printf '\\033[?1049h\\033[2;3Hfull screen'; read x; printf '\\033[?1049l'"
            )
            await desk.keyboard.press("Enter")
            await expect(row_with(desk, "  full screen")).to_be_visible()
            await expect(row_with(desk, "42 grün")).to_have_count(0)
            await desk.keyboard.press("Enter")
            await expect(row_with(desk, "42 grün")).to_be_visible()
            await field.press_sequentially("exit 3")
            await desk.keyboard.press("Enter")
            await expect(desk.get_by_role("dialog").get_by_role("alert")).to_contain_text("status 3")
        finally:
            await session.stop(force=True)


async def test_a_shell_is_shown_again_after_a_restart_of_the_gateway(
    browser: Browser, tmp_path: Path
) -> None:
    plugins: Any = {"coding_agents": {"min_free_memory_mb": 0, "sandbox": "off"}}
    async with AsyncExitStack() as pages:
        async with serving(tmp_path, CodingAgents(), plugins=plugins) as served:
            port = int(served.url.rpartition(":")[2])
            body = {"agent": "shell", "task": "echo $((6*7))"}
            _, view = await served.ask("POST", "/api/coding-agents", json=body)
            page = await pages.enter_async_context(chat(browser, served.url))
            await open_terminal(page)
            await expect(row_with(page, "42")).to_be_visible()
            await take_keyboard(page)
        await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("Connection lost")
        await expect(page.get_by_role("textbox", name="Type into the terminal")).to_be_hidden()
        plugin = CodingAgents()
        async with serving(tmp_path, plugin, plugins=plugins, server={"port": port}):
            session = (await plugin.service()).session(view["id"], "owner")
            try:
                await expect(page.get_by_role("dialog").get_by_role("alert")).to_be_hidden()
                field = await take_keyboard(page)
                await field.press_sequentially("echo $((6*8))")
                await page.keyboard.press("Enter")
                await expect(row_with(page, "48")).to_be_visible()
                await expect(row_with(page, "42")).to_be_visible()
            finally:
                await session.stop(force=True)
