"""How far a bot has read, and how often it may still log in: what is kept between two processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from msgspec import Struct

from channels.discord.wire import EPOCH_MS
from gateway import Cursor, now_ms

SESSION, BUDGET, COMMANDS, DM_PREFIX = "", "identify", "commands", "dm:"
"""The shards of a bot's cursors."""

T = TypeVar("T")
_MARGIN_MS = 60_000
_BURST, _PER_DAY, _DAY_MS = 100.0, 850.0, 86_400_000
_APART_MS = 5_000


class Position(Struct, frozen=True, array_like=True):
    """A session to resume, and ``seen``: every message up to this id was read. 0 is nothing yet."""

    session: str | None = None
    seq: int | None = None
    url: str | None = None
    seen: int = 0

    @property
    def resumable(self) -> bool:
        """Whether there is a session to go on with."""
        return self.session is not None and self.seq is not None

    @property
    def floor(self) -> int:
        """From where to read again: rooms do not tell strictly in the order of ids."""
        return max(0, self.seen - (_MARGIN_MS << 22))


class Budget(Struct, frozen=True, array_like=True):
    """Logins: Discord ends all sessions of a bot, and its token, after 1000 in a day.

    There are ``left`` of them at the time ``at`` (milliseconds), and slowly more.
    """

    left: float = _BURST
    at: int = 0

    def after(self, now: int) -> Budget:
        """What there is at a later time."""
        gained = max(0, now - self.at) * _PER_DAY / _DAY_MS
        return Budget(min(_BURST, self.left + gained), max(now, self.at))

    def wait(self, now: int) -> float:
        """Seconds until the next login."""
        apart = max(0, self.at + _APART_MS - now) if self.at and self.left < _BURST else 0
        short = max(0.0, 1 - self.after(now).left) * _DAY_MS / _PER_DAY
        return max(apart, short) / 1000

    def spend(self, now: int) -> Budget:
        """One login."""
        there = self.after(now)
        return Budget(there.left - 1, there.at)


class Kept:
    """What an earlier process kept."""

    def __init__(self, cursors: Iterable[Cursor], account: str) -> None:
        self.account = account
        self._values = {c.shard: c.value for c in cursors if c.account == account}

    @property
    def position(self) -> Position:
        """Where to go on reading."""
        return _read(self._values.get(SESSION), Position)

    @property
    def budget(self) -> Budget:
        """Logins that are left."""
        return _read(self._values.get(BUDGET), Budget)

    @property
    def commands(self) -> str:
        """Which commands the platform was told of."""
        return self._values.get(COMMANDS, "")

    @property
    def dms(self) -> set[str]:
        """The direct conversations there were."""
        return {shard.removeprefix(DM_PREFIX) for shard in self._values if shard.startswith(DM_PREFIX)}

    def cursor(self, value: Position | Budget) -> Cursor:
        """A value to be kept."""
        shard = SESSION if isinstance(value, Position) else BUDGET
        return Cursor(self.account, msgspec.json.encode(value).decode(), shard)


def first_seen() -> int:
    """The ``seen`` of a bot that begins to listen: everything from now on is its business."""
    return max(0, now_ms() - EPOCH_MS + _MARGIN_MS) << 22


def _read(value: str | None, kind: type[T]) -> T:
    if value is None:
        return kind()
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError:
        return kind()
