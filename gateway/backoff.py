"""Backoff: pauses between retries that double up to a limit, for everything here that retries.

The pause follows from the number of failures in a row, which the caller counts: it knows what a success is.
Some platforms name a pause themselves; their figure comes first, and the caller uses it instead of this one.
"""

from __future__ import annotations

import random

from msgspec import Struct

_MAX_DOUBLINGS = 60
"""Beyond this the power would overflow a float after enough failures; every limit is reached long before."""


class Backoff(Struct, frozen=True):
    """Pauses in seconds: ``first``, then twice as long each time, at most ``longest``."""

    first: float
    longest: float
    jitter: float = 0.0
    """Largest random change of a pause, as a fraction of it: 0.25 lengthens it by up to 25 %, -0.5 shortens
    it by up to 50 %. It spreads clients that failed at the same moment, and may exceed ``longest``."""

    def pause(self, failures: int) -> float:
        """Return the seconds to wait after a number of failures in a row; 0 after none."""
        if failures < 1:
            return 0.0
        pause = min(self.longest, self.first * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))
        # Not for secrets: the random generator only spreads load.
        return pause * (1 + self.jitter * random.random()) if self.jitter else pause  # noqa: S311
