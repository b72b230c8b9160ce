"""Dead letters: messages that could not be answered and events that could not be parsed, for the operator.

The session of a dead letter shows a notice. ``replay`` removes the notice and reopens the message as if it
had just arrived; an answer that only its platform refused is sent again, and no model is called. ``drop``
leaves the notice as the outcome. Letters with one cause key have the same kind of failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, Row, func, literal, or_, select, tuple_

from gateway.contract.channel import InboundMessage
from gateway.contract.errors import InvalidRequestError, InvalidStateError, NotFoundError
from gateway.session.log import COUNT_MESSAGES, DROP_MESSAGE, count_messages
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.inbox import DROP_DEAD_LETTER, DROP_QUARANTINED, SETTLE, Entry, read_entry
from gateway.store.outbox import FORGET_PAGES
from gateway.store.steps import DROP_STEPS
from gateway.why.causes import Failure, dead_failures, is_undelivered
from gateway.why.records import Records, read_records
from gateway.why.words import ENGLISH, Words

Requeue = Callable[[Entry, Sequence[Op]], Awaitable[None]]
"""Callback that commits the writes which reopen a message, and answers it."""

MOST_CHOSEN = 10_000
"""Letters that one selection has at most, the oldest ones."""
_LONGEST_LISTED = 500
"""Characters of a text in a list; ``get`` returns the whole text."""
_REFUSED, _UNREADABLE = "PlacementRefused", "UnreadableEvent"
"""Causes that are those of one channel."""
_AT_ONCE = 500
_decode = msgspec.json.Decoder(InboundMessage).decode


class DeadLetter(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A dead letter. ``at`` is milliseconds; one of kind ``event`` is a platform event that could not be
    parsed. ``cause`` is the key of its group. Lists have the first 500 characters of a text, and no trace.
    """

    id: str
    kind: str = "message"
    session: str = ""
    channel: str
    text: str
    reason: str
    cause: str
    attempts: int = 0
    at: int
    trace: str | None = None


class DeadCause(Struct, frozen=True):
    """The dead letters with one cause: their number, and the time of the first and the last one (ms).

    ``text`` is a main clause; ``kind`` is message, or event for what can only be dropped.
    """

    key: str
    kind: str
    text: str
    count: int
    since: int
    last: int


class LetterChoice(Struct, frozen=True):
    """Dead letters by their ids, by their cause, or all, if neither is given."""

    ids: Collection[str] | None = None
    cause: str | None = None


class DeadLetters:
    """Operations on dead letters. With ``requeue``, a replayed message is answered now, else after the next
    start.
    """

    def __init__(self, store: Store, requeue: Requeue | None = None) -> None:
        self._store = store
        self._requeue = requeue
        self._changing = asyncio.Lock()
        """Held from the check of a message to the commit of its change. One process writes to a database, so
        two requests for one message are one replay."""

    async def list(
        self, limit: int = 500, before: tuple[int, str] | None = None, cause: str | None = None
    ) -> list[DeadLetter]:
        """List dead letters, the latest first; ``before`` is the time and the id of one to continue after."""
        return await self._store.read(lambda c: _read_page(c, limit, before, cause))

    async def causes(self, words: Words = ENGLISH) -> list[DeadCause]:
        """Group the dead letters by cause, the cause of the latest one first."""
        return await self._store.read(lambda c: _read_causes(c, words))

    async def choose(self, choice: LetterChoice, limit: int = MOST_CHOSEN) -> tuple[list[DeadLetter], int]:
        """Return the chosen letters, the oldest first, and how many more there are than ``limit``."""
        return await self._store.read(lambda c: _read_chosen(c, choice, limit))

    async def get(self, letter_id: str) -> DeadLetter:
        """Return a dead letter. Raises NotFoundError."""
        found = None
        with suppress(InvalidRequestError):  # PostgreSQL cannot store a zero character, so no id has one
            found = await self._store.read(lambda c: _read_one(c, letter_id))
        if found is None:
            raise NotFoundError(f"no dead letter {letter_id!r}")
        return found

    async def replay(self, letter_id: str, *also: Op) -> None:
        """Reopen a message: remove its notice and reset its attempts. ``also`` is committed with it.

        Raises NotFoundError, or InvalidStateError for an event, which cannot be parsed, and for a message
        whose notice is still being sent.
        """
        letter = await self.get(letter_id)
        if letter.kind == "event":
            raise InvalidStateError("an event that could not be parsed cannot be replayed; drop it")
        if not await self.reopen(letter_id, lambda records: records.state == "dead", *also):
            await self.get(letter_id)  # Replayed or dropped in the meantime: raises NotFoundError.
            # The letter is committed with the intent to place its notice, the state after the placement.
            raise InvalidStateError(f"the notice of {letter_id!r} is still being sent; try again")

    async def reopen(self, message_id: str, expected: Callable[[Records], bool], *also: Op) -> bool:
        """Reopen a message that has its outcome, if it still is as expected; return whether it was.

        ``also`` is committed in the same transaction.
        """
        async with self._changing:
            found = await self._store.read(lambda c: _read_reopening(c, message_id, expected))
            if found is None:
                return False
            entry, ops = found
            if self._requeue is None:
                await self._store.write(*ops, *also)
            else:
                await self._requeue(entry, [*ops, *also])
        return True

    async def drop(self, letter_id: str, *also: Op) -> None:
        """Remove a dead letter permanently; ``also`` is committed with it. Raises NotFoundError."""
        async with self._changing:
            letter = await self.get(letter_id)
            await self._store.write(*_dropping(letter.id, letter.kind), *also)

    async def drop_unchanged(self, wanted: Mapping[str, int], audit: Callable[[str], Op]) -> set[str]:
        """Remove letters that still have the expected ``at``, each with its audit; return their ids."""
        ids, dropped = [*wanted], set[str]()
        for start in range(0, len(ids), _AT_ONCE):
            async with self._changing:
                chunk = LetterChoice(ids[start : start + _AT_ONCE])
                found, _ = await self.choose(chunk)
                same = [one for one in found if one.at == wanted[one.id]]
                ops = [op for one in same for op in (*_dropping(one.id, one.kind), audit(one.id))]
                if ops:
                    await self._store.write(*ops)
            dropped.update(one.id for one in same)
        return dropped


