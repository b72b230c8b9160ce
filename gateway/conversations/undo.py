"""Undo: the last exchange of a session is hidden from the model and from people, until it is redone.

An exchange is a turn: the messages that were answered together, and their answer. It stays in the store
with the number of the undo. A redo shows the one with the highest number again, unless a message was answered
since.

One transaction hides the exchange and gives the pages of its answer to an entry of the inbox that needs no
turn. The worker of the session then deletes them, like any delivery, over crashes. A redo places the answer
again, under its own entry: with the old nonces a platform would return the deleted messages.

The transaction also records the intent to revert what tools changed in files. The files follow before the
undo is acknowledged; a process that ends in between leaves that to the next one, before it answers a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace
from sqlalchemy import Connection, select

from gateway.contract.channel import Address, Deletes, Edits, InboundMessage, Sender
from gateway.contract.errors import InvalidStateError
from gateway.contract.messages import Message
from gateway.conversations.changes import ChangeLog
from gateway.delivery.deliverer import Deliverer
from gateway.events.types import SessionRedone, SessionTitled, SessionUndone
from gateway.extensions.registry import ChannelRegistry
from gateway.pipeline.intake import Intake, own_entry
from gateway.session import Session
from gateway.session.compaction import is_summary
from gateway.session.frames import SessionFrame
from gateway.session.log import read_undone
from gateway.store import Inserted, Op, Store
from gateway.store import schema as t
from gateway.store.inbox import Entry
from gateway.store.outbox import PlacedAnswer, find_newest, find_placed, undo_pages
from gateway.tables import KeyLocks

_RECORDS = "(undo)"
"""Channel of the inbox rows that record which commands were carried out; no channel has this id."""
_SETTLE_SECONDS = 2.0
_MOST_REPLACED = 100
"""Hidden messages that are searched for earlier revisions of the messages of an exchange."""
BUSY = "an answer is being made, or messages are waiting; stop it, or try again when it is complete"


class Exchange(NamedTuple):
    """The ids of all messages of an exchange, of its answers, and of its users' messages.

    ``answered_at`` is the number of its answer.
    """

    messages: tuple[str, ...]
    answers: tuple[str, ...]
    prompts: tuple[str, ...]
    answered_at: int


class Command(NamedTuple):
    """The request to undo or redo. A repeated ``key`` has no effect in a session; empty for none.

    ``seq`` is the number at which a chat's command was accepted, whose turn is running; None for a client's.
    """

    key: str
    seq: int | None = None


class Change(NamedTuple):
    """Effect of an undo or redo: the ids of the answers and of all messages.

    ``remains`` is true if a channel can neither delete nor mark the placed answer. ``kept`` are the files
    that tools changed and that stay as they are, each with the reason.
    """

    turns: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    remains: bool = False
    kept: tuple[tuple[str, str], ...] = ()


class Undo:
    """Hides the last exchanges of sessions, and shows them again."""

    def __init__(
        self,
        store: Store,
        channels: ChannelRegistry,
        intake: Intake,
        deliverer: Deliverer,
        changes: ChangeLog,
    ) -> None:
        self._store = store
        self._channels = channels
        self._intake = intake
        self._deliverer = deliverer
        self._changes = changes
        self._locks = KeyLocks()

    async def undo(self, session: Session, command: Command) -> Change:
        """Hide the last exchange. Durable when it returns. Raises InvalidStateError with the reason."""
        change = Change()

        async def submit() -> asyncio.Future[Inserted] | None:
            nonlocal change
            if await self._is_done(session, command, "undo"):
                return None
            await settled(session, command.seq)
            found = await self._find(session, command)
            placed = await self._store.read(lambda c: find_placed(c, found.answers))
            _check_idle(session, command)
            if _last_exchange(session, found.messages) != found:
                raise InvalidStateError(BUSY)
            change = Change(found.answers, found.messages, not all(map(self._can_remove, placed)))
            return self._hide(session, command, found, placed)

        async with session.changing:
            if await self._locks.commit(session.id, submit):
                moved = await asyncio.shield(self._changes.revert(session.id, change.turns))
                change = change._replace(kept=tuple(moved.refused.items()))
                session.events.emit(SessionUndone(session.id, change.turns, change.messages))
                await session.show_anew()
        return change

    async def redo(self, session: Session, command: Command) -> Change:
        """Show the exchange that was undone last. Durable when it returns. Raises as ``undo`` does."""
        change = Change()

        async def submit() -> asyncio.Future[Inserted] | None:
            nonlocal change
            if await self._is_done(session, command, "redo"):
                return None
            await settled(session, command.seq)
            _check_idle(session, command)
            number, messages = await self._store.read(lambda c: read_undone(c, session.id))
            answers = {m.id: m for _, m in messages if is_answer(m)}
            placed = await self._store.read(lambda c: find_placed(c, list(answers), number))
            newest = await self._store.read(lambda c: _find_newest(c, session.id, placed))
            _check_idle(session, command)
            _check_redoable(session, number, messages)
            change = Change(tuple(answers), tuple(m.id for _, m in messages))
            return self._restore(session, command, messages, list(zip(placed, newest, strict=True)))

        async with session.changing:
            if await self._locks.commit(session.id, submit):
                moved = await asyncio.shield(self._changes.restore(session.id, change.turns))
                change = change._replace(kept=tuple(moved.refused.items()))
                session.events.emit(SessionRedone(session.id, change.turns, change.messages))
                await session.show_anew()
        return change

    async def _find(self, session: Session, command: Command) -> Exchange:
        """Return the last exchange. Raises InvalidStateError if it cannot be undone."""
        _check_idle(session, command)
        found = _last_exchange(session)
        if found is None:
            raise InvalidStateError(_why_nothing(session))
        if command.seq is not None and found.answered_at > command.seq:
            raise InvalidStateError("an answer was being made; try again now that it is complete")
        hidden = [m.id for _, m in session.log if m.role == "user" and not m.for_model][-_MOST_REPLACED:]
        replaced = await self._store.read(lambda c: _find_replaced(c, hidden, found.prompts))
        return _last_exchange(session, replaced) or found

    def _hide(
        self, session: Session, command: Command, found: Exchange, placed: Sequence[PlacedAnswer]
    ) -> asyncio.Future[Inserted]:
        drop_title(session, found.prompts)
        number, ops = session.hide_messages(found.messages)
        ops += self._changes.intend(session.id, found.answers, back=True)
        entries: list[Entry] = []
        for one in placed:
            if self._can_remove(one):
                entry = self._entry(session, one, f"undone:{number}")
                entry.untried = False
                entries.append(entry)
                ops.append(undo_pages(one.inbox_id, entry, number))
        return self._submit(session, entries, [*ops, *_record(session, command, "undo")])

    def _restore(
        self,
        session: Session,
        command: Command,
        messages: Sequence[tuple[int, Message]],
        placed: Sequence[tuple[PlacedAnswer, str | None]],
    ) -> asyncio.Future[Inserted]:
        first = next((m for _, m in messages if is_prompt(m)), None)
        if first is not None:
            session.set_title_from(first.text)
        ops = session.restore_messages(messages)
        ops += self._changes.intend(session.id, [m.id for _, m in messages if is_answer(m)], back=False)
        answers, entries = {m.id: m for _, m in messages}, list[Entry]()
        for one, newest in placed:
            # The entry takes the answer's id: feedback and forks find the answer by its messages.
            entry = self._entry(session, one, f"redone:{session.row.undone_at}", one.answer_id)
            intended = self._deliverer.intend(entry, session.rendered(answers[one.answer_id]), newest)
            if intended is not None:
                entries.append(entry)
                ops += intended
        return self._submit(session, entries, [*ops, *_record(session, command, "redo")])

    def _entry(self, session: Session, placed: PlacedAnswer, key: str, answer_id: str = "") -> Entry:
        session.seq += 1
        entry = own_entry(session, placed.channel, placed.address, "")
        entry.inbound = replace(entry.inbound, dedup_key=f"{key}:{entry.id}")
        entry.answer_id = answer_id or entry.answer_id
        self._intake.put_next(session, entry)
        return entry

    def _submit(
        self, session: Session, entries: Sequence[Entry], ops: Sequence[Op]
    ) -> asyncio.Future[Inserted]:
        return self._intake.queue(session, entries, ops) if entries else self._store.submit(ops)

    def _can_remove(self, placed: PlacedAnswer) -> bool:
        return isinstance(self._channels.get(placed.channel), Deletes | Edits)

    async def _is_done(self, session: Session, command: Command, kind: str) -> bool:
        """Return whether the command was carried out before."""
        c = t.inbox.c
        query = select(c.id).where(c.channel == _RECORDS, c.account == session.id)
        query = query.where(c.dedup_key == f"{kind}:{command.key}")
        return bool(command.key) and await self._store.read(
            lambda one: one.execute(query).first() is not None
        )


def drop_title(session: Session, hidden: Collection[str]) -> None:
    """Remove a title that no user gave, if no other user's message than the hidden ones is left."""
    left = [m for _, m in session.log if is_prompt(m) and m.id not in hidden]
    is_whole = len(session.log) == session.row.messages
    if is_whole and not left and session.row.titled != "user" and session.row.title:
        # It shows the first line of what is hidden, or what a model made of it.
        session.row.title, session.row.titled = "", None
        session.publish(SessionFrame(title=""))
        session.events.emit(SessionTitled(session.id, ""))


