"""Approvals: a tool call waits for a user's decision in the session it runs in.

A decision is durable before it is acknowledged. It is kept until the call's result (or the intent to run its
tool) is recorded, so that a turn repeated after a crash uses it once instead of asking again. An "always" is
kept as a grant (``grants.py``).
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import structlog
from sqlalchemy import Connection, select

from gateway.access.grants import grant
from gateway.access.people import THE_OWNER, UserRef
from gateway.access.permissions import match_text
from gateway.access.policy import Access
from gateway.contract.channel import (
    ApprovalRequest,
    AsksApproval,
    FollowsSession,
    InboundMessage,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    ShowsDecision,
)
from gateway.contract.errors import InvalidRequestError, NotFoundError, StoreError, UnauthorizedError
from gateway.contract.messages import new_id, now_ms
from gateway.contract.tool import Tool
from gateway.extensions.registry import ChannelRegistry
from gateway.session import Session, StoredDecision, Turn
from gateway.session.frames import ApprovalAsked, ApprovalResolved
from gateway.store import Inserted, Op, Store
from gateway.store import schema as t
from gateway.store.inbox import Entry
from gateway.store.writes import Write, audit_op

log = structlog.get_logger("trunkline.approvals")

Decision = Literal["once", "always", "deny"]
Outcome = Literal["once", "always", "deny", "timeout", "nobody", "unshown"]
"""``nobody``: no user can be asked. ``unshown``: the channel cannot show the whole question."""

ADD_DECISION = Write("insert", 37, t.approval_decision, "id inbox_id tool arguments decision decided_by at")
DROP_DECISION = Write("delete", 38, t.approval_decision, "id")
DROP_DECISIONS = Write("delete", 39, t.approval_decision, "inbox_id", key="inbox_id")

SERVER = "api"
"""The channel name of REST messages; their clients can follow the session and decide."""

_WORDS: Mapping[str, Decision] = {
    "yes": "once",
    "y": "once",
    "ok": "once",
    "allow": "once",
    "always": "always",
    "no": "deny",
    "n": "deny",
    "deny": "deny",
}
"""Texts that count as a decision, for users who type instead of pressing a button."""

_MAX_MATCH_CHARS = 64
"""Longest match text that a button shows in full; Slack's limit is 75 characters, label included."""

_RETRY_SECONDS = 1.0
"""Delay before showing a request again when the platform defers it without a delay."""


class Claim:
    """A decision on one open question. It excludes other decisions, and counts once ``ops`` are committed."""

    def __init__(self, question: _Question, decision: Decision, ops: list[Op]) -> None:
        self.ops = ops
        self._question = question
        self._decision: Decision = decision

    def follow(self, committed: asyncio.Future[Inserted]) -> None:
        """Release the waiting tool call as soon as this commit succeeds."""
        committed.add_done_callback(self._committed)

    def _committed(self, committed: asyncio.Future[Inserted]) -> None:
        decided = self._question.decided
        if decided.done():
            return
        if committed.cancelled() or committed.exception() is not None:
            decided.set_exception(StoreError("a decision could not be stored"))
        else:
            decided.set_result(self._decision)


class _Question:
    """An open question.

    ``taken``: a decision is being stored, or the timeout has passed. ``withdrawn``: its turn ended first.
    ``recorded``: the call becomes a step of the turn, see ``Approvals.ask``. ``seq`` is the question's
    number in the session's log, ``shown`` its place on the platform, once known.
    """

    def __init__(self, turn: Turn, request: ApprovalRequest, digest: str, *, recorded: bool) -> None:
        self.turn = turn
        self.request = request
        self.digest = digest
        self.recorded = recorded
        self.decided: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.taken = False
        self.withdrawn = False
        self.seq = 0
        self.shown: Placed | None = None

    def end(self, outcome: Outcome) -> None:
        """Settle the question without a decision, unless one was taken."""
        if not self.taken:
            self.taken = True
            self.decided.set_result(outcome)


