"""Branches: an edited message or another answer keeps what followed as a version that can be shown again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from gateway.contract.channel import Receipt
from gateway.contract.errors import InvalidRequestError, InvalidStateError, NotFoundError, OverloadedError
from gateway.contract.messages import ImagePart, Message
from gateway.conversations import Branch, Command, search_messages
from gateway.session import Session
from gateway.session.compaction import is_summary
from gateway.session.frames import LogChanged, MessageFrame, Replayed
from gateway.store import schema as t
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Gate, Reply, Say
from tests.gateway.conversations.test_changes import change, use
from tests.gateway.pipeline.test_mailbox import Beginning

PICTURE = ImagePart("iVBORw0KGgo=", "image/png")


class Writer:
    """Someone who writes, edits and switches in the session ``s``, or in a fork of it."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self.branches = chat.host.branches
        self.keys = 0
        self.name = "s"
        self.read: dict[str, str] = {}
        """What a client has read of the session, until its event ``at``."""
        self.at = 0

    async def session(self) -> Session:
        return await self.chat.gateway.parts.sessions.find(self.name)

    async def log(self) -> list[Message]:
        """The log as it is stored; it is the log in memory, too."""
        stored = await self.chat.gateway.parts.sessions.read(self.name)
        session = await self.session()
        assert list(session.log) == stored
        assert session.row.messages == len(stored)
        seen = [message.id for message in session.model_view() if not is_summary(message)]
        left = [message for seq, message in stored if message.for_model and seq > session.row.context_from]
        assert seen == [message.id for message in left if not is_summary(message)]
        return [message for _, message in stored]

    async def texts(self) -> list[str]:
        return [message.text for message in await self.log()]

    async def say(self, text: str, **fields: Any) -> None:
        await self.chat.say(text, self.name, **fields)

    async def compact(self) -> None:
        self.chat.model.then(Reply((Say("A summary."),)))
        await self.say("/compact")
        # Where nothing could be summarized, the model was not asked.
        self.chat.model.forget()

    async def fork(self) -> None:
        shown = [message.parts for message in await self.log()]
        self.name = (await self.chat.host.fork(self.name, "ada")).id
        assert [message.parts for message in await self.log()] == shown
        self.read, self.at = {}, 0

    async def look(self) -> None:
        """Read what was missed since the last look, as a client that connects again."""
        watcher = await self.chat.watch(self.name, after=self.at)
        await watcher.until(lambda frame: isinstance(frame, Replayed))
        for event in watcher.events:
            if isinstance(event.frame, LogChanged):
                self.read.clear()
            elif isinstance(event.frame, MessageFrame):
                self.read[event.frame.message.id] = event.frame.message.text
            self.at = event.seq
        assert self.read == {message.id: message.text for message in await self.log()}

    async def find(self, text: str) -> str:
        return next(message.id for message in (await self.session()).messages() if message.text == text)

    def _new(self, text: str, key: str | None) -> Any:
        self.keys += 1
        return written(text, self.name, dedup_key=key or f"branch:{self.keys}")

    async def edit(self, old: str, new: str, key: str | None = None) -> Receipt:
        receipt = await self.begin_edit(old, new, key)
        await self.chat.answer(receipt.answer_id, self.name)
        return receipt

    async def begin_edit(self, old: str, new: str, key: str | None = None) -> Receipt:
        found = await self.find(old)
        return await self.branches.edit(await self.session(), "api", found, self._new(new, key))

    async def regenerate(self, answer: str) -> Receipt:
        found = await self.find(answer)
        receipt = await self.branches.regenerate(await self.session(), "api", found, self._new("", None))
        await self.chat.answer(receipt.answer_id, self.name)
        return receipt

    async def list(self) -> tuple[Branch, ...]:
        return await self.branches.list(await self.session())

    async def switch(self, version: str) -> None:
        await self.branches.switch(await self.session(), version)

    async def read_version(self, version: str) -> list[Message]:
        """The conversation with a version that is not shown."""
        return [message for _, message in await self.branches.read(await self.session(), version)]

    async def versions(self) -> list[list[str]]:
        """The texts of the versions at each place, the shown one with a star."""
        return [[f"{'*' * one.shown}{one.text}" for one in branch.versions] for branch in await self.list()]

    async def show(self, text: str) -> None:
        """Show the version that begins with a text."""
        found = [one.id for branch in await self.list() for one in branch.versions if one.text == text]
        await self.switch(found[0])


