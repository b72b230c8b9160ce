"""Persistent state of a bot between two processes: the read position and the remaining logins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from msgspec import Struct

from channels.discord.parse import EPOCH_MS
from gateway import now_ms
from gateway.channel import Cursor

SESSION, BUDGET, COMMANDS, DM_PREFIX = "", "identify", "commands", "dm:"
"""Shard names of a bot's cursors."""

T = TypeVar("T")
_MARGIN_MS = 60_000
_BURST, _PER_DAY, _DAY_MS = 100.0, 850.0, 86_400_000
_APART_MS = 5_000


class Position(Struct, frozen=True, array_like=True):
    """Session to resume, and ``seen``: all messages up to this id were read. 0 means that nothing was read
    yet."""

    session: str | None = None
    seq: int | None = None
    url: str | None = None
    seen: int = 0

    @property
    def resumable(self) -> bool:
        """Return whether there is a session to resume."""
        return self.session is not None and self.seq is not None

    @property
    def floor(self) -> int:
        """Message id to read again from: one minute before ``seen``, because channels do not deliver
        strictly by id."""
        return max(0, self.seen - (_MARGIN_MS << 22))


class Budget(Struct, frozen=True, array_like=True):
    """Login budget: after 1000 logins in a day, Discord ends all sessions of a bot and resets its token.

    ``left`` logins remain at the time ``at`` (milliseconds), and the number grows slowly. An ``at`` in the
    future comes from a clock that was ahead, and counts as now.
    """

    left: float = _BURST
    at: int = 0

    def after(self, now: int) -> Budget:
        """Return the budget at a later time."""
        gained = max(0, now - self.at) * _PER_DAY / _DAY_MS
        return Budget(min(_BURST, self.left + gained), now)

    def wait(self, now: int) -> float:
        """Return the seconds until the next login."""
        apart = max(0, min(self.at, now) + _APART_MS - now) if self.at and self.left < _BURST else 0
        short = max(0.0, 1 - self.after(now).left) * _DAY_MS / _PER_DAY
        return max(apart, short) / 1000

    def spend(self, now: int) -> Budget:
        """Return the budget after one login."""
        there = self.after(now)
        return Budget(there.left - 1, there.at)


class Kept:
    """State stored by an earlier process."""

    def __init__(self, cursors: Iterable[Cursor], account: str) -> None:
        self.account = account
        self._values = {c.shard: c.value for c in cursors if c.account == account}

    @property
    def position(self) -> Position:
        """Position to resume from."""
        return _read(self._values.get(SESSION), Position)

    @property
    def budget(self) -> Budget:
        """Remaining logins."""
        return _read(self._values.get(BUDGET), Budget)

    @property
    def commands(self) -> str:
        """Hash of the commands that were registered last."""
        return self._values.get(COMMANDS, "")

    @property
    def dms(self) -> set[str]:
        """Ids of the known direct messages' channels."""
        return {shard.removeprefix(DM_PREFIX) for shard in self._values if shard.startswith(DM_PREFIX)}

    def cursor(self, value: Position | Budget) -> Cursor:
        """Return a value as a cursor to store."""
        shard = SESSION if isinstance(value, Position) else BUDGET
        return Cursor(self.account, msgspec.json.encode(value).decode(), shard)


def first_seen() -> int:
    """Return the ``seen`` of a new bot: only messages from now on are read."""
    return max(0, now_ms() - EPOCH_MS + _MARGIN_MS) << 22


def _read(value: str | None, kind: type[T]) -> T:
    if value is None:
        return kind()
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError:
        return kind()
