"""Branches: editing a message, or asking for another answer, keeps what followed as a separate version.

The messages from the edited one on are hidden, and the new message takes their place, in one transaction. A
version is named by its first message. Switching hides the versions' messages against each other; inside a
version there can be further ones. The model, people, search, forks and shares get the shown version only.

The files that tools changed follow, as they do for an undo.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, and_, func, select

from gateway.contract.channel import InboundMessage, Receipt
from gateway.contract.errors import InvalidRequestError, InvalidStateError, NotFoundError
from gateway.contract.messages import Message, Metadata, TextPart
from gateway.conversations.changes import ChangeLog
from gateway.conversations.undo import BUSY, drop_title, is_answer, is_prompt, settled
from gateway.pipeline.intake import Intake
from gateway.session import Session
from gateway.session.log import read_by_id, read_hidden, read_messages
from gateway.store import Inserted, Op, Store
from gateway.store import schema as t
from gateway.store.inbox import Inbox, read_entry
from gateway.store.outbox import find_placed
from gateway.store.writes import OwnStatement, Write
from gateway.tables import KeyLocks

_KEEP = Write("insert", 3, t.branches, "id session_id point hidden")
_DROP = Write("delete", 2, t.branches, "id")
# What was undone before belongs to one version: a redo must not show it in another.
_END_REDO = OwnStatement(
    2, t.messages, "UPDATE messages SET undone = -undone WHERE session_id = ?1 AND undone > 0"
)

_LONGEST_TEXT = 200
_TOO_OLD = (
    "it is part of a summary, of the conversation before /new, or too old; fork the conversation there "
    "instead"
)


class Version(Struct, frozen=True):
    """One continuation of a conversation, by the id of its first message.

    ``text`` is the beginning of that message, ``messages`` their number, ``model`` that of the first answer,
    null without one. ``created_at`` is in milliseconds.
    """

    id: str
    text: str
    created_at: int
    messages: int
    model: str | None
    shown: bool


class Branch(Struct, frozen=True):
    """A place at which a conversation has several versions, oldest first; at most one is shown."""

    versions: tuple[Version, ...]


class HiddenVersion(Struct, frozen=True):
    """A version that is not shown: the id and the content of its messages.

    ``after`` is the id of the message that it follows, which is shown or in another hidden version; null at
    the beginning.
    """

    id: str
    after: str | None
    messages: tuple[Message, ...]


class _Hidden(NamedTuple):
    """A stored version: its first message, the number of the message before it, and that of its hiding."""

    id: str
    point: int
    number: int


class _Tail(NamedTuple):
    """The shown messages after the number ``point``, which is that of the last message before them."""

    messages: tuple[Message, ...]
    point: int

    @property
    def answers(self) -> tuple[str, ...]:
        """The ids of its answers."""
        return tuple(message.id for message in self.messages if is_answer(message))


class _Change(NamedTuple):
    """The answers that were hidden, and those that were shown again."""

    hidden: tuple[str, ...]
    restored: tuple[str, ...] = ()


class Branches:
    """Makes, lists and switches the versions of conversations that clients of the gateway's server read."""

    def __init__(self, store: Store, inbox: Inbox, intake: Intake, changes: ChangeLog) -> None:
        self._store = store
        self._inbox = inbox
        self._intake = intake
        self._changes = changes
        self._locks = KeyLocks()

    async def list(self, session: Session) -> tuple[Branch, ...]:
        """Return the places of a conversation with several versions, in its order."""
        turn = session.turn
        # The messages that are being answered are stored with their answer.
        begun = () if turn is None or turn.committed else tuple(message for _, message in turn.shown)
        return await self._store.read(lambda c: _read_branches(c, session.id, begun))

    async def read(self, session: Session, version: str) -> list[tuple[int, Message]]:
        """Read the conversation with a version in it, without showing it, in order and with the numbers.

        ``version`` is the id of its first message. Raises NotFoundError.
        """
        turn = session.turn
        begun = () if turn is None or turn.committed else [message.id for _, message in turn.shown]
        return await self._store.read(lambda c: _read_with(c, session.id, version, begun))

    async def read_hidden(self, session: Session) -> tuple[HiddenVersion, ...]:
        """Read the versions that are not shown, at every depth."""
        return await self._store.read(lambda c: read_hidden_versions(c, session.id))

    async def edit(self, session: Session, channel: str, message_id: str, new: InboundMessage) -> Receipt:
        """Send a message in place of a user's earlier one, whose files it keeps.

        Durable when it returns; a repeated ``dedup_key`` has no effect. Raises NotFoundError, and
        InvalidStateError with the reason.
        """
        if not new.text.strip():
            raise InvalidRequestError("the edited message is empty")
        if new.text.startswith("/"):
            raise InvalidRequestError("an edited message cannot be a command; send that as a new message")

        def edited() -> tuple[Message, InboundMessage]:
            old = next((m for _, m in session.log if m.id == message_id and is_prompt(m)), None)
            if old is None:
                raise NotFoundError(f"no message of a user {message_id!r} that could be edited")
            kept = tuple(part for part in old.parts if not isinstance(part, TextPart))
            return old, msgspec.structs.replace(new, parts=kept)

        return await self._replace(session, channel, new, message_id, edited)

    async def regenerate(
        self, session: Session, channel: str, answer_id: str, new: InboundMessage
    ) -> Receipt:
        """Ask for another answer: send the messages that it answers once more, as one. See ``edit``."""

        def repeated() -> tuple[Message, InboundMessage]:
            prompts = _answered(session, answer_id)
            if not prompts:
                raise NotFoundError(f"no answer {answer_id!r} that can be regenerated")
            parts = [part for one in prompts for part in one.parts]
            text = "\n\n".join(part.content for part in parts if isinstance(part, TextPart))
            kept = tuple(part for part in parts if not isinstance(part, TextPart))
            return prompts[0], msgspec.structs.replace(new, text=text, parts=kept)

        return await self._replace(session, channel, new, answer_id, repeated)

    async def switch(self, session: Session, version: str) -> None:
        """Show a version in place of the one that is shown now. Durable when it returns.

        Raises NotFoundError, and InvalidStateError with the reason.
        """
        change: _Change | None = None

        async def submit() -> asyncio.Future[Inserted] | None:
            nonlocal change
            await settled(session)
            _check_idle(session)
            found = await self._store.read(lambda c: _find_version(c, session.id, version))
            if found is None:
                return None
            restored = await self._store.read(lambda c: read_hidden(c, session.id, -found.number))
            tail = await self._tail(session, found.point)
            _check_idle(session)
            change = _Change(tail.answers, tuple(m.id for _, m in restored if is_answer(m)))
            ops = [*self._hide(session, tail), (_DROP, (found.id,)), *session.restore_messages(restored)]
            session.set_title_from(next((m.text for _, m in restored if is_prompt(m)), ""))
            ops.append(session.put())
            ops += self._changes.intend(session.id, change.restored, back=False)
            return self._store.submit(ops)

        async with session.changing:
            if await self._locks.commit(session.id, submit) and change is not None:
                await asyncio.shield(self._follow(session, change))

    async def _replace(
        self,
        session: Session,
        channel: str,
        new: InboundMessage,
        message_id: str,
        find: Callable[[], tuple[Message, InboundMessage]],
    ) -> Receipt:
        """Hide the log from a message on and accept another one, in one transaction."""
        if await self._inbox.contains(channel, new):
            return (await self._intake.accept(channel, (new,)))[0]
        await settled(session)
        _check_idle(session)
        if await self._store.read(lambda c: _is_too_old(c, session, message_id)):
            raise InvalidStateError(_TOO_OLD)
        old, complete = find()
        seq = next(seq for seq, message in session.log if message.id == old.id)
        point = await self._store.read(lambda c: _last_before(c, session.id, seq))
        tail = await self._tail(session, point)

        def prepare() -> list[Op]:
            _check_idle(session)
            if _after(session, point) != tail.messages:
                raise InvalidStateError(BUSY)
            return self._hide(session, tail)

        async def accept() -> Receipt:
            async with session.changing:
                [receipt] = await self._intake.accept(channel, (complete,), prepare=prepare)
                await self._follow(session, _Change(tail.answers))
            return receipt

        return await asyncio.shield(accept())

    async def _tail(self, session: Session, point: int) -> _Tail:
        """Return the shown messages after a number. Raises InvalidStateError if they cannot be hidden."""
        tail = _Tail(_after(session, point), point)
        count, placed = await self._store.read(
            lambda c: (_count_after(c, session.id, point), find_placed(c, tail.answers))
        )
        if point < session.row.context_from or count != len(tail.messages):
            raise InvalidStateError(_TOO_OLD)
        if placed:
            raise InvalidStateError("its answer was placed in a chat that keeps one version; use /undo there")
        return tail

    def _hide(self, session: Session, tail: _Tail) -> list[Op]:
        """Hide the shown messages after a point. Returns the writes, none if nothing is shown there."""
        if not tail.messages:
            return [(_END_REDO, (session.id,))]
        ids = [message.id for message in tail.messages]
        drop_title(session, ids)
        number, ops = session.hide_messages(ids, redoable=False)
        kept = _KEEP, (tail.messages[0].id, session.id, tail.point, number)
        back = self._changes.intend(session.id, tail.answers, back=True)
        return [*ops, kept, (_END_REDO, (session.id,)), *back]

    async def _follow(self, session: Session, change: _Change) -> None:
        """Change the files like the log, and send the changed log to readers."""
        await self._changes.revert(session.id, change.hidden)
        await self._changes.restore(session.id, change.restored)
        await session.show_anew()


