"""What one key of a provider may still do: how much at once, how much in a minute, and when again."""

from __future__ import annotations

from collections import deque
from math import inf

from msgspec import Struct

from gateway.provider import ProviderConfig

MINUTE = 60.0


class Use(Struct):
    """An amount that was used at a time."""

    at: float
    amount: int


class Window:
    """What was used in the last minute, against a bound. Times are seconds of any clock that only grows."""

    __slots__ = ("_bound", "_used", "_uses")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._uses: deque[Use] = deque()
        self._used = 0

    def free_at(self, amount: int, now: float) -> float:
        """When so much more fits. More than the bound fits when nothing else was used."""
        while self._uses and self._uses[0].at + MINUTE <= now:
            self._used -= self._uses.popleft().amount
        over = self._used + amount - self._bound
        when = now
        for use in self._uses:
            if over <= 0:
                break
            over -= use.amount
            when = use.at + MINUTE
        return when

    def take(self, amount: int, now: float) -> Use:
        """Use so much."""
        use = Use(now, amount)
        self._uses.append(use)
        self._used += amount
        return use

    def correct(self, use: Use, amount: int) -> None:
        """It was another amount, as it turned out."""
        if any(use is known for known in self._uses):
            self._used += amount - use.amount
            use.amount = amount


class Key:
    """One key: its settings, who uses it, and until when it is set aside, for one model or (``""``) for all.

    ``refused`` is for keys that the backend does not take, ``held`` for those that it wants to rest.
    """

    __slots__ = (
        "concurrency",
        "config",
        "held",
        "in_use",
        "position",
        "refused",
        "requests",
        "tokens",
    )

    def __init__(self, position: int, config: ProviderConfig) -> None:
        self.position = position
        self.config = config
        self.in_use = 0
        self.refused: dict[str, float] = {}
        self.held: dict[str, float] = {}
        self.concurrency = inf if config.concurrency is None else config.concurrency
        self.requests = None if config.requests_per_minute is None else Window(config.requests_per_minute)
        self.tokens = None if config.tokens_per_minute is None else Window(config.tokens_per_minute)

    def is_refused(self, model: str, now: float) -> bool:
        """Whether the backend lately did not take it."""
        return _until(self.refused, model) > now

    def held_until(self, model: str) -> float:
        """When its rest is over."""
        return _until(self.held, model)

    def room_at(self, tokens: int, now: float) -> float:
        """When its limits leave room for a call of so many tokens; infinity if another has to end first."""
        if self.in_use >= self.concurrency:
            return inf
        when = now
        if self.requests is not None:
            when = self.requests.free_at(1, now)
        return when if self.tokens is None else max(when, self.tokens.free_at(tokens, now))


def _until(times: dict[str, float], model: str) -> float:
    return max(times.get(model, 0.0), times.get("", 0.0)) if times else 0.0
