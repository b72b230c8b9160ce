"""Messages without an answer for the same cause: their number, and which of them can be answered again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, select

from gateway.contract.messages import ErrorPart, Metadata, decode_part
from gateway.store import schema as t
from gateway.trail import Step, unpack
from gateway.why.causes import Failure, dead_failures, stored_failures, the_cause
from gateway.why.explanation import SameCause
from gateway.why.finder import first_id_since
from gateway.why.path import failures_in
from gateway.why.records import Records, read_records

SEARCHED_MS = 7 * 86_400_000
"""Time before now in which messages with the same cause are searched."""
_MOST_SEARCHED = 20_000
"""Failed messages of that time, the newest ones, that are compared with a cause."""
MOST_COUNTED = 1_000
"""Messages that are counted and replayed for one cause."""
_AT_ONCE = 500
"""Messages whose trails are read by one query."""
_metadata = msgspec.json.Decoder(Metadata).decode


class FailedMessage(NamedTuple):
    """A message without an answer. ``failures`` are those that its answer's error names."""

    id: str
    received_at: int
    failures: list[Failure]


def count_same_cause(connection: Connection, key: str, now: int) -> SameCause | None:
    """Count the messages without an answer for a cause, ``MOST_COUNTED`` at most; None if there are none."""
    found = _find(connection, key, now)
    if not found:
        return None
    return SameCause(key, len(found), min(one.received_at for one in found))


def find_same_cause(connection: Connection, key: str, now: int) -> list[Records]:
    """Return the failed messages with a cause, the newest first, at most ``MOST_COUNTED``."""
    records = [read_records(connection, one.id) for one in _find(connection, key, now)]
    return [one for one in records if one is not None]


def _find(connection: Connection, key: str, now: int) -> list[FailedMessage]:
    code = key.partition(":")[2].partition(":")[0]
    candidates = [
        one
        for one in _read_failed(connection, now)
        # The stored answer does not know the alias of the key: only of those that may fit the trail is read.
        if any(failure.code == code for failure in one.failures)
    ]
    found: list[FailedMessage] = []
    for start in range(0, len(candidates), _AT_ONCE):
        chunk = candidates[start : start + _AT_ONCE]
        recorded = _read_trails(connection, [one.id for one in chunk])
        for one in chunk:
            cause = the_cause(failures_in(recorded.get(one.id, ())) or one.failures)
            if cause is not None and _is_same(cause, key):
                found.append(one)
        if len(found) >= MOST_COUNTED:
            break
    return found[:MOST_COUNTED]


def _is_same(cause: Failure, key: str) -> bool:
    """Return whether a cause has a key; one without a trail does not know the name of its API key."""
    if cause.key and not key.endswith(":-"):
        return cause.cause_key == key
    return cause.cause_key.rpartition(":")[0] == key.rpartition(":")[0]


def _read_failed(connection: Connection, now: int) -> list[FailedMessage]:
    """Read the messages without an answer of the searched time, the newest first."""
    i, m, p, d = t.inbox.c, t.messages.c, t.parts.c, t.dead_letter.c
    # By the ids, which begin with the time: no other index leads to the failed messages.
    query = (
        select(i.id, i.received_at, p.content, m.metadata, d.reason)
        .join(t.messages, m.id == i.answer_id)
        .join(t.parts, p.message_id == m.id)
        .join(t.dead_letter, d.inbox_id == i.id, isouter=True)
        .where(i.id >= first_id_since(now - SEARCHED_MS), i.state.in_(("done", "dead")), p.type == "error")
        .where(m.undone.is_(None))
        .order_by(i.id.desc())
        .limit(_MOST_SEARCHED)
    )
    found: dict[str, FailedMessage] = {}
    for message_id, at, content, metadata, reason in connection.execute(query):
        error, used = decode_part(content), _metadata(metadata)
        if message_id not in found and isinstance(error, ErrorPart):
            failures = (
                stored_failures(error, used.provider or "", used.model or "")
                if reason is None
                else dead_failures(reason)
            )
            found[message_id] = FailedMessage(message_id, at, failures)
    return list(found.values())


def _read_trails(connection: Connection, ids: Sequence[str]) -> dict[str, list[Step]]:
    rows = t.trail.c
    query = select(rows.inbox_id, rows.steps).where(rows.inbox_id.in_(ids)).order_by(rows.inbox_id, rows.n)
    found: dict[str, list[Step]] = {}
    for message_id, steps in connection.execute(query):
        found.setdefault(message_id, []).extend(unpack(steps))
    return found
