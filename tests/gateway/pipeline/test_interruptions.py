"""Deletions, stops, steering words and injected messages count after a crash as they did before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from gateway import (
    ChatOptions,
    Message,
    Plugin,
    PluginContext,
    Tool,
    ToolCallPart,
    ToolResultPart,
    tool_from,
)
from gateway.app import Gateway
from gateway.channel import Cursor, StopRequest, Withdrawal
from gateway.contract.deltas import Delta, TextDelta
from gateway.contract.errors import StreamAbortedError
from gateway.contract.events import ChatMessage
from gateway.contract.messages import now_ms
from gateway.pipeline.tools import ToolCalls
from gateway.session import Turn
from gateway.store import schema as t
from gateway.store.inbox import Entry
from gateway.store.steps import Steps
from gateway.testing.chat import Chat, ScriptedModel, chatting, written
from gateway.testing.fake_models.script import Gate, Reply, Say, Use, UseTogether
from gateway.testing.served import until
from tests.gateway.session.test_bus import bus_of, note, texts

SECRET = "my password is hunter2"


class Holding(Plugin):
    """Holds every turn at its end, so that nothing of it is committed, until ``gate`` is set."""

    name = "holding"

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.ended: list[str] = []

    async def after_agent_run(self, reason: Any, ctx: Any) -> None:
        self.ended.append(reason)
        await self.gate.wait()


class Launching(Plugin):
    """A tool that runs until ``gate`` is set."""

    name = "launching"

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.launches = 0

    def tools(self) -> Sequence[Tool]:
        return (tool_from(self.launch),)

    async def launch(self) -> str:
        """Launch it."""
        self.launches += 1
        await self.gate.wait()
        return "launched"


def heard(chat: Chat) -> list[str]:
    """What the user said, as the model was told in all its calls."""
    return [m.text for call in chat.model.calls for m in call.messages if m.role == "user"]


async def asked(chat: Chat, times: int = 1) -> None:
    """Wait until the model was asked so often."""
    async with asyncio.timeout(60):
        while len(chat.model.calls) < times:
            await asyncio.sleep(0.005)


def stalling() -> Reply:
    return Reply((Say("Well, "), Gate(asyncio.Event())))


async def test_a_deletion_is_committed_with_its_cursor_and_counts_after_a_crash(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(stalling())
        await chat.accept("one", dedup_key="1")
        await asked(chat)
        await chat.accept(SECRET, dedup_key="2")
        receive = chat.gateway.parts.intake.receiver("test")
        await receive(cursor=Cursor("bot", "42"), signals=[Withdrawal("bot", "2")])
        chat.gateway.parts.dispatcher.cancel()
    async with chatting(tmp_path) as chat:
        assert await chat.host.cursors("test") == [Cursor("bot", "42")]
        await chat.say("three")
        assert heard(chat) == ["one", "one", "three"]


async def test_a_deleted_message_whose_answer_was_running_is_not_answered_after_a_crash(
    tmp_path: Path,
) -> None:
    holding = Holding()
    async with chatting(tmp_path, holding) as chat:
        chat.model.then(stalling())
        await chat.accept(SECRET, dedup_key="1")
        await asked(chat)
        assert await chat.host.withdraw("test", "bot", "1")
        await until(lambda: holding.ended == ["aborted"])
        chat.gateway.parts.dispatcher.cancel()
    async with chatting(tmp_path) as chat:
        await chat.say("two")
        assert heard(chat) == ["two"]


async def test_a_deletion_that_comes_before_its_message_counts(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        receive = chat.gateway.parts.intake.receiver("test")
        await receive(signals=[Withdrawal("bot", "1"), Withdrawal("bot", "1")])
    async with chatting(tmp_path) as chat:
        late = await chat.host.accept("test", written(SECRET, dedup_key="1"))
        assert late.duplicate
        assert await chat.host.submit(written(f"{SECRET}!", dedup_key="1:edit", revises="1")) is None
        await chat.say("two", dedup_key="2")
        assert heard(chat) == ["two"]


async def test_a_message_and_its_deletion_may_come_together(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        receive = chat.gateway.parts.intake.receiver("test")
        await receive(written(SECRET, dedup_key="1"), signals=[Withdrawal("bot", "1")])
        await chat.say("two")
        assert heard(chat) == ["two"]


async def test_all_revisions_of_a_deleted_message_go_with_it(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(stalling())
        await chat.accept("one", dedup_key="1")
        await asked(chat)
        await chat.accept(SECRET, dedup_key="2")
        await chat.accept(f"{SECRET}!", dedup_key="2:edit", revises="2")
        await chat.gateway.parts.intake.receiver("test")(signals=[Withdrawal("bot", "2")])
        # As if it had waited where only the database knows of it.
        revision = update(t.inbox).where(t.inbox.c.dedup_key == "2:edit").values(interrupted=None)
        await change(chat, revision)
        chat.gateway.parts.dispatcher.cancel()
    async with chatting(tmp_path) as chat:
        await chat.say("three")
        assert SECRET not in "".join(heard(chat))


async def change(chat: Chat, statement: Any) -> None:
    """Change rows behind the gateway's back."""

    def run(connection: Any) -> None:
        connection.execute(statement)
        connection.commit()

    await chat.gateway.parts.store.read(run)


