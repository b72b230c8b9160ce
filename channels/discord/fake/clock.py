"""The platform's clock: real time, which tests may put forward."""

from __future__ import annotations

import time
from datetime import UTC, datetime


class Clock:
    """Seconds since 1970. ``advance`` lets hours pass at once; nothing that waits is woken by it."""

    def __init__(self) -> None:
        self._started = time.time() - time.monotonic()
        self._stopped: float | None = None
        self._ahead = 0.0

    def now(self) -> float:
        """The time on the platform."""
        running = self._started + time.monotonic() if self._stopped is None else self._stopped
        return running + self._ahead

    def stop(self) -> None:
        """From now on time only passes by ``advance``."""
        self._stopped = self._started + time.monotonic()

    def advance(self, seconds: float) -> None:
        """Let time pass on the platform, and nowhere else."""
        self._ahead += seconds


def stamp(seconds: float) -> str:
    """A time as the platform writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
