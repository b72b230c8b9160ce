"""The session log in the database: sessions with their messages and parts, written and read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, RowMapping, Select, and_, func, literal, select, tuple_

from gateway.contract.channel import Address
from gateway.contract.errors import InvalidRequestError
from gateway.contract.messages import (
    Display,
    ErrorPart,
    Message,
    Metadata,
    Part,
    ToolCallPart,
    ToolResultPart,
    checked_part,
    decode_part,
    to_json,
)
from gateway.store import Op
from gateway.store import schema as t
from gateway.store.writes import Write

PUT_SESSION = Write(
    "upsert",
    0,
    t.sessions,
    "id channel owner address title model seq messages input_tokens output_tokens context_from"
    " created_at updated_at agent",
)
PUT_MESSAGE = Write("insert", 1, t.messages, "id session_id seq role metadata extra cost created_at")
PUT_PART = Write("insert", 2, t.parts, "id message_id type content index created_at")
HIDE_MESSAGE = Write("update", 3, t.messages, "id extra")
COUNT_MESSAGES = Write("update", 3, t.sessions, "id messages")
PUT_INJECTED = Write("insert", 3, t.injected, "id session_id seq message")
DROP_INJECTED = Write("delete", 4, t.injected, "id")
DROP_SESSION = Write("delete", 40, t.sessions, "id")
DROP_MESSAGE = Write("delete", 0, t.messages, "id")


_MAX_CANDIDATES = 4
"""Maximum number of ids in the error for an ambiguous prefix."""
_decode_message = msgspec.json.Decoder(Message).decode


class Extra(Struct, frozen=True, omit_defaults=True):
    """The rare fields of a message, stored together in one column."""

    custom_type: str | None = None
    display: Display | None = None
    for_model: bool = True
    meta: dict[str, Any] | None = None


class ToolRecord(Struct, frozen=True):
    """A tool call, its message (``created_at`` in ms), and its result if there is one."""

    message_id: str
    seq: int
    created_at: int
    call: ToolCallPart
    result: ToolResultPart | None


class ErrorRecord(Struct, frozen=True):
    """An error part and its message (``created_at`` in ms)."""

    message_id: str
    seq: int
    created_at: int
    error: ErrorPart


class SessionRow(Struct, kw_only=True):
    """A stored session. ``cost`` is the sum of its messages' costs, in US dollars."""

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
        """Return the write that creates or updates it."""
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
            self.context_from,
            self.created_at,
            self.updated_at,
            self.agent,
        )
        return PUT_SESSION, row


def put_message(message: Message, seq: int) -> list[Op]:
    """Return the writes that add a message with its parts at a number in the log.

    Content that could not be read back is refused: raises InvalidPartTypeError, PartValidationError, or
    InvalidRequestError for a ``meta`` that cannot be encoded as JSON.
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
    """Return the write that updates whether a message is meant for the model."""
    return HIDE_MESSAGE, (message.id, _extra(message))


def put_injected(message: Message, seq: int) -> Op:
    """Return the write that stores a message for its session's next turn. Raises like ``put_message``."""
    # Only for its checks: the message must be storable in the log when its turn comes.
    put_message(message, seq)
    return PUT_INJECTED, (message.id, message.session_id, seq, to_json(message).decode())


def read_injected(connection: Connection, ids: Collection[str]) -> dict[str, list[Message]]:
    """Read the messages for the next turns of sessions, oldest first."""
    i, found = t.injected.c, dict[str, list[Message]]()
    query = select(i.session_id, i.message).where(i.session_id.in_(ids)).order_by(i.seq)
    for session_id, message in connection.execute(query) if ids else ():
        found.setdefault(session_id, []).append(_decode_message(message))
    return found


def _put_part(message: Message, index: int, part: Part) -> Op:
    content = checked_part(part).decode()
    kind = str(part.__struct_config__.tag)
    return PUT_PART, (f"{message.id}.{index}", message.id, kind, content, index, message.created_at)


