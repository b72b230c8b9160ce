"""The platform's clocks: one for waiting, which can run fast or be moved on, and one for stamps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Clock:
    """Measures waits and windows in platform seconds. ``pace`` of them pass in one real second.

    ``advance`` moves it on; whoever waits for a moment that is then past goes on at once.
    """

    def __init__(self, pace: float = 1) -> None:
        self.pace = pace
        self._start = time.monotonic()
        self._moved = 0.0
        self._open: dict[asyncio.Timeout, float] = {}

    def now(self) -> float:
        """Platform seconds since the start."""
        return (time.monotonic() - self._start) * self.pace + self._moved

    def advance(self, seconds: float) -> None:
        """Let platform time pass in no time."""
        self._moved += seconds
        for limit, deadline in self._open.items():
            self._set(limit, deadline)

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncGenerator[None]:
        """Raises TimeoutError when the block takes longer."""
        deadline = self.now() + seconds
        async with asyncio.timeout(None) as limit:
            self._open[limit] = deadline
            try:
                self._set(limit, deadline)
                yield
            finally:
                del self._open[limit]

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        try:
            async with self.within(seconds):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            return

    def _set(self, limit: asyncio.Timeout, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        limit.reschedule(loop.time() + max(0.0, deadline - self.now()) / self.pace)


class Stamps:
    """Timestamps in Slack's form, each later than the one before. ``skew`` shifts them, in seconds."""

    def __init__(self) -> None:
        self.skew = 0.0
        self._last = 0

    def seconds(self) -> int:
        """The platform's idea of the Unix time."""
        return int(time.time() + self.skew)

    def next(self) -> str:
        """A ``ts`` that nothing has had before."""
        self._last = max(self._last + 1, int((time.time() + self.skew) * 1_000_000))
        return f"{self._last // 1_000_000}.{self._last % 1_000_000:06}"
