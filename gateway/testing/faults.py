"""Fault scripts for fake platforms: which of the bot's calls go wrong, by script or by chance."""

from __future__ import annotations

import random
from collections import deque
from typing import Literal

Fault = Literal["none", "slow_down", "fail_before", "fail_after", "drop_before", "drop_after"]
"""What becomes of a call: a 429; a 5xx before or after it was applied; no answer, before or after."""

FAULTS: tuple[Fault, ...] = ("slow_down", "fail_before", "fail_after", "drop_before", "drop_after")


class FaultScript:
    """Decides call by call: a ``share`` (0 to 1) fails by chance, ``repeats`` of the events come twice.

    The same seed spoils the same calls. What ``then`` says goes first.
    """

    def __init__(self, share: float = 0, *, repeats: float = 0, seed: int = 0) -> None:
        self.share = share
        self.repeats = repeats
        self._dice = random.Random(seed)  # noqa: S311 - repeatable faults, not a secret
        self._next: dict[str, deque[Fault]] = {}

    def then(self, *faults: Fault, method: str = "") -> None:
        """What happens to the next calls: of one method, or of any."""
        self._next.setdefault(method, deque()).extend(faults)

    def of(self, method: str = "") -> Fault:
        """What happens to this call."""
        for scripted in (self._next.get(method), self._next.get("")):
            if scripted:
                return scripted.popleft()
        return self._dice.choice(FAULTS) if self._chance(self.share) else "none"

    def doubles(self) -> bool:
        """Whether this event is delivered twice."""
        return self._chance(self.repeats)

    def _chance(self, share: float) -> bool:
        return share > 0 and self._dice.random() < share
