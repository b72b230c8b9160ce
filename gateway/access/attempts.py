"""Attempts: limits how often one user or address may try something within a time window."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_MIN_CAPACITY = 1_000
"""Entries kept before expired ones are removed."""


class Attempts:
    """In-memory counts of attempts by key: at most ``most`` within ``seconds``."""

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._made: dict[str, deque[float]] = {}
        self._capacity = _MIN_CAPACITY

    def used_up(self, key: str) -> bool:
        """Return whether a key has reached its limit."""
        made = self._made.get(key)
        if made is None:
            return False
        horizon = self._clock() - self._seconds
        while made and made[0] <= horizon:
            made.popleft()
        return len(made) >= self._most

    def count(self, key: str) -> None:
        """Record an attempt."""
        now = self._clock()
        if len(self._made) >= self._capacity:
            horizon = now - self._seconds
            self._made = {key: made for key, made in self._made.items() if made and made[-1] > horizon}
            self._capacity = max(_MIN_CAPACITY, 2 * len(self._made))
        # Only the newest ``most`` attempts decide, so older ones are dropped to bound memory.
        self._made.setdefault(key, deque(maxlen=self._most)).append(now)

    def forget(self, key: str) -> None:
        """Reset the count of a key."""
        self._made.pop(key, None)
