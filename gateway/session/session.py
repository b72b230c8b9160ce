"""A session: one conversation, its log in memory, and the sinks of its readers."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Literal, Protocol

from msgspec.structs import replace

from gateway.contract.channel import Address
from gateway.contract.deltas import Complete
from gateway.contract.errors import StoreError
from gateway.contract.events import AgentEvent
from gateway.contract.messages import Message, TextPart, has_results, is_untrusted, now_ms, size_of
from gateway.contract.services import Unregister
from gateway.events.bus import EventBus
from gateway.events.types import (
    AgentProgress,
    MessageAdded,
    MessageRemoved,
    MessageUpdated,
    SessionTitled,
)
from gateway.session.bus import MessageBus
from gateway.session.compaction import MOST_MESSAGES, Context
from gateway.session.feed import Feed
from gateway.session.frames import (
    ApprovalAsked,
    Event,
    Frame,
    LogChanged,
    MessageFrame,
    Replayed,
    SessionFrame,
    Totals,
    TurnStart,
)
from gateway.session.log import (
    DROP_INJECTED,
    MARK_UNDONE,
    PIN,
    RENAME,
    RESERVE,
    SessionRow,
    hide_message,
    put_injected,
    put_message,
    read_changed,
    read_messages,
    replace_message,
    update_message,
)
from gateway.session.redaction import NO_SECRETS, Redactor
from gateway.store import Inserted, Op, Store
from gateway.store.inbox import Entry

Render = Callable[[Message], "str | None"]
Post = Callable[["Session", Message, Sequence[Op]], None]
"""Callback that commits writes together with those that place a message in the session's chat."""

Commit = tuple[Sequence[tuple[int, Message]], asyncio.Future[Inserted]]
"""The messages that a turn adds to the log with their numbers, the answer last, and the write of them."""

