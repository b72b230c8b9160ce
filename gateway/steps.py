"""Turn steps: what a turn with tools has already done, so that a crash does not do it twice.

The model's words and calls are recorded before anything is done about them; then, call by call, the intent to
run its tool, once hooks and people allow it, and the result. A turn that is run again takes recorded steps as
they are. A tool that was about to run and never reported is not run again: the model is told that its outcome
is unknown. A call that did not come so far is made now. Of idempotent tools no intent is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct
from sqlalchemy import select

from gateway.messages import Part, ToolCallPart, ToolResultPart
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write

PUT_STEP = Write("upsert", 35, t.turn_step, "inbox_id step kind idem_key state result", key="inbox_id step")
DROP_STEPS = Write("delete", 36, t.turn_step, "inbox_id", key="inbox_id")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[Part, ...]).decode


class Step(Struct, frozen=True):
    """One recorded step: the parts that a model gave, or the result of a call, empty before there is one."""

    number: int
    kind: str
    key: str
    state: str
    parts: tuple[Part, ...] = ()


class Steps:
    """The recorded steps of turns."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def load(self, inbox_id: str) -> list[Step]:
        """What an earlier attempt recorded, in order."""
        query = select(t.turn_step).where(t.turn_step.c.inbox_id == inbox_id).order_by(t.turn_step.c.step)
        return await self._store.read(
            lambda c: [
                Step(row.step, row.kind, row.idem_key, row.state, _decode(row.result) if row.result else ())
                for row in c.execute(query)
            ]
        )

    async def record(
        self, inbox_id: str, first: int, parts: Sequence[Part], calls: Sequence[ToolCallPart]
    ) -> None:
        """Record a model's parts as step ``first``, and the calls among them behind it."""
        said = (inbox_id, first, "llm", f"{inbox_id}:{first}", "done", _encode(parts).decode())
        called = [
            (PUT_STEP, (inbox_id, number, "tool", key_of(inbox_id, call.tool_call_id), "called", None))
            for number, call in enumerate(calls, first + 1)
        ]
        await self._store.write((PUT_STEP, said), *called)

    async def intend(self, inbox_id: str, number: int, call_id: str) -> None:
        """Record that the tool of a call is about to run."""
        row = (inbox_id, number, "tool", key_of(inbox_id, call_id), "intent", None)
        await self._store.write((PUT_STEP, row))

    async def report(self, inbox_id: str, number: int, result: ToolResultPart) -> None:
        """Record the result of a call."""
        key = key_of(inbox_id, result.tool_call_id)
        row = (inbox_id, number, "tool", key, "done", _encode((result,)).decode())
        await self._store.write((PUT_STEP, row))

    def drop(self, inbox_id: str) -> Op:
        """The write that forgets a finished turn's steps."""
        return DROP_STEPS, (inbox_id,)


def key_of(inbox_id: str, call_id: str) -> str:
    """The idempotency key of a tool call: the same in every attempt."""
    return f"{inbox_id}:{call_id}"
