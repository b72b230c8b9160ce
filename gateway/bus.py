"""The buses: a session's messages, and the activity of the whole gateway."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from gateway.events import Activity, ActivityKind, SubAgentEvent
from gateway.messages import Message, checked_part, new_id, now_ms, sound

log = structlog.get_logger("trunkline.bus")

T = TypeVar("T")
Unsubscribe = Callable[[], None]


class Listeners(Generic[T]):
    """Callbacks for one kind of thing. One that raises is logged and does not disturb the others."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[T], None]] = []

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: Callable[[T], None]) -> Unsubscribe:
        """Call ``listener`` from now on, until the returned function is called."""
        self._listeners.append(listener)

        def remove() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return remove

    def tell(self, value: T) -> None:
        """Call every listener with the value."""
        for listener in tuple(self._listeners):
            try:
                listener(value)
            except Exception:
                log.exception("a listener failed", value=type(value).__name__)


class MessageBus:
    """The messages of one session, as plugins see them.

    ``append`` shows a message at once and the model never sees it; ``inject_next`` holds one back until
    the next user message, after which it joins the transcript. Both raise PartValidationError or
    InvalidPartTypeError for what could not be stored. A message belongs to the session it is given to,
    and gets a new id if there is one with its id already.
    """

    def __init__(
        self,
        session: str,
        show: Callable[[Message], None],
        snapshot: Callable[[], tuple[Message, ...]],
    ) -> None:
        self._session = session
        self._show = show
        self._snapshot = snapshot
        self._next: list[Message] = []
        self._listeners: Listeners[tuple[Message, ...]] = Listeners()

    @property
    def in_use(self) -> bool:
        """Whether somebody listens, or something waits for the next turn."""
        return bool(self._next or self._listeners)

    def append(self, message: Message) -> None:
        """Show the message now. It stays in the transcript, hidden from the model."""
        self._show(self._own(msgspec.structs.replace(message, for_model=False)))
        self.changed()

    def inject_next(self, message: Message) -> None:
        """Let the message follow the next user message; the model sees it then."""
        self._next.append(self._own(message))

    def drain_next(self) -> tuple[Message, ...]:
        """Take what waits for the next turn."""
        waiting, self._next = tuple(self._next), []
        return waiting

    def subscribe(self, listener: Callable[[tuple[Message, ...]], None]) -> Unsubscribe:
        """Call ``listener`` with the transcript now, and again whenever it changes."""
        listener(self._snapshot())
        return self._listeners.add(listener)

    def get(self) -> tuple[Message, ...]:
        """The transcript as it is now."""
        return self._snapshot()

    def changed(self) -> None:
        """Tell subscribers that the transcript changed."""
        if self._listeners:
            self._listeners.tell(self._snapshot())

    def _own(self, message: Message) -> Message:
        """The message as the session can keep it."""
        for part in message.parts:
            checked_part(part)
        known = {said.id for said in (*self._snapshot(), *self._next)}
        own_id = new_id() if message.id in known else message.id
        return sound(msgspec.structs.replace(message, id=own_id, session_id=self._session))


class ActivityBus:
    """What the gateway is doing, for operators and plugins. Nothing is replayed."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._activity: Listeners[Activity] = Listeners()
        self._sub_agents: Listeners[SubAgentEvent] = Listeners()

    def subscribe(self, listener: Callable[[Activity], None]) -> Unsubscribe:
        """Hear of agents, tools and tasks."""
        return self._activity.add(listener)

    def emit(
        self, kind: ActivityKind, source: str, summary: str, detail: Mapping[str, Any] | None = None
    ) -> None:
        """Tell that something began or ended."""
        if self._activity:
            self._activity.tell(Activity(next(self._ids), now_ms(), kind, source, summary, detail))

    def subscribe_sub_agent(self, listener: Callable[[SubAgentEvent], None]) -> Unsubscribe:
        """Hear of nested runs."""
        return self._sub_agents.add(listener)

    def emit_sub_agent(self, event: SubAgentEvent) -> None:
        """Tell a step of a nested run."""
        self._sub_agents.tell(event)
