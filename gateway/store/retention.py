"""Retention: removal of settled rows of inbox and outbox, of trails, and of old rooms and uploads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from sqlalchemy import Table, select

from gateway.contract.errors import StoreError
from gateway.store import schema as t
from gateway.store.database import Store
from gateway.store.inbox import FORGET_INBOX
from gateway.store.outbox import FORGET_OUTBOX
from gateway.store.writes import Write
from gateway.trail.recorder import DROP_TRAIL
from gateway.trail.refused import FORGET_REFUSED

log = structlog.get_logger("trunkline.retention")

FORGET_UPLOAD = Write("delete", 4, t.upload, "id")
FORGET_ROOM = Write("delete", 74, t.room, "id")
FORGET_FEEDBACK = Write("delete", 76, t.feedback, "id")
FORGET_QUESTION = Write("delete", 90, t.question, "id")
FORGET_ACTION = Write("delete", 93, t.plugin_action, "id")

_DAY_MS = 86_400_000
_ROOM_DAYS = 365
"""Days for which a room is listed after its last message, and feedback and ended questions are kept."""
_MAX_ROWS = 500
_FIRST_SECONDS, _INTERVAL_SECONDS = 60.0, 3600.0


class Retention:
    """Cleaner that removes settled rows after some days, in small batches that delay no other write.

    Trails, and the ids of refused messages, are removed after other numbers of days.
    """

    def __init__(self, store: Store, days: int, trail_days: int = 30) -> None:
        self._store = store
        self._days = days
        self._trail_days = trail_days

    async def run(self, clock: Callable[[], Awaitable[int]], first: float = _FIRST_SECONDS) -> None:
        """Clean up after ``first`` seconds, then once an hour, until cancelled. ``clock`` returns ms."""
        # The first run comes early: a gateway that restarts more than once an hour must clean up, too.
        pause = first
        while True:
            await asyncio.sleep(pause)
            pause = _INTERVAL_SECONDS
            try:
                if removed := await self.clean(await clock()):
                    log.info("removed old settled rows", rows=removed)
            except StoreError as error:
                # Such as a query that took too long: the gateway must not end because of old rows.
                log.warning("could not remove old settled rows; tried again in an hour", reason=str(error))

    async def clean(self, now: int) -> int:
        """Remove rows older than the retention period before ``now`` (ms). Return their number."""
        horizon, rooms, trails = (now - n * _DAY_MS for n in (self._days, _ROOM_DAYS, self._trail_days))
        removed = await self._clean_trails(trails)
        # Rows of dead letters are kept: the operator can still replay them.
        for write, table, column, states, before in (
            (FORGET_INBOX, t.inbox, "received_at", ("done", "merged"), horizon),
            (FORGET_OUTBOX, t.outbox, "sent_at", ("final", "removed"), horizon),
            (FORGET_REFUSED, t.refused, "at", (), trails),
            (FORGET_ACTION, t.plugin_action, "at", (), horizon),
            (FORGET_ROOM, t.room, "seen_at", (), rooms),
            (FORGET_FEEDBACK, t.feedback, "at", (), rooms),
            (FORGET_UPLOAD, t.upload, "expires_at", (), now),
            (FORGET_QUESTION, t.question, "settled_at", ("answered", "expired", "withdrawn"), rooms),
        ):
            while ids := await self._find_expired(table, column, states, before):
                await self._delete(write, ids)
                removed += len(ids)
        return removed

    async def _clean_trails(self, horizon: int) -> int:
        """Remove the trails of messages older than the horizon (ms)."""
        column = t.trail.c.inbox_id
        query = select(column).where(column < _first_id(horizon)).distinct().limit(_MAX_ROWS)
        removed = 0
        while ids := await self._store.read(lambda c: list(c.execute(query).scalars())):
            await self._delete(DROP_TRAIL, ids)
            removed += len(ids)
        return removed

    async def _find_expired(
        self, table: Table, column: str, states: tuple[str, ...], horizon: int
    ) -> list[str]:
        query = select(table.c.id).where(table.c[column] < horizon).limit(_MAX_ROWS)
        if table in (t.inbox, t.outbox):
            query = query.where(table.c.id < _first_id(horizon))
        if states:
            query = query.where(table.c.state.in_(states))
        return await self._store.read(lambda c: list(c.execute(query).scalars()))

    async def _delete(self, write: Write, ids: list[str]) -> None:
        await self._store.write(*((write, (row_id,)) for row_id in ids))


def _first_id(ms: int) -> str:
    """Return a text between the ids that were made before a time and later ones.

    Ids begin with their time, so that the largest tables need no index of it.
    """
    return f"{ms >> 16:08x}-{ms & 0xFFFF:04x}"