_SEQ_BLOCK = 1 << 20
_COMMIT_HEADROOM = 1 << 10
_REPLAYED = 500
"""Most messages that a reader gets at once."""
_CHANGES = 32
"""Number of newest replacements that are remembered, for readers that come before they are committed."""
LOG_WINDOW = 200
"""Number of newest messages of a log that stay in memory for readers, besides those for the model."""
_TITLE_LENGTH = 60
_MARKS = re.compile(r"\A(?:#{1,6} +|> +|[-*+] +|[`~]{3}.*\n)+|\*\*(?=\S)([^*\n]+)\*\*|`([^`\n]+)`")
"""Marks of Markdown that a title shows as they are: a heading, a list, a quote, a fence; bold, code."""
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
    commit: Commit | None
    steered: bool
    start_seq: int

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
    ``render`` returns the text of messages that have their own type.
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
        events: EventBus | None = None,
    ) -> None:
        self.redactor = redactor
        self.events = EventBus() if events is None else events
        self.id = row.id
        self.row = row
        self.saved = bool(row.created_at)
        self.numbers_reserved = False
        """The block of its numbers is durable, so that no later process uses it again."""
        self.seq = self._reserved = _next_block(row.seq) if self.saved else 0
        self.turn: RunningTurn | None = None
        self.bus = MessageBus(
            row.id, self._append, self.messages, self._store_injected, self.events, injected
        )
        self.pending = 0
        self.changing = asyncio.Lock()  # held while log and files change to another version: no turn begins
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
        self._changed = deque[tuple[int, Message]](maxlen=_CHANGES)
        """Replaced messages with the numbers of that; the store has them all once they are committed."""
        self._changed_at = self.seq  # no message was replaced at a higher number
        self._context = Context()
        self.overflowed = False
        """A provider reported more tokens than the model's context may have."""
        self.no_compaction_before = 0.0  # monotonic seconds until which a failed one is not repeated
        self.has_origins = False
        """A message for the model has an author or a room that the model has to know."""
        self.has_read_others = False
        """A tool gave the running turn content of others; earlier turns have it in their results."""
        self.asked: dict[str, ApprovalAsked] = {}
        """The open questions, by id."""
        self.context: dict[str, str] = {}
        """Ids of the context messages, by the source that deletes them."""
        self.enveloped: dict[str, tuple[tuple[Message, ...], Message]] = {}
        """Messages as the model gets them, with those that they are made from, by the id of the first."""
        self._enveloped_bytes = 0
        self.has_client_results = False
        """A client may have sent tool results in messages that are meant for the model."""
        for seq, message in log:
            if seq > row.context_from:
                self._show_to_model(seq, message)
        self._log_complete = not self.saved or len(log) == row.messages

    @property
    def weight(self) -> int:
        """Its estimated size in memory, in bytes."""
        return _SESSION_BYTES + self._log_bytes + self._enveloped_bytes

    @property
    def idle(self) -> bool:
        """Return whether it can leave memory: no work, no reader and no listener."""
        return not (self.pending or self.turn or self._sinks or self.bus.in_use)

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

    @property
    def log(self) -> Sequence[tuple[int, Message]]:
        """The newest messages of the log with their numbers."""
        return self._log

    def messages(self) -> tuple[Message, ...]:
        """Return the newest messages of the log."""
        return tuple(message for _, message in self._log)

    def model_view(self) -> tuple[Message, ...]:
        """Return the newest messages that are meant for the model, without notices."""
        return self._context.view()

    @property
    def context_tokens(self) -> int:
        """The estimated tokens of the messages for the model."""
        return self._context.tokens

    @property
    def is_context_crowded(self) -> bool:
        """Return whether the context has more messages than a session is loaded with."""
        # The log counts, too: a summary must be among the messages that are loaded after a restart.
        count = len(self._log)
        return count > MOST_MESSAGES and count - self._context_start() > MOST_MESSAGES

    def keep_enveloped(self, of: tuple[Message, ...], made: Message) -> None:
        """Keep a message as the model gets it, so that the next request holds the same object."""
        if len(self.enveloped) > 2 * max(self._window, len(self._context.messages)):
            self.enveloped.clear()
            self._enveloped_bytes = 0
        self.enveloped[of[0].id] = of, made
        self._enveloped_bytes += size_of(made)

    @property
    def is_untrusted(self) -> bool:
        """Return whether the model sees a message with content of a person who may not use the bot."""
        shown = self._context.view() if self.has_origins else ()
        return any(message.origin is not None and not message.origin.trusted for message in shown)

    @property
    def holds_others_content(self) -> bool:
        """Return whether the model sees content of others that a tool has read, such as a web page."""
        shown = self._context.view()
        return self.has_read_others or any(is_untrusted(part) for message in shown for part in message.parts)

    def publish(self, frame: Frame) -> int:
        """Send a frame to every sink. Returns its number."""
        self.seq += 1
        # The log is the record: without readers no event is built, so generation costs nothing more.
        if self._sinks:
            event = Event(self.id, self.seq, frame)
            for feed in self._sinks:
                feed.offer(event)
        return self.seq

    def subscribe(self, listener: Callable[[AgentEvent], None]) -> Unregister:
        """Call ``listener`` with the events of turns, until the returned function is called."""
        return self.events.subscribe(
            AgentProgress, lambda progress: listener(progress.event), session=self.id
        )

    async def follow(
        self, feed: Feed, after: int, characters: int | None = None, *, viewer: bool = False
    ) -> None:
        """Send events to a feed; first those it missed since ``after``.

        Of more than 500 messages it gets the newest, after an event to discard what it has. A running answer
        is replayed from its beginning; with ``characters`` it continues where the reader was: that many
        characters it has of the text part that was running at ``after``. ``viewer`` marks a feed that belongs
        to a person that can see questions and answer them.
        """
        # Durable before one is shown: a later process would use it again, and this reader would miss that.
        # The write also fails if another node took over, which may have moved on from what this one loaded.
        if not self.numbers_reserved:
            saved, self.row.seq = self.saved, max(self.seq, self.row.seq)
            await self._store.write((RESERVE, (self.id, self.row.seq)))
            self.numbers_reserved = self.numbers_reserved or saved
        # It may have seen messages that are hidden by now, or missed some that are shown again; or its number
        # is of a deleted session of this id.
        is_stale = 0 < after < self.row.undone_at or after > self.seq
        older = await self._read_older(0 if is_stale else after)
        # Or more than it gets: those that are left out would be a hole in what it shows.
        is_stale |= after > 0 and max(len(older), sum(seq > after for seq, _ in self._log)) > _REPLAYED
        if is_stale:
            after, characters = 0, None
        changed: Sequence[tuple[int, Message]] = ()
        if 0 < after < self._changed_at:
            changed = await self._store.read(lambda c: read_changed(c, self.id, after))
            # Not those of a node that took over meanwhile: the reader would resume after others of it.
            changed = [entry for entry in changed if entry[0] <= self.seq]
        # Joined only after the reads: the replay below then holds everything shown while they ran.
        if feed not in self._sinks:
            self._sinks.append(feed)
        if viewer and feed not in self._viewers:
            self._viewers.append(feed)
        if is_stale:
            feed.offer(Event(self.id, 0, LogChanged()))
        for event in self._replay(after, older, changed, characters):
            feed.offer(event)

    async def _read_older(self, after: int) -> list[tuple[int, Message]]:
        """Read the messages after a number that are not in memory any more."""
        if self._log_complete or after >= self._log_start():
            return []
        return await self._store.read(lambda c: read_messages(c, self.id, after=after, last=_REPLAYED + 1))

    async def show_anew(self) -> None:
        """Send the whole log to every reader again, after a durable change of which messages it shows."""
        events = [Event(self.id, 0, LogChanged()), *self._replay(0, await self._read_older(0), (), None)]
        # A reader that resumes with an older number missed the change, and gets the whole log again.
        self.row.undone_at = self.seq
        for feed in self._sinks:
            for event in events if isinstance(feed, Feed) else ():
                feed.offer(event)
        self.bus.notify()

    def add_sink(self, reader: EventSink) -> None:
        """Send every later event to a sink."""
        self._sinks.append(reader)

    def remove_sink(self, reader: EventSink) -> None:
        """Send no more events to a sink."""
        for readers in (self._sinks, self._viewers):
            if reader in readers:
                readers.remove(reader)

    def begin(self, turn: RunningTurn, shown: Iterable[Message]) -> None:
        """Show the user's messages and the start of the answer; beside a running one, only the messages."""
        if not turn.entry.aside:
            self.turn, self.has_read_others = turn, False
        for message in shown:
            seq = self.publish(self._frame(message))
            turn.shown.append((seq, message))
            self._remember(seq, message)
        if not turn.entry.aside:
            turn.start_seq = self.publish(turn.start_frame)
        self.bus.notify()

    def forget_deleted(self, ids: Collection[str]) -> None:
        """Forget messages that were deleted from the store."""
        deleted = [message for _, message in self._log if message.id in ids]
        for message in deleted:
            self._count(message, -1)
        self._forget(ids)
        self._report(MessageRemoved, deleted)
        self.bus.notify()

    def forget_context(self, source: str) -> None:
        """Forget a context message whose author deleted it, also in the running turn."""
        message_id = self.context.pop(source, None)
        if message_id is None:
            return
        turn = self.turn
        if turn is not None and turn.commit is None and any(one.id == message_id for _, one in turn.shown):
            # It is not counted yet, and must not be committed with the answer.
            turn.shown = [(seq, one) for seq, one in turn.shown if one.id != message_id]
            self._forget((message_id,))
        else:
            self.forget_deleted((message_id,))

    async def commit(
        self, turn: RunningTurn, answer: Message | None, settled: Sequence[Op]
    ) -> Sequence[tuple[int, Message]]:
        """Commit a turn's messages and its outcome in one transaction.

        Returns the messages with their numbers, the answer last. A cancellation does not take a commit back:
        after one that interrupted the wait, another call waits for the same commit.
        """
        if turn.commit is None:
            # Reserved before the commit and used by ``complete`` after it; frames shown in between stay
            # below. A command may commit at the same time as the answer that runs beside it.
            seq = self._reserved = max(self.seq, self._reserved) + _COMMIT_HEADROOM
            shown = turn.shown if answer is None else [*turn.shown, (seq, answer)]
            # Encode first: it refuses parts that could not be read back, before anything has changed.
            ops = [op for number, message in shown for op in put_message(message, number)]
            for _, message in shown:
                self._count(message)
            ops += [(DROP_INJECTED, (message.id,)) for message in turn.injected]
            turn.commit = shown, self._store.submit([self._put_row(seq), *ops, *settled])
        added, written = turn.commit
        try:
            await asyncio.shield(written)
        except StoreError:
            turn.commit = None
            for _, message in added:
                self._count(message, -1)
            raise
        turn.committed = True
        self._report(MessageAdded, [message for _, message in added])
        return added

    def complete(self, answer: Message, seq: int, done: Complete | None) -> None:
        """Show that the answer, committed as number ``seq``, is complete; with None, show all of it."""
        self.seq = max(seq - 1, self.seq)
        self._remember(self.publish(done or self._frame(answer)), answer)
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

    async def save(self) -> None:
        """Store its row, for a change that no message's commit carries."""
        await self._store.write(self.put())
        self.numbers_reserved = True

    def set_title_from(self, text: str) -> None:
        """Set a missing title from the first line of a text."""
        plain = _MARKS.sub(r"\1\2", text.strip()[: 10 * _TITLE_LENGTH])
        if (line := " ".join(plain.strip().split("\n")[0].split())) and not self.row.title:
            self.row.title = line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…"
            self.publish(SessionFrame(title=self.row.title))
            self.events.emit(SessionTitled(self.id, self.row.title))

    async def rename(self, title: str, by: Literal["model", "user"]) -> None:
        """Set a title that replaces the first line. Durable when it returns."""
        self.row.title, self.row.titled = title, by
        self.publish(SessionFrame(title=title))
        # Not the whole row: its time would change, and a rename must not reorder a list.
        await self._store.write((RENAME, (self.id, title, by)))

    async def pin(self, at: int | None) -> None:
        """Pin it at a time (ms), or unpin it with None. Durable when it returns."""
        self.row.pinned_at = at
        await self._store.write((PIN, (self.id, at)))

    def cut_context(self) -> None:
        """Hide everything so far from the model; readers keep it."""
        self.row.context_from = self.seq
        self._context.clear()
        self.has_read_others = False

    def halve_context(self, limit: int) -> None:
        """Hide the oldest messages from the model until its context has half of ``limit`` tokens.

        The running turn stays. The cut is stored with the next write of the session's row.
        """
        before = self.turn.shown[0][0] if self.turn and self.turn.shown else None
        _, until = self._context.coverable(limit // 2, before)
        if until:
            self.row.context_from = until
            self._context.drop_until(until)

    async def prune(self) -> bool:
        """Hide old tool outputs from the model; readers keep them. Return whether any was hidden."""
        pruned = {message.id for message in self._context.prune()}
        changed = {m.id: replace(m, pruned=True) for _, m in self._log if m.id in pruned}
        self._log = [(seq, changed.get(message.id, message)) for seq, message in self._log]
        if changed:
            await self._store.write(*map(update_message, changed.values()))
        return bool(pruned)

    def coverable(self, keep: int) -> tuple[tuple[Message, ...], int]:
        """Return the messages that a new summary is made from, and the number of the last of them.

        The newest ``keep`` tokens and the running turn stay as they are. Empty if nothing is left to cover.
        """
        before = self.turn.shown[0][0] if self.turn and self.turn.shown else None
        covered, until = self._context.coverable(keep, before)
        last = self._context.summary
        return (covered if last is None else (last, *covered)) if covered else (), until

    async def summarize(self, summary: Message, until: int) -> None:
        """Let a summary take the place of the messages up to a number for the model; readers keep them.

        The summary and the number are one transaction.
        """
        self.row.context_from, self.overflowed = until, False
        self._context.drop_until(until)
        await self.add_message(summary, [])

    def is_last_answer(self, answer_id: str) -> bool:
        """Return whether the log has this answer, and after it no user's message for the model."""
        log = (one for _, one in reversed(self._log))
        found = (one.id for one in log if one.id == answer_id or (one.role == "user" and one.for_model))
        return next(found, None) == answer_id

    async def exclude_messages(self, ids: Collection[str], settled: Sequence[Op] = ()) -> None:
        """Hide some messages from the model; readers keep them."""
        hidden = self._exclude_messages(ids)
        await self._store.write(*map(update_message, hidden.values()), *settled)

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
        self._context.forget(ids)
        return hidden

    async def add_message(self, message: Message, settled: Sequence[Op]) -> None:
        """Show a message outside of a turn, durable together with the writes of ``settled``."""
        written = self._store.submit([*self._add(message), *settled])
        self.bus.notify()
        await written
        self._report(MessageAdded, [message])

    def replace_message(self, message: Message, settled: Sequence[Op]) -> asyncio.Future[Inserted]:
        """Replace a message of the log by its id, durable together with the writes of ``settled``."""
        known = next((one for _, one in self._log if one.id == message.id), None)
        # Encoded first: it refuses parts that could not be read back.
        ops = replace_message(message, None if message == known else self.seq + 1)
        if message != known:
            self._log = [(n, message if one.id == message.id else one) for n, one in self._log]
            self._context.replace(message)
            self._changed_at = self.publish(self._frame(message))
            self._changed.append((self._changed_at, message))
            self._report(MessageUpdated, [message])
        written = self._store.submit([self._put_row(self.seq), *ops, *settled])
        self.bus.notify()
        return written

    def hide_messages(self, ids: Collection[str], *, redoable: bool = True) -> tuple[int, list[Op]]:
        """Hide messages of the log from everyone; /redo can show them again, unless not ``redoable``.

        Returns the number of this change, and the writes that make it durable; ``show_anew`` follows them.
        """
        shown = len(self._log)
        self._report(MessageRemoved, [message for _, message in self._log if message.id in ids])
        self._forget(ids)
        self._changed = deque((one for one in self._changed if one[1].id not in ids), _CHANGES)
        changed = self._change_log(len(self._log) - shown)
        undone = self.seq if redoable else -self.seq
        return self.seq, [*changed, *(op for message_id in ids for op in hide_message(message_id, undone))]

    def restore_messages(self, restored: Sequence[tuple[int, Message]]) -> list[Op]:
        """Show hidden messages again in their places. Returns the writes, as ``hide_messages`` does."""
        self._log = sorted([*self._log, *restored], key=itemgetter(0))
        self._log_bytes = _size_of_log(self._log)
        self._context = Context()
        for seq, message in self._log:
            if seq > self.row.context_from:
                self._show_to_model(seq, message)
        changed = self._change_log(len(restored))
        self._report(MessageAdded, [message for _, message in restored])
        return [*changed, *(op for _, message in restored for op in hide_message(message.id, None))]

    def _change_log(self, added: int) -> list[Op]:
        # Their tokens and cost stay counted: they were spent.
        self.row.messages += added
        self.seq += 1
        self.row.undone_at = self.seq
        return [self._put_row(self.seq), (MARK_UNDONE, (self.id, self.seq))]

    def rendered(self, message: Message) -> Message:
        """Return a message as platforms show it: with the text of its renderer, if it has one."""
        rendered = self._render(message)
        return message.with_state_of() if rendered is None else replace(message, parts=(TextPart(rendered),))

    def _append(self, message: Message) -> None:
        added = self._add(message)
        self._report(MessageAdded, [message])
        # Without a poster (before the pipeline is up) the message is stored, but placed nowhere. A nested
        # run has no chat: only its parent's answer is placed.
        if self._post is None or self.row.root is not None:
            # The writer logs its failures. The exception is retrieved only to keep asyncio from logging it.
            self._store.submit(added).add_done_callback(lambda done: done.exception())
            return
        self._post(self, self.rendered(message), added)

    def _store_injected(self, message: Message) -> None:
        self.seq += 1
        self._store.submit([self._put_row(self.seq), put_injected(message, self.seq)]).add_done_callback(
            lambda done: done.exception()
        )

    def _add(self, message: Message) -> list[Op]:
        seq = self.publish(self._frame(message))
        self._remember(seq, message)
        self._count(message)
        return [self._put_row(seq), *put_message(message, seq)]

    def _count(self, message: Message, times: Literal[1, -1] = 1) -> None:
        """Add a message to the totals, or subtract it."""
        row, usage = self.row, message.metadata
        row.messages += times
        row.input_tokens += times * (usage.input_tokens or 0)
        row.output_tokens += times * (usage.output_tokens or 0)
        row.cost += times * (usage.cost or 0.0)

    def _report(
        self, kind: type[MessageAdded | MessageUpdated | MessageRemoved], messages: Iterable[Message]
    ) -> None:
        if self.events.wants(kind, self.id):
            for message in messages:
                self.events.emit(kind(self.id, message.id, message.role, message.text))

    def _frame(self, message: Message) -> MessageFrame:
        return MessageFrame(message.with_state_of(), self._render(message))

    def _put_row(self, seq: int) -> Op:
        row = self.row
        row.seq, row.updated_at = max(seq, row.seq), now_ms()
        row.created_at = row.created_at or row.updated_at
        return row.put()

    def _remember(self, seq: int, message: Message) -> None:
        self._log.append((seq, message))
        self._log_bytes += size_of(message)
        self._show_to_model(seq, message)
        # Trim at twice the window: trimming at every message would copy the list each time.
        if len(self._log) > 2 * self._window:
            self._trim()

    def _trim(self) -> None:
        """Drop messages from memory that neither new readers nor the model get."""
        excess = min(len(self._log) - self._window, self._context_start())
        excess = max(excess, len(self._log) - 4 * MOST_MESSAGES)
        if excess >= self._window:
            del self._log[:excess]
            self._context.drop_until(self._log[0][0] - 1)
            self._log_bytes = _size_of_log(self._log)
            self._log_complete = False
            # As after a restart: of those that left memory the store alone forgets what is deleted.
            kept = {message.id for _, message in self._log}
            self.context = {source: id_ for source, id_ in self.context.items() if id_ in kept}

    def _context_start(self) -> int:
        """Return the place in the log of the first message for the model."""
        return bisect_right(self._log, self.row.context_from, key=lambda entry: entry[0])

    def _show_to_model(self, seq: int, message: Message) -> None:
        # Prepared once here: a turn that had to look at every message would slow down as its session grows.
        shown = self._context.add(seq, message)
        if shown is not None:
            self.has_client_results |= has_results(shown)
            if shown.origin is not None:
                self.has_origins = True
                if shown.origin.context:
                    self.context[shown.origin.source] = shown.id

    def _forget(self, ids: Collection[str]) -> None:
        """Remove messages without a durable outcome; the next attempt shows them again."""
        self._log = [entry for entry in self._log if entry[1].id not in ids]
        self._log_bytes = _size_of_log(self._log)
        self._context.forget(ids)
        for source in [source for source, message_id in self.context.items() if message_id in ids]:
            del self.context[source]

    def _log_start(self) -> int:
        return self._log[0][0] if self._log else self.seq

    def _replay(
        self,
        after: int,
        older: Sequence[tuple[int, Message]],
        changed: Sequence[tuple[int, Message]],
        characters: int | None,
    ) -> list[Event]:
        # All that the model still gets would be more than a feed holds.
        log = [entry for entry in older if entry[0] < self._log_start()] + self._log
        entries = {message.id: (seq, message) for seq, message in log[-_REPLAYED:] if seq > after}
        # A reader knows the older content of these. The log has the newest content of all others.
        renewed = {m.id: (seq, m) for seq, m in (*changed, *self._changed) if 0 < after < seq}
        found = sorted((renewed | entries).values(), key=itemgetter(0))
        missed = [Event(self.id, seq, self._frame(message)) for seq, message in found]
        turn = self.turn
        if turn is not None and not turn.committed:
            last = missed[-1].seq if missed else after
            for at, frame in turn.replay(after, characters):
                # A reader drops events numbered below its own number, so a replay never goes back.
                missed.append(Event(self.id, max(at, last), frame, at))
        ends = *self.asked.values(), Replayed(earlier=not after and len(log) > _REPLAYED)
        return missed + [Event(self.id, self.seq, frame) for frame in ends]


def _size_of_log(log: Iterable[tuple[int, Message]]) -> int:
    return sum(size_of(message) for _, message in log)


def _next_block(seq: int) -> int:
    """Return the first number of an unused block; a turn may have run far past the stored number."""
    return (seq + _SEQ_BLOCK // 2 | (_SEQ_BLOCK - 1)) + 1
