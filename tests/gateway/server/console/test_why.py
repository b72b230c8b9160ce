"""The screen Why in a browser: real messages of a real gateway, with failures that a fake provider makes."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Locator, Page, expect
from sqlalchemy import select

from gateway.contract.messages import now_ms
from gateway.store import schema as t
from gateway.testing.fake_models.script import Gate, Refusal, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import until
from tests.e2e.page_browser import chat
from tests.gateway.server.console.test_frame import FOREIGN, WIDTHS, is_narrow, violations
from tests.gateway.why.cases import Case, kinds, line

__all__ = ["FOREIGN"]

MARKUP = "Where is it? <img src=x onerror=alert(1)>"
SENTENCE = "No answer: Groq rejected the API key, and no other model was left."


def providers(first: FakeModels, second: FakeModels) -> dict[str, Any]:
    """Return settings with two providers, of which the second stands in for the first."""
    urls = {"openai": first.openai_url, "groq": second.openai_url}
    each = {name: {"base_url": url, "api_key": "k", "max_retries": 0} for name, url in urls.items()}
    return {"providers": each, "fallback": ("groq/fake-small",)}


async def fail(case: Case, first: FakeModels, second: FakeModels) -> str:
    """Let a message fail at both providers; return its id."""
    first.then(Refusal(529, "overloaded"))
    second.then(Refusal(401, f"wrong key {MARKUP}"))
    receipt = await case.write(MARKUP)
    await case.settled()
    return receipt.message_id


async def is_in_view(page: Page, shown: Locator, below: str = ".tabs") -> bool:
    """Return whether something is seen whole without scrolling, above the bar of a phone."""
    box = await shown.bounding_box()
    bar = await page.locator(below).bounding_box()
    assert box is not None
    assert page.viewport_size is not None
    end = bar["y"] if bar else page.viewport_size["height"]
    return box["y"] >= 0 and box["y"] + box["height"] <= end and await page.evaluate("scrollY") == 0


async def test_why_tells_sentence_cause_and_action_at_a_glance(browser: Browser, tmp_path: Path) -> None:
    async with (
        FakeModels() as first,
        FakeModels() as second,
        line(tmp_path, first, **providers(first, second)) as case,
    ):
        await fail(case, first, second)
        failed = await fail(case, first, second)
        url = f"{case.served.url}/console/why/{failed}"
        async with chat(browser, url, connected=False) as page:
            heading = page.get_by_role("heading", level=1)
            await expect(heading).to_have_text(SENTENCE)
            await expect(heading).to_be_focused()
            cause = page.locator(".sidings .cause")
            await expect(cause).to_contain_text("Groq rejected the API key")
            action = page.get_by_role("button", name="Replace the key")
            for width, height in ((1280, 720), (390, 844)):
                await page.set_viewport_size({"width": width, "height": height})
                for shown in (heading, cause, action):
                    assert await is_in_view(page, shown), (width, await shown.inner_text())
            await expect(page.locator(".why-verdict")).to_contain_text("1 more failed for the same reason")
            stations = page.locator(".line > .station")
            await expect(stations.first).to_contain_text("Received")
            await expect(stations.last).to_contain_text("not reached")
            await expect(page.locator(".sidings > li").last).to_contain_text("Placed in Line")
            # The failed step of the cause is open, and shows the provider's words as text.
            await expect(page.locator(".steps .open:visible")).to_contain_text(f"wrong key {MARKUP}")
            assert await page.locator("#main img").count() == 0
            await expect(page.get_by_role("region", name="saw")).to_contain_text(MARKUP)
            await expect(page.get_by_role("region", name="Identity")).to_contain_text("1 inbox")
            # The keyboard: J and K walk, O opens, and a step keeps its state over the next keys.
            await page.keyboard.press("j")
            first_step = page.locator(".steps .what").first
            await expect(first_step).to_be_focused()
            await page.keyboard.press("o")
            await expect(first_step).to_have_attribute("aria-expanded", "true")
            await page.keyboard.press("j")
            await expect(page.locator(".steps .what").nth(1)).to_be_focused()
            await page.keyboard.press("k")
            await expect(first_step).to_be_focused()
            await action.press("Enter")
            await expect(page).to_have_url(re.compile(r"/console/models/groq\?key=key\+1\+%28api_key%29$"))
            await expect(page.get_by_role("heading", level=1)).to_have_text("Models")
            await page.go_back()
            await expect(heading).to_have_text(SENTENCE)
            # Any id can be pasted: what the gateway does not know is told, too.
            await page.keyboard.press("Control+k")
            await page.keyboard.type("https://line.example/kitchen/4711")
            await page.keyboard.press("Enter")
            await expect(heading).to_have_text("We have no such message.")
            await page.go_back()
            await expect(heading).to_have_text(SENTENCE)


async def test_all_messages_with_a_cause_are_answered_after_a_dry_run(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        FakeModels() as first,
        FakeModels() as second,
        line(tmp_path, first, **providers(first, second)) as case,
    ):
        await fail(case, first, second)
        failed = await fail(case, first, second)
        asked = len(first.requests)
        async with chat(browser, f"{case.served.url}/console/why/{failed}", connected=False) as page:
            await page.get_by_role("button", name="Answer all 2").press("Enter")
            dialog = page.get_by_role("dialog", name="Answer again")
            await expect(dialog.get_by_role("list", name="Messages").get_by_role("listitem")).to_have_count(2)
            await expect(dialog).to_contain_text("2 messages would be answered.")
            # The dry run changes nothing, and what it asks for is not the default.
            await expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
            assert len(first.requests) == asked
            await dialog.get_by_role("button", name="Answer 2").press("Enter")
            await expect(dialog).to_contain_text("Done: 2 messages were answered again.")
            await page.keyboard.press("Enter")
            heading = page.get_by_role("heading", level=1)
            await expect(heading).to_contain_text("Answered in ")
            await expect(heading).to_be_focused()
            assert len(first.requests) == asked + 2


async def audited(case: Case) -> list[tuple[str, str]]:
    query = select(t.audit.c.action, t.audit.c.subject).order_by(t.audit.c.id)
    store = case.served.gateway.parts.store
    return [(row.action, row.subject) for row in await store.read(lambda c: c.execute(query).all())]


async def paired(case: Case) -> list[str]:
    _, found = await case.served.ask("GET", "/api/pairs")
    return [one["user"] for one in found["members"]]


async def test_actions_are_taken_beside_the_verdict(browser: Browser, tmp_path: Path) -> None:
    opened = asyncio.Event()
    file = tmp_path / "gateway.toml"
    file.write_text('[budgets.tiny]\nscope = "user"\nonly = ["line:ada"]\nstop = 0.000001\n')
    prices = {"openai/fake-small": {"input_price": 1, "output_price": 1}}
    async with FakeModels() as fake, line(tmp_path, fake, file=file, models=prices) as case:
        over = await case.write("Hello")
        await case.settled()
        stranger = await case.write("Let me in", "eve", "porch")
        await case.settled()
        fake.then(Reply((Say("One"), Gate(opened), Say(" two."))))
        url = f"{case.served.url}/console/why"
        async with chat(browser, f"{url}/{over.message_id}", connected=False) as page:
            heading = page.get_by_role("heading", level=1)
            await expect(heading).to_contain_text("a budget stopped it")
            await page.get_by_role("button", name="Raise the budget").press("Enter")
            dialog = page.get_by_role("dialog", name="budgets.tiny.stop")
            await expect(dialog.get_by_role("textbox")).to_have_value("0.000001")
            await dialog.get_by_role("textbox").fill("5")
            await page.keyboard.press("Enter")
            await dialog.get_by_role("button", name="Save").press("Enter")
            await expect(page.get_by_text("The budget is changed.")).to_be_attached()
            assert "stop = 5" in file.read_text()

            await page.goto(f"{url}/{stranger.message_id}")
            await page.get_by_role("button", name="Allow the sender").press("Enter")
            await expect(page).to_have_url(re.compile("/console/waiting/pair-line-eve$"))
            await page.locator('[data-answer="once"]').press("Enter")
            await expect(page.get_by_text("Nothing waits for a person").first).to_be_visible()
            assert await paired(case) == ["eve"]

            running = await case.write("Tell me", "ben", "garden")
            waiting = await case.write("And then?", "ben", "garden")
            waiting_key = f"garden:{case.number}"
            edit = await case.write("And then, please?", "ben", "garden", revises=waiting_key)
            await page.goto(f"{url}/{running.message_id}")
            await page.get_by_role("button", name="Stop").press("Enter")
            await expect(heading).to_have_text("No answer: a person stopped it.")
            assert ("answer.stop", "line:bot:garden") in await audited(case)
            opened.set()
            await case.settled()
            await page.goto(f"{url}/{waiting.message_id}")
            await page.get_by_role("button", name="Open that message").press("Enter")
            await expect(page).to_have_url(re.compile(f"/console/why/{edit.message_id}$"))


async def test_a_refused_tool_names_its_rule(browser: Browser, tmp_path: Path) -> None:
    rules = {"<b>front</b>": "deny", "*": "allow"}
    async with FakeModels() as fake, line(tmp_path, fake, permissions={"door": rules}) as case:
        call = Use("door", '{"which": "<b>front</b>"}')
        fake.then(Reply((call,), "tools"), Reply((Say("I could not."),)))
        asked = await case.write("Open it")
        await case.settled()
        url = f"{case.served.url}/console/why/{asked.message_id}"
        async with chat(browser, url, connected=False) as page:
            heading = page.get_by_role("heading", level=1)
            await expect(heading).to_contain_text(
                "the tool door did not run: a rule of [permissions] forbids it"
            )
            shown = page.locator(".why-verdict .rule")
            await expect(shown).to_have_text("Rule: door: <b>front</b>")
            opened = page.get_by_role("button", name="Rules of tools")
            for width, height in ((1280, 720), (390, 844)):
                await page.set_viewport_size({"width": width, "height": height})
                for one in (heading, shown, opened):
                    assert await is_in_view(page, one), (width, await one.inner_text())
            await expect(page.locator(".line > .station").last).to_contain_text("Answer")
            await expect(page.locator(".steps")).to_contain_text("Refused by rule door: <b>front</b>")
            await opened.click()
            await expect(page).to_have_url(re.compile(r"/console/settings\?q=permissions"))
            await expect(page.get_by_role("row", name="permissions").first).to_be_visible()


async def test_the_pause_before_an_attempt_can_be_ended(browser: Browser, tmp_path: Path) -> None:
    opened = asyncio.Event()
    async with FakeModels() as fake:
        async with line(tmp_path, fake, limits={"drain_seconds": 0}) as case:
            fake.then(Reply((Say("One"), Gate(opened))))
            first = await case.write("One")
            await until(lambda: len(fake.requests) == 1)
        opened.set()
        # Its next attempt is far away, as after several crashes.
        later = now_ms() + 3_600_000
        with closing(sqlite3.connect(tmp_path / "data/trunkline.db")) as connection, connection:
            connection.execute("UPDATE inbox SET attempts = 12, not_before = ?", (later,))
        async with line(tmp_path, fake, limits={"max_attempts": 20}) as case:
            async with asyncio.timeout(60):
                while "now" not in kinds(found := await case.why(first.message_id)):
                    await asyncio.sleep(0.02)
            begin = "No answer yet: it waits for its next attempt until "
            assert (found["verdict"]["code"], found["verdict"]["text"][: len(begin)]) == ("waiting", begin)
            url = f"{case.served.url}/console/why/{first.message_id}"
            async with chat(browser, url, connected=False) as page:
                await page.get_by_role("button", name="Try now").press("Enter")
                await expect(page.get_by_role("heading", level=1)).to_contain_text("Answered in ")
            assert ("message.now", first.message_id) in await audited(case)
            status, _ = await case.served.ask("POST", f"/api/why/{first.message_id}/now")
            assert status == 409


async def test_why_is_accessible_in_german_at_every_width(
    browser: Browser, foreign: Path, tmp_path: Path
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"locale": "de-AT", "bypass_csp": True}
    async with (
        FakeModels() as first,
        FakeModels() as second,
        line(tmp_path, first, **providers(first, second)) as case,
    ):
        failed = await fail(case, first, second)
        answered = await case.write("Hello")
        await case.settled()
        async with chat(browser, f"{case.served.url}/console/why", connected=False, **how) as page:
            await expect(page.get_by_text("Welche Nachricht?")).to_be_visible()
            assert await violations(page, axe) == []
            for message in (failed, answered.message_id):
                await page.goto(f"{case.served.url}/console/why/{message}")
                await expect(page.get_by_role("heading", name="Jeder Schritt")).to_be_visible()
                await expect(page.get_by_role("heading", level=1)).to_contain_text(
                    "Groq hat den API-Schlüssel abgelehnt" if message == failed else "Beantwortet in"
                )
                for width in WIDTHS:
                    await page.set_viewport_size({"width": width, "height": 800})
                    assert await is_narrow(page), width
                    if width in (320, 1280):
                        assert await violations(page, axe) == [], width
