"""Figures: what the gateway counted since it started.

Plain numbers, added to where things happen and read at ``/metrics`` and ``/api/status``.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter

from gateway.messages import Metadata

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Spread:
    """How values spread over bounds; ``counts`` has one more for those above the last."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Figures:
    """The counts. Times are seconds, cost is US dollars."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.accepted = 0
        self.duplicates = 0
        self.turns: Counter[str] = Counter()
        """Finished turns by outcome: end_turn, max_tokens, tool_use, aborted or failed."""
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost = 0.0
        self.first_text = Spread(_SECONDS)
        """From the start of a turn to the first text of its answer."""
        self.clients: Counter[str] = Counter()
        """Connected readers, by what they are connected to."""
        self.coalesced = 0
        """Events merged into others because a reader was slow."""
        self.dropped = 0
        """Readers dropped because they were too slow."""

    @property
    def uptime(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def turn(self, outcome: str, spent: Metadata, first_text: float | None) -> None:
        """Count one finished turn."""
        self.turns[outcome] += 1
        self.input_tokens += spent.input_tokens or 0
        self.output_tokens += spent.output_tokens or 0
        self.cost += spent.cost or 0.0
        if first_text is not None:
            self.first_text.add(first_text)
