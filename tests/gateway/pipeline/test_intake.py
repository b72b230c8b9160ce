"""The intake: what is accepted is durable and answered once; what is too much is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from gateway import (
    CommandContext,
    ImagePart,
    Intercept,
    Message,
    NotFoundError,
    Plugin,
    SlashCommand,
    Transform,
    TurnContext,
)
from gateway.channel import Cursor, InvalidRequestError, OverloadedError, Rejected
from gateway.contract.deltas import Complete, TextDelta
from gateway.contract.events import ChatMessage
from gateway.contract.messages import now_ms
from gateway.session.frames import Frame
from gateway.store import schema as t
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.letterbox import Letterbox
from tests.small_plugins import Brings


async def rows(chat: Chat, *columns: Any) -> list[tuple[Any, ...]]:
    """Columns of a table of the database."""
    return await chat.gateway.parts.store.read(lambda c: [tuple(row) for row in c.execute(select(*columns))])


async def test_a_repeated_message_has_the_same_receipt_and_one_answer(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        first = await chat.host.accept("test", written("hi", dedup_key="7"))
        again = await chat.host.accept("test", written("hi, again", dedup_key="7"))
        assert (again.message_id, again.answer_id) == (first.message_id, first.answer_id)
        assert (first.duplicate, again.duplicate) == (False, True)
        await chat.answer(first.answer_id)
        assert len(chat.model.calls) == 1
        assert [c.total() for c in (chat.gateway.counters.accepted, chat.gateway.counters.duplicates)] == [
            1,
            1,
        ]


async def test_either_key_names_a_message_within_its_channel_and_account(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        first = await chat.host.accept("test", written("hi", dedup_key="event 1", alt_key="post 1"))
        edited = await chat.host.accept("test", written("hi", dedup_key="event 2", alt_key="post 1"))
        other = await chat.host.accept("other", written("hi", dedup_key="event 1", alt_key="post 1"))
        assert edited.message_id == first.message_id
        assert other.message_id != first.message_id


async def test_a_message_whose_keys_name_two_others_is_a_duplicate_of_the_first_key(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.host.accept("test", written("hi", dedup_key="event 1", alt_key="post 1"))
        # Such as one that was deleted before it came: a deletion names one key only.
        second = await chat.host.accept("test", written("hi", dedup_key="event 2"))
        again = await chat.host.accept("test", written("hi", dedup_key="event 2", alt_key="post 1"))
        assert (again.duplicate, again.message_id) == (True, second.message_id)


async def test_the_same_message_in_one_batch_is_accepted_once(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        receive = chat.gateway.parts.intake.receiver("test")
        twice = await receive(written("hi", dedup_key="7"), written("hi", dedup_key="7"))
        assert len({receipt.message_id for receipt in twice}) == 1
        await chat.answer(twice[0].answer_id)
        assert len(chat.model.calls) == 1


async def test_a_batch_for_more_sessions_than_memory_has_room_for_is_answered_in_them(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with chatting(tmp_path) as chat:
        sessions, names = chat.gateway.parts.sessions, [f"s{n}" for n in range(4)]
        picture = ImagePart("x" * 90_000, "image/png")
        for name in names:
            await chat.say("hi", name)
            seen = Message(session_id=name, role="assistant", parts=(picture,), for_model=False)
            await sessions.get_loaded(name).add_message(seen, [])
        sessions._max_bytes = 150_000
        chat.model.then(*(Reply((Gate(gate), Say("Now."))) for _ in names))
        receive = chat.gateway.parts.intake.receiver("test")
        receipts = await receive(*(written("and now?", name) for name in names))
        watchers = [await chat.watch(name) for name in names]
        gate.set()
        for receipt, watcher in zip(receipts, watchers, strict=True):
            await watcher.until(lambda frame, own=receipt.answer_id: _completes(frame, own))


def _completes(frame: Frame, answer_id: str) -> bool:
    return isinstance(frame, Complete) and frame.message_id == answer_id


async def test_a_repeated_message_that_claims_another_session_makes_none(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi", dedup_key="7")
        again = await chat.host.accept("test", written("hi", "elsewhere", dedup_key="7"))
        assert again.session == "s"
        await chat.gateway.parts.store.write()  # what was handed in before it is written by then
        assert [row.id for row in await chat.gateway.parts.sessions.list()] == ["s"]
        with pytest.raises(NotFoundError):
            await chat.gateway.parts.sessions.find("elsewhere")


async def test_received_messages_are_committed_with_cursor_and_unreadable_events(
    tmp_path: Path,
) -> None:
    box = Letterbox()
    async with chatting(tmp_path, Brings(box)) as chat:
        receive = chat.gateway.parts.intake.receiver("letters")
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


def asked(chat: Chat) -> list[str]:
    """What the model was asked, oldest first."""
    return [call.messages[-1].text for call in chat.model.calls]


async def test_what_has_no_room_in_memory_waits_on_disk_in_its_order(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with chatting(tmp_path, limits={"session_inbox": 3}) as chat:
        receive = chat.gateway.parts.intake.receiver("test")
        chat.model.then(Reply((Gate(gate), Say("Done."))))
        await receive(*(written(str(n), order=n) for n in range(1, 9)))
        await receive(*(written(str(n), order=n) for n in (12, 10, 9, 11)))
        late = await receive(written("1b", order=1))
        mailbox = chat.gateway.parts.dispatcher.mailbox("s")
        assert mailbox is not None
        assert (len(mailbox.entries), mailbox.stored.total()) == (2, 10)
        assert (await chat.say("hi", "other")).text == "You said: hi"
        gate.set()
        await chat.answer(late[0].answer_id)
        last = await chat.say("13", order=13)
        assert last.text == "You said: 13"
        assert asked(chat) == ["1", "hi", "1b", *map(str, range(2, 14))]
        assert (chat.gateway.parts.dispatcher.waiting, chat.gateway.parts.dispatcher.stored.total()) == (0, 0)


class Slow(Plugin):
    """A command beside the running answer, the first of which waits for ``gate``."""

    name = "slow"

    def __init__(self) -> None:
        self.gate, self.began = asyncio.Event(), asyncio.Event()
        self.calls = 0

    def commands(self) -> Sequence[SlashCommand]:
        return [SlashCommand("slow", "Wait", self._wait, at_once=True)]

    async def _wait(self, arguments: str, context: CommandContext) -> str:
        self.calls += 1
        self.began.set()
        if self.calls == 1:
            await self.gate.wait()
        return "Waited."


async def test_a_command_beside_the_answer_is_not_read_from_disk_once_more(tmp_path: Path) -> None:
    gate, slow = asyncio.Event(), Slow()
    async with chatting(tmp_path, slow, limits={"session_inbox": 3}) as chat:
        receive = chat.gateway.parts.intake.receiver("test")
        chat.model.then(Reply((Gate(gate), Say("Done."))))
        await receive(*(written(str(n), order=n) for n in range(1, 9)))
        [command] = await receive(written("/slow", order=1))
        await slow.began.wait()
        gate.set()
        [last] = await receive(written("9", order=9))
        assert (await chat.answer(last.answer_id)).text == "You said: 9"
        slow.gate.set()
        assert (await chat.answer(command.answer_id)).text == "Waited."
        assert slow.calls == 1
        assert asked(chat) == [*map(str, range(1, 10))]
        assert (chat.gateway.parts.dispatcher.waiting, chat.gateway.parts.dispatcher.stored.total()) == (0, 0)


async def test_beyond_memory_and_disk_messages_are_settled_with_one_notice_for_a_burst(
    tmp_path: Path,
) -> None:
    limits = {"session_inbox": 2, "session_backlog": 2}
    async with chatting(tmp_path, limits=limits) as chat:
        receive = chat.gateway.parts.intake.receiver("test")
        for burst in ("a", "b"):
            gate = asyncio.Event()
            chat.model.then(Reply((Gate(gate), Say("Done."))))
            sent = [written(f"{burst}{n}", dedup_key=f"{burst}{n}") for n in range(7)]
            receipts = [*await receive(*sent[:6]), *await receive(sent[6])]
            assert [one.refused for one in await receive(*sent)] == [False] * 5 + [True] * 2
            assert [receipt.refused for receipt in receipts] == [False] * 5 + [True] * 2
            twice = await receive(written("again", dedup_key=burst), written("again", dedup_key=burst))
            assert [(one.refused, one.duplicate) for one in twice] == [(True, False), (True, True)]
            gate.set()
            for receipt in receipts[:5]:
                await chat.answer(receipt.answer_id)
            # A client that missed a receipt gets the same one again.
            assert [one.refused for one in await receive(*sent)] == [False] * 5 + [True] * 2
        assert asked(chat) == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]
        said = [message.text for _, message in await chat.gateway.parts.sessions.read("s", last=100)]
        notices = [text for text in said if text.startswith("Too many messages are waiting")]
        assert len(notices) == 2
        assert {state for (state,) in await rows(chat, t.inbox.c.state)} == {"done"}


async def test_a_sender_has_only_so_much_on_disk(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with chatting(tmp_path, limits={"session_inbox": 2, "sender_backlog": 3}) as chat:
        receive = chat.gateway.parts.intake.receiver("test")
        chat.model.then(Reply((Gate(gate), Say("Done."))))
        flood = await receive(*(written(f"ada {n}") for n in range(9)))
        other = await receive(*(written(f"bob {n}", user="bob") for n in range(2)))
        assert [receipt.refused for receipt in flood] == [False] * 6 + [True] * 3
        assert [receipt.refused for receipt in other] == [False] * 2
        gate.set()
        await chat.answer(other[1].answer_id)
        assert asked(chat) == [*(f"ada {n}" for n in range(5)), "bob 0", "bob 1"]
        assert chat.gateway.parts.dispatcher.stored.total() == 0


async def test_stop_a_change_and_a_deletion_reach_what_waits_on_disk(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with chatting(tmp_path, limits={"session_inbox": 2}) as chat:
        receive = chat.gateway.parts.intake.receiver("test")
        await chat.say("hi")
        watcher = await chat.watch(after=10**9)
        chat.model.then(Reply((Say("On "), Gate(gate))))
        running, *_ = await receive(*(written(str(n), dedup_key=f"k{n}", order=n + 1) for n in range(8)))
        await watcher.until(lambda frame: isinstance(frame, TextDelta))
        await receive(written("one, changed", dedup_key="k1:e", revises="k1", order=100))
        await receive(written("six, changed", dedup_key="k6:e", revises="k6", order=101))
        await chat.host.withdraw("test", "bot", "k4")
        [stop] = await receive(written("/stop", order=102))
        assert (await chat.answer(stop.answer_id)).text == "Stopped."
        last = await receive(written("last", order=103))
        await chat.answer(last[0].answer_id)
        assert asked(chat) == ["hi", "0", "2", "3", "5", "7", "one, changed", "six, changed", "last"]
        assert (await chat.answer(running.answer_id)).metadata.stop_reason == "cancelled"


async def test_a_restart_loads_no_more_of_a_session_than_memory_takes(tmp_path: Path) -> None:
    limits = {"session_inbox": 3, "session_backlog": 7, "drain_seconds": 0}
    async with chatting(tmp_path, limits=limits) as chat:
        await chat.say("hi")
        watcher = await chat.watch(after=10**9)
        chat.model.then(Reply((Say("On "), Gate(asyncio.Event()))))
        receive = chat.gateway.parts.intake.receiver("test")
        _, *receipts = await receive(*(written(str(n), order=n + 1) for n in range(13)))
        await watcher.until(lambda frame: isinstance(frame, TextDelta))
    gate = asyncio.Event()
    async with chatting(tmp_path, limits=limits) as chat:
        chat.model.then(Reply((Gate(gate), Say("Done."))))
        mailbox = chat.gateway.parts.dispatcher.mailbox("s")
        assert mailbox is not None
        assert len(mailbox.entries) + (mailbox.running is not None) <= 3
        assert chat.gateway.parts.dispatcher.waiting >= 10
        more = await chat.gateway.parts.intake.receiver("test")(written("more"))
        assert more[0].refused, "the burst goes on, and its notice was accepted before"
        gate.set()
        await chat.answer(receipts[8].answer_id)
        await chat.answer(receipts[9].answer_id)
        assert asked(chat) == [str(n) for n in range(10)]
        assert chat.gateway.parts.dispatcher.waiting == 0
        said = [message.text for _, message in await chat.gateway.parts.sessions.read("s", last=100)]
        assert len([text for text in said if text.startswith("Too many messages are waiting")]) == 1


async def test_the_gateway_takes_only_so_much_and_all_or_nothing_of_a_batch(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with chatting(tmp_path, limits={"global_inbox": 3}) as chat:
        receive = chat.gateway.parts.intake.receiver("test")
        chat.model.then(*(Reply((Gate(gate), Say("Done."))) for _ in range(2)))
        waiting = await receive(written("a", "a"), written("b", "b"))
        with pytest.raises(OverloadedError, match="2 messages are waiting, and at most 3 may"):
            await receive(written("c", "c"), written("d", "d"))
        third = await receive(written("e", "e"))
        assert len(await rows(chat, t.inbox.c.id)) == 3
        gate.set()
        for receipt in (*waiting, *third):
            await chat.answer(receipt.answer_id, receipt.session)


async def test_an_accepted_message_is_answered_although_no_caller_awaits_its_receipt(tmp_path: Path) -> None:
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
        said = [message.text for _, message in await chat.gateway.parts.sessions.read("s")]
        states = await rows(chat, t.inbox.c.state)
    assert "I was offline. Here is my answer to your earlier messages." in said
    assert said[-1] == "You said: three"
    assert sorted(states) == [("done",), ("done",), ("done",), ("merged",), ("merged",)]


@pytest.mark.parametrize(
    "after",
    [{"text": "look", "revises": "k"}, {"text": "", "kind": "audio"}, {"text": " /model"}],
    ids=["unchanged edit", "voice message", "command"],
)
async def test_what_gets_no_answer_of_the_model_takes_no_message_of_its_backlog_with_it(
    tmp_path: Path, after: dict[str, str]
) -> None:
    async with chatting(tmp_path, limits={"drain_seconds": 0}) as chat:
        await chat.say("look", dedup_key="k")
        watcher = await chat.watch(after=10**9)
        chat.model.then(Reply((Say("On "), Gate(asyncio.Event()))))
        await chat.accept("and this?")
        await chat.accept(**after)
        await watcher.until(lambda frame: isinstance(frame, TextDelta))
        await make_older(chat, "new")
    async with chatting(tmp_path) as chat:
        await chat.say("next")
        assert asked(chat) == ["and this?", "next"]


class Forwarding(Plugin):
    """Answers what begins with ``>`` in place of the model."""

    name = "forwarding"

    async def transform_user_input(self, text: str, ctx: TurnContext) -> Intercept | None:
        return Intercept("Forwarded.") if text.startswith(">") else None


class Screening(Plugin):
    """Does the same by another hook."""

    name = "screening"

    async def chat_message(self, event: ChatMessage, ctx: TurnContext) -> Intercept | None:
        return Intercept("Forwarded.") if event.text.startswith(">") else None


@pytest.mark.parametrize("plugin", [Forwarding, Screening])
async def test_a_hook_that_answers_texts_gets_each_message_of_a_backlog(
    tmp_path: Path, plugin: type[Plugin]
) -> None:
    async with chatting(tmp_path, limits={"drain_seconds": 0}) as chat:
        await chat.say("hi")
        watcher = await chat.watch(after=10**9)
        chat.model.then(Reply((Say("On "), Gate(asyncio.Event()))))
        accepted = [await chat.accept(text) for text in ("one", "> two", "three", "> four")]
        await watcher.until(lambda frame: isinstance(frame, TextDelta))
        await make_older(chat, "new")
    async with chatting(tmp_path, plugin()) as chat:
        said = [(await chat.answer(answer_id)).text for answer_id in accepted]
        assert said == ["You said: one", "Forwarded.", "You said: three", "Forwarded."]


async def test_chat_message_is_asked_about_every_message_of_a_backlog(tmp_path: Path) -> None:
    class Hiding(Plugin):
        name = "hiding"

        async def chat_message(self, event: ChatMessage, ctx: TurnContext) -> Transform:
            return Transform(event.text.replace("hunter2", "***"))

    async with chatting(tmp_path, limits={"drain_seconds": 0}) as chat:
        await chat.say("hi")
        watcher = await chat.watch(after=10**9)
        chat.model.then(Reply((Say("On "), Gate(asyncio.Event()))))
        await chat.accept("one")
        await chat.accept("it is hunter2")
        last = await chat.accept("three")
        await watcher.until(lambda frame: isinstance(frame, TextDelta))
        await make_older(chat, "new")
    async with chatting(tmp_path, Hiding()) as chat:
        await chat.answer(last)
        assert asked(chat) == ["one", "it is ***", "three"]


async def make_older(chat: Chat, state: str) -> None:
    """Set back by an hour when the messages in a state were received."""
    hour_ago = now_ms() - 3_600_000

    def change(connection: Any) -> None:
        connection.execute(update(t.inbox).where(t.inbox.c.state == state).values(received_at=hour_ago))
        connection.commit()

    await chat.gateway.parts.store.read(change)
