"""Rate limits of a fake platform: sliding windows, and the waits that it asked a bot for."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from gateway.testing.fake_platform.clock import Clock


class Window:
    """A sliding window that takes ``most`` calls in ``seconds`` of platform time."""

    def __init__(self, clock: Clock, most: int, seconds: float) -> None:
        self.most = most
        self.seconds = seconds
        self._clock = clock
        self._made: deque[float] = deque()

    @property
    def used(self) -> int:
        """The number of calls in the window."""
        while self._made and self._made[0] <= self._clock.now() - self.seconds:
            self._made.popleft()
        return len(self._made)

    @property
    def reset_after(self) -> float:
        """The seconds until the oldest call leaves the window."""
        oldest = self._made[0] if self.used else self._clock.now()
        return oldest + self.seconds - self._clock.now()

    def wait(self, cost: int = 1) -> float:
        """Return the seconds until this many more calls fit; 0 if they fit now."""
        over = self.used + min(cost, self.most) - self.most
        return self._made[over - 1] + self.seconds - self._clock.now() if over > 0 else 0

    def count(self, cost: int = 1) -> None:
        """Count calls, also those that do not fit."""
        self._made.extend([self._clock.now()] * cost)

    def forgive(self) -> None:
        """Take the last call back."""
        if self._made:
            self._made.pop()


class Patience:
    """The waits that the platform asked for, by key.

    A call that comes within ``grace`` real seconds of the refusal may have left before its sender read it, so
    it is early but not impatient.
    """

    def __init__(self, clock: Clock, grace: float = 0) -> None:
        self._clock = clock
        self._grace = grace
        self._asked: dict[Hashable, tuple[float, float]] = {}

    def ask(self, key: Hashable, seconds: float) -> None:
        """Expect no call under this key for this many real seconds."""
        now = self._clock.now()
        self._asked[key] = (now + self._grace * self._clock.pace, now + seconds * self._clock.pace)

    def left(self, key: Hashable) -> float:
        """Return the real seconds that a caller still has to wait; 0 or less if none."""
        _, until = self._asked.get(key, (0.0, 0.0))
        return (until - self._clock.now()) / self._clock.pace

    def is_impatient(self, key: Hashable) -> bool:
        """Return whether a call now ignores the wait that was asked for."""
        known, until = self._asked.get(key, (0.0, 0.0))
        return known <= self._clock.now() < until
