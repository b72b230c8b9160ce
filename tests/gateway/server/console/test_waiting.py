"""The screen Waiting in a browser: a tool that asks, and what is decided here and elsewhere."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, expect

from gateway.contract.messages import now_ms
from gateway.server.console.sessions import ConsoleSessions
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import serving, until
from tests.e2e.page_browser import chat
from tests.gateway.server.console.test_frame import FOREIGN, WIDTHS, is_narrow, violations
from tests.gateway.server.console.test_login import OPS, SERVER, Door
from tests.gateway.why.cases import Case, line

__all__ = ["FOREIGN"]

ASKING: dict[str, Any] = {
    "permissions": {"door": "ask", "*": "allow"},
    "limits": {"approval_timeout_ms": 600_000},
}
MARKUP = "<img src=x onerror=alert(1)>"


async def ask(case: Case, fake: FakeModels) -> str:
    """Let a tool ask for its approval; return the question's id."""
    fake.then(Reply((Use("door", json.dumps({"which": MARKUP})),), "tools"))
    receipt = await case.write("Open the door")
    questions = case.served.gateway.parts.questions
    await until(lambda: bool(questions.of_message(receipt.message_id)))
    return questions.of_message(receipt.message_id)[0].question.id


async def test_questions_are_decided_here_and_elsewhere(browser: Browser, tmp_path: Path) -> None:
    async with (
        FakeModels() as fake,
        line(tmp_path, fake, **ASKING) as case,
        chat(browser, f"{case.served.url}/console/waiting", connected=False) as page,
    ):
        await expect(page.get_by_role("heading", name="Waiting for people")).to_be_visible()
        await expect(page.locator(".ask")).to_contain_text("Nothing waits for a person")
        other = await page.context.new_page()
        await other.goto(f"{case.served.url}/console/money")
        waiting = other.get_by_role("link", name="Waiting")
        await expect(waiting).to_have_text("Waiting")
        await ask(case, fake)
        # A screen that shows something else follows what waits.
        await expect(waiting).to_have_text("Waiting1")
        question = page.get_by_role("region", name="The question")
        await expect(question.get_by_role("heading", level=2)).to_have_text("May the tool door run?")
        await expect(question.locator("pre")).to_contain_text(MARKUP)
        await expect(question.get_by_text("What led to it")).to_be_visible()
        await expect(question.get_by_text("Asked by")).to_have_count(0)
        await expect(question.locator(".led")).to_contain_text("Open the door")
        assert await page.locator("#main img").count() == 0
        await expect(page.get_by_role("link", name="Waiting")).to_contain_text("1")
        await other.close()
        live = page.get_by_role("status", name="State of the data")
        await expect(live).to_have_text("Live")
        await page.context.set_offline(True)
        await expect(live).to_contain_text("Connection lost · as of")
        await page.context.set_offline(False)
        await expect(live).to_have_text("Live")
        # Why says the same: the line ends at the person.
        await question.get_by_role("link", name="Why").press("Enter")
        stations = page.locator(".line > .station")
        await expect(stations.nth(-2)).to_have_attribute("data-state", "person")
        await expect(stations.nth(-2)).to_contain_text("for a person")
        await expect(stations.last).to_contain_text("not reached")
        await page.get_by_role("button", name="Decide").press("Enter")
        await expect(question.get_by_role("button", name="Allow once")).to_be_visible()
        # A key decides; the turn goes on, and the audit of the screen names who did it.
        await page.keyboard.press("a")
        await expect(question).to_contain_text("Nothing waits for a person")
        await case.settled()
        assert "open" in str(fake.requests[-1])
        decided = page.get_by_role("listitem").filter(has_text="May the tool door run?")
        await expect(decided).to_have_count(1)
        # Decided in the chat: the card closes by itself, and says that it is over.
        await ask(case, fake)
        await expect(question.get_by_role("button", name="Deny")).to_be_visible()
        await case.write("/stop")
        await case.settled()
        await expect(question).to_contain_text("Nothing waits for a person")
        await expect(decided).to_have_count(2)
        await decided.first.get_by_role("link").press("Enter")
        await expect(question.get_by_role("button", name="Deny")).to_have_count(0)