def _extra(message: Message) -> str | None:
    # Most messages have none of these fields, and a null column costs neither encoding nor space.
    if message.for_model and not (message.custom_type or message.display or message.meta):
        return None
    extra = Extra(message.custom_type, message.display, message.for_model, message.meta)
    try:
        return to_json(extra).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"the meta of message {message.id} cannot be encoded as JSON: {error}"
        ) from None


def read_session(connection: Connection, session_id: str) -> SessionRow | None:
    """Read a session by id."""
    query = _select_sessions().where(t.sessions.c.id == session_id)
    row = connection.execute(query).mappings().first()
    return None if row is None else _session(row)


def find_session_id(connection: Connection, given: str) -> str | None:
    """Return the id that matches ``given``: a whole id, or a prefix that only one id has.

    A trailing "…", as tables print it on a shortened id, is ignored. Raises InvalidRequestError for an
    ambiguous prefix.
    """
    prefix = given.removesuffix("…")
    s = t.sessions.c
    if prefix and connection.execute(select(s.id).where(s.id == prefix)).first() is not None:
        return prefix
    query = (
        select(s.id).where(s.id.startswith(prefix, autoescape=True)).order_by(s.id).limit(_MAX_CANDIDATES + 1)
    )
    found: list[str] = list(connection.execute(query).scalars()) if prefix else []
    if len(found) > 1:
        more = ", …" if len(found) > _MAX_CANDIDATES else ""
        raise InvalidRequestError(
            f"{given!r} matches several session ids: {', '.join(found[:_MAX_CANDIDATES])}{more}"
        )
    return found[0] if found else None


def read_sessions_by_id(connection: Connection, ids: Collection[str]) -> list[SessionRow]:
    """Read the sessions with the given ids that are stored."""
    query = _select_sessions().where(t.sessions.c.id.in_(ids))
    return [_session(row) for row in connection.execute(query).mappings()]


UNNAMED_PREFIX = "chat-"
"""Prefix of session ids that ``/v1`` creates for requests without a session name; a UUID follows."""
_UNNAMED = UNNAMED_PREFIX + "-".join("_" * length for length in (8, 4, 4, 4, 12))


class SessionFilter(Struct, frozen=True):
    """Filter of a session list: one channel, and with, without or only unnamed sessions."""

    channel: str | None = None
    unnamed: Literal["with", "without", "only"] = "with"


def read_sessions(
    connection: Connection,
    limit: int = 200,
    before: int | None = None,
    before_id: str = "",
    wanted: SessionFilter | None = None,
) -> list[SessionRow]:
    """Read sessions, newest activity first; ``before`` (ms) and ``before_id`` continue after a session."""
    s, wanted = t.sessions.c, wanted or SessionFilter()
    # The id breaks ties: sessions with the same time must not be lost between two pages of a list.
    query = _select_sessions().order_by(s.updated_at.desc(), s.id.desc()).limit(limit)
    if wanted.channel is not None:
        query = query.where(s.channel == wanted.channel)
    if wanted.unnamed != "with":
        unnamed = s.id.like(_UNNAMED)
        query = query.where(unnamed if wanted.unnamed == "only" else ~unnamed)
    if before is not None:
        query = query.where(tuple_(s.updated_at, s.id) < tuple_(literal(before), literal(before_id)))
    return [_session(row) for row in connection.execute(query).mappings()]


def read_messages(
    connection: Connection, session_id: str, *, after: int = 0, last: int | None = None
) -> list[tuple[int, Message]]:
    """Read messages with their numbers in order: those after ``after``, or only the ``last`` ones."""
    m = t.messages.c
    query = select(t.messages).where(m.session_id == session_id, m.seq > after).order_by(m.seq.desc())
    # Read newest first, so that ``last`` limits the query and not its result.
    rows = connection.execute(query if last is None else query.limit(last)).mappings().all()
    parts = _read_parts(connection, [row["id"] for row in rows])
    return [(row["seq"], _message(row, parts.get(row["id"], ()))) for row in reversed(rows)]


