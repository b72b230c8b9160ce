"""What a turn with tools has done is recorded, and taken over by the next attempt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from gateway import (
    AgentEvent,
    ContentEvent,
    ErrorPart,
    Intercept,
    LoopRun,
    Message,
    Plugin,
    PluginError,
    TextPart,
    Tool,
    ToolCall,
    ToolCallPart,
    ToolContext,
    ToolResultPart,
    TurnEndEvent,
    tool_from,
)
from gateway.pipeline.tools import OUTCOME_UNKNOWN
from gateway.session.frames import ApprovalAsked
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.inbox import Entry
from gateway.store.steps import DROP_STEPS, Step, Steps, make_key
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.fake_models.script import Reply, Say, Use, UseTogether

CALL = ToolCallPart("c1", "charge", {"amount": 5})
OTHER = ToolCallPart("c2", "charge", {"amount": 7})
RESULT = ToolResultPart("c1", "charged 5")


class Charging(Plugin):
    """Charges amounts; with the one of ``stuck_at`` it never comes to an end."""

    name = "charging"

    def __init__(self, *, idempotent: bool = False, stuck_at: int | None = None) -> None:
        self.charged: list[tuple[int, str]] = []

        async def charge(amount: int, context: ToolContext) -> str:
            """Charge an amount."""
            self.charged.append((amount, context.key))
            if amount == stuck_at:
                await asyncio.Event().wait()
            return f"charged {amount}"

        self._tools = [tool_from(charge, idempotent=idempotent)]

    def tools(self) -> Sequence[Tool]:
        return self._tools


async def recorded(chat: Chat) -> int:
    """How many steps are recorded."""
    return len(await chat.gateway.parts.store.read(lambda c: c.execute(select(t.turn_step)).all()))


async def cut_off_at(data_dir: Path, amount: int, *, idempotent: bool = False) -> tuple[str, Charging]:
    """A gateway that ends while one of two calls runs, of 5 and of 7. Returns the answer's id."""
    plugin = Charging(idempotent=idempotent, stuck_at=amount)
    async with chatting(data_dir, plugin, limits={"drain_seconds": 0}) as chat:
        calls = UseTogether((Use("charge", '{"amount": 5}', "c1"), Use("charge", '{"amount": 7}', "c2")))
        chat.model.then(Reply((Say("I charge."), calls), "tools"))
        answer_id = await chat.accept("charge me")
        while not plugin.charged or plugin.charged[-1][0] != amount:
            await asyncio.sleep(0)
    return answer_id, plugin


def results(parts: Sequence[Any]) -> list[tuple[str, bool]]:
    """The outputs of the tools, and which are errors."""
    return [(part.output, part.is_error) for part in parts if isinstance(part, ToolResultPart)]


async def test_a_tool_whose_result_is_known_is_not_run_again_and_one_that_had_begun_is_reported(
    tmp_path: Path,
) -> None:
    answer_id, _ = await cut_off_at(tmp_path, 7)
    plugin = Charging()
    async with chatting(tmp_path, plugin) as chat:
        chat.model.then(Reply((Say("Done, perhaps."),)))
        answer = await chat.answer(answer_id)
        assert await recorded(chat) == 0
        assert [type(part) for part in chat.model.calls[0].messages[-1].parts][:3] == [
            TextPart,
            ToolCallPart,
            ToolCallPart,
        ]
    assert plugin.charged == []
    assert results(answer.parts) == [("charged 5", False), (OUTCOME_UNKNOWN, True)]
    assert answer.text == "I charge.\n\nDone, perhaps."


async def test_a_call_that_was_not_reached_is_made_by_the_next_attempt(tmp_path: Path) -> None:
    answer_id, _ = await cut_off_at(tmp_path, 5)
    plugin = Charging()
    async with chatting(tmp_path, plugin) as chat:
        answer = await chat.answer(answer_id)
    assert [amount for amount, _ in plugin.charged] == [7]
    assert results(answer.parts) == [(OUTCOME_UNKNOWN, True), ("charged 7", False)]


