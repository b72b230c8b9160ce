"""Periods: the stretches of time that budgets are for. Days and months are those of UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Literal

from msgspec import Struct

Every = Literal["day", "month", "ever"]


class Period(Struct, frozen=True):
    """One day or month, or all time, which has no end. ``begins`` is milliseconds since the epoch."""

    name: str
    begins: int
    ends: datetime | None = None


def period(every: Every, now_ms: int) -> Period:
    """The one that a moment lies in."""
    today = datetime.fromtimestamp(now_ms / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if every == "day":
        return Period(f"{today:%Y-%m-%d}", _ms(today), today + timedelta(days=1))
    if every == "month":
        first = today.replace(day=1)
        return Period(f"{first:%Y-%m}", _ms(first), (first + timedelta(days=32)).replace(day=1))
    return Period("ever", 0)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