async def test_a_question_stays_under_the_pointer_when_a_more_urgent_one_comes(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        FakeModels() as fake,
        line(tmp_path, fake, **ASKING) as case,
        chat(browser, f"{case.served.url}/console/waiting", connected=False) as page,
    ):
        await case.write("Let me in", "eve", "porch")
        question = page.get_by_role("region", name="The question")
        rows = page.locator(".asks > li")
        await expect(question.get_by_role("button", name="Allow", exact=True)).to_be_visible()
        link = await rows.get_by_role("link").element_handle()
        await ask(case, fake)
        await expect(rows).to_have_count(2)
        assert await link.evaluate("(one) => one.isConnected")
        await expect(rows.first).to_contain_text("door")
        # The time left is that of the gateway, also where the clock of the browser is wrong.
        await page.clock.set_system_time(datetime.now(UTC) + timedelta(hours=1))
        for _ in range(2):
            async with page.expect_response("**/api/questions?state=open"):
                pass
        await expect(rows.first).to_contain_text("9 min")
        await expect(question.get_by_role("button", name="Allow", exact=True)).to_be_visible()
        await page.keyboard.press("a")
        # The pairing is decided; now it is the turn of the other one.
        await expect(rows).to_have_count(1)
        await expect(question.get_by_role("heading", level=2)).to_have_text("May the tool door run?")
        # One that is decided elsewhere stays as decided, too.
        await case.write("Let me in", "mei", "attic")
        await expect(rows).to_have_count(2)
        await case.write("/stop")
        await case.settled()
        await expect(rows).to_have_count(1)
        await expect(question).to_contain_text("withdrawn")
        await expect(question.get_by_role("button", name="Allow", exact=True)).to_have_count(0)
        await page.keyboard.press("a")
        await rows.get_by_role("link").press("Enter")
        await expect(question.get_by_role("button", name="Allow", exact=True)).to_be_visible()


async def test_waiting_is_accessible_in_german_at_every_width(
    browser: Browser, foreign: Path, tmp_path: Path
) -> None:
    axe = (foreign / "node_modules" / "axe-core" / "axe.min.js").read_text()
    how: dict[str, Any] = {"locale": "de-AT", "bypass_csp": True}
    async with FakeModels() as fake, line(tmp_path, fake, **ASKING) as case:
        await ask(case, fake)
        async with chat(browser, f"{case.served.url}/console/waiting", connected=False, **how) as page:
            await expect(page.get_by_role("button", name="Einmal erlauben")).to_be_visible()
            for width in WIDTHS:
                await page.set_viewport_size({"width": width, "height": 800})
                assert await is_narrow(page), width
                if width in (320, 1280):
                    assert await violations(page, axe) == [], width
        await case.write("/stop")
        await case.settled()


async def test_the_difference_of_a_file_is_text(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/a.txt").write_text("one\n")
    settings: dict[str, Any] = {
        "plugins": {"enabled": ["files"], "files": {"roots": [str(tmp_path / "root")]}},
        "permissions": {"edit": "ask", "*": "allow"},
    }
    async with serving(tmp_path / "data", **settings) as served, served.socket() as client:
        markup = '<img src=x onerror="alert(1)"><b>two</b>'
        edit = {"path": "a.txt", "old": "one", "new": markup}
        served.models.then(
            Reply((Use("read", json.dumps({"path": "a.txt"})),), "tools"),
            Reply((Use("edit", json.dumps(edit)),), "tools"),
            Reply((Say("Done"),)),
        )
        await client.say("Please change it", session="s")
        asked = (await client.until("approval_request"))["approval_id"]
        async with chat(browser, f"{served.url}/console/waiting/{asked}", connected=False) as page:
            shown = page.get_by_label("What it changes")
            await expect(shown.locator(".removed")).to_have_text("-one")
            await expect(shown.locator(".added")).to_have_text(f"+{markup}")
            assert await page.locator("#main img").count() == await shown.locator("b").count() == 0
            await page.get_by_role("button", name="Deny").press("Enter")
            await client.until("complete")


async def test_always_asks_for_the_token_again(browser: Browser, tmp_path: Path) -> None:
    door = {"which": "attic"}
    server = {"server": SERVER, "permissions": {"door": "ask"}}
    async with (
        serving(tmp_path, Door(), **server) as served,
        served.socket(token=OPS) as client,
        chat(browser, f"{served.url}/console/waiting", connected=False, expected="status of 403") as page,
    ):
        await page.get_by_label("Token or code").fill(OPS)
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Waiting for people")).to_be_visible()
        parts = served.gateway.parts
        old = ConsoleSessions(parts.store, parts.host.auth, parts.access, lambda: now_ms() - 301_000)
        (login,) = await old.of("ops-laptop")
        await old.confirm(login.id)
        served.models.then(Reply((Use("door", json.dumps(door)),), "tools"), Reply((Say("Done"),)))
        await client.say("Open it", session="s")
        always = page.get_by_role("button", name="Always")
        await expect(always).to_be_visible()
        await always.press("Enter")
        proof = page.get_by_role("dialog").get_by_label("Token or code")
        await expect(proof).to_be_focused()
        assert len(parts.questions.all_open()) == 1
        await page.keyboard.type("wrong")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("alert")).to_have_text("the token is wrong")
        await proof.fill(OPS)
        await page.keyboard.press("Enter")
        await client.until("complete")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        assert [grant.tool for grant in await parts.access.grants.all()] == ["door"]
