"""The path of a message: its recorded steps, completed by what the inbox itself knows of it.

That a message was received and accepted, and into which other one it was merged, is in its row of the inbox
and is not stored a second time. Steps that a kill cut off before their commit are one step ``unrecorded``
before the restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, select

from gateway.contract.channel import Address
from gateway.store import Store
from gateway.store import schema as t
from gateway.trail.steps import UNRECORDED, Step, Value, unpack


class Path(Struct, frozen=True):
    """The steps of a message in the order in which they happened, and the number of rows that were read.

    ``is_known`` is False if the inbox has no such message, any more or at all.
    """

    steps: tuple[Step, ...] = ()
    rows: Mapping[str, int] = {}
    is_known: bool = False


class _Received(Struct):
    """The part of a stored message that the path needs."""

    address: Address
    dedup_key: str
    sent_at: int = 0


_received = msgspec.json.Decoder(_Received).decode


async def read(store: Store, inbox_id: str) -> Path:
    """Read the path of an accepted message, by the id of its row in the inbox."""
    return await store.read(lambda connection: read_path(connection, inbox_id))


def read_path(connection: Connection, inbox_id: str) -> Path:
    """Read the path of an accepted message on a connection."""
    i, rows = t.inbox.c, t.trail.c
    message = connection.execute(select(t.inbox).where(i.id == inbox_id)).first()
    query = select(rows.steps).where(rows.inbox_id == inbox_id).order_by(rows.n)
    stored: Sequence[str] = connection.execute(query).scalars().all()
    found = {"inbox": 0 if message is None else 1, "trail": len(stored)}
    recorded = [step for text in stored for step in unpack(text)]
    if message is None:
        return Path(tuple(complete(recorded)), found)
    inbound = _received(message.payload)
    arrival = {
        "channel": message.channel,
        "account": message.account,
        "chat": inbound.address.chat,
        "platform_id": inbound.address.reply_to or inbound.dedup_key,
    }
    at: int = message.received_at
    steps = [
        Step(at, 0, "received", message.channel, detail=arrival),
        Step(at, 0, "accepted", detail={"session": message.session, "trace": message.answer_id}),
        *complete(recorded),
    ]
    if message.merged_into is not None:
        steps.append(_merged(connection, message.merged_into, message.original, at))
    return Path(tuple(steps), found, is_known=True)


def _merged(connection: Connection, into: str, original: str, at: int) -> Step:
    """Return the step that hands a message over to another one, which was accepted later."""
    i = t.inbox.c
    other = connection.execute(select(i.received_at, i.original).where(i.id == into)).first()
    at = at if other is None else max(at, other.received_at)
    if other is not None and other.original == original:
        return Step(at, 0, "superseded", detail={"by": into})
    return Step(at, 0, "merged", detail={"into": into})


def complete(recorded: Iterable[Step]) -> list[Step]:
    """Return recorded steps with one step for each placement, and with those for what was not recorded.

    An intent to place a page, and what became of it, are one placement. A restart is preceded by an
    ``unrecorded`` step, unless the gateway ended in order or the attempt is a replay.
    """
    steps: list[Step] = []
    decided: Mapping[str, Value] = {}
    for step in recorded:
        if steps and (steps[-1].kind, steps[-1].state) == ("waited", "waiting"):
            steps[-1] = _ended(steps[-1], step.at)
        if step.kind == "final":
            # Decided before the answer is placed; after a crash another process settles the message.
            if step.state == "running":
                decided = step.detail
                continue
            step = replace(step, detail={**decided, **step.detail})
        elif step.kind == "placement" and step.state == "ok":
            step = _placed(steps, step)
        elif step.kind == "restart" and step.state == "ok":
            steps += _before_restart(steps, step)
        elif step.state == "unrecorded" and _has_ended(steps):
            continue
        steps.append(step)
    return steps


def _ended(wait: Step, next_at: int) -> Step:
    """Return a wait whose end was not recorded: it ended with its time, or before the next step."""
    until = wait.detail.get("until")
    ended = min(until, next_at) if isinstance(until, int) else next_at
    return replace(wait, state="ok", took=max(0, ended - wait.at) * 1000)


def _placed(steps: list[Step], placed: Step) -> Step:
    """Return a placement with what its intent has, which is removed."""
    for at, step in enumerate(reversed(steps), 1):
        if step.kind == "restart":
            break
        if step.state == "running" and step.detail.get("nonce") == placed.detail.get("nonce"):
            # After attempts that failed, the placement is the last of several steps.
            tried = any(other.kind == "placement" and "code" in other.detail for other in steps[-at:])
            begun = placed if tried else step
            del steps[-at]
            took = max(placed.took, placed.at * 1000 + placed.took - begun.at * 1000)
            return replace(placed, at=begun.at, took=took, detail={**step.detail, **placed.detail})
    return placed


def _before_restart(steps: Sequence[Step], restart: Step) -> list[Step]:
    if _has_ended(steps):
        return []
    attempt = restart.detail.get("attempt", 1)
    # The first attempt had not begun when the gateway ended: the message was only waiting.
    if isinstance(attempt, int) and attempt < 2 and not steps:
        return []
    return [Step(restart.at, 0, "restart", UNRECORDED, "unrecorded")]


def _has_ended(steps: Sequence[Step]) -> bool:
    """Return whether the last attempt ended with the message, or in order with the gateway."""
    last = steps[-1] if steps else None
    return last is not None and (last.kind == "final" or (last.kind, last.state) == ("restart", "waiting"))
