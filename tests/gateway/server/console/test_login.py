"""The login at the console: proofs, cookies, roles, and what attackers try."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway import Plugin, Tool, tool_from
from gateway.access import Member, UserRef
from gateway.contract.messages import new_id, now_ms
from gateway.server.console.sessions import IDLE_MS, LONGEST_MS, ConsoleSessions
from gateway.settings import Settings
from gateway.store.inbox import QUARANTINE
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.testing.served import Served, serving
from tests.gateway.access.rooms import Platforms, code_in

OWNER = "owner-0123456789abcdef-0123456789"
OPS = "ops-0123456789abcdef-0123456789ab"
EYES = "eyes-0123456789abcdef-0123456789a"
SERVER: dict[str, Any] = {
    "token": OWNER,
    "tokens": {"ops-laptop": {"token": OPS}, "eyes": {"token": EYES, "role": "viewer"}},
}
ADMIN = UserRef("telegram", "7")


class Browser:
    """A browser that has the page of the gateway open: it keeps cookies, and sends its origin."""

    def __init__(self, served: Served) -> None:
        self.url = served.url
        self.http = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def ask(self, method: str, path: str, json: Any = None, **headers: str) -> tuple[int, Any]:
        """Return the status and the JSON of the answer to a request of the page."""
        given = {"Origin": self.url, "Sec-Fetch-Site": "same-origin", **headers}
        sent = {name: value for name, value in given.items() if value}
        async with self.http.request(method, self.url + path, json=json, headers=sent) as answer:
            return answer.status, await answer.json() if answer.content_length else None

    async def sign_in(self, **proof: str) -> tuple[int, Any]:
        """Sign in with a token or a code."""
        return await self.ask("POST", "/api/console/login", proof)

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies that the gateway set."""
        return {cookie.key: cookie.value for cookie in self.http.cookie_jar}


@asynccontextmanager
async def browsing(served: Served) -> AsyncIterator[Browser]:
    """Yield a browser without cookies."""
    browser = Browser(served)
    async with browser.http:
        yield browser


async def code_of(served: Served, user: UserRef) -> str:
    """Return the code that a user gets for the console."""
    codes = served.gateway.parts.access.codes
    given = await codes.give("console", user, valid_ms=300_000, most=10)
    assert given is not None
    return given.code


async def audited(served: Served) -> list[tuple[str, str]]:
    """Return the actors and actions of the audit log, the oldest first."""
    from sqlalchemy import select

    from gateway.store import schema as t

    query = select(t.audit.c.actor, t.audit.c.action).order_by(t.audit.c.id)
    found = await served.gateway.parts.store.read(lambda c: c.execute(query).all())
    return [(row.actor, row.action) for row in found]


async def test_a_token_signs_in_and_out(tmp_path: Path) -> None:
    async with serving(tmp_path, server=SERVER) as served, browsing(served) as browser:
        assert (await browser.ask("GET", "/api/console/session"))[0] == 401
        status, user = await browser.sign_in(token=OPS)
        assert (status, user["account"], user["role"]) == (200, "ops-laptop", "admin")
        (name, value), *others = browser.cookies.items()
        assert name.startswith("trunkline_console_")
        assert others == []
        kept = await served.gateway.parts.store.read(lambda c: str(list(c.connection.iterdump())))  # type: ignore[attr-defined]
        assert value not in kept
        assert OPS not in kept
        assert (await browser.ask("GET", "/api/sessions"))[0] == 200
        # A new login replaces the one before: its cookie does not work any more.
        await browser.sign_in(token=OWNER)
        old = {"Cookie": f"{name}={value}"}
        async with aiohttp.ClientSession(headers=old) as http, http.get(f"{served.url}/api/status") as answer:
            assert answer.status == 401
        assert (await browser.ask("POST", "/api/console/logout"))[0] == 204
        assert browser.cookies == {}
        assert (await browser.ask("GET", "/api/status"))[0] == 401
        assert await audited(served) == [
            ("ops-laptop", "console.login"),
            ("owner", "console.login"),
            ("owner", "console.logout"),
        ]


