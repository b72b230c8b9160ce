"""A clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable


class _Timer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Time:
    """Stands still until it is moved. Counts how often it woke a waiter."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.woken = 0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = itertools.count()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], object], /) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    async def pass_by(self, seconds: float) -> None:
        end = self.now + seconds
        await settled()
        while self._timers and self._timers[0][0] <= end:
            self.strike(max(0, self._timers[0][0] - self.now))
            await settled()
        self.now = end

    def strike(self, seconds: float) -> None:
        """Move time, and ring the next timer if it is due; no waiter has run yet."""
        self.now += seconds
        if self._timers and self._timers[0][0] <= self.now + 1e-9:
            when, _, timer = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            if timer.callback is not None:
                self.woken += 1
                timer.callback()

    @property
    def waiting(self) -> int:
        return sum(timer.callback is not None for _, _, timer in self._timers)


async def settled() -> None:
    for _ in range(4):
        await asyncio.sleep(0)
