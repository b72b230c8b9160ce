"""The inbox: every accepted message, durable before its channel acknowledges it.

A message is identified by its channel, account and ``dedup_key`` (or ``alt_key``), so it is accepted once,
however often it arrives. It stays ``new`` until its outcome is durable; messages that are ``new`` when the
gateway starts are run (again).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, Label, RowMapping, and_, func, or_, select

from gateway.contract.channel import Address, Cursor, InboundMessage, Rejected, Sender
from gateway.contract.errors import NotFoundError
from gateway.contract.messages import Message, new_id, now_ms
from gateway.store import schema as t
from gateway.store.database import Store
from gateway.store.writes import Op, Write
from gateway.trail import NO_TRAIL, Trail
from gateway.trail.deletion import withdrawn_ops
from gateway.trail.recorder import newest_row

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(InboundMessage).decode

ACCEPT = Write(
    "insert-new",
    10,
    t.inbox,
    "id channel account dedup_key alt_key session ord seq answer_id payload state attempts not_before"
    " received_at sender original priority",
)
CLAIM = Write("update", 30, t.inbox, "id attempts not_before")
SETTLE = Write("update", 31, t.inbox, "id state merged_into")
REOPEN = Write("update", 32, t.inbox, "id state attempts not_before")
INTERRUPT = Write("update", 28, t.inbox, "id interrupted")
WITHDRAW = Write(
    "update", 29, t.inbox, "channel account dedup_key interrupted", key="channel account dedup_key"
)
CURSOR = Write("upsert", 20, t.cursor, "channel account shard value", key="channel account shard")
QUARANTINE = Write("insert", 20, t.quarantine, "id channel account key raw reason at")
PUT_DEAD_LETTER = Write("upsert", 33, t.dead_letter, "inbox_id reason trace at", key="inbox_id")
DROP_QUARANTINED = Write("delete", 35, t.quarantine, "id")
FORGET_INBOX = Write("delete", 50, t.inbox, "id")
DROP_DEAD_LETTER = Write("delete", 34, t.dead_letter, "inbox_id", key="inbox_id")


Outcome = Literal["done", "dead"]
Interruption = Literal["steered", "stopped", "withdrawn"]
"""A user's intervention before the answer was finished: another message, a stop, or a deletion."""
REFUSED = 2
"""Priority of a message that is answered with the notice that too many messages wait."""


class SenderKey(NamedTuple):
    """Key of a sender, by which messages that wait on disk are counted."""

    channel: str
    account: str
    sender: str


class Backlog(NamedTuple):
    """Unsettled messages of a session: the loaded entries, and the number of later ones on disk by sender.

    ``overload_reported`` is set if so many wait that some were refused, and the notice was accepted.
    """

    entries: list[Entry]
    stored: Counter[SenderKey]
    overload_reported: bool = False