def read_hidden_versions(connection: Connection, session: str) -> tuple[HiddenVersion, ...]:
    """Read the versions of a conversation that are not shown and could be, by their places in its order."""
    stored = _read_stored(connection, session)
    m = t.messages.c
    points = select(m.seq, m.id).where(m.session_id == session, m.seq.in_({one.point for one in stored}))
    ids = {row.seq: row.id for row in connection.execute(points)}
    return tuple(
        HiddenVersion(
            one.id,
            ids.get(one.point),
            tuple(message for _, message in read_hidden(connection, session, -one.number)),
        )
        for one in stored
    )


def _answered(session: Session, answer_id: str) -> tuple[Message, ...]:
    """Return the users' messages that an answer answers; none if it is not an answer of the log."""
    log = [message for _, message in session.log if is_prompt(message) or is_answer(message)]
    at = next((n for n, one in enumerate(log) if one.id == answer_id and is_answer(one)), 0)
    begin = at
    while begin and is_prompt(log[begin - 1]):
        begin -= 1
    return tuple(log[begin:at])


def _after(session: Session, point: int) -> tuple[Message, ...]:
    return tuple(message for seq, message in session.log if seq > point)


def _check_idle(session: Session) -> None:
    if session.turn is not None or session.pending:
        raise InvalidStateError(BUSY)
    if session.asked:
        raise InvalidStateError("a question is open; answer it first")