@pytest.mark.parametrize("key", ["1", "3"])
async def test_what_is_deleted_of_a_backlog_is_left_out_of_its_turn(tmp_path: Path, key: str) -> None:
    class Deleting(Gateway):
        """Deletes the message while the texts of its turn are shown to observers."""

        async def recover(self) -> None:
            dispatcher = self.parts.dispatcher
            self.parts.sessions.events.subscribe(
                ChatMessage, lambda _: dispatcher.withdraw("test", "bot", key) and None
            )
            await super().recover()

    async with chatting(tmp_path) as chat:
        chat.model.then(stalling())
        for number, text in enumerate(("a", "b", "c"), 1):
            await chat.accept(text, dedup_key=str(number))
        await asked(chat)
        await change(chat, update(t.inbox).values(received_at=now_ms() - 3_600_000, attempts=0))
        chat.gateway.parts.dispatcher.cancel()
        await chat.gateway.parts.store.write()
    async with chatting(tmp_path, kind=Deleting) as chat:
        await asked(chat)
        left = [text for text, number in (("a", "1"), ("b", "2"), ("c", "3")) if number != key]
        assert heard(chat) == left


@pytest.mark.parametrize("way", ["button", "signal", "command"])
async def test_a_stopped_turn_ends_as_stopped_after_a_crash(tmp_path: Path, way: str) -> None:
    holding = Holding()
    async with chatting(tmp_path, holding) as chat:
        chat.model.then(stalling())
        answer = await chat.accept("a story")
        await asked(chat)
        stop = ""
        if way == "button":
            assert await chat.host.abort("s")
        elif way == "signal":
            await chat.gateway.parts.intake.receiver("test")(signals=[StopRequest("s")])
        else:
            stop = await chat.accept("/stop")
        await until(lambda: holding.ended == ["aborted"])
        await chat.accept("and then?")
        chat.gateway.parts.dispatcher.cancel()
    async with chatting(tmp_path) as chat:
        assert (await chat.answer(answer)).metadata.stop_reason == "cancelled"
        if way == "command":
            assert (await chat.answer(stop)).text == "Stopped."
        await chat.say("go on")
        assert [call.messages[-1].text for call in chat.model.calls] == ["and then?", "go on"]


