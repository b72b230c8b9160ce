"""The audit log: who decided what, committed in the transaction of the decision where there is one.

Actions have dotted names: ``approval.once``, ``question.answer``, ``pair.approve``, ``console.login``.
A change of a file is in no transaction: its row is written before it, and ``settings.change.done`` or
``settings.change.failed`` after it. A row without either says that the gateway ended between the two, so that
the file may have the change.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from msgspec import Struct
from sqlalchemy import Connection, select

from gateway.contract.errors import TrunklineError
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.writes import audit_op

PAGE = 100
_LONGEST_DETAIL = 2000


class Recorded(Struct):
    """An action that is about to be taken. ``outcome`` is the detail of its row after that."""

    outcome: str = ""


@asynccontextmanager
async def recorded(
    store: Store, actor: str, action: str, subject: str, detail: str = ""
) -> AsyncGenerator[Recorded]:
    """Write an action before the block takes it, and after it whether it did.

    Without a durable row nothing is changed. ``detail`` must have no secret.
    """
    taken = Recorded()
    await store.write(audit_op(actor, action, subject, detail[:_LONGEST_DETAIL]))
    try:
        yield taken
    except TrunklineError as error:
        await store.write(audit_op(actor, f"{action}.failed", subject, str(error)[:_LONGEST_DETAIL]))
        raise
    await store.write(audit_op(actor, f"{action}.done", subject, taken.outcome[:_LONGEST_DETAIL]))


class AuditRow(Struct, frozen=True):
    """An action: when (milliseconds), by whom, what, on what, and its details ("" without any)."""

    id: str
    at: int
    actor: str
    action: str
    subject: str
    detail: str


class AuditPage(Struct, frozen=True):
    """Actions, the newest first. ``next`` is the cursor of the next page, null on the last one."""

    rows: list[AuditRow]
    next: str | None


class AuditLog:
    """The audit log of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def record(self, actor: str, action: str, subject: str, detail: str | None = None) -> None:
        """Write an action; durable on return. Use ``audit_op`` where something is stored with it."""
        await self._store.write(audit_op(actor, action, subject, detail))

    async def page(
        self,
        cursor: str | None = None,
        *,
        actor: str | None = None,
        action: str | None = None,
        most: int = PAGE,
    ) -> AuditPage:
        """Return the actions before a cursor. ``action`` is a whole name, or its beginning up to a dot."""
        rows = await self._store.read(lambda c: _read(c, cursor, actor, action, most + 1))
        more = len(rows) > most
        return AuditPage(rows[:most], rows[most - 1].id if more else None)


def _read(
    connection: Connection, cursor: str | None, actor: str | None, action: str | None, most: int
) -> list[AuditRow]:
    a = t.audit.c
    # Ids begin with the time, so the primary key has the order (within a millisecond there is none).
    query = select(a.id, a.at, a.actor, a.action, a.subject, a.detail).order_by(a.id.desc()).limit(most)
    if cursor is not None:
        query = query.where(a.id < cursor)
    if actor is not None:
        query = query.where(a.actor == actor)
    if action is not None:
        query = query.where((a.action == action) | a.action.startswith(f"{action}.", autoescape=True))
    return [
        AuditRow(row.id, row.at, row.actor, row.action, row.subject, row.detail or "")
        for row in connection.execute(query)
    ]
