"""The message bus: what plugins show, hold back and hear of a session, seen from a chat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway import Message, Plugin, TextPart
from gateway.channel import MessageFrame
from gateway.contract.errors import PartValidationError
from gateway.session.bus import MessageBus
from gateway.testing.chat import Chat, chatting


def note(text: str, **fields: Any) -> Message:
    """A message as a plugin makes it, for whichever session."""
    fields = {"session_id": "", "role": "assistant", "parts": (TextPart(text),), **fields}
    return Message(**fields)


def texts(messages: Sequence[Message]) -> list[str]:
    """The visible texts of messages."""
    return [message.text for message in messages]


async def bus_of(chat: Chat, session: str = "s") -> MessageBus:
    """The bus of a session that exists."""
    return (await chat.gateway.parts.sessions.find(session)).bus


class Remarking(Plugin):
    """Remarks something in the middle of every turn."""

    name = "remarking"

    async def before_llm_call(self, messages: Any, options: Any, ctx: Any) -> None:
        ctx.messages.append(note("by the way", custom_type="remark"))


async def test_002_20_an_appended_message_is_seen_at_once_and_survives(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        watcher = await chat.watch()
        (await bus_of(chat)).append(note("psst"))
        shown = await watcher.until(lambda f: isinstance(f, MessageFrame) and f.message.text == "psst")
        assert shown.message.session_id == "s"
        assert texts((await bus_of(chat)).get()) == ["hi", "You said: hi", "psst"]
    async with chatting(tmp_path) as chat:
        await chat.say("again")
        assert texts((await bus_of(chat)).get()) == ["hi", "You said: hi", "psst", "again", "You said: again"]


async def test_002_20_the_model_never_sees_an_appended_message(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        (await bus_of(chat)).append(note("psst"))
        await chat.say("again")
    async with chatting(tmp_path) as again:
        await again.say("still")
    assert texts(chat.model.calls[1].messages) == ["hi", "You said: hi", "again"]
    assert texts(again.model.calls[0].messages) == ["hi", "You said: hi", "again", "You said: again", "still"]


async def test_002_20_a_message_appended_during_a_turn_survives_its_end(tmp_path: Path) -> None:
    async with chatting(tmp_path, Remarking()) as chat:
        await chat.say("hi")
        await chat.say("again")
        told = texts((await bus_of(chat)).get())
        stored = texts([message for _, message in await chat.gateway.parts.sessions.read("s")])
    expected = ["hi", "by the way", "You said: hi", "again", "by the way", "You said: again"]
    assert (told, stored) == (expected, expected)
    assert texts(chat.model.calls[1].messages) == ["hi", "You said: hi", "again"]


async def test_002_21_an_injected_message_follows_the_next_words_of_the_user(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        bus = await bus_of(chat)
        bus.inject_next(note("The door opened.", role="user"))
        assert texts(bus.get()) == ["hi", "You said: hi"]
        await chat.say("/status")
        await chat.say("again")
        await chat.say("more")
    first, second, third = chat.model.calls
    assert texts(first.messages) == ["hi"]
    assert texts(second.messages)[2:] == ["again", "The door opened."]
    assert texts(third.messages)[2:] == ["again", "The door opened.", "You said: The door opened.", "more"]


async def test_002_21_an_injected_message_is_stored_with_the_turn(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        (await bus_of(chat)).inject_next(note("The door opened.", role="user"))
        await chat.say("again")
    async with chatting(tmp_path) as chat:
        await chat.say("more")
        assert "The door opened." in texts(chat.model.calls[0].messages)


async def test_002_22_a_subscriber_gets_the_transcript_now_and_at_every_change(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        told: list[list[str]] = []
        bus = await bus_of(chat)
        unsubscribe = bus.subscribe(lambda messages: told.append(texts(messages)))
        assert told == [["hi", "You said: hi"]]
        bus.append(note("psst"))
        await chat.say("again")
        unsubscribe()
        await chat.say("unheard")
    assert told[1:] == [
        ["hi", "You said: hi", "psst"],
        ["hi", "You said: hi", "psst", "again"],
        ["hi", "You said: hi", "psst", "again", "You said: again"],
    ]


async def test_sessions_have_their_own_buses(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("one", "a")
        await chat.say("two", "b")
        (await bus_of(chat, "a")).inject_next(note("for a", role="user"))
        await chat.say("three", "b")
        assert "for a" not in texts(chat.model.calls[-1].messages)


async def test_the_same_message_may_be_given_again_and_again(tmp_path: Path) -> None:
    rule = note("Be brief.", role="user")
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        bus = await bus_of(chat)
        for text in ("one", "two"):
            bus.inject_next(rule)
            bus.inject_next(rule)
            bus.append(rule)
            assert (await chat.say(text)).text == "You said: Be brief."
        stored = [message for _, message in await chat.gateway.parts.sessions.read("s")]
    assert texts(stored).count("Be brief.") == 6
    assert len({message.id for message in stored}) == len(stored)


async def test_what_could_not_be_stored_is_refused_at_once(tmp_path: Path) -> None:
    broken = note("", parts=(TextPart(content=5),))  # type: ignore[arg-type]
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        bus = await bus_of(chat)
        for give in (bus.append, bus.inject_next):
            with pytest.raises(PartValidationError):
                give(broken)
        assert (await chat.say("again")).text == "You said: again"
        assert texts(bus.get()) == ["hi", "You said: hi", "again", "You said: again"]
