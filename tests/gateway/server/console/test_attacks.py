"""What attackers try at the console: markup, repeated actions, floods of streams, and logins of others."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
from msgspec.structs import replace
from playwright.async_api import Browser, expect
from sqlalchemy import select
from yarl import URL

from gateway.access import Member, UserRef
from gateway.contract.messages import FilePart, new_id, now_ms
from gateway.server.console.sessions import IDLE_MS
from gateway.server.now.streams import ADMINS_OWN, MOST_PER_SESSION, MOST_STREAMS
from gateway.store import schema as t
from gateway.store.inbox import QUARANTINE
from gateway.store.writes import Write
from gateway.testing.fake_models.script import Refusal, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import serving, until
from tests.e2e.page_browser import chat
from tests.gateway.server.console.test_login import ADMIN, EYES, OPS, SERVER, Door, browsing, code_of
from tests.gateway.server.console.test_viewers import ASKING, drawn, screens_of
from tests.gateway.why.cases import line

MARKUP = '<img src=x class=planted onerror="planted()"><b class=planted>bold</b>'
STREAM = {"Accept": "text/event-stream"}
SEEN = Write("update", 111, t.console_session, "id seen_at")
CLIENTS = 1_000
"""Of the flood. With 10,000 it was run by hand; then the clients need most of the time."""


async def test_no_screen_takes_stored_text_as_markup(browser: Browser, tmp_path: Path) -> None:
    async with FakeModels() as fake, line(tmp_path, fake, **ASKING) as case:
        served, parts = case.served, case.served.gateway.parts
        person = Member(
            id=new_id(), channel="line", user_id=MARKUP, role="user", name=MARKUP, approved_by=MARKUP, at=0
        )
        await parts.access.members.add(person)
        use = Use("door", json.dumps({"which": MARKUP}))
        fake.then(Reply((use,), "tools"), Reply((Say(MARKUP),)))
        file = FilePart(f"{MARKUP}.txt", content="hi")
        answered = await case.write(MARKUP, MARKUP, "kitchen", parts=(file,))
        await until(lambda: bool(parts.questions.of_message(answered.message_id)))
        (asked,) = parts.questions.of_message(answered.message_id)
        await parts.questions.settle(asked.question.id, ["once"], by=UserRef("", MARKUP))
        await case.settled()
        fake.then(Refusal(400, MARKUP))
        failed = await case.write(MARKUP, MARKUP, "porch")
        await case.settled()
        await case.write(MARKUP, f"{MARKUP} 2")
        event = (QUARANTINE, (new_id(), "line", MARKUP, "k", MARKUP, f"KeyError: {MARKUP}", now_ms()))
        await parts.store.write(event)
        served.gateway.left_out[f"plugin {MARKUP}"] = served.gateway.left_out["slack"] = MARKUP
        fake.then(Reply((use,), "tools"))
        waits = await case.write(MARKUP, MARKUP, "garden")
        await until(lambda: bool(parts.questions.of_message(waits.message_id)))
        url = served.url
        async with chat(browser, f"{url}/console", connected=False) as page:
            await expect(page.locator("#main h1").first).to_be_attached()
            seen = ""
            details = [f"why/{one.message_id}" for one in (answered, failed, waits)]
            details += [f"waiting/{asked.question.id}", "conversations/line:bot:kitchen", "money?by=person"]
            for name in [*await screens_of(page, "admin"), *details]:
                await page.goto(f"{url}/console/{name}")
                await drawn(page)
                seen += await page.locator("body").inner_text()
                assert await page.locator(".planted, img[src=x]").count() == 0, name
                assert await page.evaluate("document.title.length") < 300
            assert seen.count(MARKUP[:20]) > 20, "it was shown, as text"
        await case.write("/stop", MARKUP, "garden")
        await case.settled()


async def test_an_action_that_is_sent_again_and_at_once_counts_once(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"server": SERVER, "permissions": {"door": "ask"}}
    async with (
        serving(tmp_path, Door(), **settings) as served,
        browsing(served) as browser,
        served.socket(token=OPS) as client,
    ):
        await browser.sign_in(token=OPS)
        use = Use("door", json.dumps({"which": "attic"}))
        served.models.then(Reply((use,), "tools"), Reply((Say("Done"),)))
        await client.say("Open it", session="s")
        asked = (await client.until("approval_request"))["approval_id"]
        answer = ("POST", f"/api/questions/{asked}", {"values": ["once"]})
        sent = await asyncio.gather(*(browser.ask(*answer) for _ in range(8)))
        assert Counter(status for status, _ in sent) == {200: 1, 404: 7}
        await client.until("complete")
        status, error = await browser.ask(*answer)
        assert (status, error["message"]) == (404, "this question was answered already")
        _, log = await browser.ask("GET", "/api/audit?action=approval")
        assert [(row["actor"], row["action"]) for row in log["rows"]] == [("ops-laptop", "approval.once")]

        served.models.then(Refusal(401, "no"), Reply((Say("Now"),)))
        failed = await client.say("Hello", session="t")
        await client.until("complete")
        before = len(served.models.requests)
        status, plan = await browser.ask("POST", f"/api/why/{failed['message_id']}/plan")
        assert (status, len(plan["messages"])) == (200, 1)
        # A plan is of the login that asked for it.
        async with browsing(served) as other:
            await other.sign_in(token=OPS)
            assert (await other.ask("POST", f"/api/why/plans/{plan['plan']}"))[0] == 404
        confirm = ("POST", f"/api/why/plans/{plan['plan']}")
        sent = await asyncio.gather(*(browser.ask(*confirm) for _ in range(8)))
        assert {status for status, _ in sent} == {200}
        async with asyncio.timeout(60):
            while (await browser.ask(*confirm))[1]["state"] != "done":
                await asyncio.sleep(0.02)
        await until(lambda: served.gateway.parts.dispatcher.waiting == 0)
        assert len(served.models.requests) == before + 1
        _, log = await browser.ask("GET", "/api/audit?action=message.replay")
        assert [row["actor"] for row in log["rows"]] == ["ops-laptop"]


async def test_a_flood_of_streams_is_refused_and_messages_are_answered(tmp_path: Path) -> None:
    server = SERVER | {"connections_per_peer": 0}
    async with (
        serving(tmp_path, server=server) as served,
        served.socket(token=OPS) as client,
        AsyncExitStack() as stack,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        browsers = [await stack.enter_async_context(browsing(served)) for _ in range(52)]
        for number, each in enumerate(browsers):
            await each.sign_in(token=OPS if number >= 49 else EYES)
        cookies = [{"Cookie": ";".join(f"{k}={v}" for k, v in each.cookies.items())} for each in browsers]
        opened: list[aiohttp.ClientResponse] = []

        async def follow(headers: dict[str, str]) -> int:
            opened.append(await http.get(f"{served.url}/api/now/events", headers=STREAM | headers))
            return opened[-1].status

        try:
            # A token is one session, whatever else its requests have.
            bearer = {"Authorization": f"Bearer {EYES}"}
            own = [await follow(bearer | {"Cookie": f"x={number}"}) for number in range(8)]
            assert Counter(own) == {200: MOST_PER_SESSION, 429: 8 - MOST_PER_SESSION}
            viewers = [cookies[number % 49] for number in range(CLIENTS)]
            statuses = Counter(await asyncio.gather(*map(follow, viewers)))
            most = MOST_STREAMS - ADMINS_OWN - MOST_PER_SESSION
            assert statuses == {200: most, 429: CLIENTS - most}
            await client.say("Is anybody there?", session="s")
            assert (await client.until("complete"))["type"] == "complete"
            admins = [await follow(cookies[49 + number // 4]) for number in range(12)]
            assert Counter(admins) == {200: ADMINS_OWN, 429: 12 - ADMINS_OWN}
            # Streams that end leave their places.
            for response in opened:
                response.close()
            async with asyncio.timeout(60):
                while await follow(cookies[48]) != 200:
                    await asyncio.sleep(0.1)
        finally:
            for response in opened:
                response.close()


async def test_a_stream_ends_when_its_account_loses_its_role_or_all_logins_end(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, server=SERVER) as served,
        browsing(served) as one,
        browsing(served) as two,
        browsing(served) as three,
    ):
        access, url = served.gateway.parts.access, f"{served.url}/api/now/events"
        admin = Member(id=new_id(), channel="telegram", user_id="7", role="admin", approved_by="owner", at=0)
        await access.members.add(admin)
        assert (await one.sign_in(code=await code_of(served, ADMIN)))[0] == 200
        async with one.http.get(url, headers=STREAM) as stream:
            assert stream.status == 200
            await access.members.add(replace(admin, role="user"))
            async with asyncio.timeout(60):
                await stream.content.read()
        assert (await one.ask("GET", "/api/now"))[0] == 401
        await two.sign_in(token=OPS)
        await three.sign_in(token=OPS)
        async with two.http.get(url, headers=STREAM) as stream:
            assert (await three.ask("POST", "/api/console/logout-all"))[1] == {"ended": 2}
            async with asyncio.timeout(60):
                await stream.content.read()
        assert (await two.ask("GET", "/api/now"))[0] == 401


async def test_a_stream_is_not_activity(tmp_path: Path) -> None:
    async with serving(tmp_path, server=SERVER) as served, browsing(served) as browser:
        store = served.gateway.parts.store
        await browser.sign_in(token=OPS)

        async def seen_at() -> tuple[str, int]:
            c = t.console_session.c
            return await store.read(lambda connection: connection.execute(select(c.id, c.seen_at)).one())

        login, signed_in = await seen_at()
        earlier = signed_in - IDLE_MS // 2
        await store.write((SEEN, (login, earlier)))
        async with browser.http.get(f"{served.url}/api/now/events", headers=STREAM) as stream:
            await stream.content.readuntil(b"\n\n")
            assert await seen_at() == (login, earlier)
        assert (await browser.ask("GET", "/api/status"))[0] == 200
        assert (await seen_at())[1] >= signed_in


async def test_a_cookie_that_is_there_before_a_login_is_not_the_login(tmp_path: Path) -> None:
    async with serving(tmp_path, server=SERVER) as served, browsing(served) as victim:
        host = served.url.removeprefix("http://")
        name, planted = f"trunkline_console_{host.rpartition(':')[2]}", "A" * 43
        victim.http.cookie_jar.update_cookies({name: planted}, URL(served.url))
        assert (await victim.ask("GET", "/api/status"))[0] == 401
        await victim.sign_in(token=OPS)
        first = victim.cookies[name]
        assert first != planted
        # Another role, another id; the id of before leads nowhere.
        await victim.sign_in(token=EYES)
        assert victim.cookies[name] not in (first, planted)
        for value in (planted, first):
            known = {"Cookie": f"{name}={value}"}
            assert (await served.ask("GET", "/api/status", headers=known))[0] == 401
