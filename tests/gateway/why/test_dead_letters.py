"""Dead letters: what was given up is listed, answered after all, or dropped permanently."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.contract.channel import Address, InboundMessage, Rejected, Sender
from gateway.contract.deltas import Complete
from gateway.contract.errors import InvalidStateError, NotFoundError
from gateway.contract.messages import ErrorPart, ToolResultPart, new_id
from gateway.contract.plugin import Plugin
from gateway.contract.provider import ToolDefinition
from gateway.contract.tool import Tool, ToolContext
from gateway.store import Op, Store
from gateway.store.inbox import PUT_DEAD_LETTER, QUARANTINE, REOPEN, Entry, quarantine_op
from gateway.store.writes import audit_op
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Reply, Say, Use
from gateway.why.dead_letters import DeadLetter, DeadLetters, LetterChoice

pytestmark = pytest.mark.slow


async def bury(chat: Chat, text: str = "Hi", session: str = "s") -> DeadLetter:
    """Have a message die of a fault that was not foreseen."""
    chat.model.then(ZeroDivisionError("nobody foresaw this"))
    answer = await chat.say(text, session)
    assert isinstance(answer.parts[-1], ErrorPart)
    letters = chat.gateway.parts.dead_letters
    return await letters.get((await letters.list())[0].id)


async def texts(chat: Chat, session: str = "s") -> list[tuple[str, str]]:
    """What is stored of a session: roles and texts."""
    return [(message.role, message.text) for _, message in await chat.host.sessions.read(session)]


async def test_what_was_given_up_is_listed_with_its_reason_and_trace(
    tmp_path: Path, engine_settings: dict[str, Any]
):
    async with chatting(tmp_path, **engine_settings) as chat:
        letter = await bury(chat)
        assert (letter.kind, letter.session, letter.channel) == ("message", "s", "test")
        assert (letter.text, letter.attempts) == ("Hi", 1)
        assert letter.reason == "ZeroDivisionError: nobody foresaw this"
        assert letter.trace is not None
        assert "Traceback" in letter.trace
        assert await chat.gateway.parts.dead_letters.get(letter.id) == letter


async def test_the_latest_comes_first(tmp_path: Path, engine_settings: dict[str, Any]):
    async with chatting(tmp_path, **engine_settings) as chat:
        for text in ("one", "two", "three"):
            await bury(chat, text)
        letters = await chat.gateway.parts.dead_letters.list()
        assert {letter.text for letter in letters} == {"one", "two", "three"}
        assert [letter.at for letter in letters] == sorted((x.at for x in letters), reverse=True)


async def test_a_page_follows_the_last_one_and_has_no_whole_texts(
    tmp_path: Path, engine_settings: dict[str, Any]
):
    async with chatting(tmp_path, **engine_settings) as chat:
        letters = chat.gateway.parts.dead_letters
        events = [quarantine_op("test", Rejected("bot", str(n), "x" * 600, "odd")) for n in range(4)]
        await chat.gateway.parts.store.write(*events)
        await bury(chat, "y" * 600)
        whole = await letters.list()
        assert {len(one.text) for one in whole} == {500}
        assert [one.trace for one in whole] == [None] * 5
        paged, before = list[DeadLetter](), None
        while page := await letters.list(2, before):
            paged += page
            before = page[-1].at, page[-1].id
        assert paged == whole
        assert len((await letters.get(whole[0].id)).text) == 600


async def test_letters_are_grouped_and_chosen_by_cause(tmp_path: Path, engine_settings: dict[str, Any]):
    async with chatting(tmp_path, **engine_settings) as chat:
        letters, store = chat.gateway.parts.dead_letters, chat.gateway.parts.store
        first, second = await bury(chat, "one"), await bury(chat, "two")
        refused = await bury(chat, "three")
        row = ("PlacementRefused: no such chat", None, first.at - 1)
        await store.write((PUT_DEAD_LETTER, (refused.id, *row)))
        await store.write(quarantine_op("test", Rejected("bot", "key", "{}", "no text: none")))
        causes = {one.key: one for one in await letters.causes()}
        assert {key: (one.kind, one.count, one.text) for key, one in causes.items()} == {
            "-:ZeroDivisionError:-": ("message", 2, "an internal error (ZeroDivisionError)"),
            "test:PlacementRefused:-": ("message", 1, "Test refused the answer"),
            "test:UnreadableEvent:-": ("event", 1, "events of Test could not be read"),
        }
        group = causes["-:ZeroDivisionError:-"]
        assert (group.since, group.last) == (first.at, second.at)
        for key, one in causes.items():
            found = await letters.list(cause=key)
            assert [letter.cause for letter in found] == [key] * one.count
            assert {letter.id for letter in (await letters.choose(LetterChoice(cause=key)))[0]} == {
                letter.id for letter in found
            }
        assert await letters.list(cause="-:Zero:-") == []
        assert await letters.choose(LetterChoice(), 3) == ((await letters.choose(LetterChoice()))[0][:3], 1)


async def test_both_databases_group_and_page_ten_thousand_letters(database_url: str):
    store = Store.open(database_url, "full", unexpected)
    try:
        messages = [entry(n) for n in range(5_000)]
        await store.write(
            *(one.accept("dead") for one in messages),
            *(
                (PUT_DEAD_LETTER, (one.id, f"E{n % 3}: number {n}", "trace", n))
                for n, one in enumerate(messages)
            ),
            *((QUARANTINE, (new_id(), "test", "bot", str(n), "{}", "odd: x", n)) for n in range(5_000)),
        )
        letters = DeadLetters(store)
        assert [(one.key, one.count, one.since, one.last) for one in await letters.causes()] == [
            ("-:E1:-", 1_667, 1, 4_999),
            ("test:UnreadableEvent:-", 5_000, 0, 4_999),
            ("-:E0:-", 1_667, 0, 4_998),
            ("-:E2:-", 1_666, 2, 4_997),
        ]
        seen, before = set[str](), None
        while page := await letters.list(1_000, before):
            assert [one.at for one in page] == sorted((one.at for one in page), reverse=True)
            seen |= {one.id for one in page}
            before = page[-1].at, page[-1].id
        assert len(seen) == 10_000
        assert len(await letters.list(10, cause="-:E2:-")) == 10
        wanted = {one.id: one.at for one in (await letters.choose(LetterChoice(cause="-:E0:-")))[0]}
        stale = dict.fromkeys([*wanted][:10], -1)
        audited = list[str]()

        def audit(letter_id: str) -> Op:
            audited.append(letter_id)
            return audit_op("ada", "message.drop", letter_id)

        assert await letters.drop_unchanged(wanted | stale, audit) == wanted.keys() - stale.keys()
        assert {*audited} == wanted.keys() - stale.keys()
        assert [one.count for one in await letters.causes() if one.key == "-:E0:-"] == [10]
    finally:
        await store.close()


def entry(n: int) -> Entry:
    sender, address = Sender("ada"), Address("test", "bot", "room")
    message = InboundMessage(session="s", dedup_key=str(n), address=address, sender=sender, text=f"Text {n}")
    return Entry.of("test", message, n)


async def test_a_replayed_message_is_answered_in_place_of_its_notice(
    tmp_path: Path, engine_settings: dict[str, Any]
):
    async with chatting(tmp_path, **engine_settings) as chat:
        letter = await bury(chat)
        watcher = await chat.watch(after=chat.host.sessions.live()[0].seq)
        await chat.gateway.parts.dead_letters.replay(letter.id)
        done = await watcher.until(lambda frame: isinstance(frame, Complete))
        assert done.stop_reason == "end_turn"
        assert await texts(chat) == [("user", "Hi"), ("assistant", "You said: Hi")]
        assert [m.text for m in chat.host.sessions.live()[0].messages()] == ["Hi", "You said: Hi"]
        assert await chat.gateway.parts.dead_letters.list() == []
        assert (await chat.host.sessions.list())[0].messages == 2


async def test_a_message_that_fails_again_is_a_dead_letter_again(
    tmp_path: Path, engine_settings: dict[str, Any]
):
    async with chatting(tmp_path, **engine_settings) as chat:
        letter = await bury(chat)
        watcher = await chat.watch(after=chat.host.sessions.live()[0].seq)
        chat.model.then(ValueError("another fault"))
        await chat.gateway.parts.dead_letters.replay(letter.id)
        await watcher.until(lambda frame: isinstance(frame, Complete))
        again = await chat.gateway.parts.dead_letters.get(letter.id)
        assert again.reason == "ValueError: another fault"
        assert len(await texts(chat)) == 2


async def test_a_replayed_message_is_known_to_its_session_before_it_is_open_in_the_database(tmp_path: Path):
    """A read of the session's messages from the disk would queue it, and it would be queued a second time."""
    async with chatting(tmp_path) as chat, asyncio.TaskGroup() as tasks:
        letter = await bury(chat)
        replay = tasks.create_task(chat.gateway.parts.dead_letters.replay(letter.id))
        with closing(sqlite3.connect(tmp_path / "trunkline.db")) as database:
            while database.execute("SELECT state FROM inbox").fetchall() != [("new",)]:
                if chat.gateway.parts.dispatcher.waiting:
                    break
                await asyncio.sleep(0)
        assert chat.gateway.parts.dispatcher.waiting == 1
        await replay


