"""Counters of events since the start of the gateway, read by ``/metrics`` and ``/api/status``.

They are plain numbers, because they are counted on the path of every message.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter

from gateway.contract.messages import Metadata

_MAX_SESSIONS = 10_000
"""Sessions with coalesced events that are remembered; a bound for those whose turns never end."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """Counts of values by upper bound; ``counts`` has one more, for values above the last bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class ModelLabels:
    """The labels of models in counters. Clients may send any number of names, so a provider's later ones
    share a label."""

    def __init__(self, most: int = 1_000) -> None:
        self._most = most
        self._known: set[tuple[str, str]] = set()

    def of(self, provider: str, model: str) -> tuple[str, str]:
        """Return the provider and the label of a model."""
        if len(self._known) < self._most:
            self._known.add((provider, model))
        return (provider, model if (provider, model) in self._known else "(other)")


def observe(histograms: dict[tuple[str, str], Histogram], key: tuple[str, str], seconds: float) -> None:
    """Count a duration under a provider and model."""
    histograms.setdefault(key, Histogram(_SECONDS)).add(seconds)


class Counters:
    """All counters. Times are in seconds, cost is in US dollars."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.models = ModelLabels()
        """The names of models in the counters below."""
        self.accepted: Counter[str] = Counter()
        """Accepted messages by channel."""
        self.duplicates: Counter[str] = Counter()
        """Repeated messages that were accepted before, by channel."""
        self.feedback: Counter[tuple[str, str]] = Counter()
        """Feedback on answers by channel and value (up, down or none)."""
        self.refused = 0
        """Messages that were not answered because too many were waiting."""
        self.turns: Counter[tuple[str, str, str]] = Counter()
        """Finished turns by channel, outcome (end_turn, max_tokens, tool_use, aborted or failed) and the name
        of the error in the answer, which is empty for an answer without one."""
        self.retries: Counter[tuple[str, str, str]] = Counter()
        """Attempts to call a model that were followed by another one, by provider, model and error name."""
        self.failures: Counter[tuple[str, str, str]] = Counter()
        """Calls of models that failed in the end, by provider, model and error name."""
        self.first_piece: dict[tuple[str, str], Histogram] = {}
        """From the call of a model to the first piece of its answer, with retries, by provider and model."""
        self.call: dict[tuple[str, str], Histogram] = {}
        """From the call of a model to the end of its answer, by provider and model."""
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost = 0.0
        self.first_text = Histogram(_SECONDS)
        """From the start of a turn to the first text of its answer."""
        self.clients: Counter[str] = Counter()
        """Connected readers, by what they are connected to."""
        self.coalesced = 0
        """Events merged into others because a reader was slow."""
        self.coalesced_of: Counter[str] = Counter()
        """Coalesced events by session, since the last turn of the session ended."""
        self.dropped = 0
        """Readers dropped because they were too slow."""

    @property
    def uptime(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def count_coalesced(self, session: str, count: int) -> None:
        """Count events of a session that were merged into others."""
        self.coalesced += count
        if len(self.coalesced_of) >= _MAX_SESSIONS:
            self.coalesced_of.clear()
        self.coalesced_of[session] += count

    def count_turn(
        self, channel: str, outcome: str, spent: Metadata, first_text: float | None, error: str = ""
    ) -> None:
        """Count one finished turn."""
        self.turns[channel, outcome, error] += 1
        self.input_tokens += spent.input_tokens or 0
        self.output_tokens += spent.output_tokens or 0
        self.cost += spent.cost or 0.0
        if first_text is not None:
            self.first_text.add(first_text)
