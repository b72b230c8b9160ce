"""The time of a fake platform, and the signal that its state changed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress


class Changes:
    """A counter of changes, and a way to wait for the next one."""

    def __init__(self) -> None:
        self.version = 0
        self._next = asyncio.Event()

    def bump(self) -> None:
        """Count a change and wake all waiters."""
        self.version += 1
        self._next.set()
        self._next = asyncio.Event()

    async def next(self) -> None:
        """Wait for the next change."""
        await self._next.wait()

    async def after(self, version: int, seconds: float) -> int:
        """Return the version once it exceeds ``version``, or after ``seconds`` of real time."""
        with suppress(TimeoutError):
            await self.until(lambda: self.version > version, seconds)
        return self.version

    async def until(self, condition: Callable[[], object], seconds: float) -> None:
        """Wait until a condition holds; it is tested after each change.

        Raises TimeoutError after so many real seconds.
        """
        async with asyncio.timeout(seconds):
            while not condition():
                await self.next()


class Clock:
    """Platform time in seconds since 1970: real time, plus what tests advance it by.

    In one real second ``pace`` platform seconds pass. ``skew`` shifts only the dates that the platform
    writes, in seconds.
    """

    def __init__(self, *, pace: float = 1, skew: float = 0) -> None:
        self.pace = pace
        self.skew = skew
        self._start = time.time()
        self._begun = time.monotonic()
        self._stopped: float | None = None
        self._ahead = 0.0
        self._open: dict[asyncio.Timeout, float] = {}

    @property
    def waiting(self) -> int:
        """The number of waits for platform time that have not ended."""
        return len(self._open)

    def now(self) -> float:
        """Return the platform time."""
        real = time.monotonic() if self._stopped is None else self._stopped
        return self._start + (real - self._begun) * self.pace + self._ahead

    def date(self) -> int:
        """Return the time that the platform writes into messages: whole seconds, with the skew."""
        return int(self.now() + self.skew)

    def stop(self) -> None:
        """Stop the clock: from now on only ``advance`` moves it."""
        self._stopped = time.monotonic()

    def advance(self, seconds: float) -> None:
        """Move the clock on. Waits that end before the new time end at once."""
        self._ahead += seconds
        for limit, deadline in self._open.items():
            self._reschedule(limit, deadline)

    @asynccontextmanager
    async def within(self, seconds: float) -> AsyncGenerator[None]:
        """Raise TimeoutError if the block takes longer than ``seconds`` of the platform's time."""
        deadline = self.now() + seconds
        async with asyncio.timeout(None) as limit:
            self._open[limit] = deadline
            try:
                self._reschedule(limit, deadline)
                yield
            finally:
                del self._open[limit]

    async def sleep(self, seconds: float) -> None:
        """Wait for ``seconds`` of the platform's time."""
        with suppress(TimeoutError):
            async with self.within(seconds):
                await asyncio.get_running_loop().create_future()

    def _reschedule(self, limit: asyncio.Timeout, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        limit.reschedule(loop.time() + max(0.0, deadline - self.now()) / self.pace)
