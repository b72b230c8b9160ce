"""People change and delete what they wrote: the last word counts, what is not answered yet need not be."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.testing.chat import Chat, chatting, written
from gateway.testing.script import Gate, Reply, Say


def heard(chat: Chat) -> list[str]:
    """What the model was shown in its last call, answers and all."""
    return [message.text for message in chat.model.calls[-1].messages]


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
        assert chat.host.withdraw("s", "2")
        assert chat.host.withdraw("s", "1")
        assert (await chat.answer(running)).metadata.stop_reason == "cancelled"
        assert not chat.host.withdraw("s", "1")
        assert not chat.host.withdraw("nobody", "1")
        await chat.say("three")
        assert heard(chat) == ["one", "Well, ", "three"]
