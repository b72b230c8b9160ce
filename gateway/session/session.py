"""A session: one conversation, its log in memory, and those who read along."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from gateway.bus import Listeners, MessageBus, Unsubscribe
from gateway.channel import Address
from gateway.deltas import Complete
from gateway.events import AgentEvent
from gateway.feed import Feed
from gateway.frames import Event, Frame, MessageFrame, Replayed, SessionFrame, Totals, TurnStart
from gateway.messages import Message, now_ms, size_of
from gateway.session.log import SessionRow, hide_message, put_message, read_messages
from gateway.store import Op, Store

if TYPE_CHECKING:
    from gateway.session.turn import Turn

Render = Callable[[Message], "str | None"]

_SEQ_BLOCK = 1 << 20
_COMMIT_HEADROOM = 1 << 10
_REPLAYED_MESSAGES = 500
_TITLE_LENGTH = 60
_SESSION_BYTES = 3_000
"""What a session takes besides its log."""


class Reader(Protocol):
    """Somebody who is shown everything."""

    def offer(self, event: Event, /) -> None: ...


class Session:
    """A conversation.

    Everything shown gets a number (``seq``) that only grows. Only whole messages are durable, so when a
    session is loaded its numbers go on in a fresh block: what a killed turn had shown keeps numbers of its
    own, and a reader that resumes behind it gets the log's messages and the running turn as it stands.
    ``render`` is asked how to show messages that have a type of their own.
    """

    def __init__(
        self,
        row: SessionRow,
        log: list[tuple[int, Message]],
        store: Store,
        window: int,
        render: Render = lambda _message: None,
    ) -> None:
        self.id = row.id
        self.row = row
        self.saved = bool(row.created_at)
        self.reserved = False
        """Whether the block its numbers come from is durable, so that no later process uses it again."""
        self.seq = _next_block(row.seq) if self.saved else 0
        self.turn: Turn | None = None
        self.bus = MessageBus(row.id, self._show, self.messages)
        self.agent_events: Listeners[AgentEvent] = Listeners()
        self.pending = 0
        self._store = store
        self._window = window
        self._render = render
        self._log = log
        self._log_bytes = _bytes(log)
        self._feeds: list[Reader] = []
        self._model_view = [m for seq, m in log if m.for_model and seq > row.context_from]
        self._whole = not self.saved or len(log) == row.messages

    @property
    def weight(self) -> int:
        """About how many bytes it takes in memory."""
        return _SESSION_BYTES + self._log_bytes

    @property
    def idle(self) -> bool:
        """Whether nobody needs it in memory."""
        return not (self.pending or self.turn or self._feeds or self.bus.in_use or self.agent_events)

    @property
    def address(self) -> Address:
        """Where its chat is."""
        return self.row.address

    @property
    def totals(self) -> Totals:
        """What it took so far."""
        return Totals(self.row.input_tokens, self.row.output_tokens, self.row.cost)

    def messages(self) -> tuple[Message, ...]:
        """The newest messages of the log."""
        return tuple(message for _, message in self._log)

    def model_view(self) -> tuple[Message, ...]:
        """What the model is shown: the newest messages meant for it."""
        return tuple(self._model_view[-self._window :])

    def publish(self, frame: Frame) -> int:
        """Show a frame to everyone who reads along. Returns its number."""
        self.seq += 1
        if self._feeds:
            event = Event(self.id, self.seq, frame)
            for feed in self._feeds:
                feed.offer(event)
        return self.seq

    def subscribe(self, listener: Callable[[AgentEvent], None]) -> Unsubscribe:
        """Call ``listener`` with the events of the turns, until the returned function is called."""
        return self.agent_events.add(listener)

    async def follow(self, feed: Feed, after: int) -> None:
        """Let a feed read along from now on; first it gets what it missed since ``after``."""
        older: list[tuple[int, Message]] = []
        if not self._whole and after < self._log_start():
            older = await self._store.read(
                lambda c: read_messages(c, self.id, after=after, last=_REPLAYED_MESSAGES)
            )
        if feed not in self._feeds:
            self._feeds.append(feed)
        for event in self._missed(0 if after > self.seq else after, older):
            feed.offer(event)
        feed.offer(Event(self.id, self.seq, Replayed()))

    def watch(self, reader: Reader) -> None:
        """Let somebody read along from now on."""
        self._feeds.append(reader)

    def unfollow(self, reader: Reader) -> None:
        """Let a reader go."""
        if reader in self._feeds:
            self._feeds.remove(reader)

    def begin(self, turn: Turn, shown: Iterable[Message]) -> None:
        """Show what the user said, and that its answer begins."""
        self.turn = turn
        for message in shown:
            seq = self.publish(self._frame(message))
            turn.shown.append((seq, message))
            self._remember(seq, message)
        self.publish(TurnStart(turn.message_id, turn.entry.id, max(1, turn.entry.attempts)))
        self.bus.changed()

    def withdraw(self, ids: Collection[str]) -> None:
        """Forget messages that were removed from the store."""
        kept = len(self._log)
        self._forget(ids)
        self.row.messages -= kept - len(self._log)
        self.bus.changed()

    async def commit(self, turn: Turn, answer: Message | None, settled: Sequence[Op]) -> int:
        """Make a turn's messages and its outcome durable at once. Returns the answer's number."""
        seq = self.seq + _COMMIT_HEADROOM
        added = turn.shown if answer is None else [*turn.shown, (seq, answer)]
        row = self.row
        if answer is not None:
            row.input_tokens += answer.metadata.input_tokens or 0
            row.output_tokens += answer.metadata.output_tokens or 0
            row.cost += answer.metadata.cost or 0.0
        row.messages += len(added)
        ops = [op for number, message in added for op in put_message(message, number)]
        await self._store.write(self._touched(seq), *ops, *settled)
        turn.committed = True
        return seq

    def complete(self, answer: Message, seq: int, done: Complete) -> None:
        """Show that the answer, committed as number ``seq``, is finished."""
        self.seq = max(seq - 1, self.seq)
        self._remember(self.publish(done), answer)
        self.bus.changed()

    def finish(self, turn: Turn) -> None:
        """The turn is over, whatever its outcome."""
        if not turn.committed:
            self._forget({message.id for _, message in turn.shown})
            self.bus.changed()
        if self.turn is turn:
            self.turn = None
            self.publish(SessionFrame(usage=self.totals, status="idle"))

    def touch(self) -> Op:
        """The write that makes the session itself exist."""
        return self._touched(self.seq)

    def name_after(self, text: str) -> None:
        """Give a session without a title the first line of a text."""
        line = " ".join(text.strip().split("\n")[0].split())
        if self.row.title or not line:
            return
        self.row.title = line if len(line) <= _TITLE_LENGTH else line[: _TITLE_LENGTH - 1].rstrip() + "…"
        self.publish(SessionFrame(title=self.row.title))

    def cut_context(self) -> None:
        """Let the model forget what was said so far; readers keep it."""
        self.row.context_from = self.seq
        self._model_view.clear()

    @property
    def last_word(self) -> str | None:
        """The id of the last message that the user said to the model."""
        return next((message.id for message in reversed(self._model_view) if message.role == "user"), None)

    async def hide(self, ids: Collection[str], settled: Sequence[Op] = ()) -> None:
        """Let the model forget some messages; readers keep them."""
        hidden = self._hidden(ids)
        await self._store.write(*map(hide_message, hidden.values()), *settled)

    def unsay(self, turn: Turn) -> None:
        """Let the model never know what a turn was about; readers keep it."""
        hidden = self._hidden((turn.entry.id,))
        turn.shown = [(seq, hidden.get(message.id, message)) for seq, message in turn.shown]

    def _hidden(self, ids: Collection[str]) -> Mapping[str, Message]:
        """Some messages, which the model is not shown any more."""
        hidden = {m.id: replace(m, for_model=False) for _, m in self._log if m.id in ids}
        self._log = [(seq, hidden.get(message.id, message)) for seq, message in self._log]
        self._model_view = [message for message in self._model_view if message.id not in ids]
        return hidden

    async def note(self, message: Message, settled: Sequence[Op]) -> None:
        """Show a message that is no turn's, durable together with what it settles."""
        written = self._store.submit([*self._added(message), *settled])
        self.bus.changed()
        await written

    def _show(self, message: Message) -> None:
        self._store.submit(self._added(message)).add_done_callback(_retrieve)

    def _added(self, message: Message) -> list[Op]:
        seq = self.publish(self._frame(message))
        self._remember(seq, message)
        self.row.messages += 1
        return [self._touched(seq), *put_message(message, seq)]

    def _frame(self, message: Message) -> MessageFrame:
        return MessageFrame(message, None if message.custom_type is None else self._render(message))

    def _touched(self, seq: int) -> Op:
        row = self.row
        row.seq, row.updated_at = max(seq, row.seq), now_ms()
        row.created_at = row.created_at or row.updated_at
        return row.put()

    def _remember(self, seq: int, message: Message) -> None:
        self._log.append((seq, message))
        self._log_bytes += size_of(message)
        if message.for_model:
            self._model_view.append(message)
        if len(self._log) > 2 * self._window:
            del self._log[: -self._window]
            self._log_bytes = _bytes(self._log)
            self._whole = False
        if len(self._model_view) > 2 * self._window:
            del self._model_view[: -self._window]

    def _forget(self, ids: Collection[str]) -> None:
        """Forget what had no outcome, or no longer has one; the next attempt shows it again."""
        self._log = [entry for entry in self._log if entry[1].id not in ids]
        self._log_bytes = _bytes(self._log)
        self._model_view = [message for message in self._model_view if message.id not in ids]

    def _log_start(self) -> int:
        return self._log[0][0] if self._log else self.seq

    def _missed(self, after: int, older: Sequence[tuple[int, Message]]) -> list[Event]:
        start = self._log_start()
        log = [entry for entry in older if entry[0] < start] + self._log
        missed = [Event(self.id, seq, self._frame(message)) for seq, message in log if seq > after]
        turn = self.turn
        if turn is not None and not turn.committed:
            begin = TurnStart(turn.message_id, turn.entry.id, max(1, turn.entry.attempts))
            frames: list[Frame] = [begin, *turn.assembler.snapshot(), *turn.asked.values()]
            # Numbered like what came before: a reader that is cut off here has to get all of them again.
            behind = missed[-1].seq if missed else after
            missed += [Event(self.id, behind, frame) for frame in frames]
        return missed


def _bytes(log: Iterable[tuple[int, Message]]) -> int:
    return sum(size_of(message) for _, message in log)


def _next_block(seq: int) -> int:
    """The first number of a block that nothing was shown in; a turn may have run far past what is stored."""
    return (seq + _SEQ_BLOCK // 2 | (_SEQ_BLOCK - 1)) + 1


def _retrieve(future: object) -> None:
    """A notice that could not be stored was logged by the writer; nobody waits for it."""
    future.exception()  # type: ignore[attr-defined]
