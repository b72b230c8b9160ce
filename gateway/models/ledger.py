"""The ledger: one durable row for each model call, with its tokens and its cost.

Amounts are stored and added as integers of 10⁻⁹ US dollars, and shown as decimals.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal, NewType, assert_never, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, RowMapping, Select, func, select

from gateway.contract.deltas import Tokens
from gateway.contract.messages import new_id
from gateway.counters import ModelLabels
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write

Nano = NewType("Nano", int)
"""An amount in 10⁻⁹ US dollars."""

_NANO = Decimal(1_000_000_000)
_CENT = Decimal("0.01")


def to_nano(usd: Decimal) -> Nano:
    """Convert US dollars to a stored amount, rounded up."""
    return Nano(int((usd * _NANO).to_integral_value(ROUND_CEILING)))


def to_usd(amount: int) -> Decimal:
    """Convert a stored amount to US dollars, exactly."""
    return Decimal(amount) / _NANO


def format_usd(usd: Decimal) -> str:
    """Format an amount for display: to the cent, or to two significant digits below one cent."""
    if usd >= _CENT or not usd:
        return f"${usd:,.2f}"
    places = max(2, 1 - usd.adjusted())
    return f"${usd:.{min(places, 9)}f}"


State = Literal["reserved", "estimated", "counted"]
Dimension = Literal["day", "session", "channel", "person", "agent", "provider", "model", "plugin", "room"]
"""Column to group amounts by. A model is named with its provider; "" as plugin is a turn's own calls.

A room is the chat of a conversation, as ``channel:chat``; the channel alone if each conversation is a
separate chat, and "" if the conversation was deleted.
"""

_COLUMNS = (
    "id at state session channel person agent provider model"
    " input_tokens output_tokens cached_tokens cache_write_tokens nano_usd plugin message"
)
PUT_SPEND = Write("upsert", 70, t.spend, _COLUMNS)
DROP_SPEND = Write("delete", 71, t.spend, "id")

_COUNTS = ("calls", "input_tokens", "output_tokens", "cached_tokens", "unpriced")
_DAY_MS = 86_400_000
_MOST_NAMED = 500
_EPOCH = date(1970, 1, 1).toordinal()


class Caller(Struct, frozen=True):
    """The session, user, agent and model of a call. ``person`` is channel and user id.

    ``plugin`` is the plugin that made the call, "" for a turn. ``message`` is the message that the call works
    for, by its id in the inbox.
    """

    session: str
    channel: str
    person: str
    agent: str
    provider: str
    model: str
    plugin: str = ""
    message: str = ""


class UsageRow(Struct, frozen=True, kw_only=True):
    """Usage of one key of each dimension. ``nano_usd`` is None without any known price."""

    keys: tuple[str, ...]
    calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    nano_usd: int | None
    unpriced: int
    """Number of calls without a known price; they do not count in ``nano_usd``."""

    @property
    def key(self) -> str:
        """The key of the first dimension."""
        return self.keys[0]


class DearSession(Struct, frozen=True):
    """A session with what it cost. ``title`` is its id if it has none yet, and empty if it was deleted."""

    session: str
    title: str
    channel: str
    calls: int
    tokens: int
    nano_usd: int


class Place(Struct, frozen=True, gc=False):
    """The part of a conversation's address that names its chat."""

    account: str = ""
    chat: str = ""


PLACES = msgspec.json.Decoder(Place)


def in_chat(chat: str) -> ColumnElement[bool]:
    """Return the condition that conversations of a chat meet."""
    return t.sessions.c.address.contains(f'"chat":{msgspec.json.encode(chat).decode()}', autoescape=True)


