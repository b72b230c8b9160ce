"""Turn steps: the record of a turn with tools, so that a crash does not repeat its effects.

A model's text and calls are recorded before they take effect; then, for each call, the intent to run its
tool, once hooks and users allow it, and the result. A repeated turn takes recorded steps as they are. A tool
with an intent but no result is not run again: the model learns that its outcome is unknown. A call without an
intent is made now. No intent is recorded for idempotent tools.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from sqlalchemy import select

from gateway.contract.messages import Part, ToolCallPart, ToolResultPart
from gateway.store import schema as t
from gateway.store.database import Store
from gateway.store.writes import Op, Write

PUT_STEP = Write("upsert", 35, t.turn_step, "inbox_id step kind idem_key state result", key="inbox_id step")
DROP_STEPS = Write("delete", 36, t.turn_step, "inbox_id", key="inbox_id")
"""Removes the steps of a finished turn."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[Part, ...]).decode


class Step(Struct, frozen=True):
    """A recorded step: the parts of a model's output, or the result of a call, empty until there is one."""

    number: int
    kind: str
    key: str
    state: str
    parts: tuple[Part, ...] = ()


class Steps:
    """Reader and writer of the recorded steps of turns."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(self, inbox_id: str) -> list[Step]:
        """Read the steps that an earlier attempt recorded, in order."""
        query = select(t.turn_step).where(t.turn_step.c.inbox_id == inbox_id).order_by(t.turn_step.c.step)
        return await self._store.read(
            lambda c: [
                Step(row.step, row.kind, row.idem_key, row.state, _decode(row.result) if row.result else ())
                for row in c.execute(query)
            ]
        )

    async def record(
        self, inbox_id: str, first: int, parts: Sequence[Part], calls: Sequence[ToolCallPart], *also: Op
    ) -> None:
        """Record a model's parts as step ``first``, and its tool calls as the steps that follow.

        ``also`` are further writes of the same transaction.
        """
        # One commit for output and calls: a repeated turn must not find the one without the other.
        row = (inbox_id, first, "llm", f"{inbox_id}:{first}", "done", _encode(parts).decode())
        called = [
            (PUT_STEP, (inbox_id, number, "tool", make_key(inbox_id, call.tool_call_id), "called", None))
            for number, call in enumerate(calls, first + 1)
        ]
        await self._store.write((PUT_STEP, row), *called, *also)

    async def intend(self, inbox_id: str, number: int, call_id: str, *also: Op) -> None:
        """Record that the tool of a call is about to run, together with other writes."""
        # ``also`` is the use of a stored decision: it counts once, even if the turn is repeated.
        row = (inbox_id, number, "tool", make_key(inbox_id, call_id), "intent", None)
        await self._store.write((PUT_STEP, row), *also)

    async def report(self, inbox_id: str, number: int, result: ToolResultPart, *also: Op) -> None:
        """Record the result of a call, together with other writes."""
        key = make_key(inbox_id, result.tool_call_id)
        row = (inbox_id, number, "tool", key, "done", _encode((result,)).decode())
        await self._store.write((PUT_STEP, row), *also)


def make_key(inbox_id: str, call_id: str) -> str:
    """Return the idempotency key of a tool call: the same in every attempt."""
    return f"{inbox_id}:{call_id}"
