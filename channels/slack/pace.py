"""How often Slack may be called: by method and workspace, and once a second in each room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic

from msgspec import Struct

Limit = tuple[float, float]
"""Calls a second, and how many may come at once."""

_TIER_2, _TIER_3, _TIER_4 = (20 / 60, 10.0), (50 / 60, 20.0), (100 / 60, 30.0)
_PER_METHOD: Mapping[str, Limit] = {
    "agents.sessions.setStatus": _TIER_3,
    "assistant.threads.setStatus": (300 / 60, 20.0),
    "auth.test": (300 / 60, 10.0),
    "chat.appendStream": _TIER_4,
    "chat.delete": _TIER_3,
    "chat.postMessage": (300 / 60, 10.0),
    "chat.startStream": _TIER_2,
    "chat.stopStream": _TIER_2,
    "chat.update": _TIER_3,
    "conversations.history": _TIER_3,
    "conversations.replies": _TIER_3,
    "files.completeUploadExternal": _TIER_4,
    "files.getUploadURLExternal": _TIER_4,
    "files.info": _TIER_4,
    "reactions.add": _TIER_3,
    "reactions.remove": _TIER_2,
    "users.conversations": _TIER_3,
}
_OTHERS: Limit = _TIER_2
_PER_ROOM: Limit = (1.0, 3.0)
"""Messages that are placed in one room."""
_PLACING = frozenset({"chat.postMessage", "chat.startStream", "files.completeUploadExternal"})
_RESERVED = 0.3
"""The share of each burst that is left for calls that are urgent."""


class _Bucket(Struct):
    rate: float
    burst: float
    level: float
    at: float
    held: float = 0.0

    def wait(self, now: float, reserve: float) -> float:
        """Seconds until a call may pass."""
        self.level = min(self.burst, self.level + (now - self.at) * self.rate)
        self.at = now
        return max(self.held - now, (1 + reserve * self.burst - self.level) / self.rate)


class Pace:
    """The windows of one account. ``clock`` tells seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str], _Bucket] = {}

    async def turn(self, method: str, room: str = "", *, urgent: bool = True) -> None:
        """Wait until a method may be called; what is not urgent leaves room for what is."""
        buckets = [self._bucket((method, ""), _PER_METHOD.get(method, _OTHERS))]
        if method in _PLACING:
            buckets.append(self._bucket(("", room), _PER_ROOM))
        reserve = 0.0 if urgent else _RESERVED
        while True:
            pause = max(bucket.wait(self._clock(), reserve) for bucket in buckets)
            if pause <= 0:
                break
            await asyncio.sleep(pause)
        for bucket in buckets:
            bucket.level -= 1

    def spare(self, *methods: str) -> bool:
        """Take a turn of each of these methods if nobody has to wait for that; for what can be left out."""
        buckets = [self._bucket((method, ""), _PER_METHOD.get(method, _OTHERS)) for method in methods]
        if any(bucket.wait(self._clock(), _RESERVED) > 0 for bucket in buckets):
            return False
        for bucket in buckets:
            bucket.level -= 1
        return True

    def hold(self, method: str, seconds: float) -> None:
        """The platform asked to wait: nobody calls this method before."""
        bucket = self._bucket((method, ""), _PER_METHOD.get(method, _OTHERS))
        bucket.held = max(bucket.held, self._clock() + seconds)

    def _bucket(self, key: tuple[str, str], limit: Limit) -> _Bucket:
        rate, burst = limit
        found = self._buckets.get(key)
        if found is None:
            if len(self._buckets) > 10_000:
                self._buckets.clear()
            found = self._buckets[key] = _Bucket(rate, burst, burst, self._clock())
        return found