async def test_what_is_replayed_while_no_gateway_runs_is_answered_at_the_next_start(
    tmp_path: Path, engine_settings: dict[str, Any]
):
    async with chatting(tmp_path, **engine_settings) as chat:
        letter = await bury(chat)
    url = engine_settings.get("store", {}).get("url", f"sqlite:///{tmp_path}/trunkline.db")
    store = Store.open(url, "full", unexpected)
    await DeadLetters(store).replay(letter.id)
    assert await DeadLetters(store).list() == []
    await store.close()
    async with chatting(tmp_path, **engine_settings) as chat:
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


async def test_a_tool_that_had_run_does_not_run_again_when_its_message_is_replayed(
    tmp_path: Path, engine_settings: dict[str, Any]
):
    mailer = Mailer()
    async with chatting(tmp_path, mailer, **engine_settings) as chat:
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


async def test_a_dropped_letter_is_gone_and_its_message_is_still_known(
    tmp_path: Path, engine_settings: dict[str, Any]
):
    async with chatting(tmp_path, **engine_settings) as chat:
        chat.model.then(ZeroDivisionError("boom"))
        message = written("Hi", dedup_key="k")
        await chat.host.submit(message)
        letter = (await chat.gateway.parts.dead_letters.list())[0]
        await chat.gateway.parts.dead_letters.drop(letter.id)
        assert await chat.gateway.parts.dead_letters.list() == []
        assert (await chat.host.accept("test", message)).duplicate
        assert len(await texts(chat)) == 2