def read_logs(
    connection: Connection, ids: Collection[str], last: int
) -> dict[str, list[tuple[int, Message]]]:
    """Read the ``last`` messages of each session with their numbers, in order, by session."""
    m, older = t.messages.c, t.messages.alias("older")
    # Found by its place in the index, once for each session: a long log must not be read for its end.
    oldest = select(older.c.seq).where(older.c.session_id == t.sessions.c.id).order_by(older.c.seq.desc())
    start = func.coalesce(oldest.limit(1).offset(last - 1).scalar_subquery(), 0).label("start")
    ends = select(t.sessions.c.id, start).where(t.sessions.c.id.in_(ids)).cte("ends")
    ends = ends.prefix_with("MATERIALIZED")
    query = select(t.messages).join(ends, and_(m.session_id == ends.c.id, m.seq >= ends.c.start))
    rows = connection.execute(query.order_by(m.seq)).mappings().all() if ids else ()
    parts = _read_parts(connection, [row["id"] for row in rows])
    found: dict[str, list[tuple[int, Message]]] = {}
    for row in rows:
        message = _message(row, parts.get(row["id"], ()))
        found.setdefault(message.session_id, []).append((row["seq"], message))
    return found


def read_tool_calls(connection: Connection, session_id: str, last: int | None = None) -> list[ToolRecord]:
    """Read the tool calls of a session with their results, oldest first: all, or the ``last`` ones."""
    results: dict[tuple[str, str], ToolResultPart] = {}
    records: list[ToolRecord] = []
    # A result is a later part of the same message as its call, so newest-first yields it before the call.
    for where, part in _newest_parts(connection, session_id, "tool_call", "tool_result"):
        if isinstance(part, ToolResultPart):
            results[where[0], part.tool_call_id] = part
        elif isinstance(part, ToolCallPart):
            records.append(ToolRecord(*where, part, results.pop((where[0], part.tool_call_id), None)))
            if len(records) == last:
                break
    return records[::-1]


def read_errors(connection: Connection, session_id: str, last: int | None = None) -> list[ErrorRecord]:
    """Read the error parts of a session, oldest first: all, or the ``last`` ones."""
    found = islice(_newest_parts(connection, session_id, "error"), last)
    records = [ErrorRecord(*where, part) for where, part in found if isinstance(part, ErrorPart)]
    return records[::-1]


def _newest_parts(
    connection: Connection, session_id: str, *types: str
) -> Iterator[tuple[tuple[str, int, int], Part]]:
    """Yield parts of the given types with the id, number and time (ms) of their message, newest first."""
    m, p = t.messages.c, t.parts.c
    query = (
        select(m.id, m.seq, m.created_at, p.content)
        .join(t.parts, m.id == p.message_id)
        .where(m.session_id == session_id, p.type.in_(types))
        .order_by(m.seq.desc(), p.index.desc())
    )
    for message_id, seq, created_at, content in connection.execute(query):
        yield (message_id, seq, created_at), decode_part(content)


def count_errors(connection: Connection, session_id: str) -> int:
    """Count the error parts of a session."""
    m, p = t.messages.c, t.parts.c
    query = select(func.count()).select_from(t.parts.join(t.messages, m.id == p.message_id))
    return connection.execute(query.where(m.session_id == session_id, p.type == "error")).scalar_one()


def count_messages(connection: Connection, session_id: str, *, without: Sequence[str] = ()) -> int:
    """Count the messages of a session, except those in ``without``."""
    m = t.messages.c
    query = select(func.count()).select_from(t.messages)
    return connection.execute(query.where(m.session_id == session_id, m.id.not_in(without))).scalar_one()


def _select_sessions() -> Select[*tuple[Any, ...]]:
    """Select sessions with their cost: the sum of their messages' costs, so that the two cannot differ."""
    m = t.messages.c
    cost = select(func.coalesce(func.sum(m.cost), 0.0)).where(m.session_id == t.sessions.c.id)
    return select(t.sessions, cost.scalar_subquery().label("cost"))


def _read_parts(connection: Connection, message_ids: Sequence[str]) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for start in range(0, len(message_ids), 500):
        # Databases limit the parameters of a statement.
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