_RECEIPT_ORDER = 1 << 62
"""Base above the order of every platform, so that messages of before a move stay ahead."""


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
    """The message waited so long that the answer begins with a notice."""
    recovered: bool = False
    """An earlier process accepted the message."""
    silent: bool = False
    """The message needs no answer of its own: it resolved an approval, was deleted, or was superseded."""
    replaced_by: str | None = None
    """Id of the revision that is answered in its place."""
    answered: bool = False
    """The answer is durable and only has to be placed."""
    interrupted: Interruption | None = None
    """The user's intervention. Steering is stored only at an orderly shutdown: after a crash the waiting
    messages imply it."""
    refused: bool = False
    """Too many messages waited when it arrived; the first such message of a burst is answered with a notice.
    """
    has_steps: bool = False
    """An earlier process recorded steps of its turn, or decisions on them, for the next attempt."""
    shown: bool = False
    """An earlier process placed, or may have placed, some of its answer."""
    untried: bool = False
    """No process has tried to place the answer, so nothing of it can be in the chat."""
    counted: bool = False
    """The message counts against its sender's limit of messages on disk."""
    has_history: bool = False
    """The history of its thread was read."""
    reread: bool = False
    """The entry was read from the database, so deletions since may concern its context."""
    announced: bool = False
    """It delivers a message of a plugin, which is stored as an announcement; no turn is run."""
    renewed: Message | None = None
    """Newer content of the announced message, to be delivered before the entry is settled."""
    aside: bool | None = None
    """It is a command that acts beside the running answer; None until that is decided."""
    closed: bool = False
    """It is settled, or the write that settles it was submitted: newer content of an announcement needs
    another delivery."""
    trail_row: int = 0
    """The number of the newest row of its trail, if it was read from the database."""
    trail: Trail = NO_TRAIL
    """The recorder of its steps, from its first attempt in this process; nested runs share it."""

    @classmethod
    def of(
        cls, channel: str, inbound: InboundMessage, seq: int, session: str | None = None, attempts: int = 0
    ) -> Entry:
        """Create an entry. A message without its own order is ordered by its arrival.

        ``session`` is given when the message's chat continues the session of another chat.
        """
        return cls(
            id=new_id(),
            channel=channel,
            session=inbound.session if session is None else session,
            ord=inbound.order or seq,
            seq=seq,
            # Fixed at acceptance: every attempt makes the same message again, and readers replace it by id.
            answer_id=new_id(),
            inbound=inbound,
            attempts=attempts,
            received_at=now_ms(),
        )

    def order_by_receipt(self) -> None:
        """Order it after everything accepted earlier: the orders of two platforms cannot be compared."""
        self.ord = _RECEIPT_ORDER + self.seq

    @property
    def priority(self) -> int:
        """0 for ordinary messages; /stop and the notice of too many messages have more and come earlier."""
        return REFUSED if self.refused else int(self.is_stop)

    @property
    def sender_key(self) -> SenderKey:
        """The key of its sender."""
        return SenderKey(self.channel, self.inbound.address.account, self.inbound.sender.id)

    @property
    def to_answer(self) -> tuple[Entry, ...]:
        """The messages that its turn answers, oldest first: merged entries and itself, unless silent."""
        if not self.merged:
            return () if self.silent else (self,)
        return tuple(entry for entry in (*self.merged, self) if not entry.silent)

    @property
    def is_stop(self) -> bool:
        """Return whether it is the command /stop."""
        return self.inbound.text.strip() == "/stop"

    @property
    def sort_key(self) -> tuple[bool, int, bool, int]:
        """Sort key within a mailbox: stopped messages come first, so that /stop can report them.

        Of the others, one whose answer is in its chat already comes before an earlier message that arrived
        late: the answers have the same order in the chat and in the session.
        """
        return self.interrupted != "stopped", -self.priority, not self.shown, self.ord

    @property
    def shown_if_reopened(self) -> tuple[str, ...]:
        """The ids of the messages that its session shows until a replay shows others."""
        # Message ids are fixed at acceptance, so the next attempt inserts the question and its answer again.
        return (self.notice_id,) if self.answered else (self.id, self.answer_id)

    @property
    def notice_id(self) -> str:
        """The id of the notice that its answer could not be delivered."""
        # Derived from the message, so that a repeated attempt does not add a second notice.
        return str(uuid.uuid5(uuid.UUID(self.id), "undelivered"))

    def is_revision_of(self, channel: str, account: str, dedup_key: str) -> bool:
        """Return whether this is the message with that key, or a revision of it."""
        inbound = self.inbound
        return (self.channel, inbound.address.account, inbound.original) == (channel, account, dedup_key)

    def accept(self, state: Literal["new", "done"] = "new") -> Op:
        """Return the write that accepts it; ``done`` for a message that is not going to be answered."""
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
            inbound.sender.id,
            inbound.original,
            self.priority,
        )
        return ACCEPT, row

    def reopen(self) -> list[Op]:
        """Return the writes that open it again after it was settled."""
        return [(REOPEN, (self.id, "new", self.attempts, 0)), (DROP_DEAD_LETTER, (self.id,))]

    def claim(self) -> Op:
        """Return the write that counts one more attempt."""
        return CLAIM, (self.id, self.attempts, self.not_before)

    def interrupt(self) -> Op:
        """Return the write that stores the user's intervention."""
        return INTERRUPT, (self.id, self.interrupted)

    def settle_merged(self) -> list[Op]:
        """Return the writes that settle the entries merged into it."""
        return [entry.replace_by(self.id) for entry in self.merged]

    def replace_by(self, entry_id: str) -> Op:
        """Return the write that settles it as part of another entry."""
        return SETTLE, (self.id, "merged", entry_id)

    def settle_silently(self) -> list[Op]:
        """Return the writes that settle it, and the entries merged into it, without an answer."""
        # A superseded message points to its revision, whose answer then counts for both.
        own = self.settle("done") if self.replaced_by is None else self.replace_by(self.replaced_by)
        return [own, *self.settle_merged()]

    def give_up(self, reason: str, trace: str | None) -> list[Op]:
        """Return the writes that make it a dead letter and settle the entries merged into it."""
        return [self.settle("dead"), *self.settle_merged(), self.dead_letter(reason, trace)]

    def settle(self, state: Outcome) -> Op:
        """Return the write that settles it."""
        return SETTLE, (self.id, state, None)

    def dead_letter(self, reason: str, trace: str | None) -> Op:
        """Return the write that records for the operator why it was given up."""
        return PUT_DEAD_LETTER, (self.id, reason, trace, now_ms())


