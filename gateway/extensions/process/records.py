"""The records of plugins since the gateway started: deaths of processes, stderr, and times of calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from msgspec import Struct

STDERR_BYTES = 65_536
"""The number of bytes that are kept of a plugin's stderr: its end."""
_MOST_TIMES = 1_000
_MOST_CALLS = 500


class CallTimes(Struct, frozen=True):
    """The times of one hook, event, tool or command: of its newest 1,000 calls, in milliseconds."""

    name: str
    calls: int
    p50_ms: float
    p99_ms: float


class PluginRecord:
    """The record of one plugin. It continues when another generation of the plugin replaces this one."""

    def __init__(self) -> None:
        self.deaths = 0
        self._stderr = bytearray()
        self._heard = 0
        self._counts: dict[str, int] = {}
        self._times: dict[str, deque[float]] = {}

    def hear(self, data: bytes) -> None:
        """Store text that a process wrote to stderr."""
        self._heard += len(data)
        self._stderr += data
        del self._stderr[:-STDERR_BYTES]

    def stderr(self, after: int = 0) -> tuple[bytes, int]:
        """Return the kept output after the first ``after`` bytes, and the number of bytes written by now."""
        begin = self._heard - len(self._stderr)
        return bytes(self._stderr[max(after - begin, 0) :]) if after < self._heard else b"", self._heard

    def add_time(self, call: str, seconds: float) -> None:
        """Take the time of one call."""
        times = self._times.get(call)
        if times is None:
            if len(self._times) >= _MOST_CALLS:
                return
            times = self._times[call] = deque(maxlen=_MOST_TIMES)
        times.append(seconds)
        self._counts[call] = self._counts.get(call, 0) + 1

    def times(self) -> list[CallTimes]:
        """Return the times of each call, by name."""
        return [
            CallTimes(name, self._counts[name], _at(sorted(times), 0.5), _at(sorted(times), 0.99))
            for name, times in sorted(self._times.items())
        ]


class Recorded(Protocol):
    """A process of a plugin, with its record."""

    @property
    def state(self) -> str:
        """The state: starting, running, restarting, quarantined or stopped."""
        ...

    @property
    def reason(self) -> str:
        """Why it does not run; "" while it does."""
        ...

    @property
    def record(self) -> PluginRecord:
        """The record of this plugin's processes."""
        ...


@runtime_checkable
class HasProcess(Protocol):
    """A plugin that has a process."""

    @property
    def process(self) -> Recorded:
        """The process."""
        ...


def _at(times: Sequence[float], share: float) -> float:
    """Return the time, in milliseconds, that this share of the sorted times does not exceed."""
    return round(times[min(int(len(times) * share), len(times) - 1)] * 1000, 3)
