"""Ephemeral answers: a message is answered while its sender waits, and is neither accepted nor stored.

Platforms ask for such answers while a user types, as in Telegram's inline mode. The access rules, the hooks
for input and models, the agent of the chat and the budgets apply. There is no history, command or tool, and
no question to a user; nothing is left of the message but its cost.
"""

from __future__ import annotations

import asyncio

import structlog
from msgspec.structs import replace

from gateway.access import Access
from gateway.contract.channel import InboundMessage, SenderRole
from gateway.contract.errors import TrunklineError
from gateway.contract.messages import Message, TextPart
from gateway.contract.plugin import Intercept, Transform
from gateway.contract.provider import TurnOptions
from gateway.counters import Counters
from gateway.extensions.generation import Lease
from gateway.extensions.registry import PluginRegistry
from gateway.pipeline.agent import Agent
from gateway.session import Sessions, Turn
from gateway.store.inbox import Entry

log = structlog.get_logger("trunkline.ephemeral")


class EphemeralTurn(Turn):
    """A turn of a session that is not stored."""

    durable = False


class EphemeralRunner:
    """Answers messages without accepting them."""

    def __init__(
        self, sessions: Sessions, registry: PluginRegistry, access: Access, agent: Agent, counters: Counters
    ) -> None:
        self._sessions = sessions
        self._registry = registry
        self._access = access
        self._agent = agent
        self._counters = counters

    async def answer(self, channel: str, message: InboundMessage, seconds: float, tokens: int) -> str:
        """Return the answer to a message of at most ``tokens``, as far as it is finished after ``seconds``.

        Empty if the sender may not use the bot there, or if there is no answer.
        """
        await self._access.confirm(channel, message)
        policy = self._access.policy
        role = policy.role(channel, message)
        if role is None or policy.rooms.attention(channel, message) != "answer":
            return ""
        options = TurnOptions(max_tokens=tokens, tools=())
        message = replace(message, unattended=True, options=options)
        with self._registry.lease() as lease:
            return await self._answer(channel, message, role, lease, seconds)

    async def _answer(
        self, channel: str, message: InboundMessage, role: SenderRole, lease: Lease, seconds: float
    ) -> str:
        session = self._sessions.temporary(message.session, channel, message.sender.id, message.address)
        entry = Entry.of(channel, message, 1, attempts=1)
        agent = self._agent.agent_for(session, entry)
        turn = EphemeralTurn(session, entry, role=role, agent=agent, lease=lease)
        try:
            verdict = await turn.plugins.hooks.transform_user_input(message.text, turn.ctx)
        except TrunklineError as error:
            log.info("a hook refused a message", session=session.id, error=error.name, reason=str(error))
            return ""
        if isinstance(verdict, Intercept):
            return verdict.reply or ""
        text = verdict.text if isinstance(verdict, Transform) else message.text
        return await self._run(turn, text, seconds)

    async def _run(self, turn: Turn, text: str, seconds: float) -> str:
        session, entry = turn.session, turn.entry
        asked = Message(
            id=entry.id,
            session_id=session.id,
            role="user",
            parts=(TextPart(text),),
            created_at=entry.received_at,
        )
        timer = asyncio.get_running_loop().call_later(seconds, turn.abort)
        session.begin(turn, [asked])
        try:
            answer = turn.build_message(await self._agent.run(turn))
        finally:
            timer.cancel()
            session.finish(turn)
        error = "" if answer.error is None else answer.error.error_name
        outcome = "aborted" if turn.aborted else "failed" if error else "end_turn"
        self._counters.count_turn(entry.channel, outcome, answer.metadata, turn.first_text_seconds, error)
        log.info(
            "ephemeral turn", session=session.id, outcome=outcome, error=error, cost=answer.metadata.cost
        )
        texts = [one.content for one in answer.parts if isinstance(one, TextPart) and one.kind == "text"]
        return "\n\n".join(texts)
