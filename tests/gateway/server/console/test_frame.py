"""The frame of the console: addresses, keyboard, tables, languages, and what a browser complains about."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Literal

from playwright.async_api import Browser, Page, Route, expect

from gateway.contract.messages import new_id
from gateway.server import console
from gateway.settings import Settings
from gateway.store.inbox import QUARANTINE
from gateway.testing.served import Served, serving, until
from tests.channels.websocket import test_page_axe
from tests.e2e.page_browser import chat
from tests.gateway.server.console.test_login import OPS, OWNER, SERVER, browsing
from tests.gateway.server.console.test_viewers import sign_in

GERMAN = Path(console.__file__).parent / "page" / "descriptions_de.json"
FOREIGN = Path(__file__).parents[3] / "channels" / "websocket" / "foreign"
SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
WIDTHS = (320, 390, 768, 1024, 1280, 1440)
MARKUP = "<img src=x onerror=alert(1)> is not a picture"
ROWS = "#main tbody:not([aria-hidden]) tr"
LETTERS = f"#main .letters {ROWS.removeprefix('#main ')}"


async def bury(served: Served, count: int) -> None:
    """Store unreadable events, the newest first in the list with the number 0."""
    rows = [
        (QUARANTINE, (new_id(), "telegram", "main", f"k{n}", "raw", f"{MARKUP} {n}", 1_700_000_000_000 - n))
        for n in range(count)
    ]
    await served.gateway.parts.store.write(*rows)


async def is_narrow(page: Page) -> bool:
    """Return whether the page needs no sideways scrolling."""
    return await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def violations(page: Page, axe: str) -> list[str]:
    """Return the violations that axe finds in the light and in the dark scheme, one line per rule."""
    found: list[str] = []
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)
        found += [f"{scheme}: {one}" for one in await test_page_axe.violations(page, axe)]
    return found


async def overlaps(page: Page, selector: str) -> list[str]:
    """Return the visible labels that the label before them reaches."""
    return await page.evaluate(
        """selector => {
            const labels = [...document.querySelectorAll(selector)].filter((e) => e.getClientRects().length);
            const ends = labels.map((e) => e.getBoundingClientRect().right);
            return labels.slice(1).filter((e, at) => e.getBoundingClientRect().left < ends[at] + 1)
                .map((e) => e.textContent);
        }""",
        selector,
    )


async def test_the_frame_by_keyboard_with_hundreds_of_rows(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await bury(served, 400)
        async with chat(browser, f"{served.url}/console/dead", connected=False) as page:
            await expect(page.get_by_role("heading", name="Dead letters")).to_be_visible()
            table = page.get_by_role("table", name="List of dead letters")
            await expect(table).to_have_attribute("aria-rowcount", "401")
            assert await page.locator(LETTERS).count() <= 200
            await page.keyboard.press("j")
            await page.keyboard.press("j")
            focused = page.locator(":focus")
            await expect(page.locator(LETTERS).filter(has=focused)).to_have_attribute("aria-rowindex", "3")
            await page.keyboard.press("End")
            last = page.locator(LETTERS).filter(has=focused)
            await expect(last).to_have_attribute("aria-rowindex", "401")
            await expect(last).to_contain_text(f"{MARKUP} 399")
            assert await page.locator(LETTERS).count() <= 200
            assert await page.locator("#main img").count() == 0
            await page.keyboard.press("k")
            await page.keyboard.press("Enter")
            await expect(page).to_have_url(f"{served.url}/console/why/" + page.url.rpartition("/")[2])
            await expect(page.get_by_role("heading", name="We have no such message.")).to_be_visible()
            await page.go_back()
            await expect(table).to_be_visible()
            await page.keyboard.press("Control+k")
            await expect(page.get_by_role("searchbox")).to_be_focused()
            await page.keyboard.type("https://t.me/c/12/7")
            await page.keyboard.press("Enter")
            await expect(page).to_have_url(f"{served.url}/console/why/https%3A%2F%2Ft.me%2Fc%2F12%2F7")
            await page.reload()
            await expect(page.get_by_role("heading", name="We have no such message.")).to_be_visible()
            await expect(page.get_by_role("link", name="Dead letters 400")).to_be_visible()
            await page.goto(f"{served.url}/console/nowhere")
            await expect(page.get_by_role("heading", name="There is no such screen")).to_be_attached()
            await page.locator("body").press("?")
            await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()


async def test_the_search_opens_what_the_words_are_for(
    browser: Browser, foreign: Path, tmp_path: Path
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    # A browser reports the answer 404 for a word that is not a session.
    missing: dict[str, Any] = {"expected": "status of 404", "bypass_csp": True}
    async with (
        serving(tmp_path) as served,
        chat(browser, f"{served.url}/console/dead", connected=False, **missing) as page,
    ):
        async with served.socket() as client:
            ack = await client.say("How do I install python3 with a timeout?", session="talk-1")
            await client.until("complete")
        field = page.get_by_role("searchbox", name="Search messages, rooms, settings, ids…")

        async def search(text: str, heading: str) -> None:
            await field.fill(text)
            await field.press("Enter")
            await expect(page.locator("#main h1")).to_contain_text(heading)
            await expect(field).to_have_value("")

        await search("python3", "Conversations")
        await expect(page.locator(ROWS).first).to_contain_text("python3")
        await search("timeout", "Conversations")
        await expect(page.get_by_role("link", name="Settings: ")).to_be_visible()
        assert await violations(page, axe) == []
        await page.get_by_role("link", name="Settings: ").click()
        await expect(page.locator(ROWS).filter(has_text="stream_timeout_ms")).to_be_visible()
        await search("history_window", "Settings")
        await expect(page.locator(ROWS)).to_have_count(1)
        await search(ack["message_id"], "Answered in")
        await search(new_id(), "We have no such message.")
        await search("talk-1", "Conversations")
        await expect(page).to_have_url(f"{served.url}/console/conversations/talk-1")
        await expect(page.locator("#main .turn")).to_contain_text("install python3")
        await search(f"{served.url}/console/settings?q=titles", "Settings")


async def test_the_frame_is_accessible_in_german_at_every_width(
    browser: Browser, foreign: Path, tmp_path: Path
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"locale": "de-AT", "bypass_csp": True}
    async with (
        serving(tmp_path) as served,
        chat(browser, f"{served.url}/console/dead", connected=False, **how) as page,
    ):
        await expect(page.get_by_text("Keine unzustellbaren Nachrichten")).to_be_visible()
        assert await violations(page, axe) == []
        await bury(served, 3)
        await page.reload()
        await expect(page.locator(LETTERS)).to_have_count(3)
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            assert await is_narrow(page), width
            assert await overlaps(page, ".tabs > * > span:not(.count)") == [], width
        assert await violations(page, axe) == []
        await page.set_viewport_size({"width": 390, "height": 844})
        await page.get_by_role("button", name="Mehr").click()
        links = page.get_by_role("dialog", name="Mehr").get_by_role("link")
        await expect(links.first).to_be_visible()
        await expect(links.and_(page.locator("[aria-current]"))).to_contain_text("Unzustellbar")
        assert await violations(page, axe) == []
        # What gets the focus as the dialog closes keeps it, also after the event that tells of it.
        assert await page.evaluate(
            """async () => {
                const [dialog, heading] = ["dialog", "#main h1"].map((one) => document.querySelector(one));
                dialog.close();
                heading.focus();
                await new Promise((done) => dialog.addEventListener("close", done));
                return document.activeElement === heading;
            }"""
        )


async def test_without_a_login_only_the_form_is_shown(browser: Browser, tmp_path: Path) -> None:
    server = {"token": "t" * 16 + "0123456789abcdef"}
    async with (
        serving(tmp_path, server=server) as served,
        chat(browser, f"{served.url}/console/dead", connected=False) as page,
    ):
        await expect(page.get_by_role("heading", name="Sign in to the console")).to_be_visible()
        await page.get_by_label("Token or code").fill("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_have_text("the token is wrong")
        await page.get_by_label("Token or code").fill(server["token"])
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Dead letters")).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("heading", name="Dead letters")).to_be_visible()
        assert await page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])") == (
            '[{},{},""]'
        )
        # While the gateway cannot be reached.
        await page.route("**/api/console/logout", lambda route: route.abort())
        await page.get_by_role("button", name="Account: owner").click()
        await page.get_by_role("menuitem", name="Sign out").click()
        await expect(page.get_by_role("alert")).to_contain_text("You are signed out in this browser")
        await page.unroute("**/api/console/logout")
        await page.reload()
        await expect(page.get_by_role("heading", name="Sign in to the console")).to_be_visible()
        assert await page.context.cookies() == []


async def test_what_was_written_in_a_dialog_outlives_an_expired_login_of_the_same_user(
    browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "trunkline.toml"
    file.write_text("history_window = 20000\n")
    async with (
        serving(tmp_path, file=file, server=SERVER) as served,
        browsing(served) as elsewhere,
        chat(browser, f"{served.url}/console/settings?q=history_window", connected=False) as page,
    ):
        dialog = page.get_by_role("dialog", name="history_window")

        async def expire(account: str) -> None:
            await elsewhere.sign_in(token=account)
            await elsewhere.ask("POST", "/api/console/logout-all")

        for other, value in ((OPS, "20000"), (OWNER, "30000")):
            await sign_in(page, OWNER)
            await page.locator(ROWS).get_by_role("button").press("Enter")
            await dialog.get_by_label("New value").fill("30000")
            await expire(OWNER)
            await page.keyboard.press("Enter")
            await expect(page.get_by_role("heading", name="Sign in to the console")).to_be_visible()
            await expect(dialog).to_have_count(0)
            await sign_in(page, other)
            await expect(page.locator(ROWS)).to_have_count(1)
            if other == OPS:  # another user does not see it
                await expect(dialog).to_have_count(0)
                await expire(OPS)
                await page.reload()
            else:
                await expect(dialog.get_by_label("New value")).to_have_value(value)
        await dialog.get_by_role("button", name="Show the change").press("Enter")
        await expect(dialog.get_by_text("+history_window = 30000")).to_be_visible()
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("waits for the next start")).to_be_visible()
        assert "30000" in file.read_text()


async def test_the_plan_of_an_older_text_is_not_shown(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "trunkline.toml"
    file.write_text("history_window = 20000\n")
    held: list[Route] = []
    async with (
        serving(tmp_path, file=file) as served,
        chat(browser, f"{served.url}/console/settings?q=history_window", connected=False) as page,
    ):

        async def hold(route: Route) -> None:
            held.append(route)
            if len(held) > 1:
                await route.continue_()

        await page.route("**/api/settings/plan", hold)
        await page.locator(ROWS).get_by_role("button").press("Enter")
        dialog = page.get_by_role("dialog", name="history_window")
        field = dialog.get_by_label("New value")
        await field.fill("30000")
        async with page.expect_response("**/api/settings/plan") as answered:
            await page.keyboard.press("Enter")
            await field.fill("40000")
            await until(lambda: len(held) == 1)
            await held[0].continue_()
        await (await answered.value).finished()
        await page.keyboard.press("Enter")
        await expect(dialog.get_by_text("+history_window = 40000")).to_be_visible()
        await page.keyboard.press("Enter")
        await expect(dialog).to_have_count(0)
        assert "40000" in file.read_text()


async def test_a_setting_that_another_admin_changed_is_shown_before_it_is_overwritten(
    browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "trunkline.toml"
    file.write_text("history_window = 20000\n")
    async with (
        serving(tmp_path, file=file) as served,
        chat(browser, f"{served.url}/console/settings?q=history_window", connected=False) as page,
    ):
        await page.locator(ROWS).get_by_role("button").press("Enter")
        dialog = page.get_by_role("dialog", name="history_window")
        await dialog.get_by_label("New value").fill("30000")
        await page.keyboard.press("Enter")
        await expect(dialog.get_by_text("+history_window = 30000")).to_be_visible()
        file.write_text("history_window = 25000\n")
        await dialog.get_by_role("button", name="Save").press("Enter")
        await expect(dialog.get_by_role("alert")).to_contain_text("was changed meanwhile")
        await expect(dialog.get_by_role("button", name="Save")).to_have_count(0)
        await page.keyboard.press("Enter")
        await expect(dialog.get_by_text("-history_window = 25000")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.locator(ROWS)).to_contain_text("25000")
        await expect(page.locator(ROWS).get_by_role("button")).to_be_focused()
        assert file.read_text() == "history_window = 25000\n"


async def test_a_setting_is_changed_by_keyboard_and_every_state_is_accessible(
    browser: Browser, foreign: Path, tmp_path: Path
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    file = tmp_path / "trunkline.toml"
    file.write_text("history_window = 20000\n")
    how: dict[str, Any] = {"bypass_csp": True}
    async with (
        serving(tmp_path, file=file) as served,
        chat(browser, f"{served.url}/console/settings?q=history_window", connected=False, **how) as page,
    ):
        await expect(page.locator(ROWS)).to_have_count(1)
        await expect(page.locator(ROWS)).to_contain_text("next start")
        assert await violations(page, axe) == []
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        dialog = page.get_by_role("dialog", name="history_window")
        await dialog.get_by_label("New value").fill("30000")
        await page.keyboard.press("Enter")
        await expect(dialog.get_by_text("+history_window = 30000")).to_be_visible()
        await expect(dialog.get_by_text("trunkline config set history_window 30000")).to_be_visible()
        await expect(dialog.get_by_text("The change takes effect with the next start")).to_be_visible()
        assert await violations(page, axe) == []
        assert "20000" in file.read_text()
        await expect(dialog.get_by_role("button", name="Save")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("waits for the next start")).to_be_visible()
        assert "30000" in file.read_text()
        await expect(page.get_by_role("listitem").filter(has_text="settings.change.done")).to_be_visible()
        await page.get_by_role("searchbox", name="Search settings").fill("nothing like this")
        await expect(page.get_by_text("Nothing found for")).to_be_visible()
        assert await violations(page, axe) == []
        await page.get_by_role("button", name="Search without filters").click()
        await expect(page.locator(ROWS).first).to_be_visible()
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 800})
            assert await is_narrow(page), width


def descriptions(at: Any) -> set[str]:
    """Return the descriptions of the properties in a JSON Schema."""
    if isinstance(at, list):
        return set[str]().union(*map(descriptions, at))
    if not isinstance(at, dict):
        return set()
    found = set[str]().union(*map(descriptions, at.values()))
    return found | {one["description"] for one in at.get("properties", {}).values() if "description" in one}


async def test_every_description_of_a_setting_is_shown_in_german(browser: Browser, tmp_path: Path) -> None:
    german: dict[str, str] = json.loads(GERMAN.read_text())
    assert german.keys() == descriptions(Settings.model_json_schema())
    unlike = {
        en for en, de in german.items() if sorted(re.findall(r"\d+", en)) != sorted(re.findall(r"\d+", de))
    }
    assert unlike == set()
    shown = german[Settings.model_json_schema()["properties"]["history_window"]["description"]]
    file = tmp_path / "trunkline.toml"
    file.write_text("history_window = 20000\n")
    async with (
        serving(tmp_path, file=file) as served,
        chat(browser, f"{served.url}/console/settings", connected=False, locale="de-DE") as page,
    ):
        await page.get_by_role("searchbox", name="Einstellungen suchen", exact=True).fill("älteste Hälfte")
        await expect(page.locator(ROWS)).to_have_count(1)
        await expect(page.locator(f"{ROWS} [lang]")).to_have_text(shown)
        await page.locator(ROWS).get_by_role("button").press("Enter")
        await expect(page.get_by_role("dialog").get_by_text(shown)).to_have_attribute("lang", "de")
