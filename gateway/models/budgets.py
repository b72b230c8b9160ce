"""Budgets: limits on the cost of model calls, per holder and period.

The cost of a call is reserved before the call and settled after it, so that concurrent calls cannot exceed a
limit together. Amounts are integers of 10⁻⁹ US dollars. Days and months are in UTC.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Literal, assert_never

from msgspec import Struct, structs
from sqlalchemy import Connection, select

from gateway.models.ledger import Caller, Dimension, Ledger, Nano, format_usd, to_nano, to_usd
from gateway.settings import BudgetScope, BudgetSettings
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.writes import Write

PeriodKind = Literal["day", "month", "ever"]


class Period(Struct, frozen=True):
    """A day, a month, or all time, which has no end. ``begins`` is milliseconds since the epoch."""

    name: str
    begins: int
    ends: datetime | None = None


def period_at(every: PeriodKind, now_ms: int) -> Period:
    """Return the period that contains a time."""
    today = datetime.fromtimestamp(now_ms / 1000, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    match every:
        case "day":
            return Period(f"{today:%Y-%m-%d}", _ms(today), today + timedelta(days=1))
        case "month":
            first = today.replace(day=1)
            return Period(f"{first:%Y-%m}", _ms(first), (first + timedelta(days=32)).replace(day=1))
        case "ever":
            return Period("ever", 0)
        case _:
            assert_never(every)


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


PUT_ALLOWANCE = Write("upsert", 72, t.allowance, "id granted_nano_usd warned_at at")

_MAX_ACCOUNTS = 10_000
"""Largest number of accounts in memory; others are read again when needed."""

LinkedUsers = Callable[[str], Awaitable[Collection[str]]]
"""Returns the linked accounts of a user, each as channel and user id."""

_DIMENSIONS: Mapping[BudgetScope, Dimension] = {
    "user": "person",
    "session": "session",
    "channel": "channel",
    "agent": "agent",
    "provider": "provider",
    "model": "model",
    "plugin": "plugin",
}
_OWNER_TEXT: Mapping[BudgetScope, str] = {
    "all": "the",
    "user": "your",
    "session": "this conversation's",
    "channel": "this channel's",
    "agent": "this agent's",
    "provider": "this provider's",
    "model": "this model's",
    "plugin": "this plugin's",
}
_PERIOD_TEXT: Mapping[PeriodKind, str] = {"day": " for today", "month": " for this month", "ever": ""}


class Budget(Struct, frozen=True, kw_only=True):
    """A spending limit, with amounts for a warning, for an approval and for a hard stop.

    At ``warn`` the chat gets a notice, at ``ask`` a user has to approve, at ``stop`` calls are refused.
    ``unpriced`` allows or refuses calls without a known price. ``key`` is where the limit is set.
    """

    name: str
    scope: BudgetScope
    every: PeriodKind
    only: frozenset[str]
    warn: Nano | None
    ask: Nano | None
    stop: Nano | None
    unpriced: Literal["allow", "refuse"]
    key: str

    @classmethod
    def of(cls, name: str, written: BudgetSettings) -> Budget:
        """Build the budget that the settings describe."""
        amounts = {key: _nano(getattr(written, key)) for key in ("warn", "ask", "stop")}
        return cls(
            name=name,
            scope=written.scope,
            every=written.per,
            only=frozenset(written.only),
            unpriced=written.unpriced,
            key=f"budgets.{name}",
            **amounts,
        )

    @classmethod
    def of_plugin(cls, plugin: str, usd: float) -> Budget:
        """Build the budget that a plugin's manifest sets for each conversation."""
        return cls(
            name=plugin,
            scope="plugin",
            every="ever",
            only=frozenset(),
            warn=None,
            ask=None,
            stop=to_nano(Decimal(str(usd))),
            unpriced="allow",
            key=f"capabilities.llm.budget of {plugin!r}",
        )

    @property
    def dimension(self) -> Dimension | None:
        """The dimension that separates its holders; None for a budget of everything."""
        return _DIMENSIONS.get(self.scope)

    def describe(self) -> str:
        """Return a phrase such as ``your budget for today``."""
        return f"{_OWNER_TEXT[self.scope]} budget{_PERIOD_TEXT[self.every]}"


def _nano(usd: Decimal | None) -> Nano | None:
    return None if usd is None else to_nano(usd)


