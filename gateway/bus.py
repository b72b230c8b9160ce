"""The buses: a session's messages, and the activity of the whole gateway."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from gateway.events import Activity, ActivityKind, SubAgentEvent
from gateway.messages import Message, now_ms, sound

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
    the next user message, after which it joins the transcript.
    """

    def __init__(self, show: Callable[[Message], None], snapshot: Callable[[], tuple[Message, ...]]) -> None:
        self._show = show
        self._snapshot = snapshot
        self._next: list[Message] = []
        self._listeners: Listeners[tuple[Message, ...]] = Listeners()

    def append(self, message: Message) -> None:
        """Show the message now. It stays in the transcript, hidden from the model."""
        self._show(sound(msgspec.structs.replace(message, for_model=False)))
        self.changed()

    def inject_next(self, message: Message) -> None:
        """Let the message follow the next user message; the model sees it then."""
        self._next.append(sound(message))

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
