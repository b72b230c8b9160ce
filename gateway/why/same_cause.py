"""Messages without an answer for the same cause: their number, and which of them can be answered again."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from sqlalchemy import Connection, select

from gateway.contract.messages import ErrorPart, Metadata, decode_part
from gateway.store import schema as t
from gateway.why.causes import stored_failures, the_cause
from gateway.why.explanation import SameCause, read_steps
from gateway.why.finder import first_id_since
from gateway.why.records import Records, read_records

SEARCHED_MS = 7 * 86_400_000
"""Time before now in which messages with the same cause are searched."""
_MOST_SEARCHED = 20_000
"""Failed messages of that time, the newest ones, that are compared with a cause."""
MOST_COUNTED = 1_000
"""Messages that are counted and replayed for one cause."""
_metadata = msgspec.json.Decoder(Metadata).decode


def count_same_cause(connection: Connection, key: str, now: int) -> SameCause | None:
    """Count the messages without an answer for a cause; None if there are none."""
    found = list(find_same_cause(connection, key, now))
    if not found:
        return None
    return SameCause(key, len(found), min(one.received_at for one in found))


def find_same_cause(connection: Connection, key: str, now: int) -> Iterator[Records]:
    """Yield the failed messages with a cause, the newest first, at most ``MOST_COUNTED``."""
    provider, code, _ = split_key(key)
    i, m, p = t.inbox.c, t.messages.c, t.parts.c
    # By the ids, which begin with the time: no other index leads to the failed messages.
    failed = (
        select(i.id, i.state, p.content, m.metadata)
        .join(t.messages, m.id == i.answer_id)
        .join(t.parts, p.message_id == m.id)
        .where(i.id >= first_id_since(now - SEARCHED_MS), i.state.in_(("done", "dead")), p.type == "error")
        .where(m.undone.is_(None))
        .order_by(i.id.desc())
        .limit(_MOST_SEARCHED)
    )
    counted: set[str] = set()
    for message_id, state, content, metadata in connection.execute(failed).all():
        if message_id in counted or len(counted) >= MOST_COUNTED:
            continue
        error, used = decode_part(content), _metadata(metadata)
        if not isinstance(error, ErrorPart):
            continue
        cause = the_cause(stored_failures(error, used.provider or "", used.model or ""))
        # The stored answer does not know the alias of the key: only for those that may fit the trail is read.
        fits = cause is not None and (cause.provider or "-", cause.code) == (provider, code)
        # The notice of a dead letter does not name its failure.
        if not (fits or state == "dead"):
            continue
        records = read_records(connection, message_id)
        if records is not None and cause_key(connection, records) == key:
            counted.add(message_id)
            yield records


def cause_key(connection: Connection, records: Records) -> str | None:
    """Return the key of the cause for which a message has no answer; None if it has one."""
    _, failures, _ = read_steps(connection, records)
    cause = the_cause(failures)
    return None if cause is None else cause.cause_key


def split_key(key: str) -> tuple[str, str, str]:
    """Return provider, code and alias of a key; empty texts for what it lacks."""
    provider, _, rest = key.partition(":")
    code, _, alias = rest.partition(":")
    return provider, code, alias
