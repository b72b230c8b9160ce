"""Routes that say who or what may act: each asks again who the client is."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser as Chromium
from playwright.async_api import expect

from gateway.access.tokens import cookie_name
from gateway.api import ApiCall, ApiRoute
from gateway.contract.plugin import Plugin
from gateway.contract.tool import Tool, tool_from
from gateway.mcp.plugin import McpPlugin
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.testing.served import Served, serving
from tests.e2e.page_browser import answers, chat, say
from tests.gateway.server.console.test_login import OWNER, SERVER, browsing
from tests.gateway.server.console.test_settings import forget_proof

pytestmark = pytest.mark.slow
PROVED = {
    ("POST", "/api/models/providers/{provider}/keys/{key}"),
    ("PATCH", "/api/plugins/{name}/config"),
    ("POST", "/api/plugins/apply"),
    ("POST", "/api/plugins/decisions"),
    ("POST", "/api/plugins/login"),
    ("POST", "/api/plugins/gate/open"),
}
"""The routes that need a proof for each request. ``/orgs/…`` does too, and takes no cookie."""
BY_TOKEN = {("POST", "/orgs/{orgId}/plugins/install")}


class Gate(Plugin):
    """Has a route that needs a proof, and one that does not."""

    name = "gate"

    def __init__(self) -> None:
        self.opened = 0

    def routes(self) -> Sequence[ApiRoute]:
        async def open_gate(_call: ApiCall[None, None, None]) -> None:
            self.opened += 1

        return (
            ApiRoute("POST", "/open", "Opens.", open_gate, needs_proof=True),
            ApiRoute("POST", "/ring", "Rings.", open_gate),
        )


async def test_each_route_that_says_what_may_act_asks_for_a_proof(tmp_path: Path) -> None:
    gate = Gate()
    async with serving(tmp_path, gate, server=SERVER) as served, browsing(served) as browser:
        _, described = await served.ask("GET", "/openapi.json")
        found = {
            (method.upper(), path)
            for path, methods in described["paths"].items()
            for method, operation in methods.items()
            if operation.get("x-needs-proof")
        }
        assert found == PROVED | BY_TOKEN
        await browser.sign_in(token=OWNER)
        await forget_proof(served)
        for method, path in sorted(PROVED):
            status, refusal = await browser.ask(method, re.sub(r"\{\w+\}", "1", path), {})
            assert (status, refusal["error_name"]) == (403, "ConfirmIdentityError"), path
            assert "ConfirmIdentityError" in str(described["paths"][path][method.lower()]["responses"]["403"])
        assert gate.opened == 0
        # Without a proof all other routes work, and a token in the request is a proof.
        assert (await browser.ask("POST", "/api/plugins/gate/ring", {}))[0] == 204
        owner = {"Authorization": f"Bearer {OWNER}"}
        async with served.http.post(f"{served.url}/api/plugins/gate/open", headers=owner) as answer:
            assert answer.status == 204
        assert (await browser.ask("POST", "/api/console/confirm", {"token": OWNER}))[0] == 204
        assert (await browser.ask("POST", "/api/plugins/gate/open", {}))[0] == 204
        assert gate.opened == 3


async def test_without_a_token_nothing_asks_for_a_proof(tmp_path: Path) -> None:
    gate = Gate()
    async with serving(tmp_path, gate) as served:
        assert (await served.ask("POST", "/api/plugins/gate/open"))[0] == 204


def test_changes_of_mcp_servers_need_a_proof() -> None:
    assert {route.path for route in McpPlugin({}).routes() if route.needs_proof} == {
        "/servers/{server}/refresh",
        "/servers/{server}/approve",
    }


def old_cookie(served: Served) -> dict[str, Any]:
    """Return the cookie of the chat page as a browser got it ten minutes ago."""
    auth = served.gateway.parts.host.auth
    host = served.url.removeprefix("http://")
    return {"name": cookie_name(host), "value": auth.cookie(now=time.time() - 600), "url": served.url}


async def test_the_chat_page_asks_for_the_token_and_continues(browser: Chromium, tmp_path: Path) -> None:
    # The page refuses the first call, and the plugin is not there for the second one.
    async with (
        serving(tmp_path, server=SERVER) as served,
        chat(browser, f"{served.url}/console", connected=False, expected="with a status of 40") as page,
    ):
        await page.context.add_cookies([old_cookie(served)])  # type: ignore[list-item]
        await page.goto(served.url)
        await expect(page.get_by_role("textbox", name="Message")).to_be_visible()
        call = "api.changePluginConfig('no-such-plugin', {})"
        await page.evaluate(f"import('/page/api.js').then((api) => {{ window.done = {call}; }})")
        dialog = page.get_by_role("dialog", name="Confirm that it is you")
        await dialog.get_by_label("Token").fill("wrong")
        await page.keyboard.press("Enter")
        await expect(dialog.get_by_role("alert")).to_have_text("This token was not accepted.")
        await dialog.get_by_label("Token").fill(OWNER)
        await page.keyboard.press("Enter")
        await expect(dialog).to_have_count(0)
        done = await page.evaluate("window.done")
        assert "no plugin 'no-such-plugin'" in done["error"]


class Bell(Plugin):
    """Has a tool that offers "always"."""

    name = "bell"

    def __init__(self) -> None:
        self.rung: list[str] = []

    def tools(self) -> Sequence[Tool]:
        async def ring(door: str) -> str:
            """Ring at a door."""
            self.rung.append(door)
            return "rung"

        return [tool_from(ring, match_key=lambda arguments: arguments["door"])]


async def test_always_in_the_chat_asks_for_the_token(browser: Chromium, tmp_path: Path) -> None:
    bell = Bell()
    async with (
        serving(tmp_path, bell, server=SERVER, permissions={"ring": "ask"}) as served,
        chat(browser, f"{served.url}/console", connected=False, expected="with a status of 403") as page,
    ):
        for _ in range(2):
            served.models.then(Reply((Use("ring", '{"door":"left"}'),), "tools"), Reply((Say("Done."),)))
        await page.context.add_cookies([old_cookie(served)])  # type: ignore[list-item]
        await page.goto(served.url)
        await say(page, "Ring")
        await page.get_by_role("button", name="Always: left").click()
        dialog = page.get_by_role("dialog", name="Confirm that it is you")
        await expect(dialog).to_be_visible()
        assert bell.rung == []
        await dialog.get_by_label("Token").fill(OWNER)
        await page.keyboard.press("Enter")
        await expect(answers(page)).to_contain_text("Done.")
        await say(page, "Ring again")
        await expect(answers(page)).to_have_count(2)
        await expect(answers(page).nth(1)).to_contain_text("Done.")
        assert bell.rung == ["left", "left"]


async def test_an_old_cookie_allows_nothing_for_always(tmp_path: Path) -> None:
    bell = Bell()
    async with serving(tmp_path, bell, server=SERVER, permissions={"ring": "ask"}) as served:
        cookie = old_cookie(served)
        headers = {"Cookie": f"{cookie['name']}={cookie['value']}", "Origin": served.url}
        async with served.socket(html=True, headers=headers) as client:
            for _ in range(2):
                served.models.then(Reply((Use("ring", '{"door":"left"}'),), "tools"), Reply((Say("."),)))
            await client.say("Ring", session="s")
            asked = await client.until("approval_request")
            settle = f"/api/sessions/s/approvals/{asked['approval_id']}"
            for decision in ("always", ["always"]):
                answer = {"session": "s", "approval_id": asked["approval_id"], "decision": decision}
                await client.send(type="approval", **answer)
                assert (await client.until("error"))["error_name"] == "UnauthorizedError"
                async with served.http.post(
                    f"{served.url}{settle}", json={"decision": decision}, headers=headers
                ) as refused:
                    assert (refused.status, (await refused.json())["error_name"]) == (
                        403,
                        "ConfirmIdentityError",
                    )
            # A typed word cannot be confirmed, so that it means once.
            typed = {"session": "s", "text": "always", "seen": client.seq}
            await client.send(type="message", client_msg_id="typed", **typed)
            assert (await client.until("approval_resolved"))["decision"] == "once"
            await client.until("complete")
            await client.say("Ring again", session="s")
            asked = await client.until("approval_request")
            assert bell.rung == ["left"]
        async with served.socket(token=OWNER) as client:
            answer = {"session": "s", "approval_id": asked["approval_id"], "decision": "always"}
            await client.send(type="resume", session="s", after=0)
            await client.send(type="approval", **answer)
            resolved = await client.until(lambda frame: frame.get("decision") == "always")
            assert resolved["type"] == "approval_resolved"
