"""Turns, from the model's stream to the database and to everyone who reads along."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.contract.assembler import Assembler
from gateway.contract.deltas import Complete, MetadataDelta, RateLimit, TextDelta, ToolResultEnd
from gateway.contract.messages import ErrorPart, Message, TextPart, ToolCallPart, ToolResultPart
from gateway.contract.plugin import Plugin
from gateway.contract.provider import ToolDefinition
from gateway.contract.tool import Tool, ToolContext, ToolOutput
from gateway.session.feed import Feed
from gateway.session.frames import Frame, MessageFrame, Replayed, TurnStart
from gateway.session.turn import Turn
from gateway.store.inbox import Entry
from gateway.testing.chat import Chat, Watcher, chatting, written
from gateway.testing.fake_models.script import Cut, Gate, Refusal, Reply, Say, Think, Tokens, Use
from gateway.testing.fake_models.server import FakeModels


class Tools(Plugin):
    """One tool that works, one that fails, one that brings text which is no text."""

    name = "oddities"

    def tools(self) -> list[Tool]:
        async def works(_arguments: object, context: ToolContext) -> str:
            context.progress("half ")
            return "done"

        async def fails(_arguments: object, _context: ToolContext) -> str:
            raise OSError("no such \udcfffile")

        async def odd(_arguments: object, context: ToolContext) -> ToolOutput:
            context.progress("caf\udce9 ")
            return ToolOutput("\udcff\0", title="\ud83d")

        return [
            Tool(definition=ToolDefinition(f.__name__, "A tool.", {"type": "object"}), execute=f)
            for f in (works, fails, odd)
        ]


def assembled(watcher: Watcher, answer_id: str) -> Message:
    """The answer as a reader puts it together from the deltas it saw; empty after each turn_start."""
    assembler = Assembler("s", answer_id, created_at=0)
    for frame in watcher.frames:
        if isinstance(frame, TurnStart) and frame.message_id == answer_id:
            assembler = Assembler("s", answer_id, created_at=0)
        elif is_delta_of(frame, answer_id):
            assembler.apply(frame)
    return assembler.message()


def is_delta_of(frame: Frame, answer_id: str) -> bool:
    return getattr(frame, "message_id", None) == answer_id and not isinstance(frame, TurnStart)


def is_complete(frame: Frame) -> bool:
    return isinstance(frame, Complete)


async def stored(chat: Chat, answer_id: str) -> Message:
    return next(m for _, m in await chat.host.sessions.read("s") if m.id == answer_id)


async def test_004_16_what_is_read_along_is_what_is_stored(tmp_path: Path):
    async with chatting(tmp_path, Tools()) as chat:
        chat.model.then(
            Reply((Think("hm"), Say("I use "), Say("it."), Use("works"), Use("fails", id="b")), "tools"),
            Reply((Say("So: "), Say("👋"))),
        )
        await chat.say("first")
        watcher = await chat.watch()
        chat.model.then(Reply((Say("Again."), Use("works")), "tools"), Reply((Say("Over."),)))
        answer_id = await chat.accept("second")
        await watcher.until(lambda f: is_complete(f) and f.message_id == answer_id)
        seen, kept = assembled(watcher, answer_id), await stored(chat, answer_id)
        assert (seen.parts, seen.metadata) == (kept.parts, kept.metadata)
        kinds = [type(part).__name__ for part in kept.parts]
        assert kinds == ["TextPart", "ToolCallPart", "ToolResultPart", "TextPart"]


async def test_004_16_complete_comes_only_when_the_answer_is_stored(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        await chat.say("first")
        watcher = await chat.watch()
        answer_id = await chat.accept("second")
        await watcher.until(lambda f: is_complete(f) and f.message_id == answer_id)
        assert (await stored(chat, answer_id)).text == "You said: second"


async def test_004_21_everyone_in_the_process_reads_the_same_events(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        await chat.say("first")
        watchers = [await chat.watch(after=10**9) for _ in range(3)]
        for watcher in watchers:
            await watcher.until(lambda f: isinstance(f, Replayed))
            watcher.events.clear()
        await chat.accept("second")
        for watcher in watchers:
            await watcher.until(is_complete)
        numbers = [[event.seq for event in watcher.events] for watcher in watchers]
        assert numbers[0] == numbers[1] == numbers[2] == sorted(set(numbers[0]))


class Clock:
    """A clock that stands until it is moved. Seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def turn_of(chat: Chat, clock: Clock) -> tuple[Turn, Feed]:
    """A turn by hand, and a reader of its session."""
    await chat.say("hello")
    session = await chat.host.sessions.find("s")
    feed = Feed()
    await session.follow(feed, session.seq)
    await feed.take()
    return Turn(session, Entry.of("test", written("x"), 1, attempts=1), clock), feed


