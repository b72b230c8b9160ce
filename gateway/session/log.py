"""A session's log in the database: sessions, their messages and parts, written and read back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, RowMapping, func, literal, select, tuple_

from gateway.channel import Address
from gateway.errors import InvalidRequestError
from gateway.messages import Display, Message, Metadata, Part, checked_part, decode_part, to_json
from gateway.store import Op
from gateway.store import schema as t
from gateway.store.writes import Write

PUT_SESSION = Write(
    "upsert",
    0,
    t.sessions,
    "id channel owner address title model seq messages input_tokens output_tokens cost context_from"
    " created_at updated_at agent",
)
PUT_MESSAGE = Write("insert", 1, t.messages, "id session_id seq role metadata extra cost created_at")
PUT_PART = Write("insert", 2, t.parts, "id message_id type content index created_at")
HIDE_MESSAGE = Write("update", 3, t.messages, "id extra")
COUNT_MESSAGES = Write("update", 3, t.sessions, "id messages")
DROP_SESSION = Write("delete", 40, t.sessions, "id")
DROP_MESSAGE = Write("delete", 0, t.messages, "id")


class Extra(Struct, frozen=True, omit_defaults=True):
    """The rarer fields of a message, kept together in one column."""

    custom_type: str | None = None
    display: Display | None = None
    for_model: bool = True
    meta: dict[str, Any] | None = None


class SessionRow(Struct, kw_only=True):
    """A session as it is stored."""

    id: str
    channel: str
    owner: str
    address: Address
    title: str = ""
    model: str | None = None
    seq: int = 0
    messages: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    context_from: int = 0
    created_at: int = 0
    updated_at: int = 0
    agent: str | None = None

    def put(self) -> Op:
        """The write that creates or updates it."""
        row = (
            self.id,
            self.channel,
            self.owner,
            to_json(self.address).decode(),
            self.title,
            self.model,
            self.seq,
            self.messages,
            self.input_tokens,
            self.output_tokens,
            self.cost,
            self.context_from,
            self.created_at,
            self.updated_at,
            self.agent,
        )
        return PUT_SESSION, row


def put_message(message: Message, seq: int) -> list[Op]:
    """The writes that add a message with its parts at a place in the log.

    What could not be read back is refused here: raises InvalidPartTypeError, PartValidationError, or
    InvalidRequestError for a ``meta`` that is no JSON.
    """
    row = (
        message.id,
        message.session_id,
        seq,
        message.role,
        to_json(message.metadata).decode(),
        _extra(message),
        message.metadata.cost,
        message.created_at,
    )
    return [
        (PUT_MESSAGE, row),
        *(_put_part(message, index, part) for index, part in enumerate(message.parts)),
    ]


def hide_message(message: Message) -> Op:
    """The write that leaves a message as it is, but tells whether it is meant for the model."""
    return HIDE_MESSAGE, (message.id, _extra(message))


def _put_part(message: Message, index: int, part: Part) -> Op:
    content = checked_part(part).decode()
    kind = str(part.__struct_config__.tag)
    return PUT_PART, (f"{message.id}.{index}", message.id, kind, content, index, message.created_at)


def _extra(message: Message) -> str | None:
    if message.for_model and not (message.custom_type or message.display or message.meta):
        return None
    extra = Extra(message.custom_type, message.display, message.for_model, message.meta)
    try:
        return to_json(extra).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the meta of message {message.id} is no JSON: {error}") from None


def read_session(connection: Connection, session_id: str) -> SessionRow | None:
    """A session by id."""
    row = connection.execute(select(t.sessions).where(t.sessions.c.id == session_id)).mappings().first()
    return None if row is None else _session(row)


def read_some_sessions(connection: Connection, ids: Collection[str]) -> list[SessionRow]:
    """Those of some sessions that are stored."""
    query = select(t.sessions).where(t.sessions.c.id.in_(ids))
    return [_session(row) for row in connection.execute(query).mappings()]


def read_sessions(
    connection: Connection, limit: int = 200, before: int | None = None, before_id: str = ""
) -> list[SessionRow]:
    """Sessions, newest activity first; ``before`` (ms) and ``before_id`` continue behind a session."""
    s = t.sessions.c
    query = select(t.sessions).order_by(s.updated_at.desc(), s.id.desc()).limit(limit)
    if before is not None:
        query = query.where(tuple_(s.updated_at, s.id) < tuple_(literal(before), literal(before_id)))
    return [_session(row) for row in connection.execute(query).mappings()]


def read_messages(
    connection: Connection, session_id: str, *, after: int = 0, last: int | None = None
) -> list[tuple[int, Message]]:
    """Messages with their seq in order: those after a seq, or only the last so many of them."""
    m = t.messages.c
    query = select(t.messages).where(m.session_id == session_id, m.seq > after).order_by(m.seq.desc())
    rows = connection.execute(query if last is None else query.limit(last)).mappings().all()
    parts = _read_parts(connection, [row["id"] for row in rows])
    return [(row["seq"], _message(row, parts.get(row["id"], ()))) for row in reversed(rows)]


def read_tool_calls(connection: Connection, session_id: str) -> list[Part]:
    """All tool calls of a session, oldest first."""
    m, p = t.messages.c, t.parts.c
    query = (
        select(p.content)
        .join(t.messages, m.id == p.message_id)
        .where(m.session_id == session_id, p.type == "tool_call")
        .order_by(m.seq, p.index)
    )
    return [decode_part(content) for content in connection.execute(query).scalars()]


def count_errors(connection: Connection, session_id: str) -> int:
    """How many error parts a session holds."""
    m, p = t.messages.c, t.parts.c
    query = select(func.count()).select_from(t.parts.join(t.messages, m.id == p.message_id))
    return connection.execute(query.where(m.session_id == session_id, p.type == "error")).scalar_one()


def count_messages(connection: Connection, session_id: str, *, without: Sequence[str] = ()) -> int:
    """How many messages a session holds, some of them not counted."""
    m = t.messages.c
    query = select(func.count()).select_from(t.messages)
    return connection.execute(query.where(m.session_id == session_id, m.id.not_in(without))).scalar_one()


def session_cost(connection: Connection, session_id: str) -> float:
    """The sum of the session's message costs, in US dollars."""
    m = t.messages.c
    query = select(func.coalesce(func.sum(m.cost), 0.0)).where(m.session_id == session_id)
    return connection.execute(query).scalar_one()


def _read_parts(connection: Connection, message_ids: Sequence[str]) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for start in range(0, len(message_ids), 500):
        chunk = message_ids[start : start + 500]
        query = (
            select(t.parts.c.message_id, t.parts.c.content)
            .where(t.parts.c.message_id.in_(chunk))
            .order_by(t.parts.c.message_id, t.parts.c.index)
        )
        for message_id, content in connection.execute(query):
            found.setdefault(message_id, []).append(decode_part(content))
    return found


def _message(row: RowMapping, parts: Iterable[Part]) -> Message:
    extra = Extra() if row["extra"] is None else msgspec.json.decode(row["extra"], type=Extra)
    return Message(
        id=row["id"],
        session_id=row["session_id"],
        role=row["role"],
        parts=tuple(parts),
        created_at=row["created_at"],
        metadata=msgspec.json.decode(row["metadata"], type=Metadata),
        custom_type=extra.custom_type,
        display=extra.display,
        for_model=extra.for_model,
        meta=extra.meta,
    )


def _session(row: RowMapping) -> SessionRow:
    values = dict(row)
    address = msgspec.json.decode(values.pop("address"), type=Address)
    return SessionRow(address=address, **values)
