"""Replays: messages without an answer are answered after their cause is removed, after a dry run.

Dead letters are dropped in the same way. A plan is the stored list of a dry run. It is bound to the one who
asked for it, and holds for ten minutes. Its confirmation answers or drops each message that still is as the
plan saw it, so a second click, another operator or a repeated request changes nothing. At most five
conversations run at once, each in its order.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby
from typing import Literal

import structlog
from msgspec import UNSET, Struct, UnsetType, field
from sqlalchemy import Connection, func, select

from gateway.access import Access
from gateway.contract.channel import LimitsReplies
from gateway.contract.errors import CATCHABLE, InvalidStateError, NotFoundError, is_cancellation_requested
from gateway.contract.messages import ToolResultPart, now_ms
from gateway.extensions.registry import ChannelRegistry
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import audit_op
from gateway.why.causes import is_undelivered
from gateway.why.dead_letters import MOST_CHOSEN, DeadLetter, DeadLetters, LetterChoice
from gateway.why.records import Records, read_records
from gateway.why.same_cause import find_same_cause
from gateway.why.words import ENGLISH, Words

log = structlog.get_logger("trunkline.replays")

PLAN_MS = 600_000
"""Time that a plan can be confirmed."""
REPLY_WINDOW_MS = 86_400_000
"""Age from which an answer would surprise its reader, and which has to be confirmed by itself, where the
platform has no reply window of its own."""
MOST_AT_ONCE = 5
_MOST_PLANS = 200
MOST_REPLAYED = 1_000
"""Dead letters that one plan replays at most, the oldest ones."""
_READ_AT_ONCE = 50
_LONGEST_TEXT = 120
"""Characters of a message in a plan."""
_LONGEST_TURN = 600.0
"""Seconds that the next message of a plan waits for a turn, which may wait for a person."""
_PRICED_CALLS = 200
"""Newest model calls whose mean cost is the estimate for a message."""


class PlannedMessage(Struct, frozen=True, omit_defaults=True):
    """A message of a plan with the beginning of its text, or an unreadable event, which has no session.

    ``reason`` says why it will be left alone, if it is not ``ok``.
    """

    id: str
    session: str
    at: int
    ok: bool
    reason: str | UnsetType = UNSET
    text: str = ""


Action = Literal["replay", "drop"]


class ReplayPlan(Struct, frozen=True):
    """A dry run: what its confirmation would answer or drop, in that order, and the estimated cost of it.

    ``expires_at`` is milliseconds; the cost is in 10⁻⁹ US dollars, null if no price is known. ``omitted``
    dead letters were too many for one plan.
    """

    plan: str
    expires_at: int
    messages: tuple[PlannedMessage, ...]
    estimated_nano_usd: int | None
    action: Action = "replay"
    omitted: int = 0


class ReplayState(Struct, frozen=True):
    """The state of a confirmed plan: messages that are answered again, that had changed, and that wait.

    ``dropped`` counts those that are dropped, if that was planned.
    """

    plan: str
    state: Literal["running", "done"]
    replayed: int
    skipped: int
    left: int
    dropped: int = 0


class _Plan(Struct):
    """A stored plan. ``revisions`` are those of the messages to answer or drop, in order, by id."""

    owner: str
    report: ReplayPlan
    revisions: dict[str, str]
    confirmed: bool = False
    done: int = 0
    skipped: set[str] = field(default_factory=set[str])


class Replays:
    """Plans replays and carries them out. ``settling`` returns the task that answers a session's messages."""

    def __init__(
        self,
        store: Store,
        access: Access,
        letters: DeadLetters,
        channels: ChannelRegistry,
        settling: Callable[[str], asyncio.Task[None] | None],
    ) -> None:
        self._store = store
        self._access = access
        self._letters = letters
        self._channels = channels
        self._settling = settling
        self._plans: dict[str, _Plan] = {}
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Carry out confirmed plans until cancelled; what is left of them then stays without an answer."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await asyncio.get_running_loop().create_future()
        finally:
            self._tasks = None

    async def plan_cause(
        self, key: str, owner: str, *, old: bool = False, words: Words = ENGLISH
    ) -> ReplayPlan:
        """Plan the replay of all messages with a cause. Raises NotFoundError if there are none."""
        now = now_ms()
        found = await self._store.read(lambda c: find_same_cause(c, key, now))
        if not found:
            raise NotFoundError(f"no message is without an answer for the cause {key!r}")
        return await self._plan(found, owner, words, old=old)

    async def plan_message(
        self, message_id: str, owner: str, *, old: bool = False, words: Words = ENGLISH
    ) -> ReplayPlan:
        """Plan the replay of one message. Raises NotFoundError."""
        found = await self._store.read(lambda c: read_records(c, message_id))
        if found is None:
            raise NotFoundError(f"no accepted message has the id {message_id!r}")
        return await self._plan([found], owner, words, old=old)

    async def plan_letters(
        self,
        choice: LetterChoice,
        owner: str,
        action: Action,
        *,
        old: bool = False,
        words: Words = ENGLISH,
    ) -> ReplayPlan:
        """Plan to replay or to drop dead letters. Raises NotFoundError if there are none."""
        most = MOST_REPLAYED if action == "replay" else MOST_CHOSEN
        letters, omitted = await self._letters.choose(choice, most)
        if not letters:
            raise NotFoundError("no dead letter is chosen; they were replayed or dropped in the meantime")
        if action == "drop":
            return self._plan_drop(letters, owner, omitted)
        ids, found = [one.id for one in letters if one.kind == "message"], list[Records]()
        for start in range(0, len(ids), _READ_AT_ONCE):
            # In pieces, so that other readers have their turn.
            chunk = ids[start : start + _READ_AT_ONCE]
            read = await self._store.read(lambda c, chunk=chunk: [read_records(c, one) for one in chunk])
            found += [one for one in read if one is not None]
        events = [planned(one, words("plan.unreadable")) for one in letters if one.kind == "event"]
        return await self._plan(found, owner, words, old=old, also=events, omitted=omitted)

    def confirm(self, plan_id: str, owner: str, by: str) -> ReplayState:
        """Carry out a plan, once, and return its state. Only the one who asked for it can confirm it.

        Raises NotFoundError for a plan that is unknown, expired, or of another owner.
        """
        plan = self._plans.get(plan_id)
        expired = plan is not None and not plan.confirmed and plan.report.expires_at < now_ms()
        if plan is None or plan.owner != owner or expired:
            raise NotFoundError(
                "this plan is unknown, has expired, or was made before the gateway started; ask for a new one"
            )
        if self._tasks is None:
            raise InvalidStateError("the gateway is stopping")
        if not plan.confirmed:
            plan.confirmed = True
            chosen = [message for message in plan.report.messages if message.ok]
            if plan.report.action == "drop":
                self._tasks.create_task(self._drop(plan, by))
                return _state_of(plan)
            for session, messages in groupby(chosen, lambda message: message.session):
                ids = [message.id for message in messages]
                self._tasks.create_task(self._answer(plan, session, ids, by))
        return _state_of(plan)

    def _plan_drop(self, letters: Sequence[DeadLetter], owner: str, omitted: int) -> ReplayPlan:
        messages = tuple(planned(one) for one in letters)
        revisions = {one.id: str(one.at) for one in letters}
        return self._keep(owner, revisions, messages, 0, "drop", omitted)

    async def _plan(
        self,
        found: Collection[Records],
        owner: str,
        words: Words,
        *,
        old: bool,
        also: Iterable[PlannedMessage] = (),
        omitted: int = 0,
    ) -> ReplayPlan:
        now, messages = now_ms(), list[PlannedMessage]()
        # By conversation, in the order of its messages, which is the order of their answers.
        ordered = sorted(found, key=lambda one: (one.session, one.ord, one.seq))
        for one in ordered:
            reason = await self._refusal(one, now if not old else None, words)
            said, text = reason or UNSET, one.inbound.text[:_LONGEST_TEXT]
            messages.append(PlannedMessage(one.id, one.session, one.received_at, not reason, said, text))
        chosen = {message.id for message in messages if message.ok}
        revisions = {one.id: one.revision for one in ordered if one.id in chosen}
        resent = {one.id for one in ordered if is_undelivered(one)}
        sessions = [one.session for one in ordered if one.id in chosen - resent]
        cost = await self._store.read(lambda c: _estimate(c, sessions))
        return self._keep(owner, revisions, (*messages, *also), cost, "replay", omitted)

    def _keep(
        self,
        owner: str,
        revisions: dict[str, str],
        messages: tuple[PlannedMessage, ...],
        cost: int | None,
        action: Action,
        omitted: int,
    ) -> ReplayPlan:
        now = now_ms()
        report = ReplayPlan(secrets.token_urlsafe(16), now + PLAN_MS, messages, cost, action, omitted)
        self._forget_old(now)
        self._plans[report.plan] = _Plan(owner, report, revisions)
        return report

    async def _refusal(self, records: Records, now: int | None, words: Words) -> str:
        """Return why a message cannot be answered again; empty if it can. With ``now`` its age counts."""
        if reason := _reason_against(records):
            return words(reason)
        if now is not None and (late := self._lateness(records, now, words)):
            return late
        return "" if await self._is_allowed(records) else words("plan.sender")

    def _lateness(self, records: Records, now: int, words: Words) -> str:
        """Return that the reply window of a message is over; empty if it is not."""
        channel = self._channels.get(records.channel)
        window = channel.reply_window(records.inbound.address) if isinstance(channel, LimitsReplies) else None
        if now - records.received_at <= (REPLY_WINDOW_MS if window is None else window * 1000):
            return ""
        if window is None:
            return words("plan.old")
        limit = words.duration(round(window * 1000)).removesuffix(" 0 s").removesuffix(" 0 min")
        return words("plan.window", platform=words.platform(records.channel), limit=limit)

    async def _is_allowed(self, records: Records) -> bool:
        await self._access.confirm(records.channel, records.inbound)
        return self._access.policy.role(records.channel, records.inbound) is not None

    async def _answer(self, plan: _Plan, session: str, ids: Iterable[str], by: str) -> None:
        """Answer the messages of one conversation, one after another."""
        async with self._slots:
            for message_id in ids:
                try:
                    await self._answer_one(plan, message_id, by)
                except CATCHABLE as error:
                    if is_cancellation_requested(error):
                        raise
                    plan.skipped.add(message_id)
                    log.exception("failed to replay a message", message=message_id, session=session)
                worker = self._settling(session)
                if worker is not None:
                    await asyncio.wait({worker}, timeout=_LONGEST_TURN)

    async def _answer_one(self, plan: _Plan, message_id: str, by: str) -> None:
        records = await self._store.read(lambda c: read_records(c, message_id))
        if records is None or not await self._is_allowed(records):
            plan.skipped.add(message_id)
            return
        expected = plan.revisions[message_id]

        def is_unchanged(now: Records) -> bool:
            return now.revision == expected and not _reason_against(now)

        audit = audit_op(by, "message.replay", message_id, f"plan {plan.report.plan}")
        if await self._letters.reopen(message_id, is_unchanged, audit):
            plan.done += 1
        else:
            plan.skipped.add(message_id)

    async def _drop(self, plan: _Plan, by: str) -> None:
        wanted = {letter_id: int(at) for letter_id, at in plan.revisions.items()}

        def audit(letter_id: str) -> Op:
            return audit_op(by, "message.drop", letter_id, f"plan {plan.report.plan}")

        try:
            dropped = await self._letters.drop_unchanged(wanted, audit)
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            log.exception("failed to drop dead letters", plan=plan.report.plan)
            dropped = set[str]()
        plan.done += len(dropped)
        plan.skipped.update(wanted.keys() - dropped)

    def _forget_old(self, now: int) -> None:
        gone = [name for name, plan in self._plans.items() if plan.report.expires_at < now]
        gone += list(self._plans)[: max(0, len(self._plans) - len(gone) - _MOST_PLANS + 1)]
        for name in gone:
            self._plans.pop(name, None)


