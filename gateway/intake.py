"""The intake: what channels hand their messages to. It returns when they are durable.

Bounds are checked before anything is accepted. A message that was committed is dispatched even if the
connection it came from is gone by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gateway.access import Access
from gateway.channel import Cursor, InboundMessage, Receipt, Receive, Rejected
from gateway.dispatcher import Dispatcher
from gateway.errors import InvalidRequestError, OverloadedError
from gateway.figures import Figures
from gateway.inbox import Entry, Inbox, cursor_op, quarantine_op
from gateway.messages import now_ms, sound
from gateway.session import Session, Sessions
from gateway.store import Inserted, Op, Store
from gateway.wordings import replace_older

Overhear = Callable[[Session, Entry], bool]
"""Whether a message that comes during a turn was meant for what the turn waits for."""


class Bounds(NamedTuple):
    """How much may wait: in one session, in all; and after how many minutes waiting counts as backlog."""

    session: int = 50
    total: int = 10_000
    backlog_minutes: float = 10


class _Arrival(NamedTuple):
    session: Session | None
    """None for a message that is not answered."""
    entry: Entry


class Intake:
    """Accepts messages for all channels."""

    def __init__(
        self,
        store: Store,
        inbox: Inbox,
        sessions: Sessions,
        dispatcher: Dispatcher,
        access: Access,
        bounds: Bounds,
        figures: Figures,
        overhear: Overhear = lambda _session, _entry: False,
    ) -> None:
        self._store = store
        self._inbox = inbox
        self._sessions = sessions
        self._dispatcher = dispatcher
        self._access = access
        self._bounds = bounds
        self._figures = figures
        self._overhear = overhear

    def receiver(self, channel: str) -> Receive:
        """The ``receive`` of one channel."""

        async def receive(
            *messages: InboundMessage, cursor: Cursor | None = None, rejected: Sequence[Rejected] = ()
        ) -> Sequence[Receipt]:
            extra = [quarantine_op(channel, event) for event in rejected]
            if cursor is not None:
                extra.append(cursor_op(channel, cursor))
            return await self.accept(channel, messages, extra)

        return receive

    async def accept(
        self,
        channel: str,
        messages: Sequence[InboundMessage],
        extra: Sequence[Op] = (),
        *,
        fresh: bool = False,
    ) -> Sequence[Receipt]:
        """Commit messages and hand them on.

        Raises OverloadedError when a bound is reached, InvalidRequestError for keys that cannot be kept.
        """
        messages = [_acceptable(message) for message in messages]
        sessions = [await self._session_for(channel, message, fresh) for message in messages]
        answering = [session for session in sessions if session is not None]
        self._check(answering)
        arrivals = [self._arrival(channel, *pair) for pair in zip(sessions, messages, strict=True)]
        ops = [a.entry.accept("done" if a.session is None else "new") for a in arrivals]
        ops += [s.touch() for s in {id(s): s for s in answering if not s.reserved}.values()]
        committed = self._store.submit([*ops, *extra])
        committed.add_done_callback(lambda done: self._committed(arrivals, done))
        inserted = await asyncio.shield(committed)
        return await self._receipts(arrivals, inserted)

    async def recover(self) -> int:
        """Take up what was accepted before this process began. Returns how many messages that is."""
        waiting: dict[str, list[Entry]] = {}
        for entry in await self._inbox.open():
            waiting.setdefault(entry.session, []).append(entry)
        for entries in waiting.values():
            replace_older(entries)
            for entry in self._with_backlog_merged(entries):
                self._deliver_again(await self._session_of(entry), entry)
        return sum(len(entries) for entries in waiting.values())

    async def take_up(self, entry: Entry) -> None:
        """Answer a message whose settlement was undone, and forget what was shown of it."""
        loaded = self._sessions.get(entry.session)
        if loaded is not None:
            loaded.withdraw((entry.id, entry.answer_id))
        self._deliver_again(await self._session_of(entry), entry)

    def withdraw(self, session: Session, dedup_key: str) -> bool:
        """Let a message that is not answered yet need no answer. Returns whether there was one."""
        return self._dispatcher.withdraw(session, dedup_key)

    def _deliver_again(self, session: Session, entry: Entry) -> None:
        self._dispatcher.expect(session)
        entry.recovered = True
        self._dispatcher.deliver(session, entry)

    async def _session_of(self, entry: Entry) -> Session:
        return await self._session(entry.session, entry.channel, entry.inbound, fresh=False)

    def _with_backlog_merged(self, entries: list[Entry]) -> list[Entry]:
        """Old messages of a session become one turn: a long outage ends without a burst of answers."""
        horizon = now_ms() - round(self._bounds.backlog_minutes * 60_000)
        waiting = [
            entry
            for entry in entries
            if not (
                entry.answered
                or entry.silent
                or entry.inbound.text.startswith("/")
                or self._access.role(entry) is None
            )
        ]
        old = [entry for entry in waiting if entry.received_at < horizon]
        # One of them may be what killed the gateway: then each is tried alone, so that only that one dies.
        if not old or any(entry.attempts > 1 for entry in old):
            return entries
        last = old[-1]
        last.late, last.merged = True, tuple(old[:-1])
        return [entry for entry in entries if entry is last or entry not in old]

    async def _session_for(self, channel: str, message: InboundMessage, fresh: bool) -> Session | None:
        if not self._access.hears(channel, message):
            return None
        return await self._session(self._access.session_of(channel, message), channel, message, fresh)

    async def _session(self, session_id: str, channel: str, message: InboundMessage, fresh: bool) -> Session:
        return await self._sessions.get_or_create(
            session_id, channel=channel, owner=message.sender.id, address=message.address, fresh=fresh
        )

    def _check(self, sessions: Sequence[Session]) -> None:
        if self._dispatcher.stopping:
            raise OverloadedError("the gateway is shutting down; send this again")
        if self._dispatcher.waiting + len(sessions) > self._bounds.total:
            raise OverloadedError(f"{self._bounds.total} messages are waiting; send this again later")
        for session in sessions:
            if session.pending >= self._bounds.session:
                raise OverloadedError(
                    f"{self._bounds.session} messages wait in this session; send this again later"
                )

    def _arrival(self, channel: str, session: Session | None, message: InboundMessage) -> _Arrival:
        if session is None:
            return _Arrival(None, Entry.of(channel, message, 0, 0))
        session.seq += 1
        attempts = self._dispatcher.expect(session)
        return _Arrival(session, Entry.of(channel, message, session.seq, attempts, session.id))

    def _committed(self, arrivals: Sequence[_Arrival], done: asyncio.Future[Inserted]) -> None:
        failed = done.cancelled() or done.exception() is not None
        inserted: Inserted = frozenset() if failed else done.result()
        for session, entry in arrivals:
            if session is None:
                continue
            session.saved = session.saved or not failed
            session.reserved = session.reserved or not failed
            if entry.id in inserted:
                self._figures.accepted += 1
                self._interrupt(session, entry)
                self._dispatcher.deliver(session, entry)
            else:
                self._dispatcher.forget(session)
                self._sessions.drop_if_empty(session)

    def _interrupt(self, session: Session, entry: Entry) -> None:
        """/stop must not wait behind what it is meant to stop; other words may steer the turn."""
        if session.turn is None or self._access.role(entry) is None:
            return
        if entry.inbound.text.strip() == "/stop":
            session.turn.abort()
        elif self._overhear(session, entry):
            entry.silent = True
        elif not entry.inbound.text.startswith("/"):
            session.turn.steered = True

    async def _receipts(self, arrivals: Sequence[_Arrival], inserted: Inserted) -> list[Receipt]:
        twice = [entry for _, entry in arrivals if entry.id not in inserted]
        known = await self._inbox.existing(twice) if twice else {}
        self._figures.duplicates += len(known)
        return [_receipt(a, known.get(a.entry.id)) for a in arrivals]


def _acceptable(message: InboundMessage) -> InboundMessage:
    """The message with sound texts: each may be asked for again, so it must be as it will be stored."""
    message = sound(message)
    keys = (message.session, message.dedup_key, message.alt_key or "", message.address.account)
    if any("\0" in key for key in keys):
        raise InvalidRequestError("the session and the keys of a message must not hold the character NUL")
    return message


def _receipt(arrival: _Arrival, known: Entry | None) -> Receipt:
    entry = known or arrival.entry
    duplicate, ignored = known is not None, arrival.session is None
    return Receipt(entry.id, entry.answer_id, entry.session, entry.seq, duplicate, ignored)
