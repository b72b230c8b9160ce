"""Dead letters: what could not be answered, or not even read, for the operator to look at.

A message that was given up has its notice in the session. ``replay`` takes the notice back and opens the
message again, as if it had just come; ``drop`` leaves the notice as the outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct
from sqlalchemy import Connection, select

from gateway.errors import InvalidStateError, NotFoundError
from gateway.inbox import DROP_QUARANTINED, EXHUME, REOPEN, Entry, read_entry
from gateway.outbox import FORGET_PAGES
from gateway.session.log import COUNT_MESSAGES, DROP_MESSAGE, count_messages
from gateway.steps import DROP_STEPS
from gateway.store import Op, Store
from gateway.store import schema as t

TakeUp = Callable[[Entry], Awaitable[None]]


class DeadLetter(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One dead letter. ``at`` is milliseconds; an ``event`` is what a platform sent and nobody could read."""

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
    """The dead letters. With ``take_up``, what is replayed is answered now, else after the next start."""

    def __init__(self, store: Store, take_up: TakeUp | None = None) -> None:
        self._store = store
        self._take_up = take_up

    async def list(self) -> list[DeadLetter]:
        """All of them, the latest first."""
        return await self._store.read(_read_all)

    async def get(self, letter_id: str) -> DeadLetter:
        """One of them. Raises NotFoundError."""
        for letter in await self.list():
            if letter.id == letter_id:
                return letter
        raise NotFoundError(f"no dead letter {letter_id!r}")

    async def replay(self, letter_id: str) -> None:
        """Open a message again, its notice taken back and its attempts forgotten.

        Raises NotFoundError, or InvalidStateError for an event: nobody could read it.
        """
        letter = await self.get(letter_id)
        if letter.kind == "event":
            raise InvalidStateError("an event that could not be read cannot be answered; drop it")
        entry = await self._store.read(lambda c: read_entry(c, letter_id))
        entry.attempts = entry.not_before = 0
        await self._store.write(*await self._store.read(lambda c: _reopened(c, entry)))
        if self._take_up is not None:
            await self._take_up(entry)

    async def drop(self, letter_id: str) -> None:
        """Remove one for good. Raises NotFoundError."""
        letter = await self.get(letter_id)
        if letter.kind == "event":
            await self._store.write((DROP_QUARANTINED, (letter_id,)))
            return
        entry = await self._store.read(lambda c: read_entry(c, letter_id))
        await self._store.write((EXHUME, (letter_id,)), (DROP_STEPS, (letter_id,)), entry.settle("done"))


def _reopened(connection: Connection, entry: Entry) -> list[Op]:
    """The writes that make it as if the entry had never been tried."""
    shown = (entry.id, entry.answer_id)
    left = count_messages(connection, entry.session, without=shown)
    return [
        *((DROP_MESSAGE, (message_id,)) for message_id in shown),
        (REOPEN, (entry.id, "new", 0, 0)),
        (EXHUME, (entry.id,)),
        (COUNT_MESSAGES, (entry.session, left)),
        (FORGET_PAGES, (entry.id,)),
    ]


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
