"""Questions: a component asks users in a chat, and gets one answer, also across restarts.

A question is durable before it is shown, and its answer before it is acknowledged. Open questions and answers
that their owners have not taken yet are in memory, too. A question of a turn belongs to the turn's message: a
turn that is repeated after a restart finds it again instead of asking twice, until the message is answered.
Any other question is answered to the handler of its owner. The latest 200 that ended stay in the database,
for the list of what was decided; those of a deleted session or message do not.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from contextvars import Context
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection, RowMapping, or_, select

from gateway.access.people import THE_OWNER, UserRef
from gateway.access.policy import Access
from gateway.access.questions.held import (
    ACKNOWLEDGE,
    CLOSE,
    DROP_OF_MESSAGE,
    SHOWN,
    Held,
    frame_of,
    masked,
    read_held,
)
from gateway.backoff import Backoff
from gateway.contract.channel import (
    FollowsSession,
    InboundMessage,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    PlacementUncertain,
    Sender,
)
from gateway.contract.errors import (
    CATCHABLE,
    InvalidRequestError,
    NotFoundError,
    TrunklineError,
    UnauthorizedError,
    is_cancellation_requested,
)
from gateway.contract.messages import now_ms
from gateway.contract.questions import (
    Answer,
    ApprovalRequest,
    AsksQuestions,
    Question,
    ShowsAnswers,
)
from gateway.extensions.deadlines import paused
from gateway.extensions.registry import ChannelRegistry
from gateway.session import Session, Sessions, Turn, calling, running
from gateway.session.frames import ApprovalResolved
from gateway.session.redaction import Redactor
from gateway.store import Inserted, Op, Store
from gateway.store import schema as t
from gateway.store.inbox import Entry
from gateway.store.writes import audit_op
from gateway.trail.deletion import DROP_QUESTION

log = structlog.get_logger("trunkline.questions")

SERVER = "api"
"""The channel name of REST messages; their clients can follow the session and answer."""

Handler = Callable[[Answer], Awaitable[None]]
Effects = Callable[["Held", Answer], list[Op]]

_DECIDED = 200
_RETRY_SECONDS = 1.0
"""Delay before showing a question again when the platform defers it without a delay."""
_DELIVERY = Backoff(0.5, 60, jitter=-0.5)
"""Random, because limits and outages of platforms recur each minute: an even pause can meet all of them."""
_MAX_UNEXPECTED = 5
"""Errors of a channel, of a kind that the contract does not name, after which nothing more is tried."""
_CLOSED: dict[str, str] = {
    "answered": "this question was answered already",
    "expired": "this question has expired",
    "withdrawn": "this question was withdrawn",
}


class _Attempts:
    """The attempts to show one thing on a platform, which count by how they failed."""

    def __init__(self) -> None:
        self._failures = 0
        self._unexpected = 0

    def delay(self, error: Exception, question: Question) -> float | None:
        """Return the delay in seconds until the next attempt after one that failed, or None for no other."""
        if isinstance(error, PlacementDeferred):
            # A rate limit is not a failure: it neither counts nor lengthens the backoff.
            return error.seconds or _RETRY_SECONDS
        if isinstance(error, PlacementUncertain):
            self._failures += 1
            return _DELIVERY.pause(self._failures)
        log.exception("a channel failed to show a question or its end", session=question.session)
        self._unexpected += 1
        return _DELIVERY.pause(self._unexpected) if self._unexpected <= _MAX_UNEXPECTED else None


class Claim:
    """An answer to one open question. It excludes other answers, and counts once ``ops`` are committed."""

    def __init__(self, questions: Questions, held: Held, answer: Answer, ops: list[Op]) -> None:
        self.ops = ops
        self.held = held
        self.answer = answer
        self._questions = questions

    def follow(self, committed: asyncio.Future[Inserted]) -> None:
        """Let the answer count as soon as this commit succeeds."""
        committed.add_done_callback(self._committed)

    def _committed(self, committed: asyncio.Future[Inserted]) -> None:
        self._questions.ended(self.held, self.answer, committed)


class Questions:
    """All open questions. Call ``load`` before the first channel runs; ``run`` shows and delivers."""

    def __init__(
        self, store: Store, access: Access, channels: ChannelRegistry, sessions: Sessions, redactor: Redactor
    ) -> None:
        self.handler_of: Callable[[str], Handler | None] = lambda _owner: None
        """Returns the handler for the answers to an owner's questions."""
        self.handlers: dict[str, Handler] = {}
        """The handlers of the gateway's own owners."""
        self.effects: dict[str, Effects] = {}
        """For each owner, what is committed together with an answer."""
        self.announcing: Callable[[str], asyncio.Task[None] | None] = lambda _session: None
        """Returns the task that delivers the announcements of a session; questions are shown after them."""
        self._store = store
        self.access = access
        self._channels = channels
        self._sessions = sessions
        self._redactor = redactor
        self.decided = deque[Held](maxlen=_DECIDED)
        """The latest questions that ended, the oldest first; also those of earlier processes."""
        self._held: dict[str, Held] = {}
        self._unclosed: list[Held] = []
        """Questions that nothing waits for, and that the chat still shows as open when ``run`` begins."""
        self._tasks: asyncio.TaskGroup | None = None
        self._stopping = False
        self._waiting: list[asyncio.Task[Any]] = []
        """The workers of the turns that wait, one for each question: a turn may wait for several."""

    async def load(self) -> None:
        """Read an earlier process's questions that are open, not closed, or whose answers were not taken."""
        pending = or_(t.question.c.acknowledged == 0, t.question.c.closed == 0)
        query = select(t.question).where(pending).order_by(t.question.c.created_at)

        def read(connection: Connection) -> list[RowMapping]:
            return list(connection.execute(query).mappings())

        for row in await self._store.read(read):
            held = read_held(row)
            if row["acknowledged"]:
                self._unclosed.append(held)
                continue
            self._held[held.question.id] = held
            if held.answer is None:
                self._arm(held)
        await self._load_decided()

    async def _load_decided(self) -> None:
        """Read the latest questions that ended, and delete the rows of earlier ones that nothing needs."""
        q = t.question.c
        ended = select(t.question).where(q.state != "open").order_by(q.settled_at.desc())
        spent = select(q.id).where(q.acknowledged > 0, q.closed > 0, q.inbox_id == "", q.subject != "")

        def read(connection: Connection) -> tuple[list[RowMapping], list[str]]:
            rows = list(connection.execute(ended.limit(_DECIDED)).mappings())
            if len(rows) < _DECIDED:
                return rows, []
            old = spent.where(q.settled_at < rows[-1]["settled_at"])
            return rows, list(connection.execute(old).scalars())

        rows, old = await self._store.read(read)
        known = {held.question.id: held for held in (*self._held.values(), *self._unclosed)}
        ended_ones = [known.get(row["id"]) or read_held(row) for row in reversed(rows)]
        self.decided.extend(held for held in ended_ones if not held.concealed)
        old += [held.question.id for held in ended_ones if held.concealed and held.spent and held.closed]
        if old:
            await self._store.write(*((DROP_QUESTION, (each,)) for each in old))

    def forget_session(self, session: str) -> None:
        """Forget the decided questions of a session; their rows were deleted with it."""
        self._keep_decided(lambda held: held.question.session != session)

    def conceal(self, channel: str, account: str, dedup_key: str, entries: Iterable[Entry]) -> list[Op]:
        """Remove the texts of the questions of a message that its sender deleted.

        ``entries`` are those of the message that are not settled. Returns the writes for their questions; the
        rows of earlier ones are deleted with the message.
        """
        ids = {entry.id for entry in entries}
        ops = [held.conceal() for held in self._held.values() if held.inbox_id in ids]
        if self._tasks is not None and self.decided:
            self._tasks.create_task(self._forget_message(channel, account, dedup_key), context=Context())
        return ops

    async def _forget_message(self, channel: str, account: str, dedup_key: str) -> None:
        i = t.inbox.c
        query = select(i.id).where(i.channel == channel, i.account == account, i.dedup_key == dedup_key)
        gone = set(await self._store.read(lambda connection: connection.execute(query).scalars().all()))
        self._keep_decided(lambda held: held.inbox_id not in gone)

    def _keep_decided(self, is_kept: Callable[[Held], bool]) -> None:
        for held in [held for held in self.decided if not is_kept(held)]:
            self.decided.remove(held)

    async def run(self) -> None:
        """Show questions and deliver answers, until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for held in (*self._held.values(), *self._unclosed):
                    if held.answer is None and held.shown is None:
                        held.showing = self._spawn(self._show, held)
                    elif held.answer is not None and not held.closed:
                        # The process may have ended before the buttons were removed.
                        held.closing = self._spawn(self._close, held)
                self._unclosed.clear()
                self.deliver()
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None

    def stop(self) -> None:
        """Suspend the turns that wait for a user; after a restart they find their questions again."""
        self._stopping = True
        for worker in set(self._waiting):
            worker.cancel()

    def opened(self, session: Session) -> None:
        """Show the open questions of a session that was loaded just now."""
        for held in self._held.values():
            if held.question.session == session.id and held.answer is None:
                session.asked[held.question.id], held.seq = frame_of(held), session.seq

    def deliver(self) -> None:
        """Deliver the answers whose owners have registered a handler."""
        for held in self._held.values():
            if held.answer is not None and not held.inbox_id and not held.delivering:
                self._spawn(self._deliver, held)

    def can_ask(self, turn: Turn) -> bool:
        """Return whether some user can see a question of this turn and answer it."""
        if turn.root.session.has_viewers:
            return True
        name = turn.address.channel
        if turn.entry.inbound.unattended:
            return False
        return name == SERVER or isinstance(self._channels.get(name), AsksQuestions | FollowsSession)

    async def ask(
        self, question: Question, *, inbox_id: str = "", subject: str = "", ops: Sequence[Op] = ()
    ) -> Held:
        """Store a question and show it. An owner's key asks once: later calls return the first question.

        ``ops`` are committed with a new question.
        """
        named = (question.owner, question.key)
        known = (held for held in self._held.values() if (held.question.owner, held.question.key) == named)
        held = next(known, None)
        if held is None:
            held = Held(masked(question, self._redactor), inbox_id, subject)
            held.waited_for = bool(inbox_id)
            self._held[question.id] = held
            held.stored = self._store.submit([*ops, held.put()])
            held.stored.add_done_callback(partial(self._stored, held))
        try:
            if held.stored is not None and held.question.id not in await asyncio.shield(held.stored):
                return await self._earlier(question)
        except asyncio.CancelledError:
            if inbox_id and not self._stopping:
                self._discard(held)
            raise
        return held

    async def wait(self, held: Held) -> Answer:
        """Wait for the answer, within a turn. A turn that is stopped withdraws its question."""
        turn, worker = running.get(), asyncio.current_task()
        if turn is not None:
            turn.questions.asked = True
            worker = turn.worker
        held.waited_for = True
        if worker is not None:
            self._waiting.append(worker)
            if self._stopping:
                worker.cancel()
        try:
            with paused(), turn.waiting() if turn is not None else nullcontext():
                answer = await asyncio.shield(held.settled)
                if held.closing is not None:
                    await asyncio.wait([held.closing])
        except asyncio.CancelledError:
            if not self._stopping:
                self._discard(held)
            raise
        finally:
            held.waited_for = False
            if worker is not None:
                self._waiting.remove(worker)
        return answer

    async def settle(
        self,
        question_id: str,
        values: Sequence[str],
        *,
        session: str | None = None,
        channel: str | None = None,
        user: str | None = None,
        shown: Placed | None = None,
        by: UserRef = THE_OWNER,
    ) -> Answer:
        """Answer a question; return once that is durable.

        ``user`` is the id of the answering user of ``channel``; without both it is ``by``, an admin of the
        gateway. ``shown`` is the place of the pressed button. Raises NotFoundError if the question is not
        open (in this session), UnauthorizedError if this user may not answer it or a channel names none, and
        InvalidRequestError for values that it does not offer.
        """
        if channel is not None and user is None:
            raise UnauthorizedError("a channel has to name the user who answers")
        held = self._held.get(question_id)
        if held is None or not held.is_open or session not in (None, held.question.session):
            raise await self._why_closed(question_id, session, shown)
        question = held.question
        if user is not None:
            if channel not in (None, question.address.channel) or not await self._may_answer(question, user):
                raise UnauthorizedError(_ONLY[isinstance(question, ApprovalRequest)])
            by = UserRef(question.address.channel, user)
        if shown is not None:
            self._note_place(held, shown)
        if user is not None:
            await self._confirm(question, user)
        if not held.is_open:
            raise await self._why_closed(question_id, session)
        if not question.accepts(values):
            raise InvalidRequestError(_refusal(question, values))
        claim = self._claim(held, values, by)
        committed = self._store.submit(claim.ops)
        claim.follow(committed)
        await asyncio.shield(committed)
        if held.answer is not None and held.answer.state != "answered":
            raise NotFoundError("this question is closed: its turn was stopped")
        return claim.answer

    def get(self, question_id: str) -> Question | None:
        """Return an open question, or None."""
        held = self._held.get(question_id)
        return held.question if held is not None and held.is_open else None

    def all_open(self) -> list[Held]:
        """Return the open questions; those of a message that waits for the answer are ``waited_for``."""
        return [held for held in self._held.values() if held.is_open]

    def find(self, question_id: str) -> Held | None:
        """Return a question that is open, or whose owner has not taken its end yet."""
        return self._held.get(question_id)

    def find_open(self, owner: str, subject: str) -> Held | None:
        """Return the open question of an owner about a subject, or None."""
        return next(
            (
                held
                for held in self._held.values()
                if held.is_open and held.question.owner == owner and held.subject == subject
            ),
            None,
        )

    def may_answer(self, channel: str, session: Session, message: InboundMessage) -> bool:
        """Return whether a typed message is the answer to its sender's question."""
        return self._answered_by(channel, session, message) is not None

    def claim(self, session: Session, entry: Entry) -> Claim | None:
        """Answer the sender's question if the text is an answer to it; commit the returned claim."""
        found = self._answered_by(entry.channel, session, entry.inbound)
        return None if found is None else self._claim(*found, UserRef(entry.channel, entry.inbound.sender.id))

    async def withdraw(self, question_id: str, owner: str | None = None) -> bool:
        """Close an open question of its owner without an answer. Returns, once durable, whether it was open.

        Without ``owner`` the owner gets that end as it gets an answer.
        """
        held = self._held.get(question_id)
        if held is None or not held.is_open or owner not in (None, held.question.owner):
            return False
        held.dropped = owner is not None
        await asyncio.shield(self._end(held, held.end("withdrawn")))
        return True

    def _end(self, held: Held, answer: Answer) -> asyncio.Future[Inserted]:
        """Store the end of a question that was not answered."""
        held.taken = True
        ops = [held.settle(answer, now_ms() if held.dropped else 0)]
        if held.inbox_id and answer.state == "withdrawn":
            ops.append(self._spend(held))
        committed = self._store.submit(ops)
        committed.add_done_callback(partial(self.ended, held, answer))
        return committed

    def count(self, owner: str) -> int:
        """Return the number of an owner's questions that are open or whose answers it has not taken."""
        return sum(held.question.owner == owner for held in self._held.values())

    def announce_again(self, held: Held, session: Session) -> None:
        """Show an open question to the readers of a session again, because its turn is repeated."""
        if held.question.id in session.asked:
            session.publish(session.asked[held.question.id])

    def of_message(self, inbox_id: str) -> list[Held]:
        """Return the questions of a message's turn."""
        return [held for held in self._held.values() if held.inbox_id == inbox_id]

    def forget(self, inbox_id: str) -> Op:
        """Close all questions of a message's turn. Returns the write after which the turn finds none."""
        for held in self.of_message(inbox_id):
            self._discard(held)
        return DROP_OF_MESSAGE, (inbox_id,)

    def used(self, turn: Turn) -> list[Op]:
        """Return the writes that delete the questions that the current call used; commit them with its
        result.
        """
        return [self._take(one) for one in turn.questions.unrecorded.pop(calling.get(), ())]

    async def drop(self, question_id: str) -> None:
        """Delete a question whose answer was used."""
        await self._store.write(self._take(question_id))

    def _take(self, question_id: str) -> Op:
        held = self._held.pop(question_id, None)
        return (DROP_QUESTION, (question_id,)) if held is None else self._spend(held)

    def _spend(self, held: Held) -> Op:
        """Return the write after which a turn's question is only one of those that were decided."""
        channel = self._channels.get(held.question.address.channel)
        return held.spend(closed=held.closed or not isinstance(channel, ShowsAnswers))

    def finish(self, held: Held, answer: Answer) -> None:
        """End a question, after the commit of its end."""
        if held.answer is not None:
            return
        held.taken, held.answer, held.ended_at = True, answer, now_ms()
        if len(self.decided) == _DECIDED and self.decided[0].spent and self.decided[0].closed:
            self._write_later((DROP_QUESTION, (self.decided[0].question.id,)))
        if not held.concealed:
            self.decided.append(held)
        if held.timer is not None:
            held.timer.cancel()
        question = held.question
        session = self._sessions.get(question.session)
        if session is not None and session.asked.pop(question.id, None) is not None:
            shown = answer.outcome
            if answer.values and not isinstance(question, ApprovalRequest):
                shown = question.labels(answer.values)
            session.publish(ApprovalResolved(question.id, shown))
        held.settled.set_result(answer)
        held.closing = self._spawn(self._close, held)
        if held.dropped or (held.inbox_id and answer.state == "withdrawn"):
            self._held.pop(question.id, None)
            if self._tasks is None:
                self._unclosed.append(held)  # withdrawn while the gateway starts
        elif not held.inbox_id:
            self._spawn(self._deliver, held)

    def ended(self, held: Held, answer: Answer, committed: asyncio.Future[Inserted]) -> None:
        """End a question if its end was committed, and accept answers again if it could not be stored."""
        if committed.cancelled() or committed.exception() is not None:
            held.taken = held.spent = False
            self._arm(held)
        else:
            self.finish(held, answer)

    def _stored(self, held: Held, stored: asyncio.Future[Inserted]) -> None:
        """Show a question as soon as it is durable."""
        if stored.cancelled() or stored.exception() or held.question.id not in stored.result():
            self._held.pop(held.question.id, None)
        elif held.is_open:
            self._arm(held)
            session = self._sessions.get(held.question.session)
            if session is not None:
                self._announce(held, session)
            held.showing = self._spawn(self._show, held)

    async def _earlier(self, question: Question) -> Held:
        """Return a question that ended before, in which an owner's key was asked."""
        row = await self._row(t.question.c.owner == question.owner, t.question.c.key == question.key)
        if row is None:
            raise InvalidRequestError(f"the id {question.id!r} of a question is taken; leave it out")
        return read_held(row)

    async def _row(self, *which: Any) -> RowMapping | None:
        query = select(t.question).where(*which)
        return await self._store.read(lambda connection: connection.execute(query).mappings().first())

    async def _why_closed(
        self, question_id: str, session: str | None, pressed: Placed | None = None
    ) -> NotFoundError:
        """Return why a question takes no answer. A button that was pressed all the same is removed, by the
        channel if the question is unknown.
        """
        row = await self._row(t.question.c.id == question_id)
        if row is None or session not in (None, read_held(row).question.session):
            return NotFoundError("this question is not open any more", known=False)
        if pressed is not None and row["state"] != "open" and question_id not in self._held:
            ended = read_held(row)
            ended.shown = ended.shown or pressed
            self._spawn(self._close, ended)
        return NotFoundError(_CLOSED.get(row["state"], _CLOSED["answered"]))

    async def _may_answer(self, question: Question, user: str) -> bool:
        """Return whether a user may answer a question now; the platform is asked for the groups."""
        address = question.address
        if user not in question.answerers:
            asked = InboundMessage(
                session=question.session, dedup_key=question.id, address=address, sender=Sender(user)
            )
            await self.access.confirm(address.channel, asked)
        return self._is_answerer(question, address.channel, user)

    def _is_answerer(self, question: Question, channel: str, user: str) -> bool:
        policy = self.access.policy
        as_admin = question.admins and policy.is_admin(UserRef(channel, user))
        return as_admin or policy.may_answer(channel, user, question.answerers)

    async def _confirm(self, question: Question, user: str) -> None:
        """Refuse a user who may not use the bot any more."""
        address = question.address
        asked = InboundMessage(
            session=question.session,
            dedup_key=question.id,
            address=address,
            sender=Sender(user),
            role=question.role,
        )
        await self.access.confirm(address.channel, asked)
        if self.access.policy.role(address.channel, asked) is None:
            raise UnauthorizedError("this user may not use the bot any more")

    def _claim(self, held: Held, values: Sequence[str], by: UserRef) -> Claim:
        """Reserve a question for an answer, with the writes that make it durable."""
        held.taken = True
        answer = held.end("answered", values, str(by))
        question = held.question
        effects = self.effects.get(question.owner)
        if effects is None:
            shown = self._redactor.redact_text(question.labels(values))
            ops = [audit_op(str(by), "question.answer", question.owner, f"{question.title}: {shown}")]
        else:
            ops = effects(held, answer)
        return Claim(self, held, answer, [held.settle(answer), *ops])

    def _answered_by(
        self, channel: str, session: Session, message: InboundMessage
    ) -> tuple[Held, tuple[str, ...]] | None:
        """Return the question that a message answers, with its answer.

        A reply answers the question it replies to. Any other text answers the only open question of its
        session in the place where it was written, unless it quotes or replies to something else.
        """
        if not self._held or message.revises is not None or message.parts or message.audio is not None:
            return None
        waiting = [held for held in self._held.values() if self._can_answer(held, channel, session, message)]
        held = next((one for one in waiting if _is_reply(one, message)), None)
        if held is None and _is_plain(message):
            here = [one for one in waiting if self._is_beside(one, message)]
            # One that was shown too late for this message counts, too: its place may be known late.
            held = here[0] if len(here) == 1 and self._was_seen(here[0], message) else None
        values = None if held is None else held.question.read(message.text)
        if held is None or values is None:
            return None
        return held, ("once",) if values == ("always",) and self._lacks_proof(channel) else values

    def _can_answer(self, held: Held, channel: str, session: Session, message: InboundMessage) -> bool:
        """Return whether the sender of a message may answer an open question of its session there."""
        question = held.question
        return (
            held.is_open
            and question.session == session.id
            and question.address.channel == channel
            and self._is_answerer(question, channel, message.sender.id)
            and self._is_near(held, message)
        )

    def _is_near(self, held: Held, message: InboundMessage) -> bool:
        """Return whether a question was asked in the chat of a message, or is shown to all of its session."""
        asked, place = held.question.address, message.address
        return self._is_followed(held) or (place.account, place.chat) == (asked.account, asked.chat)

    def _is_beside(self, held: Held, message: InboundMessage) -> bool:
        """Return whether a question of the same chat was asked in the thread of a message."""
        return self._is_followed(held) or held.question.address.thread == message.written_in

    def _is_followed(self, held: Held) -> bool:
        return isinstance(self._channels.get(held.question.address.channel), FollowsSession)

    def _lacks_proof(self, channel: str) -> bool:
        """Return whether a typed message proves nothing about its writer.

        Messages to the gateway itself may come with a cookie that is 30 days old. An "always" needs a proof,
        which only its button asks for, so that the word means once.
        """
        return channel == SERVER or isinstance(self._channels.get(channel), FollowsSession)

    def _was_seen(self, held: Held, message: InboundMessage) -> bool:
        """Return whether the sender could see the question when writing the message.

        The platform's own order proves that. Where it is unknown, no message counts.
        """
        if self._is_followed(held):
            return message.seen >= held.seq > 0
        return held.shown is not None and message.order > held.shown.order > 0

    def _arm(self, held: Held) -> None:
        """Let the question end when its time is up."""
        loop = asyncio.get_running_loop()
        held.timer = loop.call_at(max(loop.time(), held.expires), self._expire, held)

    def _expire(self, held: Held) -> None:
        # An answer that is being stored when the time is up still counts.
        if held.is_open:
            self._end(held, held.end("expired"))

    def _discard(self, held: Held) -> None:
        """Close a question of a turn that does not need it any more."""
        held.taken = True
        end = held.end("withdrawn")
        settled = [held.settle(end)] if held.answer is None else []
        self._write_later(*settled, self._take(held.question.id))
        self.finish(held, end)

    def _announce(self, held: Held, session: Session) -> None:
        frame = frame_of(held)
        session.asked[held.question.id] = frame
        held.seq = session.publish(frame)

    def _spawn(
        self, work: Callable[[Held], Coroutine[Any, Any, None]], held: Held
    ) -> asyncio.Task[None] | None:
        """Start work on a question; before ``run`` and at shutdown it is left for the next ``run``."""
        # In its own context: the turn in which the question was asked may have ended.
        return None if self._tasks is None else self._tasks.create_task(work(held), context=Context())

    async def _show(self, held: Held) -> None:
        """Show a question through its channel, again until the platform accepts or refuses it."""
        # A turn that waits for its own question must not wait for an announcement after it.
        while not held.inbox_id and (worker := self.announcing(held.question.session)) is not None:
            await asyncio.wait([worker, held.settled], return_when=asyncio.FIRST_COMPLETED)
            if held.settled.done():
                return
        attempts, seconds = _Attempts(), 0.0
        while seconds is not None:
            if seconds:
                await asyncio.wait([held.settled], timeout=seconds)
            # A button that was pressed shows that the platform has the question.
            if held.settled.done() or held.shown is not None:
                return
            seconds = await self._show_once(held, attempts)

    async def _show_once(self, held: Held, attempts: _Attempts) -> float | None:
        """Show a question through its channel. Returns the delay in seconds until it is shown again."""
        question = held.question
        channel = self._channels.get(question.address.channel)
        if not isinstance(channel, AsksQuestions):
            return None
        try:
            shown = await channel.ask_question(question)
        except PlacementRefused as refused:
            log.warning(
                "the channel refused to show a question", session=question.session, reason=str(refused)
            )
            session = self._sessions.get(question.session)
            if held.is_open and not (session is not None and session.has_viewers):
                held.unshown = True
                await self.withdraw(question.id)
        except Exception as error:  # noqa: BLE001 - a channel is third-party code
            # Then it may be shown twice, which is better than not at all.
            return attempts.delay(error, question)
        else:
            if shown is not None:
                self._note_place(held, shown)
        return None

    def _note_place(self, held: Held, shown: Placed) -> None:
        if held.shown is not None and held.shown.platform_id == shown.platform_id:
            return
        held.place(shown)
        place = json.dumps([shown.platform_id, shown.order])
        self._write_later((SHOWN, (held.question.id, place)))

    def _write_later(self, *ops: Op) -> None:
        # The writer logs its failures. The exception is retrieved only to keep asyncio from logging it.
        self._store.submit(ops).add_done_callback(lambda done: done.exception())

    async def _close(self, held: Held, attempts: _Attempts | None = None, seconds: float = 0.0) -> None:
        """Show the end of a question through its channel; what is not accepted at once is repeated later."""
        attempts = attempts or _Attempts()
        if held.showing is not None:
            # Its place is known only then.
            await asyncio.wait([held.showing])
        await asyncio.sleep(seconds)
        again = await self._close_once(held, attempts)
        if again is not None:
            # In its own task: the turn that asked continues after the first attempt.
            self._spawn(partial(self._close, attempts=attempts, seconds=again), held)
            return
        held.closed = True
        if held.spent and held.concealed:
            self._write_later((DROP_QUESTION, (held.question.id,)))
        elif held.spent or not held.inbox_id:
            self._write_later((CLOSE, (held.question.id, 1)))

    async def _close_once(self, held: Held, attempts: _Attempts) -> float | None:
        """Show the end of a question. Returns the delay in seconds until it is tried again."""
        channel = self._channels.get(held.question.address.channel)
        if isinstance(channel, ShowsAnswers) and held.answer is not None:
            try:
                while held.earlier:
                    await channel.question_closed(held.question, held.answer, held.earlier[-1])
                    held.earlier.pop()
                await channel.question_closed(held.question, held.answer, held.shown)
            except PlacementRefused as refused:
                log.info("the channel refused to show an answer", reason=str(refused))
            except Exception as error:  # noqa: BLE001 - a channel is third-party code
                return attempts.delay(error, held.question)
        return None

    async def _deliver(self, held: Held) -> None:
        """Call the owner's handler until it returns, then keep the answer no longer."""
        handler = self._handler_of(held.question.owner)
        if handler is None or held.delivering or held.answer is None:
            return
        held.delivering = True
        if held.closing is not None:
            await asyncio.wait([held.closing])
        failures = 0
        while handler is not None:
            try:
                await handler(held.answer)
                break
            except CATCHABLE as error:
                if is_cancellation_requested(error):
                    raise
                failures += 1
                if isinstance(error, TrunklineError) and error.retryable:
                    log.info("an owner takes an answer later", owner=held.question.owner, reason=str(error))
                else:
                    log.exception("an owner failed to take an answer", owner=held.question.owner)
            await asyncio.sleep(_DELIVERY.pause(failures))
            handler = self._handler_of(held.question.owner)
        held.delivering = False
        if handler is not None:
            await self._store.write((ACKNOWLEDGE, (held.question.id, now_ms())))
            self._held.pop(held.question.id, None)

    def _handler_of(self, owner: str) -> Handler | None:
        return self.handlers.get(owner) or self.handler_of(owner)


def _is_plain(message: InboundMessage) -> bool:
    """Return whether a message points at no other message; on Slack each one in a thread is a reply to it."""
    if message.in_reply_to is None:
        return not message.quotes
    in_thread = message.in_reply_to == message.written_in
    return in_thread and all(quote.kind == "reply" for quote in message.quotes)


def _is_reply(held: Held, message: InboundMessage) -> bool:
    return held.shown is not None and held.shown.platform_id == message.in_reply_to


_ONLY = {
    True: "only the user whose message requested this may decide it",
    False: "only the user who was asked may answer this question",
}


def _refusal(question: Question, values: Iterable[str]) -> str:
    given = ", ".join(repr(one) for one in values)
    offered = " or ".join(f'"{choice.value}"' for choice in question.choices)
    return f"{given} is not offered here; answer {offered or 'with a text'}".replace("'", '"')
