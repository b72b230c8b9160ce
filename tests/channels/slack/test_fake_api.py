"""Web API of the fake without a library: forms, JSON, tokens, refusals, faults and rate limits."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

import aiohttp
import pytest
from slack_sdk.errors import SlackApiError
from slack_sdk.http_retry.builtin_async_handlers import AsyncRateLimitErrorRetryHandler

from channels.slack.fake import FakeSlack
from channels.slack.fake.api import METHODS
from channels.slack.fake.calls import methods, schemas
from tests.channels.slack.apps import Plain, client, plain

pytestmark = pytest.mark.slow

KINDS = ("section", "header", "markdown", "context", "actions", "table", "image", "rich_text", "input")
KINDS += ("button", "static_select", "overflow", "feedback_buttons", "markdown_text", "task_update", "blocks")
TEXTS = ["", "x", "general", "@ada", "1", "eyes", "active", "U9,U9", "[", '{"a":', "x" * 13_000]
VALUES: list[Any] = [
    *([], {}, [[]], [{}], [None], {"a": [1]}, 0, "x", [{"id": "F9"}], [{"title": "t", "message": "m"}]),
    *([{"type": kind, "text": {"type": "mrkdwn", "text": "x"}, "elements": [1]}] for kind in KINDS),
    *([{"type": kind, "elements": [{"type": "button"}, {}, []], "fields": [1]}] for kind in KINDS),
    *([{"type": "actions", "elements": [{"type": kind, "options": [{}, 1]}]}] for kind in KINDS),
    *([{"type": kind, "text": "x", "id": "1", "title": "t", "blocks": [{}]}] for kind in KINDS),
    *(
        {"type": kind, "title": {}, "blocks": blocks}
        for kind in ("modal", "home")
        for blocks in ([], [{}, 1])
    ),
]

EVERYWHERE = frozenset(schemas().at("errors"))
"""Errors that each method may return."""


def fields(method: str) -> dict[str, Any]:
    """Yield the arguments of a method with their schemas."""
    return schemas().at("methods", method, "arguments", "properties")


async def test_a_call_comes_as_json_as_a_form_or_in_the_query() -> None:
    async with plain() as (fake, api):
        room = fake.chat("general").id
        posted = await api.call("chat.postMessage", channel=room, text="one")
        blocks = json.dumps([{"type": "divider"}])
        formed = await api.form("chat.postMessage", channel=room, text="two", blocks=blocks)
        query = {"channel": room, "text": "three", "token": fake.bot_token}
        async with api.http.get(f"{fake.api_url}chat.postMessage", params=query) as answer:
            queried = await answer.json()
        assert [one["ok"] for one in (posted, formed, queried)] == [True, True, True]
        assert formed["message"]["blocks"][0]["type"] == "divider"
        assert [said.text for said in fake.messages("general")] == ["one", "two", "three"]
        fake.transcript.check()


async def test_json_without_a_charset_is_answered_with_a_warning() -> None:
    async with plain() as (fake, api):
        headers = {"Authorization": f"Bearer {fake.bot_token}", "Content-Type": "application/json"}
        async with api.http.post(f"{fake.api_url}auth.test", data=b"{}", headers=headers) as answer:
            told = await answer.json()
        assert told["warning"] == "missing_charset"
        assert told["response_metadata"]["warnings"] == ["missing_charset"]


@pytest.mark.parametrize(
    ("token", "error"),
    [("", "not_authed"), ("xoxb-never-given-out", "invalid_auth"), ("xapp", "not_allowed_token_type")],
)
async def test_a_token_that_does_not_do_is_named(token: str, error: str) -> None:
    async with plain() as (fake, api):
        given = fake.app_token if token == "xapp" else token
        headers = {"Authorization": f"Bearer {given}"} if given else {}
        async with api.http.post(f"{fake.api_url}users.list", headers=headers) as answer:
            assert answer.status == 200
            assert await answer.json() == {"ok": False, "error": error}
        assert fake.transcript.problems


async def test_the_bots_token_opens_no_sockets() -> None:
    async with plain() as (_, api):
        assert (await api.call("apps.connections.open"))["error"] == "not_allowed_token_type"


async def test_a_method_that_does_not_exist_is_a_problem() -> None:
    async with plain() as (fake, api):
        told = await api.call("chat.shout")
        assert told == {"ok": False, "error": "unknown_method", "req_method": "chat.shout"}
        with pytest.raises(AssertionError, match=r"chat\.shout: no such method"):
            fake.transcript.check()


@pytest.mark.parametrize(
    ("method", "arguments", "message"),
    [
        ("chat.postMessage", {"text": "hi"}, "missing required field: channel"),
        ("chat.update", {"channel": "C1", "ts": 1.5, "text": "hi"}, "must provide a string"),
        ("reactions.add", {"channel": "C1", "timestamp": "1.000000"}, "missing required field: name"),
        ("conversations.history", {"channel": "C1", "limit": 1000}, "must be at most 999"),
        ("conversations.history", {"channel": "C1", "limit": "many"}, "must provide a number"),
        ("chat.postMessage", {"channel": "C1", "text": "a", "mrkdwn": "maybe"}, "must provide a boolean"),
        (
            "agents.sessions.setStatus",
            {"channel_id": "C1", "thread_ts": "1.000000", "status": "busy"},
            "must be one of: active, processing, suspended, closed",
        ),
        (
            "assistant.threads.setStatus",
            {"channel_id": "C1", "thread_ts": "1.000000", "status": "x", "loading_messages": ["m"] * 11},
            "no more than 10 items",
        ),
    ],
)
async def test_an_argument_that_is_missing_or_mistyped_is_named(
    method: str, arguments: dict[str, Any], message: str
) -> None:
    async with plain() as (fake, api):
        told = await api.call(method, **arguments)
        assert told["error"] == "invalid_arguments"
        assert message in told["response_metadata"]["messages"][0]
        assert len(fake.transcript.problems) == 1


async def test_an_unknown_argument_is_ignored_and_noted() -> None:
    async with plain() as (fake, api):
        told = await api.call("auth.test", loud=True)
        assert told["ok"]
        assert fake.transcript.problems == ["auth.test: unknown argument loud"]


async def test_a_method_that_takes_no_json_does_not_see_its_arguments() -> None:
    async with plain() as (fake, api):
        told = await api.call("users.info", user=fake.user("ada").id)
        assert "missing required field: user" in told["response_metadata"]["messages"][0]
        assert "does not accept JSON" in fake.transcript.problems[0]


async def test_a_scope_that_was_not_granted_is_named() -> None:
    async with plain(installed=False) as (fake, api):
        token = fake.install(scopes=["chat:write", "channels:read"]).token
        room = fake.chat("general").id
        told = await api.form("files.getUploadURLExternal", token, filename="a", length="1")
        assert (told["error"], told["needed"]) == ("missing_scope", "files:write")
        assert told["provided"] == "channels:read,chat:write"
        assert (await api.call("chat.postMessage", token, channel=room, text="hi"))["ok"]
        direct = fake.chat("@ada").id
        assert (await api.form("conversations.info", token, channel=direct))["needed"] == "im:read"


async def test_every_answer_to_a_refused_call_is_a_documented_one() -> None:
    """Each error of the fake is one that Slack documents for the method."""
    assert set(METHODS) | {"apps.connections.open", "oauth.v2.access"} == set(methods())
    async with plain() as (fake, api):
        here = fake.chat("general").id
        strange = {"channel": "C9", "channel_id": "C9", "ts": "1.000000", "timestamp": "1.000000"}
        strange |= {"thread_ts": "1.000000", "user": "U9", "users": "U9", "text": "x", "file": "F9"}
        strange |= {"files": [{"id": "F9"}], "name": "eyes", "status": "active", "title": "t"}
        strange |= {"view": {"type": "modal", "title": {}, "blocks": []}, "trigger_id": "9", "view_id": "V9"}
        strange |= {"prompts": [{"title": "a", "message": "b"}], "message_ts": "1.000000", "bot": "B9"}
        strange |= {"markdown_text": "x", "code": "9", "client_id": "9", "cursor": "9", "team": "T9"}
        strange |= {"test": "true"}
        for given in (strange, {**strange, "channel": here, "channel_id": here}, {"test": "true"}):
            for method, facts in methods().items():
                chosen = {name: given[name] for name in fields(method) if name in given}
                if {"text", "markdown_text"} <= set(chosen):
                    del chosen["markdown_text"]
                data = {k: v if isinstance(v, str) else json.dumps(v) for k, v in chosen.items()}
                told = await api.form(method, None, **data)
                assert told["ok"] or told["error"] in facts.errors | EVERYWHERE, (method, told)


@pytest.mark.parametrize(
    ("method", "figure"),
    [("users.list", 20), ("team.info", 50), ("users.info", 100), ("assistant.threads.setStatus", 60)],
)
async def test_each_method_has_its_figure_for_a_minute(method: str, figure: int) -> None:
    async with plain() as (fake, api):
        fake.switches.limited = True
        thread = {"channel_id": fake.chat("general").id, "thread_ts": fake.say("general", "hi")}
        given = {"user": fake.user("ada").id, **thread, "status": ""}
        known = {name: given[name] for name in fields(method) if name in given}
        told = [(await api.form(method, None, **known)).get("error") for _ in range(figure + 1)]
        assert told == [None] * figure + ["ratelimited"]


async def test_a_call_that_comes_too_often_gets_retry_after() -> None:
    async with plain() as (fake, api):
        fake.switches.limited = True
        for _ in range(20):
            assert (await api.form("users.list"))["ok"]
        async with api.http.post(f"{fake.api_url}users.list", data={"token": fake.bot_token}) as answer:
            assert answer.status == 429
            assert 1 <= int(answer.headers["Retry-After"]) <= 60
            assert await answer.json() == {"ok": False, "error": "ratelimited"}
        assert (await api.call("auth.test"))["ok"]
        fake.clock.advance(60)
        assert (await api.form("users.list"))["ok"]
        fake.transcript.check()


async def test_messages_are_counted_for_each_room() -> None:
    async with plain() as (fake, api):
        fake.switches.limited = True
        first, second = fake.chat("general").id, fake.open_chat("other")
        for number in range(60):
            assert (await api.call("chat.postMessage", channel=first, text=str(number)))["ok"]
        assert (await api.call("chat.postMessage", channel=first, text="x"))["error"] == "ratelimited"
        assert (await api.call("chat.postMessage", channel=second, text="x"))["ok"]


async def test_messages_are_counted_for_each_workspace() -> None:
    async with plain(teams=("acme", "globex")) as (fake, api):
        fake.switches.limited = True
        rooms = [fake.open_chat(f"room-{number}") for number in range(6)]
        sent = [
            await api.call("chat.postMessage", channel=rooms[number % 6], text="x") for number in range(301)
        ]
        assert [one["ok"] for one in sent] == [True] * 300 + [False]
        there = fake.chat("general", "globex").id
        assert (await api.call("chat.postMessage", fake.token("globex"), channel=there, text="x"))["ok"]


async def test_who_does_not_wait_is_written_down() -> None:
    async with plain() as (fake, api):
        fake.switches.retry_after = 30
        fake.then("slow_down", method="auth.test")
        assert (await api.call("auth.test"))["error"] == "ratelimited"
        fake.clock.advance(1)
        assert (await api.call("auth.test"))["error"] == "ratelimited"
        assert fake.transcript.problems == ["auth.test: called before Retry-After was over"]
        fake.clock.advance(30)
        assert (await api.call("auth.test"))["ok"]


async def test_the_official_client_waits_for_retry_after() -> None:
    async with FakeSlack() as fake:
        fake.then("slow_down")
        slack = client(fake)
        slack.retry_handlers.append(AsyncRateLimitErrorRetryHandler(max_retry_count=1))
        assert (await slack.auth_test())["ok"]
        assert [call.status for call in fake.transcript.calls] == [429, 200]
        fake.transcript.check()


@pytest.mark.parametrize(("fault", "placed"), [("fail_before", 0), ("fail_after", 1)])
async def test_an_error_comes_before_or_after_the_call_was_applied(fault: Any, placed: int) -> None:
    applied: list[int] = []
    async with FakeSlack(on_applied=lambda: applied.append(1)) as fake:
        fake.then(fault, method="chat.postMessage")
        with pytest.raises(SlackApiError):
            await client(fake).chat_postMessage(channel="general", text="hi")
        assert (len(fake.messages("general")), len(applied)) == (placed, placed)
        assert [call.fault for call in fake.transcript.calls] == [fault]


@pytest.mark.parametrize(("fault", "placed"), [("drop_before", 0), ("drop_after", 1)])
async def test_a_connection_breaks_before_or_after_the_call_was_applied(fault: Any, placed: int) -> None:
    async with plain() as (fake, api):
        fake.then(fault, method="chat.postMessage")
        with pytest.raises(aiohttp.ClientError):
            await api.call("chat.postMessage", channel="general", text="hi")
        assert len(fake.messages("general")) == placed


async def test_the_same_seed_spoils_the_same_calls() -> None:
    async def spoilt() -> list[str]:
        async with plain(faults=0.5, seed=7) as (fake, api):
            fake.switches.retry_after = 0
            for _ in range(20):
                with contextlib.suppress(aiohttp.ClientError):
                    await api.call("auth.test")
            return [call.fault for call in fake.transcript.calls]

    first = await spoilt()
    assert first == await spoilt()
    assert len(set(first)) > 3


async def test_uploads_and_answers_to_interactions_can_fail_too() -> None:
    async with plain() as (fake, api):
        fake.then("fail_before", method="upload")
        told = await api.form("files.getUploadURLExternal", filename="a.txt", length="1")
        async with api.http.post(told["upload_url"], data=b"a") as answer:
            assert answer.status == 503
        async with api.http.post(told["upload_url"], data=b"a") as answer:
            assert await answer.text() == "OK - 1"


async def test_every_request_of_an_app_is_answered() -> None:
    dice = random.Random(4)
    async with plain() as (fake, api):
        root = fake.say("general", "hi")
        posted = await api.call("chat.postMessage", channel="general", text="x", thread_ts=root)
        direct = fake.chat("@ada").id
        stream = await api.call("chat.startStream", channel=direct, thread_ts=fake.say("@ada", "x"))
        known = [fake.chat("general").id, direct, root, posted["ts"], stream["ts"], fake.user("ada").id]
        pools = {"string": known * 3 + TEXTS, "any": VALUES, "array": VALUES, "boolean": [True, False]}
        numbers = [0, 1, 10, -1]
        names = [name for name in methods() if name != "auth.revoke"]
        headers = {"Authorization": f"Bearer {fake.bot_token}", "Content-Type": "application/json"}
        for _ in range(3_000):
            method = dice.choice(names)
            needed = schemas().at("methods", method, "arguments").get("required", ())
            given = {
                name: dice.choice(
                    VALUES if dice.random() < 0.03 else pools.get(field.get("type", "any"), numbers)
                )
                for name, field in fields(method).items()
                if name in needed or dice.random() < 0.4
            }
            async with api.http.post(
                fake.api_url + method, data=json.dumps(given), headers=headers
            ) as answer:
                assert answer.status == 200, (method, given)
                told = await answer.json()
                assert told["ok"] or told["error"] in methods()[method].errors | EVERYWHERE, (method, told)


async def _each_page(api: Plain, method: str, name: str, **arguments: str) -> list[Any]:
    rows: list[Any] = []
    cursor = ""
    while True:
        told = await api.form(method, **arguments, **({"cursor": cursor} if cursor else {}))
        rows += told[name]
        cursor = told.get("response_metadata", {}).get("next_cursor", "")
        if not cursor:
            return rows


async def test_listings_come_in_pages() -> None:
    async with plain() as (fake, api):
        for number in range(7):
            fake.say("general", f"message {number}", f"user{number}")
        room = fake.chat("general").id
        members = await _each_page(api, "conversations.members", "members", channel=room, limit="3")
        assert len(members) == len(set(members)) == 8
        history = await _each_page(api, "conversations.history", "messages", channel=room, limit="3")
        assert [one["text"] for one in history] == [f"message {n}" for n in reversed(range(7))]
        bad = await api.form("conversations.members", channel=room, cursor="nonsense!")
        assert bad["error"] == "invalid_cursor"
