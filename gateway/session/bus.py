"""The message bus: the messages of one session, for plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from gateway.contract.messages import Message, checked_part, new_id, sound
from gateway.contract.services import Unregister
from gateway.events.bus import EventBus
from gateway.events.types import TranscriptChanged


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
        store_injected: Callable[[Message], None],
        events: EventBus,
        injected: Iterable[Message] = (),
    ) -> None:
        self._session = session
        self._show = show
        self._snapshot = snapshot
        self._store_injected = store_injected
        self._next: list[Message] = [*injected]
        self._events = events

    @property
    def in_use(self) -> bool:
        """Return whether there is a subscriber to the session, or a message for the next turn."""
        return bool(self._next) or self._events.follows(self._session)

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

    def subscribe(self, listener: Callable[[tuple[Message, ...]], None]) -> Unregister:
        """Call ``listener`` with the transcript now, and again whenever it changes."""
        listener(self._snapshot())
        return self._events.subscribe(
            TranscriptChanged, lambda changed: listener(changed.messages), session=self._session
        )

    def get(self) -> tuple[Message, ...]:
        """Return the current transcript."""
        return self._snapshot()

    def notify(self) -> None:
        """Notify subscribers that the transcript changed."""
        # Without subscribers, building the snapshot would copy the whole log for nothing.
        if self._events.wants(TranscriptChanged, self._session):
            self._events.emit(TranscriptChanged(self._session, self._snapshot()))

    def _adopt(self, message: Message) -> Message:
        """Return the message as the session stores it. Raises for parts that cannot be stored."""
        for part in message.parts:
            checked_part(part)
        known = {said.id for said in (*self._snapshot(), *self._next)}
        own_id = new_id() if message.id in known else message.id
        return sound(msgspec.structs.replace(message, id=own_id, session_id=self._session))
