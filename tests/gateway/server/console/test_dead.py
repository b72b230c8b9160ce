"""The screen Dead letters in a browser: by cause, with 10,000 rows, answered or dropped after a list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, expect

from gateway.contract.messages import new_id
from gateway.store.inbox import QUARANTINE, read_entry
from gateway.testing.fake_models.script import Refusal
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import serving
from tests.e2e.page_browser import chat
from tests.gateway.server.console.test_frame import FOREIGN, WIDTHS, bury, is_narrow, violations
from tests.gateway.why.cases import Case, line

__all__ = ["FOREIGN"]

MARKUP = "<img src=x onerror=alert(1)>"
OWNER, EYES = "t" * 16 + "0123456789abcdef", "w" * 16 + "0123456789abcdef"
ASK = """async ([method, path]) => {
  const body = method === "POST" ? '{"action": "drop", "all": true}' : undefined;
  const answer = await fetch(path, { method, body, headers: { "Content-Type": "application/json" } });
  return [answer.status, await answer.text()];
}"""
SERVER = {"token": OWNER, "tokens": {"wall": {"token": EYES, "role": "viewer"}}}


async def give_up(case: Case, fake: FakeModels, text: str, reason: str) -> str:
    """Have a message be a dead letter."""
    fake.then(Refusal(401, "wrong"))
    receipt = await case.write(text)
    await case.settled()
    store = case.served.gateway.parts.store
    entry = await store.read(lambda c: read_entry(c, receipt.message_id))
    await store.write(*entry.give_up(reason, None))
    return receipt.message_id


async def fill(case: Case, fake: FakeModels) -> list[str]:
    """Store two dead letters of one cause, one of another, and an unreadable event."""
    found = [await give_up(case, fake, text, f"KeyError: '{text}'") for text in (MARKUP, "Two")]
    found.append(await give_up(case, fake, "Three", f"ValueError: {MARKUP}"))
    event = (QUARANTINE, (new_id(), "line", "bot", "k", "raw", "no text", 1_700_000_000_000))
    await case.served.gateway.parts.store.write(event)
    return found


def rows(page: Page, name: str) -> Any:
    table = page.get_by_role("table", name=name, exact=True)
    return table.locator("tbody:not([aria-hidden]) tr")


async def test_letters_are_answered_and_dropped_by_cause_with_the_keyboard(
    browser: Browser, tmp_path: Path
) -> None:
    async with FakeModels() as fake, line(tmp_path, fake) as case:
        await fill(case, fake)
        base = f"{case.served.url}/console/dead"
        async with chat(browser, base, connected=False, expected="404") as page:
            await expect(rows(page, "Causes")).to_have_count(3)
            await expect(rows(page, "List of dead letters")).to_have_count(4)
            await expect(page.get_by_text("4 dead letters, 3 causes")).to_be_visible()
            assert await page.locator("#main img").count() == 0
            # A cause is in the address, and its chip leads back.
            cause = rows(page, "Causes").filter(has_text="KeyError")
            await expect(cause).to_contain_text("2")
            await cause.get_by_role("link").press("Enter")
            await expect(page).to_have_url(f"{base}?cause=-%3AKeyError%3A-")
            await expect(rows(page, "List of dead letters")).to_have_count(2)
            await page.reload()
            await expect(rows(page, "List of dead letters")).to_have_count(2)
            await page.get_by_role("button", name="Only: an internal error (KeyError)").press("Enter")
            await expect(page).to_have_url(base)
            await expect(rows(page, "List of dead letters")).to_have_count(4)
            # The dry run lists what would happen; nothing happens before its confirmation.
            await cause.get_by_role("button", name="Answer again").press("Enter")
            dialog = page.get_by_role("dialog", name="Answer again")
            await expect(dialog).to_contain_text("2 messages would be answered.")
            await expect(dialog.get_by_role("listitem").filter(has_text=MARKUP)).to_have_count(1)
            await expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
            await page.keyboard.press("Enter")
            await expect(dialog).to_have_count(0)
            await expect(page.get_by_role("heading", level=1)).to_be_focused()
            await cause.get_by_role("button", name="Answer again").press("Enter")
            await dialog.get_by_role("button", name="Answer 2").press("Enter")
            await expect(dialog).to_contain_text("Done: 2 messages were answered again.")
            await page.keyboard.press("Escape")
            await expect(rows(page, "List of dead letters")).to_have_count(2)
            assert case.platform.answers("kitchen")[-2:] == [f"You said: {MARKUP}", "You said: Two"]
            # One letter, then the rest.
            letter = rows(page, "List of dead letters").filter(has_text="Three")
            await letter.get_by_role("button", name="Drop").press("Enter")
            dialog = page.get_by_role("dialog", name="Drop messages")
            await expect(dialog).to_contain_text("1 message would be dropped.")
            await expect(dialog).not_to_contain_text("false")
            await dialog.get_by_role("button", name="Drop 1").press("Enter")
            await expect(dialog).to_contain_text("Done: 1 message was dropped.")
            await page.keyboard.press("Escape")
            await expect(rows(page, "List of dead letters")).to_have_count(1)
            await page.get_by_role("button", name="Drop all").press("Enter")
            await dialog.get_by_role("button", name="Drop 1").press("Enter")
            await page.keyboard.press("Escape")
            await expect(page.get_by_text("No dead letters")).to_be_visible()


async def test_ten_thousand_letters_scroll_with_two_hundred_rows(browser: Browser, tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await bury(served, 10_000)
        async with chat(browser, f"{served.url}/console/dead", connected=False) as page:
            table = page.get_by_role("table", name="List of dead letters")
            await expect(table).to_have_attribute("aria-rowcount", "10001")
            shown, focused = rows(page, "List of dead letters"), page.locator(":focus")
            await page.keyboard.press("j")
            for end in range(500, 10_001, 500):
                await page.keyboard.press("End")
                last = shown.filter(has=focused)
                await expect(last).to_have_attribute("aria-rowindex", str(end + 1))
                assert await shown.count() <= 200
                if end < 10_000:
                    await expect(page.locator(f"[aria-rowindex='{end + 2}']")).to_be_attached()
            await expect(shown.last).to_contain_text(" 9999")


async def test_a_viewer_sees_causes_and_reasons_without_texts(browser: Browser, tmp_path: Path) -> None:
    async with FakeModels() as fake, line(tmp_path, fake, server=SERVER) as case:
        case.served.http.headers.update({"Authorization": f"Bearer {OWNER}"})
        ids = await fill(case, fake)
        async with chat(browser, f"{case.served.url}/console/dead", connected=False, expected="403") as page:
            await page.get_by_label("Token or code").fill(EYES)
            await page.keyboard.press("Enter")
            await expect(rows(page, "Causes")).to_have_count(3)
            listed = rows(page, "List of dead letters")
            await expect(listed.filter(has_text="ValueError")).to_have_count(1)
            await expect(listed.filter(has_text=f"{ids[1][:9]}…")).not_to_have_count(0)
            await expect(page.locator("#main").get_by_role("button", name="Drop")).to_have_count(0)
            await expect(page.locator("#main").get_by_role("button", name="Answer")).to_have_count(0)
            refused = [
                await page.evaluate(ASK, [method, path])
                for method, path in (
                    ("GET", f"/api/dead/{ids[0]}"),
                    ("POST", "/api/dead/plan"),
                    ("POST", f"/api/dead/{ids[0]}/replay"),
                    ("DELETE", f"/api/dead/{ids[0]}"),
                )
            ]
            assert [status for status, _ in refused] == [403] * 4
            status, found = await page.evaluate(ASK, ["GET", "/api/dead"])
            assert (status, "Two" in found, "ValueError" in found) == (200, False, True)


async def test_dead_letters_are_accessible_in_german_at_every_width(
    browser: Browser, foreign: Path, tmp_path: Path
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"locale": "de-AT", "bypass_csp": True}
    async with FakeModels() as fake, line(tmp_path, fake) as case:
        await fill(case, fake)
        async with chat(
            browser, f"{case.served.url}/console/dead?cause=-:KeyError:-", connected=False, **how
        ) as page:
            await expect(rows(page, "Ursachen")).to_have_count(3)
            for width in WIDTHS:
                await page.set_viewport_size({"width": width, "height": 800})
                assert await is_narrow(page), width
                if width in (320, 1280):
                    assert await violations(page, axe) == [], width
            await page.get_by_role("button", name="Alle erneut beantworten").press("Enter")
            await expect(page.get_by_role("dialog").get_by_role("listitem")).to_have_count(4)
            assert await violations(page, axe) == []
            await page.set_viewport_size({"width": 320, "height": 700})
            assert await is_narrow(page)
