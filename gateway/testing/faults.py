"""Fault scripts for fake platforms: which of the bot's calls go wrong, by script or by chance."""

from __future__ import annotations

import random
import time
from collections import deque
from typing import Any, Literal

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
        self._answers: dict[str, deque[object]] = {}
        self._outages: dict[str, tuple[float, float]] = {}

    def then(self, *faults: Fault, method: str = "") -> None:
        """What happens to the next calls: of one method, or of any."""
        self._next.setdefault(method, deque()).extend(faults)

    def fail_regularly(self, method: str, seconds: float, every: float) -> None:
        """Let all calls of a method fail for so many seconds of each ``every`` seconds."""
        self._outages[method] = seconds, every

    def of(self, method: str = "") -> Fault:
        """What happens to this call."""
        seconds, every = self._outages.get(method, (0.0, 1.0))
        if time.monotonic() % every < seconds:
            return "fail_before"
        for scripted in (self._next.get(method), self._next.get("")):
            if scripted:
                return scripted.popleft()
        return self._dice.choice(FAULTS) if self._chance(self.share) else "none"

    def answer_next(self, method: str, *answers: object) -> None:
        """What the next calls of a method that succeed are answered in place of what they should be."""
        self._answers.setdefault(method, deque()).extend(answers)

    def answered(self, method: str, answer: Any) -> Any:
        """The answer of a call that succeeded: the one it has, or the next that was given in its place."""
        given = self._answers.get(method)
        return given.popleft() if given else answer

    def doubles(self) -> bool:
        """Whether this event is delivered twice."""
        return self._chance(self.repeats)

    def _chance(self, share: float) -> bool:
        return share > 0 and self._dice.random() < share
