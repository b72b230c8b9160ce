"""A feed: the bounded buffer between sessions and one reader.

The reader takes whatever waits at once, or has it poured into a sink. When 100 events wait, adjacent text of
the same part is merged; when that no longer helps the reader is too slow and is dropped. It can resume where
it stopped.
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

Sink = Callable[[list[Event]], bool]
"""Takes events, and returns whether it has enough."""


class Feed:
    """Events for one reader, in order. ``offer`` never waits; ``take`` and ``pour`` do."""

    __slots__ = (
        "_closed",
        "_enough",
        "_events",
        "_figures",
        "_full_at",
        "_on_drop",
        "_sink",
        "capacity",
    )

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
        self._sink: Sink | None = None
        """Where events go; None while nobody waits for them."""
        self._enough: asyncio.Future[bool | None] | None = None
        """Done when the reader, who waits, has what it waits for; None if it will never come."""

    def offer(self, event: Event) -> None:
        """Add an event. A feed that is closed drops it."""
        if self._sink is not None:
            self._give(self._sink, [event])
        elif self._closed is None and (len(self._events) < self._full_at or self._make_room()):
            self._events.append(event)
            if self._enough is not None:
                self._end(True)

    async def take(self) -> list[Event]:
        """All that waits, at least one event. Raises BackpressureError once the reader was dropped."""
        while not self._events:
            if self._closed is not None:
                raise self._closed
            self._enough = enough = asyncio.get_running_loop().create_future()
            await enough
        return self._taken()

    async def pour(self, sink: Sink, patience: float | None = None) -> bool:
        """Give ``sink`` all that comes until it has enough; False if that is not within ``patience`` seconds.

        What waits is given together, what comes later as it is offered: no task is woken for it. What the
        sink raises closes the feed. Raises that, and BackpressureError once the reader was dropped.
        """
        if self._closed is not None:
            raise self._closed
        loop = asyncio.get_running_loop()
        self._sink = sink
        self._enough = enough = loop.create_future()
        timer = None if patience is None else loop.call_later(patience, self._end, False)
        if self._events:
            self._give(sink, self._taken())
        try:
            outcome = await enough
        finally:
            self._sink = self._enough = None
            if timer is not None:
                timer.cancel()
        if outcome is None and self._closed is not None:
            raise self._closed
        return bool(outcome)

    def close(self, reason: Exception) -> None:
        """End the feed: its reader gets ``reason`` raised from now on, and what waited is forgotten."""
        self._closed = self._closed or reason
        self._events.clear()
        self._end(None)

    def _drop(self) -> None:
        log.warning("a reader was too slow and is dropped", waiting=len(self._events))
        self.close(BackpressureError("this reader was too slow; resume from the last seq it has"))
        self._figures.dropped += 1
        if self._on_drop is not None:
            self._on_drop()

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        self._full_at = self.capacity
        return events

    def _give(self, sink: Sink, events: list[Event]) -> None:
        try:
            if sink(events):
                self._end(True)
        except Exception as error:  # noqa: BLE001 - it is raised where the reader waits
            self.close(error)

    def _end(self, outcome: bool | None) -> None:
        """Let the reader go on, if it waits; what comes now waits for it."""
        self._sink = None
        enough, self._enough = self._enough, None
        if enough is not None and not enough.done():
            enough.set_result(outcome)

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
