"""Tells who waits that something changed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Changes:
    """A number that grows with every change, and a way to wait for the next one."""

    def __init__(self) -> None:
        self.version = 0
        self._news = asyncio.Event()

    def bump(self) -> None:
        """Something changed."""
        self.version += 1
        self._news.set()
        self._news = asyncio.Event()

    async def after(self, version: int, seconds: float) -> int:
        """The version as soon as it is greater than the one given; at the latest after some seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.version <= version:
                    await self._news.wait()
        return self.version

    async def until(self, true: Callable[[], bool], seconds: float) -> None:
        """Return when something is true. Raises TimeoutError when it does not become so."""
        async with asyncio.timeout(seconds):
            while not true():
                await self._news.wait()