def _record(session: Session, command: Command, kind: Literal["undo", "redo"]) -> list[Op]:
    """Return the write that records that a command was carried out, for its repetitions."""
    done = InboundMessage(
        session=session.id,
        dedup_key=f"{kind}:{command.key}",
        address=Address(_RECORDS, session.id),
        sender=Sender(""),
    )
    return [Entry.of(_RECORDS, done, session.seq).accept("done")] if command.key else []


async def settled(session: Session, seq: int | None = None) -> None:
    """Wait shortly for the end of a turn whose answer is complete: readers see that before it ends.

    Not for a chat's own command, whose turn is the running one.
    """
    until = asyncio.get_running_loop().time() + _SETTLE_SECONDS
    while seq is None and asyncio.get_running_loop().time() < until:
        turn = session.turn
        if not (turn.committed if turn is not None else session.pending == 1):
            break
        await asyncio.sleep(0.01)


def _check_idle(session: Session, command: Command) -> None:
    # The turn of a chat's command is the only one of its session.
    if command.seq is None and (session.turn is not None or session.pending):
        raise InvalidStateError(BUSY)


def _check_redoable(session: Session, number: int, messages: Sequence[tuple[int, Message]]) -> None:
    """Raise InvalidStateError if the messages that were hidden at a number cannot be shown again."""
    if not messages:
        raise InvalidStateError("nothing was undone")
    if any(seq > number for seq, message in session.log if is_prompt(message)):
        raise InvalidStateError("nothing was undone since the last message")
    if messages[0][0] <= session.row.context_from:
        raise InvalidStateError("a new conversation or a summary began since")


