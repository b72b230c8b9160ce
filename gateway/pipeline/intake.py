"""The intake: accepts messages from channels, and returns when they are durable.

A session's messages wait in memory up to a limit, then on disk up to a second limit. Those beyond are settled
at once, and the chat gets one notice for a burst. Only if very many messages wait in all sessions together
does the intake refuse to accept more. A committed message is dispatched even if the connection that sent it
is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, assert_never

import msgspec

from gateway.access import Access
from gateway.access.questions import Claim, Questions
from gateway.contract.channel import (
    Address,
    Attention,
    Cursor,
    Feedback,
    InboundMessage,
    Receipt,
    Receive,
    Rejected,
    Sender,
    Signal,
    StopRequest,
    Withdrawal,
)
from gateway.contract.errors import InvalidRequestError, OverloadedError
from gateway.contract.messages import Message, now_ms, sound, source_of
from gateway.counters import Counters
from gateway.delivery.deliverer import Deliverer
from gateway.delivery.feedback import FeedbackLog, FoundFeedback
from gateway.pipeline.mailbox import Dispatcher
from gateway.pipeline.revisions import supersede_older
from gateway.rooms.context import RoomContext
from gateway.session import Session, Sessions
from gateway.session.log import DROP_CONTEXT
from gateway.store import Inserted, Op, Store
from gateway.store.inbox import WITHDRAW, Entry, Inbox, cursor_op, quarantine_op, withdraw_ops
from gateway.trail.deletion import withdrawn_ops
from gateway.trail.refused import RefusalLog

_LOADED_AT_ONCE = 100
"""Sessions of recovered messages that are loaded by one read."""


class Bounds(NamedTuple):
    """Limits on waiting messages."""

    session: int = 50
    """Messages of one session in memory."""
    session_stored: int = 1_000
    """Messages of one session on disk, beyond those in memory."""
    sender_stored: int = 200
    """Messages of one sender on disk, in all sessions."""
    total: int = 100_000
    """Messages of all sessions."""
    backlog_minutes: float = 10
    """Age from which messages of an earlier process are answered together."""


class _Arrival(NamedTuple):
    session: Session | None
    """None for a message that is not answered, such as one of an unauthorised user in a group."""
    entry: Entry
    settled: bool = False
    """True if too many messages wait, so that it is settled by the commit that accepts it."""


@dataclass(kw_only=True, eq=False)
class Intake:
    """Accepts messages of all channels."""

    store: Store
    inbox: Inbox
    sessions: Sessions
    dispatcher: Dispatcher
    access: Access
    bounds: Bounds
    counters: Counters
    questions: Questions
    deliverer: Deliverer
    context: RoomContext
    feedback: FeedbackLog

    def __post_init__(self) -> None:
        self._refusals = RefusalLog(self.store)
        self._began = now_ms()
        self._recovered = False
        self.dispatcher.arrange = self._merge_backlog

    def receiver(self, channel: str) -> Receive:
        """Return the ``receive`` function for one channel."""

        async def receive(
            *messages: InboundMessage,
            cursor: Cursor | None = None,
            rejected: Sequence[Rejected] = (),
            signals: Sequence[Signal] = (),
        ) -> Sequence[Receipt]:
            for message in messages:
                self.access.seen_rooms.note(channel, message)
            extra = [quarantine_op(channel, event) for event in rejected]
            if cursor is not None:
                extra.append(cursor_op(channel, cursor))
            self._refusals.note_unreadable(channel, rejected)
            return await self.accept(channel, messages, extra, signals=signals)

        return receive

    async def accept(
        self,
        channel: str,
        messages: Sequence[InboundMessage],
        extra: Sequence[Op] = (),
        *,
        fresh: bool = False,
        signals: Sequence[Signal] = (),
        prepare: Callable[[], Sequence[Op]] | None = None,
    ) -> Sequence[Receipt]:
        """Commit messages and dispatch them; apply signals and commit them.

        ``prepare`` returns writes for the same transaction, or raises. Raises OverloadedError when too many
        messages wait in all or the gateway is stopping, InvalidRequestError for keys that cannot be stored.
        """
        await self.access.confirm(channel, *messages)
        feedback = await self.feedback.find(channel, [s for s in signals if isinstance(s, Feedback)])
        messages = [_validated(message) for message in messages]
        rooms = self.access.policy.rooms
        given: list[tuple[InboundMessage, Attention]] = [
            (message, rooms.attention(channel, message)) for message in messages
        ]
        messages = [message for message, attention in given if attention == "answer"]
        sessions = [await self._session_for(channel, message, fresh) for message in messages]
        answering = [session for session in sessions if session is not None]
        decisions = await self._new_answers(channel, sessions, messages)
        self.check_capacity(answering)
        ops = [] if prepare is None else [*prepare()]  # no await from here on: what it checked stays true
        # Context is attached only now: until the message is in its mailbox, nothing removes what is deleted.
        complete = [self._in_room(channel, message, attention) for message, attention in given]
        answered = [one for one, (_, attention) in zip(complete, given, strict=True) if attention == "answer"]
        arrivals = [self._admit(channel, *pair) for pair in zip(sessions, answered, strict=True)]
        claims = [
            claim for a in arrivals if a.entry.inbound.dedup_key in decisions and (claim := self._claim(a))
        ]
        settled = [a.session is None or a.settled or a.entry.silent for a in arrivals]
        ops += [a.entry.accept("done" if done else "new") for a, done in zip(arrivals, settled, strict=True)]
        ops += [s.put() for s in {id(s): s for s in answering if not s.numbers_reserved}.values()]
        ops += [op for signal in signals for op in self._apply_signal(channel, signal)]
        ops += [op for claim in claims for op in claim.ops]
        ops += [one.record.put() for one in feedback]
        ops += self._stop_answers(feedback)
        withdrawn = [signal for signal in signals if isinstance(signal, Withdrawal)]
        ops += self._forget_context(channel, withdrawn)
        committed = self.store.submit([*ops, *extra])
        for claim in claims:
            claim.follow(committed)
        committed.add_done_callback(lambda done: self._on_committed(arrivals, done))
        for signal in withdrawn:
            # Applied again after the commit: a message that was being accepted is in its mailbox only then.
            committed.add_done_callback(lambda _done, signal=signal: self._apply_signal(channel, signal))
            committed.add_done_callback(lambda _done, signal=signal: self._forget_context(channel, [signal]))
        inserted = await asyncio.shield(committed)
        self._note_refused(channel, given, arrivals)
        self.feedback.report(feedback)
        receipts = iter(await self._receipts(arrivals, inserted))
        return [
            next(receipts) if attention == "answer" else Receipt("", "", message.session, 0, ignored=True)
            for message, attention in given
        ]

    def _note_refused(
        self,
        channel: str,
        given: Sequence[tuple[InboundMessage, Attention]],
        arrivals: Sequence[_Arrival],
    ) -> None:
        """Note for the operator which messages got no turn, and why."""
        for message, attention in given:
            if attention != "answer":
                enabled = self.access.policy.rooms.of(channel, message).enabled
                self._refusals.note(channel, message, "no_mention" if enabled else "room")
        for session, entry, settled in arrivals:
            if session is None or settled:
                self._refusals.note(channel, entry.inbound, "sender" if session is None else "limit")

    def _in_room(self, channel: str, message: InboundMessage, attention: Attention) -> InboundMessage:
        """Return a message with the context of its room. One that is not answered becomes such context."""
        if not message.address.group:
            return message
        if attention == "answer" and self.access.hears(channel, message):
            return self.context.attach(channel, message)
        if attention != "ignore":
            self.context.remember(channel, message)
        return message

    def _forget_context(self, channel: str, withdrawn: Sequence[Withdrawal]) -> list[Op]:
        """Forget deleted messages as context. Returns the writes that remove them from the logs."""
        ops: list[Op] = []
        for account in {signal.account for signal in withdrawn}:
            keys = {signal.dedup_key for signal in withdrawn if signal.account == account}
            self.context.forget(channel, account, keys)
            sources = [source_of(channel, account, key) for key in keys]
            for session in self.sessions.live():
                for source in session.context.keys() & sources:
                    session.forget_context(source)
            ops += [(DROP_CONTEXT, (source,)) for source in sources]
        return ops

    def post(self, session: Session, message: Message, added: Sequence[Op]) -> None:
        """Commit a message that was added to a session, and place it in the session's chat like an answer.

        It becomes an entry that is answered already, so it is placed after the running answer, and exactly
        once over crashes. Channels that follow sessions show it without that.
        """
        turn = session.turn
        channel, address = session.row.channel, session.address
        if turn is not None:
            channel, address = turn.entry.channel, turn.entry.inbound.address
        entry = own_entry(session, channel, address, f"appended:{message.id}")
        hidden = message.display is not None and message.display.hidden
        intended = None if hidden or not message.parts else self.deliverer.intend(entry, message)
        if intended is None:
            # The writer logs its failures. The exception is retrieved only to keep asyncio from logging it.
            self.store.submit(added).add_done_callback(lambda done: done.exception())
            return
        self.queue(session, [entry], [*added, *intended])

    def queue(
        self, session: Session, entries: Sequence[Entry], ops: Sequence[Op], *, reopen: bool = False
    ) -> asyncio.Future[Inserted]:
        """Commit entries of the gateway itself, with other writes, and queue them.

        ``reopen``: the entries were settled before.
        """
        for entry in entries:
            started = self.dispatcher.expect(session)
            entry.attempts = 0 if entry.recovered else started
            self.dispatcher.register(session, entry)
        opened = [op for entry in entries for op in (entry.reopen() if reopen else [entry.accept()])]
        committed = self.store.submit([session.put(), *ops, *opened])

        def deliver(done: asyncio.Future[Inserted]) -> None:
            for entry in entries:
                if done.cancelled() or done.exception() is not None:
                    self.dispatcher.forget(session, entry)
                else:
                    session.saved = session.numbers_reserved = True
                    self.dispatcher.enqueue(session, entry)

        committed.add_done_callback(deliver)
        return committed

    def put_next(self, session: Session, entry: Entry) -> None:
        """Order an entry that needs no turn right after the running answer, or else by its receipt.

        Those that wait already stay ahead of it.
        """
        if self.access.is_shared(session.id):
            entry.order_by_receipt()
        mailbox = self.dispatcher.mailbox(session.id)
        # Also at a restart: a platform may number far higher.
        before = () if mailbox is None else (mailbox.running, *mailbox.announced)
        entry.ord = max((one.ord for one in before if one is not None), default=entry.ord)

    async def _new_answers(
        self, channel: str, sessions: Sequence[Session | None], messages: Sequence[InboundMessage]
    ) -> set[str]:
        """Return the keys of new messages that may answer an open question by their text."""
        found = [
            message
            for session, message in zip(sessions, messages, strict=True)
            if session is not None and self.questions.may_answer(channel, session, message)
        ]
        return {message.dedup_key for message in found if not await self.inbox.contains(channel, message)}

    def _claim(self, arrival: _Arrival) -> Claim | None:
        """Let a typed answer count for its question; it then gets no answer of its own."""
        session, entry, settled = arrival
        if settled or session is None or self.access.role(entry) is None:
            return None
        claim = self.questions.claim(session, entry)
        entry.silent = claim is not None
        return claim

    async def recover(self) -> int:
        """Queue messages that an earlier process accepted and did not settle. Returns their number.

        They can be deleted or stopped from then on. A session's messages are answered once it is loaded, by
        ``load_sessions`` or for a new message, which so finds the earlier ones in its mailbox.
        """
        waiting = await self.inbox.load_backlogs(self.bounds.session)
        for name, backlog in waiting.items():
            self._restore_interruption(backlog.entries)
            supersede_older(backlog.entries)
            self.dispatcher.resume(name, self._merge_backlog(backlog.entries), backlog)
            # Plugins may have loaded it already.
            if (session := self.sessions.get(name)) is not None:
                self.dispatcher.open(session)
        self._recovered = True
        return self.dispatcher.waiting

    async def load_sessions(self) -> None:
        """Load the sessions of recovered messages, some at a time: a new one waits for one read at most."""
        waiting = self.dispatcher.unopened()
        for start in range(0, len(waiting), _LOADED_AT_ONCE):
            async with asyncio.TaskGroup() as tasks:
                for entry in waiting[start : start + _LOADED_AT_ONCE]:
                    tasks.create_task(self._session_of(entry))

    async def answer_reopened(self, entry: Entry, ops: Sequence[Op]) -> None:
        """Commit the writes that reopen a message, and answer it in place of what its session shows of it."""
        session = await self._session_of(entry)
        session.forget_deleted(entry.shown_if_reopened)
        # Its steps were kept, so that none of its tools runs a second time.
        entry.recovered = entry.has_steps = True
        await asyncio.shield(self.queue(session, [entry], ops, reopen=True))

    async def withdraw(self, channel: str, account: str, dedup_key: str) -> bool:
        """Mark a message that is not answered yet as deleted.

        Returns, after the commit, whether there was such a message in memory.
        """
        name = (channel, account, dedup_key)
        found = self.dispatcher.withdraw(*name)
        await self.store.write(
            *withdrawn_ops(*name),
            (WITHDRAW, (*name, "withdrawn")),
            *self.questions.conceal(*name, found),
            *(entry.interrupt() for entry in found),
        )
        # One that was being accepted is in its mailbox only now.
        return bool(found or self.dispatcher.withdraw(*name))

    async def stop(self, session_id: str, *also: Op) -> bool:
        """Stop the running answer of a session, or of the session that its chat was moved to.

        Returns, after the commit, whether there was one; ``also`` is then committed with it.
        """
        ops = self._apply_signal("", StopRequest(session_id))
        await self.store.write(*ops, *(also if ops else ()))
        return bool(ops)

    def _apply_signal(self, channel: str, signal: Signal) -> list[Op]:
        """Apply a signal to the messages in memory. Returns the writes that make it durable."""
        match signal:
            case Withdrawal():
                name = (channel, signal.account, signal.dedup_key)
                found = self.dispatcher.withdraw(*name)
                concealed = self.questions.conceal(*name, found)
                return [*(entry.interrupt() for entry in found), *withdraw_ops(*name), *concealed]
            case StopRequest():
                # Messages that were sent before a chat was moved still run in its own session.
                moved = self.access.moved_chats.session_of(signal.session)
                stopped = [
                    self.dispatcher.stop(session) for session in dict.fromkeys((moved, signal.session))
                ]
                return [entry.interrupt() for entry in stopped if entry is not None]
            case Feedback():
                return []
            case _:
                assert_never(signal)

    def _stop_answers(self, feedback: Sequence[FoundFeedback]) -> list[Op]:
        """Stop the answers that feedback asks to stop. Returns the writes that make it durable."""
        stopped = [self.dispatcher.stop(one.session, one.answer_id) for one, stops in feedback if stops]
        return [entry.interrupt() for entry in stopped if entry is not None]

    def _restore_interruption(self, entries: Sequence[Entry]) -> None:
        """Apply /stop and steering that arrived before a restart to the next attempt of the turn."""
        # An open /stop was sent during the answer to the first message, and is settled only after it.
        begun = next((e for e in entries if e.attempts and not (e.answered or e.silent or e.priority)), None)
        if begun is None or begun.interrupted is not None:
            return
        later = [e for e in entries if e.seq > begun.seq and not (e.refused or e.answered)]
        later = [entry for entry in later if self.access.role(entry) is not None]
        if any(entry.is_stop for entry in later):
            begun.interrupted = "stopped"
        elif any(not entry.inbound.text.startswith("/") for entry in later):
            begun.interrupted = "steered"

    async def _session_of(self, entry: Entry) -> Session:
        return await self._session(entry.session, entry.channel, entry.inbound, fresh=False)

    def _merge_backlog(self, entries: list[Entry]) -> list[Entry]:
        """Merge a session's old messages into one turn: an outage then does not end with a burst of answers.

        Only messages that an earlier process accepted are old. Others may have waited long in the mailbox.
        """
        for entry in entries:
            entry.recovered = True
        horizon = min(self._began, now_ms() - round(self.bounds.backlog_minutes * 60_000))
        old = [
            entry
            for entry in entries
            if entry.received_at < horizon
            and not (
                entry.answered
                or entry.has_steps  # its tools have run, and would run again as part of another message
                or entry.shown  # its pages would stay in the chat as they are
                or entry.silent
                or entry.refused
                or entry.interrupted == "stopped"
                # An edit may need no answer, and a voice message gets a notice if it cannot be heard: that
                # would be all for those merged with it.
                or entry.inbound.revises is not None
                or entry.inbound.kind == "audio"
                or entry.inbound.text.lstrip().startswith("/")
                or self.access.role(entry) is None
            )
        ]
        # One of them may have killed the gateway. Tried one by one, only that one becomes a dead letter.
        # And a hook's answer to one message of a turn would count for all.
        if not old or self.dispatcher.runner.handles_each or any(entry.attempts > 1 for entry in old):
            return entries
        last = old[-1]
        last.late, last.merged = True, tuple(old[:-1])
        return [entry for entry in entries if entry is last or entry not in old]

    async def _session_for(self, channel: str, message: InboundMessage, fresh: bool) -> Session | None:
        if not self.access.hears(channel, message):
            return None
        return await self._session(self.access.session_of(channel, message), channel, message, fresh)

    async def _session(self, session_id: str, channel: str, message: InboundMessage, fresh: bool) -> Session:
        session = await self.sessions.get_or_create(
            session_id, channel=channel, owner=message.sender.id, address=message.address, fresh=fresh
        )
        if session.row.root is not None:
            raise InvalidRequestError(
                f"session {session_id!r} is a task of session {session.row.root!r}; write there"
            )
        return session

    def check_capacity(self, sessions: Sequence[Session], *, own: bool = False) -> None:
        """Raise OverloadedError if no more messages are accepted.

        ``own`` is for the gateway's own messages. They are never refused with a notice, so the limit of a
        session is checked here.
        """
        for session in sessions if own else ():
            if session.pending >= self.bounds.session + self.bounds.session_stored:
                raise OverloadedError(
                    f"{session.pending} messages wait in the session {session.id!r}, and no more may "
                    "(limits.session_inbox + limits.session_backlog); announce this again later"
                )
        if not self._recovered:
            # A plugin's message that is committed while the inbox is read would be queued twice.
            raise OverloadedError("the gateway is starting; send this again later")
        if self.dispatcher.stopping:
            raise OverloadedError("the gateway is shutting down; send this again after the restart")
        if self.dispatcher.waiting + len(sessions) > self.bounds.total:
            raise OverloadedError(
                f"{self.dispatcher.waiting} messages are waiting, and at most {self.bounds.total} may "
                "(limits.global_inbox); send this again later"
            )

    def _admit(self, channel: str, session: Session | None, message: InboundMessage) -> _Arrival:
        """Decide where a message waits, and count it at once, so that the next one of its batch sees it."""
        if session is None:
            return _Arrival(None, Entry.of(channel, message, 0))
        session.seq += 1
        entry = Entry.of(channel, message, session.seq, session.id)
        if self.access.is_shared(session.id):
            entry.order_by_receipt()
        entry.refused = self._is_full(session, entry)
        # A program gets a refusal as an error: it would take the notice for the answer of a model.
        if entry.refused and (session.overload_reported or message.unattended):
            return _Arrival(session, entry, settled=True)
        session.overload_reported = entry.refused or session.overload_reported
        entry.attempts = self.dispatcher.expect(session)
        self.dispatcher.register(session, entry)
        # It may have left memory while the sessions of other messages were loaded.
        self.sessions.keep(session)
        return _Arrival(session, entry)

    def _is_full(self, session: Session, entry: Entry) -> bool:
        """Return whether neither memory nor disk has room for a message; count it if it goes to disk."""
        bounds = self.bounds
        if session.pending < bounds.session:
            session.overload_reported = False
            return False
        if session.pending >= bounds.session + bounds.session_stored:
            return True
        if entry.priority:
            return False
        if self.dispatcher.stored[entry.sender_key] >= bounds.sender_stored:
            return True
        entry.counted = True
        return False

    def _on_committed(self, arrivals: Sequence[_Arrival], done: asyncio.Future[Inserted]) -> None:
        failed = done.cancelled() or done.exception() is not None
        inserted: Inserted = frozenset() if failed else done.result()
        for session, entry, settled in arrivals:
            if session is None:
                continue
            session.saved = session.saved or not failed
            session.numbers_reserved = session.numbers_reserved or not failed
            if entry.id in inserted:
                self.counters.accepted[entry.channel] += 1
                if entry.inbound.address.group:
                    self.context.note_accepted(entry.channel, entry.inbound)
                self._interrupt_turn(session, entry)
                self.counters.refused += entry.refused
            if settled:
                continue
            if entry.refused and (entry.silent or entry.id not in inserted):
                session.overload_reported = False  # this entry would have carried the notice
            if entry.id in inserted:
                self.dispatcher.enqueue(session, entry)
            else:
                self.dispatcher.forget(session, entry)
                self.sessions.drop_if_empty(session)

    def _interrupt_turn(self, session: Session, entry: Entry) -> None:
        """Stop or steer the running turn as soon as the message is durable.

        /stop must not wait in the queue behind the turn that it stops.
        """
        turn = session.turn
        # Most messages find no turn: the role is looked up only for the others.
        if (turn is None and not entry.is_stop) or self.access.role(entry) is None:
            return
        if entry.is_stop:
            self.dispatcher.stop(session.id)
        elif not (turn is None or entry.silent or entry.refused or entry.inbound.text.startswith("/")):
            turn.steered = True
            turn.entry.interrupted = turn.entry.interrupted or "steered"

    async def _receipts(self, arrivals: Sequence[_Arrival], inserted: Inserted) -> list[Receipt]:
        duplicates = [entry for _, entry, _ in arrivals if entry.id not in inserted]
        known = await self.inbox.find_existing(duplicates) if duplicates else {}
        self.counters.duplicates.update(e.channel for e in duplicates if e.id in known)
        return [_receipt(a, known.get(a.entry.id)) for a in arrivals]


def own_entry(session: Session, channel: str, address: Address, key: str, text: str = "") -> Entry:
    """Return an entry for a message that is not an answer to another one, in a chat of the session."""
    inbound = InboundMessage(
        session=session.id,
        dedup_key=key,
        address=msgspec.structs.replace(address, reply_to=None),
        sender=Sender(session.row.owner),
        text=text,
    )
    entry = Entry.of(channel, inbound, session.seq, session.id)
    entry.answered = entry.untried = True
    return entry


def _validated(message: InboundMessage) -> InboundMessage:
    """Return the message with well-formed texts. Raises InvalidRequestError for keys with a NUL."""
    # Lone surrogates cannot be stored as UTF-8. Replaced here, so that the message is the same before and
    # after a restart.
    message = sound(message)
    keys = (message.session, message.dedup_key, message.alt_key or "", message.address.account)
    if any("\0" in key for key in keys):
        raise InvalidRequestError("the session and the keys of a message must not contain the character NUL")
    return message


def _receipt(arrival: _Arrival, known: Entry | None) -> Receipt:
    entry = known or arrival.entry
    duplicate, ignored = known is not None, arrival.session is None
    # Of the refused messages of a burst only the first is attempted: it is answered with the notice.
    refused = entry.refused and entry.closed and not entry.attempts if duplicate else arrival.settled
    return Receipt(entry.id, entry.answer_id, entry.session, entry.seq, duplicate, ignored, refused)
