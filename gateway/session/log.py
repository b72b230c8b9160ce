"""The session log in the database: sessions with their messages and parts, written and read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Literal

import msgspec
from msgspec import Struct
from sqlalchemy import (
    Connection,
    RowMapping,
    Select,
    TextClause,
    and_,
    case,
    func,
    literal,
    select,
    text,
    tuple_,
)

from gateway.contract.channel import Address
from gateway.contract.errors import InvalidRequestError
from gateway.contract.messages import (
    Display,
    ErrorPart,
    Message,
    Metadata,
    Origin,
    Part,
    ToolCallPart,
    ToolResultPart,
    checked_part,
    decode_part,
    new_id,
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
    " created_at updated_at agent titled mode",
)
RENAME = Write("update", 3, t.sessions, "id title titled")
RESERVE = Write("update", -1, t.sessions, "id seq")  # before PUT_SESSION, whose number is no lower
PIN = Write("update", 3, t.sessions, "id pinned_at")
LINEAGE = Write("update", 3, t.sessions, "id parent parent_message root call_id")
PUT_MESSAGE = Write("insert", 1, t.messages, "id session_id seq role metadata extra cost created_at source")
PUT_PART = Write("insert", 2, t.parts, "id message_id type content index created_at")
UPDATE_MESSAGE = Write("update", 3, t.messages, "id extra")
CHANGE_MESSAGE = Write("update", 3, t.messages, "id extra changed")
COUNT_MESSAGES = Write("update", 3, t.sessions, "id messages")
DROP_PARTS = Write("delete", 1, t.parts, "message_id", key="message_id")
DROP_WORDS = Write("delete", 1, t.search, "message_id", key="message_id")
INDEX_AGAIN = Write("update", 3, t.messages, "id indexed")
HIDE_MESSAGE = Write("update", 3, t.messages, "id undone indexed")
MARK_UNDONE = Write("update", 3, t.sessions, "id undone_at")
PUT_INJECTED = Write("insert", 3, t.injected, "id session_id seq message")
DROP_INJECTED = Write("delete", 4, t.injected, "id")
DROP_SESSION = Write("delete", 40, t.sessions, "id")
DROP_CHILDREN = Write("delete", 41, t.sessions, "root", key="root")
DROP_MESSAGE = Write("delete", 0, t.messages, "id")
DROP_CONTEXT = Write("delete", 5, t.messages, "source", key="source")


_MAX_CANDIDATES = 4
"""Maximum number of ids in the error for an ambiguous prefix."""
_decode_message = msgspec.json.Decoder(Message).decode


class Extra(Struct, frozen=True, omit_defaults=True):
    """The rare fields of a message, stored together in one column."""

    custom_type: str | None = None
    display: Display | None = None
    for_model: bool = True
    meta: dict[str, Any] | None = None
    origin: Origin | None = None
    pruned: bool = False


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
    """A stored session. ``cost`` is the sum of its messages' costs, in US dollars.

    ``titled`` names the author of its title; None for the first line of the conversation. ``parent`` is the
    session that it is a fork of, and ``parent_message`` the last message that it has from there. Of a nested
    run they are the session and the answer that started it, by the tool call ``call_id``; ``root`` is the
    session of the conversation, None for every other session.
    """

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
    titled: Literal["model", "user"] | None = None
    mode: Literal["plan"] | None = None
    """``plan``: tools that change something are neither offered nor run."""
    parent: str | None = None
    parent_message: str | None = None
    pinned_at: int | None = None
    undone_at: int = 0
    """Number of the last /undo or /redo."""
    root: str | None = None
    call_id: str | None = None

    def put_lineage(self) -> Op:
        """Return the write that stores where it comes from; after ``put``, in the same transaction."""
        return LINEAGE, (self.id, self.parent, self.parent_message, self.root, self.call_id)

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
            self.titled,
            self.mode,
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
        message.origin.source if message.origin is not None and message.origin.context else None,
    )
    return [
        (PUT_MESSAGE, row),
        *(_put_part(message, index, part) for index, part in enumerate(message.parts)),
    ]


def replace_message(message: Message, changed: int | None) -> list[Op]:
    """Return the writes that replace the content of a message in the log. Raises like ``put_message``.

    ``changed`` is the number at which readers see the new content; None for the content that they know.
    """
    parts = put_message(message, 0)[1:]
    again = INDEX_AGAIN, (message.id, _new_index_state())
    known = update_message(message) if changed is None else None
    return [
        (DROP_PARTS, (message.id,)),
        (DROP_WORDS, (message.id,)),
        again,
        *parts,
        known or (CHANGE_MESSAGE, (message.id, _extra(message), changed)),
    ]


def hide_message(message_id: str, undone: int | None) -> list[Op]:
    """Return the writes that hide a message from everyone, with the number of that; None shows it again."""
    words: list[Op] = [] if undone is None else [(DROP_WORDS, (message_id,))]
    return [*words, (HIDE_MESSAGE, (message_id, undone, _new_index_state() if undone is None else 1))]


def _new_index_state() -> int:
    # Another number each time: the indexer may have read an old text, and must not add it any more.
    return -1 - (int(new_id()[-8:], 16) >> 1)


def update_message(message: Message) -> Op:
    """Return the write that updates whether a message, and its tool outputs, are meant for the model."""
    return UPDATE_MESSAGE, (message.id, _extra(message))


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
    rare = message.custom_type or message.display or message.meta or message.origin or message.pruned
    if message.for_model and not rare:
        return None
    extra = Extra(
        message.custom_type, message.display, message.for_model, message.meta, message.origin, message.pruned
    )
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
    """Filter of a session list: one channel; with, without or only unnamed sessions; pinned or not; and a
    condition.
    """

    channel: str | None = None
    unnamed: Literal["with", "without", "only"] = "with"
    pinned: bool | None = None
    where: TextClause | None = None


def read_sessions(
    connection: Connection,
    limit: int = 200,
    before: int | None = None,
    before_id: str = "",
    wanted: SessionFilter | None = None,
) -> list[SessionRow]:
    """Read sessions, newest activity first; ``before`` (ms) and ``before_id`` continue after a session.

    Those of nested runs are left out; see ``read_children``.
    """
    s, wanted = t.sessions.c, wanted or SessionFilter()
    # The id breaks ties: sessions with the same time must not be lost between two pages of a list.
    query = _select_sessions().order_by(s.updated_at.desc(), s.id.desc()).limit(limit)
    query = query.where(s.root.is_(None))
    if wanted.channel is not None:
        query = query.where(s.channel == wanted.channel)
    if wanted.unnamed != "with":
        unnamed = s.id.like(_UNNAMED)
        query = query.where(unnamed if wanted.unnamed == "only" else ~unnamed)
    if wanted.pinned is not None:
        query = query.where(s.pinned_at.is_not(None) if wanted.pinned else s.pinned_at.is_(None))
    if wanted.where is not None:
        query = query.where(wanted.where)
    if before is not None:
        query = query.where(tuple_(s.updated_at, s.id) < tuple_(literal(before), literal(before_id)))
    return [_session(row) for row in connection.execute(query).mappings()]


def read_children(connection: Connection, session: SessionRow) -> list[SessionRow]:
    """Read the sessions of nested runs that a session's tool calls started, oldest first."""
    s = t.sessions.c
    query = _select_sessions().where(s.root == (session.root or session.id), s.parent == session.id)
    return [_session(row) for row in connection.execute(query.order_by(s.created_at, s.id)).mappings()]