async def test_the_cookie_is_bound_to_tls_away_from_this_machine(tmp_path: Path) -> None:
    settings = SERVER | {"allowed_origins": ["https://bot.example.org", "http://bot.example.org"]}
    proxied = {"Host": "bot.example.org", "Content-Type": "application/json"}
    async with serving(tmp_path, server=settings) as served:
        url, body = f"{served.url}/api/console/login", {"token": OWNER}
        how = proxied | {"Origin": "https://bot.example.org"}
        async with served.http.post(url, json=body, headers=how) as answer:
            (cookie,) = answer.headers.getall("Set-Cookie")
        assert re.fullmatch(
            r"__Host-trunkline-console=[\w-]{43}; HttpOnly; Path=/; SameSite=Strict; Secure", cookie
        )
        how = proxied | {"Origin": "http://bot.example.org"}
        async with served.http.post(url, json=body, headers=how) as answer:
            assert answer.status == 400
            assert "Set-Cookie" not in answer.headers
            assert "TLS" in (await answer.json())["message"]


async def test_a_page_of_another_origin_can_do_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, server=SERVER) as served, browsing(served) as browser:
        await browser.sign_in(token=OWNER)
        drop, foreign = ("DELETE", "/api/dead/x"), "https://evil.example.org"
        assert (await browser.ask(*drop))[0] == 404
        # Without an origin the cookie does not count; a foreign one is refused by the guard.
        assert (await browser.ask(*drop, Origin=""))[0] == 401
        assert (await browser.ask(*drop, Origin=foreign))[0] == 403
        assert (await browser.ask("GET", "/api/status", **{"Sec-Fetch-Site": "cross-site"}))[0] == 401
        assert (await browser.ask("GET", "/api/status", **{"Sec-Fetch-Site": "same-site"}))[0] == 401
        for headers in ({"Origin": ""}, {"Origin": foreign}):
            assert (await browser.ask("POST", "/api/console/login", {"token": OWNER}, **headers))[0] == 403
        # A form can send text, but not JSON.
        async with browser.http.post(
            f"{served.url}/api/pairs",
            data='{"code": "x"}',
            headers={"Origin": served.url, "Content-Type": "text/plain"},
        ) as answer:
            assert (answer.status, (await answer.json())["message"]) == (400, "send JSON")
        assert (await browser.ask("GET", f"/api/console/login?token={OWNER}"))[0] in (400, 405)


async def test_a_code_signs_in_once_and_wrong_ones_are_limited(tmp_path: Path) -> None:
    async with serving(tmp_path, server=SERVER) as served, browsing(served) as browser:
        access = served.gateway.parts.access
        assert (await browser.sign_in(code="QQQQQQQQ"))[0] == 404
        admin = Member(id=new_id(), channel="telegram", user_id="7", role="admin", approved_by="owner", at=0)
        await access.members.add(admin)
        code = await code_of(served, ADMIN)
        status, user = await browser.sign_in(code=code.lower())
        assert (status, user["account"], user["role"]) == (200, "telegram:7", "admin")
        assert (await browser.ask("GET", "/api/sessions"))[0] == 200
        assert (await browser.sign_in(code=code))[0] == 404
        # A user who is not an admin gets no further with a code.
        assert (await browser.sign_in(code=await code_of(served, UserRef("telegram", "8"))))[0] == 404
        tries = [(await browser.sign_in(code=f"QQQQQQQ{n}"))[0] for n in "3467"]
        assert tries == [404, 404, 404, 429]
        assert (await browser.sign_in(code=await code_of(served, ADMIN)))[0] == 429
        # The role is read for each request: the login ends with it.
        await access.revoke(ADMIN, UserRef("", "owner"))
        assert (await browser.ask("GET", "/api/status"))[0] == 401


async def test_the_command_gives_a_code_that_works(tmp_path: Path) -> None:
    platforms = Platforms()
    async with (
        serving(tmp_path, platforms, channels={"home": {"admins": ["root"]}}, server=SERVER) as served,
        browsing(served) as browser,
    ):
        code = code_in(await platforms.room("1").ask("root", "/console"))
        assert (await browser.sign_in(code=code))[1]["account"] == "home:root"