async def test_004_23_counts_are_shown_at_most_every_half_second_the_newest_at_the_end(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        clock = Clock()
        turn, feed = await turn_of(chat, clock)
        for n in range(30):
            turn.emit(MetadataDelta(turn.message_id, 10, n, 0.0))
            clock.now += 0.125
        shown = [e.frame.output_tokens for e in await feed.take() if isinstance(e.frame, MetadataDelta)]
        assert shown == [0, 4, 8, 12, 16, 20, 24, 28]
        assert turn.assembler.metadata.output_tokens == 29


async def test_004_23_text_between_counts_is_never_held_back(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        turn, feed = await turn_of(chat, Clock())
        for n in range(10):
            turn.emit(turn.writer.text(str(n)))
            turn.emit(MetadataDelta(turn.message_id, 1, n, 0.0))
        frames = [event.frame for event in await feed.take()]
        assert [f.content for f in frames if isinstance(f, TextDelta)] == list("0123456789")
        assert len([f for f in frames if isinstance(f, MetadataDelta)]) == 1


async def test_004_14_shown_counts_are_cumulative_over_the_calls_of_a_turn(tmp_path: Path):
    prices = {"script/one": {"input_price": 2.0, "output_price": 8.0}}
    async with chatting(tmp_path, Tools(), model="script/one", models=prices) as chat:
        await chat.say("hello")
        gate = asyncio.Event()
        chat.model.then(
            Reply((Use("works"),), "tools", Tokens(100, 10, 50)),
            Reply((Use("works"),), "tools", Tokens(120, 5, 60)),
            Reply((Say("x"), Gate(gate)), tokens=Tokens(1000, 1)),
        )
        early = await chat.watch()
        answer_id = await chat.accept("go")
        await early.until(lambda frame: isinstance(frame, TextDelta) and frame.content == "x")
        # A reader that joins now is shown what the turn has taken so far.
        late = await (await chat.watch()).until(lambda frame: isinstance(frame, MetadataDelta))
        assert (late.input_tokens, late.output_tokens, late.cached_tokens) == (220, 15, 110)
        assert late.cost == pytest.approx((220 * 2.0 + 15 * 8.0) / 1e6)
        gate.set()
        metadata = (await chat.answer(answer_id)).metadata
        assert (metadata.input_tokens, metadata.output_tokens) == (1220, 16)


async def test_004_14_counts_of_several_calls_add_up(tmp_path: Path):
    async with chatting(tmp_path, Tools()) as chat:
        chat.model.then(
            Reply((Use("works"),), "tools", Tokens(100, 10, 50)),
            Reply((Say("x"),), tokens=Tokens(120, 5, 60)),
        )
        metadata = (await chat.say("go")).metadata
        assert (metadata.input_tokens, metadata.output_tokens, metadata.cached_tokens) == (220, 15, 110)
        totals = (await chat.host.sessions.find("s")).totals
        assert (totals.input_tokens, totals.output_tokens) == (220, 15)


@pytest.mark.parametrize("count", [-5, 10**30])
async def test_a_backend_that_counts_nonsense_does_not_spoil_the_session(tmp_path: Path, count: int):
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Say("x"),), tokens=Tokens(count, count)))
        assert (await chat.say("one")).text == "x"
        assert (await chat.say("two")).text == "You said: two"
        assert await chat.gateway.parts.dead_letters.list() == []


