"""A cached check of whether a program can be used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

GOOD_SECONDS = 60.0
"""Seconds for which a positive result is cached."""
BAD_SECONDS = 5.0
"""Seconds for which a negative result is cached."""


class Availability:
    """The cached result for one program. Concurrent callers share one check."""

    def __init__(
        self, probe: Callable[[], Awaitable[bool]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._asking = asyncio.Lock()
        self._answer = False
        self._until = -1.0

    async def check(self) -> bool:
        """Return the result; repeat the check if the cached one has expired."""
        if self._clock() < self._until:
            return self._answer
        async with self._asking:
            if self._clock() >= self._until:
                self._answer = await self._probe()
                self._until = self._clock() + (GOOD_SECONDS if self._answer else BAD_SECONDS)
            return self._answer

    def forget(self) -> None:
        """Discard the cached result, so that the next call repeats the check."""
        self._until = -1.0