async def test_what_a_stopped_turn_had_done_before_a_crash_is_shown_and_nothing_more_is_done(
    tmp_path: Path,
) -> None:
    launching, holding = Launching(), Holding()
    settings: dict[str, Any] = {"permissions": {"launch": "allow"}}
    async with chatting(tmp_path, launching, holding, **settings) as chat:
        chat.model.then(Reply((Say("I launch it."), Use("launch")), "tools"))
        answer = await chat.accept("go")
        await until(lambda: launching.launches)
        assert await chat.host.abort("s")
        await until(lambda: holding.ended == ["aborted"])
        chat.gateway.parts.dispatcher.cancel()
    async with chatting(tmp_path, launching, **settings) as chat:
        shown = await chat.answer(answer)
        call, result = shown.parts[-2:]
        assert shown.text == "I launch it."
        assert isinstance(call, ToolCallPart)
        assert isinstance(result, ToolResultPart)
        assert result.is_error
        assert "unknown" in str(result.output)
        assert (launching.launches, chat.model.calls) == (1, [])


async def test_stop_ends_the_wait_for_the_next_attempt(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        chat.model.then(stalling())
        answer = await chat.accept("poison?")
        await asked(chat)
        chat.gateway.parts.dispatcher.cancel()
        await chat.gateway.parts.store.write()
        await change(chat, update(t.inbox).values(attempts=5, not_before=now_ms() + 50_000))
    async with chatting(tmp_path) as chat:
        assert await chat.host.abort("s")
        assert (await chat.answer(answer)).metadata.stop_reason == "cancelled"
        assert chat.model.calls == []


class Deaf(Launching):
    """A tool that ends in another way when its turn is stopped."""

    def __init__(self, end: str) -> None:
        super().__init__()
        self.end = end

    async def launch(self) -> str:
        """Launch it."""
        try:
            return await super().launch()
        except asyncio.CancelledError:
            if self.end == "raises":
                raise OSError("the connection is gone") from None
            return "I go on."


@pytest.mark.parametrize("end", ["raises", "returns"])
async def test_a_stop_is_not_lost_in_a_tool_that_hides_it(tmp_path: Path, end: str) -> None:
    deaf = Deaf(end)
    async with chatting(tmp_path, deaf) as chat:
        both = UseTogether((Use("launch", id="one"), Use("launch", id="two")))
        chat.model.then(Reply((both,), "tools"), Reply((Say("I go on."),)))
        answer_id = await chat.accept("go")
        await until(lambda: deaf.launches)
        assert (await chat.say("/stop")).text == "Stopped."
        answer = await chat.answer(answer_id)
        assert (answer.metadata.stop_reason, answer.text, len(chat.model.calls)) == ("cancelled", "", 1)
        assert deaf.launches == 1
        worker = chat.gateway.parts.dispatcher.worker("s")
        assert worker is None or not worker.cancelling()
        assert (await chat.say("and now?")).text


class DeafModel(ScriptedModel):
    """A provider that goes on when its call is cancelled: it raises, or it says more and calls a tool."""

    id = "deaf"

    def __init__(self, end: str) -> None:
        super().__init__()
        self.end = end

    async def stream(self, messages: Sequence[Message], options: ChatOptions) -> AsyncGenerator[Delta]:
        self.then(Reply((Say("Hel"),)) if not self.calls else Reply((Say("Later."),)))
        async for delta in super().stream(messages, options):
            yield delta
            if len(self.calls) == 1 and isinstance(delta, TextDelta):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    if self.end == "raises":
                        raise StreamAbortedError("the connection is gone") from None
                    yield TextDelta(options.message_id, delta.part_index, "lo", 5)


@pytest.mark.parametrize("end", ["raises", "goes on"])
async def test_a_stop_is_not_lost_in_a_provider_that_hides_it(tmp_path: Path, end: str) -> None:
    deaf = DeafModel(end)

    class Registering(Plugin):
        name = "registering"

        async def activate(self, ctx: PluginContext) -> None:
            assert ctx.providers is not None
            ctx.providers.register(deaf)

    async with chatting(tmp_path, Registering(), model="deaf/one", fallback=["script/one"]) as chat:
        answer_id = await chat.accept("go")
        await until(lambda: deaf.calls)
        assert (await chat.say("/stop")).text == "Stopped."
        answer = await chat.answer(answer_id)
        assert (answer.metadata.stop_reason, answer.text) == ("cancelled", "Hel")
        assert (len(deaf.calls), chat.model.calls) == (1, [])
        assert (await chat.say("and now?")).text == "Later."


async def test_a_stop_for_nothing_is_none(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        assert not await chat.host.abort("s")
        await chat.gateway.parts.intake.receiver("test")(signals=[StopRequest("s"), StopRequest("nobody")])
        assert (await chat.say("still there?")).text == "You said: still there?"
        assert (await chat.say("/stop")).text == "Nothing is running."


async def test_words_that_steered_a_turn_steer_it_after_a_crash(tmp_path: Path) -> None:
    launching = Launching()
    launching.gate.set()
    settings: dict[str, Any] = {"permissions": {"launch": "allow"}, "steer": True}
    launch = Reply((Use("launch"),), "tools")
    async with chatting(tmp_path, launching, **settings) as chat:
        chat.model.then(stalling())
        first = await chat.accept("launch them all")
        await asked(chat)
        second = await chat.accept("only one!")
        chat.gateway.parts.dispatcher.cancel()
    async with chatting(tmp_path, launching, **settings) as chat:
        chat.model.then(launch, Reply((Say("One."),)))
        assert (await chat.answer(first)).metadata.stop_reason == "tool_use"
        assert (await chat.answer(second)).text == "One."


async def test_002_21_an_injected_message_waits_for_the_next_turn_over_a_restart(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        for text in ("The door opened.", "The window opened."):
            (await bus_of(chat)).inject_next(note(text, role="user"))
    async with chatting(tmp_path) as chat:
        await chat.say("again")
        await chat.say("more")
        second, third = chat.model.calls
        assert texts(second.messages)[2:] == ["again", "The door opened.", "The window opened."]
        assert texts(third.messages).count("The door opened.") == 1
        query = select(t.injected.c.id)
        assert await chat.gateway.parts.store.read(lambda c: c.execute(query).all()) == []


async def test_002_21_an_injected_message_is_not_lost_with_the_turn_that_took_it(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        (await bus_of(chat)).inject_next(note("The door opened.", role="user"))
        chat.model.then(stalling())
        answer = await chat.accept("again")
        await asked(chat, 2)
        chat.gateway.parts.dispatcher.cancel()
    async with chatting(tmp_path) as chat:
        await chat.answer(answer)
        assert texts(chat.model.calls[0].messages)[2:] == ["again", "The door opened."]


async def test_a_deletion_reaches_what_waits_on_disk_alone(tmp_path: Path) -> None:
    limits = {"session_inbox": 2}
    async with chatting(tmp_path, limits=limits) as chat:
        chat.model.then(stalling())
        await chat.accept("one", dedup_key="1")
        await asked(chat)
        for key in ("2", "3", "4"):
            await chat.accept(SECRET if key == "4" else key, dedup_key=key)
        await chat.accept(f"{SECRET}!", dedup_key="4:edit", revises="4")
        receive = chat.gateway.parts.intake.receiver("test")
        await receive(signals=[Withdrawal("bot", "4")])
        chat.gateway.parts.dispatcher.cancel()
    async with chatting(tmp_path, limits=limits) as chat:
        await chat.say("five")
        assert chat.model.calls[-1].messages[-1].text == "five"
        assert not any(SECRET in text for text in heard(chat))


async def test_steps_are_counted_though_a_stop_ends_the_wait_for_their_commit(tmp_path: Path) -> None:
    async with chatting(tmp_path) as chat:
        await chat.say("hi")
        entry = Entry.of("test", written("go"), 2, "s", attempts=1)
        turn = Turn(chat.gateway.parts.sessions.get_loaded("s"), entry)
        calls = ToolCalls(None, Steps(chat.gateway.parts.store), None)  # type: ignore[arg-type]
        call = ToolCallPart("1", "launch", {})
        recording = asyncio.create_task(calls.run(turn, (), (call,), (call,)))
        await asyncio.sleep(0)
        recording.cancel()
        await asyncio.wait([recording])
        assert turn.steps_written == 2, "so that the commit of the stopped turn drops them"