def cursor_op(channel: str, cursor: Cursor) -> Op:
    """Return the write that moves a platform cursor."""
    return CURSOR, (channel, cursor.account, cursor.shard, cursor.value)


def withdraw_ops(channel: str, account: str, dedup_key: str) -> list[Op]:
    """Return the writes that record the deletion of a message.

    If the message has not arrived, a settled row takes its key, so that it is a duplicate when it arrives.
    """
    row = (channel, account, dedup_key, "withdrawn")
    # Signals and messages may arrive in either order; the unique key decides which insert wins.
    deleted = InboundMessage(session="", dedup_key=dedup_key, address=Address(*row[:2]), sender=Sender(""))
    return [*withdrawn_ops(*row[:3]), Entry.of(channel, deleted, 0).accept("done"), (WITHDRAW, row)]


def quarantine_op(channel: str, rejected: Rejected) -> Op:
    """Return the write that stores an event that could not be parsed."""
    row = (new_id(), channel, rejected.account, rejected.key, rejected.raw, rejected.reason, now_ms())
    return QUARANTINE, row


class Inbox:
    """Reader of the inbox. The writes above are committed together with their causes or effects.

    Settled rows are kept for ``keep_days``.
    """

    def __init__(self, store: Store, keep_days: int) -> None:
        self._store = store
        self._keep_ms = keep_days * 86_400_000

    async def load_backlogs(self, most: int, session: str | None = None) -> dict[str, Backlog]:
        """Read the unsettled messages by session; with ``session`` only of that one.

        Loads the first ``most`` entries of each session, in the order of their answers, and counts the
        others.
        """
        return await self._store.read(lambda c: _read_backlogs(c, most, session))

    async def find_existing(self, entries: Iterable[Entry]) -> dict[str, Entry]:
        """Return the previously accepted entry of each duplicate, by the new entry's id."""
        return await self._store.read(lambda c: {e.id: _find(c, e) for e in entries})

    async def contains(self, channel: str, message: InboundMessage) -> bool:
        """Return whether a message with one of these keys was accepted before."""
        query = select(t.inbox.c.id).where(_match(channel, message))
        return await self._store.read(lambda c: c.execute(query).first() is not None)

    async def find_withdrawn(self, channel: str, account: str, keys: Collection[str]) -> set[str]:
        """Return those of the keys whose message was deleted by its sender."""
        c = t.inbox.c
        of_account = and_(c.channel == channel, c.account == account, c.interrupted == "withdrawn")
        query = select(c.dedup_key).where(of_account, c.dedup_key.in_(keys))
        return await self._store.read(lambda connection: set(connection.execute(query).scalars()))

    async def find_current(self, channel: str, account: str, dedup_key: str) -> Entry | None:
        """Return the entry that answers for a message, by its key: itself, or the one it was merged into.

        Its ``interrupted`` is that of the message with the key.
        """
        c = t.inbox.c
        query = select(t.inbox).where(c.channel == channel, c.account == account, c.dedup_key == dedup_key)

        def read(connection: Connection) -> Entry | None:
            row = named = connection.execute(query).mappings().first()
            # Merges chain: an entry may be merged into one that was merged into a third.
            while row is not None and row["state"] == "merged":
                into = select(t.inbox).where(t.inbox.c.id == row["merged_into"])
                row = connection.execute(into).mappings().first()
            if row is None or named is None:
                return None
            entry, answer = _entry(row), select(t.messages.c.id).where(t.messages.c.id == row["answer_id"])
            entry.answered = connection.execute(answer).first() is not None
            entry.interrupted = named["interrupted"]
            return entry

        return await self._store.read(read)

    def may_have_expired(self, sent_at: int) -> bool:
        """Return whether the row of a message sent at that time (ms; 0 for unknown) may have been removed."""
        return 0 < sent_at < now_ms() - self._keep_ms

    async def is_open(self, entry_id: str) -> bool:
        """Return whether an accepted message is not settled."""
        query = select(t.inbox.c.id).where(t.inbox.c.id == entry_id, t.inbox.c.state == "new")
        return await self._store.read(lambda c: c.execute(query).first() is not None)

    async def read_cursors(self, channel: str) -> Sequence[Cursor]:
        """Read the cursors of a channel."""
        query = select(t.cursor).where(t.cursor.c.channel == channel)
        return await self._store.read(
            lambda c: [Cursor(row.account, row.value, row.shard) for row in c.execute(query)]
        )


