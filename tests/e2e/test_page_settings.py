"""Keyboard shortcuts, settings, languages, and what makes the page installable."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from playwright.async_api import Browser, expect

from gateway.server import console
from gateway.server.pages import SHARED
from gateway.server.pages.compact import compact
from gateway.testing.served import serving
from tests.e2e.page_browser import answers, chat, message_field, say
from tests.e2e.page_scripts import answering
from tests.e2e.page_server import PAGE, PageServer

CONSOLE = Path(console.__file__).parent / "page"

MOST_COMPRESSED = 100_000
"""Compressed bytes of the scripts that a page loads, as they are served."""
MOST_TOGETHER = 160_000
"""The same of both pages; a browser loads shared modules once."""
MOST_LATER = 8_500
"""The same of the terminals of coding agents, which load when a user opens them."""
LATER = ("agent", "terminal")


async def test_shortcuts_do_what_their_overview_says(browser: Browser) -> None:
    server = PageServer(answering("Hi."))
    async with server.running(), chat(browser, server.url) as page:
        await say(page, "talk")
        await expect(answers(page)).to_contain_text("Hi.")
        await message_field(page).press("Control+k")
        await expect(page.get_by_role("searchbox")).to_be_focused()
        await page.keyboard.press("Control+Shift+O")
        await expect(page.get_by_role("heading", name="What can I do for you?")).to_be_visible()
        await expect(message_field(page)).to_be_focused()
        await page.keyboard.press("?")
        await expect(message_field(page)).to_have_value("?")
        await message_field(page).fill("")
        await page.get_by_role("link", name="talk").focus()
        await page.keyboard.press("/")
        await expect(message_field(page)).to_have_value("/")
        await page.get_by_role("link", name="talk").focus()
        await page.keyboard.press("?")
        overview = page.get_by_role("dialog", name="Keyboard shortcuts")
        await expect(overview.get_by_role("definition")).to_have_count(12)
        await page.keyboard.press("Escape")
        await expect(overview).to_have_count(0)
        await expect(page.get_by_role("link", name="talk")).to_be_focused()


STORES_NOTHING = """
for (const name of ["localStorage", "sessionStorage"]) {
  Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });
}"""


@pytest.mark.parametrize(("width", "stores"), [(1280, True), (390, True), (1280, False)])
async def test_theme_and_language_are_chosen_and_kept(browser: Browser, width: int, stores: bool) -> None:
    server = PageServer(answering("Hi."))
    size: dict[str, Any] = {"viewport": {"width": width, "height": 800}, "color_scheme": "light"}
    async with server.running(), chat(browser, server.url, **size) as page:
        if not stores:
            await page.add_init_script(STORES_NOTHING)
            await page.reload()
        await message_field(page).fill("a draft")
        if width < 800:
            await page.get_by_role("button", name="Conversations").click()
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("combobox", name="Theme").select_option(label="Dark")
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        await page.get_by_role("combobox", name="Language").select_option(label="Deutsch")
        field = page.get_by_role("textbox", name="Nachricht")
        await expect(field).to_have_value("a draft" if stores else "")
        await expect(page.locator("html")).to_have_attribute("lang", "de")
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        await field.fill("Hallo")
        await field.press("Enter")
        await expect(page.get_by_role("article", name="Assistent")).to_contain_text("Hi.")
        await page.reload()
        await expect(page.get_by_role("textbox", name="Nachricht")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1280, 390])
async def test_the_send_key_is_chosen_and_kept(browser: Browser, width: int) -> None:
    server = PageServer(answering("Hi."))
    size: dict[str, Any] = {"viewport": {"width": width, "height": 800}}
    async with server.running(), chat(browser, server.url, **size) as page:
        if width < 800:
            await page.get_by_role("button", name="Conversations").click()
        await page.get_by_role("button", name="Settings").click()
        await page.get_by_role("combobox", name="Send messages with").select_option(label="Ctrl + Enter")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await page.get_by_role("button", name="Keyboard shortcuts").click()
        rows = page.get_by_role("dialog", name="Keyboard shortcuts").locator("dl > div")
        await expect(rows.filter(has_text="Send the message")).to_contain_text("Ctrl Enter")
        await expect(rows.filter(has_text="New line").locator("kbd")).to_have_text("Enter")
        await page.keyboard.press("Escape")
        for _ in range(2):
            await expect(page.locator("tl-composer .hint")).to_contain_text("Ctrl Enter to send")
            await expect(page.locator("tl-composer .send")).to_have_attribute("title", "Send (Ctrl Enter)")
            await page.reload()
        await expect(page.locator(".connection")).to_have_text("Connected")
        field = message_field(page)
        await field.fill("one")
        await field.press("Enter")
        await field.press_sequentially("two")
        await expect(field).to_have_value("one\ntwo")
        await field.press("Control+Enter")
        await expect(answers(page)).to_contain_text("Hi.")
        assert [f["text"] for f in server.received if f["type"] == "message"] == ["one\ntwo"]


@pytest.mark.parametrize("chosen", ["enter", "ctrl"])
async def test_an_enter_that_ends_a_composition_does_not_send(browser: Browser, chosen: str) -> None:
    server = PageServer(answering("Hi."))
    async with server.running(), chat(browser, server.url) as page:
        await page.evaluate("(key) => localStorage.setItem('trunkline.send_key', key)", chosen)
        await page.reload()
        await expect(page.locator(".connection")).to_have_text("Connected")
        field = message_field(page)
        await field.fill("こん")
        composing = {"key": "Enter", "ctrlKey": chosen == "ctrl", "isComposing": True, "cancelable": True}
        await field.dispatch_event("keydown", composing)
        await field.dispatch_event("keydown", composing | {"isComposing": False, "keyCode": 229})
        await expect(field).to_have_value("こん")
        await field.press("Enter" if chosen == "enter" else "Control+Enter")
        await expect(answers(page)).to_contain_text("Hi.")
        assert [f["text"] for f in server.received if f["type"] == "message"] == ["こん"]


async def test_the_language_is_the_browsers_until_one_is_chosen(browser: Browser) -> None:
    server = PageServer(answering("Hi."))
    async with server.running(), chat(browser, server.url, locale="de-AT", connected=False) as page:
        await expect(page.get_by_role("heading", name="Was kann ich für dich tun?")).to_be_visible()
        await expect(page.locator(".connection")).to_have_text("Verbunden")


@pytest.mark.parametrize("folder", [PAGE, CONSOLE], ids=["chat", "console"])
def test_every_string_exists_in_both_languages_with_the_same_placeholders(folder: Path) -> None:
    known: dict[str, dict[str, list[str]]] = {}
    for language in ("en", "de"):
        text = "".join((one / f"strings_{language}.js").read_text() for one in (folder, SHARED))
        rows = re.findall(r'^  "([\w. -]+)": "(.*)",$', text, re.M)
        assert len(rows) == len(dict(rows))
        known[language] = {key: sorted(re.findall(r"\{(\w+)\}", text)) for key, text in rows}
    assert known["en"] == known["de"]
    files = (path for one in (folder, SHARED) for path in one.glob("*.js"))
    code = {path.name: path.read_text() for path in files if not path.name.startswith("strings_")}
    used = {key for text in code.values() for key in re.findall(r'"((?:\w+\.)+\w+)"', text)}
    missing = {key for key in used if key.partition(".")[0] in {k.partition(".")[0] for k in known["en"]}}
    assert {key for key in missing - known["en"].keys() if not key.endswith((".js", ".css"))} == set()


_WORDS = "(?:a|an|and|are|be|can|cannot|from|has|in|is|it|no|not|of|or|the|this|to|was|with)"
_PROSE = re.compile(rf"(?<![\w.-]){_WORDS} [a-z]|[a-z] {_WORDS}(?![\w.(-])", re.I)
"""Words that texts for users have, and names, selectors and addresses have not."""


@pytest.mark.parametrize("folder", [PAGE, CONSOLE, SHARED], ids=["chat", "console", "shared"])
def test_scripts_have_no_text_that_is_not_translated(folder: Path) -> None:
    known = "".join((one / "strings_en.js").read_text() for one in (folder, SHARED))
    ends = {key.partition(".")[2] for key in re.findall(r'^  "([\w. -]+)": ', known, re.M)}
    found: list[str] = []
    for path in sorted(folder.glob("*.js")):
        if path.name.startswith(("strings_", "marked")):
            continue
        code = re.sub(r"/\*.*?\*/|(?<![:\"'])//[^\n]*", "", path.read_text(), flags=re.S)
        literals = re.findall(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`', code)
        texts = [re.sub(r"\$\{.*?\}(?=[^}]|$)", "", one or two) for one, two in literals]
        found += [f"{path.name}: {text}" for text in texts if _PROSE.search(text) and text not in ends]
    assert found == []


@pytest.mark.parametrize("width", [320, 390])
async def test_choices_are_not_cut_off(browser: Browser, width: int) -> None:
    server = PageServer(answering("Hi."))
    narrow: dict[str, Any] = {"viewport": {"width": width, "height": 740}, "locale": "de-DE"}
    async with server.running(), chat(browser, server.url, connected=False, **narrow) as page:
        await page.get_by_role("button", name="Unterhaltungen").click()
        await page.get_by_role("button", name="Einstellungen").click()
        await expect(page.get_by_role("dialog").get_by_role("combobox")).to_have_count(4)
        missing = await page.evaluate(
            """() => [...document.querySelectorAll("dialog select")].map((shown) => {
                const whole = shown.cloneNode(true);
                whole.style.position = "absolute";
                shown.after(whole);
                const missing = whole.offsetWidth - shown.offsetWidth;
                whole.remove();
                return missing;
            })"""
        )
        assert missing == [0, 0, 0, 0]
        found = "[...document.querySelectorAll('dialog, dialog select')]"
        dialog, *choices = await page.evaluate(f"{found}.map((one) => one.getBoundingClientRect().right)")
        assert max(choices) < dialog <= width


async def test_the_page_can_be_installed(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served, chat(browser, served.url) as page:
        session = await page.context.new_cdp_session(page)
        send: Any = getattr(session, "send")  # noqa: B009 - its type is unknown
        manifest = await send("Page.getAppManifest")
        assert manifest["errors"] == []
        assert manifest["url"].endswith("/page/manifest.webmanifest")
        found = await send("Page.getInstallabilityErrors")
        errors: set[str] = {error["errorId"] for error in found["installabilityErrors"]}
        assert errors <= {"in-incognito"}
        types = {"page/manifest.webmanifest": "application/manifest+json", "page/icon-192.png": "image/png"}
        types |= {"shared/icon.svg": "image/svg+xml"}
        async with aiohttp.ClientSession() as http:
            for name, kind in types.items():
                async with http.get(f"{served.url}/{name}") as answer:
                    assert (answer.status, answer.content_type) == (200, kind)


def loaded(folder: Path) -> set[Path]:
    """Return the files that a page loads before a user opens anything: those that its document leads to."""
    folders = {"/shared/": SHARED, "/page/": PAGE, "/console/page/": CONSOLE}
    found, waiting = set[Path](), [folder / "index.html"]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        if path.suffix not in (".js", ".html"):
            continue
        imported = re.findall(r'^(?:import|\}) ?.*?"(\./|/shared/)([\w.-]+)";$', path.read_text(), re.M)
        linked = re.findall(r'(?:src|href)="(/(?:shared|page|console/page)/)([\w.-]+)"', path.read_text())
        # A browser loads the strings of one language; the German ones are longer.
        spoken = re.findall(r'await import\("(\./)(strings_de\.js)"\)', path.read_text())
        waiting += [folders.get(root, path.parent) / name for root, name in (*imported, *linked, *spoken)]
    return found


def test_the_pages_are_small_and_have_nothing_from_elsewhere() -> None:
    chat_files, console_files = loaded(PAGE), loaded(CONSOLE)
    assert len(chat_files) > 50
    assert len(console_files) > 20
    scripts = {path for path in chat_files | console_files if path.suffix == ".js"}
    size = {path: len(gzip.compress(compact(path))) for path in scripts}
    assert sum(size[path] for path in chat_files & scripts) <= MOST_COMPRESSED
    assert sum(size[path] for path in console_files & scripts) <= MOST_COMPRESSED
    assert sum(size.values()) <= MOST_TOGETHER
    # With the screens that are loaded when they are opened.
    whole = {*console_files, *CONSOLE.iterdir()} - {CONSOLE / "strings_en.js"}
    assert sum(len(gzip.compress(compact(path))) for path in whole if path.suffix == ".js") <= MOST_COMPRESSED
    later = [path for path in PAGE.iterdir() if path.name.startswith(LATER)]
    assert sum(len(gzip.compress(compact(path))) for path in later) <= MOST_LATER
    assert not {path for path in chat_files if path.name.startswith(LATER)}
    for path in (*PAGE.iterdir(), *SHARED.iterdir(), *CONSOLE.iterdir()):
        if path.suffix in (".js", ".css", ".html"):
            foreign = re.findall(r"(?:src|href|from|import|url)\W{1,3}https?://", path.read_text())
            assert foreign == [], path.name


async def test_numbers_are_written_as_in_the_language_of_the_page(browser: Browser) -> None:
    server = PageServer(answering("Hallo."))
    async with server.running(), chat(browser, server.url, connected=False, locale="de-DE") as page:
        await page.get_by_role("textbox", name="Nachricht").fill("Hallo")
        await page.keyboard.press("Enter")
        await expect(page.locator("tl-message footer").last).to_contain_text("30 Token · $0,0042 · 1,5 s")
        sizes = """import('/shared/figures.js').then(
            ({ tokens, size }) => [tokens(1_234), tokens(98_765), size(1_500_000)])"""
        assert await page.evaluate(sizes) == ["1.234 Token", "98,8k Token", "1,5 MB"]


async def test_commands_are_described_in_the_language_of_the_page(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        commands = {one.name: one.description for one in served.gateway.parts.host.commands()}
        strings = (PAGE / "strings_en.js").read_text()
        assert dict(re.findall(r'^  "command\.([\w-]+)": "(.*)",$', strings, re.M)) == commands
        async with chat(browser, served.url, connected=False, locale="de-DE") as page:
            await page.get_by_role("textbox", name="Nachricht").fill("/sto")
            await expect(page.get_by_role("option")).to_have_text("/stopDie laufende Antwort anhalten")


@pytest.mark.parametrize("folder", [PAGE, CONSOLE, SHARED], ids=["chat", "console", "shared"])
def test_no_style_is_for_any_element_after_another(folder: Path) -> None:
    """Each block of a growing answer would let the browser compute the style of all others again."""
    for path in folder.glob("*.css"):
        assert re.findall(r"[+~] \*", compact(path).decode()) == [], path.name
