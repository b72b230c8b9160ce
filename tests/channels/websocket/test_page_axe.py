"""The web page passes axe-core, a third-party accessibility checker, also with answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from gateway.testing.served import serving
from tests.e2e.page_browser import act, answers, chat, questions, say, session_of
from tests.e2e.page_scripts import answering, asking_leave, every_part, picture
from tests.e2e.page_server import PageServer
from tests.plugins.coding_agents.fake_session import FakeAgents, FakeSession

ANSWER = (
    "# Plan\n\nA [link](https://example.org), `code`, ~~old~~ **new**.\n\n"
    "- [ ] write the *test*\n- [x] run it\n- [ ]\n\n1. [x] first\n\n   more of it\n\n"
    "| a | b |\n|---|--:|\n| 1 | 2 |\n\n```python\ndef f(): return 1\n```\n\n> quoted\n\n---\n\n"
    "Euler: $e^{i\\pi} + 1 = 0$, for $5.\n\n$$\n\\frac{a}{b}\n- c\n$$\n\n"
    "![a picture](https://example.org/p.png)\n"
)
PHONE: dict[str, Any] = {"viewport": {"width": 360, "height": 740}, "is_mobile": True, "has_touch": True}


async def violations(page: Page, axe: str) -> list[str]:
    """Return the violations that axe finds, one line per rule with its elements."""
    await page.evaluate(axe)
    found = await page.evaluate("axe.run({ resultTypes: ['violations'] }).then((done) => done.violations)")
    return [f"{rule['id']}: {[node['html'] for node in rule['nodes']]}" for rule in found]


@pytest.fixture
def axe(foreign: Path) -> str:
    """Return the source of axe-core."""
    return (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", [{}, PHONE], ids=["desktop", "phone"])
async def test_axe_finds_nothing_in_an_answer(
    browser: Browser, axe: str, scheme: Any, device: dict[str, Any]
) -> None:
    server = PageServer(answering(ANSWER))
    async with (
        server.running(),
        chat(browser, server.url, bypass_csp=True, color_scheme=scheme, **device) as page,
    ):
        await say(page, "Plan it")
        await expect(answers(page).locator("footer")).to_contain_text("tokens")
        tasks = answers(page).get_by_role("checkbox")
        await expect(tasks.nth(0)).to_have_accessible_name("write the test")
        await expect(tasks.nth(2)).to_have_accessible_name("first")
        await expect(answers(page).locator("math")).to_have_count(2)
        await expect(answers(page).locator(".math math mfrac")).to_be_visible()
        assert await violations(page, axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_in_the_login_and_in_messages_that_were_not_sent(
    browser: Browser, axe: str, scheme: Any
) -> None:
    server = PageServer(answering("Hi."), token="t" * 32)
    how: dict[str, Any] = {"connected": False, "bypass_csp": True, "color_scheme": scheme, **PHONE}
    async with server.running(), chat(browser, server.url, **how) as page:
        field = page.get_by_label("Token", exact=True)
        await expect(page.get_by_role("dialog", name="Access token")).to_be_visible()
        assert await violations(page, axe) == []
        await field.fill("t" * 32)
        await page.keyboard.press("Enter")
        await expect(field).to_be_hidden()
        await say(page, "refuse this")
        await expect(questions(page).locator("footer")).to_contain_text("Not sent")
        server.ignore_messages = True
        await say(page, "on its way")
        await expect(questions(page).last.locator("footer")).to_have_text("Sending…")
        assert await violations(page, axe) == []


async def test_axe_finds_nothing_in_tools_errors_and_approvals(browser: Browser, axe: str) -> None:
    server = PageServer(every_part)
    async with server.running(), chat(browser, server.url, bypass_csp=True) as page:
        await say(page, "Everything")
        server.turns[session_of(page)].go.set()
        await expect(answers(page).locator(".error-part")).to_be_visible()
        for summary in await answers(page).locator("summary").all():
            await summary.click()
        assert await violations(page, axe) == []
        server.script = asking_leave
        await say(page, "Ask me")
        await expect(page.get_by_role("group", name="Approval for shell")).to_be_visible()
        assert await violations(page, axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", [{}, PHONE], ids=["desktop", "phone"])
async def test_axe_finds_nothing_in_files_that_are_uploaded_or_refused(
    browser: Browser, axe: str, scheme: Any, device: dict[str, Any]
) -> None:
    server = PageServer(answering("Hi."))
    async with (
        server.running(),
        chat(
            browser,
            server.url,
            bypass_csp=True,
            color_scheme=scheme,
            expected="status of 400",
            **device,
        ) as page,
    ):
        files: list[Any] = [
            {"name": "plan.txt", "mimeType": "text/plain", "buffer": b"x"},
            {"name": "refuse.bin", "mimeType": "application/x-thing", "buffer": b"x"},
            {"name": "field.png", "mimeType": "image/png", "buffer": picture(40, 20)},
        ]
        await page.locator("input[type=file]").set_input_files(files)
        await expect(page.locator("tl-chip[data-state=done]")).to_have_count(2)
        await expect(page.locator("tl-chip[data-state=refused]")).to_have_count(1)
        server.uploading.clear()
        files = [{"name": "a report with quite a long name.txt", "mimeType": "text/plain", "buffer": b"x"}]
        await page.locator("input[type=file]").set_input_files(files)
        await expect(page.get_by_role("progressbar")).to_be_visible()
        assert await violations(page, axe) == []
        width = "document.documentElement.scrollWidth <= innerWidth"
        assert await page.evaluate(width)
        server.uploading.set()
        await expect(page.locator("tl-chip[data-state=done]")).to_have_count(3)


@pytest.mark.parametrize("address", ["", "#/s/never-was"])
async def test_axe_finds_nothing_on_an_empty_page(browser: Browser, axe: str, address: str) -> None:
    server = PageServer(answering("Hi."))
    async with server.running(), chat(browser, server.url + address, bypass_csp=True) as page:
        assert await violations(page, axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", [{}, PHONE], ids=["desktop", "phone"])
async def test_axe_finds_nothing_in_the_list_its_menu_and_the_search(
    browser: Browser, axe: str, scheme: Any, device: dict[str, Any], tmp_path: Path
) -> None:
    async with serving(tmp_path) as served:
        async with served.socket() as client:
            for session, text in (("a", "Something to find"), ("b", "Something else")):
                await client.say(text, session=session)
                await served.idle(session)
        await served.gateway.parts.conversations.search.catch_up()
        async with chat(
            browser, served.url + "/#/s/a", bypass_csp=True, color_scheme=scheme, **device
        ) as page:
            await expect(answers(page)).to_contain_text("You said")
            if device:
                await page.get_by_role("button", name="Conversations").click()
            await act(page, "Something to find", "Pin")
            row = page.get_by_role("region", name="Pinned").get_by_role("link")
            await row.focus()
            await page.keyboard.press("Tab")
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("menuitem").first).to_be_focused()
            assert await violations(page, axe) == []
            await page.keyboard.press("Escape")
            await page.get_by_role("searchbox").fill("find")
            await expect(page.get_by_role("status").filter(has_text="found")).to_be_visible()
            assert await violations(page, axe) == []


@pytest.mark.parametrize("device", [{}, PHONE], ids=["desktop", "phone"])
async def test_axe_finds_nothing_in_the_dialog_of_links(
    browser: Browser, axe: str, device: dict[str, Any], tmp_path: Path
) -> None:
    share = {"enabled": True, "base_url": "http://127.0.0.1"}
    async with (
        serving(tmp_path, share=share) as served,
        chat(browser, served.url, bypass_csp=True, **device) as page,
    ):
        await say(page, "Hi")
        await expect(answers(page)).to_contain_text("You said")
        await page.get_by_role("button", name="Actions for this conversation").click()
        await page.get_by_role("menuitem", name="Share…").click()
        await page.get_by_role("button", name="Create link").click()
        await expect(page.get_by_role("dialog").get_by_role("listitem")).to_have_count(1)
        assert await violations(page, axe) == []


@pytest.mark.parametrize("device", [{}, PHONE], ids=["desktop", "phone"])
async def test_axe_finds_nothing_in_the_choice_of_models(
    browser: Browser, axe: str, device: dict[str, Any], tmp_path: Path
) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url, bypass_csp=True, **device) as page:
        await page.get_by_role("button", name="Agent and model of this conversation").click()
        await expect(page.get_by_role("option", name="main")).to_be_visible()
        assert await violations(page, axe) == []


@pytest.mark.parametrize("device", [{}, PHONE], ids=["desktop", "phone"])
async def test_axe_finds_nothing_in_the_settings_and_the_shortcuts(
    browser: Browser, axe: str, device: dict[str, Any]
) -> None:
    server = PageServer(answering("Hi."))
    how: dict[str, Any] = {"bypass_csp": True, "locale": "de", "connected": False, **device}
    async with server.running(), chat(browser, server.url, **how) as page:
        if device:
            await page.get_by_role("button", name="Unterhaltungen").click()
        await page.get_by_role("button", name="Einstellungen").click()
        assert await violations(page, axe) == []
        await page.get_by_role("button", name="Tastenkürzel").click()
        assert await violations(page, axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("device", [{}, PHONE], ids=["desktop", "phone"])
async def test_axe_finds_nothing_in_the_list_of_coding_agents_and_a_terminal(
    browser: Browser, axe: str, scheme: Any, device: dict[str, Any], tmp_path: Path
) -> None:
    session = FakeSession()
    colours = [f"\x1b[{code}mcolour {code}\x1b[0m " for code in (*range(31, 37), *range(90, 98))]
    session.show("\r\n".join((*colours, "\x1b[2mfaint\x1b[0m \x1b[7mreversed")).encode())
    async with (
        serving(tmp_path, FakeAgents(session)) as served,
        chat(browser, served.url, bypass_csp=True, color_scheme=scheme, **device) as page,
    ):
        if device:
            await page.get_by_role("button", name="Conversations").click()
        await page.get_by_role("button", name="Coding agents").click()
        row = page.get_by_role("dialog").get_by_role("button", name="shell")
        await expect(row).to_be_focused()
        assert await violations(page, axe) == []
        await row.click()
        await expect(page.get_by_role("document", name="Screen of the program")).to_contain_text("reversed")
        assert await violations(page, axe) == []
        await page.get_by_role("button", name="Take the keyboard").click()
        await expect(page.get_by_role("textbox", name="Type into the terminal")).to_be_focused()
        assert await violations(page, axe) == []
        session.end(1)
        await expect(page.get_by_role("dialog").get_by_role("alert")).to_be_visible()
        assert await violations(page, axe) == []
