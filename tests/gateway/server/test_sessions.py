"""Sessions over REST."""

from __future__ import annotations

import asyncio
import base64
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientError

from gateway.contract.messages import Message, Metadata, TextPart
from gateway.contract.plugin import Plugin, PluginContext
from gateway.testing.fake_models.script import Gate, Refusal, Reply, Say, Tokens, Use
from gateway.testing.served import Served, serving, until
from tests.channels.websocket.test_page_search import store_talk
from tests.documents import word

pytestmark = pytest.mark.slow


class Carder(Plugin):
    """Renders messages of the type ``card``."""

    name = "carder"

    async def activate(self, ctx: PluginContext) -> None:
        ctx.register_message_renderer("card", lambda message: f"**{message.text}**")


async def answered(served: Served, session: str, text: str, **body: Any) -> dict[str, Any]:
    status, accepted = await served.ask(
        "POST", f"/api/sessions/{session}/messages", json={"text": text, **body}
    )
    assert status == 202, accepted
    await served.idle(session)
    return accepted


async def test_a_message_is_accepted_answered_and_listed(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        accepted = await answered(served, "s", "Hi there", client_msg_id="m1")
        _, listed = await served.ask("GET", "/api/sessions")
        _, shown = await served.ask("GET", "/api/sessions/s")
        _, said = await served.ask("GET", "/api/sessions/s/messages")
        assert accepted == {
            "client_msg_id": "m1",
            "message_id": said["messages"][0]["message"]["id"],
            "answer_id": said["messages"][1]["message"]["id"],
            "session": "s",
            "seq": 1,
            "duplicate": False,
        }
        assert [m["message"]["parts"][0]["content"] for m in said["messages"]] == [
            "Hi there",
            "You said: Hi there",
        ]
        assert said["messages"][0]["seq"] < said["messages"][1]["seq"]
        assert listed == {"sessions": [shown], "next": None}
        assert shown.keys() == {
            "id",
            "title",
            "channel",
            "created_at",
            "updated_at",
            "messages",
            "status",
            "model",
            "agent",
            "pinned",
            "usage",
            "parent",
            "task",
        }
        assert (shown["id"], shown["title"], shown["messages"]) == ("s", "Hi there", 2)
        assert (shown["status"], shown["model"]) == ("idle", "openai/fake-small")
        assert shown["usage"]["output_tokens"] > 0


async def test_the_same_message_is_accepted_once_however_it_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        first = await answered(served, "s", "Hi", client_msg_id="m1")
        path, body = "/api/sessions/s/messages", {"text": "Hi"}
        _, again = await served.ask("POST", path, json=body, headers={"Idempotency-Key": "m1"})
        _, both = await served.ask(
            "POST", path, json={**body, "client_msg_id": "m1"}, headers={"Idempotency-Key": "m1"}
        )
        status, refused = await served.ask(
            "POST", path, json={**body, "client_msg_id": "m1"}, headers={"Idempotency-Key": "m2"}
        )
        assert again == both == {**first, "duplicate": True}
        assert (status, refused["error_name"]) == (400, "InvalidRequestError")
        assert len(served.models.requests) == 1


async def test_the_text_of_a_document_reaches_the_model(tmp_path: Path) -> None:
    data = base64.b64encode(word()).decode()
    async with serving(tmp_path) as served:
        await answered(served, "s", "read", files=[{"name": "plan.docx", "data": data}])
        assert "Sales rose." in str(served.models.requests[0].body["messages"])
        path, body = "/api/sessions/s/messages", {"files": [{"name": "a", "data": "no base64!"}]}
        status, refused = await served.ask("POST", path, json=body)
        assert (status, refused["error_name"]) == (400, "PartValidationError")


async def test_a_message_without_a_name_is_a_new_one_each_time(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        first, second = await answered(served, "s", "Hi"), await answered(served, "s", "Hi")
        assert first["message_id"] != second["message_id"]


async def test_pages_of_sessions_hold_every_session_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for n in range(7):
            await answered(served, f"s{n}", "Hi")
        found, path = [], "/api/sessions?limit=3"
        while path:
            _, page = await served.ask("GET", path)
            found += [session["id"] for session in page["sessions"]]
            path = page["next"] and f"/api/sessions?limit=3&before={page['next']}"
        assert found == [f"s{n}" for n in reversed(range(7))]


async def test_sessions_of_the_same_moment_are_not_lost_between_pages(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for n in range(5):
            await answered(served, f"s{n}", "Hi")
        rows = [session.row for session in served.gateway.parts.sessions.live()]
        for row in rows:
            row.updated_at = 1_000
        await served.gateway.parts.store.write(*(row.put() for row in rows))
        _, first = await served.ask("GET", "/api/sessions?limit=2")
        _, second = await served.ask("GET", f"/api/sessions?before={first['next']}")
        assert [s["id"] for s in first["sessions"] + second["sessions"]] == ["s4", "s3", "s2", "s1", "s0"]


async def test_messages_are_read_after_a_number_or_from_the_end(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for n in range(3):
            await answered(served, "s", str(n))
        _, all_of_it = await served.ask("GET", "/api/sessions/s/messages")
        seqs = [message["seq"] for message in all_of_it["messages"]]
        _, last = await served.ask("GET", "/api/sessions/s/messages?last=2")
        _, after = await served.ask("GET", f"/api/sessions/s/messages?after={seqs[3]}")
        assert [message["seq"] for message in last["messages"]] == seqs[-2:]
        assert [message["seq"] for message in after["messages"]] == seqs[4:]


async def test_messages_are_read_back_to_the_beginning_page_by_page(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for n in range(3):
            await answered(served, "s", str(n))
        _, whole = await served.ask("GET", "/api/sessions/s/messages")
        assert whole["next"] is None
        found = list[Any]()
        page: dict[str, Any] = {"next": 2**53}
        sizes = list[int]()
        while page["next"] is not None:
            query = {"last": 4, "before": page["next"]}
            _, page = await served.ask("GET", "/api/sessions/s/messages", params=query)
            sizes.append(len(page["messages"]))
            found = [*page["messages"], *found]
        assert (found, sizes) == (whole["messages"], [4, 2])
        # An exact page has no other one before it.
        query = {"last": 2, "before": found[2]["seq"]}
        _, first = await served.ask("GET", "/api/sessions/s/messages", params=query)
        assert first == {"messages": found[:2], "next": None}
        query = {"after": found[0]["seq"], "before": found[5]["seq"], "last": 3}
        _, between = await served.ask("GET", "/api/sessions/s/messages", params=query)
        assert between == {"messages": found[2:5], "next": found[2]["seq"]}


async def test_messages_are_listed_as_their_plugin_renders_them(tmp_path: Path) -> None:
    async with serving(tmp_path, Carder()) as served:
        await answered(served, "s", "Hi")
        card = Message(session_id="s", role="assistant", parts=(TextPart("Ace"),), custom_type="card")
        await (await served.gateway.parts.sessions.find("s")).add_message(card, [])
        _, plain = await served.ask("GET", "/api/sessions/s/messages?last=1")
        _, shown = await served.ask("GET", "/api/sessions/s/messages?last=1&html=true")
        async with served.socket() as client:
            await client.send(type="resume", session="s", after=0)
            await client.until("replayed")
            await client.send(type="show", session="s", message_id=card.id)
            await client.until("log_changed")
            sent = await client.until(lambda frame: frame.get("message", {}).get("id") == card.id)
    assert plain["messages"][0]["message"]["parts"][0]["content"] == "Ace"
    assert plain["messages"][0]["rendered"] == "**Ace**"
    assert "rendered_html" not in plain["messages"][0]
    assert shown["messages"][0]["rendered_html"] == "<p><strong>Ace</strong></p>\n"
    assert sent["rendered"] == "**Ace**"


async def test_answers_are_read_with_their_html_when_it_is_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        served.models.then(Reply((Say("**Bold**, <b>no</b> HTML"),)))
        await answered(served, "s", "*Hi*")
        _, plain = await served.ask("GET", "/api/sessions/s/messages")
        assert ["html" in one for one in plain["messages"]] == [False, False]
        _, shown = await served.ask("GET", "/api/sessions/s/messages?html=true")
        asked, answer = shown["messages"]
        assert "html" not in asked
        assert answer["html"] == [[0, "<p><strong>Bold</strong>, &lt;b&gt;no&lt;/b&gt; HTML</p>\n"]]


async def test_004_18_an_answer_is_stopped(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        served.models.then(Reply((Say("so far"), Gate(asyncio.Event()))))
        await served.ask("POST", "/api/sessions/s/messages", json={"text": "Hi"})
        async with served.socket() as client:
            await client.send(type="resume", session="s", after=0)
            await client.until("text_delta")
        _, running = await served.ask("GET", "/api/sessions/s")
        assert await served.ask("POST", "/api/sessions/s/abort") == (200, {"aborted": True})
        await served.idle("s")
        assert await served.ask("POST", "/api/sessions/s/abort") == (200, {"aborted": False})
        _, said = await served.ask("GET", "/api/sessions/s/messages")
        assert running["status"] == "running"
        assert said["messages"][-1]["message"]["parts"] == [{"type": "text", "content": "so far"}]


async def test_a_session_is_deleted_but_not_while_it_answers(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with serving(tmp_path) as served:
        served.models.then(Reply((Say("so far"), Gate(gate))))
        await served.ask("POST", "/api/sessions/s/messages", json={"text": "Hi"})
        status, busy = await served.ask("DELETE", "/api/sessions/s")
        assert (status, busy["error_name"]) == (409, "InvalidStateError")
        gate.set()
        await served.idle("s")
        assert await served.ask("DELETE", "/api/sessions/s") == (204, None)
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/messages"), ("POST", "/abort")):
            status, gone = await served.ask(method, f"/api/sessions/s{path}")
            assert (status, gone["error_name"]) == (404, "NotFoundError")


async def test_004_t10_a_session_is_renamed(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        await answered(served, "s", "Hi there")
        await client.send(type="resume", session="s", after=0)
        await client.until("replayed")
        status, renamed = await served.ask("PATCH", "/api/sessions/s", json={"title": " My\ntitle "})
        assert (status, renamed["title"]) == (200, "My title")
        assert (await client.until("session"))["title"] == "My title"
        assert (await served.ask("GET", "/api/sessions/s"))[1] == renamed
        for body in (
            {"title": ""},
            {"title": " \u202e "},
            {"title": "x" * 101},
            {"title": 1},
            {},
            {"name": "x"},
        ):
            status, refused = await served.ask("PATCH", "/api/sessions/s", json=body)
            assert (status, refused["error_name"]) == (400, "InvalidRequestError"), body
        status, refused = await served.ask("PATCH", "/api/sessions/none", json={"title": "x"})
        assert (status, refused["error_name"]) == (404, "NotFoundError")
    async with serving(tmp_path) as served:
        assert (await served.ask("GET", "/api/sessions/s"))[1]["title"] == "My title"


async def test_a_session_whose_only_message_was_refused_does_not_exist(tmp_path: Path) -> None:
    async with serving(tmp_path, limits={"global_inbox": 1}) as served:
        served.models.then(Reply((Gate(asyncio.Event()),)))
        await served.ask("POST", "/api/sessions/busy/messages", json={"text": "Hi"})
        status, refused = await served.ask("POST", "/api/sessions/s/messages", json={"text": "Hi"})
        assert (status, refused["error_name"], refused["retryable"]) == (503, "OverloadedError", True)
        assert (await served.ask("GET", "/api/sessions/s"))[0] == 404
        await served.ask("POST", "/api/sessions/busy/abort")


async def test_a_dead_letter_is_listed_answered_after_all_and_dropped(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        assert await served.ask("GET", "/api/dead") == (200, {"dead": [], "next": None})
        for method, path in (("POST", "/api/dead/nobody/replay"), ("DELETE", "/api/dead/nobody")):
            status, unknown = await served.ask(method, path)
            assert (status, unknown["error_name"]) == (404, "NotFoundError")
        accepted = await answered(served, "s", "Hi")
        live = served.gateway.parts.sessions.get("s")
        entry = await _entry(served, accepted["message_id"])
        await served.gateway.parts.store.write(*entry.give_up("it was too much", None))
        assert live is not None
        _, dead = await served.ask("GET", "/api/dead")
        assert [letter["id"] for letter in dead["dead"]] == [accepted["message_id"]]
        assert await served.ask("POST", f"/api/dead/{accepted['message_id']}/replay") == (204, None)
        await until(lambda: len(served.models.requests) == 2)
        await served.idle("s")
        assert await served.ask("GET", "/api/dead") == (200, {"dead": [], "next": None})


async def _entry(served: Served, message_id: str) -> Any:
    from gateway.store.inbox import read_entry

    return await served.gateway.parts.store.read(lambda c: read_entry(c, message_id))


BAD_BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"hello",
    "half of it": b'{"text":"x"',
    "an array": b"[]",
    "a text of a wrong type": b'{"text":7}',
    "an empty message": b'{"text":" "}',
    "NaN": b'{"text":NaN}',
    "a lone surrogate": b'{"text":"\\ud800 and more text behind it"}',
    "bytes that are no text": b'{"text":"\xff"}',
    "a number of a million digits": b'{"text":' + b"9" * 900_000 + b"}",
    "deep nesting": b'{"x":' + b"[" * 100_000,
    "deep nesting in a part": b'{"text":"x","parts":[{"type":"text","content":' + b"[" * 100_000,
    "an unknown part": b'{"parts":[{"type":"video"}]}',
    "a forged part": b'{"parts":[{"type":"tool_result","tool_call_id":"1","output":"x"}]}',
    "a broken picture": b'{"parts":[{"type":"image","data":"?","mime_type":"image/png"}]}',
    "control characters in an id": b'{"text":"x","client_msg_id":"a\\u0000"}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES.keys())
async def test_a_bad_body_is_a_named_400(tmp_path: Path, body: bytes) -> None:
    async with serving(tmp_path) as served:
        status, refused = await served.ask("POST", "/api/sessions/s/messages", data=body)
        assert status == 400
        assert refused["error_name"] in ("InvalidRequestError", "InvalidPartTypeError", "PartValidationError")
        assert (await served.ask("GET", "/healthz"))[0] == 200


async def test_what_is_wrong_in_a_body_is_said_with_its_place(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        body = {"text": "x", "parts": [{"type": "text", "content": "a"}, {"type": "text", "content": 1}]}
        _, refused = await served.ask("POST", "/api/sessions/s/messages", json=body)
        assert refused["error_name"] == "PartValidationError"
        assert "$.parts[1]: " in refused["message"]
        assert "$.content" in refused["message"]


async def test_004_06_a_part_of_an_unknown_type_is_named(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        body = {"text": "x", "parts": [{"type": "text", "content": "a"}, {"type": "video"}]}
        status, refused = await served.ask("POST", "/api/sessions/s/messages", json=body)
        assert (status, refused["error_name"]) == (400, "InvalidPartTypeError")
        assert "$.parts[1]: " in refused["message"]


async def test_004_05_errors_and_tool_calls_of_a_session_can_be_asked_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        served.models.then(
            Reply((Use("calculator", '{"expression": "6 * 7"}'),), "tools"),
            Reply((Say("42"),)),
            *(Refusal(400),) * 3,
        )
        await answered(served, "s", "6 * 7?")
        await answered(served, "s", "and now?")
        _, errors = await served.ask("GET", "/api/sessions/s/errors")
        _, tools = await served.ask("GET", "/api/sessions/s/tool-calls")
        _, said = await served.ask("GET", "/api/sessions/s/messages")
        (call,), (error,) = tools["tool_calls"], errors["errors"]
        assert (call["message_id"], call["call"]["tool_name"]) == (
            said["messages"][1]["message"]["id"],
            "calculator",
        )
        assert call["result"]["output"] == "42"
        assert errors["count"] == 1
        assert error["message_id"] == said["messages"][3]["message"]["id"]
        assert error["error"]["error_name"] == "BadRequestError"
        assert (await served.ask("GET", "/api/sessions/none/errors"))[0] == 404
        assert (await served.ask("GET", "/api/sessions/none/tool-calls"))[0] == 404


async def test_004_08_the_shown_cost_is_the_sum_of_the_messages(tmp_path: Path) -> None:
    priced = {"openai/fake-small": {"input_price": 2.0, "output_price": 8.0}}
    async with serving(tmp_path, models=priced) as served:
        served.models.then(*(Reply((Say("ok"),), tokens=Tokens(1000 * n, 10)) for n in (1, 2, 3)))
        for text in ("a", "b", "c"):
            await answered(served, "s", text)
        session = await served.gateway.parts.sessions.find("s")
        paid = Message(session_id="s", role="assistant", parts=(TextPart("x"),), metadata=Metadata(cost=0.5))
        session.bus.append(paid)
        await served.gateway.parts.store.write()  # what was handed in before is committed with it
        _, said = await served.ask("GET", "/api/sessions/s/messages")
        costs = [row["message"]["metadata"].get("cost", 0) for row in said["messages"]]
        assert len([cost for cost in costs if cost]) == 4
        for _ in ("in memory", "as it is stored"):
            _, shown = await served.ask("GET", "/api/sessions/s")
            _, listed = await served.ask("GET", "/api/sessions")
            assert shown["usage"]["cost"] == pytest.approx(sum(costs))
            assert listed["sessions"][0]["usage"] == shown["usage"]
            served.gateway.parts.sessions._drop("s")


async def test_repeated_and_unknown_keys_are_harmless(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        body = b'{"text":"a","text":"b","unknown":[1e300,12345678901234567890]}'
        status, _ = await served.ask("POST", "/api/sessions/s/messages", data=body)
        assert status == 202


@pytest.mark.parametrize("encoded", [False, True])
async def test_a_body_beyond_the_bound_is_a_413(tmp_path: Path, encoded: bool) -> None:
    body = msgspec.json.encode({"text": "x" * 50_000_000 if encoded else "x" * 1_000_001})
    headers = {"Content-Encoding": "deflate"} if encoded else {}
    async with serving(tmp_path) as served:
        try:
            status, refused = await served.ask(
                "POST",
                "/api/sessions/s/messages",
                data=zlib.compress(body) if encoded else body,
                headers=headers,
            )
        except ClientError:
            status, refused = 413, {"error_name": "TooLargeError"}
        assert (status, refused["error_name"]) == (413, "TooLargeError")
        assert (await served.ask("GET", "/healthz"))[0] == 200


async def test_a_body_that_is_not_what_it_says_is_a_400(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        status, refused = await served.ask(
            "POST", "/api/sessions/s/messages", data=b"no gzip", headers={"Content-Encoding": "gzip"}
        )
        assert (status, refused["error_name"]) == (400, "InvalidRequestError")


BAD_ADDRESSES = {
    "/api/sessions?limit=0": 400,
    "/api/sessions?limit=x": 400,
    "/api/sessions?limit=١٢": 400,
    "/api/sessions?limit=1&limit=2": 400,
    "/api/sessions?limit=99999999999999999999999999": 400,
    "/api/sessions?before=x": 400,
    "/api/sessions?before=99999999999999999": 400,
    "/api/sessions/s/messages?after=-1": 400,
    "/api/sessions/s/messages?last=1.5": 400,
    "/api/sessions/s/messages?before=0": 400,
    "/api/sessions/nobody": 404,
    "/api/sessions/%00": 400,
    "/api/sessions/%ED%A0%80": 404,
    "/api/sessions/..%2F..%2Fetc%2Fpasswd": 404,
    f"/api/sessions/{'x' * 201}": 400,
    "/api/sessions/": 404,
    "/api/nothing": 404,
    "/nothing": 404,
}


@pytest.mark.parametrize("address", BAD_ADDRESSES)
async def test_a_bad_address_is_refused_by_name(tmp_path: Path, address: str) -> None:
    async with serving(tmp_path) as served:
        status, refused = await served.ask("GET", address)
        names = {400: "InvalidRequestError", 404: "NotFoundError"}
        assert (status, refused["error_name"]) == (BAD_ADDRESSES[address], names[status])


@pytest.mark.parametrize("session", ["a b", "a$b", "%2e%2e%2fx", "ä"])
async def test_a_session_cannot_be_begun_under_a_name_that_none_has(tmp_path: Path, session: str) -> None:
    async with serving(tmp_path) as served:
        status, refused = await served.ask("POST", f"/api/sessions/{session}/messages", json={"text": "x"})
        assert (status, refused["error_name"]) == (400, "InvalidRequestError")


async def test_a_method_an_address_does_not_take_is_a_405(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        status, refused = await served.ask("PUT", "/api/sessions/s")
        assert (status, refused["error_name"]) == (405, "MethodNotAllowedError")


async def test_a_model_that_fails_is_reported_in_the_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        served.models.then(Refusal(500, "boom"))
        await answered(served, "s", "Hi")
        _, said = await served.ask("GET", "/api/sessions/s/messages")
        answer = said["messages"][-1]["message"]
        assert answer["parts"][0]["error_name"] == "ServerFailedError"
        assert answer["metadata"]["stop_reason"] == "cancelled"


async def test_a_session_is_pinned_over_a_restart_and_listed_apart(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for session in ("old", "new"):
            await answered(served, session, f"the {session} one")
        before = (await served.ask("GET", "/api/sessions/old"))[1]["updated_at"]
        status, pinned = await served.ask("PATCH", "/api/sessions/old", json={"pinned": True})
        assert (status, pinned["pinned"], pinned["title"]) == (200, True, "the old one")
        assert pinned["updated_at"] == before
        await answered(served, "old", "go on")
    async with serving(tmp_path) as served:
        listed: dict[str, list[str]] = {}
        for query in ("pinned=true", "pinned=false"):
            _, page = await served.ask("GET", f"/api/sessions?{query}")
            listed[query] = [session["id"] for session in page["sessions"]]
        assert listed == {"pinned=true": ["old"], "pinned=false": ["new"]}
        _, fork = await served.ask("POST", "/api/sessions/old/fork", json={})
        assert fork["pinned"] is False
        await served.ask("PATCH", "/api/sessions/old", json={"pinned": False, "title": "Both"})
        _, shown = await served.ask("GET", "/api/sessions/old")
        assert (shown["title"], shown["pinned"]) == ("Both", False)
        assert (await served.ask("GET", "/api/sessions?pinned=true"))[1]["sessions"] == []
        assert (await served.ask("PATCH", "/api/sessions/old", json={"pinned": 1}))[0] == 400


async def test_sessions_are_found_by_the_words_of_their_titles(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        for session, text in (("a", "Café in Graz"), ("b", "Cafe in Wien"), ("c", "Tea")):
            await answered(served, session, text)
        await answered(served, "c", "the word cafe is in a message alone")
        await served.gateway.parts.conversations.search.catch_up()

        async def found(query: str) -> list[str]:
            _, page = await served.ask("GET", "/api/sessions", params={"q": query})
            return [session["id"] for session in page["sessions"]]

        assert await found("cafe") == ["b", "a"]
        assert await found("CAFÉ gr") == ["a"]
        assert await found('"in wien"') == ["b"]
        assert await found("milk") == await found('"') == []
        _, first = await served.ask("GET", "/api/sessions", params={"q": "cafe", "limit": 1})
        _, second = await served.ask(
            "GET", "/api/sessions", params={"q": "cafe", "limit": 1, "before": first["next"]}
        )
        assert [session["id"] for page in (first, second) for session in page["sessions"]] == ["b", "a"]
        assert second["next"] is None


async def test_a_session_is_downloaded_as_markdown_and_as_json(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        await answered(served, "s", "Grüße / Hi")
        async with served.http.get(f"{served.url}/api/sessions/s/export") as response:
            assert response.status == 200
            assert response.headers["Content-Type"] == "text/markdown; charset=utf-8"
            assert response.headers["Content-Disposition"] == (
                "attachment; filename*=UTF-8''Gr%C3%BC%C3%9Fe-Hi.md"
            )
            text = await response.text()
            assert text.startswith("# Grüße / Hi\n")
            assert "You said: Grüße / Hi" in text
        status, told = await served.ask("GET", "/api/sessions/s/export?format=json")
        assert (status, told["session"]["id"], len(told["messages"])) == (200, "s", 2)
        assert (await served.ask("GET", "/api/sessions/s/export?format=pdf"))[0] == 400
        assert (await served.ask("GET", "/api/sessions/none/export"))[0] == 404


async def test_004_t09_the_last_exchange_is_undone_and_redone_over_rest(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        first = await answered(served, "s", "one")
        second = await answered(served, "s", "two")
        pair = [second["message_id"], second["answer_id"]]
        status, undone = await served.ask("POST", "/api/sessions/s/undo")
        assert (status, undone) == (200, {"messages": pair, "turns": [pair[1]], "remains": False, "kept": []})
        _, shown = await served.ask("GET", "/api/sessions/s")
        _, log = await served.ask("GET", "/api/sessions/s/messages")
        kept = [first["message_id"], first["answer_id"]]
        assert [one["message"]["id"] for one in log["messages"]] == kept
        assert shown["messages"] == 2
        key = {"Idempotency-Key": "again"}
        _, redone = await served.ask("POST", "/api/sessions/s/redo", headers=key)
        assert redone == undone
        _, repeated = await served.ask("POST", "/api/sessions/s/redo", headers=key)
        assert repeated == {"messages": [], "turns": [], "remains": False, "kept": []}
        _, log = await served.ask("GET", "/api/sessions/s/messages")
        assert [one["message"]["id"] for one in log["messages"]] == [*kept, *pair]
        status, refused = await served.ask("POST", "/api/sessions/s/redo")
        assert (status, refused["error_name"]) == (409, "InvalidStateError")
        assert "nothing was undone" in refused["message"]
        status, _ = await served.ask("POST", "/api/sessions/none/undo")
        assert status == 404


async def test_004_t09_messages_are_edited_and_answered_again_and_versions_switched_over_rest(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served:
        first = await answered(served, "s", "one")
        url, key = "/api/sessions/s", {"Idempotency-Key": "again"}

        async def log() -> list[str]:
            _, found = await served.ask("GET", f"{url}/messages")
            return [one["message"]["parts"][0]["content"] for one in found["messages"]]

        edit = f"{url}/messages/{first['message_id']}/edit"
        status, accepted = await served.ask("POST", edit, json={"text": "eins"}, headers=key)
        assert (status, accepted["client_msg_id"], accepted["duplicate"]) == (202, "again", False)
        await served.idle("s")
        assert await log() == ["eins", "You said: eins"]
        status, repeated = await served.ask("POST", edit, json={"text": "eins"}, headers=key)
        assert (status, repeated["message_id"]) == (202, accepted["message_id"])
        assert repeated["duplicate"]
        again = f"{url}/messages/{accepted['answer_id']}/regenerate"
        status, _ = await served.ask("POST", again)
        assert status == 202
        await served.idle("s")
        _, listed = await served.ask("GET", f"{url}/branches")
        [branch] = listed["branches"]
        assert [one["text"] for one in branch["versions"]] == ["one", "eins", "eins"]
        assert [one["shown"] for one in branch["versions"]] == [False, False, True]
        shown = {"message_id": first["message_id"]}
        status, listed = await served.ask("PUT", f"{url}/branch", json=shown)
        assert (status, [one["shown"] for one in listed["branches"][0]["versions"]]) == (
            200,
            [True, False, False],
        )
        assert await log() == ["one", "You said: one"]
        for method, path, body in (
            ("PUT", f"{url}/branch", {"message_id": "unknown"}),
            ("POST", f"{url}/messages/unknown/edit", {"text": "x"}),
            ("POST", f"{url}/messages/unknown/regenerate", None),
            ("GET", "/api/sessions/none/branches", None),
        ):
            assert (await served.ask(method, path, json=body))[0] == 404
        status, refused = await served.ask("POST", edit, json={"text": "/new"})
        assert (status, refused["error_name"]) == (400, "InvalidRequestError")


async def edited(served: Served, session: str, old: str, new: str) -> dict[str, str]:
    """Send another text in place of a message, by its id, and wait for its answer."""
    url = f"/api/sessions/{session}/messages/{old}/edit"
    _, accepted = await served.ask("POST", url, json={"text": new})
    await served.idle(session)
    return accepted


@pytest.mark.parametrize("path", ["m1/edit", "m2/regenerate"])
async def test_a_message_that_left_memory_is_too_old_for_another_version(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path) as served:
        await store_talk(served, 450)
        status, refused = await served.ask(
            "POST", f"/api/sessions/long/messages/{path}", json={"text": "new"}
        )
        assert (status, refused["error_name"]) == (409, "InvalidStateError")
        assert refused["message"].endswith("or too old; fork the conversation there instead")


async def test_messages_of_another_version_are_read_without_showing_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        first = await answered(served, "s", "one")
        second = await edited(served, "s", first["message_id"], "eins")
        url = "/api/sessions/s/messages"
        _, shown = await served.ask("GET", url)
        status, other = await served.ask("GET", url, params={"branch": first["message_id"]})
        assert status == 200
        assert [one["message"]["id"] for one in other["messages"]] == [
            first["message_id"],
            first["answer_id"],
        ]
        last = {"branch": first["message_id"], "last": 1}
        _, newest = await served.ask("GET", url, params=last)
        assert newest == {"messages": other["messages"][1:], "next": other["messages"][1]["seq"]}
        _, before = await served.ask("GET", url, params=last | {"before": newest["next"]})
        assert before == {"messages": other["messages"][:1], "next": None}
        _, later = await served.ask("GET", url, params=last | {"after": other["messages"][1]["seq"]})
        assert later["messages"] == []
        assert (await served.ask("GET", url, params={"branch": second["message_id"]}))[1] == shown
        assert (await served.ask("GET", url))[1] == shown
        status, refused = await served.ask("GET", url, params={"branch": "unknown"})
        assert (status, refused["message"]) == (
            404,
            "branch: session 's' has no version 'unknown'; GET /api/sessions/s/branches lists them",
        )
        status, refused = await served.ask("GET", url, params={"branch": ""})
        assert (status, "`$.branch`" in refused["message"]) == (400, True)
        _, described = await served.ask("GET", "/openapi.json")
        names = [
            one["name"] for one in described["paths"]["/api/sessions/{id}/messages"]["get"]["parameters"]
        ]
        assert "branch" in names


async def test_an_export_contains_all_versions_if_asked(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        first = await answered(served, "s", "one")
        second = await answered(served, "s", "two")
        third = await edited(served, "s", second["message_id"], "zwei")
        await edited(served, "s", first["message_id"], "eins")
        url = "/api/sessions/s/export"
        _, told = await served.ask("GET", url, params={"format": "json", "branch": "all"})
        assert [one["id"] for one in told["messages"]] == [
            one["message"]["id"]
            for one in (await served.ask("GET", "/api/sessions/s/messages"))[1]["messages"]
        ]
        outer, inner = told["versions"]
        assert (outer["id"], outer["after"]) == (first["message_id"], None)
        assert [one["id"] for one in outer["messages"]][2:] == [third["message_id"], third["answer_id"]]
        assert (inner["id"], inner["after"]) == (second["message_id"], first["answer_id"])
        _, plain = await served.ask("GET", url, params={"format": "json"})
        assert plain == {key: value for key, value in told.items() if key != "versions"}
        async with served.http.get(f"{served.url}{url}?branch=all") as response:
            text = await response.text()
        shown, one, two = text.split("\n---\n")
        assert "*Version 2 of 2*\n\neins" in shown
        assert one.startswith("\n# Version 1 of 2, from the beginning\n")
        assert "*Version 1 of 2*\n\none" in one
        assert "*Version 2 of 2*\n\nzwei" in one
        assert two.startswith("\n# Version 1 of 2, after Assistant, ")
        assert "*Version 1 of 2*\n\ntwo" in two
        async with served.http.get(f"{served.url}{url}") as response:
            assert "Version" not in await response.text()
        status, refused = await served.ask("GET", url, params={"branch": "other"})
        assert (status, refused["message"]) == (
            400,
            "the query: Invalid enum value 'other' - at `$.branch`; use shown or all",
        )


async def test_the_model_and_the_agent_of_a_session_are_selected(tmp_path: Path) -> None:
    agents = {"small": {"model": "openai/fake-other", "description": "Answers briefly"}}
    settings: dict[str, Any] = {"agents": agents, "aliases": {"quick": "openai/fake-large"}}
    async with serving(tmp_path, **settings) as served, served.socket() as client:
        await answered(served, "s", "Hi")
        _, listed = await served.ask("GET", "/api/models")
        names = [one["name"] for one in listed["models"]]
        assert names[:2] == ["openai/fake-small", "quick"]
        assert listed["models"][1]["model"] == "openai/fake-large"
        assert len(set(names)) == len(names)
        _, known = await served.ask("GET", "/api/agents")
        assert known["agents"][0]["name"] == "main"
        assert {"name": "small", **agents["small"]} in known["agents"]
        await client.send(type="resume", session="s", after=0)
        await client.until("replayed")
        for change, model, agent in (
            ({"model": "quick"}, "quick", "main"),
            ({"agent": "small"}, "quick", "small"),
            ({"model": None}, "openai/fake-other", "small"),
            ({"model": "openai/fake-large", "agent": None}, "openai/fake-large", "main"),
        ):
            status, info = await served.ask("PATCH", "/api/sessions/s", json=change)
            assert (status, info["model"], info["agent"]) == (200, model, agent)
            assert (await client.until("session"))["model"] == model if len(change) == 1 else True
        for change in ({"model": "no/such"}, {"agent": "nobody"}, {"model": ""}):
            status, refused = await served.ask("PATCH", "/api/sessions/s", json=change)
            assert (status, refused["error_name"]) == (400, "InvalidRequestError"), change
    async with serving(tmp_path, **settings) as served:
        await answered(served, "s", "again")
        _, said = await served.ask("GET", "/api/sessions/s/messages")
        assert said["messages"][-1]["message"]["metadata"]["model"] == "fake-large"