class Account(Struct):
    """The budget of one holder in one period."""

    id: str
    budget: Budget
    period: Period
    spent: int
    granted: int = 0
    warned_at: int = 0
    reserved: int = 0

    @property
    def remaining(self) -> int | None:
        """The amount that may still be reserved; None without a limit."""
        stop = self.budget.stop
        return None if stop is None else stop - self.spent - self.reserved

    @property
    def needs_approval(self) -> bool:
        """Return whether a user has to approve further spending."""
        ask = self.budget.ask
        return ask is not None and self.spent >= max(ask, self.granted)

    @property
    def needs_warning(self) -> bool:
        """Return whether the chat has to be warned."""
        warn = self.budget.warn
        return warn is not None and self.spent >= warn and not self.warned_at

    def grant(self) -> None:
        """Allow as much again as the approval threshold."""
        self.granted = self.spent + (self.budget.ask or 0)

    def spent_text(self) -> str:
        """Return the spent amount and the limit as text."""
        most = self.budget.stop or self.budget.ask or self.budget.warn or 0
        return f"{format_usd(to_usd(self.spent))} of {format_usd(to_usd(most))}"

    def summary(self) -> str:
        """Return a clause with the spent amount, the limit and the budget."""
        return f"{self.spent_text()} of {self.budget.describe()} is spent"

    def reset_text(self) -> str:
        """Return the end of a sentence with the time at which the budget resets."""
        ends = self.period.ends
        return "" if ends is None else f"; it resets on {ends:%Y-%m-%d} at 00:00 UTC"


class Budgets:
    """All budgets and their accounts. ``linked`` returns a user's other accounts."""

    def __init__(self, budgets: Sequence[Budget], store: Store, ledger: Ledger, linked: LinkedUsers) -> None:
        self.all = tuple(budgets)
        self._store = store
        self._ledger = ledger
        self._linked = linked
        self._accounts: dict[str, Account] = {}

    def __bool__(self) -> bool:
        return bool(self.all)

    async def accounts_for(
        self, caller: Caller, now: int, plugin_limit: float | None = None
    ) -> list[Account]:
        """Return the accounts that a call is charged to.

        ``plugin_limit`` is what the calling plugin may spend in the session, in US dollars.
        """
        accounts: list[Account] = []
        if plugin_limit is not None:
            accounts.append(await self._plugin_account(caller, plugin_limit))
        for budget in self.all:
            if budget.scope == "plugin" and not caller.plugin:
                continue
            keys = await self._keys(budget, caller)
            if not budget.only or budget.only & keys:
                accounts.append(await self._account(budget, keys, now))
        return accounts

    async def save(self, account: Account, now: int) -> None:
        """Write an account's approval and warning durably."""
        row = (account.id, account.granted, account.warned_at, now)
        await self._store.write((PUT_ALLOWANCE, row))

    async def _keys(self, budget: Budget, caller: Caller) -> frozenset[str]:
        match budget.scope:
            case "all":
                return frozenset()
            case "user":
                return frozenset({caller.person, *await self._linked(caller.person)})
            case "model":
                return frozenset({f"{caller.provider}/{caller.model}"})
            case "session" | "channel" | "agent" | "provider" | "plugin" as scope:
                return frozenset({structs.asdict(caller)[scope]})
            case _:
                assert_never(budget.scope)

    async def _account(self, budget: Budget, keys: frozenset[str], now: int) -> Account:
        when = period_at(budget.every, now)
        account_id = f"{budget.name}|{'+'.join(sorted(keys))}|{when.name}"
        known = self._accounts.get(account_id)
        if known is not None:
            return known
        # Not later calls: those of a clock that was ahead would count in each period until then.
        ends = None if when.ends is None else _ms(when.ends)
        spent = await self._ledger.spent(when.begins, budget.dimension, keys, ends)
        granted, warned_at = await self._store.read(lambda c: _allowance(c, account_id))
        self._evict_idle()
        # A concurrent call may have added it during the reads; that object holds the reservations.
        return self._accounts.setdefault(
            account_id, Account(account_id, budget, when, spent, granted, warned_at)
        )

    async def _plugin_account(self, caller: Caller, limit: float) -> Account:
        budget, of_session = Budget.of_plugin(caller.plugin, limit), {"session": caller.session}
        account_id = f"{budget.key}|{caller.session}"
        account = self._accounts.get(account_id)
        if account is None:
            spent = await self._ledger.spent(0, "plugin", {caller.plugin}, only=of_session)
            self._evict_idle()
            account = Account(account_id, budget, period_at("ever", 0), spent)
            account = self._accounts.setdefault(account_id, account)
        account.budget = budget  # An update of the plugin may have changed the limit.
        return account

    def _evict_idle(self) -> None:
        """Drop the oldest accounts without a running call."""
        if len(self._accounts) >= _MAX_ACCOUNTS:
            idle = [name for name, account in self._accounts.items() if not account.reserved]
            for name in idle[: _MAX_ACCOUNTS // 10]:
                del self._accounts[name]


def _allowance(connection: Connection, account_id: str) -> tuple[int, int]:
    a = t.allowance.c
    row = connection.execute(select(a.granted_nano_usd, a.warned_at).where(a.id == account_id)).first()
    return (0, 0) if row is None else (row[0], row[1])
