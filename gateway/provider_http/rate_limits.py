"""Rate limits: usage in a sliding minute, and the reset times in a backend's response headers.

Each vendor's ``remaining`` header (``x-ratelimit-remaining-tokens``,
``anthropic-ratelimit-tokens-remaining``) has a ``reset`` header beside it: seconds, a duration such as
``6m0s``, or a point in time.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

from msgspec import Struct

MINUTE = 60.0

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_UNITS = (86_400.0, 3600.0, 60.0, 1.0, 0.001)
_EPOCH = 1e9
"""Numbers above this are seconds since 1970; numbers above a hundred times this are milliseconds."""


class WindowEntry(Struct):
    """An amount that was used at a time."""

    at: float
    amount: int


class SlidingWindow:
    """Usage within the last minute, against a limit. Times are seconds of any monotonic clock."""

    __slots__ = ("_entries", "_limit", "_used")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: deque[WindowEntry] = deque()
        self._used = 0

    def available_at(self, amount: int, now: float) -> float:
        """Return the time when ``amount`` fits. More than the limit fits when the window is empty."""
        while self._entries and self._entries[0].at + MINUTE <= now:
            self._used -= self._entries.popleft().amount
        over = self._used + amount - self._limit
        when = now
        for entry in self._entries:
            if over <= 0:
                break
            over -= entry.amount
            when = entry.at + MINUTE
        return when

    def used(self, now: float) -> int:
        """Return the amount within the last minute."""
        self.available_at(0, now)
        return self._used

    def take(self, amount: int, now: float) -> WindowEntry:
        """Record usage."""
        entry = WindowEntry(now, amount)
        self._entries.append(entry)
        self._used += amount
        return entry

    def correct(self, entry: WindowEntry, amount: int) -> None:
        """Replace an estimated amount by the real one, if the entry is still in the window."""
        # By identity: two calls at the same time with the same estimate are equal.
        if any(entry is known for known in self._entries):
            self._used += amount - entry.amount
            entry.amount = amount


def seconds_until_reset(headers: Mapping[str, str], now: float | None = None) -> float:
    """Return the seconds until an exhausted limit resets, 0 if none is exhausted.

    ``now`` is seconds since the epoch, by default the server's.
    """
    longest = 0.0
    for name, left in headers.items():
        # This runs for every response: the cheap substring test comes before lowercasing the name.
        if "emaining" in name and "ratelimit" in name.lower() and _is_zero(left):
            reset = headers.get(name.lower().replace("remaining", "reset"), "")
            longest = max(longest, parse_reset(reset, server_time(headers) if now is None else now))
    return longest


def server_time(headers: Mapping[str, str]) -> float:
    """Return the time of the server's clock, which its dates refer to; seconds since the epoch.

    It is this machine's time if the headers have none.
    """
    try:
        return parsedate_to_datetime(headers.get("date", "")).timestamp()
    except (ValueError, OverflowError):
        return time.time()


def parse_reset(text: str, now: float) -> float:
    """Return the seconds until the reset that ``text`` names; 0 if it is unreadable or in the past."""
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        return _duration(text) or _moment(text, now)
    if number > _EPOCH * 100:
        number /= 1000
    seconds = number - now if number > _EPOCH else number
    return seconds if 0 < seconds < float("inf") else 0.0


def _is_zero(left: str) -> bool:
    try:
        return float(left) <= 0
    except ValueError:
        return False


def _duration(text: str) -> float:
    match = _DURATION.fullmatch(text.lower())
    if match is None or not text:
        return 0.0
    try:
        return sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS, strict=True) if part)
    except ValueError:
        return 0.0


def _moment(text: str, now: float) -> float:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return max(0.0, moment.timestamp() - now) if moment.tzinfo else 0.0