def _shown(session: str) -> ColumnElement[bool]:
    return and_(t.messages.c.session_id == session, t.messages.c.undone.is_(None))


def _last_before(connection: Connection, session: str, seq: int) -> int:
    """Return the number of the last shown message before one; 0 if it is the first."""
    m = t.messages.c
    query = select(func.coalesce(func.max(m.seq), 0)).where(_shown(session), m.seq < seq)
    return connection.execute(query).scalar_one()


def _is_too_old(connection: Connection, session: Session, message_id: str) -> bool:
    """Return whether the log shows a message that left memory."""
    query = select(t.messages.c.seq).where(_shown(session.id), t.messages.c.id == message_id)
    seq = connection.execute(query).scalar()
    return seq is not None and bool(session.log) and seq < session.log[0][0]


def _count_after(connection: Connection, session: str, point: int) -> int:
    query = select(func.count()).select_from(t.messages).where(_shown(session), t.messages.c.seq > point)
    return connection.execute(query).scalar_one()


def _read_stored(connection: Connection, session: str) -> dict[_Hidden, int | None]:
    """Read the hidden versions that can be reached, at every depth, in the order of their places.

    Returns for each the ``undone`` of the message before it: that of the version that the message is in, None
    if it is shown.
    """
    b, m = t.branches.c, t.messages.c
    query = select(b.id, b.point, b.hidden).where(b.session_id == session).order_by(b.point, b.id)
    found = [_Hidden(*row) for row in connection.execute(query)]
    points = select(m.seq, m.undone).where(m.session_id == session, m.seq.in_({one.point for one in found}))
    around: dict[int, int | None] = {row.seq: row.undone for row in connection.execute(points)}
    around[0] = None
    reached: dict[_Hidden, int | None] = {}
    numbers: set[int | None] = {None}
    # A version follows the message before it, so those that a version contains come after it.
    for one in found:
        if one.point in around and around[one.point] in numbers:
            reached[one] = around[one.point]
            numbers.add(-one.number)
    return reached