def is_prompt(message: Message) -> bool:
    """Return whether a message is a user's and meant for the model."""
    return message.role == "user" and message.for_model and not _is_context(message)


def _is_context(message: Message) -> bool:
    return message.origin is not None and message.origin.context


def is_answer(message: Message) -> bool:
    """Return whether a message is a complete answer."""
    return message.role == "assistant" and message.metadata.stop_reason is not None


def _why_nothing(session: Session) -> str:
    asked = [seq for seq, message in session.log if is_prompt(message)]
    if not asked:
        return "there is nothing to undo"
    if any(seq > asked[-1] for seq, message in session.log if is_summary(message)):
        return "the last exchange is part of a summary"
    return "the last exchange belongs to the conversation before /new, or is too old"


def _last_exchange(session: Session, replaced: Collection[str] = ()) -> Exchange | None:
    """Return the last exchange that the model gets, with messages that it ``replaced``; None without one."""
    log, oldest = session.log, session.row.context_from
    last = next((at for at in range(len(log) - 1, -1, -1) if is_prompt(log[at][1])), None)
    if last is None or log[last][0] <= oldest:
        return None
    start = _first_of_batch(log, last, oldest)
    begin = next(at for at in range(start, last + 1) if not _is_context(log[at][1]))
    answers = (n for n in range(last + 1, len(log)) if is_answer(log[n][1]) and log[n][1].for_model)
    end = next(answers, last)
    exchanged = [m for _, m in log[begin : end + 1] if m.for_model]
    found = {m.id for m in exchanged if not _is_context(m) and not is_summary(m)}
    # Notices that it was late, or could not be delivered.
    beside = (*log[max(0, start - 1) : start], *log[end + 1 : end + 2])
    found |= {m.id for _, m in beside if m.custom_type == "notice"}
    messages = [m for _, m in log if m.id in found or m.id in replaced]
    return Exchange(
        messages=tuple(m.id for m in messages),
        answers=tuple(m.id for m in messages if is_answer(m)),
        prompts=tuple(m.id for _, m in log[begin : last + 1] if is_prompt(m)),
        answered_at=log[end][0],
    )


def _first_of_batch(log: Sequence[tuple[int, Message]], last: int, oldest: int) -> int:
    """Return the index of the first message that was answered together with the ``last`` prompt.

    Such messages follow one another, with context of their room between and before them.
    """
    start = last
    while start:
        seq, message = log[start - 1]
        if not _is_context(message) and not (is_prompt(message) and seq > oldest):
            break
        start -= 1
    return start


def _find_replaced(connection: Connection, hidden: Collection[str], prompts: Collection[str]) -> set[str]:
    """Return the ids of the earlier revisions of messages, among some hidden ones, and of their answers."""
    i = t.inbox.c
    query = select(i.id, i.answer_id, i.merged_into).where(i.id.in_(hidden), i.state == "merged")
    merged = {row.id: row for row in connection.execute(query)}
    found, newer = set[str](), set(prompts)
    while newer:
        older = [row for row in merged.values() if row.merged_into in newer]
        found |= {id_ for row in older for id_ in (row.id, row.answer_id)}
        newer = {row.id for row in older}
    return found


def _find_newest(connection: Connection, session: str, placed: Sequence[PlacedAnswer]) -> list[str | None]:
    return [find_newest(connection, session, one.channel, one.address) for one in placed]
