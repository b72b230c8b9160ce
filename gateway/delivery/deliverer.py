"""The lifecycle of an answer on its way to its chat: begin → show → commit → settle.

1. begin: load what earlier attempts placed.
2. show: show the growing answer, where the platform can. Nothing depends on it.
3. commit: write the answer and the intent to place it, in the transaction that stores the turn's messages.
4. settle: place the answer, then write that it is placed and settle its message.

A crash before 3 runs the turn again. A crash after 3 only repeats 4, which finds out what is placed already.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Self

import structlog

from gateway.contract.channel import PlacementRefused
from gateway.contract.messages import ErrorPart, Message
from gateway.delivery.live import show_live
from gateway.delivery.pages import AnswerPages
from gateway.session import Session, Turn
from gateway.store import Op
from gateway.store.inbox import Entry, Outcome
from gateway.store.outbox import Outbox, PendingAnswer

log = structlog.get_logger("trunkline.delivery")


class Deliverer:
    """Begins the deliveries of answers. Tasks that show running turns live in the given group."""

    def __init__(self, outbox: Outbox, tasks: asyncio.TaskGroup) -> None:
        self._outbox = outbox
        self._tasks = tasks

    def begin(self, session: Session, entry: Entry, *, repeated: bool = False) -> AnswerDelivery:
        """Begin the delivery of a message's answer. ``repeated``: an earlier attempt of this process may have
        placed pages."""
        first = not (repeated or entry.shown or entry.answered)
        return AnswerDelivery(self._outbox, self._tasks, session, entry, first=first)

    def intend(self, entry: Entry, answer: Message, newest: str | None = None) -> list[Op] | None:
        """Return the writes that record an answer to be placed later; None if its channel is sent nothing.

        ``newest`` is the newest known message of the chat.
        """
        channel = self._outbox.target_channel(entry)
        if channel is None:
            return None
        pages = AnswerPages(self._outbox, channel, entry)
        pages.newest = newest
        return pages.intend(answer)


@dataclass(eq=False)
class AnswerDelivery:
    """Delivers one answer to its chat, page by page, exactly once.

    It is a context manager that settles the message when its block ends without an error. If the block
    raises, the outbox keeps the state, and the next attempt continues from there. ``first``: no attempt
    placed anything before.
    """

    outbox: Outbox
    tasks: asyncio.TaskGroup
    session: Session
    entry: Entry
    first: bool

    def __post_init__(self) -> None:
        self._pages: AnswerPages | None = None
        """The pages of the answer; None if its channel follows the session and is sent nothing."""
        self._intended: PendingAnswer | None = None
        self._abandoned = False

    async def __aenter__(self) -> Self:
        outbox, entry = self.outbox, self.entry
        channel = outbox.target_channel(entry)
        if channel is None:
            return self
        pages = () if self.first else await outbox.read_pages(entry)
        if entry.untried:
            # The intent was written by this process and no call was made: there is nothing to look for.
            entry.untried = False
            for page in pages:
                page.uncertain = False
        if any(page.uncertain for page in pages):
            await outbox.wait_for_earlier_owner()
        self._pages = AnswerPages(outbox, channel, entry, pages)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self.settle()

    def show(self, turn: Turn) -> AbstractAsyncContextManager[None]:
        """Show the growing answer of a turn while the block runs."""
        return show_live(self.tasks, turn, self._pages)

    async def commit(
        self, turn: Turn, answer: Message, extra: Sequence[Op] = (), outcome: Outcome = "done"
    ) -> int:
        """Commit the answer with the messages of its turn, in one transaction with ``extra``.

        The same transaction holds the intent to place the answer, or settles the message if there is nothing
        to place. Returns the answer's sequence number in the session.
        """
        if self._pages is None:
            self.entry.closed = True
            ops = [self.entry.settle(outcome), *self.entry.settle_merged(), *self.entry.trail.finish()]
        else:
            ops = self._pages.intend(answer)
        seq, _ = (await turn.session.commit(turn, answer, [*ops, *extra]))[-1]
        if self._pages is not None:
            self._intended = PendingAnswer(answer, outcome)
        return seq

    async def announce(self) -> None:
        """Commit the newest content of an announced message to the log, with the intent to place it."""
        found = await self.outbox.read_announced(self.entry)
        if self._pages is not None:
            self._pages.newest = found.newest
        await self._commit_announced(found.message, in_log=found.in_log)

    async def _commit_announced(self, message: Message, *, in_log: bool) -> PendingAnswer | None:
        entry, session = self.entry, self.session
        message, entry.renewed = entry.renewed or message, None
        if self._pages is None:
            # Marked before the write: newer content from here on is written after it, and reopens the entry.
            entry.closed = True
            ops = [entry.settle("done"), *entry.trail.finish("answered")]
        else:
            self._intended = PendingAnswer(session.rendered(message), "done")
            ops = self._pages.intend(self._intended.answer)
        await (session.replace_message if in_log else session.add_message)(message, ops)
        return self._intended

    async def discard(self) -> list[Op]:
        """Delete what is shown of an unwanted answer. Returns the writes that forget it.

        The caller commits them afterwards: a crash in between repeats the deletion, and loses nothing.
        """
        if self._pages is not None:
            await self._pages.retract()
        return [self.outbox.forget(self.entry)]

    async def settle(self) -> None:
        """Place the committed answer, of this process or an earlier one, and settle its message.

        Does nothing for a message without an answer, and for one that was settled by its commit.
        """
        entry, pages = self.entry, self._pages
        if self._abandoned or entry.closed or (self._intended is None and not entry.answered):
            return
        if pages is None:
            log.warning("the channel was removed; the answer stays in the session", channel=entry.channel)
            return
        if pages.undone:
            await pages.remove()
            return
        intended = self._intended or await self.outbox.read_pending_answer(entry)
        # Set before the first call: if placing fails from here on, the message must not get a second answer.
        entry.answered = True
        try:
            await pages.place(intended.answer)
            while entry.renewed is not None:
                renewed = await self._commit_announced(entry.renewed, in_log=True)
                await pages.place((renewed or intended).answer)
            # No await from the check to the write: newer content is either placed above or reopens the entry.
            entry.closed = True
            await pages.settle(intended.outcome)
        except PlacementRefused as refused:
            await self.abandon(f"PlacementRefused: {refused}")

    async def abandon(self, reason: str) -> None:
        """Give up placing the committed answer: it becomes a dead letter, and the session shows a notice."""
        self._abandoned = self.entry.closed = True
        if self._pages is not None and self._pages.undone:
            await self._pages.settle_removed()
            return
        session, entry = self.session, self.entry
        log.error("could not deliver an answer", session=session.id, message=entry.id, reason=reason)
        notice = Message(
            id=entry.notice_id,
            session_id=session.id,
            role="assistant",
            parts=(ErrorPart("PlacementRefused", "This answer could not be delivered to the chat."),),
            custom_type="notice",
            for_model=False,
        )
        pages = self._pages
        entry.trail.add("placement", entry.channel, "refused", error=reason)
        ops = entry.give_up(reason, None) if pages is None else pages.give_up(reason)
        await session.add_message(notice, [*ops, *entry.trail.finish("dead", "PlacementRefused")])