class Approvals:
    """Open questions. Each is decided once, by the sender of the message that led to it."""

    def __init__(self, store: Store, access: Access, channels: ChannelRegistry, timeout_ms: int) -> None:
        self._store = store
        self._access = access
        self._channels = channels
        self._timeout_ms = timeout_ms
        self._open: dict[str, _Question] = {}

    async def ask(
        self, turn: Turn, tool: Tool, arguments: Mapping[str, Any], *, recorded: bool = False
    ) -> Outcome:
        """Ask in the turn's session and wait for a decision, at most the configured timeout.

        Returns at once if a grant covers the call, if it was decided before a crash, or if no user can be
        asked. ``recorded``: the caller commits ``used_decisions`` with the step that the call becomes.
        Otherwise a decision is kept until the message is answered, and a repeated turn uses it once.
        """
        matches, digest = match_text(tool, arguments), digest_of(arguments)
        user = self._user_of(turn)
        if matches is not None and await self._access.grants.allows(
            turn.session.id, user, tool.name, matches
        ):
            return "always"
        earlier = await self._earlier_decision(turn, tool.name, digest, recorded=recorded)
        if earlier is not None:
            return earlier
        if not self._has_approver(turn):
            return "nobody"
        request = self._request(turn, tool.name, arguments, matches)
        return await self._ask(_Question(turn, request, digest, recorded=recorded))

    async def resolve(
        self, approval_id: str, decision: Decision, *, session: str, user: str | None = None
    ) -> None:
        """Settle a question; return once the decision is durable.

        ``user`` is the id of the deciding user; None is the owner of the gateway. Raises NotFoundError if the
        question is not open in this session, UnauthorizedError if another user has to decide it, and
        InvalidRequestError for an "always" that was not offered.
        """
        question = self._open.get(approval_id)
        if question is None or question.taken or question.request.session != session:
            raise NotFoundError("this approval is not open: it was settled already or never requested")
        if user is not None and user != question.request.user:
            raise UnauthorizedError("only the user whose message requested this may decide it")
        if decision == "always" and question.request.always is None:
            raise InvalidRequestError('"always" is not offered for this call; answer "once" or "deny"')
        by = THE_OWNER if user is None else UserRef(question.request.address.channel, user)
        claim = self._claim(question, decision, by)
        committed = self._store.submit(claim.ops)
        claim.follow(committed)
        await asyncio.shield(committed)
        if question.withdrawn:
            raise NotFoundError("this approval is closed: its turn was stopped")

    def may_decide(self, channel: str, session: Session, message: InboundMessage) -> bool:
        """Return whether a message is a plain yes or no to its sender's only open question."""
        return self._question_answered_by(channel, session, message) is not None

    def claim(self, session: Session, entry: Entry) -> Claim | None:
        """Resolve the sender's only open question if the text is yes or no; commit the returned claim."""
        question = self._question_answered_by(entry.channel, session, entry.inbound)
        if question is None:
            return None
        decision = _WORDS[_word(entry.inbound)]
        if decision == "always" and question.request.always is None:
            decision = "once"
        return self._claim(question, decision, UserRef(entry.channel, entry.inbound.sender.id))

    async def _ask(self, question: _Question) -> Outcome:
        request, turn = question.request, question.turn
        turn.decisions.asked = True
        self._open[request.id] = question
        outcome: str = "cancelled"
        try:
            frame = ApprovalAsked(
                request.id, request.tool_name, request.arguments, request.timeout_ms, request.always
            )
            turn.asked[request.id] = frame
            question.seq = turn.session.publish(frame)
            later = await self._show(question)
            async with asyncio.TaskGroup() as tasks:
                if later is not None:
                    tasks.create_task(self._show_later(question, later))
                outcome = decision = await self._answer(question)
        finally:
            question.taken, question.withdrawn = True, outcome == "cancelled"
            del self._open[request.id]
            turn.asked.pop(request.id, None)
            turn.session.publish(ApprovalResolved(request.id, outcome))
            await self._tell(request, outcome)
        return decision

    async def _answer(self, question: _Question) -> Outcome:
        """Wait for the decision. One that is being stored when the timeout passes still counts."""
        await asyncio.wait([question.decided], timeout=self._timeout_ms / 1000)
        question.end("timeout")
        return await question.decided

    async def _show(self, question: _Question) -> float | None:
        """Show the question through the channel. Returns the delay in seconds if the platform defers it."""
        request = question.request
        channel = self._channels.get(request.address.channel)
        if isinstance(channel, AsksApproval):
            try:
                question.shown = await channel.ask_approval(request)
            except PlacementDeferred as deferred:
                return deferred.seconds or _RETRY_SECONDS
            except PlacementRefused as refused:
                log.warning(
                    "the channel refused to show an approval request",
                    session=request.session,
                    reason=str(refused),
                )
                if not question.turn.session.has_viewers:
                    question.end("unshown")
            except Exception:
                log.exception("showing an approval request failed", session=request.session)
        return None

    async def _show_later(self, question: _Question, seconds: float | None) -> None:
        while seconds is not None:
            await asyncio.wait([question.decided], timeout=seconds)
            seconds = None if question.decided.done() else await self._show(question)

    async def _tell(self, request: ApprovalRequest, outcome: str) -> None:
        """Show the outcome of a request through the channel; failures are only logged."""
        channel = self._channels.get(request.address.channel)
        if isinstance(channel, ShowsDecision):
            try:
                await channel.approval_decided(request, outcome)
            except Exception:
                log.exception("showing a decision failed", session=request.session)

    def _has_approver(self, turn: Turn) -> bool:
        """Return whether some user can see a question of this turn and answer it."""
        if turn.session.has_viewers:
            return True
        name = turn.address.channel
        if turn.entry.inbound.unattended:
            return False
        channel = self._channels.get(name)
        return name == SERVER or isinstance(channel, AsksApproval | FollowsSession)

    async def _earlier_decision(
        self, turn: Turn, tool: str, digest: str, *, recorded: bool
    ) -> Decision | None:
        """Return the decision made on this call before a crash; each is used once."""
        verdicts = turn.decisions
        if verdicts.unused is None:
            c = t.approval_decision.c
            query = select(c.id, c.tool, c.arguments, c.decision).where(c.inbox_id == verdicts.inbox_id)

            def read(connection: Connection) -> list[StoredDecision]:
                return [StoredDecision(*row) for row in connection.execute(query.order_by(c.at, c.id))]

            verdicts.unused = await self._store.read(read)
            verdicts.asked = verdicts.asked or bool(verdicts.unused)
        for found in verdicts.unused:
            if (found.tool, found.arguments) == (tool, digest):
                verdicts.unused.remove(found)
                if recorded:
                    verdicts.used.append(found.id)
                else:
                    await self._store.write((DROP_DECISION, (found.id,)))
                return found.decision
        return None

    def _question_answered_by(
        self, channel: str, session: Session, message: InboundMessage
    ) -> _Question | None:
        """Return the sender's only open question, if the message is a plain answer to it."""
        if not self._open or _word(message) not in _WORDS:
            return None
        waiting = [
            question
            for question in self._open.values()
            if question.request.session == session.id
            and question.request.user == message.sender.id
            and question.turn.entry.channel == channel
            and not question.taken
        ]
        return waiting[0] if len(waiting) == 1 and self._answers(waiting[0], message) else None

    def _answers(self, question: _Question, message: InboundMessage) -> bool:
        """Return whether the sender could see the question when writing the message.

        The platform's own order (or a reply) proves that. Where it is unknown, no message counts.
        """
        asked, place, shown = question.request.address, message.address, question.shown
        if message.revises is not None:
            return False
        if isinstance(self._channels.get(asked.channel), FollowsSession):
            return message.seen >= question.seq > 0
        if shown is None or (place.account, place.chat) != (asked.account, asked.chat):
            return False
        return message.in_reply_to == shown.platform_id or message.order > shown.order > 0

    def _claim(self, question: _Question, decision: Decision, by: UserRef) -> Claim:
        """Reserve a question for a decision, with the writes that make it durable."""
        question.taken = True
        request, turn, row_id = question.request, question.turn, new_id()
        row = (
            row_id,
            turn.decisions.inbox_id,
            request.tool_name,
            question.digest,
            decision,
            str(by),
            now_ms(),
        )
        detail = f"{request.session} arguments sha256:{question.digest}"
        ops: list[Op] = [
            (ADD_DECISION, row),
            audit_op(str(by), f"approval.{decision}", request.tool_name, detail),
        ]
        if decision == "always" and request.always is not None:
            granted = grant(request.session, self._user_of(turn), request.tool_name, request.always, by)
            ops.append(granted.put())
        if question.recorded:
            turn.decisions.used.append(row_id)
        return Claim(question, decision, ops)

    def _user_of(self, turn: Turn) -> UserRef:
        return self._access.policy.user_of(turn.entry.channel, turn.entry.inbound)

    def _request(
        self, turn: Turn, tool_name: str, arguments: Mapping[str, Any], matches: str | None
    ) -> ApprovalRequest:
        return ApprovalRequest(
            id=secrets.token_urlsafe(12),
            session=turn.session.id,
            address=turn.address,
            user=turn.sender.id,
            tool_name=tool_name,
            arguments=arguments,
            created_at=now_ms(),
            timeout_ms=self._timeout_ms,
            always=matches if matches is not None and _fits_a_button(matches) else None,
        )


def used_decisions(turn: Turn) -> list[Op]:
    """Return the writes that delete the decisions a call used; commit them with its result."""
    used: list[Op] = [(DROP_DECISION, (row_id,)) for row_id in turn.decisions.used]
    turn.decisions.used.clear()
    return used


def forget_decisions(inbox_id: str) -> Op:
    """Return the write that deletes all decisions on a message's tool calls, once it is answered."""
    return DROP_DECISIONS, (inbox_id,)


def digest_of(arguments: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a call's arguments; equal arguments have equal digests."""
    try:
        text = msgspec.json.encode(arguments, order="deterministic")
    except (TypeError, ValueError):
        text = repr(sorted(arguments.items())).encode(errors="backslashreplace")
    return hashlib.sha256(text).hexdigest()


def _word(message: InboundMessage) -> str:
    return message.text.strip().rstrip(".!").lower()


def _fits_a_button(matches: str) -> bool:
    """Return whether a button can show this text in full and unambiguously."""
    return 0 < len(matches) <= _MAX_MATCH_CHARS and matches.isprintable() and matches == matches.strip()
