"""Recovery: a restarted gateway is ready at once, and answers what its predecessor left in its order."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from gateway import Plugin
from gateway.app import Gateway
from gateway.channel import OverloadedError
from gateway.contract.channel import StopRequest, Withdrawal
from gateway.contract.errors import InvalidStateError
from gateway.events.types import SessionResumed
from gateway.session.frames import Event
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Gate, Reply
from gateway.testing.served import until


class SlowlyLoading(Gateway):
    """Occupies the store's readers after recovery, so that no session is loaded until ``go`` is set."""

    async def recover(self) -> None:
        await super().recover()
        self.go = threading.Event()
        for _ in range(2):
            self.parts.store.start_read(lambda _connection: self.go.wait(30))


class LettingGo(Plugin):
    """Frees the readers when the gateway stops, before it closes its store."""

    name = "letting-go"

    def __init__(self, chats: list[Chat]) -> None:
        self._chats = chats

    async def deactivate(self) -> None:
        for chat in self._chats:
            go(chat)


def go(chat: Chat) -> None:
    """Let the sessions be loaded."""
    assert isinstance(chat.gateway, SlowlyLoading)
    chat.gateway.go.set()


async def leave(data_dir: Path, *sessions: str, messages: int = 1, **settings: Any) -> dict[str, list[str]]:
    """Let a gateway stop with unanswered messages. Return the ids of their answers by session."""
    left: dict[str, list[str]] = {}
    async with chatting(data_dir, limits={"drain_seconds": 0}, **settings) as chat:
        chat.model.then(*(Reply((Gate(asyncio.Event()),)) for _ in sessions))
        for session in sessions:
            for n in range(messages):
                answer = await chat.accept(f"{session} {n}", session, dedup_key=f"{session} {n}", order=n + 1)
                left.setdefault(session, []).append(answer)
    return left


@asynccontextmanager
async def restarted(data_dir: Path, **settings: Any) -> AsyncGenerator[Chat]:
    """Run a gateway that is ready and has not loaded a session."""
    chats: list[Chat] = []
    async with chatting(data_dir, LettingGo(chats), kind=SlowlyLoading, **settings) as chat:
        chats.append(chat)
        assert chat.gateway.ready
        assert chat.gateway.parts.sessions.live() == ()
        assert chat.model.calls == []
        yield chat


def asked(chat: Chat, session: str) -> list[str]:
    """What the model was asked in a session, oldest first."""
    texts = [call.messages[-1].text for call in chat.model.calls]
    return [text for text in texts if text.startswith(f"{session} ")]


async def test_ready_is_reported_before_sessions_are_loaded_and_their_order_is_kept(
    tmp_path: Path, database_url: str
) -> None:
    left = await leave(tmp_path, "a", "b", "c", messages=3, store={"url": database_url})
    async with restarted(tmp_path, store={"url": database_url}) as chat:
        assert chat.gateway.parts.dispatcher.waiting == 9
        go(chat)
        for session, answers in left.items():
            for answer in answers:
                await chat.answer(answer, session)
            assert asked(chat, session) == [f"{session} {n}" for n in range(3)]
        assert len(chat.model.calls) == 9


@pytest.mark.parametrize("sessions", [1, 130])
async def test_a_message_that_arrives_meanwhile_is_answered_after_the_older_ones(
    tmp_path: Path, sessions: int
) -> None:
    names = [f"s{n:03}" for n in range(sessions)]
    last = names[-1]
    await leave(tmp_path, *names, messages=2)
    async with restarted(tmp_path) as chat, asyncio.TaskGroup() as tasks:
        new = tasks.create_task(chat.accept(f"{last} new", last, order=3))
        again = tasks.create_task(
            chat.host.accept("test", written(f"{last} 0", last, dedup_key=f"{last} 0", order=1))
        )
        await asyncio.sleep(0)
        go(chat)
        await chat.answer(await new, last)
        assert (await again).duplicate
        assert asked(chat, last) == [f"{last} 0", f"{last} 1", f"{last} new"]


