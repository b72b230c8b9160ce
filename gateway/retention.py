"""Retention: settled inbox and outbox rows are only kept as long as a platform may repeat a message."""

from __future__ import annotations

import asyncio

import structlog
from sqlalchemy import Connection, Table, select

from gateway.inbox import FORGET_INBOX
from gateway.messages import now_ms
from gateway.outbox import FORGET_OUTBOX
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.writes import Write

log = structlog.get_logger("trunkline.retention")

_DAY_MS = 86_400_000
_CHUNK = 500
_SOON, _EVERY = 60.0, 3600.0


class Retention:
    """Removes settled rows that are older than some days, a few at a time, so that nothing waits for it."""

    def __init__(self, store: Store, days: int) -> None:
        self._store = store
        self._days = days

    async def run(self, soon: float = _SOON) -> None:
        """Clean up once an hour until cancelled; first ``soon``, so that it comes about where gateways are
        started anew every now and then."""
        pause = soon
        while True:
            await asyncio.sleep(pause)
            pause = _EVERY
            removed = await self.clean(now_ms())
            if removed:
                log.info("old settled rows were removed", rows=removed)

    async def clean(self, now: int) -> int:
        """Remove what is older than the days before ``now`` (ms). Returns how many rows that was."""
        horizon = now - self._days * _DAY_MS
        removed = 0
        for write, table, column, states in (
            (FORGET_INBOX, t.inbox, "received_at", ("done", "merged")),
            (FORGET_OUTBOX, t.outbox, "sent_at", ("final",)),
        ):
            while ids := await self._old(table, column, states, horizon):
                await self._forget(write, ids)
                removed += len(ids)
        return removed

    async def _old(self, table: Table, column: str, states: tuple[str, ...], horizon: int) -> list[str]:
        query = (
            select(table.c.id)
            .where(table.c.state.in_(states), table.c[column] < horizon)
            .order_by(table.c[column])
            .limit(_CHUNK)
        )

        def read(connection: Connection) -> list[str]:
            return list(connection.execute(query).scalars())

        return await self._store.read(read)

    async def _forget(self, write: Write, ids: list[str]) -> None:
        await self._store.write(*((write, (row_id,)) for row_id in ids))
