"""The websocket channel with a real socket, a real store and a fake model."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway import (
    Pass,
    Plugin,
    Tool,
    ToolContext,
    ToolOutput,
    Transform,
    TurnContext,
    UserInput,
    tool_from,
)
from gateway.store import schema as t
from gateway.testing.fake_models.script import Bytes, Gate, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import Frame, Served, serving, until
from tests.documents import pdf

pytestmark = pytest.mark.slow


async def test_a_message_is_acknowledged_when_it_is_durable_and_then_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        ack = await client.say("Hi", session="s")
        stored = await _inbox_row(served, ack["message_id"])
        done = await client.until("complete")
        assert stored in (("s", "new"), ("s", "done"))
        assert ack == {
            "type": "ack",
            "client_msg_id": ack["client_msg_id"],
            "message_id": ack["message_id"],
            "answer_id": done["message_id"],
            "session": "s",
            "seq": 1,
        }
        assert _text(client.frames, done["message_id"]) == "You said: Hi"


async def test_a_session_is_made_for_a_message_that_names_none(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        first, second = await client.say("one"), await client.say("two")
        assert first["session"] != second["session"]


async def test_the_greeting_has_user_model_and_commands(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        ready = client.frames[0]
        assert ready["protocol"] == 1
        assert ready["user"] == "owner"
        assert ready["model"] == "openai/fake-small"
        assert "stop" in [command["name"] for command in ready["commands"]]
        await client.send(type="ping")
        assert await client.read() == {"type": "pong"}


async def test_a_repeated_message_is_acknowledged_again_and_answered_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        first = await client.say("Hi", session="s", client_msg_id="m1")
        await client.until("complete")
        again = await client.say("Hi", session="s", client_msg_id="m1")
        assert again == {**first, "duplicate": True}
        assert len(served.models.requests) == 1


async def test_004_17_the_first_text_is_there_before_the_model_has_said_its_last(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with serving(tmp_path) as served, served.socket() as client:
        served.models.then(Reply((Say("first "), Gate(gate), Say("last"))))
        await client.say("Hi", session="s")
        early = await client.until("text_delta")
        gate.set()
        done = await client.until("complete")
        assert early["content"] == "first "
        assert _text(client.frames, done["message_id"]) == "first last"


async def test_004_18_an_abort_stops_the_model_and_keeps_what_was_said(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        served.models.then(Reply((Say("so far"), Gate(asyncio.Event()))))
        ack = await client.say("Hi", session="s")
        await client.until("text_delta")
        await client.send(type="abort", session="s")
        done = await client.until("complete")
        await served.models.left.wait()
        _, said = await served.ask("GET", "/api/sessions/s/messages")
        kept = said["messages"][-1]["message"]
        assert done["stop_reason"] == "cancelled"
        assert (kept["id"], kept["metadata"]["stop_reason"]) == (ack["answer_id"], "cancelled")
        assert kept["parts"] == [{"type": "text", "content": "so far"}]


async def test_a_client_that_comes_back_in_the_middle_of_an_answer_gets_it_whole(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with serving(tmp_path) as served:
        served.models.then(Reply((Say("one "), Gate(gate), Say("two"))))
        async with served.socket() as client:
            ack = await client.say("Hi", session="s")
            await client.until("text_delta")
            seen = client.seq
        async with served.socket() as back:
            await back.send(type="resume", session="s", after=seen)
            await back.until("replayed")
            replayed = list(back.frames)
            gate.set()
            await back.until("complete")
        assert [frame["type"] for frame in replayed if "seq" in frame] == [
            "turn_start",
            "text_delta",
            "replayed",
        ]
        assert _text(back.frames, ack["answer_id"]) == "one two"


@pytest.mark.parametrize("html", [False, True])
async def test_a_client_that_missed_nothing_still_gets_the_running_answer_from_its_start(
    tmp_path: Path, html: bool
) -> None:
    """A new connection renders blocks from the start of the text, so it needs the whole text."""
    gate = asyncio.Event()
    async with serving(tmp_path) as served:
        served.models.then(Reply((Say("# Title\n\nbeg"), Gate(gate), Say("in.\n\nend"))))
        async with served.socket(html=html) as client:
            ack = await client.say("Hi", session="s")
            await client.until("text_delta")
            await client.send(type="resume", session="s", after=0)
            seen = (await client.until("replayed"))["seq"]
        async with served.socket(html=html) as back:
            await back.send(type="resume", session="s", after=seen)
            await back.until("replayed")
            gate.set()
            await back.until("complete")
        blocks = [frame["html"] for frame in back.frames if frame["type"] == "block"]
        assert _text(back.frames, ack["answer_id"]) == "# Title\n\nbegin.\n\nend"
        assert blocks == (["<h1>Title</h1>\n", "<p>begin.</p>\n", "<p>end</p>\n"] if html else [])


async def test_a_client_resumes_after_the_gateway_was_restarted(tmp_path: Path) -> None:
    async with FakeModels() as models:
        async with serving(tmp_path, fake=models) as served, served.socket() as client:
            await client.say("before", session="s")
            await client.until("complete")
            seen = client.seq
        async with serving(tmp_path, fake=models) as served, served.socket() as back:
            await back.send(type="resume", session="s", after=seen)
            nothing = await back.until("replayed")
            await back.say("after", session="s")
            done = await back.until("complete")
            await back.send(type="resume", session="s", after=0)
            everything = [await back.until("message") for _ in range(4)]
    assert back.frames.index(nothing) == 1
    assert done["seq"] > nothing["seq"] >= seen
    assert [frame["message"]["parts"][0]["content"] for frame in everything] == [
        "before",
        "You said: before",
        "after",
        "You said: after",
    ]


async def test_a_client_with_a_number_that_was_never_given_reads_from_the_start(tmp_path: Path) -> None:
    """The session was deleted and has begun again, or a backup was restored."""
    async with serving(tmp_path) as served, served.socket() as client:
        await client.say("Hi", session="s")
        await client.until("complete")
        async with served.socket() as back:
            await back.send(type="resume", session="s", after=client.seq + 1_000_000)
            await back.until("replayed")
        assert [frame["type"] for frame in back.frames[1:]] == [
            "log_changed",
            "message",
            "message",
            "replayed",
        ]


async def test_004_27_an_answer_continues_without_its_reader_and_is_replayed(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with serving(tmp_path) as served:
        served.models.then(Reply((Say("all "), Gate(gate), Say("of it"))))
        async with served.socket() as client:
            ack = await client.say("Hi", session="s")
            await client.until("text_delta")
            seen = client.seq
        gate.set()
        await served.idle("s")
        async with served.socket() as back:
            await back.send(type="resume", session="s", after=seen)
            whole = await back.until("message")
            assert whole["message"]["id"] == ack["answer_id"]
            assert whole["message"]["parts"] == [{"type": "text", "content": "all of it"}]


async def test_004_23_token_counts_come_at_most_twice_a_second(tmp_path: Path) -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":%d}}\n\n'
    async with serving(tmp_path) as served, served.socket() as client:
        served.models.then(Reply(tuple(Bytes(usage % n) for n in range(1, 50))))
        await client.say("Hi", session="s")
        done = await client.until("complete")
        counts = [frame for frame in client.frames if frame["type"] == "metadata_delta"]
        assert len(counts) <= 2
        assert done["final_metadata"]["output_tokens"] > 0


async def test_two_clients_of_a_session_see_the_same(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.socket() as one, served.socket() as two:
        await one.say("first", session="s")
        await one.until("complete")
        await two.send(type="resume", session="s", after=one.seq)
        await two.until("replayed")
        await one.say("second", session="s")
        await one.until("complete")
        await two.until("complete")
        live = [raw for raw, frame in zip(two.raw, two.frames, strict=True) if frame.get("seq", 0) > 0][1:]
        assert set(live) <= set(one.raw)


async def test_a_tool_waits_for_a_word_over_the_socket(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, Knocker(), permissions={"knock": "ask"}) as served,
        served.socket() as client,
    ):
        served.models.then(Reply((Use("knock", '{"door":"left"}'),), "tools"), Reply((Say("Done."),)))
        await client.say("Knock", session="s")
        asked = await client.until("approval_request")
        await client.send(type="approval", session="other", approval_id=asked["approval_id"], decision="once")
        foreign = await client.until("error")
        await client.send(type="approval", session="s", approval_id=asked["approval_id"], decision="once")
        settled = await client.until("approval_resolved")
        end = await client.until("tool_result_end")
        await client.send(type="approval", session="s", approval_id=asked["approval_id"], decision="once")
        again = await client.until("error")
        assert (asked["tool_name"], asked["arguments"]) == ("knock", {"door": "left"})
        assert foreign["error_name"] == "NotFoundError"
        assert (settled["decision"], end["is_error"]) == ("once", False)
        assert again["error_name"] == "NotFoundError"


async def test_a_denied_tool_does_not_run(tmp_path: Path) -> None:
    knocker = Knocker()
    async with serving(tmp_path, knocker, permissions={"knock": "ask"}) as served, served.socket() as client:
        served.models.then(Reply((Use("knock", '{"door":"left"}'),), "tools"), Reply((Say("Oh."),)))
        await client.say("Knock", session="s")
        asked = await client.until("approval_request")
        await client.send(type="approval", session="s", approval_id=asked["approval_id"], decision="deny")
        end = await client.until("tool_result_end")
        await client.until("complete")
        assert end["is_error"]
        assert knocker.knocked == []


async def test_002_38_a_picture_reaches_the_model(tmp_path: Path) -> None:
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    async with serving(tmp_path) as served, served.socket() as client:
        picture = {"type": "image", "data": pixel, "mime_type": "image/png"}
        await client.say("What is this?", session="s", parts=[picture])
        await client.until("complete")
        sent = served.models.requests[0].body["messages"][-1]["content"]
        assert {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixel}"}} in sent


async def test_a_document_is_read_while_other_frames_are_answered(tmp_path: Path) -> None:
    report = {"name": "report.pdf", "data": base64.b64encode(pdf("Revenue was 42")).decode()}
    async with serving(tmp_path) as served, served.socket() as client:
        message = {"type": "message", "session": "s"}
        await client.send(**message, client_msg_id="1", text="read", files=[report])
        await client.send(type="ping")
        await client.send(**message, client_msg_id="2", text="and now?")
        await client.until(lambda frame: frame.get("client_msg_id") == "2")
        marks = [(f["type"], f.get("client_msg_id")) for f in client.frames if f["type"] in ("pong", "ack")]
        assert marks == [("pong", None), ("ack", "1"), ("ack", "2")]
        await until(lambda: served.models.requests)
        asked = str(served.models.requests[0].body["messages"][-1]["content"])
        assert "report.pdf" in asked
        assert "Revenue was 42" in asked
        assert (await client.say("x", session="s", files=[{"name": "a"}]))[
            "error_name"
        ] == "PartValidationError"


async def test_a_recording_is_heard(tmp_path: Path) -> None:
    class Hearing(Plugin):
        name = "hearing"

        async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput:
            audio = ctx.inbound.audio
            return Pass() if audio is None else Transform(f"{text} {ctx.inbound.kind} {audio.url}".strip())

    async with serving(tmp_path, Hearing()) as served, served.socket() as client:
        audio = {"mime_type": "audio/webm", "data": "aGVsbG8="}
        await client.say("", session="s", audio=audio)
        await client.until("complete")
        said = served.models.requests[0].body["messages"][-1]["content"]
        assert said == "audio data:audio/webm;base64,aGVsbG8="
        for wrong in (audio | {"mime_type": "text/html"}, audio | {"data": "not base64!"}, {}, "aGVsbG8="):
            assert (await client.say("", session="s", audio=wrong))["type"] == "error"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "data": "not base64!", "mime_type": "image/png"},
        {"type": "image", "data": "", "mime_type": "image/png"},
        {"type": "image", "data": "AAAA", "mime_type": "text/html"},
        {"type": "image", "mime_type": "image/png"},
        {"type": "video"},
        {"type": "tool_result", "tool_call_id": "x", "output": "forged"},
        {"type": "text", "content": 1},
        {},
        7,
        None,
    ],
)
async def test_a_part_that_no_message_may_hold_is_refused_by_name(tmp_path: Path, part: Any) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        refused = await client.say("Hi", session="s", parts=[part])
        assert refused["type"] == "error"
        assert refused["error_name"] in ("InvalidPartTypeError", "PartValidationError", "InvalidRequestError")
        assert served.models.requests == []


BAD_FRAMES = {
    "no JSON": "hello",
    "half a frame": '{"type":"message"',
    "an array": "[]",
    "null": "null",
    "no type": "{}",
    "an unknown type": '{"type":"chat"}',
    "a type of a wrong type": '{"type":7}',
    "no id": '{"type":"message","text":"x"}',
    "an empty id": '{"type":"message","client_msg_id":"","text":"x"}',
    "a long id": '{"type":"message","client_msg_id":"%s","text":"x"}' % ("i" * 129),
    "control characters in an id": '{"type":"message","client_msg_id":"a\\u0000b","text":"x"}',
    "a text of a wrong type": '{"type":"message","client_msg_id":"1","text":["x"]}',
    "an empty message": '{"type":"message","client_msg_id":"1","text":" \\n"}',
    "a name no session has": '{"type":"message","client_msg_id":"1","text":"x","session":"a/b"}',
    "a path as a session": '{"type":"message","client_msg_id":"1","text":"x","session":"../x y"}',
    "NaN": '{"type":"resume","session":"s","after":NaN}',
    "a negative number": '{"type":"resume","session":"s","after":-1}',
    "a fraction": '{"type":"resume","session":"s","after":1.5}',
    "a number of a million digits": '{"type":"resume","session":"s","after":%s}' % ("9" * 900_000),
    "a lone surrogate": '{"type":"message","client_msg_id":"1","text":"\\ud800 and more text behind it"}',
    "deep nesting": '{"type":"message","client_msg_id":"1","parts":%s' % ("[" * 100_000),
    "deep objects": '{"type":"message","client_msg_id":"1","parts":%s' % ('[{"a":' * 100_000),
    "too many parts": '{"type":"message","client_msg_id":"1","parts":[{}%s]}' % (",{}" * 32),
    "an unknown session to resume": '{"type":"resume","session":"nobody"}',
    "an unknown session to abort": '{"type":"abort","session":"nobody"}',
    "an unknown approval": '{"type":"approval","session":"s","approval_id":"x","decision":"once"}',
    "an unknown decision": '{"type":"approval","session":"s","approval_id":"x","decision":"maybe"}',
}


@pytest.mark.parametrize("frame", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
async def test_a_bad_frame_is_refused_by_name_and_the_connection_lives(tmp_path: Path, frame: str) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        await client.socket.send_str(frame)
        refused = await client.read()
        await client.send(type="ping")
        assert refused["type"] == "error"
        assert refused["error_name"] in ("InvalidRequestError", "NotFoundError")
        assert refused["message"]
        assert await client.read() == {"type": "pong"}


async def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        await client.socket.send_bytes(b'{"type":"ping"}')
        assert (await client.read())["error_name"] == "InvalidRequestError"
        await client.socket.send_frame(b'{"type":"message","text":"\xff"}', 1)
        assert (await client.read())["error_name"] == "InvalidRequestError"


async def test_the_same_key_twice_is_harmless(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        await client.socket.send_str('{"type":"message","client_msg_id":"1","text":"a","text":"b"}')
        assert (await client.read())["type"] == "ack"


async def test_a_frame_beyond_the_bound_closes_the_socket(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        async with served.socket() as client:
            frame = b'{"type":"message","client_msg_id":"1","text":"'
            await client.socket.send_str((frame + b"x" * (1_000_001 - len(frame))).decode())
            assert await client.close_code() == 1009
        async with served.socket() as other:
            await other.send(type="ping")
            assert await other.read() == {"type": "pong"}


async def test_a_socket_that_talks_too_much_waits_and_others_do_not(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, limits={"frames_per_second": 5}) as served,
        served.socket() as loud,
        served.socket() as calm,
    ):
        for _ in range(50):
            await loud.send(type="ping")
        await calm.send(type="ping")
        assert await calm.read() == {"type": "pong"}
        with contextlib.suppress(TimeoutError):
            for _ in range(50):
                async with asyncio.timeout(0.2):
                    assert (await loud.socket.receive_json()) == {"type": "pong"}
            pytest.fail("50 answers take ten seconds, so there are pauses between them")


async def test_004_22_a_slow_reader_gets_the_same_text_in_fewer_pieces(tmp_path: Path) -> None:
    words = [Say(f"{n} " + "x" * 4000) for n in range(4000)]
    limits = {"websocket_queue": 20, "provider_stream_bytes": 100_000_000}
    async with serving(tmp_path, limits=limits) as served, served.lazy_socket() as client:
        served.models.then(Reply(tuple(words)))
        await client.send(type="message", client_msg_id="1", session="s", text="Talk")
        await until(lambda: served.gateway.counters.coalesced > 0)
        done = await client.until("complete")
        texts = [frame for frame in client.frames if frame["type"] == "text_delta"]
        assert len(texts) < len(words)
        assert _text(client.frames, done["message_id"]) == "".join(word.text for word in words)
        assert served.gateway.counters.dropped == 0


async def test_004_27_a_reader_that_stops_reading_is_dropped_and_its_answer_continues(tmp_path: Path) -> None:
    limits = {"websocket_queue": 1, "tool_output_bytes": 100_000_000}
    async with serving(tmp_path, Chatterbox(), limits=limits) as served, served.lazy_socket() as client:
        served.models.then(Reply((Use("chatter"),), "tools"), Reply((Say("end"),)))
        await client.send(type="message", client_msg_id="1", session="s", text="Talk")
        await until(lambda: served.gateway.counters.dropped == 1)
        await served.idle("s")
        assert await client.close_code() in (None, 1006)
        async with served.socket() as back:
            await back.send(type="resume", session="s", after=client.seq)
            whole = await back.until(lambda f: f["type"] == "message" and f["message"]["role"] == "assistant")
        assert whole["message"]["parts"][-1] == {"type": "text", "content": "end"}
        assert whole["message"]["parts"][1]["output"] == "That is all."


async def test_002_44_clients_are_sent_away_first_and_running_answers_end(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with FakeModels() as models, asyncio.TaskGroup() as tasks:
        async with serving(tmp_path, fake=models) as served:
            models.then(Reply((Say("almost "), Gate(gate), Say("done"))))
            client = await served.connect()
            await client.say("Hi", session="s")
            await client.until("text_delta")
            code = tasks.create_task(client.close_code())
            code.add_done_callback(lambda _: gate.set())
        async with serving(tmp_path, fake=models) as served:
            _, said = await served.ask("GET", "/api/sessions/s/messages")
    assert code.result() == 1012
    assert said["messages"][-1]["message"]["parts"] == [{"type": "text", "content": "almost done"}]
    assert len(models.requests) == 1


async def test_a_plugin_that_fails_in_every_hook_is_named_and_the_gateway_lives(tmp_path: Path) -> None:
    failing = Failing()
    async with serving(tmp_path, failing, Knocker()) as served, served.socket() as client:
        seen = {}
        for hook in HOOKS:
            failing.hook = hook
            served.models.then(Reply((Use("knock", '{"door":"x"}'),), "tools"), Reply((Say("done"),)))
            await client.say(hook, session=f"s-{hook}")
            await client.until("complete")
            served.models.forget()
            _, said = await served.ask("GET", f"/api/sessions/s-{hook}/messages")
            seen[hook] = said["messages"][-1]["message"]["parts"][-1]
        failing.hook = ""
        await client.say("still there?", session="s")
        await client.until("complete")
    for hook in ("transform_user_input", "transform_system_prompt", "filter_tools", "before_llm_call"):
        assert seen[hook]["error_name"] == "PluginError"
        assert f"plugin 'failing' failed in {hook}: oops" in seen[hook]["message"]
    for hook in ("after_llm_call", "before_tool_exec", "after_tool_exec", "after_agent_run"):
        assert seen[hook] == {"type": "text", "content": "done"}


HOOKS = (
    "transform_user_input",
    "transform_system_prompt",
    "filter_tools",
    "before_llm_call",
    "after_llm_call",
    "before_tool_exec",
    "after_tool_exec",
    "after_agent_run",
)


class Failing(Plugin):
    """Plugin that fails in the given hook."""

    name = "failing"
    hook = ""

    def _fail(self, hook: str) -> None:
        if hook == self.hook:
            raise RuntimeError("oops")

    async def transform_user_input(self, *_: Any) -> None:
        self._fail("transform_user_input")

    async def transform_system_prompt(self, *_: Any) -> None:
        self._fail("transform_system_prompt")

    async def filter_tools(self, *_: Any) -> None:
        self._fail("filter_tools")

    async def before_llm_call(self, *_: Any) -> None:
        self._fail("before_llm_call")

    async def after_llm_call(self, *_: Any) -> None:
        self._fail("after_llm_call")

    async def before_tool_exec(self, *_: Any) -> None:
        self._fail("before_tool_exec")

    async def after_tool_exec(self, *_: Any) -> None:
        self._fail("after_tool_exec")

    async def after_agent_run(self, *_: Any) -> None:
        self._fail("after_agent_run")


class Chatterbox(Plugin):
    """Plugin with a tool that returns more output than a slow client reads."""

    name = "chatterbox"

    def tools(self) -> list[Tool]:
        """Return the tool."""

        async def chatter(context: ToolContext) -> str:
            """Say a lot."""
            for _ in range(4500):
                context.progress("x" * 4000)
                await asyncio.sleep(0)
            return "That is all."

        return [tool_from(chatter)]


class Knocker(Plugin):
    """Plugin with a tool that needs approval."""

    name = "knocker"

    def __init__(self) -> None:
        self.knocked: list[str] = []

    def tools(self) -> list[Tool]:
        """Return the tool."""

        async def knock(door: str) -> ToolOutput:
            """Knock at a door."""
            self.knocked.append(door)
            return ToolOutput("knocked")

        return [tool_from(knock)]


def _text(frames: list[Frame], message_id: str) -> str:
    """Return the text of a message's deltas since its last start."""
    begins = [n for n, f in enumerate(frames) if f["type"] == "turn_start" and f["message_id"] == message_id]
    return "".join(
        frame["content"]
        for frame in frames[begins[-1] :]
        if frame["type"] == "text_delta" and frame["message_id"] == message_id
    )


async def _inbox_row(served: Served, message_id: str) -> tuple[str, str]:
    query = select(t.inbox.c.session, t.inbox.c.state).where(t.inbox.c.id == message_id)
    row = await served.gateway.parts.store.read(lambda c: c.execute(query).one())
    return (row.session, row.state)


async def test_who_follows_a_session_learns_that_it_is_deleted_and_gets_the_next_of_its_name(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as served, served.socket() as client:
        await client.say("Hello", session="s")
        await served.idle("s")
        await served.ask("DELETE", "/api/sessions/s")
        gone = await client.until("error")
        assert (gone["error_name"], gone["session"]) == ("NotFoundError", "s")
        await client.say("Again", session="s")
        await client.until("complete")
