"""Dead letters: messages that could not be answered and events that could not be parsed, for the operator.

The session of a dead letter shows a notice. ``replay`` removes the notice and reopens the message as if it
had just arrived; an answer that only its platform refused is sent again, and no model is called. ``drop``
leaves the notice as the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from msgspec import Struct
from sqlalchemy import Connection, select

from gateway.contract.errors import InvalidStateError, NotFoundError
from gateway.session.log import COUNT_MESSAGES, DROP_MESSAGE, count_messages
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.inbox import DROP_DEAD_LETTER, DROP_QUARANTINED, REOPEN, Entry, read_entry
from gateway.store.outbox import FORGET_PAGES
from gateway.store.steps import DROP_STEPS
from gateway.why.causes import is_undelivered
from gateway.why.records import Records, read_records

Requeue = Callable[[Entry], Awaitable[None]]


class DeadLetter(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A dead letter. ``at`` is milliseconds; one of kind ``event`` is a platform event that could not be
    parsed.
    """

    id: str
    kind: str = "message"
    session: str = ""
    channel: str
    text: str
    reason: str
    attempts: int = 0
    at: int
    trace: str | None = None


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

    async def list(self) -> list[DeadLetter]:
        """List the dead letters, the latest first."""
        return await self._store.read(_read_all)

    async def get(self, letter_id: str) -> DeadLetter:
        """Return a dead letter. Raises NotFoundError."""
        for letter in await self.list():
            if letter.id == letter_id:
                return letter
        raise NotFoundError(f"no dead letter {letter_id!r}")

    async def replay(self, letter_id: str) -> None:
        """Reopen a message: remove its notice and reset its attempts.

        Raises NotFoundError, or InvalidStateError for an event, which cannot be parsed, and for a message
        whose notice is still being sent.
        """
        letter = await self.get(letter_id)
        if letter.kind == "event":
            raise InvalidStateError("an event that could not be parsed cannot be replayed; drop it")
        if not await self.reopen(letter_id, lambda records: records.state == "dead"):
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
            await self._store.write(*ops, *also)
        if self._requeue is not None:
            await self._requeue(entry)
        return True

    async def drop(self, letter_id: str) -> None:
        """Remove a dead letter for good. Raises NotFoundError."""
        letter = await self.get(letter_id)
        if letter.kind == "event":
            await self._store.write((DROP_QUARANTINED, (letter_id,)))
            return
        async with self._changing:
            entry = await self._store.read(lambda c: read_entry(c, letter_id))
            await self._store.write(
                (DROP_DEAD_LETTER, (letter_id,)), (DROP_STEPS, (letter_id,)), entry.settle("done")
            )


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
        (REOPEN, (entry.id, "new", 0, 0)),
        (DROP_DEAD_LETTER, (entry.id,)),
        (COUNT_MESSAGES, (entry.session, left)),
    ]
    if not entry.answered:
        ops.append((FORGET_PAGES, (entry.id,)))
    # Left in place, the stop would end the replayed turn before it calls the model.
    if entry.interrupted == "stopped":
        entry.interrupted = None
        ops.append(entry.interrupt())
    return entry, ops


def _read_all(connection: Connection) -> list[DeadLetter]:
    buried = select(t.dead_letter).where(t.dead_letter.c.inbox_id.in_(select(t.inbox.c.id)))
    letters = [
        _letter(read_entry(connection, row.inbox_id), row.reason, row.trace, row.at)
        for row in connection.execute(buried)
    ]
    letters += [
        DeadLetter(id=row.id, kind="event", channel=row.channel, text=row.raw, reason=row.reason, at=row.at)
        for row in connection.execute(select(t.quarantine))
    ]
    return sorted(letters, key=lambda letter: (-letter.at, letter.id))


def _letter(entry: Entry, reason: str, trace: str | None, at: int) -> DeadLetter:
    return DeadLetter(
        id=entry.id,
        session=entry.session,
        channel=entry.channel,
        text=entry.inbound.text,
        reason=reason,
        attempts=entry.attempts,
        at=at,
        trace=trace,
    )
