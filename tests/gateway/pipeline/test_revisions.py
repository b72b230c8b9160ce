"""People change and delete what they wrote: the last word counts, what is not answered yet need not be."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway import Message, Pass, Plugin, TextPart, ToolError, TurnContext, UserInput
from gateway.channel import Address, InboundMessage, OutboundMessage, Placed, Sender, Streaming
from gateway.contract.messages import now_ms
from gateway.pipeline.intake import Bounds
from gateway.pipeline.revisions import supersede_older
from gateway.store.inbox import Entry
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.letterbox import Letterbox
from gateway.testing.served import until
from tests.gateway.pipeline.test_intake import make_older
from tests.small_plugins import Brings


class Wall(Letterbox):
    """A room where answers grow, and can be taken away. ``shown`` is what stands."""

    def __init__(self) -> None:
        super().__init__("wall")
        self.shown: dict[str, str] = {}

    def streaming(self, address: Address) -> Streaming:
        return Streaming("edit", 0.0)

    def pages(self, message: Message, *, final: bool) -> list[str]:
        return [message.text] if message.text else []

    async def send(self, outbound: OutboundMessage) -> Placed:
        placed = await super().send(outbound)
        self.shown[placed.platform_id] = outbound.page
        return placed

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        self.shown[placed.platform_id] = outbound.page

    async def delete(self, placed: Placed, address: Address) -> None:
        self.shown.pop(placed.platform_id, None)

    async def say(self, text: str, key: str, **fields: str) -> None:
        """A person writes there."""
        await self.write(on_the_wall(text, key, **fields))


def on_the_wall(text: str, key: str, **fields: str) -> InboundMessage:
    """A message of a person who may write there."""
    address, ada = Address("wall", "bot", "room"), Sender("ada")
    return InboundMessage(
        session="wall:bot:room",
        dedup_key=key,
        address=address,
        sender=ada,
        role="user",
        text=text,
        order=1,
        **fields,  # type: ignore[arg-type]
    )


ENTRY = Entry.of("wall", on_the_wall("first", "1"), 1)


def heard(chat: Chat) -> list[str]:
    """What the model was shown in its last call, answers and all."""
    return [message.text for message in chat.model.calls[-1].messages]


@pytest.mark.parametrize("state", [{"answered": True}, {"merged": (ENTRY,)}, {"refused": True}])
def test_a_message_whose_outcome_is_decided_is_not_replaced(state: dict[str, Any]) -> None:
    older = Entry.of("wall", on_the_wall("secnod", "2"), 1)
    newer = Entry.of("wall", on_the_wall("second", "2:a", revises="2"), 2)
    assert supersede_older([msgspec.structs.replace(older, **state), newer]) == []
    assert supersede_older([older, newer]) == [older]


async def test_a_new_wording_takes_the_place_of_the_last_word(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("first", dedup_key="1")
        await chat.say("secnod", dedup_key="2")
        answer = await chat.say("second", dedup_key="2:edit", revises="2")
        assert answer.text == "You said: second"
        assert heard(chat) == ["first", "You said: first", "second"]
    async with chatting(tmp_path) as chat:
        await chat.say("third")
        assert heard(chat) == ["first", "You said: first", "second", "You said: second", "third"]


class Touchy(Plugin):
    """Fails for one text, and adds its own message to each turn."""

    name = "touchy"

    async def transform_user_input(self, text: str, ctx: TurnContext) -> UserInput:
        if text == "secnod":
            raise ToolError("I do not know this word")
        ctx.messages.inject_next(Message(session_id=ctx.session, role="user", parts=(TextPart("(note)"),)))
        return Pass()


@pytest.mark.parametrize("first", ["secnod", "/secnod", "socend"])
async def test_a_new_wording_is_answered_although_the_model_did_not_get_the_old_one(
    tmp_path: Path, first: str
) -> None:
    async with chatting(tmp_path, Touchy()) as chat:
        await chat.say("first", dedup_key="1")
        await chat.say(first, dedup_key="2")
        await chat.say("second", dedup_key="2:edit", revises="2")
        assert "second" in heard(chat)
        assert first not in heard(chat)
        assert await chat.host.submit(written("frist", dedup_key="1:edit", revises="1")) is None


async def test_a_new_wording_of_something_older_is_kept_and_not_answered(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("first", dedup_key="1")
        await chat.say("second", dedup_key="2")
        assert await chat.host.submit(written("frist", dedup_key="1:edit", revises="1")) is None
        await chat.say("third")
        assert "frist" not in heard(chat)


async def test_a_new_wording_of_something_unknown_is_a_message(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        answer = await chat.say("hello", dedup_key="7:edit", revises="7")
        assert answer.text == "You said: hello"


async def test_an_edit_of_a_message_that_retention_removed_is_not_answered_again(tmp_path: Path) -> None:
    day = 86_400_000
    async with chatting(tmp_path, store={"keep_days": 3}) as chat:
        old, recent = (
            written("hello", dedup_key=f"{days}:edit", revises=str(days), sent_at=now_ms() - days * day)
            for days in (4, 2)
        )
        assert await chat.host.submit(old) is None
        assert not chat.model.calls
        answer = await chat.host.submit(recent)
        assert answer is not None
        assert answer.text == "You said: hello"


async def test_a_new_wording_ends_the_answer_to_the_old_one(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Say("Well, "), Gate(asyncio.Event()))))
        old = await chat.accept("secnod", dedup_key="2")
        watcher = await chat.watch()
        await watcher.until(lambda frame: getattr(frame, "content", "") == "Well, ")
        answer = await chat.say("second", dedup_key="2:edit", revises="2")
        assert (await chat.answer(old)).metadata.stop_reason == "cancelled"
        assert answer.text == "You said: second"
        assert heard(chat) == ["second"]


async def test_a_message_may_be_changed_again_and_again(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("one", dedup_key="1")
        await chat.say("two", dedup_key="1:a", revises="1")
        chat.model.then(Reply((Say("Well, "), Gate(asyncio.Event()))))
        third = await chat.accept("three", dedup_key="1:b", revises="1")
        watcher = await chat.watch()
        await watcher.until(lambda frame: getattr(frame, "content", "") == "Well, ")
        answer = await chat.say("four", dedup_key="1:c", revises="1")
        assert (await chat.answer(third)).metadata.stop_reason == "cancelled"
        assert answer.text == "You said: four"
        assert heard(chat) == ["four"]


async def test_what_was_deleted_is_not_answered_or_its_answer_ends(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Say("Well, "), Gate(asyncio.Event()))))
        running = await chat.accept("one", dedup_key="1")
        watcher = await chat.watch()
        await watcher.until(lambda frame: getattr(frame, "content", "") == "Well, ")
        await chat.accept("two", dedup_key="2")
        assert await chat.host.withdraw("test", "bot", "2")
        assert await chat.host.withdraw("test", "bot", "1")
        assert (await chat.answer(running)).metadata.stop_reason == "cancelled"
        assert not await chat.host.withdraw("test", "bot", "1")
        assert not await chat.host.withdraw("nobody", "bot", "1")
        await chat.say("three")
        assert heard(chat) == ["three"]


async def test_what_is_deleted_while_it_is_accepted_is_not_answered(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        accepting = asyncio.create_task(chat.accept("one", dedup_key="1"))
        await asyncio.sleep(0)
        assert await chat.host.withdraw("test", "bot", "1")
        await accepting
        await chat.say("two")
        assert heard(chat) == ["hi", "You said: hi", "two"]


async def test_what_waits_is_answered_in_its_last_wording_alone(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Gate(gate), Say("Well."))))
        await chat.accept("one", dedup_key="1", order=1)
        await chat.accept("tow", dedup_key="2", order=2)
        await chat.accept("to", dedup_key="2:a", revises="2", order=2)
        await chat.accept("tree", dedup_key="3", order=3)
        await chat.accept("two", dedup_key="2:b", revises="2", order=2)
        await chat.accept("four", dedup_key="4", order=4)
        last = await chat.accept("three", dedup_key="3:a", revises="3", order=5)
        gate.set()
        await chat.answer(last)
        assert [call.messages[-1].text for call in chat.model.calls] == ["one", "two", "four", "three"]
        assert heard(chat)[-5:] == ["two", "You said: two", "four", "You said: four", "three"]


async def test_an_answer_that_a_revision_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    wall = Wall()
    async with chatting(tmp_path, Brings(wall)) as chat:
        chat.model.then(Reply((Say("Well, "), Gate(asyncio.Event()))))
        await wall.say("secnod", "2")
        await until(lambda: wall.shown)
        await wall.say("second", "2:a", revises="2")
        await until(lambda: list(wall.shown.values()) == ["You said: second"])
        chat.model.then(Reply((Say("Well, "), Gate(asyncio.Event()))))
        await wall.say("third", "3")
        await until(lambda: len(wall.shown) == 2)
        assert await chat.host.withdraw("wall", "bot", "3")
        await until(lambda: list(wall.shown.values()) == ["You said: second"])


async def test_no_unfinished_page_of_a_backlog_stays(tmp_path: Path) -> None:
    wall = Wall()
    async with chatting(tmp_path, Brings(wall), limits={"drain_seconds": 0}) as chat:
        chat.model.then(Reply((Say("Well, "), Gate(asyncio.Event()))))
        await wall.say("one", "1")
        await until(lambda: wall.shown)
        for text in ("two", "three"):
            await wall.say(text, text)
        await make_older(chat, "new")
    async with chatting(tmp_path, Brings(wall)) as chat:
        await until(lambda: not chat.gateway.parts.dispatcher.waiting)
        assert list(wall.shown.values()) == ["You said: one", "You said: three"]


async def test_after_a_crash_only_the_last_wording_is_answered(tmp_path: Path) -> None:
    wall = Wall()
    async with chatting(tmp_path, Brings(wall)) as chat:
        chat.model.then(Reply((Say("Well, "), Gate(asyncio.Event()))))
        await wall.say("secnod", "2")
        await until(lambda: wall.shown)
        newer = Entry.of("wall", on_the_wall("second", "2:a", revises="2"), 2)
        await chat.gateway.parts.store.write(newer.accept())
        chat.gateway.parts.dispatcher.cancel()
    async with chatting(tmp_path, Brings(wall)) as chat:
        await until(lambda: list(wall.shown.values()) == ["You said: second"])
        await wall.say("third", "3")
        await until(lambda: len(wall.shown) == 2)
        assert heard(chat) == ["second", "You said: second", "third"]


async def test_a_new_wording_beyond_the_messages_that_are_loaded_replaces_the_old_one(tmp_path: Path) -> None:
    async with chatting(tmp_path, limits={"drain_seconds": 0}) as chat:
        chat.model.then(Reply((Gate(asyncio.Event()),)))
        for n in range(1, Bounds().session + 10):
            await chat.accept(f"text {n}", dedup_key=str(n), order=n)
        last = await chat.accept("text 2, corrected", dedup_key="2:a", revises="2", order=1000)
    async with chatting(tmp_path) as chat:
        await chat.answer(last)
        asked = [call.messages[-1].text for call in chat.model.calls]
        assert "text 2" not in asked
        assert asked[-1] == "text 2, corrected"
        assert asked.count("text 3") == 1


async def test_a_new_wording_that_a_crash_cut_off_is_answered(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("first", dedup_key="1")
        await chat.say("secnod", dedup_key="2", order=2)
        chat.model.then(Reply((Say("Well, "), Gate(asyncio.Event()))))
        cut = await chat.accept("second", dedup_key="2:a", revises="2", order=2)
        await until(lambda: len(chat.model.calls) == 3)
        chat.gateway.parts.dispatcher.cancel()
    async with chatting(tmp_path) as chat:
        assert (await chat.answer(cut)).text == "You said: second"
        assert heard(chat) == ["first", "You said: first", "second"]


async def test_what_comes_late_or_says_the_same_is_not_answered_again(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("won", dedup_key="1", order=1)
        await chat.say("one", dedup_key="1:b", revises="1", order=3)
        for late in ("on", "one"):
            wording = written(late, dedup_key=f"1:{late}", revises="1", order=2 if late == "on" else 4)
            assert await chat.host.submit(wording) is None
        assert len(chat.model.calls) == 2