async def test_a_call_that_was_not_allowed_yet_waits_for_the_same_question(tmp_path: Path) -> None:
    asks: dict[str, Any] = {"permissions": {"charge": "ask"}, "limits": {"drain_seconds": 0}}
    async with chatting(tmp_path, Charging(), **asks) as chat:
        chat.model.then(Reply((Use("charge", '{"amount": 5}'),), "tools"))
        answer_id = await chat.accept("charge me")
        watcher = await chat.watch()
        before = await watcher.until(lambda frame: isinstance(frame, ApprovalAsked))
    plugin = Charging()
    async with chatting(tmp_path, plugin, **asks) as chat:
        watcher = await chat.watch()
        asked = await chat.decide("once")
        assert asked.approval_id == before.approval_id
        assert plugin.charged == []
        answer = await chat.answer(answer_id)
    assert [amount for amount, _ in plugin.charged] == [5]
    assert results(answer.parts) == [("charged 5", False)]


async def test_a_tool_that_may_run_twice_is_run_again_with_the_same_key(tmp_path: Path) -> None:
    answer_id, before = await cut_off_at(tmp_path, 7, idempotent=True)
    after = Charging(idempotent=True)
    async with chatting(tmp_path, after) as chat:
        answer = await chat.answer(answer_id)
    assert after.charged == before.charged[1:]
    assert results(answer.parts) == [("charged 5", False), ("charged 7", False)]


async def test_a_loop_of_a_plugin_takes_over_what_was_done_before_a_crash(tmp_path: Path) -> None:
    """A loop that always makes the same two calls, and a gateway that ends in the second."""
    given: list[Message] = []

    class Loop:
        name = "own"

        async def run(self, run: LoopRun) -> AsyncGenerator[AgentEvent]:
            given.append(run.messages[-1])
            for number, amount in (("c1", 5), ("c2", 7)):
                output = await run.call_tool(ToolCall(number, "charge", {"amount": amount}))
                yield ContentEvent(f"{output.content}.")
                yield TurnEndEvent()

    before, after = Charging(stuck_at=7), Charging()
    before.agent_loop = after.agent_loop = Loop()
    async with chatting(tmp_path, before, limits={"drain_seconds": 0}) as chat:
        answer_id = await chat.accept("charge me")
        while len(before.charged) < 2:
            await asyncio.sleep(0)
    async with chatting(tmp_path, after) as chat:
        answer = await chat.answer(answer_id)
    assert after.charged == []
    assert [message.role for message in given] == ["user", "assistant"]
    assert results(given[1].parts) == results(answer.parts) == [("charged 5", False), (OUTCOME_UNKNOWN, True)]
    assert answer.text == f"charged 5.\n\n{OUTCOME_UNKNOWN}."


async def test_calls_with_the_same_id_in_one_turn_are_two_calls(tmp_path: Path) -> None:
    """As some model servers renumber them in each reply."""
    plugin = Charging()
    async with chatting(tmp_path, plugin) as chat:
        for amount in (5, 7):
            chat.model.then(Reply((Use("charge", f'{{"amount": {amount}}}', "call_0"),), "tools"))
        answer = await chat.say("charge me")
    assert [amount for amount, _ in plugin.charged] == [5, 7]
    assert len({key for _, key in plugin.charged}) == 2
    assert answer.metadata.stop_reason == "end_turn"
    calls = [part.tool_call_id for part in answer.parts if isinstance(part, ToolCallPart)]
    assert calls == [part.tool_call_id for part in answer.parts if isinstance(part, ToolResultPart)]
    assert calls[0] == "call_0"
    assert len(set(calls)) == 2


async def test_nothing_is_left_of_a_turn_that_ended(tmp_path: Path) -> None:
    async with chatting(tmp_path, Charging()) as chat:
        chat.model.then(Reply((Use("charge", '{"amount": 5}'),), "tools"))
        await chat.say("charge me")
        assert await recorded(chat) == 0


class Closed(Plugin):
    """Answers everything itself."""

    name = "closed"

    async def transform_user_input(self, text: str, ctx: Any) -> Intercept:
        return Intercept("closed")


class Failing(Plugin):
    """Fails before a turn comes to its recorded steps."""

    name = "failing"

    async def transform_system_prompt(self, prompt: str, ctx: Any) -> str:
        raise PluginError("no prompt today")


