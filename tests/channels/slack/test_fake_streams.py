"""Streamed messages and agent sessions in the fake."""

from __future__ import annotations

from typing import Any

import pytest

from channels.slack.fake import FakeSlack
from tests.channels.slack.apps import Plain, client, plain


def place(fake: FakeSlack, chat: str = "general") -> dict[str, str]:
    """Return where a stream begins: in the thread of a question."""
    root = fake.say(chat, "question")
    ada = fake.user("ada")
    return {
        "channel": fake.chat(chat).id,
        "thread_ts": root,
        "recipient_user_id": ada.id,
        "recipient_team_id": ada.team,
    }


async def start(api: Plain, where: dict[str, str], **more: Any) -> dict[str, str]:
    """Start a stream. Returns its chat and message."""
    told = await api.call("chat.startStream", **where, **more)
    return {"channel": told["channel"], "ts": told["ts"]}


async def test_a_message_grows_until_it_is_finished() -> None:
    async with plain() as (fake, api):
        where = place(fake)
        stream = await start(api, where, markdown_text="**one")
        assert fake.messages("general")[-1].streaming
        assert (await api.call("chat.appendStream", **stream, markdown_text=" two**"))["ok"]
        assert fake.answers("general") == ["**one two**"]
        metadata = {"event_type": "placed", "event_payload": {"k": "n"}}
        told = await api.call("chat.stopStream", **stream, markdown_text=" three", metadata=metadata)
        assert told["message"]["text"] == "**one two** three"
        assert told["message"]["streaming_state"] == "completed"
        assert told["message"]["metadata"] == metadata
        last = fake.messages("general")[-1]
        assert (last.streaming, last.thread) == (False, where["thread_ts"])
        fake.transcript.check()


async def test_the_official_helper_streams() -> None:
    async with FakeSlack() as fake:
        where = place(fake)
        streamer = await client(fake).chat_stream(**where, buffer_size=10)
        for word in ("Hello", " wonderful", " world"):
            await streamer.append(markdown_text=word)
        await streamer.stop(markdown_text=".")
        assert fake.answers("general") == ["Hello wonderful world."]
        fake.transcript.check()


@pytest.mark.parametrize(
    ("missing", "error"),
    [
        ("thread_ts", "invalid_arguments"),
        ("recipient_user_id", "missing_recipient_user_id"),
        ("recipient_team_id", "missing_recipient_team_id"),
    ],
)
async def test_a_stream_in_a_channel_is_a_reply_to_a_user(missing: str, error: str) -> None:
    async with plain() as (fake, api):
        where = place(fake)
        del where[missing]
        assert (await api.call("chat.startStream", **where))["error"] == error
        assert fake.transcript.problems


async def test_an_empty_thread_is_none() -> None:
    async with plain() as (fake, api):
        assert (await api.call("chat.startStream", **place(fake) | {"thread_ts": ""}))[
            "error"
        ] == "invalid_arguments"


async def test_a_stream_in_a_direct_message_needs_no_recipient() -> None:
    async with plain() as (fake, api):
        where = place(fake, "@ada")
        told = await api.call("chat.startStream", channel=where["channel"], thread_ts=where["thread_ts"])
        assert told["ok"]


async def test_a_stream_to_the_bot_itself_is_seen_by_no_user() -> None:
    async with plain() as (fake, api):
        bot = (await api.call("auth.test"))["user_id"]
        assert (await api.call("chat.startStream", **place(fake) | {"recipient_user_id": bot}))["ok"]
        assert "streams to itself" in fake.transcript.problems[0]


async def test_a_streamed_message_cannot_be_edited_meanwhile() -> None:
    async with plain() as (fake, api):
        stream = await start(api, place(fake), markdown_text="a")
        told = await api.call("chat.update", **stream, text="b")
        assert told["error"] == "streaming_state_conflict"
        assert (await api.call("chat.stopStream", **stream))["ok"]
        assert (await api.call("chat.update", **stream, text="b", blocks=[]))["ok"]
        assert fake.answers("general") == ["b"]


async def test_a_finished_stream_takes_nothing_more() -> None:
    async with plain() as (fake, api):
        stream = await start(api, place(fake))
        assert (await api.call("chat.stopStream", **stream, markdown_text="done"))["ok"]
        for method in ("chat.appendStream", "chat.stopStream"):
            told = await api.call(method, **stream, markdown_text="x")
            assert told["error"] == "message_not_in_streaming_state"