async def test_an_event_that_could_not_be_read_is_listed_and_can_only_be_dropped(
    tmp_path: Path, engine_settings: dict[str, Any]
):
    async with chatting(tmp_path, **engine_settings) as chat:
        rejected = Rejected("bot", "key", '{"odd": "\0\ud800"}', "no text in it")
        await chat.gateway.parts.store.write(quarantine_op("test", rejected))
        (letter,) = await chat.gateway.parts.dead_letters.list()
        assert (letter.kind, letter.channel, letter.reason) == ("event", "test", "no text in it")
        assert letter.text == '{"odd": "\ufffd\ufffd"}'
        with pytest.raises(InvalidStateError, match="drop it"):
            await chat.gateway.parts.dead_letters.replay(letter.id)
        await chat.gateway.parts.dead_letters.drop(letter.id)
        assert await chat.gateway.parts.dead_letters.list() == []


async def test_a_letter_whose_notice_is_still_being_sent_is_not_replayed(
    tmp_path: Path, engine_settings: dict[str, Any]
):
    async with chatting(tmp_path, **engine_settings) as chat:
        letter = await bury(chat)
        # As between the commit of the letter and the placement of its notice.
        await chat.gateway.parts.store.write((REOPEN, (letter.id, "new", 1, 0)))
        with pytest.raises(InvalidStateError, match="still being sent"):
            await chat.gateway.parts.dead_letters.replay(letter.id)
        assert await chat.gateway.parts.dead_letters.get(letter.id) == letter


async def test_an_unknown_letter_is_not_found(tmp_path: Path, engine_settings: dict[str, Any]):
    async with chatting(tmp_path, **engine_settings) as chat:
        answered = await chat.accept("fine")
        for letter_id in ("nobody", answered, "\0"):
            for work in (chat.gateway.parts.dead_letters.replay, chat.gateway.parts.dead_letters.drop):
                with pytest.raises(NotFoundError):
                    await work(letter_id)


def unexpected(error: BaseException) -> None:
    raise AssertionError from error