class ChildSession(Struct, frozen=True):
    """A session of a nested run with its newest messages and its own nested runs.

    ``omitted`` counts the earlier messages that were not read.
    """

    session: SessionRow
    messages: tuple[Message, ...]
    omitted: int
    children: tuple[ChildSession, ...]


def read_child_sessions(
    connection: Connection, session: SessionRow, messages: Iterable[Message], most: int = 2_000
) -> tuple[ChildSession, ...]:
    """Read the nested runs of some messages of a session, at every depth, with at most ``most`` messages.

    Those of messages that an /undo hides are left out.
    """

    def read(row: SessionRow, among: Iterable[Message]) -> tuple[ChildSession, ...]:
        nonlocal most
        shown, found = {message.id for message in among}, list[ChildSession]()
        for child in read_children(connection, row):
            if child.parent_message in shown:
                read_now = read_messages(connection, child.id, last=most) if most else ()
                messages = tuple(message for _, message in read_now)
                most -= len(messages)
                omitted = max(0, child.messages - len(messages))
                found.append(ChildSession(child, messages, omitted, read(child, messages)))
        return tuple(found)

    return read(session, messages)


def read_nested(connection: Connection, root: str) -> list[str]:
    """Read the ids of the sessions of a conversation's nested runs, at every depth."""
    return list(connection.execute(select(t.sessions.c.id).where(t.sessions.c.root == root)).scalars())