async def test_004_t09_an_edited_message_keeps_what_followed_as_a_version(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        writer = Writer(chat)
        for text in ("one", "two", "three"):
            await writer.say(text)
        whole = await writer.log()
        await writer.edit("two", "zwei")
        edited = await writer.log()
        assert [m.text for m in edited] == ["one", "You said: one", "zwei", "You said: zwei"]
        assert [m.text for m in chat.model.calls[-1].messages] == ["one", "You said: one", "zwei"]
        assert await writer.versions() == [["two", "*zwei"]]
        [branch] = await writer.list()
        assert [one.messages for one in branch.versions] == [4, 2]
        assert all(one.model for one in branch.versions)
        await writer.show("two")
        assert await writer.log() == whole
        assert await writer.versions() == [["*two", "zwei"]]
        await writer.say("four")
        sent = [m.text for m in chat.model.calls[-1].messages if m.role == "user"]
        assert sent == ["one", "two", "three", "four"]
        await writer.show("zwei")
        assert await writer.log() == edited
        # Repeated, it changes nothing.
        await writer.show("zwei")
        assert await writer.log() == edited


async def test_another_answer_is_another_version(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        writer = Writer(chat)
        chat.model.then(Reply((Say("First."),)), Reply((Say("Second."),)))
        await writer.say("look", parts=(PICTURE,))
        await writer.regenerate("First.")
        assert await writer.texts() == ["look", "Second."]
        # With all that the first attempt had.
        first, second = (call.messages[-1].parts for call in chat.model.calls)
        assert first == second
        assert PICTURE in second
        assert await writer.versions() == [["look", "*look"]]
        await writer.edit("look", "look again")
        assert PICTURE in chat.model.calls[-1].messages[-1].parts
        assert await writer.versions() == [["look", "look", "*look again"]]


async def test_a_version_has_its_own_versions(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        writer = Writer(chat)
        await writer.say("one")
        await writer.say("two")
        await writer.edit("two", "zwei")
        await writer.edit("one", "eins")
        assert await writer.texts() == ["eins", "You said: eins"]
        assert await writer.versions() == [["one", "*eins"]]
        await writer.show("one")
        assert await writer.versions() == [["*one", "eins"], ["two", "*zwei"]]
        await writer.show("two")
        assert await writer.texts() == ["one", "You said: one", "two", "You said: two"]


async def test_a_version_is_read_without_being_shown(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        writer = Writer(chat)
        await writer.say("one")
        await writer.say("two")
        first, second = await writer.find("one"), await writer.find("two")
        await writer.edit("two", "zwei")
        await writer.edit("one", "eins")
        shown = await writer.log()
        hidden = await writer.branches.read_hidden(await writer.session())
        assert [version.id for version in hidden] == [first, second]
        assert hidden[0].after is None
        assert hidden[1].after == hidden[0].messages[1].id
        assert [[m.text for m in version.messages] for version in hidden] == [
            ["one", "You said: one", "zwei", "You said: zwei"],
            ["two", "You said: two"],
        ]
        one = ["one", "You said: one"]
        assert [m.text for m in await writer.read_version(first)] == [*one, "zwei", "You said: zwei"]
        # Also a version inside of one that is not shown.
        assert [m.text for m in await writer.read_version(second)] == [*one, "two", "You said: two"]
        assert await writer.read_version(await writer.find("eins")) == shown == await writer.log()
        for version in ("unknown", hidden[0].messages[1].id):
            with pytest.raises(NotFoundError, match=f"branch: session 's' has no version {version!r}; GET"):
                await writer.read_version(version)


async def test_a_version_that_is_not_reachable_is_refused(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        writer = Writer(chat)
        await writer.say("one")
        await writer.say("two")
        hidden = await writer.find("two")
        await writer.edit("two", "zwei")
        await writer.edit("one", "eins")
        for version in (hidden, "unknown", ""):
            with pytest.raises(NotFoundError, match="no version"):
                await writer.switch(version)
        answer = await writer.find("You said: eins")
        session = await writer.session()
        for message_id in (hidden, "unknown", answer):
            with pytest.raises(NotFoundError, match="no message of a user"):
                await writer.branches.edit(session, "api", message_id, written("x", dedup_key="x"))
        for message_id in (hidden, "unknown", await writer.find("eins")):
            with pytest.raises(NotFoundError, match="no answer"):
                await writer.branches.regenerate(session, "api", message_id, written("", dedup_key="x"))
        for text in ("", " \n", "/new"):
            with pytest.raises(InvalidRequestError, match="edited message"):
                await writer.edit("eins", text)
        assert await writer.texts() == ["eins", "You said: eins"]


async def test_nothing_branches_while_an_answer_is_made(tmp_path: Path) -> None:
    gate = Gate(asyncio.Event())
    async with chatting(tmp_path) as chat:
        writer = Writer(chat)
        await writer.say("one")
        await writer.edit("one", "eins")
        first = (await writer.list())[0].versions[0].id
        chat.model.then(Reply((Say("half"), gate, Say(" whole"))))
        running = await chat.accept("two")
        for attempt in (
            writer.begin_edit("eins", "uno"),
            writer.regenerate("You said: eins"),
            writer.switch(first),
        ):
            with pytest.raises(InvalidStateError, match="an answer is being made"):
                await attempt
        gate.opened.set()
        await chat.answer(running)
        assert await writer.texts() == ["eins", "You said: eins", "two", "half whole"]


async def test_a_version_is_listed_while_it_waits_and_is_answered(tmp_path: Path) -> None:
    beginning, gate = Beginning(), Gate(asyncio.Event())
    async with chatting(tmp_path, beginning) as chat:
        writer = Writer(chat)
        await writer.say("one")
        chat.model.then(Reply((Say("half"), gate, Say(" whole"))))
        receipt = await writer.begin_edit("one", "hold one")
        await beginning.holding.wait()
        assert await writer.versions() == [["one", "*hold one"]]
        beginning.gate.set()
        async with asyncio.timeout(60):
            while (await writer.session()).turn is None:
                await asyncio.sleep(0.01)
        assert await writer.versions() == [["one", "*hold one"]]
        gate.opened.set()
        await chat.answer(receipt.answer_id)
        assert await writer.versions() == [["one", "*hold one"]]


async def test_what_a_summary_or_new_covers_does_not_branch(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        writer = Writer(chat)
        await writer.say("one")
        await writer.edit("one", "eins")
        first = (await writer.list())[0].versions[0].id
        await writer.say("/new")
        with pytest.raises(InvalidStateError, match="the conversation before /new"):
            await writer.begin_edit("eins", "uno")
        with pytest.raises(InvalidStateError, match="the conversation before /new"):
            await writer.switch(first)
        await writer.say("two")
        await writer.edit("two", "zwei")
        assert (await writer.texts())[-2:] == ["zwei", "You said: zwei"]
        await writer.say("three " * 100)
        chat.model.then(Reply((Say("They said three."),)))
        await writer.say("/compact")
        with pytest.raises(InvalidStateError, match="part of a summary"):
            await writer.begin_edit("zwei", "due")


async def test_redo_shows_nothing_of_another_version(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        writer, undo = Writer(chat), chat.host.undo
        await writer.say("one")
        await writer.say("two")
        await undo.undo(await writer.session(), Command(""))
        await writer.edit("one", "eins")
        with pytest.raises(InvalidStateError, match="nothing was undone"):
            await undo.redo(await writer.session(), Command(""))
        await writer.show("one")
        with pytest.raises(InvalidStateError, match="nothing was undone"):
            await undo.redo(await writer.session(), Command(""))
        assert await writer.texts() == ["one", "You said: one"]
        # In one version, undo and redo work as ever; the other is reached although nothing is shown.
        await undo.undo(await writer.session(), Command(""))
        assert await writer.texts() == []
        await undo.redo(await writer.session(), Command(""))
        await undo.undo(await writer.session(), Command(""))
        await writer.switch((await hidden_versions(chat))[0])
        assert await writer.texts() == ["eins", "You said: eins"]


async def hidden_versions(chat: Chat) -> list[str]:
    return await chat.gateway.parts.store.read(lambda c: [*c.execute(select(t.branches.c.id)).scalars()])


async def test_a_repeated_request_counts_once(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        writer = Writer(chat)
        await writer.say("one")
        session, old = await writer.session(), await writer.find("one")
        new = written("eins", dedup_key="key")
        first = await writer.branches.edit(session, "api", old, new)
        await chat.answer(first.answer_id)
        before = await writer.log()
        # Its message is hidden by now, so the request is recognised by its key alone.
        again = await writer.branches.edit(session, "api", old, new)
        assert (again.message_id, again.duplicate) == (first.message_id, True)
        assert await writer.log() == before


async def test_a_refused_message_hides_nothing(tmp_path: Path) -> None:
    async with chatting(tmp_path, limits={"global_inbox": 1}) as chat:
        writer = Writer(chat)
        await writer.say("one")
        gate = Gate(asyncio.Event())
        chat.model.then(Reply((gate, Say("late"))))
        other = await chat.accept("else", "other")
        with pytest.raises(OverloadedError):
            await writer.begin_edit("one", "eins")
        assert await writer.texts() == ["one", "You said: one"]
        gate.opened.set()
        await chat.answer(other, "other")


async def test_a_restart_keeps_the_versions(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        writer = Writer(chat)
        await writer.say("one")
        await writer.edit("one", "eins")
    async with chatting(tmp_path) as chat:
        writer = Writer(chat)
        assert await writer.texts() == ["eins", "You said: eins"]
        await writer.show("one")
        await writer.say("two")
        assert [m.text for m in chat.model.calls[-1].messages if m.role == "user"] == ["one", "two"]


async def test_search_and_forks_know_the_shown_version(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        writer, parts = Writer(chat), chat.gateway.parts
        await writer.say("hi")
        await writer.say("apple")
        await writer.edit("apple", "pear")

        async def found(word: str, count: int) -> None:
            """Wait until the search finds so many messages."""
            async with asyncio.timeout(60):
                while len((await parts.store.read(lambda c: search_messages(c, word, 5))).results) != count:
                    await asyncio.sleep(0.02)

        await found("pear", 2)
        await found("apple", 0)
        fork = await chat.host.fork("s", "ada")
        assert [m.text for m in fork.messages()][2:] == ["pear", "You said: pear"]
        await writer.show("apple")
        await found("apple", 2)
        await found("pear", 2)  # those of the fork


async def test_the_title_goes_with_the_first_message(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        writer = Writer(chat)
        await writer.say("a secret")
        await writer.say("more")
        await writer.edit("more", "less")
        assert (await writer.session()).row.title == "a secret"
        await writer.edit("a secret", "something else")
        assert (await writer.session()).row.title == "something else"
        await writer.show("a secret")
    async with chatting(tmp_path) as chat:
        writer = Writer(chat)
        assert (await writer.session()).row.title == "a secret"
        await (await writer.session()).rename("Mine", "user")
        await writer.show("something else")
        assert (await writer.session()).row.title == "Mine"


async def test_readers_see_the_shown_version(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        writer = Writer(chat)
        await writer.say("one")
        await writer.edit("one", "eins")
        live = await chat.watch()
        before = (await writer.session()).seq
        await writer.show("one")
        await live.until(lambda frame: isinstance(frame, LogChanged))
        await live.until(lambda frame: isinstance(frame, Replayed))
        away = await chat.watch(after=before)
        await away.until(lambda frame: isinstance(frame, Replayed))
        assert isinstance(away.frames[0], LogChanged)
        texts = [frame.message.text for frame in away.frames if isinstance(frame, MessageFrame)]
        assert texts == await writer.texts()


async def test_files_follow_the_version(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.txt").write_text("old\n")
    own = {"enabled": ["files"], "files": {"roots": [str(root)]}}
    async with chatting(tmp_path / "data", plugins=own) as chat:
        writer = Writer(chat)
        await change(chat, use("read", path="a.txt"), use("edit", path="a.txt", old="old", new="new"))
        first = (await writer.log())[0]
        assert (root / "a.txt").read_text() == "new\n"
        await writer.edit(first.text, "leave it")
        assert (root / "a.txt").read_text() == "old\n"
        await writer.switch(first.id)
        assert (root / "a.txt").read_text() == "new\n"


async def test_branches_on_postgresql_are_the_same(tmp_path: Path, migrated_postgres_url: str) -> None:
    async with chatting(tmp_path, store={"url": migrated_postgres_url}) as chat:
        writer = Writer(chat)
        await writer.say("one")
        await writer.edit("one", "eins")
        await writer.show("one")
        assert await writer.versions() == [["*one", "eins"]]
        assert await writer.texts() == ["one", "You said: one"]


STEPS = ("say", "edit", "regenerate", "switch", "undo", "redo", "/new", "compact", "fork", "look")


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), steps=st.lists(st.sampled_from((*STEPS, "edit", "switch")), min_size=4, max_size=16))
async def test_any_order_of_steps_keeps_every_version(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, steps: list[str]
) -> None:
    directory = tmp_path_factory.mktemp("branches")
    async with chatting(directory) as chat:
        writer = Writer(chat)
        await writer.say("prompt 0")
        for number, step in enumerate(steps, 1):
            log = await writer.log()
            prompts = [m.text for m in log if m.text.startswith("prompt")]
            shown = [one for branch in await writer.list() for one in branch.versions]
            try:
                if step == "say":
                    await writer.say(f"prompt {number}")
                elif step in ("edit", "regenerate") and prompts:
                    old = data.draw(st.sampled_from(prompts))
                    before = next(m for m in log if m.text == old)
                    if step == "edit":
                        await writer.edit(old, f"prompt {number}")
                    else:
                        await writer.regenerate(f"You said: {old}")
                    assert before not in await writer.log()
                    # What was before it stays; and the old version is complete when it is shown again.
                    kept = log.index(before)
                    edited = await writer.log()
                    assert edited[:kept] == log[:kept]
                    assert await writer.read_version(before.id) == log
                    await writer.switch(before.id)
                    assert await writer.log() == log
                    await writer.switch(edited[kept].id)
                    assert await writer.log() == edited
                elif step == "switch" and shown:
                    version = data.draw(st.sampled_from(shown))
                    await writer.switch(version.id)
                    assert version.id in [m.id for m in await writer.log()]
                elif step in ("undo", "redo"):
                    await getattr(chat.host.undo, step)(await writer.session(), Command(""))
                elif step == "/new":
                    await writer.say("/new")
                elif step in ("compact", "look") or (step == "fork" and log):
                    await getattr(writer, step)()
            except InvalidStateError:
                assert await writer.log() == log
        before = await writer.log()
        listed = await writer.list()
        view = (await writer.session()).model_view()
    async with chatting(directory) as chat:
        writer.chat, writer.branches = chat, chat.host.branches
        assert await writer.log() == before
        assert (await writer.session()).model_view() == view
        await writer.look()
        assert await writer.list() == listed