def _read_backlogs(connection: Connection, most: int, session: str | None) -> dict[str, Backlog]:
    c = t.inbox.c
    waits: list[ColumnElement[bool]] = [c.state == "new"]
    if session is not None:
        waits.append(c.session == session)
    is_shown = select(t.outbox.c.id).where(t.outbox.c.inbox_id == c.id).exists()
    # As in a mailbox: what may be in the chat already must not stay on disk while others are answered.
    order = (c.priority.desc(), is_shown.desc(), c.ord, c.seq)
    # Ranked in SQL: messages beyond ``most`` stay on disk and are counted without being loaded.
    place = func.row_number().over(partition_by=c.session, order_by=order).label("place")
    ranked = select(c.id, c.session, c.channel, c.account, c.sender, place).where(*waits).subquery()
    # The body is committed with page 0, before the answer is shown as final: it marks a durable answer.
    answer = (t.outbox.c.inbox_id == c.id, t.outbox.c.part == 0, t.outbox.c.body.is_not(None))
    answered = select(t.outbox.c.id).where(*answer).exists().label("answered")
    begun = (select(by.c.inbox_id).where(by.c.inbox_id == c.id).exists() for by in (t.turn_step, t.question))
    shown = is_shown.label("shown")
    # The deletion is stored at the original only; its revisions are separate rows.
    original = t.inbox.alias("original")
    same = (original.c.channel == c.channel, original.c.account == c.account)
    deleted = (*same, original.c.dedup_key == c.original, original.c.interrupted == "withdrawn")
    withdrawn = select(original.c.id).where(*deleted).exists().label("withdrawn")
    first = (
        select(t.inbox, answered, or_(*begun).label("begun"), shown, withdrawn, *_facts(c.id))
        .join(ranked, ranked.c.id == c.id)
        .where(ranked.c.place <= most)
    )
    # Counted by sender, because limits on waiting messages apply to each sender.
    rest = select(
        ranked.c.session, ranked.c.channel, ranked.c.account, ranked.c.sender, func.count().label("number")
    ).where(ranked.c.place > most)
    found: dict[str, Backlog] = {}
    for row in connection.execute(first.order_by(c.session, *order)).mappings():
        found.setdefault(row["session"], Backlog([], Counter())).entries.append(_entry(row))
    grouped = rest.group_by(ranked.c.session, ranked.c.channel, ranked.c.account, ranked.c.sender)
    for row in connection.execute(grouped):
        found[row.session].stored[SenderKey(row.channel, row.account, row.sender)] = row.number
    if cut := [one for one in found.values() if one.stored]:
        _supersede_by_stored(connection, waits, [entry for one in cut for entry in one.entries])
    full = {name for name, one in found.items() if one.stored or len(one.entries) >= most}
    if full and session is None:
        for name in full.intersection(_read_reported(connection)):
            found[name] = found[name]._replace(overload_reported=True)
    return found


