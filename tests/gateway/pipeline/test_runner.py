"""One accepted message on its way to one visible outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from structlog.testing import capture_logs

from gateway import Complete, ErrorPart, Intercept, Message, Plugin, TextPart, Transform
from gateway.channel import MessageFrame, OutboundMessage, Placed, PlacementRefused, TurnStart
from gateway.store import schema as t
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Reply, Say, Think
from gateway.testing.letterbox import Letterbox
from tests.small_plugins import Brings


class Rewriting(Plugin):
    """Rewrites what the user says, by a table."""

    name = "rewriting"

    def __init__(self, **words: Any) -> None:
        self._words = words

    async def transform_user_input(self, text: str, ctx: Any) -> Any:
        return self._words.get(text)


class Locked(Letterbox):
    """A letterbox that takes no answers, or none any more."""

    async def send(self, outbound: OutboundMessage) -> Placed:
        raise PlacementRefused("the room is locked")


async def states(chat: Chat) -> list[str]:
    """The state of everything that was accepted."""
    query = select(t.inbox.c.state).order_by(t.inbox.c.ord)
    return await chat.gateway.parts.store.read(lambda c: list(c.execute(query).scalars()))


async def stored(chat: Chat) -> list[Message]:
    """What is in the database of the session."""
    return [message for _, message in await chat.gateway.parts.sessions.read("s")]


async def outcome(chat: Chat, answer_id: str) -> tuple[int, str]:
    """How many messages are stored, and the state of the one with this answer, at the same moment."""
    messages = select(func.count()).select_from(t.messages).scalar_subquery()
    query = select(messages, t.inbox.c.state).where(t.inbox.c.answer_id == answer_id)
    return await chat.gateway.parts.store.read(lambda c: tuple(c.execute(query).one()))


async def test_hooks_come_before_commands(tmp_path: Path) -> None:
    plugin = Rewriting(stop=Transform("/help"), **{"/help": Transform("help me")})
    async with chatting(tmp_path, plugin) as chat:
        assert "`/help`" in (await chat.say("stop")).text
        assert (await chat.say("/help")).text == "You said: help me"
        assert [m.text for m in await stored(chat)][::2] == ["stop", "help me"]


async def test_a_question_and_its_answer_are_one_commit_with_the_settlement(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        watcher = await chat.watch(after=10**9)
        answer_id = await chat.accept("again")
        await watcher.until(lambda frame: isinstance(frame, TurnStart))
        assert await outcome(chat, answer_id) in ((2, "new"), (4, "done"))
        await watcher.until(lambda frame: isinstance(frame, Complete))
        assert await outcome(chat, answer_id) == (4, "done")
        assert (await stored(chat))[-1].id == answer_id


@pytest.mark.parametrize("reply", ["Not now.", ""])
async def test_what_is_intercepted_is_kept_and_never_shown_to_the_model(tmp_path: Path, reply: str) -> None:
    async with chatting(tmp_path, Rewriting(secret=Intercept(reply))) as chat:
        answer = await chat.host.submit(written("secret"))
        assert (answer.text if answer else "") == reply
        await chat.say("hi")
        assert [m.text for m in chat.model.calls[0].messages] == ["hi"]
        assert [m.text for m in await stored(chat)] == list(
            filter(None, ["secret", reply, "hi", "You said: hi"])
        )
        assert await states(chat) == ["done", "done"]


async def test_an_unexpected_error_is_one_notice_without_details(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(ZeroDivisionError("with a secret in it"))
        with capture_logs() as logs:
            answer = await chat.say("hi")
        assert answer.parts == (ErrorPart("InternalError", "This could not be answered."),)
        assert await states(chat) == ["dead"]
        [logged] = [line for line in logs if line["event"] == "failed to answer a message"]
        assert (logged["session"], logged["log_level"]) == ("s", "error")
        assert (await chat.say("again")).text == "You said: again"


async def test_an_empty_answer_is_an_error(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply())
        [part] = (await chat.say("hi")).parts
        assert isinstance(part, ErrorPart)
        assert (part.error_name, part.message) == ("EmptyAnswerError", "the model said nothing (end_turn)")
        assert (await chat.say("again")).text == "You said: again"
        assert await states(chat) == ["done", "done"]


async def test_an_answer_of_reasoning_alone_is_an_error(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Think("Hm."),), "length"))
        thought, part = (await chat.say("hi")).parts
        assert thought == TextPart("Hm.", "reasoning")
        assert isinstance(part, ErrorPart)
        assert part.message == "the model said nothing: its reasoning used up max_tokens"


async def test_an_answer_is_placed_in_its_room_with_its_own_key(tmp_path: Path) -> None:
    box = Letterbox()
    async with chatting(tmp_path, Brings(box)) as chat:
        for text in ("one", "two"):
            await box.write(written(text, channel=box.id))
        await box.until(2)
        await box.write(written("/usage", channel=box.id))  # would not wait for the answers
        sent = await box.until(3)
        assert [out.message.text for out in sent[:2]] == ["You said: one", "You said: two"]
        assert len({out.nonce for out in sent}) == 3
        assert all(len(out.nonce) <= 25 for out in sent)
        assert [out.address for out in sent] == [written("", channel=box.id).address] * 3
        assert [out.message.id for out in sent] == [m.id for m in (await stored(chat))[1::2]]


async def test_an_answer_that_no_room_takes_stays_and_the_session_says_so(tmp_path: Path) -> None:
    box = Locked()
    async with chatting(tmp_path, Brings(box)) as chat:
        receipt = await box.write(written("hi", channel=box.id))
        watcher = await chat.watch()
        notice = await watcher.until(
            lambda frame: isinstance(frame, MessageFrame) and frame.message.custom_type == "notice"
        )
        [part] = notice.message.parts
        assert part.error_name == "PlacementRefused"
        await chat.say("heard elsewhere")
        assert await states(chat) == ["dead", "done"]
        [letter] = await chat.gateway.parts.dead_letters.list()
        assert (letter.id, letter.reason) == (receipt.message_id, "PlacementRefused: the room is locked")
        assert [m.text for m in await stored(chat)][:2] == ["hi", "You said: hi"]


async def test_a_notice_is_placed_like_an_answer(tmp_path: Path) -> None:
    box = Letterbox()
    async with chatting(tmp_path, Brings(box)) as chat:
        chat.model.then(ZeroDivisionError())
        await box.write(written("hi", channel=box.id))
        [placed] = await box.until(1)
        assert isinstance(placed.message.parts[0], ErrorPart)


async def test_late_words_of_plugins_do_not_reach_the_model_twice(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        bus = (await chat.gateway.parts.sessions.find("s")).bus
        bus.inject_next(Message(session_id="s", role="user", parts=(TextPart("psst"),)))
        chat.model.then(Reply((Say("Yes?"),)))
        await chat.say("again")
        await chat.say("more")
        assert [m.text for m in chat.model.calls[-1].messages].count("psst") == 1
