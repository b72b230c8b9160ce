"""The bounded buffer between sessions and one reader.

The reader takes all pending events at once, or has them passed to a sink. When 100 events are pending,
adjacent text of the same part is merged; if that does not free space, the reader is too slow and is
disconnected. It can resume from its last number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from gateway.contract.deltas import TextDelta
from gateway.contract.errors import BackpressureError
from gateway.counters import Counters
from gateway.session.frames import Event

log = structlog.get_logger("trunkline.feed")

CAPACITY = 100
_MAX_CAPACITY = 10 * CAPACITY

Sink = Callable[[list[Event]], bool]
"""Callback that takes events and returns whether the reader needs no more."""


class Feed:
    """Events for one reader, in order. ``offer`` never waits; ``take`` and ``pour`` do."""

    __slots__ = ("_closed", "_counters", "_events", "_full_at", "_on_drop", "_sink", "_waiter", "capacity")

    def __init__(
        self,
        capacity: int = CAPACITY,
        on_drop: Callable[[], None] | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.capacity = capacity
        self._on_drop = on_drop
        self._counters = counters or Counters()
        self._events: list[Event] = []
        self._full_at = capacity
        self._closed: Exception | None = None
        self._sink: Sink | None = None
        """Destination of events while ``pour`` waits; None otherwise."""
        self._waiter: asyncio.Future[bool | None] | None = None
        """Future of the waiting reader: True for data, False for a timeout, None if the feed was closed."""

    def offer(self, event: Event) -> None:
        """Add an event. A closed feed drops it."""
        # Within the producer's step: waking a task for each token cost a sixth of the token's time.
        if self._sink is not None:
            self._deliver(self._sink, [event])
        elif self._closed is None and (len(self._events) < self._full_at or self._make_room()):
            self._events.append(event)
            if self._waiter is not None:
                self._wake(True)

    async def take(self) -> list[Event]:
        """Return all pending events, at least one. Raises BackpressureError once disconnected."""
        while not self._events:
            if self._closed is not None:
                raise self._closed
            self._waiter = waiter = asyncio.get_running_loop().create_future()
            await waiter
        return self._drain()

    async def pour(self, sink: Sink, seconds: float | None = None) -> bool:
        """Pass events to ``sink`` until it returns True; return False if ``seconds`` pass before that.

        Pending events are passed together, later ones as they are offered: no task is woken for them. An
        exception of the sink closes the feed. Raises that exception, and BackpressureError once the reader
        was disconnected.
        """
        if self._closed is not None:
            raise self._closed
        loop = asyncio.get_running_loop()
        self._sink = sink
        self._waiter = waiter = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, self._wake, False)
        if self._events:
            self._deliver(sink, self._drain())
        try:
            outcome = await waiter
        finally:
            # Also on cancellation: later events go back into the buffer.
            self._sink = self._waiter = None
            if timer is not None:
                timer.cancel()
        if outcome is None and self._closed is not None:
            raise self._closed
        return bool(outcome)

    def close(self, reason: Exception) -> None:
        """Close the feed: discard its events; its reader gets ``reason`` raised from here on."""
        self._closed = self._closed or reason
        self._events.clear()
        self._wake(None)

    def _drop(self) -> None:
        log.warning("a reader was too slow and is disconnected", waiting=len(self._events))
        self.close(BackpressureError("this reader was too slow; resume from the last seq it has"))
        self._counters.dropped += 1
        if self._on_drop is not None:
            self._on_drop()

    def _drain(self) -> list[Event]:
        events, self._events = self._events, []
        self._full_at = self.capacity
        return events

    def _deliver(self, sink: Sink, events: list[Event]) -> None:
        try:
            if sink(events):
                self._wake(True)
        except Exception as error:  # noqa: BLE001 - raised again where the reader waits
            self.close(error)

    def _wake(self, outcome: bool | None) -> None:
        """Wake the reader if it waits; later events go into the buffer."""
        self._sink = None
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(outcome)

    def _make_room(self) -> bool:
        """Merge text. If the buffer stays too long, disconnect the reader and return False."""
        self._coalesce()
        if len(self._events) < max(_MAX_CAPACITY, 10 * self.capacity):
            return True
        self._drop()
        return False

    def _coalesce(self) -> None:
        """Merge runs of text: per session, consecutive events that continue the same part."""
        before = len(self._events)
        runs: list[list[Event]] = []
        latest: dict[str, list[Event]] = {}
        for event in self._events:
            # Text of one part is only adjacent within its session: events of others come between.
            run = latest.get(event.session)
            if run is not None and can_merge(run[-1].frame, event.frame):
                run.append(event)
            else:
                latest[event.session] = run = [event]
                runs.append(run)
        self._events = [_merged(run) for run in runs]
        # Leave a margin: otherwise events that do not merge would be compared again at every offer.
        self._full_at = max(self.capacity, len(runs) + self.capacity // 4)
        for run in runs:
            if len(run) > 1:
                self._counters.count_coalesced(run[0].session, len(run) - 1)
        log.debug("coalesced", before=before, after=len(self._events))


def _merged(run: list[Event]) -> Event:
    last = run[-1]
    if len(run) == 1:
        return last
    return Event(last.session, last.seq, merge_text([e.frame for e in run if isinstance(e.frame, TextDelta)]))


def merge_text(deltas: Sequence[TextDelta]) -> TextDelta:
    """Merge consecutive text deltas of the same part into one."""
    last = deltas[-1]
    content = "".join(delta.content for delta in deltas)
    return TextDelta(last.message_id, last.part_index, content, last.accumulated_length, last.kind)


def can_merge(first: object, second: object) -> bool:
    """Return whether both are text deltas of the same part, so that they can be merged."""
    return (
        type(first) is TextDelta
        and type(second) is TextDelta
        and first.part_index == second.part_index
        and first.message_id == second.message_id
        and first.kind == second.kind
    )
