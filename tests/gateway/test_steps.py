"""What a turn with tools has done is recorded, and taken over by the next attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway import (
    Plugin,
    TextPart,
    Tool,
    ToolCallPart,
    ToolContext,
    ToolResultPart,
    ToolResultStart,
    tool_from,
)
from gateway.calls import OUTCOME_UNKNOWN
from gateway.inbox import Entry
from gateway.steps import Step, Steps, key_of
from gateway.store import Store
from gateway.store import schema as t
from gateway.testing.chat import Chat, chatting, written
from gateway.testing.script import Reply, Say, Use, UseTogether

CALL = ToolCallPart("c1", "charge", {"amount": 5})
OTHER = ToolCallPart("c2", "charge", {"amount": 7})
RESULT = ToolResultPart("c1", "charged 5")


class Charging(Plugin):
    """Charges twice in a turn; the second time it waits, if it is told to."""

    name = "charging"

    def __init__(self, *, idempotent: bool = False, waits: bool = False) -> None:
        self.charged: list[tuple[int, str]] = []
        self._waits = waits

        async def charge(amount: int, context: ToolContext) -> str:
            """Charge an amount."""
            self.charged.append((amount, context.key))
            if self._waits and amount == 7:
                await asyncio.Event().wait()
            return f"charged {amount}"

        self._tools = [tool_from(charge, idempotent=idempotent)]

    def tools(self) -> Sequence[Tool]:
        return self._tools


async def recorded(chat: Chat) -> int:
    """How many steps are recorded."""
    return len(await chat.gateway.store.read(lambda c: c.execute(select(t.turn_step)).all()))


async def cut_off_in_the_second_call(data_dir: Path, plugin: Charging) -> str:
    """A gateway that ends while the second of two calls runs. Returns the answer's id."""
    async with chatting(data_dir, plugin, limits={"drain_seconds": 0}) as chat:
        await chat.say("hi")
        watcher = await chat.watch(after=10**9)
        calls = UseTogether((Use("charge", '{"amount": 5}', "c1"), Use("charge", '{"amount": 7}', "c2")))
        chat.model.then(Reply((Say("I charge."), calls), "tools"))
        answer_id = await chat.accept("charge me")
        await watcher.until(lambda f: isinstance(f, ToolResultStart) and f.tool_call_id == "c2")
        while len(plugin.charged) < 2:
            await asyncio.sleep(0)
    return answer_id


def results(parts: Sequence[Any]) -> list[tuple[str, bool]]:
    """The outputs of the tools, and which are errors."""
    return [(part.output, part.is_error) for part in parts if isinstance(part, ToolResultPart)]


async def test_a_tool_whose_result_is_known_is_not_run_again_and_one_that_had_begun_is_told(
    tmp_path: Path,
) -> None:
    answer_id = await cut_off_in_the_second_call(tmp_path, Charging(waits=True))
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


async def test_a_tool_that_may_run_twice_is_run_again_with_the_same_key(tmp_path: Path) -> None:
    before, after = Charging(idempotent=True, waits=True), Charging(idempotent=True)
    answer_id = await cut_off_in_the_second_call(tmp_path, before)
    async with chatting(tmp_path, after) as chat:
        answer = await chat.answer(answer_id)
    assert after.charged == before.charged[1:]
    assert results(answer.parts) == [("charged 5", False), ("charged 7", False)]


async def test_nothing_is_left_of_a_turn_that_ended(tmp_path: Path) -> None:
    async with chatting(tmp_path, Charging()) as chat:
        chat.model.then(Reply((Use("charge", '{"amount": 5}'),), "tools"))
        await chat.say("charge me")
        assert await recorded(chat) == 0


@pytest.fixture
async def accepted(store: Store) -> str:
    """The id of an accepted message."""
    entry = Entry.of("test", written("hi"), 1, 1)
    await store.write(entry.accept())
    return entry.id


async def test_steps_come_back_in_order_with_their_results(store: Store, accepted: str) -> None:
    steps = Steps(store)
    await steps.intend(accepted, 0, [TextPart("I charge."), CALL, OTHER], [CALL, OTHER])
    await steps.report(accepted, 1, RESULT)
    assert await steps.load(accepted) == [
        Step(0, "llm", f"{accepted}:0", "done", (TextPart("I charge."), CALL, OTHER)),
        Step(1, "tool", key_of(accepted, "c1"), "done", (RESULT,)),
        Step(2, "tool", key_of(accepted, "c2"), "intent", ()),
    ]
    await store.write(steps.drop(accepted))
    assert await steps.load(accepted) == []
