"""Reports: what was spent in the last days, by whom or on what, and how the budgets stand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.messages import now_ms
from gateway.settings import BudgetScope
from gateway.spending.budgets import Budget
from gateway.spending.ledger import Dimension, Ledger, Row
from gateway.spending.money import dollars
from gateway.spending.periods import Every, period

By = Literal["day", "session", "channel", "user", "agent", "provider", "model"]
_DAY_MS = 86_400_000
_MOST_HOLDERS = 50

# Together they must fit into the line of a request: 8 KB, in which a character may take twelve bytes.
Key = Annotated[str, Meta(pattern=r"^[!-~]{1,200}$")]
User = Annotated[str, Meta(min_length=1, max_length=240, pattern=r"^[^\x00-\x1f\x7f]+$")]


class UsageQuery(Struct, frozen=True, omit_defaults=True):
    """What is asked for. Users are named by channel and id, such as ``telegram:42``."""

    by: By = "day"
    days: Annotated[int, Meta(ge=1, le=3660, description="Days to look back, today among them (UTC)")] = 30
    session: Key | None = None
    channel: Key | None = None
    user: User | None = None
    agent: Key | None = None
    provider: Key | None = None


class Used(Struct, frozen=True):
    """What calls of models took together. Those that are unpriced add nothing to the exact ``usd``."""

    key: str
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    usd: Decimal
    unpriced: int


class BudgetHolder(Struct, frozen=True):
    """How much one holder has spent of a budget. ``id`` is empty for a budget of everything."""

    id: str
    usd: Decimal


class BudgetState(Struct, frozen=True):
    """A budget in its running period, with those who have spent most of it."""

    name: str
    scope: BudgetScope
    per: Every
    period: str
    warn: Decimal | None
    ask: Decimal | None
    stop: Decimal | None
    holders: list[BudgetHolder]


class UsageReport(Struct, frozen=True):
    """What was spent, by day or dearest first, and in all; and how the budgets stand."""

    by: By
    days: int
    rows: list[Used]
    total: Used
    budgets: list[BudgetState]


async def report(
    ledger: Ledger, budgets: Sequence[Budget], asked: UsageQuery, now: int | None = None
) -> UsageReport:
    """What the ledger holds. ``now`` is milliseconds since the epoch."""
    now = now_ms() if now is None else now
    since = now - now % _DAY_MS - (asked.days - 1) * _DAY_MS
    found = await ledger.by(_dimension(asked.by), since, now + 1, **_only(asked))
    rows = [_used(row) for row in found]
    if asked.by == "day":
        rows = _without_gaps(rows, now)
    states = [await _state(ledger, budget, now) for budget in budgets]
    return UsageReport(asked.by, asked.days, rows, _sum(rows), states)


def _dimension(by: By) -> Dimension:
    return "person" if by == "user" else by


def _only(asked: UsageQuery) -> Mapping[str, str]:
    named = {
        "session": asked.session,
        "channel": asked.channel,
        "person": asked.user,
        "agent": asked.agent,
        "provider": asked.provider,
    }
    return {name: key for name, key in named.items() if key is not None}


def _used(row: Row) -> Used:
    usd = dollars(row.nano_usd or 0)
    return Used(row.key, row.calls, row.input_tokens, row.output_tokens, row.cached_tokens, usd, row.unpriced)


def _without_gaps(rows: Sequence[Used], now: int) -> list[Used]:
    """The rows of days, from the first to today, with those between on which no model was called."""
    known = {row.key: row for row in rows}
    last = date(1970, 1, 1).toordinal() + now // _DAY_MS
    first = date.fromisoformat(rows[0].key).toordinal() if rows else last + 1
    days = [date.fromordinal(day).isoformat() for day in range(first, last + 1)]
    return [known.get(day) or Used(day, 0, 0, 0, 0, Decimal(0), 0) for day in days]


def _sum(rows: Sequence[Used]) -> Used:
    return Used(
        "",
        sum(row.calls for row in rows),
        sum(row.input_tokens for row in rows),
        sum(row.output_tokens for row in rows),
        sum(row.cached_tokens for row in rows),
        sum((row.usd for row in rows), Decimal(0)),
        sum(row.unpriced for row in rows),
    )


async def _state(ledger: Ledger, budget: Budget, now: int) -> BudgetState:
    when = period(budget.every, now)
    if budget.dimension is None:
        holders = [BudgetHolder("", dollars(await ledger.spent(when.begins, None, ())))]
    else:
        rows = await ledger.by(budget.dimension, when.begins, now + 1)
        holders = [
            BudgetHolder(row.key, dollars(row.nano_usd or 0))
            for row in rows
            if not budget.only or row.key in budget.only
        ]
    amounts = (None if nano is None else dollars(nano) for nano in (budget.warn, budget.ask, budget.stop))
    return BudgetState(
        budget.name, budget.scope, budget.every, when.name, *amounts, holders=holders[:_MOST_HOLDERS]
    )
