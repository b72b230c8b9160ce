"""The records of a message: all that the database has about it, read in one transaction.

A message is named by the id of its row in the inbox. Nothing here is interpreted; ``verdict`` does that.
"""

from __future__ import annotations

import json

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, func, or_, select

from gateway.contract.channel import InboundMessage
from gateway.contract.messages import ErrorPart, Message
from gateway.session.log import read_by_id
from gateway.store import schema as t
from gateway.store.inbox import REFUSED

_decode = msgspec.json.Decoder(InboundMessage).decode
_decode_answer = msgspec.json.Decoder(Message).decode


class PageRecord(Struct, frozen=True):
    """A message of the platform that shows a page of the answer. ``state`` is that of its row."""

    part: int
    state: str
    platform_id: str | None
    sent_at: int
    nonce: str


class QuestionRecord(Struct, frozen=True):
    """A question that the turn asked and still needs."""

    id: str
    state: str
    owner: str
    tool: str
    title: str
    answered_by: str
    created_at: int
    expires_at: int
    settled_at: int


class Records(Struct, frozen=True, kw_only=True):
    """The rows of one message.

    ``into`` is the message that it was merged into, which is ``a_revision`` of it or another message.
    ``ahead`` counts the open messages that come before it in its conversation. ``shown_to_model`` is false
    for messages that the gateway answered itself; ``hidden`` is true after /undo. ``proof`` counts the rows
    that were read, by table.
    """

    id: str
    session: str
    channel: str
    account: str
    dedup_key: str
    ord: int
    seq: int
    state: str
    attempts: int
    not_before: int
    received_at: int
    interrupted: str | None
    priority: int
    answer_id: str
    inbound: InboundMessage
    into: str | None = None
    a_revision: bool = False
    ahead: int = 0
    shown_to_model: bool = True
    hidden: bool = False
    answer: Message | None = None
    dead_at: int = 0
    dead_reason: str = ""
    pages: tuple[PageRecord, ...] = ()
    has_body: bool = False
    questions: tuple[QuestionRecord, ...] = ()
    recorded: tuple[tuple[str, str], ...] = ()
    """Kind and state of each recorded step of a turn that is not finished."""
    cost: int | None = None
    proof: dict[str, int] = {}

    @property
    def platform_id(self) -> str:
        """The platform's id of the message, or else the key that it was accepted by."""
        return self.inbound.address.reply_to or self.dedup_key

    @property
    def error(self) -> ErrorPart | None:
        """The last error of the answer."""
        return None if self.answer is None else self.answer.error

    @property
    def was_deleted(self) -> bool:
        """Return whether the sender deleted the message."""
        return self.interrupted == "withdrawn"

    @property
    def settled_at(self) -> int:
        """The time (ms) from which the outcome was visible; 0 if it is not known."""
        if self.pages and self.state in ("done", "dead"):
            return max(page.sent_at for page in self.pages)
        if self.answer is not None:
            return self.answer.created_at + (self.answer.metadata.duration_ms or 0)
        return self.dead_at

    @property
    def revision(self) -> str:
        """A text that differs after each change of the message's outcome."""
        made = 0 if self.answer is None else self.answer.created_at
        return f"{self.state}.{self.attempts}.{made}.{self.dead_at}"


