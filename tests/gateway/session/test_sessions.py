"""Sessions: conversations apart from one another, kept in memory while they are in use."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway import (
    ContentEvent,
    ImagePart,
    Message,
    NotFoundError,
    Plugin,
    PluginContext,
    TextDelta,
    TextPart,
)
from gateway.channel import Address, MessageFrame
from gateway.contract.errors import InvalidStateError
from gateway.contract.events import AgentEvent
from gateway.contract.messages import Origin
from gateway.session import Session, Sessions
from gateway.session.feed import Feed
from gateway.session.frames import LogChanged, Replayed, SessionFrame
from gateway.store import Store
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Gate, Reply, Say


def texts(messages: object) -> list[str]:
    """The visible texts of messages."""
    return [message.text for message in messages]  # type: ignore[attr-defined]


async def stored(chat: Chat, session: str = "s") -> list[str]:
    """The texts of what is in the database."""
    return texts(message for _, message in await chat.gateway.parts.sessions.read(session))


async def test_002_34_every_session_has_its_own_state(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("my name is Ada", "a", user="ada")
        await chat.say("/model script/two", "b", user="bob")
        await chat.say("and mine is Bob", "b", user="bob")
        a, b = [await chat.gateway.parts.sessions.find(key) for key in ("a", "b")]
    assert texts(a.messages()) == ["my name is Ada", "You said: my name is Ada"]
    assert texts(chat.model.calls[1].messages) == ["and mine is Bob"]
    assert [(s.row.owner, s.row.title, s.row.model) for s in (a, b)] == [
        ("ada", "my name is Ada", None),
        ("bob", "and mine is Bob", "script/two"),
    ]
    assert (a.totals.input_tokens, b.totals.input_tokens) == (10, 10)


async def test_002_34_a_plugin_runs_turns_hears_their_events_and_ends_them(tmp_path: Path) -> None:
    class Running(Plugin):
        name = "running"

        async def activate(self, ctx: PluginContext) -> None:
            self.ctx = ctx

    plugin = Running()
    async with chatting(tmp_path, plugin) as chat, asyncio.TaskGroup() as tasks:
        submit, sessions = plugin.ctx.submit, plugin.ctx.sessions
        assert submit is not None
        assert sessions is not None
        answer = await submit(written("hi"))
        assert answer is not None
        assert answer.text == "You said: hi"
        heard: list[AgentEvent] = []
        begun = asyncio.Event()
        session = await sessions.find("s")
        session.subscribe(heard.append)
        session.subscribe(lambda _event: begun.set())
        chat.model.then(Reply((Say("On "), Gate(asyncio.Event()))))
        running = tasks.create_task(submit(written("go")))
        await begun.wait()
        sessions.close("s")
        cut = await running
        assert cut is not None
        assert (cut.text, cut.metadata.stop_reason) == ("On ", "cancelled")
    assert heard == [ContentEvent("On ")]


async def test_002_34_events_and_aborts_are_one_sessions_own(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat, asyncio.TaskGroup() as tasks:
        gate = asyncio.Event()
        await chat.say("hi", "a")
        await chat.say("hi", "b")
        heard: dict[str, list[AgentEvent]] = {"a": [], "b": []}
        for name, events in heard.items():
            (await chat.gateway.parts.sessions.find(name)).subscribe(events.append)
        chat.model.then(*(Reply((Say(f"{name} "), Gate(gate), Say("end"))) for name in "ab"))
        first = tasks.create_task(chat.say("go", "a"))
        while not heard["a"]:
            await asyncio.sleep(0.005)
        second = tasks.create_task(chat.say("go", "b"))
        while not heard["b"]:
            await asyncio.sleep(0.005)
        chat.gateway.parts.sessions.close("a")
        assert (await first).metadata.stop_reason == "cancelled"
        gate.set()
        assert (await second).text == "b end"
        texts_of = {
            name: [e.text for e in events if isinstance(e, ContentEvent)] for name, events in heard.items()
        }
        assert texts_of == {"a": ["a "], "b": ["b ", "b end"]}


async def test_002_34_a_session_is_loaded_once_and_made_on_first_use(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
    async with chatting(tmp_path) as chat:
        sessions = chat.gateway.parts.sessions
        assert sessions.get("s") is None
        first, second = await asyncio.gather(sessions.find("s"), sessions.find("s"))
        assert first is second is sessions.get("s")
        with pytest.raises(NotFoundError):
            await sessions.find("nobody")
        new = await sessions.get_or_create("new", channel="test", owner="ada", address=Address("test"))
        same = await sessions.get_or_create("new", channel="other", owner="bob", address=Address("other"))
        assert new is same
        assert (new.row.owner, new.messages()) == ("ada", ())


async def test_a_deleted_session_is_gone_and_its_key_can_be_used_again(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        await chat.say("hi", "other")
        await chat.gateway.parts.sessions.delete("s")
        with pytest.raises(NotFoundError):
            await chat.gateway.parts.sessions.delete("s")
        assert await stored(chat) == []
        assert [row.id for row in await chat.gateway.parts.sessions.list()] == ["other"]
        await chat.say("again")
        assert texts(chat.model.calls[-1].messages) == ["again"]


async def test_a_session_that_answers_cannot_be_deleted(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        gate = asyncio.Event()
        chat.model.then(Reply((Say("On "), Gate(gate), Say("it."))))
        answer_id = await chat.accept("go")
        with pytest.raises(InvalidStateError, match="stop it first"):
            await chat.gateway.parts.sessions.delete("s")
        gate.set()
        assert (await chat.answer(answer_id)).text == "On it."


async def test_a_session_that_gets_a_message_while_it_is_deleted_stays(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        deletion = asyncio.create_task(chat.gateway.parts.sessions.delete("s"))
        await asyncio.sleep(0)
        answer_id = await chat.accept("and this")
        with pytest.raises(InvalidStateError, match="stop it first"):
            await deletion
        assert (await chat.answer(answer_id)).text == "You said: and this"
        assert texts(chat.model.calls[-1].messages) == ["hi", "You said: hi", "and this"]


async def test_a_title_is_the_first_line_of_the_first_question(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("/help")
        await chat.say(f"What is {'very ' * 30}long?\nAnd this?")
        await chat.say("Something else")
        title = (await chat.gateway.parts.sessions.find("s")).row.title
    assert title.startswith("What is very very")
    assert len(title) <= 60


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# Plans for **Sunday**\nbread", "Plans for Sunday"),
        ("```python\nprint(1)\n```\nWhy?", "print(1)"),
        ("> - `ls -l` and 2 ** 3 ** 4", "ls -l and 2 ** 3 ** 4"),
        ("#1 is **kwargs", "#1 is **kwargs"),
        ("```", "```"),
    ],
)
async def test_a_title_shows_no_marks_of_markdown(tmp_path: Path, text: str, title: str) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say(text)
        assert (await chat.gateway.parts.sessions.find("s")).row.title == title


async def test_numbers_after_a_restart_are_none_that_were_used_before(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        before = (await chat.gateway.parts.sessions.find("s")).seq
        chat.model.then(Reply((Say("a "), Say("b "), Gate(asyncio.Event()))))
        await chat.accept("go")
        watcher = await chat.watch(after=before)
        await watcher.until(lambda frame: isinstance(frame, TextDelta) and frame.content.endswith("b "))
        shown = (await chat.gateway.parts.sessions.find("s")).seq
        chat.gateway.parts.dispatcher.cancel()
    async with chatting(tmp_path) as chat:
        assert (await chat.gateway.parts.sessions.find("s")).seq > shown


async def test_a_reader_misses_no_message_of_another_after_renames_and_a_restart(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
    async with chatting(tmp_path) as chat:
        watcher = await chat.watch()
        session = await chat.gateway.parts.sessions.find("s")
        for title in ("One", "Two", "Three"):
            await session.rename(title, "user")
        await watcher.until(lambda frame: isinstance(frame, SessionFrame) and frame.title == "Three")
    async with chatting(tmp_path) as chat:
        await chat.say("elsewhere")
        later = await chat.watch(after=watcher.events[-1].seq)
        await later.until(lambda frame: isinstance(frame, Replayed))
    assert texts(frame.message for frame in later.frames if isinstance(frame, MessageFrame)) == [
        "elsewhere",
        "You said: elsewhere",
    ]


def unexpected(error: BaseException) -> None:
    raise AssertionError(error)


async def a_session(sessions: Sessions, key: str) -> Session:
    """A session with one stored message."""
    session = await sessions.get_or_create(key, channel="test", owner="ada", address=Address("test"))
    await session.add_message(Message(session_id=key, role="assistant", parts=(TextPart(key),)), [])
    return session


async def test_idle_sessions_leave_memory_when_it_is_full_and_come_back(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)
    sessions = Sessions(store, window=10, max_bytes=30_000)
    waiting = await a_session(sessions, "waiting")
    waiting.bus.inject_next(Message(session_id="waiting", role="user", parts=(TextPart("later"),)))
    heard = await a_session(sessions, "heard")
    heard.subscribe(lambda _event: None)
    for n in range(20):
        await a_session(sessions, f"s{n}")
    gc.collect()  # a session and its bus refer to each other
    kept = {session.id for session in sessions.live()}
    assert {"waiting", "heard", "s19"} <= kept
    assert len(kept) <= 10
    assert "s0" not in kept
    assert texts((await sessions.find("s0")).messages()) == ["s0"]
    await store.close()


async def test_a_session_in_use_is_not_loaded_a_second_time(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)
    sessions = Sessions(store, window=10, max_bytes=10_000)
    held = await a_session(sessions, "held")
    for n in range(5):
        await a_session(sessions, f"s{n}")
    gc.collect()
    kept = sessions.live()
    assert held in kept, "what is deleted or revoked has to reach it, too"
    assert "s0" not in {session.id for session in kept}
    assert sessions.get("held") is held
    assert await sessions.find("held") is held
    await sessions.delete("held")
    sessions.keep(held)
    assert sessions.get("held") is None
    await store.close()


async def test_a_reader_gets_what_left_memory_from_the_store(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)
    session = await a_session(Sessions(store, window=2), "s")
    for n in range(6):
        await session.add_message(Message(session_id="s", role="user", parts=(TextPart(str(n)),)), [])
        session.cut_context()
    assert len(session.messages()) <= 4
    feed = Feed()
    await session.follow(feed, 0)
    events = await feed.take()
    await store.close()
    assert texts(e.frame.message for e in events if isinstance(e.frame, MessageFrame)) == ["s", *"012345"]
    assert [event.seq for event in events] == sorted(event.seq for event in events)


async def test_of_context_that_left_memory_nothing_is_kept(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)
    session = await a_session(Sessions(store, window=2), "s")
    for n in range(20):
        origin = Origin(channel="c", account="bot", key=str(n), context=True)
        said = Message(session_id="s", role="user", parts=(TextPart(str(n)),), origin=origin)
        await session.add_message(said, [])
        session.cut_context()
    await store.close()
    assert 0 < len(session.context) <= len(session.messages()) <= 4


async def test_a_reader_gets_the_end_of_a_log_that_is_longer_than_its_feed(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "relaxed", unexpected)
    session = await a_session(Sessions(store), "s")
    for n in range(1_100):
        await session.add_message(Message(session_id="s", role="user", parts=(TextPart(str(n)),)), [])
    assert len(session.messages()) == 1_101, "all of them are for the model"
    for count in (1_100, 1_101):
        for after, is_whole in ((0, True), (1, False), (session.seq - 501, False), (session.seq - 500, True)):
            feed = Feed()
            await session.follow(feed, after)
            events = await feed.take()
            shown = texts(e.frame.message for e in events if isinstance(e.frame, MessageFrame))
            assert shown == [str(n) for n in range(count - 500, count)]
            assert isinstance(events[0].frame, LogChanged) is not is_whole
            frame = events[-1].frame
            assert isinstance(frame, Replayed)
            assert frame.earlier is (not is_whole or not after)
            session.remove_sink(feed)
        # The same with most of them in the store alone.
        session.cut_context()
        await session.add_message(Message(session_id="s", role="user", parts=(TextPart("1100"),)), [])
        assert len(session.messages()) <= 400
    await store.close()


async def test_a_reader_of_an_accepted_message_misses_nothing_of_its_turn(tmp_path: Path) -> None:
    """Nothing is awaited before it reads along, or a quick turn could end unseen."""
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)
    session = await a_session(Sessions(store, window=2), "s")
    await session.save()  # as the commit of an accepted message does
    following, feed = session.follow(Feed(), session.seq), Feed()
    with pytest.raises(StopIteration):
        following.send(None)
    known = session.seq
    message = session.messages()[0]
    await session.replace_message(replace(message, parts=(TextPart("new"),)), [])
    await session.follow(feed, known)
    events = await feed.take()
    await store.close()
    assert texts(e.frame.message for e in events if isinstance(e.frame, MessageFrame)) == ["new"]


async def test_messages_for_the_model_stay_in_memory_and_are_loaded(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)
    session = await a_session(Sessions(store, window=2), "s")
    for n in range(9):
        await session.add_message(Message(session_id="s", role="user", parts=(TextPart(str(n)),)), [])
    loaded = await Sessions(store, window=2).find("s")
    await store.close()
    assert texts(session.model_view()) == texts(loaded.model_view()) == ["s", *"012345678"]


async def test_what_sessions_say_counts_and_what_left_them_counts_no_more(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/t.db", "full", unexpected)
    sessions = Sessions(store, window=1, max_bytes=100_000)
    for name in ("first", "long", "last"):
        await a_session(sessions, name)
    long = sessions.get_loaded("long")
    picture = ImagePart("x" * 90_000, "image/png")
    await long.add_message(Message(session_id="long", role="assistant", parts=(picture,)), [])
    long.cut_context()
    await a_session(sessions, "long")
    gc.collect()
    assert {session.id for session in sessions.live()} == {"last", "long"}
    for _ in range(3):
        await a_session(sessions, "long")
    assert long.weight < 6_000
    await sessions.delete("long")
    await a_session(sessions, "first")
    gc.collect()
    assert {session.id for session in sessions.live()} == {"last", "first"}
    await store.close()