@pytest.mark.parametrize("plugin", [Closed(), Failing()], ids=["intercepted", "failed"])
async def test_nothing_is_left_of_a_turn_whose_next_attempt_ends_before_its_steps(
    tmp_path: Path, plugin: Plugin
) -> None:
    answer_id, _ = await cut_off_at(tmp_path, 5)
    async with chatting(tmp_path, plugin) as chat:
        await chat.answer(answer_id)
        assert await recorded(chat) == 0


async def test_a_repeated_turn_that_fails_before_its_steps_shows_them(tmp_path: Path) -> None:
    answer_id, _ = await cut_off_at(tmp_path, 7)
    async with chatting(tmp_path, Failing()) as chat:
        answer = await chat.answer(answer_id)
    assert results(answer.parts) == [("charged 5", False), (OUTCOME_UNKNOWN, True)]
    assert isinstance(answer.parts[-1], ErrorPart)


async def test_a_repeated_turn_that_is_stopped_before_its_steps_shows_them(tmp_path: Path) -> None:
    class Slow(Plugin):
        name = "slow"
        begun = asyncio.Event()

        async def transform_system_prompt(self, prompt: str, ctx: Any) -> str:
            self.begun.set()
            return await asyncio.get_running_loop().create_future()

    answer_id, _ = await cut_off_at(tmp_path, 7)
    slow = Slow()
    async with chatting(tmp_path, slow) as chat:
        await slow.begun.wait()
        assert await chat.host.abort("s")
        answer = await chat.answer(answer_id)
    assert results(answer.parts) == [("charged 5", False), (OUTCOME_UNKNOWN, True)]
    assert answer.metadata.stop_reason == "cancelled"


async def test_a_turn_that_ran_a_tool_is_not_merged_into_a_backlog(tmp_path: Path) -> None:
    plugin = Charging(stuck_at=7)
    async with chatting(tmp_path, plugin, limits={"drain_seconds": 0}) as chat:
        calls = UseTogether((Use("charge", '{"amount": 5}', "c1"), Use("charge", '{"amount": 7}', "c2")))
        chat.model.then(Reply((calls,), "tools"))
        charged = await chat.accept("charge me")
        while len(plugin.charged) < 2:
            await asyncio.sleep(0)
        await chat.accept("and")
        last = await chat.accept("then?")
        aged = update(t.inbox).values(received_at=t.inbox.c.received_at - 3_600_000)
        await chat.gateway.parts.store.read(lambda c: (c.execute(aged), c.commit()))
    async with chatting(tmp_path, Charging()) as chat:
        first = await chat.answer(charged)
        await chat.answer(last)
        assert results(first.parts) == [("charged 5", False), (OUTCOME_UNKNOWN, True)]
        assert [message.text for message in chat.model.calls[-1].messages[-2:]] == ["and", "then?"]
        assert await recorded(chat) == 0


@pytest.fixture
async def accepted(store: Store) -> str:
    """The id of an accepted message."""
    entry = Entry.of("test", written("hi"), 1, attempts=1)
    await store.write(entry.accept())
    return entry.id


async def test_steps_come_back_in_order_with_how_far_they_came(store: Store, accepted: str) -> None:
    steps = Steps(store)
    third = ToolCallPart("c3", "charge", {"amount": 9})
    await steps.record(accepted, 0, [TextPart("I charge."), CALL, OTHER, third], [CALL, OTHER, third])
    await steps.intend(accepted, 1, "c1")
    await steps.report(accepted, 1, RESULT)
    await steps.intend(accepted, 2, "c2")
    assert await steps.load(accepted) == [
        Step(0, "llm", f"{accepted}:0", "done", (TextPart("I charge."), CALL, OTHER, third)),
        Step(1, "tool", make_key(accepted, "c1"), "done", (RESULT,)),
        Step(2, "tool", make_key(accepted, "c2"), "intent", ()),
        Step(3, "tool", make_key(accepted, "c3"), "called", ()),
    ]
    await store.write((DROP_STEPS, (accepted,)))
    assert await steps.load(accepted) == []
