"""Hands that can be moved: a clock for what expires."""

from __future__ import annotations

import pytest


class Clock:
    """Milliseconds, as they are set."""

    def __init__(self) -> None:
        self.now = 1_000_000_000_000

    def __call__(self) -> int:
        return self.now

    def minutes(self, count: float) -> None:
        """Let time pass."""
        self.now += round(count * 60_000)


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still until it is told otherwise."""
    return Clock()