def read_records(connection: Connection, message_id: str) -> Records | None:
    """Read the records of a message; None if the inbox has no such row."""
    row = connection.execute(select(t.inbox).where(t.inbox.c.id == message_id)).mappings().first()
    if row is None:
        return None
    inbound = _decode(row["payload"])
    pages, body = _read_pages(connection, message_id)
    dead = connection.execute(select(t.dead_letter).where(t.dead_letter.c.inbox_id == message_id)).first()
    messages = read_by_id(connection, (message_id, row["answer_id"]))
    asked, answer = messages.get(message_id), messages.get(row["answer_id"])
    questions = _read_questions(connection, message_id)
    s = t.turn_step.c
    steps = connection.execute(select(s.kind, s.state).where(s.inbox_id == message_id).order_by(s.step))
    recorded = tuple((kind, state) for kind, state in steps)
    proof = {
        "inbox": 1,
        "outbox": len(pages),
        "messages": len(messages),
        "dead_letter": int(dead is not None),
        "question": len(questions),
        "turn_step": len(recorded),
    }
    return Records(
        id=row["id"],
        session=row["session"],
        channel=row["channel"],
        account=row["account"],
        dedup_key=row["dedup_key"],
        ord=row["ord"],
        seq=row["seq"],
        state=row["state"],
        attempts=row["attempts"],
        not_before=row["not_before"],
        received_at=row["received_at"],
        interrupted=_read_interruption(connection, row["channel"], row["account"], row["original"])
        or row["interrupted"],
        priority=row["priority"],
        answer_id=row["answer_id"],
        inbound=inbound,
        into=row["merged_into"],
        a_revision=_is_revision(connection, row["merged_into"], inbound),
        ahead=_count_ahead(connection, row["session"], row["ord"], row["seq"])
        if row["state"] == "new"
        else 0,
        shown_to_model=asked is None or asked.for_model,
        hidden=_is_hidden(connection, message_id),
        answer=answer or (None if body is None else _decode_answer(body)),
        dead_at=0 if dead is None else dead.at,
        dead_reason="" if dead is None else dead.reason,
        pages=pages,
        has_body=body is not None,
        questions=questions,
        recorded=recorded,
        proof={table: rows for table, rows in proof.items() if rows},
    )


def last_event_at(connection: Connection, channel: str) -> int | None:
    """Return when the newest message of a channel was accepted (ms), or None if there is none."""
    i = t.inbox.c
    newest = select(i.received_at).where(i.channel == channel).order_by(i.id.desc()).limit(1)
    return connection.execute(newest).scalar()


def _read_pages(connection: Connection, message_id: str) -> tuple[tuple[PageRecord, ...], str | None]:
    """Return the pages of the answer, and the answer that the first one holds."""
    o = t.outbox.c
    rows = connection.execute(select(t.outbox).where(o.inbox_id == message_id).order_by(o.part)).all()
    pages = [PageRecord(row.part, row.state, row.platform_id, row.sent_at, row.nonce) for row in rows]
    return tuple(pages), rows[0].body if rows else None


def _read_questions(connection: Connection, message_id: str) -> tuple[QuestionRecord, ...]:
    q = t.question.c
    query = select(t.question).where(q.inbox_id == message_id).order_by(q.created_at)
    found: list[QuestionRecord] = []
    for row in connection.execute(query):
        # Not decoded by msgspec: arguments of tools may hold lone surrogates.
        body = json.loads(row.body or "{}")
        found.append(
            QuestionRecord(
                row.id,
                row.state,
                row.owner,
                str(body.get("tool_name", "")),
                str(body.get("title", "")),
                row.answered_by,
                row.created_at,
                row.expires_at,
                row.settled_at,
            )
        )
    return tuple(found)


def _read_interruption(connection: Connection, channel: str, account: str, original: str) -> str | None:
    """Return ``withdrawn`` if the message was deleted: that is stored at the original of its revisions."""
    i = t.inbox.c
    of_original = (i.channel == channel, i.account == account, i.dedup_key == original)
    found = select(i.interrupted).where(*of_original, i.interrupted == "withdrawn")
    return connection.execute(found).scalar()


def _is_revision(connection: Connection, into: str | None, inbound: InboundMessage) -> bool:
    if into is None:
        return False
    original = connection.execute(select(t.inbox.c.original).where(t.inbox.c.id == into)).scalar()
    return original == inbound.original


def _count_ahead(connection: Connection, session: str, order: int, seq: int) -> int:
    i = t.inbox.c
    earlier = or_(i.ord < order, (i.ord == order) & (i.seq < seq))
    query = select(func.count()).where(i.session == session, i.state == "new", earlier)
    return connection.execute(query).scalar_one()


def _is_hidden(connection: Connection, message_id: str) -> bool:
    m = t.messages.c
    return connection.execute(select(m.undone).where(m.id == message_id)).scalar() is not None


def is_overflow(records: Records) -> bool:
    """Return whether too many messages waited when it arrived."""
    return records.priority == REFUSED
