"""A feed: the bounded buffer between sessions and one reader.

The reader takes whatever waits at once. When 100 events wait, adjacent text of the same part is merged;
when that no longer helps the reader is too slow and is dropped. It can resume where it stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from gateway.deltas import TextDelta
from gateway.errors import BackpressureError
from gateway.figures import Figures
from gateway.frames import Event

log = structlog.get_logger("trunkline.feed")

CAPACITY = 100
_HARD_CAPACITY = 10 * CAPACITY


class Feed:
    """Events for one reader, in order. ``offer`` never waits; ``take`` does."""

    __slots__ = ("_closed", "_events", "_figures", "_full_at", "_on_drop", "_waiter", "capacity")

    def __init__(
        self,
        capacity: int = CAPACITY,
        on_drop: Callable[[], None] | None = None,
        figures: Figures | None = None,
    ) -> None:
        self.capacity = capacity
        self._on_drop = on_drop
        self._figures = figures or Figures()
        self._events: list[Event] = []
        self._full_at = capacity
        self._closed: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def offer(self, event: Event) -> None:
        """Add an event. A feed that is closed drops it."""
        if self._closed is not None or (len(self._events) >= self._full_at and not self._make_room()):
            return
        self._events.append(event)
        if self._waiter is not None:
            self._wake()

    async def take(self, patience: float | None = None) -> list[Event]:
        """All that waits, at least one event; none if for ``patience`` seconds there is none.

        Raises BackpressureError once the reader was dropped.
        """
        while not self._events:
            if self._closed is not None:
                raise self._closed
            if not await self._news(patience):
                return []
        events, self._events = self._events, []
        self._full_at = self.capacity
        return events

    def close(self, reason: Exception) -> None:
        """End the feed: ``take`` raises ``reason`` from now on, and what waited is forgotten."""
        self._closed = self._closed or reason
        self._events.clear()
        self._wake()

    def _drop(self) -> None:
        log.warning("a reader was too slow and is dropped", waiting=len(self._events))
        self.close(BackpressureError("this reader was too slow; resume from the last seq it has"))
        self._figures.dropped += 1
        if self._on_drop is not None:
            self._on_drop()

    async def _news(self, patience: float | None) -> bool:
        """Wait until there is something, or the feed is closed. Returns whether that is so."""
        loop = asyncio.get_running_loop()
        self._waiter = waiter = loop.create_future()
        # A timer of its own costs a quarter of what asyncio.timeout does, and this is done for every token.
        timer = None if patience is None else loop.call_later(patience, self._wake)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
        return bool(self._events) or self._closed is not None

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _make_room(self) -> bool:
        """Merge what can be merged. When that no longer helps the reader is dropped; then False."""
        self._squeeze()
        if len(self._events) < max(_HARD_CAPACITY, 10 * self.capacity):
            return True
        self._drop()
        return False

    def _squeeze(self) -> None:
        """Merge runs of text: per session, events that follow each other and continue the same part."""
        before = len(self._events)
        runs: list[list[Event]] = []
        latest: dict[str, list[Event]] = {}
        for event in self._events:
            run = latest.get(event.session)
            if run is not None and same_text(run[-1].frame, event.frame):
                run.append(event)
            else:
                latest[event.session] = run = [event]
                runs.append(run)
        self._events = [_merged(run) for run in runs]
        # What does not merge would be looked at again with every further event.
        self._full_at = max(self.capacity, len(runs) + self.capacity // 4)
        self._figures.coalesced += before - len(self._events)
        log.debug("coalesced", before=before, after=len(self._events))


def _merged(run: list[Event]) -> Event:
    last = run[-1]
    if len(run) == 1:
        return last
    return Event(last.session, last.seq, merge_text([e.frame for e in run if isinstance(e.frame, TextDelta)]))


def merge_text(deltas: Sequence[TextDelta]) -> TextDelta:
    """One delta for consecutive text deltas of the same part."""
    last = deltas[-1]
    content = "".join(delta.content for delta in deltas)
    return TextDelta(last.message_id, last.part_index, content, last.accumulated_length, last.kind)


def same_text(first: object, second: object) -> bool:
    """Whether both are text deltas of the same part, so that they may be merged."""
    return (
        type(first) is TextDelta
        and type(second) is TextDelta
        and first.part_index == second.part_index
        and first.message_id == second.message_id
        and first.kind == second.kind
    )