def _dropping(letter_id: str, kind: str) -> list[Op]:
    if kind == "event":
        return [(DROP_QUARANTINED, (letter_id,))]
    return [
        (DROP_DEAD_LETTER, (letter_id,)),
        (DROP_STEPS, (letter_id,)),
        (SETTLE, (letter_id, "done", None)),
    ]


def _read_reopening(
    connection: Connection, message_id: str, expected: Callable[[Records], bool]
) -> tuple[Entry, list[Op]] | None:
    """Return a message and the writes that reopen it; None if it is not as expected."""
    records = read_records(connection, message_id)
    if records is None or records.state not in ("done", "dead") or not expected(records):
        return None
    entry = read_entry(connection, message_id)
    entry.attempts = entry.not_before = 0
    # An answer that is stored is placed again. What may be in the chat already is looked for, not sent twice.
    entry.answered = entry.shown = is_undelivered(records) and records.has_body
    shown = entry.shown_if_reopened
    # Counted in the database: the session need not be in memory.
    left = count_messages(connection, entry.session, without=shown)
    ops: list[Op] = [
        *((DROP_MESSAGE, (gone,)) for gone in shown),
        *entry.reopen(),
        (COUNT_MESSAGES, (entry.session, left)),
    ]
    if not entry.answered:
        ops.append((FORGET_PAGES, (entry.id,)))
    # Left in place, the stop would end the replayed turn before it calls the model.
    if entry.interrupted == "stopped":
        entry.interrupted = None
        ops.append(entry.interrupt())
    return entry, ops


_I, _D, _Q = t.inbox.c, t.dead_letter.c, t.quarantine.c
_MESSAGES = select(_I.id, _I.session, _I.channel, _I.attempts, _I.payload, _D.reason, _D.at).join_from(
    t.dead_letter, t.inbox, _I.id == _D.inbox_id
)
_EVENTS = select(_Q.id, _Q.channel, _Q.raw, _Q.reason, _Q.at)


def _read_page(
    connection: Connection, limit: int, before: tuple[int, str] | None, cause: str | None
) -> list[DeadLetter]:
    of_messages, of_events = _conditions(cause)
    messages = _MESSAGES.where(*of_messages).order_by(_D.at.desc(), _D.inbox_id.desc()).limit(limit)
    events = _EVENTS.where(*of_events).order_by(_Q.at.desc(), _Q.id.desc()).limit(limit)
    if before is not None:
        last = tuple_(literal(before[0]), literal(before[1]))
        messages = messages.where(tuple_(_D.at, _D.inbox_id) < last)
        events = events.where(tuple_(_Q.at, _Q.id) < last)
    letters = [_message(row, _LONGEST_LISTED) for row in connection.execute(messages)]
    letters += [_event(row, _LONGEST_LISTED) for row in connection.execute(events)]
    return sorted(letters, key=lambda letter: (letter.at, letter.id), reverse=True)[:limit]


