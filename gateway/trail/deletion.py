"""Deletion of paths and questions with their message or conversation, in one transaction.

A question about a tool call has the arguments of the call, so it must not outlive the message or the
conversation that led to it. Questions whose answers their owner has still to take are left to it.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from sqlalchemy import Connection, select

from gateway.store import schema as t
from gateway.store.writes import Op, OwnStatement, Write
from gateway.trail.recorder import DROP_SESSION_TRAIL, DROP_WITHDRAWN_TRAIL

DROP_QUESTION = Write("delete", 88, t.question, "id")
_DROP_WITHDRAWN_QUESTIONS = OwnStatement(
    89,
    t.question,
    # The key of a question that its turn needs no longer begins with the id of the message.
    "DELETE FROM question WHERE state <> 'open' AND closed > 0 AND inbox_id = '' AND substr(key, 1, 36) IN "
    "(SELECT id FROM inbox WHERE channel = CAST(?1 AS TEXT) AND account = CAST(?2 AS TEXT) "
    "AND dedup_key = CAST(?3 AS TEXT))",
)


def withdrawn_ops(channel: str, account: str, dedup_key: str) -> tuple[Op, ...]:
    """Return the writes that delete the path and the decided questions of a message that was deleted."""
    name = (channel, account, dedup_key)
    return (DROP_WITHDRAWN_TRAIL, name), (_DROP_WITHDRAWN_QUESTIONS, name)


def session_ops(connection: Connection, session: str, nested: Collection[str]) -> list[Op]:
    """Return the writes that delete the paths and the decided questions of a conversation."""
    q, gone = t.question.c, {session, *nested}
    ended = select(q.id, q.body).where(q.state != "open", q.acknowledged > 0, q.body != "")
    # Not compared by the database: the two have no way in common to read a field of JSON.
    found = [row.id for row in connection.execute(ended) if json.loads(row.body).get("session") in gone]
    return [(DROP_SESSION_TRAIL, (session,)), *((DROP_QUESTION, (question,)) for question in found)]
