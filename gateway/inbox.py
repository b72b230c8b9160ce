"""The inbox: every accepted message, durable before its sender is told.

A message is named by its channel, account and ``dedup_key`` (or ``alt_key``), so the same one is accepted
once however often it comes. It stays ``new`` until its outcome is durable too; what is ``new`` when the
gateway starts is run (again).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, RowMapping, and_, or_, select

from gateway.channel import Cursor, InboundMessage, Rejected
from gateway.errors import NotFoundError
from gateway.messages import new_id, now_ms
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(InboundMessage).decode

ACCEPT = Write(
    "insert-new",
    10,
    t.inbox,
    "id channel account dedup_key alt_key session ord seq answer_id payload state attempts not_before"
    " received_at",
)
CLAIM = Write("update", 30, t.inbox, "id attempts not_before")
SETTLE = Write("update", 31, t.inbox, "id state merged_into")
REOPEN = Write("update", 32, t.inbox, "id state attempts not_before")
CURSOR = Write("upsert", 20, t.cursor, "channel account shard value", key="channel account shard")
QUARANTINE = Write("insert", 20, t.quarantine, "id channel account key raw reason at")
BURY = Write("upsert", 33, t.dead_letter, "inbox_id reason trace at", key="inbox_id")
DROP_QUARANTINED = Write("delete", 35, t.quarantine, "id")
FORGET_INBOX = Write("delete", 50, t.inbox, "id")
EXHUME = Write("delete", 34, t.dead_letter, "inbox_id", key="inbox_id")


Outcome = Literal["done", "dead"]


class Entry(Struct, kw_only=True):
    """One accepted message. ``id`` is the user message's id, ``answer_id`` the answer's."""

    id: str
    channel: str
    session: str
    ord: int
    seq: int
    answer_id: str
    inbound: InboundMessage
    attempts: int = 0
    not_before: int = 0
    received_at: int = 0
    merged: tuple[Entry, ...] = ()
    """Older entries that are answered together with this one."""
    late: bool = False
    """Whether it waited so long that the answer begins with a notice."""
    recovered: bool = False
    """Whether it was accepted by an earlier process."""
    silent: bool = False
    """Whether it needs no answer of its own: it was a yes or no in a running turn, or was taken back, or
    replaced."""
    replaced_by: str | None = None
    """The id of its newer wording, which is answered in its place."""
    answered: bool = False
    """Whether its answer is durable, and only has to be placed yet."""

    @classmethod
    def of(
        cls, channel: str, inbound: InboundMessage, seq: int, attempts: int, session: str | None = None
    ) -> Entry:
        """A new entry. Without an order of its own, a message is ordered by its arrival.

        ``session`` is given when the message's chat continues another one's.
        """
        return cls(
            id=new_id(),
            channel=channel,
            session=inbound.session if session is None else session,
            ord=inbound.order or seq,
            seq=seq,
            answer_id=new_id(),
            inbound=inbound,
            attempts=attempts,
            received_at=now_ms(),
        )

    def accept(self, state: Literal["new", "done"] = "new") -> Op:
        """The write that accepts it; what is not going to be answered is done with."""
        inbound = self.inbound
        row = (
            self.id,
            self.channel,
            inbound.address.account,
            inbound.dedup_key,
            inbound.alt_key,
            self.session,
            self.ord,
            self.seq,
            self.answer_id,
            _encode(inbound).decode(),
            state,
            self.attempts,
            0,
            self.received_at,
        )
        return ACCEPT, row

    def claim(self) -> Op:
        """The write that counts one more attempt."""
        return CLAIM, (self.id, self.attempts, self.not_before)

    def absorb(self) -> list[Op]:
        """The writes that settle what was merged into it."""
        return [entry.replace_by(self.id) for entry in self.merged]

    def replace_by(self, entry_id: str) -> Op:
        """The write that lets another entry stand for it."""
        return SETTLE, (self.id, "merged", entry_id)

    def done(self) -> list[Op]:
        """The writes that settle it without an answer of its own, and what was merged into it."""
        own = self.settle("done") if self.replaced_by is None else self.replace_by(self.replaced_by)
        return [own, *self.absorb()]

    def dead(self, reason: str, trace: str | None) -> list[Op]:
        """The writes that give it up, and what was merged into it."""
        return [self.settle("dead"), *self.absorb(), self.bury(reason, trace)]

    def settle(self, state: Outcome) -> Op:
        """The write that closes it."""
        return SETTLE, (self.id, state, None)

    def bury(self, reason: str, trace: str | None) -> Op:
        """The write that tells the operator why it was given up."""
        return BURY, (self.id, reason, trace, now_ms())


def cursor_op(channel: str, cursor: Cursor) -> Op:
    """The write that moves a platform cursor."""
    return CURSOR, (channel, cursor.account, cursor.shard, cursor.value)


def quarantine_op(channel: str, rejected: Rejected) -> Op:
    """The write that keeps an event nobody could read."""
    row = (new_id(), channel, rejected.account, rejected.key, rejected.raw, rejected.reason, now_ms())
    return QUARANTINE, row


class Inbox:
    """Reads of the inbox; the writes above travel with whatever else must be committed with them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def open(self) -> list[Entry]:
        """What was accepted and not settled, in the order it has to be answered."""
        answer = (t.outbox.c.inbox_id == t.inbox.c.id, t.outbox.c.part == 0, t.outbox.c.body.is_not(None))
        placing = select(t.outbox.c.id).where(*answer).exists()
        query = select(t.inbox, placing.label("answered")).where(t.inbox.c.state == "new")
        ordered = query.order_by(t.inbox.c.session, t.inbox.c.ord, t.inbox.c.seq)
        return await self._store.read(lambda c: [_entry(row) for row in c.execute(ordered).mappings()])

    async def existing(self, entries: Iterable[Entry]) -> dict[str, Entry]:
        """For entries that turned out to be duplicates: what was accepted before, by the new entry's id."""
        wanted = list(entries)
        return await self._store.read(lambda c: {e.id: _find(c, e) for e in wanted})

    async def wording(self, channel: str, account: str, dedup_key: str) -> Entry | None:
        """What stands for a message that was accepted, by its key: itself, or what it was merged into."""
        c = t.inbox.c
        query = select(t.inbox).where(c.channel == channel, c.account == account, c.dedup_key == dedup_key)

        def read(connection: Connection) -> Entry | None:
            row = connection.execute(query).mappings().first()
            while row is not None and row["state"] == "merged":
                into = select(t.inbox).where(t.inbox.c.id == row["merged_into"])
                row = connection.execute(into).mappings().first()
            if row is None:
                return None
            entry, answer = _entry(row), select(t.messages.c.id).where(t.messages.c.id == row["answer_id"])
            entry.answered = connection.execute(answer).first() is not None
            return entry

        return await self._store.read(read)

    async def is_open(self, entry_id: str) -> bool:
        """Whether a message that was accepted is not settled yet."""
        query = select(t.inbox.c.id).where(t.inbox.c.id == entry_id, t.inbox.c.state == "new")
        return await self._store.read(lambda c: c.execute(query).first() is not None)

    async def cursors(self, channel: str) -> Sequence[Cursor]:
        """How far a channel's platforms were read."""
        query = select(t.cursor).where(t.cursor.c.channel == channel)
        return await self._store.read(
            lambda c: [Cursor(row.account, row.value, row.shard) for row in c.execute(query)]
        )


def read_entry(connection: Connection, entry_id: str) -> Entry:
    """An entry by its id. Raises NotFoundError."""
    row = connection.execute(select(t.inbox).where(t.inbox.c.id == entry_id)).mappings().first()
    if row is None:
        raise NotFoundError(f"no message {entry_id!r} was accepted")
    return _entry(row)


def _find(connection: Connection, entry: Entry) -> Entry:
    inbound = entry.inbound
    same = t.inbox.c.dedup_key == inbound.dedup_key
    if inbound.alt_key is not None:
        same = or_(same, t.inbox.c.alt_key == inbound.alt_key)
    where = and_(t.inbox.c.channel == entry.channel, t.inbox.c.account == inbound.address.account, same)
    return _entry(connection.execute(select(t.inbox).where(where)).mappings().one())


def _entry(values: RowMapping) -> Entry:
    return Entry(
        id=values["id"],
        channel=values["channel"],
        session=values["session"],
        ord=values["ord"],
        seq=values["seq"],
        answer_id=values["answer_id"],
        inbound=_decode(values["payload"]),
        attempts=values["attempts"],
        not_before=values["not_before"],
        received_at=values["received_at"],
        answered=bool(values.get("answered", False)),
    )