async def test_the_chat_page_gives_no_code_for_its_old_cookie(tmp_path: Path) -> None:
    async with serving(tmp_path, server=SERVER) as served, served.socket(token=OWNER) as client:
        await client.say("/console", session="a")
        said = str(await client.until(lambda frame: "`/console` at the address" in str(frame)))
        assert "Sign in with your token" in said
        assert await served.gateway.parts.access.codes.open("console") == []


async def test_a_stream_ends_with_its_login_and_hides_texts_from_viewers(tmp_path: Path) -> None:
    async with serving(tmp_path, server=SERVER) as served, browsing(served) as browser:
        await browser.sign_in(token=EYES)
        assert (await browser.ask("GET", "/api/now"))[0] == 200
        assert (await browser.ask("GET", "/api/questions"))[0] == 200
        assert (await browser.ask("GET", "/api/audit"))[0] == 403
        url, headers = f"{served.url}/api/now/events", {"Accept": "text/event-stream"}
        async with browser.http.get(url, headers=headers) as stream:
            assert stream.status == 200
            assert (await browser.ask("POST", "/api/console/logout"))[0] == 204
            async with asyncio.timeout(60):
                await stream.content.read()


async def test_a_viewer_reads_figures_and_changes_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, server=SERVER) as served, browsing(served) as browser:
        row = (new_id(), "telegram", "main", "k", "a secret message", "unreadable", now_ms())
        await served.gateway.parts.store.write((QUARANTINE, row))
        viewer = {"Authorization": f"Bearer {EYES}"}
        _, described = await served.ask("GET", "/openapi.json")
        roles = {"none", "viewer", "admin"}
        refused = 0
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                role = operation["x-role"]
                assert role in roles, path
                assert (role == "none") == (operation.get("security") == []), path
                if role == "admin" or (role == "viewer" and method != "get"):
                    url = re.sub(r"\{\w+\}", "x", path)
                    status, _ = await served.ask(method.upper(), url, headers=viewer)
                    # What a viewer may post concerns a login at the console, which a bearer does not have.
                    assert status == 403 or path.startswith("/api/console/"), (method, path, status)
                    refused += status == 403
        assert refused > 50
        await browser.sign_in(token=EYES)
        assert (await browser.ask("GET", "/api/console/session"))[1]["reads_messages"] is False
        (letter,) = (await browser.ask("GET", "/api/dead"))[1]["dead"]
        assert letter["reason"] == "unreadable"
        assert "text" not in letter
        assert (await browser.ask("DELETE", f"/api/dead/{row[0]}"))[0] == 403
        assert (await browser.ask("GET", "/api/sessions"))[0] == 403
        assert (await browser.ask("GET", "/api/approvals"))[0] == 403
        async with served.socket(token=EYES, greeted=False) as client:
            assert await client.close_code() == 4001
        async with served.http.post(f"{served.url}/api/browser", headers=viewer) as answer:
            assert answer.status == 403
        async with served.socket(token=OWNER) as client:
            await client.say("What is the secret?", session="a")
            await client.until("complete")
        owner = {"Authorization": f"Bearer {OWNER}"}
        _, log = await served.ask("GET", "/api/sessions/a/messages", headers=owner)
        message = log["messages"][0]["message"]["id"]
        assert "the secret" in str(await served.ask("GET", f"/api/why/{message}", headers=owner))
        status, why = await browser.ask("GET", f"/api/why/{message}")
        assert (status, why["verdict"]["code"], why["message"]["id"]) == (200, "answered", message)
        assert "the secret" not in str(why)
        assert "You said" not in str(why)
    reading = {"server": SERVER | {"viewer_reads": "messages"}}
    async with serving(tmp_path, **reading) as served:
        _, dead = await served.ask("GET", "/api/dead", headers=viewer)
        assert [one["text"] for one in dead["dead"]] == ["a secret message"]