async def test_004_18_an_abort_ends_the_call_and_keeps_what_there_is(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        await chat.say("first")
        watcher = await chat.watch()
        gate = asyncio.Event()
        chat.model.then(Reply((Say("Half of "), Gate(gate), Say("it."))))
        answer_id = await chat.accept("second")
        await watcher.until(lambda f: isinstance(f, TextDelta) and f.content == "Half of ")
        assert await chat.host.abort("s") is True
        done = await watcher.until(lambda f: is_complete(f) and f.message_id == answer_id)
        gate.set()
        kept = await stored(chat, answer_id)
        assert (done.stop_reason, kept.parts) == ("cancelled", (TextPart("Half of "),))
        assert kept.metadata.stop_reason == "cancelled"
        assert (await chat.say("third")).text == "You said: third"


async def test_004_25_a_stream_that_breaks_ends_in_an_error_part_and_cancelled(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        await chat.say("first")
        watcher = await chat.watch()
        chat.model.then(Reply((Say("Half"), Cut())))
        answer_id = await chat.accept("second")
        done = await watcher.until(lambda f: is_complete(f) and f.message_id == answer_id)
        kept = await stored(chat, answer_id)
        text, error = kept.parts
        assert (done.stop_reason, text) == ("cancelled", TextPart("Half"))
        assert isinstance(error, ErrorPart)
        assert error.error_name == "StreamAbortedError"
        assert error.metadata is not None
        assert error.metadata.retryable is True
        frames = [f for f in watcher.frames if is_delta_of(f, answer_id)]
        assert [type(f).__name__ for f in frames[-2:]] == ["PartDelta", "Complete"]


async def test_004_26_a_tool_that_fails_ends_as_an_error_and_the_model_continues(tmp_path: Path):
    async with chatting(tmp_path, Tools()) as chat:
        await chat.say("first")
        watcher = await chat.watch()
        chat.model.then(Reply((Use("fails", id="f"),), "tools"), Reply((Say("Never mind."),)))
        answer_id = await chat.accept("second")
        await watcher.until(lambda f: is_complete(f) and f.message_id == answer_id)
        (end,) = [f for f in watcher.frames if isinstance(f, ToolResultEnd)]
        assert (end.is_error, end.tool_call_id, end.duration_ms >= 0) == (True, "f", True)
        call, result, text = (await stored(chat, answer_id)).parts
        assert isinstance(call, ToolCallPart)
        assert isinstance(result, ToolResultPart)
        assert (result.is_error, result.output) == (True, "Error: OSError: no such \ufffdfile")
        assert text == TextPart("Never mind.")


async def test_004_27_generation_continues_without_readers_and_is_replayed(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        await chat.say("first")
        watcher = await chat.watch()
        gates = [asyncio.Event(), asyncio.Event()]
        chat.model.then(Reply((Say("One "), Gate(gates[0]), Say("two "), Gate(gates[1]), Say("three."))))
        answer_id = await chat.accept("second")
        await watcher.until(lambda f: isinstance(f, TextDelta) and f.content == "One ")
        session = await chat.host.sessions.find("s")
        session.remove_sink(watcher._feed)
        gates[0].set()
        back = await chat.watch(after=watcher.events[-1].seq)
        await back.until(lambda f: isinstance(f, TextDelta) and f.content.endswith("two "))
        gates[1].set()
        await back.until(lambda f: is_complete(f) and f.message_id == answer_id)
        assert assembled(back, answer_id).text == "One two three."
        late = await chat.watch(after=watcher.events[-1].seq)
        whole = await late.until(lambda f: isinstance(f, MessageFrame) and f.message.id == answer_id)
        assert whole.message == await stored(chat, answer_id)


async def test_004_28_a_rate_limit_is_announced_and_the_answer_continues(tmp_path: Path):
    async with FakeModels() as models:
        provider = {"openai": {"base_url": models.openai_url, "api_key": "k", "max_retries": 2}}
        async with chatting(tmp_path, model="openai/fake-small", providers=provider) as chat:
            await chat.say("first")
            watcher = await chat.watch(after=10**9)
            models.then(Refusal(429, "slow down", {"retry-after-ms": "20"}), Reply((Say("Here."),)))
            answer_id = await chat.accept("go")
            limited = await watcher.until(lambda f: isinstance(f, MetadataDelta) and f.rate_limit)
            assert limited.rate_limit == RateLimit(20, "openai")
            done = await watcher.until(is_complete)
            assert (done.message_id, done.stop_reason) == (answer_id, "end_turn")
            assert (await stored(chat, answer_id)).parts == (TextPart("Here."),)


async def test_broken_text_of_a_tool_is_mended_and_the_session_lives_on(tmp_path: Path):
    async with chatting(tmp_path, Tools()) as chat:
        chat.model.then(Reply((Use("odd"),), "tools"), Reply((Say("Odd."),)))
        answer = await chat.say("go")
        result = answer.parts[1]
        assert isinstance(result, ToolResultPart)
        assert result.output == "\ufffd\0"
        assert (await chat.say("on")).text == "You said: on"
        assert await stored(chat, answer.id) == answer


@pytest.mark.parametrize("text", ["nul \0 in it", "half \ud83d of it", "\0", "\udcff" * 3])
async def test_broken_text_of_a_user_is_accepted_and_answered(tmp_path: Path, text: str):
    async with chatting(tmp_path) as chat:
        whole = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
        answer = await chat.say(text)
        assert answer.text == f"You said: {whole}"
        assert (await chat.say("on")).text == "You said: on"
        (_, said), *_ = await chat.host.sessions.read("s")
        assert said.text == whole


async def test_broken_text_of_a_model_is_stored_and_shown(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Say("a\0b "), Say("\ud83d"), Think("\udcff"))))
        answer = await chat.say("go")
        assert answer.parts == (TextPart("a\0b \ufffd"), TextPart("\ufffd", "reasoning"))
        assert await stored(chat, answer.id) == answer


async def test_004_29_a_turn_is_logged_with_its_deltas_and_its_latency(tmp_path: Path):
    async with chatting(tmp_path) as chat:
        chat.model.then(Reply((Say("One "), Say("two."))))
        with capture_logs() as logs:
            await chat.say("go")
        (entry,) = [entry for entry in logs if entry["event"] == "turn"]
        assert (entry["session"], entry["deltas"], entry["outcome"]) == ("s", 3, "end_turn")
        assert entry["log_level"] == "info"
        assert 0 <= entry["first_text_ms"] <= entry["duration_ms"]