def _read_hidden(connection: Connection, session: str) -> list[_Hidden]:
    """Read the versions that could be shown: those whose message before them is shown."""
    return [one for one, undone in _read_stored(connection, session).items() if undone is None]


def _read_with(
    connection: Connection, session: str, version: str, begun: Sequence[str]
) -> list[tuple[int, Message]]:
    """Read the messages before a version, and those of it. Raises NotFoundError."""
    stored = _read_stored(connection, session)
    one = next((held for held in stored if held.id == version), None)
    if one is None:
        places = {held.point for held, undone in stored.items() if undone is None}
        if version not in {*begun, *(_first_after(connection, session, point) for point in places)}:
            listed = f"GET /api/sessions/{session}/branches lists them"
            raise NotFoundError(f"branch: session {session!r} has no version {version!r}; {listed}")
        return read_messages(connection, session)
    path = read_hidden(connection, session, -one.number)
    within = {-held.number: held for held in stored}
    while (undone := stored[one]) is not None:
        path = [*(m for m in read_hidden(connection, session, undone) if m[0] <= one.point), *path]
        one = within[undone]
    return [*read_messages(connection, session, upto=one.point), *path]


def _find_version(connection: Connection, session: str, version: str) -> _Hidden | None:
    """Return a hidden version; None if it is shown. Raises NotFoundError."""
    hidden = _read_hidden(connection, session)
    found = next((one for one in hidden if one.id == version), None)
    if found is None and version not in (_first_after(connection, session, one.point) for one in hidden):
        raise NotFoundError(f"no version {version!r} at a place that is shown")
    return found


def _first_after(connection: Connection, session: str, point: int) -> str | None:
    m = t.messages.c
    query = select(m.id).where(_shown(session), m.seq > point).order_by(m.seq).limit(1)
    return connection.execute(query).scalar_one_or_none()


def _read_branches(connection: Connection, session: str, begun: Sequence[Message]) -> tuple[Branch, ...]:
    m, found = t.messages.c, dict[int, list[Version]]()
    waiting = None if begun else _read_waiting(connection, session)
    for one in _read_hidden(connection, session):
        if one.point not in found:
            shown = _read_version(connection, and_(_shown(session), m.seq > one.point), shown=True)
            if shown is None:
                shown = _version(begun[0], len(begun), None, shown=True) if begun else waiting
            found[one.point] = [] if shown is None else [shown]
        hidden = and_(m.session_id == session, m.undone == -one.number)
        found[one.point] += filter(None, [_read_version(connection, hidden, shown=False)])
    ordered = [tuple(sorted(found[point], key=_age)) for point in sorted(found)]
    return tuple(Branch(versions) for versions in ordered if len(versions) > 1)


def _read_waiting(connection: Connection, session: str) -> Version | None:
    """Read the version that begins with the oldest message that waits for its turn."""
    i = t.inbox.c
    which = and_(i.session == session, i.state == "new", i.priority == 0)
    found = connection.execute(select(i.id).where(which).order_by(i.ord).limit(1)).scalar()
    if found is None:
        return None
    entry = read_entry(connection, found)
    if entry.inbound.text.startswith("/"):
        return None
    return Version(entry.id, entry.inbound.text[:_LONGEST_TEXT], entry.received_at, 1, None, shown=True)


def _age(version: Version) -> tuple[int, str]:
    return version.created_at, version.id


def _read_version(connection: Connection, which: ColumnElement[bool], *, shown: bool) -> Version | None:
    m = t.messages.c
    rows = connection.execute(select(m.id, m.role, m.metadata).where(which).order_by(m.seq)).all()
    if not rows:
        return None
    first = read_by_id(connection, [rows[0].id])[rows[0].id]
    answer = next((row.metadata for row in rows if row.role == "assistant"), "{}")
    model = msgspec.json.decode(answer, type=Metadata).model
    return _version(first, len(rows), model, shown=shown)


def _version(first: Message, messages: int, model: str | None, *, shown: bool) -> Version:
    return Version(first.id, first.text[:_LONGEST_TEXT], first.created_at, messages, model, shown)
