"""The buses: the messages of a session, and the activity of the whole gateway."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from gateway.contract.events import Activity, ActivityKind, SubAgentEvent
from gateway.contract.messages import Message, checked_part, new_id, now_ms, sound

log = structlog.get_logger("trunkline.bus")

T = TypeVar("T")
Unsubscribe = Callable[[], None]


class Listeners(Generic[T]):
    """Callbacks for one kind of value. One that raises is logged and does not affect the others."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[T], None]] = []

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: Callable[[T], None]) -> Unsubscribe:
        """Call ``listener`` from here on, until the returned function is called."""
        self._listeners.append(listener)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    def notify(self, value: T) -> None:
        """Call every listener with the value."""
        # A copy: a listener may unsubscribe while it is called.
        for listener in tuple(self._listeners):
            try:
                listener(value)
            except Exception:
                log.exception("a listener failed", value=type(value).__name__)


class MessageBus:
    """The messages of one session, as plugins see them.

    ``append`` shows a message at once and hides it from the model; on a platform it is placed in the
    session's chat like an answer, exactly once, after the answer that is being made. ``inject_next`` holds a
    message back until the next user message, after which it joins the transcript. Both are written before
    anything that is committed later, and raise PartValidationError or InvalidPartTypeError for parts that
    cannot be stored. A message belongs to the session it is given to, and gets a new id if the session has a
    message with its id.
    """

    def __init__(
        self,
        session: str,
        show: Callable[[Message], None],
        snapshot: Callable[[], tuple[Message, ...]],
        keep: Callable[[Message], None],
        injected: Iterable[Message] = (),
    ) -> None:
        self._session = session
        self._show = show
        self._snapshot = snapshot
        self._store_injected = keep
        self._next: list[Message] = [*injected]
        self._listeners: Listeners[tuple[Message, ...]] = Listeners()

    @property
    def in_use(self) -> bool:
        """Return whether there is a subscriber, or a message for the next turn."""
        return bool(self._next or self._listeners)

    def append(self, message: Message) -> None:
        """Show the message now. It stays in the transcript, hidden from the model."""
        self._show(self._adopt(msgspec.structs.replace(message, for_model=False)))
        self.notify()

    def inject_next(self, message: Message) -> None:
        """Add the message after the next user message; the model sees it then."""
        own = self._adopt(message)
        # Stored first: a message that cannot be stored must not reach the model.
        self._store_injected(own)
        self._next.append(own)

    def drain_next(self) -> tuple[Message, ...]:
        """Remove and return the messages for the next turn."""
        waiting, self._next = tuple(self._next), []
        return waiting

    def put_back(self, messages: Iterable[Message]) -> None:
        """Return messages to the front of the queue: the turn that took them had no outcome."""
        self._next[:0] = messages

    def subscribe(self, listener: Callable[[tuple[Message, ...]], None]) -> Unsubscribe:
        """Call ``listener`` with the transcript now, and again whenever it changes."""
        listener(self._snapshot())
        return self._listeners.add(listener)

    def get(self) -> tuple[Message, ...]:
        """Return the current transcript."""
        return self._snapshot()

    def notify(self) -> None:
        """Notify subscribers that the transcript changed."""
        # Without subscribers, building the snapshot would copy the whole log for nothing.
        if self._listeners:
            self._listeners.notify(self._snapshot())

    def _adopt(self, message: Message) -> Message:
        """Return the message as the session stores it. Raises for parts that cannot be stored."""
        for part in message.parts:
            checked_part(part)
        known = {said.id for said in (*self._snapshot(), *self._next)}
        own_id = new_id() if message.id in known else message.id
        return sound(msgspec.structs.replace(message, id=own_id, session_id=self._session))


class ActivityBus:
    """Activity of the gateway, for operators and plugins. Nothing is replayed."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._activity: Listeners[Activity] = Listeners()
        self._sub_agents: Listeners[SubAgentEvent] = Listeners()

    def subscribe(self, listener: Callable[[Activity], None]) -> Unsubscribe:
        """Call ``listener`` with the activity of agents, tools and tasks."""
        return self._activity.add(listener)

    def emit(
        self, kind: ActivityKind, source: str, summary: str, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Report that an activity began or ended."""
        if self._activity:
            self._activity.notify(Activity(next(self._ids), now_ms(), kind, source, summary, detail))

    def subscribe_sub_agent(self, listener: Callable[[SubAgentEvent], None]) -> Unsubscribe:
        """Call ``listener`` with the steps of nested runs."""
        return self._sub_agents.add(listener)

    def emit_sub_agent(self, event: SubAgentEvent) -> None:
        """Report a step of a nested run."""
        self._sub_agents.notify(event)