async def test_a_stream_ends_after_five_minutes_and_only_an_edit_helps() -> None:
    async with plain() as (fake, api):
        stream = await start(api, place(fake), markdown_text="half")
        fake.clock.advance(4 * 60)
        assert (await api.call("chat.appendStream", **stream, markdown_text=" more"))["ok"]
        fake.clock.advance(61)
        for method in ("chat.appendStream", "chat.stopStream"):
            told = await api.call(method, **stream, markdown_text="x")
            assert told["error"] == "message_not_in_streaming_state"
        assert (await api.call("chat.update", **stream, text="whole", blocks=[]))["ok"]
        assert fake.answers("general") == ["whole"]


async def test_an_edit_works_after_an_unnoticed_end_of_the_stream() -> None:
    async with plain() as (fake, api):
        stream = await start(api, place(fake), markdown_text="half")
        fake.clock.advance(301)
        assert (await api.call("chat.update", **stream, text="whole", blocks=[]))["ok"]


async def test_a_streamed_message_holds_12000_characters_in_all() -> None:
    async with plain() as (fake, api):
        stream = await start(api, place(fake), markdown_text="x" * 6_000)
        assert (await api.call("chat.appendStream", **stream, markdown_text="x" * 6_000))["ok"]
        told = await api.call("chat.appendStream", **stream, markdown_text="x")
        assert told["error"] == "msg_too_long"
        assert "12001 characters" in fake.transcript.problems[0]
        assert len(fake.answers("general")[0]) == 12_000


async def test_a_mention_in_pieces_is_noticed() -> None:
    async with plain() as (fake, api):
        stream = await start(api, place(fake), markdown_text="hello <!he")
        fake.transcript.check()
        await api.call("chat.appendStream", **stream, markdown_text="re> you")
        assert fake.transcript.problems == ["chat.appendStream: unescaped mention <!here>"]
        await api.call("chat.appendStream", **stream, markdown_text=" all")
        assert len(fake.transcript.problems) == 1


async def test_nothing_cannot_be_appended() -> None:
    async with plain() as (fake, api):
        stream = await start(api, place(fake))
        assert (await api.call("chat.appendStream", **stream))["error"] == "no_text"


async def test_tasks_and_plans_show_as_cards() -> None:
    async with plain() as (fake, api):
        stream = await start(api, place(fake))
        task = {"type": "task_update", "id": "t1", "title": "Search", "status": "in_progress"}
        text = {"type": "markdown_text", "text": "found"}
        await api.call("chat.appendStream", **stream, chunks=[{"type": "plan_update", "title": "Plan"}, task])
        done = {**task, "status": "complete", "output": "3 hits"}
        await api.call("chat.appendStream", **stream, chunks=[done, text])
        blocks = fake.messages("general")[-1].raw["blocks"]
        assert [block["type"] for block in blocks] == ["plan", "task_card", "markdown"]
        assert (blocks[1]["status"], blocks[1]["output"]) == ("complete", "3 hits")
        fake.transcript.check()


@pytest.mark.parametrize(
    "chunk", [{"type": "song"}, {"type": "task_update", "id": "1", "title": "t", "status": "odd"}, "text"]
)
async def test_chunks_that_are_none_are_refused(chunk: object) -> None:
    async with plain() as (fake, api):
        stream = await start(api, place(fake))
        assert (await api.call("chat.appendStream", **stream, chunks=[chunk]))["error"] == "invalid_chunks"


async def test_the_last_call_may_bring_blocks() -> None:
    async with plain() as (fake, api):
        stream = await start(api, place(fake), markdown_text="done")
        button = {"type": "button", "action_id": "again", "text": {"type": "plain_text", "text": "Again"}}
        blocks = [{"type": "actions", "elements": [button]}]
        told = await api.call("chat.stopStream", **stream, blocks=blocks)
        assert [block["type"] for block in told["message"]["blocks"]] == ["markdown", "actions"]


