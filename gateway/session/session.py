"""A session: one conversation, its log in memory, and the sinks of its readers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, Protocol

from msgspec.structs import replace

from gateway.contract.channel import Address
from gateway.contract.deltas import Complete
from gateway.contract.events import AgentEvent
from gateway.contract.messages import Message, TextPart, has_results, now_ms, size_of, without_notices
from gateway.session.bus import Listeners, MessageBus, Unsubscribe
from gateway.session.feed import Feed
from gateway.session.frames import (
    ApprovalAsked,
    Event,
    Frame,
    MessageFrame,
    Replayed,
    SessionFrame,
    Totals,
    TurnStart,
)
from gateway.session.log import (
    DROP_INJECTED,
    SessionRow,
    hide_message,
    put_injected,
    put_message,
    read_messages,
)
from gateway.session.redaction import NO_SECRETS, Redactor
from gateway.store import Op, Store
from gateway.store.inbox import Entry

Render = Callable[[Message], "str | None"]
Post = Callable[["Session", Message, Sequence[Op]], None]
"""Callback that commits writes together with those that place a message in the session's chat."""

_SEQ_BLOCK = 1 << 20
_COMMIT_HEADROOM = 1 << 10
_REPLAYED_MESSAGES = 500
_TITLE_LENGTH = 60
_SESSION_BYTES = 3_000
"""Estimated memory of a session besides its log, in bytes."""


class EventSink(Protocol):
    """A receiver of every event of a session."""

    def offer(self, event: Event, /) -> None: ...


class RunningTurn(Protocol):
    """The running turn of a session, as the session and its users see it.

    It is a protocol because a turn publishes to its session, so the turn's module imports this one.
    """

    message_id: str
    entry: Entry
    shown: list[tuple[int, Message]]
    injected: tuple[Message, ...]
    committed: bool
    steered: bool
    start_seq: int
    asked: dict[str, ApprovalAsked]

    @property
    def start_frame(self) -> TurnStart:
        """The frame that announces the answer."""
        ...

    def replay(self, after: int, characters: int | None) -> list[tuple[int, Frame]]:
        """Return the frames missing after number ``after``, each with the number at which it was new."""
        ...

    def abort(self) -> None:
        """End the turn as soon as possible."""
        ...


