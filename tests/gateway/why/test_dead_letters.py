"""Dead letters: what was given up is listed, answered after all, or dropped for good."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.contract.channel import Rejected
from gateway.contract.deltas import Complete
from gateway.contract.errors import InvalidStateError, NotFoundError
from gateway.contract.messages import ErrorPart, ToolResultPart
from gateway.contract.plugin import Plugin
from gateway.contract.provider import ToolDefinition
from gateway.contract.tool import Tool, ToolContext
from gateway.store import Store
from gateway.store.inbox import REOPEN, quarantine_op
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.why.dead_letters import DeadLetter, DeadLetters

pytestmark = pytest.mark.slow


async def bury(chat: Chat, text: str = "Hi", session: str = "s") -> DeadLetter:
    """Have a message die of a fault that nobody foresaw."""
    chat.model.then(ZeroDivisionError("nobody foresaw this"))
    answer = await chat.say(text, session)
    assert isinstance(answer.parts[-1], ErrorPart)
    return (await chat.gateway.parts.dead_letters.list())[0]


async def texts(chat: Chat, session: str = "s") -> list[tuple[str, str]]:
    """What is stored of a session: roles and texts."""
    return [(message.role, message.text) for _, message in await chat.host.sessions.read(session)]


async def test_what_was_given_up_is_listed_with_its_reason_and_trace(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        letter = await bury(chat)
        assert (letter.kind, letter.session, letter.channel) == ("message", "s", "test")
        assert (letter.text, letter.attempts) == ("Hi", 1)
        assert letter.reason == "ZeroDivisionError: nobody foresaw this"
        assert letter.trace is not None
        assert "Traceback" in letter.trace
        assert await chat.gateway.parts.dead_letters.get(letter.id) == letter


async def test_the_latest_comes_first(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        for text in ("one", "two", "three"):
            await bury(chat, text)
        letters = await chat.gateway.parts.dead_letters.list()
        assert {letter.text for letter in letters} == {"one", "two", "three"}
        assert [letter.at for letter in letters] == sorted((x.at for x in letters), reverse=True)


async def test_a_replayed_message_is_answered_in_place_of_its_notice(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        letter = await bury(chat)
        watcher = await chat.watch(after=chat.host.sessions.live()[0].seq)
        await chat.gateway.parts.dead_letters.replay(letter.id)
        done = await watcher.until(lambda frame: isinstance(frame, Complete))
        assert done.stop_reason == "end_turn"
        assert await texts(chat) == [("user", "Hi"), ("assistant", "You said: Hi")]
        assert [m.text for m in chat.host.sessions.live()[0].messages()] == ["Hi", "You said: Hi"]
        assert await chat.gateway.parts.dead_letters.list() == []
        assert (await chat.host.sessions.list())[0].messages == 2


async def test_a_message_that_fails_again_is_a_dead_letter_again(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        letter = await bury(chat)
        watcher = await chat.watch(after=chat.host.sessions.live()[0].seq)
        chat.model.then(ValueError("another fault"))
        await chat.gateway.parts.dead_letters.replay(letter.id)
        await watcher.until(lambda frame: isinstance(frame, Complete))
        again = await chat.gateway.parts.dead_letters.get(letter.id)
        assert again.reason == "ValueError: another fault"
        assert len(await texts(chat)) == 2


async def test_what_is_replayed_while_no_gateway_runs_is_answered_at_the_next_start(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        letter = await bury(chat)
    store = Store.open(f"sqlite:///{tmp_path}/trunkline.db", "full", unexpected)
    await DeadLetters(store).replay(letter.id)
    assert await DeadLetters(store).list() == []
    await store.close()
    async with chatting(tmp_path) as chat:
        watcher = await chat.watch()
        await watcher.until(
            lambda frame: isinstance(frame, Complete) or getattr(frame, "status", 0) == "idle"
        )
        assert await texts(chat) == [("user", "Hi"), ("assistant", "You said: Hi")]


class Mailer(Plugin):
    """A tool that must not run twice."""

    name = "mailer"

    def __init__(self) -> None:
        self.sent = 0

    def tools(self) -> list[Tool]:
        async def mail(_arguments: object, _context: ToolContext) -> str:
            self.sent += 1
            return f"sent {self.sent}"

        return [Tool(definition=ToolDefinition("mail", "Sends.", {"type": "object"}), execute=mail)]


async def test_a_tool_that_had_run_does_not_run_again_when_its_message_is_replayed(tmp_path: Path):
    mailer = Mailer()
    async with chatting(tmp_path, mailer) as chat:
        chat.model.then(Reply((Use("mail"),), "tools"))
        letter = await bury_after_tool(chat)
        watcher = await chat.watch(after=chat.host.sessions.live()[0].seq)
        chat.model.then(Reply((Say("Done."),)))
        await chat.gateway.parts.dead_letters.replay(letter.id)
        await watcher.until(lambda frame: isinstance(frame, Complete))
        answer = (await chat.host.sessions.read("s"))[-1][1]
        results = [part.output for part in answer.parts if isinstance(part, ToolResultPart)]
        assert (mailer.sent, results, answer.text) == (1, ["sent 1"], "Done.")


async def bury_after_tool(chat: Chat) -> DeadLetter:
    chat.model.then(ZeroDivisionError("after the tool"))
    await chat.say("Mail it")
    return (await chat.gateway.parts.dead_letters.list())[0]


async def test_a_dropped_letter_is_gone_and_its_message_is_still_known(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        chat.model.then(ZeroDivisionError("boom"))
        message = written("Hi", dedup_key="k")
        await chat.host.submit(message)
        letter = (await chat.gateway.parts.dead_letters.list())[0]
        await chat.gateway.parts.dead_letters.drop(letter.id)
        assert await chat.gateway.parts.dead_letters.list() == []
        assert (await chat.host.accept("test", message)).duplicate
        assert len(await texts(chat)) == 2


async def test_an_event_that_could_not_be_read_is_listed_and_can_only_be_dropped(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        rejected = Rejected("bot", "key", '{"odd": "\0\ud800"}', "no text in it")
        await chat.gateway.parts.store.write(quarantine_op("test", rejected))
        (letter,) = await chat.gateway.parts.dead_letters.list()
        assert (letter.kind, letter.channel, letter.reason) == ("event", "test", "no text in it")
        assert letter.text == '{"odd": "\ufffd\ufffd"}'
        with pytest.raises(InvalidStateError, match="drop it"):
            await chat.gateway.parts.dead_letters.replay(letter.id)
        await chat.gateway.parts.dead_letters.drop(letter.id)
        assert await chat.gateway.parts.dead_letters.list() == []


async def test_a_letter_whose_notice_is_still_being_sent_is_not_replayed(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        letter = await bury(chat)
        # As between the commit of the letter and the placement of its notice.
        await chat.gateway.parts.store.write((REOPEN, (letter.id, "new", 1, 0)))
        with pytest.raises(InvalidStateError, match="still being sent"):
            await chat.gateway.parts.dead_letters.replay(letter.id)
        assert await chat.gateway.parts.dead_letters.get(letter.id) == letter


async def test_an_unknown_letter_is_not_found(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        answered = await chat.accept("fine")
        for letter_id in ("nobody", answered, "\0"):
            for work in (chat.gateway.parts.dead_letters.replay, chat.gateway.parts.dead_letters.drop):
                with pytest.raises(NotFoundError):
                    await work(letter_id)


def unexpected(error: BaseException) -> None:
    raise AssertionError from error
