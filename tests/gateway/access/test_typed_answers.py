"""Typed answers: a text counts only for a question that its writer could see where the text was written."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from gateway.channel import Address, InboundMessage, Quoted
from gateway.testing.chat import Chat, chatting, written
from tests.gateway.access.test_questions import Brings, Room, colour, questions_of

HERE = Address("letters", "bot", "room")
THREAD = structs.replace(HERE, thread="7")
OPENED = Address("letters", "bot", "room", thread="80", reply_to="80")


def text(address: Address = HERE, **fields: Any) -> InboundMessage:
    """A text of Ada, written after the questions of ``Room``."""
    given: dict[str, Any] = {"channel": "letters", "order": 51, **fields}
    message = written("Blue", **given)
    return structs.replace(message, address=address)


async def opened(chat: Chat, *addresses: Address, **fields: Any) -> list[str]:
    """Ask a question at each address, and wait until all are shown. Returns their ids."""
    await chat.say("hello", channel="letters")
    questions = questions_of(chat)
    asked = [
        await questions.ask(colour(key=str(number), address=address, **fields))
        for number, address in enumerate(addresses)
    ]
    while any(held.shown is None for held in asked):
        await asyncio.sleep(0)
    return [held.question.id for held in asked]


@pytest.mark.parametrize(
    ("asked_in", "message"),
    [
        (HERE, text()),
        (THREAD, text(structs.replace(THREAD, reply_to="81"))),
        # The answer to this message opens a thread: it was written beside the question.
        (HERE, text(OPENED)),
        # The question is the first message of the thread that the answer to another message opened.
        (OPENED, text(structs.replace(OPENED, reply_to="81"))),
        # On Slack each message of a thread is a reply to its first one, which may be quoted.
        (
            THREAD,
            text(structs.replace(THREAD, reply_to="81"), in_reply_to="7", quotes=(Quoted("reply", "x"),)),
        ),
        (HERE, text(in_reply_to="m1", order=0)),
        (THREAD, text(in_reply_to="m1", quotes=(Quoted("quote", "colour"),))),
    ],
)
async def test_a_text_beside_the_question_or_in_reply_to_it_answers_it(
    tmp_path: Path, asked_in: Address, message: InboundMessage
) -> None:
    async with chatting(tmp_path, Brings(Room())) as chat:
        [asked] = await opened(chat, asked_in)
        assert await chat.host.submit(message) is None
        assert questions_of(chat).get(asked) is None


@pytest.mark.parametrize(
    ("asked_in", "message"),
    [
        (THREAD, text()),
        (HERE, text(structs.replace(THREAD, reply_to="81"))),
        (THREAD, text(structs.replace(THREAD, thread="8"))),
        (OPENED, text(OPENED)),
        (HERE, text(structs.replace(HERE, chat="other room"))),
        (HERE, text(structs.replace(HERE, account="other bot"))),
        # The same number in another chat is another message.
        (HERE, text(structs.replace(HERE, chat="other room"), in_reply_to="m1")),
        (HERE, text(order=50)),
        (HERE, text(order=0)),
        (HERE, text(user="ben")),
        (HERE, text(in_reply_to="another message")),
        (HERE, text(quotes=(Quoted("forward", "Blue"),))),
        (HERE, text(quotes=(Quoted("reply", "of another chat"),))),
        (HERE, text(revises="an earlier text")),
        (HERE, text(in_reply_to="m1", revises="an earlier text")),
    ],
)
async def test_any_other_text_is_a_message(
    tmp_path: Path, asked_in: Address, message: InboundMessage
) -> None:
    async with chatting(tmp_path, Brings(Room())) as chat:
        [asked] = await opened(chat, asked_in)
        await chat.host.submit(message)
        assert questions_of(chat).get(asked) is not None


async def test_a_text_of_another_session_in_the_same_place_is_a_message(tmp_path: Path) -> None:
    """As in a group in which each user has a session."""
    async with chatting(tmp_path, Brings(Room())) as chat:
        [asked] = await opened(chat, HERE, answerers=("ada", "ben"))
        answer = await chat.host.submit(structs.replace(text(user="ben"), session="of ben"))
        assert answer is not None
        assert questions_of(chat).get(asked) is not None


async def test_of_a_session_in_two_chats_a_text_answers_the_question_of_its_own(tmp_path: Path) -> None:
    """Also if both chats number their messages alike."""
    other = structs.replace(HERE, chat="other room")

    class Alike(Room):
        async def ask_question(self, question: Any) -> Any:
            return structs.replace(await super().ask_question(question), platform_id="m1")

    async with chatting(tmp_path, Brings(Alike())) as chat:
        first, second, third = await opened(chat, HERE, other, other)
        assert await chat.host.submit(text()) is None
        assert [questions_of(chat).get(one) is None for one in (first, second, third)] == [True, False, False]
        # Of two in one chat it answers neither.
        assert await chat.host.submit(text(other)) is not None
        assert [questions_of(chat).get(one) is None for one in (first, second, third)] == [True, False, False]


async def test_a_question_that_is_not_known_to_be_shown_yet_makes_a_text_ambiguous(tmp_path: Path) -> None:
    class Slow(Room):
        async def ask_question(self, question: Any) -> Any:
            if question.key == "slow":
                await asyncio.get_running_loop().create_future()
            return await super().ask_question(question)

    async with chatting(tmp_path, Brings(Slow())) as chat:
        [asked] = await opened(chat, HERE)
        await questions_of(chat).ask(colour(key="slow", address=HERE))
        assert await chat.host.submit(text()) is not None
        assert questions_of(chat).get(asked) is not None


@pytest.mark.parametrize("fields", [{}, {"in_reply_to": "m1"}])
async def test_a_text_to_a_withdrawn_question_is_a_message(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with chatting(tmp_path, Brings(Room())) as chat:
        [asked] = await opened(chat, HERE)
        assert await questions_of(chat).withdraw(asked)
        answer = await chat.host.submit(text(**fields))
        assert answer is not None
        assert answer.text == "You said: Blue"
