"""The intake: what is accepted is durable and answered once; what is too much is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from gateway import (
    Cursor,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    Plugin,
    PluginContext,
    Rejected,
)
from gateway.deltas import TextDelta
from gateway.messages import now_ms
from gateway.store import schema as t
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.letterbox import Letterbox
from gateway.testing.script import Gate, Reply, Say


class Post(Plugin):
    """Brings a letterbox."""

    name = "post"

    def __init__(self, box: Letterbox) -> None:
        self._box = box

    async def activate(self, ctx: PluginContext) -> None:
        assert ctx.channels is not None
        ctx.channels.register(self._box)


async def rows(chat: Chat, *columns: Any) -> list[tuple[Any, ...]]:
    """Columns of a table of the database."""
    return await chat.gateway.store.read(lambda c: [tuple(row) for row in c.execute(select(*columns))])


async def test_a_repeated_message_has_the_same_receipt_and_one_answer(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        first = await chat.host.accept("test", written("hi", dedup_key="7"))
        again = await chat.host.accept("test", written("hi, again", dedup_key="7"))
        assert (again.message_id, again.answer_id) == (first.message_id, first.answer_id)
        assert (first.duplicate, again.duplicate) == (False, True)
        await chat.answer(first.answer_id)
        assert len(chat.model.calls) == 1
        assert (chat.gateway.figures.accepted, chat.gateway.figures.duplicates) == (1, 1)


async def test_either_key_names_a_message_within_its_channel_and_account(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        first = await chat.host.accept("test", written("hi", dedup_key="event 1", alt_key="post 1"))
        edited = await chat.host.accept("test", written("hi", dedup_key="event 2", alt_key="post 1"))
        other = await chat.host.accept("other", written("hi", dedup_key="event 1", alt_key="post 1"))
        assert edited.message_id == first.message_id
        assert other.message_id != first.message_id


async def test_the_same_message_in_one_batch_is_accepted_once(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        receive = chat.gateway.intake.receiver("test")
        twice = await receive(written("hi", dedup_key="7"), written("hi", dedup_key="7"))
        assert len({receipt.message_id for receipt in twice}) == 1
        await chat.answer(twice[0].answer_id)
        assert len(chat.model.calls) == 1


async def test_a_repeated_message_that_claims_another_session_makes_none(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi", dedup_key="7")
        again = await chat.host.accept("test", written("hi", "elsewhere", dedup_key="7"))
        assert again.session == "s"
        await chat.gateway.store.write()  # what was handed in before it is written by then
        assert [row.id for row in await chat.gateway.sessions.list()] == ["s"]
        with pytest.raises(NotFoundError):
            await chat.gateway.sessions.find("elsewhere")


async def test_what_is_received_is_committed_with_its_cursor_and_what_nobody_could_read(
    tmp_path: Path,
) -> None:
    box = Letterbox()
    async with chatting(tmp_path, Post(box)) as chat:
        receive = chat.gateway.intake.receiver("letters")
        broken = Rejected("bot", "9", '{"odd": 1}', "no text")
        await receive(written("hi", channel="letters"), cursor=Cursor("bot", "41"), rejected=[broken])
        await receive(cursor=Cursor("bot", "42"))
        assert await chat.host.cursors("letters") == [Cursor("bot", "42")]
        assert await chat.host.cursors("other") == []
        kept = await rows(chat, t.quarantine.c.channel, t.quarantine.c.raw, t.quarantine.c.reason)
        assert kept == [("letters", '{"odd": 1}', "no text")]
        await box.until(1)


@pytest.mark.parametrize("field", ["session", "dedup_key", "alt_key"])
async def test_a_key_that_no_database_holds_is_refused(tmp_path: Path, field: str) -> None:
    async with chatting(tmp_path) as chat:
        fields = {"session": "s", "dedup_key": "k", "alt_key": "a", field: "a\0b"}
        with pytest.raises(InvalidRequestError, match="NUL"):
            await chat.host.accept("test", written("hi", **fields))
        assert (await chat.say("hi")).text == "You said: hi"


async def test_a_session_takes_only_so_much(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with chatting(tmp_path, limits={"session_inbox": 3}) as chat:
        chat.model.then(Reply((Gate(gate), Say("Done."))))
        first, *_ = [await chat.accept(str(n)) for n in range(3)]
        with pytest.raises(OverloadedError, match="3 messages wait in this session"):
            await chat.accept("too much")
        assert (await chat.say("hi", "other")).text == "You said: hi"
        gate.set()
        await chat.answer(first)
        await chat.say("now there is room")
        assert len(await rows(chat, t.inbox.c.id)) == 5


async def test_the_gateway_takes_only_so_much_and_all_or_nothing_of_a_batch(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with chatting(tmp_path, limits={"global_inbox": 3}) as chat:
        receive = chat.gateway.intake.receiver("test")
        chat.model.then(*(Reply((Gate(gate), Say("Done."))) for _ in range(2)))
        waiting = await receive(written("a", "a"), written("b", "b"))
        with pytest.raises(OverloadedError, match="3 messages are waiting"):
            await receive(written("c", "c"), written("d", "d"))
        third = await receive(written("e", "e"))
        assert len(await rows(chat, t.inbox.c.id)) == 3
        gate.set()
        for receipt in (*waiting, *third):
            await chat.answer(receipt.answer_id, receipt.session)


async def test_what_was_handed_in_is_answered_though_nobody_waits_for_the_receipt(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        watcher = await chat.watch(after=10**9)
        async with asyncio.TaskGroup() as tasks:
            accepting = tasks.create_task(chat.accept("and this"))
            await asyncio.sleep(0)
            accepting.cancel()
        await watcher.until(lambda frame: isinstance(frame, TextDelta) and "and this" in frame.content)


async def test_a_long_backlog_is_answered_once_and_lately(tmp_path: Path) -> None:
    async with chatting(tmp_path, limits={"drain_seconds": 0}) as chat:
        await chat.say("hi")
        watcher = await chat.watch(after=10**9)
        chat.model.then(Reply((Say("On "), Gate(asyncio.Event()))))
        await chat.accept("one")
        await chat.accept("/usage")
        await chat.accept("two")
        last = await chat.accept("three")
        await watcher.until(lambda frame: isinstance(frame, TextDelta))
        await make_older(chat, "new")
    async with chatting(tmp_path) as chat:
        await chat.answer(last)
        [call] = chat.model.calls
        assert [message.text for message in call.messages][-3:] == ["one", "two", "three"]
        said = [message.text for _, message in await chat.gateway.sessions.read("s")]
        states = await rows(chat, t.inbox.c.state)
    assert "I was away. Here is my answer to what you wrote meanwhile." in said
    assert said[-1] == "You said: three"
    assert sorted(states) == [("done",), ("done",), ("done",), ("merged",), ("merged",)]


async def make_older(chat: Chat, state: str) -> None:
    """Set back by an hour when the messages in a state were received."""
    hour_ago = now_ms() - 3_600_000

    def change(connection: Any) -> None:
        connection.execute(update(t.inbox).where(t.inbox.c.state == state).values(received_at=hour_ago))
        connection.commit()

    await chat.gateway.store.read(change)
