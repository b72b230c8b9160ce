"""Approvals: a tool waits for a person's word, in the session it runs in."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any, Literal

import structlog

from gateway.channel import ApprovalRequest, AsksApproval, PlacementDeferred, ShowsDecision
from gateway.errors import NotFoundError, UnauthorizedError
from gateway.frames import ApprovalAsked, ApprovalResolved
from gateway.inbox import Entry
from gateway.messages import now_ms
from gateway.permissions import match_text
from gateway.registry import ChannelRegistry
from gateway.session import Session, Turn
from gateway.tool import Tool

log = structlog.get_logger("trunkline.approvals")

Decision = Literal["once", "always", "deny"]
Outcome = Literal["once", "always", "deny", "timeout"]

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
"""What a person may write instead of pressing a button."""


_AGAIN_SECONDS = 1.0
"""How long to wait for a platform that cannot be asked to show a request, and does not say how long."""


class Approvals:
    """Open requests. Each is answered once, by someone of the session it came from."""

    def __init__(self, channels: ChannelRegistry, timeout_ms: int) -> None:
        self._channels = channels
        self._timeout_ms = timeout_ms
        self._open: dict[str, tuple[ApprovalRequest, asyncio.Future[Decision]]] = {}
        self._granted: set[tuple[str, ...]] = set()
        """What was allowed for always: by session, by whom, and what."""

    async def ask(self, turn: Turn, tool: Tool, call_id: str, arguments: Mapping[str, Any]) -> Outcome:
        """Ask in the turn's session and wait for the answer, at most the configured time."""
        whose = (turn.session.id, turn.entry.channel, turn.sender.id)
        grant = (*whose, tool.name, match_text(tool, arguments) or "")
        if grant in self._granted:
            return "always"
        request = self._request(turn, tool.name, arguments)
        future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._open[request.id] = (request, future)
        outcome: str = "cancelled"
        try:
            frame = ApprovalAsked(request.id, request.tool_name, request.arguments, request.timeout_ms)
            turn.asked[request.id] = frame
            turn.session.publish(frame)
            later = await self._show(request)
            async with asyncio.TaskGroup() as tasks:
                if later is not None:
                    tasks.create_task(self._show_later(request, future, later))
                outcome = decision = await self._answer(future)
        finally:
            del self._open[request.id]
            turn.asked.pop(request.id, None)
            turn.session.publish(ApprovalResolved(request.id, outcome))
            await self._tell(request, outcome)
        if decision == "always":
            self._granted.add(grant)
        return decision

    def resolve(self, approval_id: str, decision: Decision, *, session: str, user: str | None = None) -> None:
        """A person answered; ``user`` is who, where a session has several.

        Raises NotFoundError if nothing (or nothing any more) waits for it there, UnauthorizedError if it is
        not theirs to decide.
        """
        waiting = self._open.get(approval_id)
        if waiting is None or waiting[1].done() or waiting[0].session != session:
            raise NotFoundError("this approval is settled or never was asked")
        if user is not None and user != waiting[0].user:
            raise UnauthorizedError("only the person whose message asked for it may decide this")
        waiting[1].set_result(decision)

    def overhear(self, session: Session, entry: Entry) -> bool:
        """Whether a message is a plain yes or no to the one thing its writer was asked; it decides then."""
        decision = _WORDS.get(entry.inbound.text.strip().rstrip(".!").lower())
        user = entry.inbound.sender.id
        waiting = [
            future
            for request, future in self._open.values()
            if request.session == session.id and request.user == user and not future.done()
        ]
        if decision is None or len(waiting) != 1:
            return False
        waiting[0].set_result(decision)
        return True

    async def _answer(self, future: asyncio.Future[Decision]) -> Outcome:
        limit = asyncio.timeout(self._timeout_ms / 1000)
        try:
            async with limit:
                return await future
        except TimeoutError:
            return "timeout"

    async def _show(self, request: ApprovalRequest) -> float | None:
        """Let the channel ask in its room. Returns how many seconds to wait where it is not taken yet."""
        channel = self._channels.get(request.address.channel)
        if isinstance(channel, AsksApproval):
            try:
                await channel.ask_approval(request)
            except PlacementDeferred as deferred:
                return deferred.seconds or _AGAIN_SECONDS
            except Exception:
                log.exception("a channel could not ask for an approval", session=request.session)
        return None

    async def _show_later(
        self, request: ApprovalRequest, decided: asyncio.Future[Decision], seconds: float | None
    ) -> None:
        while seconds is not None:
            await asyncio.wait([decided], timeout=seconds)
            seconds = None if decided.done() else await self._show(request)

    async def _tell(self, request: ApprovalRequest, outcome: str) -> None:
        """Let the channel show what became of the request; nothing depends on it."""
        channel = self._channels.get(request.address.channel)
        if isinstance(channel, ShowsDecision):
            try:
                await channel.approval_decided(request, outcome)
            except Exception:
                log.exception("a channel could not show a decision", session=request.session)

    def _request(self, turn: Turn, tool_name: str, arguments: Mapping[str, Any]) -> ApprovalRequest:
        return ApprovalRequest(
            id=secrets.token_urlsafe(12),
            session=turn.session.id,
            address=turn.address,
            user=turn.sender.id,
            tool_name=tool_name,
            arguments=arguments,
            created_at=now_ms(),
            timeout_ms=self._timeout_ms,
        )
