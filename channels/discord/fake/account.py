"""The application's account: its token, what it may read, and how often it may still log in."""

from __future__ import annotations

import secrets
from collections import deque

from channels.discord.fake.clock import Clock
from channels.discord.fake.figures import Figures


class Account:
    """Knows the token. Too many logins in a day, and the platform makes a new one, unknown to the bot."""

    def __init__(self, clock: Clock, figures: Figures, token: str, privileged: frozenset[str]) -> None:
        self.token = token
        self.privileged = privileged
        self._clock = clock
        self._figures = figures
        self._identifies: deque[float] = deque()
        self._last = float("-inf")

    def identify(self) -> bool:
        """Count a login. False when it comes too soon after the one before."""
        now = self._clock.now()
        self._forget(now)
        self._identifies.append(now)
        if now < self._last + self._figures.identify_interval:
            return False
        self._last = now
        return True

    def spend(self, identifies: int) -> None:
        """As if the bot had logged in some times already today."""
        self._identifies.extend([self._clock.now()] * identifies)

    def reset(self) -> None:
        """The token is a new one."""
        self.token = secrets.token_urlsafe(24)

    @property
    def remaining(self) -> int:
        """Logins that are left today."""
        self._forget(self._clock.now())
        return max(0, self._figures.identifies - len(self._identifies))

    @property
    def reset_after(self) -> float:
        """Seconds until a login is given back."""
        oldest = self._identifies[0] if self._identifies else self._clock.now()
        return max(0.0, oldest + self._figures.identify_window - self._clock.now())

    @property
    def exhausted(self) -> bool:
        """Whether it logged in more often than a day allows."""
        return len(self._identifies) > self._figures.identifies

    def _forget(self, now: float) -> None:
        while self._identifies and self._identifies[0] < now - self._figures.identify_window:
            self._identifies.popleft()
