"""The platform's own time, which a test moves ahead instead of waiting."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable


class Clock:
    """Seconds since 1970. Whoever waits is woken when time is moved ahead, or by ``beat`` when something
    changed.

    ``sleeping`` is how many wait for a time of day. ``skew`` is how far this clock goes wrong against the
    machine's, in seconds.
    """

    def __init__(self, skew: float = 0) -> None:
        self.skew = skew
        self._ahead = 0.0
        self._beat = asyncio.Event()
        self.beats = 0
        self.sleeping = 0

    def now(self) -> float:
        """What time it is here."""
        return time.time() + self._ahead

    def date(self) -> int:
        """What the platform writes into messages: whole seconds, with the skew."""
        return int(self.now() + self.skew)

    def pass_time(self, seconds: float) -> None:
        """Let so much time have passed."""
        self._ahead += seconds
        self.beat()

    def beat(self) -> None:
        """Something changed: wake everybody who waits."""
        self.beats += 1
        self._beat.set()
        self._beat = asyncio.Event()

    async def changed(self, until: float = math.inf) -> None:
        """Wait for the next beat, at most until a time. Look again afterwards: it may not be what was
        awaited."""
        left = until - self.now()
        if left <= 0:
            return
        beat = self._beat
        try:
            async with asyncio.timeout(None if math.isinf(left) else left):
                await beat.wait()
        except TimeoutError:
            return

    async def sleep_until(self, at: float, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait for a time of day, or until something else is so."""
        self.sleeping += 1
        try:
            while self.now() < at and not unless():
                await self.changed(at)
        finally:
            self.sleeping -= 1