async def test_what_is_deleted_or_stopped_meanwhile_is_not_answered(tmp_path: Path) -> None:
    left = await leave(tmp_path, "a", "b", "c", messages=2)
    signals = (Withdrawal("bot", "a 0"), Withdrawal("bot", "b 1"), StopRequest("c"))
    for restart in range(2):
        async with restarted(tmp_path) as chat:
            if not restart:
                # It is durable: the next process, which loads nothing either before it ends, knows it, too.
                await chat.gateway.parts.intake.receiver("test")(signals=signals)
                continue
            go(chat)
            await chat.answer(left["a"][1], "a")
            await chat.answer(left["b"][0], "b")
            stopped = await chat.answer(left["c"][0], "c")
            await chat.answer(left["c"][1], "c")
            assert (stopped.text, stopped.metadata.stop_reason) == ("", "cancelled")
            assert [asked(chat, name) for name in "abc"] == [["a 1"], ["b 0"], ["c 1"]]


async def test_a_signal_reaches_entries_whose_session_is_not_loaded(tmp_path: Path) -> None:
    left = await leave(tmp_path, "a", "b", messages=2)
    async with restarted(tmp_path) as chat:
        await chat.gateway.parts.intake.receiver("test")(signals=(Withdrawal("bot", "a 0"),))
        assert await chat.gateway.parts.intake.stop("b")
        go(chat)
        await chat.answer(left["a"][1], "a")
        await chat.answer(left["b"][1], "b")
        assert [asked(chat, name) for name in "ab"] == [["a 1"], ["b 1"]]


class Numbers:
    """A reader that looks up, with each event, the number that the next process would begin after."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self.read: list[tuple[int, int]] = []

    def offer(self, event: Event) -> None:
        with closing(sqlite3.connect(self._database)) as connection:
            [[stored]] = connection.execute("select seq from sessions where id = ?", (event.session,))
        self.read.append((event.seq, stored))


@pytest.mark.parametrize("outcome", ["answered", "deleted", "given up"])
async def test_a_number_is_shown_only_once_its_block_is_durable(tmp_path: Path, outcome: str) -> None:
    await leave(tmp_path, "a")
    numbers = Numbers(tmp_path / "trunkline.db")
    if outcome == "given up":
        with closing(sqlite3.connect(tmp_path / "trunkline.db")) as connection, connection:
            connection.execute("update inbox set attempts = 9")
    async with restarted(tmp_path) as chat:
        sessions, events = chat.gateway.parts.sessions, chat.gateway.events

        def follow(loaded: SessionResumed) -> None:
            session = sessions.get(loaded.session)
            assert session is not None
            session.add_sink(numbers)

        events.subscribe(SessionResumed, follow)
        if outcome == "deleted":
            await chat.gateway.parts.intake.receiver("test")(signals=(Withdrawal("bot", "a 0"),))
        go(chat)
        await until(lambda: bool(numbers.read) and not chat.gateway.parts.dispatcher.waiting)
        assert len(chat.model.calls) == (outcome == "answered")
    assert {seq >> 20 for seq, _ in numbers.read} == {stored >> 20 for _, stored in numbers.read} == {1}


async def test_a_gateway_that_stops_before_it_loads_sessions_leaves_all_to_the_next(tmp_path: Path) -> None:
    left = await leave(tmp_path, "a", "b", messages=2)
    async with restarted(tmp_path) as chat:
        assert await chat.gateway.parts.dispatcher.drain(20) is True
    async with restarted(tmp_path) as chat:
        go(chat)
        for session, answers in left.items():
            await chat.answer(answers[-1], session)
            assert asked(chat, session) == [f"{session} {n}" for n in range(2)]


async def test_a_session_is_not_deleted_while_its_messages_wait_to_be_loaded(tmp_path: Path) -> None:
    [answer] = (await leave(tmp_path, "a"))["a"]
    async with restarted(tmp_path) as chat:
        deletion = chat.gateway.parts.sessions.delete("a")
        [outcome, _] = await asyncio.gather(deletion, asyncio.to_thread(go, chat), return_exceptions=True)
        assert isinstance(outcome, InvalidStateError)
        assert (await chat.answer(answer, "a")).text == "You said: a 0"


async def test_nothing_is_accepted_before_the_inbox_is_read(tmp_path: Path) -> None:
    class Eager(Gateway):
        async def recover(self) -> None:
            with pytest.raises(OverloadedError, match="starting"):
                await self.parts.intake.receiver("test")(written("too early"))
            await super().recover()

    async with chatting(tmp_path, kind=Eager) as chat:
        assert (await chat.say("hi")).text == "You said: hi"