def read_unfinished(connection: Connection, root: str) -> list[tuple[str, str]]:
    """Return the sessions of a conversation's nested runs that wait for an answer, and their last message."""
    s, m, later = t.sessions.c, t.messages.c, t.messages.alias("later")
    newer = select(later.c.id).where(later.c.session_id == s.id, later.c.seq > m.seq).exists()
    query = select(s.id, m.id).join(t.messages, m.session_id == s.id)
    query = query.where(s.root == root, m.role == "user", ~newer).order_by(m.seq)
    return [(session, message) for session, message in connection.execute(query)]


def read_messages(
    connection: Connection,
    session_id: str,
    *,
    after: int = 0,
    upto: int | None = None,
    last: int | None = None,
) -> list[tuple[int, Message]]:
    """Read messages for a person, with their numbers in order: those after ``after``, up to ``upto``, or only
    the ``last`` ones.
    """
    m = t.messages.c
    query = select(t.messages).where(m.session_id == session_id, m.seq > after, m.undone.is_(None))
    query = query.order_by(m.seq.desc())
    query = query if upto is None else query.where(m.seq <= upto)
    # Read newest first, so that ``last`` limits the query and not its result.
    found = _numbered(connection, query if last is None else query.limit(last))[::-1]
    return [(seq, message.with_state_of()) for seq, message in found]


def read_by_id(connection: Connection, ids: Sequence[str]) -> dict[str, Message]:
    """Read the stored messages among some ids of all sessions, at most 500, by id."""
    rows = connection.execute(select(t.messages).where(t.messages.c.id.in_(ids))).mappings().all()
    parts = _read_parts(connection, [row["id"] for row in rows])
    return {row["id"]: _message(row, parts.get(row["id"], ())) for row in rows}


def read_unindexed(connection: Connection, most: int) -> list[tuple[int, int, Message]]:
    """Read the newest messages that the search index does not have, with the columns ``seq`` and ``indexed``.

    These are read before the texts: a text that is replaced in the meantime belongs to another number.
    """
    query = select(t.messages).where(text("indexed < 1")).order_by(t.messages.c.id.desc()).limit(most)
    rows = connection.execute(query).mappings().all()
    parts = _read_parts(connection, [row["id"] for row in rows])
    return [(row["seq"], row["indexed"], _message(row, parts.get(row["id"], ()))) for row in rows]


def read_changed(connection: Connection, session_id: str, after: int) -> list[tuple[int, Message]]:
    """Read the messages up to the number ``after`` that were replaced after it, with the numbers of that."""
    m = t.messages.c
    query = select(t.messages).where(m.session_id == session_id, m.changed > after, m.seq <= after)
    return _numbered(connection, query.where(m.undone.is_(None)).order_by(m.changed), "changed")


