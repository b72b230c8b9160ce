"""Ids: 64-bit numbers that carry the time they were made at, so that they are in the order of time."""

from __future__ import annotations

from channels.discord.fake.clock import Clock

EPOCH = 1_420_070_400_000
"""The first millisecond of 2015, where ids begin to count."""


class Snowflakes:
    """Makes ids. Each is greater than all before it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    def new(self) -> int:
        """A new id."""
        self._last = max(self._last + 1, at(self._clock.now()))
        return self._last


def at(seconds: float) -> int:
    """The smallest id that can have been made at a time."""
    return (int(seconds * 1000) - EPOCH) << 22


def made(snowflake: int) -> float:
    """When an id was made."""
    return ((snowflake >> 22) + EPOCH) / 1000
