"""Budgets: how much may be spent, by whom or on what, in which time.

What a call may cost is reserved before it is made and settled after it, so that calls that run side by side
cannot pass a limit together. Amounts are thousand-millionths of a US dollar.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from decimal import Decimal
from typing import Literal

from msgspec import Struct, structs
from sqlalchemy import Connection, select

from gateway.settings import BudgetScope, BudgetSettings
from gateway.spending.ledger import Caller, Dimension, Ledger
from gateway.spending.money import Nano, dollars, nano, shown
from gateway.spending.periods import Every, Period, period
from gateway.store import Store
from gateway.store import schema as t
from gateway.store.writes import Write

PUT_ALLOWANCE = Write("upsert", 72, t.allowance, "id granted_nano_usd warned_at at")

_ROOM = 10_000
"""Accounts kept in memory; the others are read again when they are needed."""

Linked = Callable[[str], Awaitable[Collection[str]]]
"""The other accounts of a person, each as channel and user id."""

_DIMENSIONS: Mapping[BudgetScope, Dimension] = {
    "user": "person",
    "session": "session",
    "channel": "channel",
    "agent": "agent",
    "provider": "provider",
    "model": "model",
}
_WHOSE: Mapping[BudgetScope, str] = {
    "all": "the",
    "user": "your",
    "session": "this conversation's",
    "channel": "this channel's",
    "agent": "this agent's",
    "provider": "this provider's",
    "model": "this model's",
}
_WHEN: Mapping[Every, str] = {"day": " for today", "month": " for this month", "ever": ""}


class Budget(Struct, frozen=True, kw_only=True):
    """A limit. At ``warn`` the chat is told, at ``ask`` a person must let it go on, at ``stop`` it ends.

    ``unpriced`` is what becomes of calls whose price nobody knows.
    """

    name: str
    scope: BudgetScope
    every: Every
    only: frozenset[str]
    warn: Nano | None
    ask: Nano | None
    stop: Nano | None
    unpriced: Literal["allow", "refuse"]

    @classmethod
    def of(cls, name: str, written: BudgetSettings) -> Budget:
        """The one that the settings describe."""
        amounts = {key: _nano(getattr(written, key)) for key in ("warn", "ask", "stop")}
        return cls(
            name=name,
            scope=written.scope,
            every=written.per,
            only=frozenset(written.only),
            unpriced=written.unpriced,
            **amounts,
        )

    @property
    def dimension(self) -> Dimension | None:
        """What its holders are told apart by; None for a budget of everything."""
        return _DIMENSIONS.get(self.scope)

    def told(self) -> str:
        """It in words, such as: your budget for today."""
        return f"{_WHOSE[self.scope]} budget{_WHEN[self.every]}"


def _nano(usd: Decimal | None) -> Nano | None:
    return None if usd is None else nano(usd)


class Account(Struct):
    """A budget of one holder in one period."""

    id: str
    budget: Budget
    period: Period
    spent: int
    granted: int = 0
    warned_at: int = 0
    reserved: int = 0

    @property
    def room(self) -> int | None:
        """What may still be reserved; None for no limit."""
        stop = self.budget.stop
        return None if stop is None else stop - self.spent - self.reserved

    @property
    def asks(self) -> bool:
        """Whether a person has to let it go on."""
        ask = self.budget.ask
        return ask is not None and self.spent >= max(ask, self.granted)

    @property
    def warns(self) -> bool:
        """Whether the chat is to be told that it runs low."""
        warn = self.budget.warn
        return warn is not None and self.spent >= warn and not self.warned_at

    def grant(self) -> None:
        """Let it go on for as much as the first question was for."""
        self.granted = self.spent + (self.budget.ask or 0)

    def spent_of(self) -> str:
        """What is spent, and of how much."""
        most = self.budget.stop or self.budget.ask or self.budget.warn or 0
        return f"{shown(dollars(self.spent))} of {shown(dollars(most))}"

    def state(self) -> str:
        """What is spent of the budget, in words."""
        return f"{self.spent_of()} of {self.budget.told()} is spent"

    def over(self) -> str:
        """When it begins anew, as the end of a sentence."""
        ends = self.period.ends
        return "" if ends is None else f"; it begins anew on {ends:%Y-%m-%d} at 00:00 UTC"


class Budgets:
    """All budgets, with what was spent of each. ``linked`` tells who else a person is."""

    def __init__(self, budgets: Sequence[Budget], store: Store, ledger: Ledger, linked: Linked) -> None:
        self.all = tuple(budgets)
        self._store = store
        self._ledger = ledger
        self._linked = linked
        self._accounts: dict[str, Account] = {}

    def __bool__(self) -> bool:
        return bool(self.all)

    async def of(self, caller: Caller, now: int) -> list[Account]:
        """The accounts that a call is charged to."""
        accounts: list[Account] = []
        for budget in self.all:
            keys = await self._keys(budget, caller)
            if not budget.only or budget.only & keys:
                accounts.append(await self._account(budget, keys, now))
        return accounts

    async def keep(self, account: Account, now: int) -> None:
        """Make durable what was said about an account."""
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
            case scope:
                return frozenset({structs.asdict(caller)[scope]})

    async def _account(self, budget: Budget, keys: frozenset[str], now: int) -> Account:
        when = period(budget.every, now)
        account_id = f"{budget.name}|{'+'.join(sorted(keys))}|{when.name}"
        known = self._accounts.get(account_id)
        if known is not None:
            return known
        spent = await self._ledger.spent(when.begins, budget.dimension, keys)
        granted, warned_at = await self._store.read(lambda c: _allowance(c, account_id))
        self._make_room()
        # Another call may have read it meanwhile, and counts on its own.
        return self._accounts.setdefault(
            account_id, Account(account_id, budget, when, spent, granted, warned_at)
        )

    def _make_room(self) -> None:
        """Forget those that were asked for first, as long as no call is charged to them."""
        if len(self._accounts) >= _ROOM:
            idle = [name for name, account in self._accounts.items() if not account.reserved]
            for name in idle[: _ROOM // 10]:
                del self._accounts[name]


def _allowance(connection: Connection, account_id: str) -> tuple[int, int]:
    a = t.allowance.c
    row = connection.execute(select(a.granted_nano_usd, a.warned_at).where(a.id == account_id)).first()
    return (0, 0) if row is None else (row[0], row[1])
