"""State of a bot that survives a restart: read position, login budget, registered commands, known DMs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from msgspec import Struct

from channels.discord.parse import EPOCH_MS
from gateway import now_ms
from gateway.channel import Cursor

SESSION, BUDGET, COMMANDS, DM_PREFIX = "", "identify", "commands", "dm:"
"""Shards of a bot's cursors; that of a direct-message channel has the channel's id after the prefix."""

T = TypeVar("T")
_MARGIN_MS = 60_000
_MAX_LOGINS, _LOGINS_PER_DAY, _DAY_MS = 100.0, 850.0, 86_400_000
"""Size of the login budget and its growth: at most 950 logins in 24 hours, below Discord's 1000."""
_LOGIN_INTERVAL_MS = 5_000


class Position(Struct, frozen=True, array_like=True):
    """Gateway session to resume, its last stored event (``seq``) and its URL.

    ``seen`` is the greatest message id up to which all messages are stored; 0 for a bot that never ran.
    """

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
        """Return the message id after which histories are read again when the session cannot be resumed.

        It is one minute before ``seen``, because messages do not arrive strictly in the order of their ids.
        """
        return max(0, self.seen - (_MARGIN_MS << 22))


class LoginBudget(Struct, frozen=True, array_like=True):
    """Budget of logins. After 1000 in 24 hours Discord ends all sessions and resets the bot token.

    ``left`` is the number of logins left at the Unix time ``at`` (ms); it grows continuously. An ``at`` in
    the future, from a clock that was ahead, counts as now.
    """

    left: float = _MAX_LOGINS
    at: int = 0

    def after(self, now: int) -> LoginBudget:
        """Return the budget at the Unix time ``now`` (ms)."""
        gained = max(0, now - self.at) * _LOGINS_PER_DAY / _DAY_MS
        return LoginBudget(min(_MAX_LOGINS, self.left + gained), now)

    def wait(self, now: int) -> float:
        """Return the seconds until a login is allowed."""
        used = self.at and self.left < _MAX_LOGINS
        interval = max(0, min(self.at, now) + _LOGIN_INTERVAL_MS - now) if used else 0
        refill = max(0.0, 1 - self.after(now).left) * _DAY_MS / _LOGINS_PER_DAY
        return max(interval, refill) / 1000

    def spend(self, now: int) -> LoginBudget:
        """Return the budget after one login."""
        budget = self.after(now)
        return LoginBudget(budget.left - 1, budget.at)


class StoredState:
    """Stored state of a bot. ``account`` is the bot's user id."""

    def __init__(self, cursors: Iterable[Cursor], account: str) -> None:
        self.account = account
        self._values = {c.shard: c.value for c in cursors if c.account == account}

    @property
    def position(self) -> Position:
        """Return the read position; an empty one if none is stored."""
        return _read(self._values.get(SESSION), Position)

    @property
    def budget(self) -> LoginBudget:
        """Return the login budget; a full one if none is stored."""
        return _read(self._values.get(BUDGET), LoginBudget)

    @property
    def commands(self) -> str:
        """Return the hash of the commands that were registered last; empty if there were none."""
        return self._values.get(COMMANDS, "")

    @property
    def dms(self) -> set[str]:
        """Return the ids of the known direct-message channels."""
        return {shard.removeprefix(DM_PREFIX) for shard in self._values if shard.startswith(DM_PREFIX)}

    def cursor(self, value: Position | LoginBudget) -> Cursor:
        """Return the cursor that stores a value."""
        shard = SESSION if isinstance(value, Position) else BUDGET
        return Cursor(self.account, msgspec.json.encode(value).decode(), shard)


def first_seen() -> int:
    """Return the ``seen`` of a new bot: its ``floor`` is now, so that no older messages are read."""
    return max(0, now_ms() - EPOCH_MS + _MARGIN_MS) << 22


def _read(value: str | None, kind: type[T]) -> T:
    if value is None:
        return kind()
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError:
        return kind()