def _read_chosen(connection: Connection, choice: LetterChoice, limit: int) -> tuple[list[DeadLetter], int]:
    of_messages, of_events = _conditions(choice.cause)
    if choice.ids is not None:
        of_messages.append(_I.id.in_(choice.ids))
        of_events.append(_Q.id.in_(choice.ids))
    # Ids begin with the time: a letter that is left out comes after the others of its conversation.
    messages, events = _MESSAGES.where(*of_messages), _EVENTS.where(*of_events)
    letters = [
        _message(row, _LONGEST_LISTED) for row in connection.execute(messages.order_by(_I.id).limit(limit))
    ]
    letters += [
        _event(row, _LONGEST_LISTED)
        for row in connection.execute(events.order_by(_Q.id).limit(limit - len(letters)))
    ]
    if len(letters) < limit:
        return letters, 0
    counts = [select(func.count()).select_from(each.subquery()) for each in (messages, events)]
    return letters, sum(connection.execute(count).scalar_one() for count in counts) - len(letters)


def _read_one(connection: Connection, letter_id: str) -> DeadLetter | None:
    row = connection.execute(_MESSAGES.add_columns(_D.trace.label("whole")).where(_I.id == letter_id)).first()
    if row is not None:
        return msgspec.structs.replace(_message(row), trace=row.whole)
    event = connection.execute(_EVENTS.where(_Q.id == letter_id)).first()
    return None if event is None else _event(event)


def _read_causes(connection: Connection, words: Words) -> list[DeadCause]:
    # Grouped by the name of the error alone, which the reason begins with: its text differs for each letter.
    place = func.instr if connection.dialect.name == "sqlite" else func.strpos
    code = func.substr(_D.reason, 1, place(_D.reason.concat(":"), ":") - 1)
    figures = (func.count(), func.min(_D.at), func.max(_D.at))
    messages = select(code, _I.channel, *figures).join_from(t.dead_letter, t.inbox, _I.id == _D.inbox_id)
    found: dict[str, DeadCause] = {}
    for name, channel, count, since, last in connection.execute(messages.group_by(code, _I.channel)):
        failure = _failure(channel, name)
        key = failure.cause_key
        text = _in_words(failure, words)
        known = found.get(key, DeadCause(key, "message", text, 0, since, last))
        found[key] = DeadCause(
            key, "message", text, known.count + count, min(known.since, since), max(known.last, last)
        )
    events = select(_Q.channel, func.count(), func.min(_Q.at), func.max(_Q.at)).group_by(_Q.channel)
    for channel, count, since, last in connection.execute(events):
        key = _event_failure(channel).cause_key
        found[key] = DeadCause(key, "event", _in_words(_event_failure(channel), words), count, since, last)
    return sorted(found.values(), key=lambda cause: (-cause.last, cause.key))


def _conditions(cause: str | None) -> tuple[list[ColumnElement[bool]], list[ColumnElement[bool]]]:
    """Return the conditions for messages and for events with a cause."""
    if cause is None:
        return [], []
    channel, code = [*cause.rsplit(":", 2), "", ""][:2]
    if code == _UNREADABLE:
        return [_I.id.is_(None)], [_Q.channel == channel]
    of_code: list[ColumnElement[bool]] = [
        or_(_D.reason == code, _D.reason.startswith(f"{code}:", autoescape=True))
    ]
    if code == _REFUSED:
        of_code.append(_I.channel == channel)
    return of_code, [_Q.id.is_(None)]


def _failure(channel: str, reason: str) -> Failure:
    [failure] = dead_failures(reason)
    return Failure(channel, "", _REFUSED) if failure.code == _REFUSED else failure


def _in_words(failure: Failure, words: Words) -> str:
    if failure.code in (_REFUSED, _UNREADABLE):
        return words(f"cause.{failure.code}", provider=words.platform(failure.provider))
    return failure.in_words(words)


def _event_failure(channel: str) -> Failure:
    return Failure(channel, "", _UNREADABLE)


def _message(row: Row[*tuple[Any, ...]], longest: int | None = None) -> DeadLetter:
    return DeadLetter(
        id=row.id,
        session=row.session,
        channel=row.channel,
        text=_decode(row.payload).text[:longest],
        reason=row.reason,
        cause=_failure(row.channel, row.reason).cause_key,
        attempts=row.attempts,
        at=row.at,
    )


def _event(row: Row[*tuple[Any, ...]], longest: int | None = None) -> DeadLetter:
    return DeadLetter(
        id=row.id,
        kind="event",
        channel=row.channel,
        text=row.raw[:longest],
        reason=row.reason,
        cause=_event_failure(row.channel).cause_key,
        at=row.at,
    )
