"""What viewers see: every screen that is open to them, in a browser, and every answer of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Error, Page, Route, expect

from gateway.contract.messages import new_id, now_ms
from gateway.store.inbox import QUARANTINE
from gateway.testing.fake_models.script import Refusal, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import until
from tests.e2e.page_browser import chat
from tests.gateway.server.console.test_login import EYES, OWNER, SERVER
from tests.gateway.why.cases import Case, line

PLANTED = {
    "the message": "quince-and-marzipan",
    "an argument": "persimmon-and-fennel",
    "an error of a provider": "salsify-and-borage",
    "a raw event": "medlar-and-sorrel",
}
ASKING: dict[str, Any] = {
    "permissions": {"door": "ask", "*": "allow"},
    "models": {"openai/fake-small": {"input_price": 10, "output_price": 10}},
    # All screens are opened while the question waits.
    "limits": {"approval_timeout_ms": 600_000},
}
LOADING = "#main .loading"


async def code_of(case: Case) -> str:
    """Return the pairing code of the one who waits, as soon as there is one."""
    async with asyncio.timeout(60):
        while not (found := await case.served.gateway.parts.access.pairing.waiting()):
            await asyncio.sleep(0.01)
    return found[0].code


@asynccontextmanager
async def planted(tmp_path: Path, **server: Any) -> AsyncGenerator[tuple[Case, list[str]]]:
    """Yield a gateway with one of each: an answer, a question, a code, a failure, an unreadable event."""
    async with FakeModels() as fake, line(tmp_path, fake, **ASKING, server=SERVER | server) as case:
        parts = case.served.gateway.parts
        fake.then(Reply((Say(f"I like {PLANTED['the message']}"),)))
        answered = await case.write(f"Say {PLANTED['the message']}")
        await case.settled()
        fake.then(Refusal(400, PLANTED["an error of a provider"]))
        failed = await case.write(f"And {PLANTED['the message']}", chat="porch")
        await case.settled()
        await case.write("Let me in", user="eve")
        await code_of(case)
        raw = PLANTED["a raw event"]
        event = (new_id(), "line", "bot", "k", raw, f"KeyError: {raw}", now_ms())
        await parts.store.write((QUARANTINE, event))
        fake.then(Reply((Use("door", json.dumps({"which": PLANTED["an argument"]})),), "tools"))
        asks = await case.write(f"Open {PLANTED['the message']}", chat="garden")
        await until(lambda: bool(parts.questions.of_message(asks.message_id)))
        yield case, [answered.message_id, failed.message_id, asks.message_id, event[0]]
        await case.write("/stop", chat="garden")
        await case.settled()


class Listener:
    """What a page asked the gateway for, and what it got; streams are read by another test."""

    def __init__(self) -> None:
        self.writes: list[str] = []
        self.refused: list[str] = []
        self.answers: dict[str, str] = {}

    async def pass_on(self, route: Route) -> None:
        """Let a request of the page through, and keep its answer."""
        method, path = route.request.method, route.request.url.partition("/api/")[2]
        if path.startswith("now/events"):
            return await route.continue_()
        if method != "GET":
            self.writes.append(f"{method} {path}")
        try:
            got = await route.fetch()
            self.answers[path] = self.answers.get(path, "") + await got.text()
            if got.status >= 400:
                self.refused.append(f"{got.status} {path}")
            await route.fulfill(response=got)
        except Error:
            # The page left while it waited, so it did not get this answer.
            return None
        return None


async def sign_in(page: Page, token: str) -> None:
    """Sign in with a token, by the form."""
    await page.get_by_label("Token or code").fill(token)
    await page.keyboard.press("Enter")
    await expect(page.locator("#main h1")).to_be_attached()


async def screens_of(page: Page, role: str) -> list[str]:
    """Return the names of the screens of a role, as the page declares them."""
    found = await page.evaluate(
        "async () => (await import('/console/page/screens.js')).SCREENS.map((one) => [one.name, one.roles])"
    )
    return [name for name, roles in found if role in roles]


async def drawn(page: Page) -> None:
    """Wait until a screen has its data."""
    await expect(page.locator("#main h1").first).to_be_attached()
    await expect(page.locator(LOADING)).to_have_count(0)


async def press_all(page: Page, address: str) -> int:
    """Press each button of a screen; return how many there were."""
    buttons = page.locator("#main button:visible")
    count = await buttons.count()
    for number in range(count):
        if page.url != address or await buttons.count() != count:
            await page.goto(address)
            await drawn(page)
        await buttons.nth(number).click()
        if await page.locator("dialog[open]").count():
            await page.keyboard.press("Escape")
            await expect(page.locator("dialog[open]")).to_have_count(0)
    return count


async def test_a_viewer_opens_each_screen_and_finds_neither_texts_nor_writes(
    browser: Browser, tmp_path: Path
) -> None:
    async with (
        planted(tmp_path) as (case, messages),
        chat(browser, f"{case.served.url}/console", connected=False) as page,
    ):
        url = case.served.url
        code = await code_of(case)
        await sign_in(page, EYES)
        heard = Listener()
        await page.context.route("**/api/**", heard.pass_on)
        names = await screens_of(page, "viewer")
        assert {"now", "why", "money", "waiting", "dead"} <= set(names)
        shown = [*names, *(f"why/{message}" for message in messages), "money?by=person", "waiting"]
        pressed = 0
        for name in shown:
            await page.goto(f"{url}/console/{name}")
            await drawn(page)
            await expect(page.locator("#main .failed")).to_have_count(0)
            pressed += await press_all(page, f"{url}/console/{name}")
        assert pressed > len(names)
        bodies = "".join(heard.answers.values())
        assert (heard.writes, heard.refused) == ([], [])
        assert {"now", "usage", "questions", "dead", f"why/{messages[0]}"} <= {
            path.partition("?")[0] for path in heard.answers
        }
        for what, text in {**PLANTED, "a pairing code": code}.items():
            assert text not in bodies, what
            assert text not in await page.content(), what
        assert "trunkline " not in bodies, "a command"
        # Waiting users are counted, also one with a code.
        await page.goto(f"{url}/console/waiting")
        await expect(page.locator("#main .head")).to_contain_text("2 open")
        await page.goto(f"{url}/console/now")
        needs = page.get_by_role("listitem").filter(has_text="waits for access")
        await expect(needs.get_by_role("link")).to_have_text("See more")
        # The screens of admins are not there, whatever the address.
        for name in set(await screens_of(page, "admin")) - set(names):
            await page.goto(f"{url}/console/{name}")
            await expect(page.get_by_role("heading", name="There is no such screen")).to_be_attached()


@pytest.mark.parametrize("reads", ["figures", "messages"])
async def test_the_server_gives_viewers_what_the_settings_say(tmp_path: Path, reads: str) -> None:
    async with planted(tmp_path, viewer_reads=reads) as (case, messages):
        code = await code_of(case)
        viewer = {"Authorization": f"Bearer {EYES}"}
        _, described = await case.served.ask("GET", "/openapi.json")
        paths = [
            path
            for path, found in described["paths"].items()
            if found.get("get", {}).get("x-role") == "viewer"
        ]
        answers = ""
        for path in paths:
            if path == "/api/now/events" or path.startswith("/api/console/"):
                continue
            asked = [held.question.id for held in case.served.gateway.parts.questions.all_open()]
            for one in asked if "/questions/" in path else messages if "{id}" in path else [""]:
                async with case.served.http.get(
                    case.served.url + path.replace("{id}", one), headers=viewer
                ) as got:
                    status, found = got.status, await got.read()
                assert status == 200, (path, status)
                answers += found.decode()
        stream = f"{case.served.url}/api/now/events"
        async with case.served.http.get(stream, headers=viewer) as events, asyncio.timeout(60):
            answers += (await events.content.readuntil(b"\n\n")).decode()
        planted_texts = [*PLANTED.values(), code]
        seen = [text for text in planted_texts if text in answers]
        assert seen == (planted_texts if reads == "messages" else [])
        # The table as a file is an export; the audit log is for admins in any case.
        status = 200 if reads == "messages" else 403
        async with case.served.http.get(f"{case.served.url}/api/usage?format=csv", headers=viewer) as got:
            assert got.status == status
        assert (await case.served.ask("GET", "/api/audit", headers=viewer))[0] == 403
        owner = {"Authorization": f"Bearer {OWNER}"}
        _, usage = await case.served.ask("GET", "/api/usage", headers=owner)
        _, reduced = await case.served.ask("GET", "/api/usage", headers=viewer)
        assert [one.pop("title") for one in usage["top"]]
        assert [one.pop("title", None) for one in reduced["top"]] if reads == "messages" else True
        assert reduced["top"] == usage["top"]