async def test_a_login_ends_with_time_its_token_or_its_account(tmp_path: Path) -> None:
    async with serving(tmp_path, server=SERVER) as served, browsing(served) as one, browsing(served) as two:
        parts = served.gateway.parts

        def later(ms: int) -> ConsoleSessions:
            return ConsoleSessions(parts.store, parts.host.auth, parts.access, lambda: now_ms() + ms)

        await one.sign_in(token=OPS)
        await two.sign_in(token=OPS)
        found = await later(0).of("ops-laptop")
        assert len(found) == 2
        assert await later(IDLE_MS - 60_000).login(found[0].id) is not None
        assert await later(IDLE_MS + 60_000).login(found[0].id) is None
        statuses = sorted([(await each.ask("GET", "/api/status"))[0] for each in (one, two)])
        assert statuses == [200, 401]
        # Also if the clock is set back, or was ahead at the login.
        (left,) = await later(0).of("ops-laptop")
        assert await later(60_000 - IDLE_MS).login(left.id) is not None
        assert await later(-60_000 - IDLE_MS).login(left.id) is None
        await one.sign_in(token=OPS)
        assert (await two.sign_in(token=OPS))[1]["expires_at"] <= now_ms() + LONGEST_MS
        assert await one.ask("POST", "/api/console/logout-all") == (200, {"ended": 2})
        assert [(await each.ask("GET", "/api/status"))[0] for each in (one, two)] == [401, 401]
        await two.sign_in(token=OPS)
        kept = two.cookies
    changed = SERVER | {"tokens": SERVER["tokens"] | {"ops-laptop": {"token": OPS[::-1]}}}
    async with serving(tmp_path, server=changed) as served, browsing(served) as again:
        port = served.url.rpartition(":")[2]
        cookie = f"trunkline_console_{port}={next(iter(kept.values()))}"
        assert (await again.ask("GET", "/api/status", Cookie=cookie))[0] == 401


async def test_what_gives_rights_asks_for_the_proof_again(tmp_path: Path) -> None:
    async with serving(tmp_path, server=SERVER) as served, browsing(served) as browser:
        parts = served.gateway.parts
        await browser.sign_in(token=OPS)
        approve = ("POST", "/api/pairs", {"code": "QQQQQQQQ", "role": "admin"})
        assert (await browser.ask(*approve))[0] == 404
        old = ConsoleSessions(parts.store, parts.host.auth, parts.access, lambda: now_ms() - 301_000)
        (login,) = await old.of("ops-laptop")
        await old.confirm(login.id)
        status, refusal = await browser.ask(*approve)
        assert (status, refusal["error_name"]) == (403, "ConfirmIdentityError")
        for proof in ({"token": OWNER}, {"code": await code_of(served, UserRef("", "owner"))}):
            assert (await browser.ask("POST", "/api/console/confirm", proof))[0] == 403
        assert (await browser.ask("POST", "/api/console/confirm", {"token": "wrong"}))[0] == 401
        assert (await browser.ask(*approve))[0] == 403
        assert (await browser.ask("POST", "/api/console/confirm", {"token": OPS}))[0] == 204
        assert (await browser.ask(*approve))[0] == 404


class Door(Plugin):
    """A tool that has to be allowed."""

    name = "door"

    def tools(self) -> Sequence[Tool]:
        async def door(which: str) -> str:
            """Open a door."""
            return f"{which} is open"

        return [tool_from(door, match_key=lambda arguments: arguments["which"])]


