"""The clock by which old rows are removed. It does not follow a jump of the machine's clock for three days.

A clock that is years ahead makes every row old. After a jump the time of before it applies, so that nothing
is removed too early. A long stop of the gateway looks like a jump, and delays the removal by these days.
"""

from __future__ import annotations

import time

import msgspec
import structlog
from sqlalchemy import Connection, func, select

from gateway.contract.messages import now_ms
from gateway.store import schema as t
from gateway.store.database import Store
from gateway.store.inbox import Cursor, cursor_op

log = structlog.get_logger("trunkline.retention")

_DAY_MS = 86_400_000
_JUMP_MS = 7 * _DAY_MS
"""Longest time between two readings that is not a jump. The gateway reads once an hour while it runs."""
_HOLD_MS = 3 * _DAY_MS
_ROW = "@clock"
"""Name of the row of the table ``cursor`` that has the readings; no channel can have this name."""


class Readings(msgspec.Struct, frozen=True):
    """The last reading of the clock; after a jump also that of the jump, and the one before it (ms, or 0)."""

    seen: int
    jumped: int = 0
    before: int = 0

    def read_again(self, now: int) -> Readings:
        """Return the readings with another one."""
        if now - self.seen > _JUMP_MS:
            return Readings(now, now, self.before or self.seen)
        if self.jumped <= now < self.until:
            return Readings(now, self.jumped, self.before)
        return Readings(now)

    @property
    def until(self) -> int:
        """The time (ms) from which a jump is trusted; 0 without one."""
        return self.jumped and self.jumped + _HOLD_MS

    def __str__(self) -> str:
        days = (self.jumped - self.before) // _DAY_MS
        return (
            f"the clock went ahead from {_shown(self.before)} to {_shown(self.jumped)} ({days:,} days), "
            f"so old rows are not removed until {_shown(self.until)}"
        )


class TrustedClock:
    """The clock of retention, whose readings are in the store, so that a restart does not hide a jump."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def now(self) -> int:
        """Read the clock; return its time, or that of before a jump (ms)."""
        return await self.read_at(now_ms())

    async def read_at(self, now: int) -> int:
        """Like ``now``, when the machine's clock shows a certain time (ms)."""
        kept = await self._store.read(_read)
        readings = Readings(now) if kept is None else kept.read_again(now)
        if readings.jumped and (kept is None or readings.jumped != kept.jumped):
            log.warning("the clock jumped ahead", reason=str(readings))
        await self._store.write(cursor_op(_ROW, Cursor("", msgspec.json.encode(readings).decode())))
        return readings.before or now


def find_jump(connection: Connection, now: int) -> str:
    """Return a sentence about a jump because of which no rows are removed now (ms), or an empty text."""
    kept = _read(connection)
    return str(kept) if kept is not None and kept.jumped <= now < kept.until else ""


def _read(connection: Connection) -> Readings | None:
    """Return the stored readings. A store without them has its newest message as the last one."""
    c = t.cursor.c
    row = connection.execute(select(c.value).where(c.channel == _ROW)).scalar()
    if row is not None:
        return msgspec.json.decode(row, type=Readings)
    newest = connection.execute(select(func.max(t.inbox.c.received_at))).scalar()
    return None if newest is None else Readings(newest)


def _shown(at: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at / 1_000))
