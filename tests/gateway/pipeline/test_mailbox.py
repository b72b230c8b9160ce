"""The dispatcher: order inside a session, no waiting between sessions, and an end in good order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url, select, update
from structlog.testing import capture_logs

from gateway import Plugin, TextDelta
from gateway.channel import OverloadedError
from gateway.contract.messages import Message, now_ms
from gateway.pipeline.mailbox import Mailbox, retry_pause, seconds_until_due
from gateway.session.log import put_message
from gateway.store import schema as t
from gateway.store.inbox import Entry
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.served import until


class Beginning(Plugin):
    """Holds every message that begins with ``hold`` until the gate opens."""

    name = "beginning"

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.holding = asyncio.Event()

    async def transform_user_input(self, text: str, ctx: Any) -> None:
        if text.startswith("hold"):
            self.holding.set()
            await self.gate.wait()


def entry(text: str, order: int) -> Entry:
    """An accepted message with its place in the platform's order."""
    return Entry.of("test", written(text, order=order), order)


async def attempts(chat: Chat) -> list[tuple[str, int]]:
    """State and attempts of everything that was accepted."""
    query = select(t.inbox.c.state, t.inbox.c.attempts).order_by(t.inbox.c.ord)
    return await chat.gateway.parts.store.read(lambda c: [tuple(row) for row in c.execute(query)])


def test_a_mailbox_is_in_the_order_of_the_platform_with_stop_first() -> None:
    mailbox = Mailbox()
    for text, order in (("b", 2), ("/stop", 5), ("a", 1), ("d", 4), ("c", 3)):
        mailbox.add(entry(text, order))
    assert [e.inbound.text for e in mailbox.entries] == ["/stop", "a", "b", "c", "d"]


def test_a_revision_that_stayed_on_disk_replaces_what_was_read_before_it_came() -> None:
    """The original is on its way from the disk when its revision arrives and has to stay there."""
    mailbox = Mailbox(capacity=1)
    original = Entry.of("test", written("secnod", dedup_key="2", order=2), 2)
    revision = Entry.of("test", written("second", dedup_key="2:e", revises="2", order=3), 3)
    other = entry("another", 1)
    mailbox.stored[original.sender_key] = 1
    assert mailbox.add(revision) is revision
    mailbox.load([other, original])
    assert (original.silent, original.replaced_by) == (True, revision.id)
    assert not other.silent
    assert not revision.silent


def merge_all(entries: list[Entry]) -> list[Entry]:
    """Merge the messages that need an answer into the last one, as the intake merges an old backlog."""
    *older, last = [one for one in entries if not one.silent]
    last.late, last.merged = True, tuple(older)
    return [one for one in entries if one is last or one.silent]


def test_what_is_deleted_or_edited_during_a_read_is_not_merged_into_an_answer() -> None:
    mailbox = Mailbox(capacity=1)
    deleted, edited, last = entry("a", 1), entry("b", 2), entry("c", 3)
    edit = Entry.of("test", written("B", revises=edited.inbound.dedup_key, order=4), 4)
    mailbox.stored[last.sender_key] = 3
    mailbox.withdraw("test", "bot", deleted.inbound.dedup_key)
    assert mailbox.add(edit) is edit
    assert mailbox.load([deleted, edited, last], merge_all) == 3
    assert last.to_answer == (last,)
    assert (deleted.interrupted, edited.replaced_by) == ("withdrawn", edit.id)


