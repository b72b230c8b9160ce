"""Undo and redo: the last exchange is hidden from the model and from people, and shown again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from playwright.async_api import Browser, expect

from gateway.contract.errors import InvalidStateError, NotFoundError
from gateway.contract.events import BusEvent
from gateway.contract.messages import Message, TextPart
from gateway.conversations import Command, search_messages
from gateway.events.types import SessionRedone, SessionUndone
from gateway.session.frames import LogChanged, MessageFrame, Replayed
from gateway.session.log import read_undone
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Gate, Reply, Say
from gateway.testing.served import serving
from tests.e2e.page_browser import answers, questions, say, session_of, words
from tests.e2e.page_browser import chat as chat_page

NONE = Command("")


def asked(chat: Chat) -> list[str]:
    """The users' messages of the last call of the model."""
    return [message.text for message in chat.model.calls[-1].messages if message.role == "user"]


async def log_of(chat: Chat, session: str = "s") -> list[str]:
    """The texts of the log as it is stored; it is the log in memory, too."""
    stored = [message.text for _, message in await chat.gateway.parts.sessions.read(session)]
    found = await chat.gateway.parts.sessions.find(session)
    assert [message.text for message in found.messages()] == stored
    assert found.row.messages == len(stored)
    return stored


async def test_004_t09_the_last_exchange_is_hidden_and_shown_again(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("one")
        await chat.say("two")
        reply = await chat.say("/undo")
        assert reply.text.startswith("Undone.")
        assert await log_of(chat) == ["one", "You said: one", "/undo", reply.text]
        redone = await chat.say("/redo")
        everything = [
            "one",
            "You said: one",
            "two",
            "You said: two",
            "/undo",
            reply.text,
            "/redo",
            redone.text,
        ]
        assert await log_of(chat) == everything
        await chat.say("three")
        assert asked(chat) == ["one", "two", "three"]
        await chat.say("/undo")
        await chat.say("four")
        assert asked(chat) == ["one", "two", "four"]


async def test_several_are_undone_and_redone_in_reverse_order(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        for text in ("one", "two", "three"):
            await chat.say(text)
        session, undo = await chat.gateway.parts.sessions.find("s"), chat.host.undo
        for _ in range(3):
            await undo.undo(session, NONE)
        assert await log_of(chat) == []
        with pytest.raises(InvalidStateError, match="nothing to undo"):
            await undo.undo(session, NONE)
        for count in (2, 4, 6):
            await undo.redo(session, NONE)
            assert len(await log_of(chat)) == count
        assert (await log_of(chat))[::2] == ["one", "two", "three"]
        with pytest.raises(InvalidStateError, match="nothing was undone"):
            await undo.redo(session, NONE)


async def test_a_new_message_ends_what_can_be_redone(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("one")
        await chat.say("two")
        await chat.say("/undo")
        await chat.say("three")
        assert (await chat.say("/redo")).text == "Cannot redo: nothing was undone since the last message."
        await chat.say("/undo")
        assert (await chat.say("/redo")).text.startswith("Redone.")
        assert (await chat.say("/redo")).text.startswith("Cannot redo")
        await chat.say("four")
        assert asked(chat) == ["one", "three", "four"]


async def test_nothing_is_undone_while_an_answer_is_made(tmp_path: Path) -> None:
    gate = Gate(asyncio.Event())
    async with chatting(tmp_path) as chat:
        await chat.say("one")
        chat.model.then(Reply((Say("half"), gate, Say(" whole"))))
        running = await chat.accept("two")
        session = await chat.gateway.parts.sessions.find("s")
        for change in (chat.host.undo.undo, chat.host.undo.redo):
            with pytest.raises(InvalidStateError, match="an answer is being made"):
                await change(session, NONE)
        commanded = await chat.accept("/undo")
        gate.opened.set()
        await chat.answer(running)
        assert "an answer was being made" in (await chat.answer(commanded)).text
        assert "two" in await log_of(chat)
        assert (await chat.say("/undo")).text.startswith("Undone.")


async def test_what_a_summary_or_new_covers_is_not_undone(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        assert (await chat.say("/undo")).text == "Cannot undo: there is nothing to undo."
        await chat.say("one")
        await chat.say("two")
        await chat.say("/undo")
        await chat.say("/new")
        assert "before /new" in (await chat.say("/undo")).text
        assert "a new conversation" in (await chat.say("/redo")).text
        await chat.say("three " * 100)
        chat.model.then(Reply((Say("They said three."),)))
        assert "ummar" in (await chat.say("/compact")).text
        assert "part of a summary" in (await chat.say("/undo")).text


async def test_only_admins_undo_in_groups(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("one")
        for command, role, reply in (
            ("/undo", "user", "Only admins can undo in a group."),
            ("/redo", "user", "Only admins can redo in a group."),
            ("/undo", "admin", "Undone."),
        ):
            message = written(command, role=role)
            message = replace(message, address=replace(message.address, group=True))
            receipt = await chat.host.accept("test", message)
            assert (await chat.answer(receipt.answer_id)).text.startswith(reply)


async def test_what_is_undone_is_nowhere(tmp_path: Path) -> None:
    share_settings = {"enabled": True, "base_url": "https://talk.example.org"}
    async with chatting(tmp_path, share=share_settings) as chat:
        parts = chat.gateway.parts
        await chat.say("apple")
        await chat.say("banana")
        session = await parts.sessions.find("s")

        async def found(wait_for: int | None = None) -> int:
            """The number of messages that the search finds, once there are as many as a test waits for."""
            async with asyncio.timeout(60):
                while True:
                    page = await parts.store.read(lambda c: search_messages(c, "banana", 10))
                    if wait_for in (None, len(page.results)):
                        return len(page.results)
                    await asyncio.sleep(0.02)

        await found(wait_for=2)
        share = await parts.conversations.shares.create(session, "ada")
        change = await chat.host.undo.undo(session, NONE)
        assert await found() == 0
        opened = await parts.conversations.shares.open(share.url.rsplit("/", 1)[1], "peer", count=False)
        assert opened is not None
        assert [message.text for message in opened.messages] == ["apple", "You said: apple"]
        fork = await chat.host.fork("s", "ada")
        assert await log_of(chat, fork.id) == ["apple", "You said: apple"]
        with pytest.raises(NotFoundError):
            await chat.host.fork("s", "ada", change.turns[0])
        assert session.model_view()[-1].text == "You said: apple"
        await chat.host.undo.redo(session, NONE)
        await found(wait_for=2)
        # The fork has nothing to redo.
        with pytest.raises(InvalidStateError):
            await chat.host.undo.redo(fork, NONE)
        await chat.host.undo.undo(fork, NONE)
        assert await log_of(chat, fork.id) == []
        assert len(await log_of(chat)) == 4


async def test_the_title_goes_with_the_first_exchange(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("a secret")
        session = await chat.gateway.parts.sessions.find("s")
        await chat.host.undo.undo(session, NONE)
        assert session.row.title == ""
        await chat.host.undo.redo(session, NONE)
        assert session.row.title == "a secret"
        await session.rename("Mine", "user")
        await chat.host.undo.undo(session, NONE)
        assert session.row.title == "Mine"


async def test_readers_get_the_whole_log_again(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("one")
        await chat.say("two")
        live = await chat.watch()
        before = (await chat.gateway.parts.sessions.find("s")).seq
        await chat.say("/undo")
        await live.until(lambda frame: isinstance(frame, LogChanged))
        await live.until(lambda frame: isinstance(frame, Replayed))
        # A reader that was away discards what it has, once.
        away = await chat.watch(after=before)
        await away.until(lambda frame: isinstance(frame, Replayed))
        assert isinstance(away.frames[0], LogChanged)
        texts = [frame.message.text for frame in away.frames if isinstance(frame, MessageFrame)]
        assert texts == await log_of(chat)
        again = await chat.watch(after=(await chat.gateway.parts.sessions.find("s")).seq)
        await again.until(lambda frame: isinstance(frame, Replayed))
        assert [*map(type, again.frames)] == [Replayed]


async def test_a_restart_keeps_what_is_undone_and_can_be_redone(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("one")
        await chat.say("two")
        await chat.say("/undo")
    async with chatting(tmp_path) as chat:
        assert (await log_of(chat))[:3] == ["one", "You said: one", "/undo"]
        await chat.say("/redo")
        await chat.say("three")
        assert asked(chat) == ["one", "two", "three"]


async def test_a_repeated_command_counts_once(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        for text in ("one", "two"):
            await chat.say(text)
        session, undo = await chat.gateway.parts.sessions.find("s"), chat.host.undo
        first = await undo.undo(session, Command("key"))
        assert len(first.messages) == 2
        assert (await undo.undo(session, Command("key"))).messages == ()
        assert len(await log_of(chat)) == 2
        # The same key of the other command is another command.
        await undo.redo(session, Command("key"))
        assert len(await log_of(chat)) == 4


async def test_a_repeated_message_deletes_nothing_that_can_be_redone(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("one", dedup_key="1")
        session = await chat.gateway.parts.sessions.find("s")
        await chat.host.undo.undo(session, NONE)
        assert (await chat.host.accept("test", written("one", dedup_key="1"))).duplicate
        session = await chat.gateway.parts.sessions.find("s")
        await chat.host.undo.redo(session, NONE)
        assert await log_of(chat) == ["one", "You said: one"]


async def test_events_name_the_turn(tmp_path: Path) -> None:
    seen: list[BusEvent] = []
    async with chatting(tmp_path) as chat:
        chat.gateway.events.subscribe(SessionUndone, seen.append)
        chat.gateway.events.subscribe(SessionRedone, seen.append)
        answer = await chat.say("one")
        session = await chat.gateway.parts.sessions.find("s")
        question = session.messages()[0].id
        await chat.host.undo.undo(session, NONE)
        await chat.host.undo.redo(session, NONE)
    turns, messages = (answer.id,), (question, answer.id)
    assert seen == [SessionUndone("s", turns, messages), SessionRedone("s", turns, messages)]


async def test_a_plugins_message_for_the_turn_goes_with_it(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("one")
        session = await chat.gateway.parts.sessions.find("s")
        session.bus.inject_next(Message(session_id="s", role="user", parts=(TextPart("injected"),)))
        session.bus.append(Message(session_id="s", role="assistant", parts=(TextPart("appended"),)))
        await chat.say("two")
        await chat.host.undo.undo(session, NONE)
        assert await log_of(chat) == ["one", "You said: one", "appended"]
        await chat.host.undo.redo(session, NONE)
        assert (await log_of(chat))[2:] == ["appended", "two", "injected", "You said: injected"]


async def test_undo_on_postgresql_is_the_same(tmp_path: Path, migrated_postgres_url: str) -> None:
    async with chatting(tmp_path, store={"url": migrated_postgres_url}) as chat:
        await chat.say("one")
        await chat.say("two")
        assert (await chat.say("/undo")).text.startswith("Undone.")
        assert len(await log_of(chat)) == 4
        assert (await chat.say("/redo")).text.startswith("Redone.")
        await chat.say("three")
        assert asked(chat) == ["one", "two", "three"]


class Person:
    """Someone who writes, undoes and redoes, and knows what must be in view then."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self.session = "s0"
        self.number = 0
        self.key = ""
        self.undone: list[list[str]] = []
        """The exchanges that can be redone, the next one last: the ids of their messages."""
        self.read: dict[str, str] = {}
        self.at = 0

    async def log(self) -> list[tuple[int, Message]]:
        """The log of the session, as it is stored and in memory."""
        stored = await self.chat.gateway.parts.sessions.read(self.session)
        session = await self.chat.gateway.parts.sessions.find(self.session)
        assert list(session.log) == stored
        assert session.row.messages == len(stored)
        return stored

    async def prompt(self) -> None:
        self.number += 1
        self.key = f"{self.session}:{self.number}"
        await self.chat.say(f"prompt {self.number}", self.session, dedup_key=self.key)
        self.undone.clear()

    async def edit(self) -> None:
        """Edit the last prompt; if it is undone, that is ignored."""
        self.number += 1
        before = await self.log()
        edited = written(
            f"prompt {self.number}", self.session, dedup_key=f"{self.key}:{self.number}", revises=self.key
        )
        if await self.chat.host.submit(edited) is not None:
            self.undone.clear()
            self.key = edited.dedup_key
        else:
            assert [m.id for _, m in await self.log() if m.for_model] == [
                m.id for _, m in before if m.for_model
            ]

    async def undo(self) -> None:
        session = await self.chat.gateway.parts.sessions.find(self.session)
        before, prompts = await self.log(), self.prompts(session.row.context_from, await self.log())
        try:
            change = await self.chat.host.undo.undo(session, NONE)
        except InvalidStateError:
            assert not prompts
            return
        assert prompts[-1].id in change.messages
        after = await self.log()
        assert [one for one in before if one[1].id not in change.messages] == after
        self.undone.append([m.id for _, m in before if m.id in change.messages])

    async def redo(self) -> None:
        session = await self.chat.gateway.parts.sessions.find(self.session)
        before = await self.log()
        try:
            change = await self.chat.host.undo.redo(session, NONE)
        except InvalidStateError:
            store = self.chat.gateway.parts.store
            _, hidden = await store.read(lambda c: read_undone(c, self.session))
            assert not self.undone or hidden[0][0] <= session.row.context_from
            self.undone.clear()
            return
        assert [*change.messages] == self.undone.pop()
        after = await self.log()
        assert [one for one in after if one[1].id not in change.messages] == before
        assert {*change.messages} <= {m.id for _, m in after}

    async def fork(self) -> None:
        if await self.log():
            shown = [m.parts for _, m in await self.log()]
            self.session = (await self.chat.host.fork(self.session, "ada")).id
            assert [m.parts for _, m in await self.log()] == shown
            self.undone.clear()
            self.read, self.at, self.key = {}, 0, "none"

    async def command(self, text: str) -> None:
        if text == "/compact":
            self.chat.model.then(Reply((Say("A summary."),)))
        await self.chat.say(text, self.session)

    async def look(self) -> None:
        """Read what was missed since the last look, as a client that connects again."""
        if not await self.log():
            return
        watcher = await self.chat.watch(self.session, after=self.at)
        await watcher.until(lambda frame: isinstance(frame, Replayed))
        for event in watcher.events:
            if isinstance(event.frame, LogChanged):
                self.read.clear()
            elif isinstance(event.frame, MessageFrame):
                self.read[event.frame.message.id] = event.frame.message.text
            self.at = event.seq
        assert self.read == {m.id: m.text for _, m in await self.log()}

    def prompts(self, context_from: int, log: Sequence[tuple[int, Message]]) -> list[Message]:
        return [m for seq, m in log if m.role == "user" and m.for_model and seq > context_from]

    async def check(self) -> None:
        """The model sees the prompts of the log."""
        session, log = await self.chat.gateway.parts.sessions.find(self.session), await self.log()
        seen = [m.id for m in session.model_view() if m.role == "user" and m.custom_type is None]
        assert seen == [m.id for m in self.prompts(session.row.context_from, log)]


STEPS = ("prompt", "undo", "redo", "edit", "fork", "/compact", "/new", "/status", "look")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from((*STEPS, "prompt", "undo", "undo", "redo")), min_size=4, max_size=16))
async def test_any_order_of_steps_keeps_the_log_and_all_views(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    directory = tmp_path_factory.mktemp("undo")
    async with chatting(directory) as chat:
        person = Person(chat)
        await person.prompt()
        for step in steps:
            await (person.command(step) if step.startswith("/") else getattr(person, step)())
            await person.check()
        await person.look()
        before = await person.log()
        view = (await chat.gateway.parts.sessions.find(person.session)).model_view()
    async with chatting(directory) as chat:
        person.chat = chat
        session = await chat.gateway.parts.sessions.find(person.session)
        assert await person.log() == before
        assert session.model_view() == view
        await person.redo()
        await person.check()
        await person.look()


@pytest.mark.slow
async def test_004_t09_the_page_loses_the_exchange_and_gets_it_again(
    browser: Browser, tmp_path: Path
) -> None:
    async with serving(tmp_path) as served, chat_page(browser, served.url) as page:
        await say(page, "one")
        await expect(words(answers(page))).to_have_text(["You said: one"])
        await say(page, "two")
        await expect(words(answers(page))).to_have_text(["You said: one", "You said: two"])
        # Over REST, so that no message of the page comes with it.
        session = session_of(page)
        await served.idle(session)
        status, _ = await served.ask("POST", f"/api/sessions/{session}/undo")
        assert status == 200
        await expect(words(answers(page))).to_have_text(["You said: one"])
        await expect(questions(page)).to_have_count(1)
        await served.ask("POST", f"/api/sessions/{session}/redo")
        await expect(words(answers(page))).to_have_text(["You said: one", "You said: two"])
        await expect(questions(page)).to_have_count(2)
        await say(page, "/undo")
        undone = "Undone. /redo shows it again, until you write a new message."
        await expect(words(answers(page))).to_have_text(["You said: one", undone])
        await say(page, "/redo")
        redone = "Redone. The model sees it again."
        await expect(words(answers(page))).to_have_text(["You said: one", "You said: two", undone, redone])
        await say(page, "three")
        await expect(words(answers(page))).to_have_text(
            ["You said: one", "You said: two", undone, redone, "You said: three"]
        )