class Session:
    """A conversation.

    Everything shown gets a number (``seq``) that only grows. Only whole messages are durable, so a loaded
    session continues in a fresh block of numbers: numbers that a killed turn had used are not used again, and
    a reader that resumes after one of them gets the log's messages and the current state of the running turn.
    ``render`` returns the text of messages that have a type of their own.
    """

    def __init__(
        self,
        row: SessionRow,
        log: list[tuple[int, Message]],
        injected: Sequence[Message],
        store: Store,
        window: int,
        render: Render = lambda _message: None,
        post: Post | None = None,
        redactor: Redactor = NO_SECRETS,
    ) -> None:
        self.redactor = redactor
        self.id = row.id
        self.row = row
        self.saved = bool(row.created_at)
        self.numbers_reserved = False
        """The block of its numbers is durable, so that no later process uses it again."""
        self.seq = _next_block(row.seq) if self.saved else 0
        self.turn: RunningTurn | None = None
        self.bus = MessageBus(row.id, self._append, self.messages, self._store_injected, injected)
        self.agent_events: Listeners[AgentEvent] = Listeners()
        self.pending = 0
        self.overload_reported = False
        """Users were notified that too many messages wait; reset when there is room in memory again."""
        self._store = store
        self._window = window
        self._render = render
        self._post = post
        self._log = log
        self._log_bytes = _size_of_log(log)
        self._sinks: list[EventSink] = []
        self._viewers: list[EventSink] = []
        self._model_view: list[Message] = []
        self.has_client_results = False
        """A client may have sent tool results in messages that are meant for the model."""
        for seq, message in log:
            if seq > row.context_from:
                self._show_to_model(message)
        self._log_complete = not self.saved or len(log) == row.messages

    @property
    def weight(self) -> int:
        """Its estimated size in memory, in bytes."""
        return _SESSION_BYTES + self._log_bytes

    @property
    def idle(self) -> bool:
        """Return whether it can leave memory: no work, no reader and no listener."""
        return not (self.pending or self.turn or self._sinks or self.bus.in_use or self.agent_events)

    @property
    def has_viewers(self) -> bool:
        """Return whether a reader is a person that can see questions and answer them."""
        return bool(self._viewers)

    @property
    def address(self) -> Address:
        """The address of its chat."""
        return self.row.address

    @property
    def totals(self) -> Totals:
        """Its usage so far."""
        return Totals(self.row.input_tokens, self.row.output_tokens, self.row.cost)

    @property
    def is_empty(self) -> bool:
        """Return whether its log holds no message."""
        return not self._log

    def messages(self) -> tuple[Message, ...]:
        """Return the newest messages of the log."""
        return tuple(message for _, message in self._log)

    def model_view(self) -> tuple[Message, ...]:
        """Return the newest messages that are meant for the model, without notices."""
        return tuple(self._model_view[-self._window :])

    def publish(self, frame: Frame) -> int:
        """Send a frame to every sink. Returns its number."""
        self.seq += 1
        # The log is the record: without readers no event is built, so generation costs nothing more.
        if self._sinks:
            event = Event(self.id, self.seq, frame)
            for feed in self._sinks:
                feed.offer(event)
        return self.seq

    def subscribe(self, listener: Callable[[AgentEvent], None]) -> Unsubscribe:
        """Call ``listener`` with the events of turns, until the returned function is called."""
        return self.agent_events.add(listener)

    async def follow(
        self, feed: Feed, after: int, characters: int | None = None, *, viewer: bool = False
    ) -> None:
        """Send events to a feed; first those it missed since ``after``.

        A running answer is replayed from its beginning; with ``characters`` it continues where the reader
        was: that many characters it has of the text part that was running at ``after``. ``viewer`` marks a
        feed that belongs to a person that can see questions and answer them.
        """
        older: list[tuple[int, Message]] = []
        if not self._log_complete and after < self._log_start():
            older = await self._store.read(
                lambda c: read_messages(c, self.id, after=after, last=_REPLAYED_MESSAGES)
            )
        # Joined only after the read: the replay below then holds everything shown while it ran.
        if feed not in self._sinks:
            self._sinks.append(feed)
        if viewer and feed not in self._viewers:
            self._viewers.append(feed)
        # This session never gave such a number: replay everything.
        if after > self.seq:
            after, characters = 0, None
        for event in self._replay(after, older, characters):
            feed.offer(event)
        feed.offer(Event(self.id, self.seq, Replayed()))

    def add_sink(self, reader: EventSink) -> None:
        """Send every later event to a sink."""
        self._sinks.append(reader)

    def remove_sink(self, reader: EventSink) -> None:
        """Send no more events to a sink."""
        if reader in self._sinks:
            self._sinks.remove(reader)
        if reader in self._viewers:
            self._viewers.remove(reader)

    def begin(self, turn: RunningTurn, shown: Iterable[Message]) -> None:
        """Show the user's messages and the start of the answer."""
        self.turn = turn
        for message in shown:
            seq = self.publish(self._frame(message))
            turn.shown.append((seq, message))
            self._remember(seq, message)
        turn.start_seq = self.publish(turn.start_frame)
        self.bus.notify()

    def forget_deleted(self, ids: Collection[str]) -> None:
        """Forget messages that were deleted from the store."""
        for _, message in self._log:
            if message.id in ids:
                self._count(message, -1)
        self._forget(ids)
        self.bus.notify()

    async def commit(self, turn: RunningTurn, answer: Message | None, settled: Sequence[Op]) -> int:
        """Commit a turn's messages and its outcome in one transaction. Returns the answer's number."""
        # Reserved before the commit and used by ``complete`` after it; frames shown in between stay below.
        seq = self.seq + _COMMIT_HEADROOM
        added = turn.shown if answer is None else [*turn.shown, (seq, answer)]
        # Encode first: it refuses parts that could not be read back, and nothing may have changed by then.
        ops = [op for number, message in added for op in put_message(message, number)]
        for _, message in added:
            self._count(message)
        ops += [(DROP_INJECTED, (message.id,)) for message in turn.injected]
        await self._store.write(self._put_row(seq), *ops, *settled)
        turn.committed = True
        return seq

    def complete(self, answer: Message, seq: int, done: Complete) -> None:
        """Show that the answer, committed as number ``seq``, is complete."""
        self.seq = max(seq - 1, self.seq)
        self._remember(self.publish(done), answer)
        self.bus.notify()

    def finish(self, turn: RunningTurn) -> None:
        """End a turn: undo what it showed unless it was committed."""
        if not turn.committed:
            self._forget({message.id for _, message in turn.shown})
            self.bus.put_back(turn.injected)
            self.bus.notify()
        if self.turn is turn:
            self.turn = None
            self.publish(SessionFrame(usage=self.totals, status="idle"))

    def put(self) -> Op:
        """Return the write that creates or updates the session's row."""
        return self._put_row(self.seq)

    def set_title_from(self, text: str) -> None:
        """Set a missing title from the first line of a text."""
        line = " ".join(text.strip().split("\n")[0].split())
        if self.row.title or not line:
            return
        self.row.title = line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…"
        self.publish(SessionFrame(title=self.row.title))

    def cut_context(self) -> None:
        """Hide everything so far from the model; readers keep it."""
        self.row.context_from = self.seq
        self._model_view.clear()

    @property
    def last_user_message_id(self) -> str | None:
        """The id of the last user message that is shown to the model."""
        return next((message.id for message in reversed(self._model_view) if message.role == "user"), None)

    async def exclude_messages(self, ids: Collection[str], settled: Sequence[Op] = ()) -> None:
        """Hide some messages from the model; readers keep them."""
        hidden = self._exclude_messages(ids)
        await self._store.write(*map(hide_message, hidden.values()), *settled)

    def exclude_from_context(self, turn: RunningTurn) -> None:
        """Hide withdrawn messages of a turn from the model; readers keep them."""
        silent = [entry.id for entry in (*turn.entry.merged, turn.entry) if entry.silent]
        if not silent:
            return
        hidden = self._exclude_messages(silent)
        turn.shown = [(seq, hidden.get(message.id, message)) for seq, message in turn.shown]

    def _exclude_messages(self, ids: Collection[str]) -> Mapping[str, Message]:
        """Hide some messages from the model and return them as they are then."""
        hidden = {m.id: replace(m, for_model=False) for _, m in self._log if m.id in ids}
        self._log = [(seq, hidden.get(message.id, message)) for seq, message in self._log]
        self._model_view = [message for message in self._model_view if message.id not in ids]
        return hidden

    async def add_message(self, message: Message, settled: Sequence[Op]) -> None:
        """Show a message outside of a turn, durable together with the writes of ``settled``."""
        written = self._store.submit([*self._add(message), *settled])
        self.bus.notify()
        await written

    def _append(self, message: Message) -> None:
        added = self._add(message)
        # Without a poster (before the pipeline is up) the message is stored, but placed nowhere.
        if self._post is None:
            self._store.submit(added).add_done_callback(_ignore_result)
            return
        rendered = None if message.custom_type is None else self._render(message)
        shown = message if rendered is None else replace(message, parts=(TextPart(rendered),))
        self._post(self, shown, added)

    def _store_injected(self, message: Message) -> None:
        self.seq += 1
        self._store.submit([self._put_row(self.seq), put_injected(message, self.seq)]).add_done_callback(
            _ignore_result
        )

    def _add(self, message: Message) -> list[Op]:
        seq = self.publish(self._frame(message))
        self._remember(seq, message)
        self._count(message)
        return [self._put_row(seq), *put_message(message, seq)]

    def _count(self, message: Message, times: Literal[1, -1] = 1) -> None:
        """Add a message to the totals, or subtract it."""
        row, taken = self.row, message.metadata
        row.messages += times
        row.input_tokens += times * (taken.input_tokens or 0)
        row.output_tokens += times * (taken.output_tokens or 0)
        row.cost += times * (taken.cost or 0.0)

    def _frame(self, message: Message) -> MessageFrame:
        return MessageFrame(message, None if message.custom_type is None else self._render(message))

    def _put_row(self, seq: int) -> Op:
        row = self.row
        row.seq, row.updated_at = max(seq, row.seq), now_ms()
        row.created_at = row.created_at or row.updated_at
        return row.put()

    def _remember(self, seq: int, message: Message) -> None:
        self._log.append((seq, message))
        self._log_bytes += size_of(message)
        self._show_to_model(message)
        # Trim at twice the window: trimming at every message would copy the list each time.
        if len(self._log) > 2 * self._window:
            del self._log[: -self._window]
            self._log_bytes = _size_of_log(self._log)
            self._log_complete = False
        if len(self._model_view) > 2 * self._window:
            del self._model_view[: -self._window]

    def _show_to_model(self, message: Message) -> None:
        # Prepared once here: a turn that had to look at every message would slow down as its session grows.
        shown = without_notices(message) if message.for_model else None
        if shown is not None:
            self._model_view.append(shown)
            self.has_client_results |= has_results(shown)

    def _forget(self, ids: Collection[str]) -> None:
        """Remove messages without a durable outcome; the next attempt shows them again."""
        self._log = [entry for entry in self._log if entry[1].id not in ids]
        self._log_bytes = _size_of_log(self._log)
        self._model_view = [message for message in self._model_view if message.id not in ids]

    def _log_start(self) -> int:
        return self._log[0][0] if self._log else self.seq

    def _replay(
        self, after: int, older: Sequence[tuple[int, Message]], characters: int | None
    ) -> list[Event]:
        start = self._log_start()
        log = [entry for entry in older if entry[0] < start] + self._log
        missed = [Event(self.id, seq, self._frame(message)) for seq, message in log if seq > after]
        turn = self.turn
        if turn is not None and not turn.committed:
            behind = missed[-1].seq if missed else after
            for at, frame in turn.replay(after, characters):
                # A reader drops events numbered below its own number, so a replay never goes back.
                missed.append(Event(self.id, max(at, behind), frame, at))
        return missed


def _size_of_log(log: Iterable[tuple[int, Message]]) -> int:
    return sum(size_of(message) for _, message in log)


def _next_block(seq: int) -> int:
    """Return the first number of an unused block; a turn may have run far past the stored number."""
    return (seq + _SEQ_BLOCK // 2 | (_SEQ_BLOCK - 1)) + 1


def _ignore_result(future: object) -> None:
    """Retrieve the result of a write: the writer has logged its failure, and no caller waits for it."""
    future.exception()  # type: ignore[attr-defined]
