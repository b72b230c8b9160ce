"""Pacing of platform calls: each call waits until the platform's rate limits allow it.

A call names the keys of the limits that it counts against, for example all calls, its chat and its method. It
waits until all of them allow a call, and then counts against all at once. Nothing polls: a key with waiting
calls has one timer.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Protocol

from msgspec import Struct

Key = str | tuple[str, ...]
"""The subject of a limit: a kind such as "chat", or a kind with the name of one such thing."""

_FORGET_EVERY = 60.0

confirming: ContextVar[Callable[[], Awaitable[None]] | None] = ContextVar("confirming", default=None)
"""Check that is awaited before each admitted call, which may have waited for long. In a cluster it fails once
another node has taken over."""


class Limit(Struct, frozen=True):
    """At most ``count`` calls in any period of ``seconds``.

    ``burst`` of them may come at once, by default all; the others are spread evenly over the period.
    """

    count: int
    seconds: float = 1.0
    burst: int | None = None

    def __post_init__(self) -> None:
        if self.count < 1 or self.seconds <= 0 or (self.burst is not None and self.burst < 1):
            raise ValueError(f"a limit needs a positive count, period and burst: {self}")

    def times(self, factor: float) -> Limit:
        """Return the limit multiplied by a factor. Below one call per period, the period grows instead."""
        count = self.count * factor
        burst = None if self.burst is None else max(1, int(self.burst * factor))
        return Limit(int(count), self.seconds, burst) if count >= 1 else Limit(1, self.seconds / count, burst)


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The time source of a Pacer, in seconds. An event loop is one."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer: ...


class Pacer:
    """Admits calls as the limits of their keys allow.

    ``limits`` are by kind; a key of a kind without a limit only waits while it is held. Calls with the same
    keys are admitted in order. Calls with different keys, for example of different chats, alternate, so that
    a busy chat does not delay the others. Urgent calls come first. Unused keys are forgotten.

    ``clock`` is for tests; the default is the running event loop.
    """

    def __init__(self, limits: Mapping[str, Limit], clock: Clock | None = None) -> None:
        self._limits = dict(limits)
        self._clock = clock
        self._gates: dict[Key, _Gate] = {}
        self._lanes: dict[tuple[bool, tuple[Key, ...]], _Lane] = {}
        self._tickets = itertools.count()
        self._forgetting = False

    def __len__(self) -> int:
        """Return the number of keys in use."""
        return len(self._gates)

    @asynccontextmanager
    async def turn(self, *keys: Key, urgent: bool = False) -> AsyncGenerator[None]:
        """Wait until a call is admitted; it is made in the block. A cancelled wait is not counted."""
        await self._admission(tuple(dict.fromkeys(keys)), urgent)
        if (confirm := confirming.get()) is not None:
            await confirm()
        yield

    def hold(self, key: Key, seconds: float) -> None:
        """Admit no calls for a key for ``seconds``, as the platform asked. A longer hold stays in force."""
        gate = self._gate(key)
        gate.held_until = max(gate.held_until, self._time().time() + seconds)

    def held(self, key: Key) -> float:
        """Return the seconds for which a key is still held."""
        gate = self._gates.get(key)
        return 0.0 if gate is None else max(0.0, gate.held_until - self._time().time())

    def wait(self, *keys: Key) -> float:
        """Estimate the seconds until these keys admit one more call, after those that wait already."""
        gates = [self._gates[key] for key in keys if key in self._gates]
        queues = (gate.queue_seconds() for gate in gates)
        return max(0.0, _free_at(gates) - self._time().time()) + max(queues, default=0.0)

    def _time(self) -> Clock:
        return self._clock or asyncio.get_running_loop()

    def _gate(self, key: Key) -> _Gate:
        gate = self._gates.get(key)
        if gate is None:
            # Keys of chats come and go without end, so each is created on use and forgotten when idle.
            kind = key if isinstance(key, str) else key[0]
            gate = self._gates[key] = _Gate(self._limits.get(kind))
            self._forget_later()
        return gate

    async def _admission(self, keys: tuple[Key, ...], urgent: bool) -> None:
        lane = self._lanes.get((urgent, keys))
        gates = [self._gate(key) for key in keys]
        now = self._time().time()
        if lane is None and _free_at(gates) <= now and not any(gate.waiting for gate in gates):
            _take(gates, now)
            return
        if lane is None:
            lane = self._lanes[urgent, keys] = _Lane(urgent, keys, gates)
        waiter = asyncio.get_running_loop().create_future()
        lane.waiters[waiter] = None
        if not lane.queued:
            self._admit(lane)
        try:
            await waiter
        except asyncio.CancelledError:
            # A call may be cancelled in the step that admitted it: its share of the limits is given back.
            if waiter.cancelled():
                lane.waiters.pop(waiter, None)
            else:
                self._give_back(gates, waiter.result())
            raise

    def _admit(self, lane: _Lane, first_in_line: bool = False) -> None:
        """Admit calls of a lane until it has to wait for a gate or for other lanes."""
        now = self._time().time()
        while waiter := lane.next_waiter():
            gate = max(lane.gates, key=_Gate.free_at)
            if gate.free_at() > now:
                self._queue(lane, gate)
                return
            # The first lane of a gate's queue is not held up by the lanes after it.
            if not first_in_line and (line := next((gate for gate in lane.gates if gate.waiting), None)):
                self._queue(lane, line)
                return
            first_in_line = False
            del lane.waiters[waiter]
            _take(lane.gates, now)
            waiter.set_result(now)
            lane.ticket = None
        lane.leave()
        del self._lanes[lane.urgent, lane.keys]

    def _queue(self, lane: _Lane, gate: _Gate) -> None:
        """Queue a lane at a gate. It keeps its place among all lanes until one of its calls is admitted."""
        if lane.ticket is None:
            lane.ticket = next(self._tickets)
        lane.queued = True
        heapq.heappush(gate.waiting, (not lane.urgent, lane.ticket, lane))
        self._time_gate(gate)

    def _open(self, gate: _Gate) -> None:
        """Admit the first lanes in the queue of a gate, as long as its limit allows."""
        gate.timer = None
        now = self._time().time()
        while gate.waiting and gate.free_at() <= now:
            lane = heapq.heappop(gate.waiting)[-1]
            lane.queued = False
            self._admit(lane, first_in_line=True)
        self._time_gate(gate)

    def _time_gate(self, gate: _Gate) -> None:
        """Set the timer of a gate with waiting lanes to the moment when its limit allows a call."""
        when = gate.free_at()
        if not gate.waiting or (gate.timer is not None and gate.timer_at <= when):
            return
        if gate.timer is not None:
            gate.timer.cancel()
        gate.timer_at = when
        gate.timer = self._time().call_at(when, partial(self._open, gate))

    def _give_back(self, gates: list[_Gate], taken: float) -> None:
        for gate in gates:
            gate.give_back(taken)
            self._time_gate(gate)

    def _forget_later(self) -> None:
        if not self._forgetting:
            self._forgetting = True
            clock = self._time()
            clock.call_at(clock.time() + _FORGET_EVERY, self._forget)

    def _forget(self) -> None:
        now = self._time().time()
        self._forgetting = False
        self._gates = {key: gate for key, gate in self._gates.items() if not gate.is_idle(now)}
        if self._gates:
            self._forget_later()


class _Gate:
    """The state of one key: recent calls and waiting lanes."""

    __slots__ = (
        "_spread_until",
        "_taken",
        "held_until",
        "lanes",
        "limit",
        "timer",
        "timer_at",
        "waiting",
    )

    def __init__(self, limit: Limit | None) -> None:
        self.limit = limit
        self.held_until = 0.0
        self.lanes = 0
        self.waiting: list[tuple[bool, int, _Lane]] = []
        self.timer: Timer | None = None
        self.timer_at = 0.0
        self._taken: deque[float] = deque()
        self._spread_until = 0.0

    def free_at(self) -> float:
        """Return the time at which the limit allows a call."""
        limit, free = self.limit, self.held_until
        if limit is None:
            return free
        if len(self._taken) >= limit.count:
            free = max(free, self._taken[-limit.count] + limit.seconds)
        if limit.burst is not None:
            free = max(free, self._spread_until - (limit.burst - 1) * limit.seconds / limit.count)
        return free

    def queue_seconds(self) -> float:
        """Estimate the seconds until all calls that wait here are admitted."""
        if not self.waiting:
            return 0.0
        each = 0.0 if self.limit is None else self.limit.seconds / self.limit.count
        return sum(len(lane.waiters) for _, _, lane in self.waiting) * each

    def take(self, now: float) -> None:
        """Count one call."""
        if self.limit is not None:
            self._taken.append(now)
            while len(self._taken) > self.limit.count:
                self._taken.popleft()
            self._spread_until = max(now, self._spread_until) + self.limit.seconds / self.limit.count

    def give_back(self, taken: float) -> None:
        """Uncount a call that was counted at that time and not made."""
        if self.limit is not None and taken in self._taken:
            self._taken.remove(taken)
            self._spread_until -= self.limit.seconds / self.limit.count

    def is_idle(self, now: float) -> bool:
        """Return whether the key can be forgotten without effect."""
        over = now if self.limit is None or not self._taken else self._taken[-1] + self.limit.seconds
        return not self.lanes and max(over, self.held_until) <= now


class _Lane:
    """A queue of calls with the same keys. It waits at one gate at a time."""

    __slots__ = ("gates", "keys", "queued", "ticket", "urgent", "waiters")

    def __init__(self, urgent: bool, keys: tuple[Key, ...], gates: list[_Gate]) -> None:
        self.urgent = urgent
        self.keys = keys
        self.gates = gates
        self.waiters: OrderedDict[asyncio.Future[float], None] = OrderedDict()
        self.ticket: int | None = None
        self.queued = False

        for gate in gates:
            gate.lanes += 1

    def leave(self) -> None:
        """Note that the lane is empty."""
        for gate in self.gates:
            gate.lanes -= 1

    def next_waiter(self) -> asyncio.Future[float] | None:
        """Return the first call that is still waiting."""
        while self.waiters:
            waiter = next(iter(self.waiters))
            if not waiter.cancelled():
                return waiter
            del self.waiters[waiter]
        return None


def _free_at(gates: list[_Gate]) -> float:
    return max((gate.free_at() for gate in gates), default=0.0)


def _take(gates: list[_Gate], now: float) -> None:
    for gate in gates:
        gate.take(now)