class Ledger:
    """Writes model calls to the store, and sums them up."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._labels = ModelLabels()
        self.calls: Counter[tuple[str, str]] = Counter()
        """Number of calls since the start, by provider and model."""
        self.nano_usd: Counter[tuple[str, str]] = Counter()
        """Known cost since the start, by provider and model."""

    async def reserve(self, call_id: str, caller: Caller, at: int, tokens: Tokens, nano_usd: int) -> None:
        """Write the largest possible cost of a call, durably, before the call."""
        await self._store.write(_row(call_id, caller, at, "reserved", tokens, nano_usd))

    def record(
        self, call_id: str | None, caller: Caller, at: int, state: State, tokens: Tokens, nano_usd: int | None
    ) -> None:
        """Write the cost of a call in place of its reservation, without waiting for the write."""
        model = self._labels.of(caller.provider, caller.model)
        self.calls[model] += 1
        self.nano_usd[model] += nano_usd or 0
        self._submit(_row(call_id or new_id(), caller, at, state, tokens, nano_usd))

    def release(self, call_id: str) -> None:
        """Delete the reservation of a call that produced nothing."""
        self._submit((DROP_SPEND, (call_id,)))

    async def spent(
        self,
        since: int,
        dimension: Dimension | None,
        keys: Collection[str],
        until: int | None = None,
        only: Mapping[str, str] | None = None,
    ) -> int:
        """Return the amount spent or reserved between two times: for some keys of a dimension, or all.

        ``only`` restricts other dimensions to one key each.
        """
        query = select(func.coalesce(func.sum(t.spend.c.nano_usd), 0)).where(
            *_between(since, until, only or {})
        )
        if dimension is not None:
            query = query.where(_key(dimension).in_(keys))
        return await self._store.read(lambda c: int(c.execute(query).scalar_one()))

    async def usage_by(self, dimension: Dimension, since: int, until: int, **only: str) -> list[UsageRow]:
        """Return the usage between two times by key: days in order, anything else by descending cost.

        ``only`` restricts other dimensions to one key each.
        """
        rows = await self.usage((dimension,), since, until, only)
        if dimension == "day":
            return sorted(rows, key=lambda row: row.key)
        return sorted(
            rows, key=lambda row: (-(row.nano_usd or 0), -row.input_tokens - row.output_tokens, row.key)
        )

    async def usage(
        self, dimensions: Sequence[Dimension], since: int, until: int, only: Mapping[str, str]
    ) -> list[UsageRow]:
        """Return the usage between two times for each combination of keys, in no order."""
        query = _grouped(dimensions).where(*_between(since, until, only))
        rooms = [place for place, dimension in enumerate(dimensions) if dimension == "room"]
        return await self._store.read(lambda c: _in_rooms(c, _read(c, query), rooms))

    async def dearest(
        self, since: int, until: int, only: Mapping[str, str], most: int = 10
    ) -> list[DearSession]:
        """Return the sessions that cost most between two times, by descending cost."""
        s, m = t.spend.c, t.sessions.c
        usd = func.sum(s.nano_usd)
        counts = func.count(), func.sum(s.input_tokens + s.output_tokens), usd
        query = (
            select(s.session, func.min(s.channel), *counts)
            .where(*_between(since, until, only))
            .group_by(s.session)
            .having(usd > 0)
            .order_by(usd.desc(), s.session)
            .limit(most)
        )

        def read(connection: Connection) -> list[DearSession]:
            found = connection.execute(query).all()
            wanted = select(m.id, m.title).where(m.id.in_([row[0] for row in found]))
            titles = {row.id: row.title or row.id for row in connection.execute(wanted)}
            return [
                DearSession(row[0], titles.get(row[0], ""), row[1], int(row[2]), int(row[3]), int(row[4]))
                for row in found
            ]

        return await self._store.read(read)

    async def first_at(self, since: int, only: Mapping[str, str]) -> int | None:
        """Return the time of the first call since a time; None without any."""
        query = select(func.min(t.spend.c.at)).where(*_between(since, None, only))
        return await self._store.read(lambda c: c.execute(query).scalar())

    async def after_this_time_of_day(self, since: int, now: int, only: Mapping[str, str]) -> int:
        """Return what the days from ``since`` to yesterday cost after this time of the day."""
        s, today = t.spend.c, now - now % _DAY_MS
        query = select(func.coalesce(func.sum(s.nano_usd), 0)).where(
            *_between(since, today, only), s.at % _DAY_MS > now % _DAY_MS
        )
        return await self._store.read(lambda c: int(c.execute(query).scalar_one()))

    def _submit(self, op: Op) -> None:
        self._store.submit([op]).add_done_callback(lambda written: written.exception())


def _row(call_id: str, caller: Caller, at: int, state: State, tokens: Tokens, nano_usd: int | None) -> Op:
    user = (caller.session, caller.channel, caller.person, caller.agent, caller.provider, caller.model)
    counts = (tokens.input, tokens.output, tokens.cached, tokens.cache_write)
    return PUT_SPEND, (call_id, at, state, *user, *counts, nano_usd, caller.plugin, caller.message)


def _key(dimension: Dimension) -> ColumnElement[Any]:
    s = t.spend.c
    match dimension:
        case "day":
            return s.at // _DAY_MS
        case "model":
            return s.provider + "/" + s.model
        case "room":
            return s.session  # ``_in_rooms`` replaces it
        case "session" | "channel" | "person" | "agent" | "provider" | "plugin":
            return s[dimension]
        case _:
            assert_never(dimension)


def _between(since: int, until: int | None, only: Mapping[str, str]) -> list[ColumnElement[bool]]:
    s = t.spend.c
    ends = [] if until is None else [s.at < until]
    return [s.at >= since, *ends, *(_is(cast("Dimension", name), key) for name, key in only.items())]


def _is(dimension: Dimension, key: str) -> ColumnElement[bool]:
    if dimension != "room":
        return _key(dimension) == key
    channel, _, chat = key.partition(":")
    m = t.sessions.c
    in_room = in_chat(chat) if chat else m.channel == channel
    return t.spend.c.session.in_(select(m.id).where(m.channel == channel, in_room))


def _in_rooms(connection: Connection, rows: list[UsageRow], places: Sequence[int]) -> list[UsageRow]:
    """Replace sessions at these places of the keys by their rooms. Rows may then have equal keys."""
    if not places:
        return rows
    m, wanted = t.sessions.c, {row.keys[place] for row in rows for place in places}
    rooms: dict[str, str] = {}
    names = sorted(wanted)
    for start in range(0, len(names), _MOST_NAMED):
        some = names[start : start + _MOST_NAMED]
        for row in connection.execute(select(m.id, m.channel, m.address).where(m.id.in_(some))):
            chat = PLACES.decode(row.address).chat
            rooms[row.id] = row.channel if chat in ("", row.id) else f"{row.channel}:{chat}"

    def named(keys: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(rooms.get(key, "") if place in places else key for place, key in enumerate(keys))

    return [replace(row, keys=named(row.keys)) for row in rows]


def _grouped(dimensions: Sequence[Dimension]) -> Select[*tuple[Any, ...]]:
    s, keys = t.spend.c, [_key(dimension).label(f"key_{n}") for n, dimension in enumerate(dimensions)]
    return select(
        *keys,
        func.count().label("calls"),
        func.sum(s.input_tokens).label("input_tokens"),
        func.sum(s.output_tokens).label("output_tokens"),
        func.sum(s.cached_tokens).label("cached_tokens"),
        func.sum(s.nano_usd).label("nano_usd"),
        (func.count() - func.count(s.nano_usd)).label("unpriced"),
    ).group_by(*keys)


def _read(connection: Connection, query: Select[*tuple[Any, ...]]) -> list[UsageRow]:
    return [_usage_row(row) for row in connection.execute(query).mappings()]


def _usage_row(row: RowMapping) -> UsageRow:
    """Build a row: a day's key is its date, and the decimal sums of PostgreSQL become integers."""
    keys = [value for name, value in row.items() if name.startswith("key_")]
    amount = row["nano_usd"]
    return UsageRow(
        keys=tuple(key if isinstance(key, str) else str(date.fromordinal(_EPOCH + key)) for key in keys),
        nano_usd=None if amount is None else int(amount),
        **{name: int(row[name]) for name in _COUNTS},
    )