def _reason_against(records: Records) -> str:
    """Return why a message cannot be answered again, regardless of its sender and age, as a key of words;
    empty if it can.
    """
    if records.was_deleted:
        return "plan.deleted"
    if records.hidden:
        return "plan.undone"
    if records.state == "new":
        return "plan.running"
    if records.state == "merged":
        return "plan.merged"
    if records.state == "done" and records.error is None and not _was_stopped(records):
        return "plan.answered"
    parts = () if records.answer is None or records.state == "dead" else records.answer.parts
    # The steps of a settled turn are gone: nothing would keep its tools from running twice.
    if any(isinstance(part, ToolResultPart) for part in parts):
        return "plan.tools"
    return ""


def _was_stopped(records: Records) -> bool:
    answer = records.answer
    return answer is not None and answer.metadata.stop_reason == "cancelled"


def planned(letter: DeadLetter, reason: str = "") -> PlannedMessage:
    """Return a letter as an entry of a plan; ``reason`` says why it will be left alone."""
    text = "" if letter.kind == "event" else letter.text[:_LONGEST_TEXT]
    return PlannedMessage(letter.id, letter.session, letter.at, not reason, reason or UNSET, text)


def _state_of(plan: _Plan) -> ReplayState:
    left = len(plan.revisions) - plan.done - len(plan.skipped)
    replayed, dropped = (0, plan.done) if plan.report.action == "drop" else (plan.done, 0)
    return ReplayState(
        plan.report.plan, "running" if left else "done", replayed, len(plan.skipped), left, dropped
    )


def _estimate(connection: Connection, sessions: Sequence[str]) -> int | None:
    """Return the cost of an answer in each of these sessions: the mean of its newest calls, else of all."""
    s = t.spend.c
    if not sessions:
        return 0
    priced = select(s.nano_usd).where(s.nano_usd.is_not(None), s.state != "reserved")
    newest = priced.order_by(s.at.desc()).limit(_PRICED_CALLS).subquery()
    usual = connection.execute(select(func.avg(newest.c.nano_usd))).scalar()
    total = 0
    for session in sessions:
        own = priced.where(s.session == session).order_by(s.at.desc()).limit(_PRICED_CALLS).subquery()
        mean = connection.execute(select(func.avg(own.c.nano_usd))).scalar()
        mean = usual if mean is None else mean
        if mean is None:
            return None
        total += round(mean)
    return total