def read_undone(connection: Connection, session_id: str) -> tuple[int, list[tuple[int, Message]]]:
    """Read the messages that the last /undo hid, in order, and its number; 0 if no message is hidden."""
    m = t.messages.c
    newest = select(func.max(m.undone)).where(m.session_id == session_id, m.undone > 0)
    number = connection.execute(newest).scalar_one() or 0
    return number, read_hidden(connection, session_id, number)


def read_hidden(connection: Connection, session_id: str, undone: int) -> list[tuple[int, Message]]:
    """Read the messages that were hidden with a number, in order."""
    m = t.messages.c
    query = select(t.messages).where(m.session_id == session_id, m.undone == undone)
    return _numbered(connection, query.order_by(m.seq))


def _numbered(
    connection: Connection, query: Select[*tuple[Any, ...]], number: str = "seq"
) -> list[tuple[int, Message]]:
    """Read the messages of a query, each with one of its numbers."""
    rows = connection.execute(query).mappings().all()
    parts = _read_parts(connection, [row["id"] for row in rows])
    return [(row[number], _message(row, parts.get(row["id"], ()))) for row in rows]


def read_logs(
    connection: Connection, ids: Collection[str], last: int, most: int
) -> dict[str, list[tuple[int, Message]]]:
    """Read the newest messages of each session with their numbers, in order, by session.

    These are the ``last`` ones and all of the model's context, at most ``most``.
    """
    m, s, older = t.messages.c, t.sessions.c, t.messages.alias("older")
    # Found by its place in the index, once for each session: a long log must not be read for its end.
    oldest = select(older.c.seq).where(older.c.session_id == s.id).order_by(older.c.seq.desc()).limit(1)
    nearest, furthest = (
        func.coalesce(oldest.offset(count - 1).scalar_subquery(), 0) for count in (last, most)
    )
    context = case((s.context_from < nearest, s.context_from + 1), else_=nearest)
    start = case((and_(s.messages > most, furthest > context), furthest), else_=context).label("start")
    ends = select(t.sessions.c.id, start).where(t.sessions.c.id.in_(ids)).cte("ends")
    ends = ends.prefix_with("MATERIALIZED")
    query = select(t.messages).join(ends, and_(m.session_id == ends.c.id, m.seq >= ends.c.start))
    query = query.where(m.undone.is_(None))
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
        .where(m.session_id == session_id, m.undone.is_(None), p.type.in_(types))
        .order_by(m.seq.desc(), p.index.desc())
    )
    for message_id, seq, created_at, content in connection.execute(query):
        yield (message_id, seq, created_at), decode_part(content)


def count_errors(connection: Connection, session_id: str) -> int:
    """Count the error parts of a session."""
    m, p = t.messages.c, t.parts.c
    query = select(func.count()).select_from(t.parts.join(t.messages, m.id == p.message_id))
    query = query.where(m.session_id == session_id, m.undone.is_(None), p.type == "error")
    return connection.execute(query).scalar_one()


def count_messages(connection: Connection, session_id: str, *, without: Sequence[str] = ()) -> int:
    """Count the messages of a session, except hidden ones and those in ``without``."""
    m = t.messages.c
    query = select(func.count()).select_from(t.messages)
    query = query.where(m.session_id == session_id, m.undone.is_(None), m.id.not_in(without))
    return connection.execute(query).scalar_one()


def _select_sessions() -> Select[*tuple[Any, ...]]:
    """Select sessions with their cost: the sum of their messages' costs, so that the two cannot differ."""
    # As text, because databases use a partial index only for the condition that it has itself.
    m, has_cost = t.messages.c, text("messages.cost <> 0")
    cost = select(func.coalesce(func.sum(m.cost), 0.0)).where(m.session_id == t.sessions.c.id, has_cost)
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
        origin=extra.origin,
        pruned=extra.pruned,
    )


def _session(row: RowMapping) -> SessionRow:
    values = dict(row)
    address = msgspec.json.decode(values.pop("address"), type=Address)
    del values["indexed_title"]  # of the search alone
    return SessionRow(address=address, **values)
