"""How fast the bot may write: its room for a burst, and what the platform asked it to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Pace:
    """One message a second in a room with bursts, twenty a minute in a group, thirty a second altogether."""

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}
        self._held: dict[str, float] = {}

    @asynccontextmanager
    async def turn(self, chat: str, *, urgent: bool = False) -> AsyncGenerator[None]:
        """Wait until a call about a room may be made."""
        while (wait := self._wait(chat)) > 0:
            await asyncio.sleep(wait)
        for bucket in self._of(chat):
            bucket.take()
        yield

    def hold(self, chat: str, seconds: float) -> None:
        """The platform wants no more about this room for so long."""
        self._held[chat] = asyncio.get_running_loop().time() + seconds

    def held(self, chat: str) -> float:
        """Seconds until the room may be written to again, as the platform asked."""
        return max(0.0, self._held.get(chat, 0.0) - asyncio.get_running_loop().time())

    def _wait(self, chat: str) -> float:
        return max(self.held(chat), *(bucket.wait() for bucket in self._of(chat)))

    def _of(self, chat: str) -> list[_Bucket]:
        found = [self._bucket("", 30, 30.0), self._bucket(chat, 4, 1.0)]
        if chat.startswith("-"):
            found.append(self._bucket(f"{chat}/", 18, 18 / 60))
        return found

    def _bucket(self, key: str, burst: float, rate: float) -> _Bucket:
        if key not in self._buckets:
            self._buckets[key] = _Bucket(burst, rate)
        return self._buckets[key]


class _Bucket:
    def __init__(self, burst: float, rate: float) -> None:
        self.burst, self.rate, self.left = burst, rate, burst
        self.at = asyncio.get_running_loop().time()

    def wait(self) -> float:
        now = asyncio.get_running_loop().time()
        self.left = min(self.burst, self.left + (now - self.at) * self.rate)
        self.at = now
        return 0.0 if self.left >= 1 else (1 - self.left) / self.rate

    def take(self) -> None:
        self.left -= 1