def test_the_pauses_between_attempts_double_up_to_a_minute() -> None:
    assert [retry_pause(n) for n in range(1, 11)] == [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert [retry_pause(n, longest=5) for n in (1, 2, 3, 4, 5, 5_000)] == [0, 1, 2, 4, 5, 5]
    spread = [retry_pause(8, jitter=-1) for _ in range(100)]
    assert max(spread) <= 60
    assert max(spread) - min(spread) > 6


@pytest.mark.parametrize("jump", [-3_600_000, 0, 3_600_000])
def test_a_stored_time_delays_an_attempt_by_no_more_than_its_pause(jump: int) -> None:
    now = 1_800_000_000_000
    for attempts_made in range(1, 10):
        pause = retry_pause(attempts_made)
        waiting = entry("hi", 1)
        waiting.attempts, waiting.not_before = attempts_made, now + jump + round(pause * 1000)
        assert seconds_until_due(waiting, now) == (0 if jump < 0 else pause)
        assert seconds_until_due(waiting, now, longest=5) <= 5


async def test_a_message_is_tried_again_though_the_clock_was_an_hour_ahead(tmp_path: Path) -> None:
    async with chatting(tmp_path, limits={"drain_seconds": 0}) as chat:
        chat.model.then(Reply((Say("On "), Gate(asyncio.Event()))))
        cut = await chat.accept("go")
        watcher = await chat.watch()
        await watcher.until(lambda frame: isinstance(frame, TextDelta))
    database = create_engine(f"sqlite:///{tmp_path}/trunkline.db")
    with database.begin() as connection:
        connection.execute(update(t.inbox).values(attempts=2, not_before=now_ms() + 3_601_000))
    database.dispose()
    async with chatting(tmp_path) as chat:
        assert (await chat.answer(cut)).text == "You said: go"


async def test_messages_that_arrive_out_of_order_are_answered_in_order(tmp_path: Path) -> None:
    plugin = Beginning()
    async with chatting(tmp_path, plugin) as chat:
        await chat.accept("hold", order=1)
        await plugin.holding.wait()
        for order in (4, 2, 3):
            await chat.accept(str(order), order=order)
        last = await chat.accept("5", order=5)
        plugin.gate.set()
        await chat.answer(last)
        asked = [call.messages[-1].text for call in chat.model.calls]
    assert asked == ["hold", "2", "3", "4", "5"]


async def test_a_session_that_waits_holds_no_other_up(tmp_path: Path) -> None:
    plugin = Beginning()
    async with chatting(tmp_path, plugin) as chat:
        held = await chat.accept("hold", "slow")
        for n in range(20):
            assert (await chat.say("hi", f"quick {n}")).text == "You said: hi"
        plugin.gate.set()
        assert (await chat.answer(held, "slow")).text == "You said: hold"


async def test_a_message_that_could_not_be_answered_holds_nothing_up(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(ZeroDivisionError("nobody foresaw this"))
        first, second = await chat.accept("one"), await chat.accept("two")
        assert (await chat.answer(first)).parts[0].error_name == "InternalError"  # type: ignore[union-attr]
        assert (await chat.answer(second)).text == "You said: two"
        assert await attempts(chat) == [("dead", 1), ("done", 1)]
        assert (
            chat.gateway.parts.dispatcher.waiting,
            (await chat.gateway.parts.sessions.find("s")).pending,
        ) == (0, 0)


async def test_a_message_whose_error_is_refused_by_the_database_is_given_up_without_a_notice(
    tmp_path: Path, engine_settings: dict[str, Any]
) -> None:
    async with chatting(tmp_path, **engine_settings) as chat:
        gate, store = asyncio.Event(), chat.gateway.parts.store
        chat.model.then(Reply((Gate(gate), Say("Done."))))
        [receipt] = await chat.gateway.parts.intake.receiver("test")(written("one"))
        session = await chat.gateway.parts.sessions.find("s")
        # A row with the id of the answer, which no writer of this gateway stores.
        await store.write(*put_message(Message(id=receipt.answer_id, session_id="s", role="assistant"), 1))
        gate.set()
        assert (await chat.say("two")).text == "You said: two"
        assert [state for state, _ in await attempts(chat)] == ["dead", "done"]
        [letter] = await chat.gateway.parts.dead_letters.list()
        assert letter.reason.startswith("StoreError: the database refused the rows")
        assert (session.turn, session.pending) == (None, 0)
        # Of "one" nothing is stored, and nothing counts.
        assert (session.row.messages, session.totals.input_tokens) == (2, 10)
        assert [(row.messages, row.input_tokens) for row in await chat.gateway.parts.sessions.list()] == [
            (2, 10)
        ]


@pytest.mark.postgres
async def test_waiting_messages_are_read_again_if_the_database_takes_too_long(
    tmp_path: Path, migrated_postgres_url: str
) -> None:
    slow = make_url(migrated_postgres_url).update_query_dict({"options": "-cstatement_timeout=100"})
    store, engine = {"url": slow.render_as_string(hide_password=False)}, create_engine(migrated_postgres_url)
    async with chatting(tmp_path, store=store, limits={"session_inbox": 2}) as chat:
        chat.gateway.parts.dispatcher.longest_wait = 0.0
        gate = asyncio.Event()
        chat.model.then(Reply((Gate(gate), Say("Done."))))
        *_, last = await chat.gateway.parts.intake.receiver("test")(*(written(str(n)) for n in range(5)))
        with capture_logs() as lines, engine.connect() as other:
            # Only the read of waiting messages looks there.
            other.exec_driver_sql("LOCK TABLE announcement IN ACCESS EXCLUSIVE MODE")
            gate.set()
            await until(lambda: any("could not read waiting messages" in line["event"] for line in lines))
        assert (await chat.answer(last.answer_id)).text == "You said: 4"
        assert len(chat.model.calls) == 5
        assert chat.gateway.parts.dispatcher.waiting == 0
    engine.dispose()


async def test_what_runs_ends_and_what_waits_is_left_for_the_next_start(tmp_path: Path) -> None:
    plugin = Beginning()
    async with chatting(tmp_path, plugin) as chat, asyncio.TaskGroup() as tasks:
        await chat.accept("hold")
        await chat.accept("then this")
        await plugin.holding.wait()
        draining = tasks.create_task(chat.gateway.parts.dispatcher.drain(20))
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="shutting down"):
            await chat.accept("too late")
        plugin.gate.set()
        assert await draining is True
        assert await attempts(chat) == [("done", 1), ("new", 0)]
    async with chatting(tmp_path) as chat:
        await chat.say("and now?")
        assert [call.messages[-1].text for call in chat.model.calls] == ["then this", "and now?"]


async def test_a_turn_that_takes_too_long_to_end_is_cut_off_and_run_again(tmp_path: Path) -> None:
    async with chatting(tmp_path, limits={"drain_seconds": 0}) as chat:
        await chat.say("hi")
        watcher = await chat.watch(after=10**9)
        chat.model.then(Reply((Say("On "), Gate(asyncio.Event()))))
        cut = await chat.accept("go")
        await watcher.until(lambda frame: isinstance(frame, TextDelta))
    async with chatting(tmp_path) as chat:
        assert (await chat.answer(cut)).text == "You said: go"
        assert await attempts(chat) == [("done", 1), ("done", 1)], "stopping was no failed attempt"


async def test_a_message_that_was_tried_too_often_is_given_up(tmp_path: Path) -> None:
    async with chatting(tmp_path, limits={"drain_seconds": 0}) as chat:
        await chat.say("hi")
        watcher = await chat.watch(after=10**9)
        chat.model.then(Reply((Say("On "), Gate(asyncio.Event()))))
        poison = await chat.accept("go")
        await watcher.until(lambda frame: isinstance(frame, TextDelta))
    database = create_engine(f"sqlite:///{tmp_path}/trunkline.db")
    with database.begin() as connection:
        connection.execute(update(t.inbox).where(t.inbox.c.answer_id == poison).values(attempts=8))
    database.dispose()
    async with chatting(tmp_path) as chat:
        [part] = (await chat.answer(poison)).parts
        assert part.error_name == "PoisonedMessageError"  # type: ignore[union-attr]
        assert await attempts(chat) == [("done", 1), ("dead", 8)]
        assert chat.model.calls == []
