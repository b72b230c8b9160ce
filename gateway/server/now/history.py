"""The last hours in memory: the health of channels in ticks, and the six figures in minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from gateway.contract.channel import Health
from gateway.counters import Counters
from gateway.server.now.shapes import ChannelNow, Figure, Tick

TICKS, TICK_MS = 48, 300_000
MINUTES, MINUTE_MS = 60, 60_000
_BRIEF_MS = 60_000
"""Time for which a channel may fail in a tick that is still called brief."""


class _Channel:
    """The health of one channel: its state now, and for each tick the failing time (-1: not observed)."""

    def __init__(self, health: Health, at: int) -> None:
        self.health = health
        self.since = at
        self.failing: deque[int] = deque([-1] * TICKS, TICKS)


class HealthHistory:
    """The health of all channels. ``observe`` is called about once a second."""

    def __init__(self) -> None:
        self._channels: dict[str, _Channel] = {}
        self._tick = 0
        self._at = 0

    def observe(self, states: Mapping[str, Health], now: int) -> None:
        """Note the state of each channel; the time since the last call counts as that state."""
        tick = now // TICK_MS
        passed = tick - self._tick if self._channels else 0
        # After a suspended process the time in between was not observed.
        lasted = now - self._at if 0 <= now - self._at < TICK_MS else 0
        self._tick, self._at = tick, now
        for name in self._channels.keys() - states.keys():
            del self._channels[name]
        for name, health in states.items():
            one = self._channels.get(name)
            if one is None:
                one = self._channels[name] = _Channel(health, now)
            elif one.health != health:
                if one.health.ok != health.ok:
                    one.since = now
                one.health = health
            one.failing.extend([-1] * min(max(0, passed), TICKS))
            # A failure counts at once: it may have ended by the next look.
            one.failing[-1] = max(0, one.failing[-1]) + (0 if health.ok else max(1, lasted))

    def states(self) -> list[ChannelNow]:
        """Return the channels with their ticks."""
        return [
            ChannelNow(name, one.health.ok, one.health.detail, one.since, [_tick(ms) for ms in one.failing])
            for name, one in self._channels.items()
        ]


def _tick(failing: int) -> Tick:
    if failing < 0:
        return "none"
    if not failing:
        return "ok"
    return "brief" if failing < _BRIEF_MS else "down"


class _Totals:
    """The counters at one moment; the difference of two is what happened between them."""

    __slots__ = ("answers", "cost", "errors", "first_text", "messages")

    def __init__(self, counters: Counters, nano_usd: int) -> None:
        self.messages = counters.accepted.total()
        failed = (n for (_, outcome, error), n in counters.turns.items() if error or outcome == "failed")
        self.errors = sum(failed)
        self.answers = counters.turns.total() - self.errors
        self.cost = nano_usd
        self.first_text = tuple(counters.first_text.counts)


class Trends:
    """The six figures in each of the last 60 minutes, made of the counters that exist anyway."""

    def __init__(self, counters: Counters, nano_usd: int, now: int) -> None:
        self._counters = counters
        self._minute = now // MINUTE_MS
        self._ends: deque[_Totals] = deque([_Totals(counters, nano_usd)], MINUTES)
        """The counters at the end of each minute before this one; the first is where the trend begins."""
        self._running: deque[int] = deque([0], MINUTES)
        """The most turns that ran at once in each minute, this one included."""

    def observe(self, nano_usd: int, running: int, now: int) -> None:
        """Note the counters; called about once a second."""
        minute = now // MINUTE_MS
        for _ in range(min(minute - self._minute, MINUTES)):
            self._ends.append(_Totals(self._counters, nano_usd))
            self._running.append(0)
        self._minute = minute
        self._running[-1] = max(self._running[-1], running)

    def figures(self, nano_usd: int, running: int) -> list[Figure]:
        """Return the figures."""
        ends = [*self._ends, _Totals(self._counters, nano_usd)]
        pairs = list(pairwise(ends))[-MINUTES:]

        def summed(name: Literal["messages", "answers", "errors", "cost"], scale: float = 1.0) -> Figure:
            points = [(getattr(after, name) - getattr(before, name)) * scale for before, after in pairs]
            return Figure(name, sum(points), _filled(points))

        bounds = self._counters.first_text.bounds
        medians = [_median(bounds, before.first_text, after.first_text) for before, after in pairs]
        whole = _median(bounds, pairs[0][0].first_text, pairs[-1][1].first_text)
        return [
            summed("messages"),
            summed("answers"),
            Figure("first_token", whole, _filled(medians)),
            summed("errors"),
            summed("cost", 1e-9),
            Figure("running", running, _filled(list(self._running))),
        ]


def _filled(points: Sequence[float | None]) -> list[float | None]:
    return [*[None] * (MINUTES - len(points)), *points]


def _median(bounds: Sequence[float], before: Sequence[int], after: Sequence[int]) -> float | None:
    """Return the median of the values counted between two states of a histogram; None without any.

    Within a bucket the values are taken as evenly spread.
    """
    counts = [new - old for old, new in zip(before, after, strict=True)]
    left = sum(counts) / 2
    if not left:
        return None
    low = 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count >= left:
            return low + (bound - low) * left / count
        left -= count
        low = bound
    return low