def _read_reported(connection: Connection) -> Sequence[str]:
    """Return the waiting sessions whose newest notice of too many messages is part of the present burst."""
    c, waiting = t.inbox.c, t.inbox.alias("waiting")
    open_sessions = select(waiting.c.session).where(waiting.c.state == "new")
    oldest = select(func.min(waiting.c.received_at)).where(waiting.c.state == "new")
    reported = (
        select(c.session)
        .where(c.priority == REFUSED, c.session.in_(open_sessions))
        .group_by(c.session)
        .having(func.max(c.received_at) >= oldest.where(waiting.c.session == c.session).scalar_subquery())
    )
    return connection.execute(reported).scalars().all()


def _supersede_by_stored(
    connection: Connection, waits: Sequence[ColumnElement[bool]], entries: Iterable[Entry]
) -> None:
    """Supersede loaded entries by revisions on disk: only the last revision of a message is answered."""
    c = t.inbox.c
    changes = select(c.id, c.session, c.channel, c.account, c.original, c.ord, c.seq)
    changes = changes.where(*waits, c.original != c.dedup_key).order_by(c.ord, c.seq)
    newest = {
        (row.session, row.channel, row.account, row.original): row for row in connection.execute(changes)
    }
    for entry in entries:
        inbound = entry.inbound
        row = newest.get((entry.session, entry.channel, inbound.address.account, inbound.original))
        # A durable answer is placed, even if its message was edited since.
        if row is not None and (row.ord, row.seq) > (entry.ord, entry.seq) and not entry.answered:
            entry.silent, entry.replaced_by = True, row.id


def read_entry(connection: Connection, entry_id: str) -> Entry:
    """Read an entry by its id. Raises NotFoundError."""
    c = t.inbox.c
    row = connection.execute(select(t.inbox, *_facts(c.id)).where(c.id == entry_id)).mappings().first()
    if row is None:
        raise NotFoundError(f"no accepted message has the id {entry_id!r}")
    return _entry(row)


def _facts(entry_id: ColumnElement[str]) -> tuple[Label[bool], Label[int | None]]:
    """Return columns: whether an entry is an announcement, and the newest row of its trail."""
    announced = select(t.announcement.c.id).where(t.announcement.c.inbox_id == entry_id).exists()
    return announced.label("announced"), newest_row(entry_id).label("trail_row")


def _find(connection: Connection, entry: Entry) -> Entry:
    # Each of its keys may be that of another row.
    own_key = t.inbox.c.dedup_key == entry.inbound.dedup_key
    query = select(t.inbox).where(_match(entry.channel, entry.inbound)).order_by(own_key.desc()).limit(1)
    found = connection.execute(query).mappings().one()
    known = _entry(found)
    known.closed = found["state"] != "new"
    return known


def _match(channel: str, inbound: InboundMessage) -> ColumnElement[bool]:
    """Return the condition for the rows of this message, by either of its keys."""
    same = t.inbox.c.dedup_key == inbound.dedup_key
    if inbound.alt_key is not None:
        same = or_(same, t.inbox.c.alt_key == inbound.alt_key)
    return and_(t.inbox.c.channel == channel, t.inbox.c.account == inbound.address.account, same)


def _entry(values: RowMapping) -> Entry:
    interrupted = "withdrawn" if values.get("withdrawn") else values["interrupted"]
    return Entry(
        id=values["id"],
        channel=values["channel"],
        session=values["session"],
        ord=values["ord"],
        seq=values["seq"],
        answer_id=values["answer_id"],
        inbound=_decode(values["payload"]),
        reread=True,
        attempts=values["attempts"],
        not_before=values["not_before"],
        received_at=values["received_at"],
        announced=bool(values.get("announced", False)),
        # Its content is stored, so it is not withdrawn, merged or stopped either.
        answered=bool(values.get("answered", False) or values.get("announced", False)),
        has_steps=bool(values.get("begun", False)),
        shown=bool(values.get("shown", False)),
        refused=values["priority"] == REFUSED,
        trail_row=values.get("trail_row") or 0,
        silent=interrupted == "withdrawn",
        interrupted=interrupted,
    )
