"""Reports: usage of the last days by one or two dimensions, and the budgets with their forecast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from gateway.contract.messages import now_ms
from gateway.models.budgets import Budget, Period, PeriodKind, period_at
from gateway.models.ledger import Dimension, Ledger, UsageRow, to_usd
from gateway.settings import BudgetScope

By = Literal["day", "session", "channel", "user", "person", "agent", "provider", "model", "plugin", "room"]
Limit = Literal["warn", "ask", "stop"]
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS
_MAX_HOLDERS = 50
_PROJECTION_DAYS = 7
_PLACES = Decimal("0.0001")

# Together they must fit into a request line of 8 KB, in which a character takes up to twelve bytes.
Key = Annotated[str, Meta(pattern=r"^[!-~]{1,200}$")]
User = Annotated[str, Meta(min_length=1, max_length=240, pattern=r"^[^\x00-\x1f\x7f]+$")]
Split = Annotated[By, Meta(description="A second dimension: each row has parts by it")]


class UsageQuery(Struct, frozen=True, omit_defaults=True):
    """A query. Users are named by channel and id, such as ``telegram:42``.

    The dimensions ``person`` and ``user`` are the same. A room is named by channel and chat, such as
    ``telegram:-100123``; all conversations in it count together.
    """

    by: By = "day"
    days: Annotated[int, Meta(ge=1, le=3660, description="Number of days up to today (UTC)")] = 30
    session: Key | None = None
    channel: Key | None = None
    user: User | None = None
    agent: Key | None = None
    provider: Key | None = None
    model: Key | None = None
    plugin: Key | None = None
    split: Split | None = None
    room: User | None = None


class UsageTotals(Struct, frozen=True):
    """Sums of model calls. Calls without a known price (``unpriced``) do not count in ``usd``."""

    key: str
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    usd: Decimal
    unpriced: int


class UsageGroup(UsageTotals, frozen=True):
    """Sums of one key, and its parts by the second dimension, the dearest first.

    ``previous_usd`` is its cost in the previous period; null for a day.
    """

    parts: list[UsageTotals] = []
    previous_usd: Decimal | None = None


class Projection(Struct, frozen=True):
    """Today's cost (UTC), and what it is expected to be at midnight.

    The expectation adds what the last ``days`` days cost on average after this time of day; null without an
    earlier day.
    """

    usd: Decimal
    expected_usd: Decimal | None
    days: int


class DearConversation(Struct, frozen=True):
    """A session with its cost. ``title`` is its id if it has none yet, and empty if it was deleted."""

    session: str
    title: str
    channel: str
    calls: int
    tokens: int
    usd: Decimal


class BudgetHolder(Struct, frozen=True):
    """Spending of one holder of a budget, and its forecast. ``id`` is empty for a budget of everything.

    The forecast continues the pace of the last 7 days; of the last 24 hours for a budget of a day. A gateway
    that is younger than that has the pace since its first call, averaged over at least a day, or an hour.
    ``expected_usd`` is the amount at the end of the period, null for a budget without end. ``reaches`` is the
    next limit that will be reached before that end, ``reaches_at`` when (in milliseconds).
    """

    id: str
    usd: Decimal
    expected_usd: Decimal | None = None
    reaches: Limit | None = None
    reaches_at: int | None = None


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
    """Usage by day, or by descending cost, with its total and the state of the budgets.

    ``splits`` are the sums of the second dimension. ``previous`` is the period of the same length before, up
    to the same time of day. ``top`` are the dearest conversations, ``unpriced`` the models without a price.
    """

    by: By
    days: int
    rows: list[UsageGroup]
    total: UsageTotals
    budgets: list[BudgetState]
    split: By | None
    splits: list[UsageGroup]
    previous: UsageTotals
    projection: Projection
    top: list[DearConversation]
    unpriced: list[UsageTotals]


async def usage_report(
    ledger: Ledger, budgets: Sequence[Budget], asked: UsageQuery, now: int | None = None
) -> UsageReport:
    """Build the report from the ledger. ``now`` is milliseconds since the epoch."""
    now = now_ms() if now is None else now
    since, only = _since(asked, now), _only(asked)
    by, split = _dimension(asked.by), _dimension(asked.split or asked.by)
    # One scan serves the rows, their parts and the models without a price.
    found = await ledger.usage((by, split, "model"), since, now + 1, only)
    length = asked.days * _DAY_MS
    before = await ledger.usage((by, split), since - length, now + 1 - length, only)
    rows = [_group(total, _sums(parts, 1) if asked.split else []) for total, parts in _grouped(found, 0)]
    rows = _fill_gaps(rows, now) if by == "day" else _with_previous(rows, before, 0)
    splits = [_group(total, []) for total in _sums(found, 1)] if asked.split else []
    return UsageReport(
        asked.by,
        asked.days,
        rows,
        _sum("", found),
        [await budget_state(ledger, budget, now) for budget in budgets],
        asked.split,
        splits if split == "day" else _with_previous(splits, before, 1),
        _sum("", before),
        await _projection(ledger, only, now),
        [
            DearConversation(one.session, one.title, one.channel, one.calls, one.tokens, to_usd(one.nano_usd))
            for one in await ledger.dearest(since, now + 1, only)
        ],
        _sums([row for row in found if row.unpriced], 2),
    )


async def usage_rows(ledger: Ledger, asked: UsageQuery) -> list[UsageTotals]:
    """Return the sums of the keys alone, by descending cost."""
    now = now_ms()
    found = await ledger.usage((_dimension(asked.by),), _since(asked, now), now + 1, _only(asked))
    return _sums(found, 0)


def total_of(rows: Iterable[UsageTotals]) -> UsageTotals:
    """Return the sum of rows."""
    counted = list(rows)
    return UsageTotals(
        "",
        sum(row.calls for row in counted),
        sum(row.input_tokens for row in counted),
        sum(row.output_tokens for row in counted),
        sum(row.cached_tokens for row in counted),
        sum((row.usd for row in counted), Decimal(0)),
        sum(row.unpriced for row in counted),
    )


def usage_table(report: UsageReport) -> list[list[object]]:
    """Return a report as a table with a head: a line for each key, or for each pair of keys."""
    keys = [report.by, report.split] if report.split else [report.by]
    lines: list[list[object]] = [[*keys, *UsageTotals.__struct_fields__[1:]]]
    for row in report.rows:
        if report.split:
            lines += [[row.key, *_values(part)] for part in row.parts]
        else:
            lines.append(_values(row))
    return lines


def _since(asked: UsageQuery, now: int) -> int:
    return now - now % _DAY_MS - (asked.days - 1) * _DAY_MS


def _dimension(by: By) -> Dimension:
    return "person" if by == "user" else by


def _only(asked: UsageQuery) -> Mapping[str, str]:
    named = {
        "session": asked.session,
        "channel": asked.channel,
        "person": asked.user,
        "agent": asked.agent,
        "provider": asked.provider,
        "model": asked.model,
        "plugin": asked.plugin,
        "room": asked.room,
    }
    return {name: key for name, key in named.items() if key is not None}


def _values(totals: UsageTotals) -> list[object]:
    return [getattr(totals, name) for name in UsageTotals.__struct_fields__]


def _group(of: UsageTotals, parts: list[UsageTotals]) -> UsageGroup:
    return UsageGroup(
        of.key, of.calls, of.input_tokens, of.output_tokens, of.cached_tokens, of.usd, of.unpriced, parts
    )


def _sum(key: str, rows: Iterable[UsageRow]) -> UsageTotals:
    total = total_of(
        UsageTotals(
            *("", row.calls, row.input_tokens, row.output_tokens, row.cached_tokens),
            to_usd(row.nano_usd or 0),
            row.unpriced,
        )
        for row in rows
    )
    return replace(total, key=key)


def _grouped(rows: Sequence[UsageRow], place: int) -> list[tuple[UsageTotals, list[UsageRow]]]:
    """Return the rows of each key at a place with their sum: by descending cost, then tokens."""
    groups = defaultdict[str, list[UsageRow]](list)
    for row in rows:
        groups[row.keys[place]].append(row)
    summed = [(_sum(key, group), group) for key, group in groups.items()]
    return sorted(
        summed, key=lambda one: (-one[0].usd, -one[0].input_tokens - one[0].output_tokens, one[0].key)
    )


def _sums(rows: Sequence[UsageRow], place: int) -> list[UsageTotals]:
    return [total for total, _ in _grouped(rows, place)]


def _with_previous(rows: Sequence[UsageGroup], before: Sequence[UsageRow], place: int) -> list[UsageGroup]:
    cost = {total.key: total.usd for total in _sums(before, place)}
    return [replace(row, previous_usd=cost.get(row.key, Decimal(0))) for row in rows]


def _fill_gaps(rows: Sequence[UsageGroup], now: int) -> list[UsageGroup]:
    """Return one row for each day from the first to today, with zeros for days without a call."""
    known = {row.key: row for row in rows}
    last = date(1970, 1, 1).toordinal() + now // _DAY_MS
    first = date.fromisoformat(min(known)).toordinal() if known else last + 1
    days = [date.fromordinal(day).isoformat() for day in range(first, last + 1)]
    return [known.get(day) or UsageGroup(day, 0, 0, 0, 0, Decimal(0), 0) for day in days]


async def _projection(ledger: Ledger, only: Mapping[str, str], now: int) -> Projection:
    today = now - now % _DAY_MS
    usd = _sum("", await ledger.usage(("provider",), today, now + 1, only)).usd
    first = await ledger.first_at(today - _PROJECTION_DAYS * _DAY_MS, only)
    days = 0 if first is None else (today - first + first % _DAY_MS) // _DAY_MS
    if not days:
        return Projection(usd, None, 0)
    rest = await ledger.after_this_time_of_day(today - days * _DAY_MS, now, only)
    return Projection(usd, usd + _round(to_usd(rest) / days), days)


def _round(usd: Decimal) -> Decimal:
    return usd.quantize(_PLACES, ROUND_HALF_UP)


async def budget_state(ledger: Ledger, budget: Budget, now: int) -> BudgetState:
    """Return the state of a budget with its forecast. ``now`` is milliseconds since the epoch."""
    when = period_at(budget.every, now)
    dimension: Dimension = budget.dimension or "provider"
    spent = await _amounts(ledger, budget, dimension, when.begins, now)
    window, least = (_DAY_MS, _HOUR_MS) if budget.every == "day" else (_PROJECTION_DAYS * _DAY_MS, _DAY_MS)
    pace = await _amounts(ledger, budget, dimension, now - window, now)
    # Only a gateway that is younger than the window has a shorter one: a pause is a part of the pace.
    first = await ledger.first_at(0, {})
    lasted = min(window, max(least, now - (now if first is None else first)))
    holders = [
        _forecast(budget, when, now, key, amount, Decimal(pace.get(key, 0)) / lasted)
        for key, amount in sorted(spent.items(), key=lambda one: (-one[1], one[0]))
    ]
    amounts = (None if nano is None else to_usd(nano) for nano in (budget.warn, budget.ask, budget.stop))
    return BudgetState(
        budget.name, budget.scope, budget.every, when.name, *amounts, holders=holders[:_MAX_HOLDERS]
    )


async def _amounts(
    ledger: Ledger, budget: Budget, dimension: Dimension, since: int, now: int
) -> Mapping[str, int]:
    """Return what each holder of a budget spent since a time; the holder of a budget of everything is ""."""
    rows = await ledger.usage((dimension,), since, now + 1, {})
    if budget.dimension is None:
        return {"": sum(row.nano_usd or 0 for row in rows)}
    return {row.key: row.nano_usd or 0 for row in rows if not budget.only or row.key in budget.only}


def _forecast(
    budget: Budget, when: Period, now: int, key: str, spent: int, nano_per_ms: Decimal
) -> BudgetHolder:
    """Return a holder with its forecast: the limit that comes next, if it is reached in this period."""
    ends = None if when.ends is None else round(when.ends.timestamp() * 1000)
    expected = None if ends is None else _round(to_usd(spent + round(nano_per_ms * (ends - now))))
    reaches, reaches_at = None, None
    limits: list[tuple[Limit, int | None]] = [
        ("warn", budget.warn),
        ("ask", budget.ask),
        ("stop", budget.stop),
    ]
    for name, limit in limits:
        if limit is None or limit <= spent or not nano_per_ms:
            continue
        at = now + int((limit - spent) / nano_per_ms)
        if (ends is None or at < ends) and (reaches_at is None or at < reaches_at):
            reaches, reaches_at = name, at
    return BudgetHolder(key, to_usd(spent), expected, reaches, reaches_at)