async def test_a_session_is_processing_until_a_user_stops_it() -> None:
    async with plain() as (fake, api):
        where = place(fake)
        stream = await start(api, where, markdown_text="a")
        session = {"channel_id": where["channel"], "thread_ts": where["thread_ts"]}
        with pytest.raises(ValueError, match="nothing to stop"):
            fake.stop("general", where["thread_ts"])
        told = await api.call("agents.sessions.setStatus", **session, status="processing", title="Trip")
        assert told == {"ok": True, "status": "processing", "agent_status": "processing", "title": "Trip"}
        fake.stop("general", where["thread_ts"])
        event = fake.deliveries[-1].payload["event"]
        assert (event["type"], event["streaming_message_ts"]) == ("agent_session_stopped", [stream["ts"]])
        assert (await api.call("chat.appendStream", **stream, markdown_text="b"))[
            "error"
        ] == "stopped_by_user"
        assert (await api.call("chat.stopStream", **stream, session_status="active"))["ok"]
        with pytest.raises(ValueError, match="nothing to stop"):
            fake.stop("general", where["thread_ts"])


async def test_a_session_is_renamed_by_either_side() -> None:
    async with plain() as (fake, api):
        where = place(fake)
        session = {"channel_id": where["channel"], "thread_ts": where["thread_ts"]}
        assert (await api.call("agents.sessions.rename", **session, title="A"))[
            "error"
        ] == "session_not_found"
        await api.call("agents.sessions.setStatus", **session, status="active")
        assert (await api.call("agents.sessions.rename", **session, title="A"))["title"] == "A"
        fake.rename_session("general", where["thread_ts"], "B")
        event = fake.deliveries[-1].payload["event"]
        assert (event["type"], event["previous_title"], event["title"]) == (
            "agent_session_title_changed",
            "A",
            "B",
        )
        long = await api.call("agents.sessions.rename", **session, title="x" * 201)
        assert long["error"] == "invalid_arguments"


async def test_an_app_that_hears_of_no_stop_is_warned() -> None:
    async with plain() as (fake, api):
        where = place(fake)
        fake.switches.subscribed = frozenset({"app_mention"})
        session = {"channel_id": where["channel"], "thread_ts": where["thread_ts"]}
        told = await api.call("agents.sessions.setStatus", **session, status="processing")
        assert told["warning"] == "missing_agent_session_stopped_event_subscription"


async def test_a_session_needs_a_thread_and_an_agent() -> None:
    async with plain() as (fake, api):
        channel = place(fake)["channel"]
        told = await api.call("agents.sessions.setStatus", channel_id=channel, status="active")
        assert told["error"] == "thread_ts_required"
        fake.switches.agent = False
        told = await api.call("agents.sessions.setStatus", channel_id=channel, status="active")
        assert told["error"] == "feature_disabled"


async def test_a_status_shows_until_something_is_said_or_two_minutes_are_over() -> None:
    async with plain() as (fake, api):
        where = place(fake)
        root, thread = where["thread_ts"], {"channel_id": where["channel"], "thread_ts": where["thread_ts"]}
        await api.call("assistant.threads.setStatus", **thread, status="is thinking…")
        assert fake.status("general", root) == "is thinking…"
        await api.call("chat.postMessage", channel=where["channel"], thread_ts=root, text="done")
        assert fake.status("general", root) is None
        await api.call("assistant.threads.setStatus", **thread, status="is thinking…")
        fake.clock.advance(121)
        assert fake.status("general", root) is None
        nowhere = await api.call(
            "assistant.threads.setStatus", **thread | {"thread_ts": "1.000000"}, status="x"
        )
        assert nowhere["error"] == "invalid_thread_ts"


async def test_titles_and_prompts_are_kept() -> None:
    async with plain() as (fake, api):
        where = place(fake, "@ada")
        thread = {"channel_id": where["channel"], "thread_ts": where["thread_ts"]}
        key = (where["channel"], where["thread_ts"])
        assert (await api.call("assistant.threads.setTitle", **thread, title="Trip"))["ok"]
        prompts = [{"title": "Hi", "message": "hello"}]
        assert (await api.call("assistant.threads.setSuggestedPrompts", **thread, prompts=prompts))["ok"]
        assert fake.state.titles[key] == "Trip"
        assert fake.state.prompts[key]["prompts"] == prompts
        told = await api.call("assistant.threads.setSuggestedPrompts", **thread, prompts=prompts * 5)
        assert told["error"] == "invalid_arguments"
