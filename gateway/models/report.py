"""Reports: usage of the last days by one dimension, and the state of each budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.contract.messages import now_ms
from gateway.models.budgets import Budget, PeriodKind, period_at
from gateway.models.ledger import Dimension, Ledger, UsageRow, to_usd
from gateway.settings import BudgetScope

By = Literal["day", "session", "channel", "user", "agent", "provider", "model", "plugin"]
_DAY_MS = 86_400_000
_MAX_HOLDERS = 50

# Together they must fit into a request line of 8 KB, in which a character takes up to twelve bytes.
Key = Annotated[str, Meta(pattern=r"^[!-~]{1,200}$")]
User = Annotated[str, Meta(min_length=1, max_length=240, pattern=r"^[^\x00-\x1f\x7f]+$")]


class UsageQuery(Struct, frozen=True, omit_defaults=True):
    """A query. Users are named by channel and id, such as ``telegram:42``."""

    by: By = "day"
    days: Annotated[int, Meta(ge=1, le=3660, description="Number of days up to today (UTC)")] = 30
    session: Key | None = None
    channel: Key | None = None
    user: User | None = None
    agent: Key | None = None
    provider: Key | None = None


class UsageTotals(Struct, frozen=True):
    """Sums of model calls. Calls without a known price (``unpriced``) do not count in ``usd``."""

    key: str
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    usd: Decimal
    unpriced: int


class BudgetHolder(Struct, frozen=True):
    """Spending of one holder of a budget. ``id`` is empty for a budget of everything."""

    id: str
    usd: Decimal


class BudgetState(Struct, frozen=True):
    """A budget in its current period, with the holders that spent most."""

    name: str
    scope: BudgetScope
    per: PeriodKind
    period: str
    warn: Decimal | None
    ask: Decimal | None
    stop: Decimal | None
    holders: list[BudgetHolder]


class UsageReport(Struct, frozen=True):
    """Usage by day, or by descending cost, with its total and the state of the budgets."""

    by: By
    days: int
    rows: list[UsageTotals]
    total: UsageTotals
    budgets: list[BudgetState]


async def usage_report(
    ledger: Ledger, budgets: Sequence[Budget], asked: UsageQuery, now: int | None = None
) -> UsageReport:
    """Build the report from the ledger. ``now`` is milliseconds since the epoch."""
    now = now_ms() if now is None else now
    since = now - now % _DAY_MS - (asked.days - 1) * _DAY_MS
    found = await ledger.usage_by(_dimension(asked.by), since, now + 1, **_only(asked))
    rows = [_totals(row) for row in found]
    if asked.by == "day":
        rows = _fill_gaps(rows, now)
    states = [await _budget_state(ledger, budget, now) for budget in budgets]
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


def _totals(row: UsageRow) -> UsageTotals:
    usd = to_usd(row.nano_usd or 0)
    return UsageTotals(
        row.key, row.calls, row.input_tokens, row.output_tokens, row.cached_tokens, usd, row.unpriced
    )


def _fill_gaps(rows: Sequence[UsageTotals], now: int) -> list[UsageTotals]:
    """Return one row for each day from the first to today, with zeros for days without a call."""
    known = {row.key: row for row in rows}
    last = date(1970, 1, 1).toordinal() + now // _DAY_MS
    first = date.fromisoformat(rows[0].key).toordinal() if rows else last + 1
    days = [date.fromordinal(day).isoformat() for day in range(first, last + 1)]
    return [known.get(day) or UsageTotals(day, 0, 0, 0, 0, Decimal(0), 0) for day in days]


def _sum(rows: Sequence[UsageTotals]) -> UsageTotals:
    return UsageTotals(
        "",
        sum(row.calls for row in rows),
        sum(row.input_tokens for row in rows),
        sum(row.output_tokens for row in rows),
        sum(row.cached_tokens for row in rows),
        sum((row.usd for row in rows), Decimal(0)),
        sum(row.unpriced for row in rows),
    )


async def _budget_state(ledger: Ledger, budget: Budget, now: int) -> BudgetState:
    when = period_at(budget.every, now)
    if budget.dimension is None:
        holders = [BudgetHolder("", to_usd(await ledger.spent(when.begins, None, ())))]
    else:
        rows = await ledger.usage_by(budget.dimension, when.begins, now + 1)
        holders = [
            BudgetHolder(row.key, to_usd(row.nano_usd or 0))
            for row in rows
            if not budget.only or row.key in budget.only
        ]
    amounts = (None if nano is None else to_usd(nano) for nano in (budget.warn, budget.ask, budget.stop))
    return BudgetState(
        budget.name, budget.scope, budget.every, when.name, *amounts, holders=holders[:_MAX_HOLDERS]
    )
