"""The event bus: typed notifications from the parts of the gateway to its subscribers.

An event is a frozen subclass of ``BusEvent`` (``gateway/events/types.py`` shows how to add one). To emit::

    events.emit(FileModified(session.id, path))

An event that is built several times in a message asks first, because a subscriber is the exception::

    if events.wants(AgentProgress, session.id):
        events.emit(AgentProgress(session.id, event))

Emit from the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog

from gateway.contract.errors import CATCHABLE, is_cancellation_requested
from gateway.contract.events import Activity, ActivityKind, BusEvent, SubAgentEvent
from gateway.contract.messages import now_ms
from gateway.contract.services import Unregister
from gateway.events.types import Disposed

log = structlog.get_logger("trunkline.bus")

E = TypeVar("E", bound=BusEvent)

QUEUE = 1_000
"""Events that may wait for an async subscriber."""
_DISPOSAL_SECONDS = 3.0
"""Time that async subscribers have for the waiting events when the bus ends."""
_MOST_NESTED = 16
"""Depth of events emitted by subscribers of events."""
_BLOCKING_SECONDS = 0.1


class EventBus:
    """The subscriptions, by type of event. ``async with`` runs the subscribers that are async functions.

    A sync subscriber is called at once. An async one gets its events one after another in its own task;
    ``queue`` events may wait for it, and beyond that the oldest one is dropped, counted in ``dropped`` and
    logged. A subscriber that raises is logged with its owner and stays subscribed. At the end of the block
    subscribers of ``Disposed`` get it as the last event, and async ones have 3 s for what still waits; later
    events and subscriptions are ignored.
    """

    def __init__(self, queue: int = QUEUE, disposal_seconds: float = _DISPOSAL_SECONDS) -> None:
        self._disposal_seconds = disposal_seconds
        self.dropped: Counter[str] = Counter()
        """Dropped events, by the owner of the subscription."""
        self.queue = queue
        self._by_type: dict[type[BusEvent], tuple[_Subscription, ...]] = {}
        self._by_session: dict[str, dict[type[BusEvent], tuple[_Subscription, ...]]] = {}
        self._of_all: tuple[_Subscription, ...] = ()
        self._tasks = asyncio.TaskGroup()
        self._busy: dict[_Subscription, None] = {}
        """Async subscriptions with a worker, or that get one when the bus runs."""
        self._nested = 0
        self._running = False
        self._disposed = False

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._running = True
        for each in self._busy:
            each.begin(self._tasks)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.emit(Disposed())
            self._disposed = True
            if workers := [each.worker for each in self._busy if each.worker is not None]:
                await asyncio.wait(workers, timeout=self._disposal_seconds)
        finally:
            self._disposed, self._running = True, False
            for each in tuple(self._busy):
                log.warning("an event subscriber did not end in time", owner=each.owner)
                each.cancel()
            self._by_type, self._by_session, self._of_all = {}, {}, ()
            await self._tasks.__aexit__(None, None, None)

    def wants(self, kind: type[BusEvent], session: str = "") -> bool:
        """Return whether there is a subscriber to such an event, of this session if it has one."""
        return (
            kind in self._by_type
            or (bool(self._of_all) and not kind.detailed)
            or (session in self._by_session and kind in self._by_session[session])
        )

    def follows(self, session: str) -> bool:
        """Return whether there is a subscription to this session alone."""
        return session in self._by_session

    def emit(self, event: BusEvent) -> None:
        """Notify the subscribers; never raises for what they do."""
        kind = type(event)
        found = self._by_type.get(kind, ())
        if self._by_session:
            found += self._by_session.get(getattr(event, "session", ""), {}).get(kind, ())
        if self._of_all and not kind.detailed:
            found += self._of_all
        if not found or self._disposed:
            return
        if self._nested >= _MOST_NESTED:
            log.error("dropped an event: subscribers emit events in a circle", kind=kind.event_name())
            return
        self._nested += 1
        try:
            for each in found:
                each.offer(event)
        finally:
            self._nested -= 1

    def subscribe(
        self, kind: type[E], handler: Callable[[E], object], *, session: str = "", owner: str = ""
    ) -> Unregister:
        """Call ``handler`` with each event of exactly this type, until the result is called.

        ``session`` limits it to the events of one session. ``owner`` is named in the log.
        """
        return self.add(_Subscription(self, handler, owner, kind, session))

    def subscribe_all(self, handler: Callable[[BusEvent], object], *, owner: str = "") -> Unregister:
        """Call ``handler`` with each event whose type is not detailed, until the result is called."""
        return self.add(_Subscription(self, handler, owner))

    def once(
        self, kind: type[E], handler: Callable[[E], object], *, session: str = "", owner: str = ""
    ) -> Unregister:
        """Call ``handler`` with the next such event alone, unless the result is called before."""
        return self.add(_Subscription(self, handler, owner, kind, session, once=True))

    def remove_view(self, view: OwnedEvents) -> None:
        """Remove the subscriptions of one view, and cancel those of its handlers that run."""
        kinds = (self._by_type, *self._by_session.values())
        typed = [each for kind in kinds for found in kind.values() for each in found]
        for each in (*typed, *self._of_all, *self._busy):
            if each.view is view:
                self.remove(each)
                each.cancel()

    def start(self, subscription: _Subscription) -> None:
        """Start a worker for the waiting events of a subscription, unless it has one."""
        if subscription not in self._busy:
            self._busy[subscription] = None
            if self._running:
                subscription.begin(self._tasks)

    def ended(self, subscription: _Subscription) -> None:
        """Forget a worker that ended."""
        self._busy.pop(subscription, None)

    def add(self, added: _Subscription) -> Unregister:
        """Deliver events to a subscription from now on; the result ends that."""
        if self._disposed:
            return lambda: None
        # Tuples are replaced, not changed: an event that is being delivered keeps its subscribers.
        if added.kind is None:
            self._of_all += (added,)
        else:
            kinds = self._by_session.setdefault(added.session, {}) if added.session else self._by_type
            kinds[added.kind] = (*kinds.get(added.kind, ()), added)

        def remove() -> None:
            self.remove(added)
            added.discard()

        return remove

    def remove(self, removed: _Subscription) -> None:
        """Deliver no new event to a subscription."""
        removed.active = False
        if removed.kind is None:
            self._of_all = tuple(each for each in self._of_all if each is not removed)
            return
        kinds = self._by_session.get(removed.session, {}) if removed.session else self._by_type
        left = tuple(each for each in kinds.get(removed.kind, ()) if each is not removed)
        if left:
            kinds[removed.kind] = left
        else:
            kinds.pop(removed.kind, None)
        if removed.session and not kinds:
            self._by_session.pop(removed.session, None)


class _Subscription:
    """A handler with its waiting events."""

    def __init__(
        self,
        bus: EventBus,
        handler: Callable[[Any], object],
        owner: str,
        kind: type[BusEvent] | None = None,
        session: str = "",
        *,
        once: bool = False,
        view: OwnedEvents | None = None,
    ) -> None:
        self.owner = owner
        self.view = view
        self.kind = kind
        self.session = session
        self.active = True
        self.worker: asyncio.Task[None] | None = None
        self._bus = bus
        self._handler = handler
        call = getattr(handler, "__call__", None)  # noqa: B004 - an object with an async ``__call__``
        self._is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
        self._once = once
        self._lost = 0
        self._waiting: deque[BusEvent | Awaitable[object]] = deque()

    def offer(self, event: BusEvent) -> None:
        """Call the handler, or queue the event for it."""
        if not self.active:  # unsubscribed while this event was being delivered
            return
        if self.view is not None and not self.view.is_open:
            return
        if self._once:
            self._bus.remove(self)
        if self._is_async:
            self._queue(event)
        else:
            self._call(event)

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Work off the waiting events in a task."""
        # An empty context: time limits of the plugin call that emitted the event do not apply here.
        self.worker = tasks.create_task(
            self._work(), name=f"event subscriber {self.owner}", context=Context()
        )

    def discard(self) -> None:
        """Drop the waiting events; a call that runs may end."""
        while self._waiting:
            _discard(self._waiting.popleft())

    def cancel(self) -> None:
        """Drop the waiting events, and cancel a call that runs."""
        self.discard()
        if self.worker is not None:
            self.worker.cancel()
            self._bus.ended(self)

    def _call(self, event: BusEvent) -> None:
        begun = time.perf_counter()
        try:
            result = self._handler(event)
        except CATCHABLE:  # a plain function cannot have been cancelled
            log.exception("an event subscriber failed", owner=self.owner, kind=event.event_name())
            return
        if inspect.isawaitable(result):  # a lambda around an async function
            self._queue(result)
        elif (seconds := time.perf_counter() - begun) >= _BLOCKING_SECONDS:
            log.warning(
                "an event subscriber blocked the event loop", owner=self.owner, ms=round(seconds * 1000)
            )

    def _queue(self, item: BusEvent | Awaitable[object]) -> None:
        if len(self._waiting) >= self._bus.queue:
            # The oldest goes: what a slow subscriber acts on last should be the current state.
            _discard(self._waiting.popleft())
            self._bus.dropped[self.owner] += 1
            self._lost += 1
            if self._lost == 1:
                log.warning("an event subscriber is too slow and loses events", owner=self.owner)
        self._waiting.append(item)
        self._bus.start(self)

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._handle(self._waiting.popleft())
            if self._lost:
                log.warning("an event subscriber lost events", owner=self.owner, count=self._lost)
                self._lost = 0
        finally:
            self.worker = None
            self._bus.ended(self)

    async def _handle(self, item: BusEvent | Awaitable[object]) -> None:
        try:
            result = self._handler(item) if isinstance(item, BusEvent) else item
            if inspect.isawaitable(result):
                await result
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            log.exception("an event subscriber failed", owner=self.owner)


