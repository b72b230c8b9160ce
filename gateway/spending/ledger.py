"""The ledger: one row for each call of a model, durable, with what it took and what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import date
from typing import Any, Literal

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, Select, func, select

from gateway.messages import new_id
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write
from gateway.tokens import Tokens

State = Literal["reserved", "estimated", "counted"]
Dimension = Literal["day", "session", "channel", "person", "agent", "provider", "model"]
"""What amounts can be told apart by. A model is told with its provider."""

_COLUMNS = (
    "id at state session channel person agent provider model"
    " input_tokens output_tokens cached_tokens cache_write_tokens nano_usd"
)
PUT_SPEND = Write("upsert", 70, t.spend, _COLUMNS)
DROP_SPEND = Write("delete", 71, t.spend, "id")

_DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1).toordinal()


class Caller(Struct, frozen=True):
    """On whose account a model is called. ``person`` is channel and user id."""

    session: str
    channel: str
    person: str
    agent: str
    provider: str
    model: str


class Row(Struct, frozen=True, kw_only=True):
    """What was spent on one key. ``nano_usd`` is None where no price is known."""

    key: str
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    nano_usd: int | None
    unpriced: int
    """Calls whose price is not known; they count nothing."""


class Ledger:
    """Writes calls down, and tells what they come to."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: Counter[tuple[str, str]] = Counter()
        """Calls since the start, by provider and model."""
        self.nano_usd: Counter[tuple[str, str]] = Counter()
        """What they cost, where it is known."""

    async def reserve(self, call_id: str, caller: Caller, at: int, tokens: Tokens, nano_usd: int) -> None:
        """Write down what a call may cost, durably, before it is made."""
        await self._store.write(_row(call_id, caller, at, "reserved", tokens, nano_usd))

    def count(
        self, call_id: str | None, caller: Caller, at: int, state: State, tokens: Tokens, nano_usd: int | None
    ) -> None:
        """Write down what a call did cost, in place of what was reserved. Nobody has to wait for it."""
        model = caller.provider, caller.model
        self.calls[model] += 1
        self.nano_usd[model] += nano_usd or 0
        self._submit(_row(call_id or new_id(), caller, at, state, tokens, nano_usd))

    def release(self, call_id: str) -> None:
        """A call came to nothing: what was reserved for it is free."""
        self._submit((DROP_SPEND, (call_id,)))

    async def spent(self, since: int, dimension: Dimension | None, keys: Collection[str]) -> int:
        """What was spent or is reserved since a moment, on some keys of a dimension or on everything."""
        s = t.spend.c
        query = select(func.coalesce(func.sum(s.nano_usd), 0)).where(s.at >= since)
        if dimension is not None:
            query = query.where(_key(dimension).in_(keys))
        return await self._store.read(lambda c: int(c.execute(query).scalar_one()))

    async def by(self, dimension: Dimension, since: int, until: int, **only: str) -> list[Row]:
        """What was spent between two moments, by key: days in order, others the most first.

        ``only`` names keys of other dimensions that count alone.
        """
        s = t.spend.c
        query = _grouped(dimension).where(s.at >= since, s.at < until)
        for name, key in only.items():
            query = query.where(s[name] == key)
        rows = await self._store.read(lambda c: _read(c, query))
        if dimension == "day":
            return sorted(rows, key=lambda row: row.key)
        return sorted(
            rows, key=lambda row: (-(row.nano_usd or 0), -row.input_tokens - row.output_tokens, row.key)
        )

    def _submit(self, op: Op) -> None:
        self._store.submit([op]).add_done_callback(lambda written: written.exception())


def _row(call_id: str, caller: Caller, at: int, state: State, tokens: Tokens, nano_usd: int | None) -> Op:
    who = (caller.session, caller.channel, caller.person, caller.agent, caller.provider, caller.model)
    counts = (tokens.input, tokens.output, tokens.cached, tokens.cache_write)
    return PUT_SPEND, (call_id, at, state, *who, *counts, nano_usd)


def _key(dimension: Dimension) -> ColumnElement[Any]:
    s = t.spend.c
    match dimension:
        case "day":
            return s.at // _DAY_MS
        case "model":
            return s.provider + "/" + s.model
        case _:
            return s[dimension]


def _grouped(dimension: Dimension) -> Select[*tuple[Any, ...]]:
    s, key = t.spend.c, _key(dimension)
    return select(
        key.label("key"),
        func.count().label("calls"),
        func.sum(s.input_tokens).label("input_tokens"),
        func.sum(s.output_tokens).label("output_tokens"),
        func.sum(s.cached_tokens).label("cached_tokens"),
        func.sum(s.nano_usd).label("nano_usd"),
        (func.count() - func.count(s.nano_usd)).label("unpriced"),
    ).group_by(key)


def _read(connection: Connection, query: Select[*tuple[Any, ...]]) -> list[Row]:
    return [_told(**row) for row in connection.execute(query).mappings()]


def _told(key: int | str, nano_usd: int | None, **counts: int) -> Row:
    """A row as it is told: days by their dates; sums of PostgreSQL come as decimals."""
    name = key if isinstance(key, str) else str(date.fromordinal(_EPOCH + key))
    whole = {name: int(count) for name, count in counts.items()}
    return Row(key=name, nano_usd=None if nano_usd is None else int(nano_usd), **whole)