async def test_always_asks_for_the_proof_again_on_both_ways(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"server": SERVER, "permissions": {"door": "ask"}}
    async with (
        serving(tmp_path, Door(), **settings) as served,
        browsing(served) as browser,
        served.socket(token=OWNER) as client,
    ):
        parts = served.gateway.parts
        await browser.sign_in(token=OPS)
        old = ConsoleSessions(parts.store, parts.host.auth, parts.access, lambda: now_ms() - 301_000)
        (login,) = await old.of("ops-laptop")
        for way in ("/api/questions/{id}", "/api/sessions/s/approvals/{id}"):
            served.models.then(
                Reply((Use("door", json.dumps({"which": way[5:13]})),), "tools"), Reply((Say("Done"),))
            )
            await client.say("Open it", session="s")
            asked = (await client.until("approval_request"))["approval_id"]

            async def answer(value: str) -> tuple[int, Any]:
                body = {"values": [value]} if "questions" in way else {"decision": value}  # noqa: B023
                return await browser.ask("POST", way.replace("{id}", asked), body)  # noqa: B023

            await old.confirm(login.id)
            status, refusal = await answer("always")
            assert (status, refusal["error_name"]) == (403, "ConfirmIdentityError")
            assert (await browser.ask("POST", "/api/console/confirm", {"token": OPS}))[0] == 204
            assert (await answer("always"))[0] == 200
            await client.until("complete")
        _, kept = await browser.ask("GET", "/api/approvals")
        assert [(one["tool"], one["approved_by"]) for one in kept["approvals"]] == [
            ("door", "ops-laptop"),
            ("door", "ops-laptop"),
        ]
        # Once needs no further proof, nor does anything on this machine without a token.
        served.models.then(
            Reply((Use("door", json.dumps({"which": "attic"})),), "tools"), Reply((Say("Done"),))
        )
        await client.say("Open it", session="s")
        asked = (await client.until("approval_request"))["approval_id"]
        await old.confirm(login.id)
        assert (await browser.ask("POST", f"/api/questions/{asked}", {"values": ["once"]}))[0] == 200
    async with (
        serving(tmp_path / "open", Door(), permissions={"door": "ask"}) as served,
        served.socket() as client,
    ):
        served.models.then(
            Reply((Use("door", json.dumps({"which": "attic"})),), "tools"), Reply((Say("Done"),))
        )
        await client.say("Open it", session="s")
        asked = (await client.until("approval_request"))["approval_id"]
        assert (await served.ask("POST", f"/api/questions/{asked}", json={"values": ["always"]}))[0] == 200
        assert (await served.ask("GET", "/api/settings"))[0] == 200


async def test_the_cookie_of_the_chat_opens_the_chat_alone(tmp_path: Path) -> None:
    async with serving(tmp_path, server=SERVER) as served, browsing(served) as browser:
        owner = {"Authorization": f"Bearer {OWNER}"}
        assert (await browser.ask("POST", "/api/browser", **owner))[0] == 204
        for path in ("/api/sessions", "/api/models", "/api/agents", "/api/plugins", "/api/search?q=x"):
            assert (await browser.ask("GET", path))[0] == 200, path
        _, described = await served.ask("GET", "/openapi.json")
        of_chat = ("/api/files", "/api/search", "/api/sessions", "/api/shares", "/api/browser")
        exact = ("/api/models", "/api/agents", "/api/plugins", "/api/plugins/{name}/config")
        refused = set[str]()
        for path, methods in described["paths"].items():
            if not path.startswith("/api/") or path.startswith(of_chat) or path in exact:
                continue
            for method, operation in methods.items():
                if operation["x-role"] != "none":
                    status, _ = await browser.ask(method.upper(), re.sub(r"\{\w+\}", "x", path))
                    assert status == 401, (method, path, status)
                    refused.add(path)
        words = ("approvals", "audit", "console/session", "now", "pairs", "questions", "settings", "why/{id}")
        assert {f"/api/{word}" for word in words} <= refused
        assert {"/api/models/providers", "/api/plugins/apply", "/api/plugins/decisions"} <= refused
        # Its own token opens them, also beside the cookie.
        assert (await browser.ask("GET", "/api/settings", **owner))[0] == 200


@pytest.mark.parametrize(
    ("tokens", "advice"),
    [
        ({"ops": {"token": "short"}}, "at least 32 characters"),
        ({"ops": {"token": "a" * 40}}, "different characters"),
        ({"owner": {"token": OPS}}, "cannot be the name of a token"),
        ({"tele:7": {"token": OPS}}, "cannot be the name of a token"),
        ({"ops": {"token": OPS, "role": "root"}}, "'admin' or 'viewer'"),
    ],
)
def test_a_named_token_needs_a_name_and_strength(tokens: dict[str, Any], advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        Settings(**{"server": {"tokens": tokens}})  # noqa: PIE804 - the wrong types are the point
