"""Whether a program can be used, asked of it seldom: the answer is kept for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

GOOD_SECONDS = 60.0
"""How long a yes is believed."""
BAD_SECONDS = 5.0
"""How long a no is believed."""


class Availability:
    """The answer for one program. Whoever asks while it is being found out waits for the same answer."""

    def __init__(
        self, probe: Callable[[], Awaitable[bool]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._asking = asyncio.Lock()
        self._answer = False
        self._until = -1.0

    async def check(self) -> bool:
        """The answer, found out anew if the last one is too old."""
        if self._clock() < self._until:
            return self._answer
        async with self._asking:
            if self._clock() >= self._until:
                self._answer = await self._probe()
                self._until = self._clock() + (GOOD_SECONDS if self._answer else BAD_SECONDS)
            return self._answer

    def forget(self) -> None:
        """Find out anew the next time."""
        self._until = -1.0
