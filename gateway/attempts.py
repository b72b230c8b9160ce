"""Attempts: how often somebody may try something within some time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

_ROOM = 1_000
"""How many are remembered, at least, before those whose time is over are forgotten."""


class Attempts:
    """Counts attempts by whose they are: at most ``most`` within ``seconds``, in memory."""

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._made: dict[str, deque[float]] = {}
        self._room = _ROOM

    def used_up(self, whose: str) -> bool:
        """Whether there were so many already."""
        made = self._made.get(whose)
        if made is None:
            return False
        horizon = self._clock() - self._seconds
        while made and made[0] <= horizon:
            made.popleft()
        return len(made) >= self._most

    def count(self, whose: str) -> None:
        """One more was made."""
        now = self._clock()
        if len(self._made) >= self._room:
            horizon = now - self._seconds
            self._made = {who: made for who, made in self._made.items() if made and made[-1] > horizon}
            self._room = max(_ROOM, 2 * len(self._made))
        # More than the most need not be remembered: the oldest of them are the first to be forgotten.
        self._made.setdefault(whose, deque(maxlen=self._most)).append(now)

    def forget(self, whose: str) -> None:
        """Begin anew."""
        self._made.pop(whose, None)