def _discard(item: object) -> None:
    if inspect.iscoroutine(item):
        item.close()  # a coroutine that is never awaited would warn


class OwnedEvents:
    """The bus as one plugin sees it: its subscriptions have its name, and end with it.

    Its handlers get no new event while it is closed. Events that wait already are still delivered.
    """

    def __init__(self, bus: EventBus, owner: str) -> None:
        self._bus = bus
        self._owner = owner
        self._ended = False
        self.is_open = True

    def open(self) -> Unregister:
        """Deliver events from now on; the result ends that."""
        self.is_open = True
        return self._close

    def _close(self) -> None:
        self.is_open = False

    def end(self) -> None:
        """Remove all subscriptions, cancel the handlers that run, and accept no more."""
        self._ended = True
        self._bus.remove_view(self)

    def subscribe(self, kind: type[E], handler: Callable[[E], object], *, session: str = "") -> Unregister:
        """Call ``handler`` with each event of this type; see ``EventBus.subscribe``."""
        return self._add(handler, kind, session)

    def subscribe_all(self, handler: Callable[[BusEvent], object]) -> Unregister:
        """Call ``handler`` with each event whose type is not detailed."""
        return self._add(handler)

    def once(self, kind: type[E], handler: Callable[[E], object], *, session: str = "") -> Unregister:
        """Call ``handler`` with the next such event alone."""
        return self._add(handler, kind, session, once=True)

    def _add(
        self,
        handler: Callable[[Any], object],
        kind: type[BusEvent] | None = None,
        session: str = "",
        *,
        once: bool = False,
    ) -> Unregister:
        if self._ended:
            return lambda: None
        return self._bus.add(
            _Subscription(self._bus, handler, self._owner, kind, session, once=once, view=self)
        )

    def wants(self, kind: type[BusEvent], session: str = "") -> bool:
        """Return whether there is a subscriber to such an event."""
        return self._bus.wants(kind, session)

    def emit(self, event: BusEvent) -> None:
        """Notify the subscribers of all plugins and of the gateway."""
        self._bus.emit(event)


class ActivityBus:
    """The part of the bus that reports the work of agents and tools, as operators and plugins see it."""

    def __init__(self, events: EventBus | OwnedEvents, ids: itertools.count[int] | None = None) -> None:
        self._events = events
        self._ids = itertools.count(1) if ids is None else ids

    def of_plugin(self, events: OwnedEvents) -> ActivityBus:
        """Return the same for a plugin, which owns its subscriptions."""
        return ActivityBus(events, self._ids)

    def subscribe(self, listener: Callable[[Activity], object]) -> Unregister:
        """Call ``listener`` with the activity of agents, tools and tasks."""
        return self._events.subscribe(Activity, listener)

    def emit(
        self, kind: ActivityKind, source: str, summary: str, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Report that an activity began or ended."""
        if self._events.wants(Activity):
            self._events.emit(Activity(next(self._ids), now_ms(), kind, source, summary, detail))

    def subscribe_sub_agent(self, listener: Callable[[SubAgentEvent], object]) -> Unregister:
        """Call ``listener`` with the steps of nested runs."""
        return self._events.subscribe(SubAgentEvent, listener)
