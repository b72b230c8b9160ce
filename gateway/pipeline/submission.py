"""Submission: accepts a message from a plugin or the server, and returns its answer.

The message takes the same path as one of a channel.
"""

from __future__ import annotations

import msgspec

from gateway.contract.channel import InboundMessage, Receipt, Responder, SendsAck, SendsError, SendsVoice
from gateway.contract.deltas import Complete
from gateway.contract.errors import InvalidStateError, NotFoundError, OverloadedError
from gateway.contract.messages import ErrorPart, Message
from gateway.contract.provider import TurnOptions
from gateway.models import Agents
from gateway.pipeline.intake import Intake
from gateway.session import Session, Sessions
from gateway.session.feed import Feed
from gateway.session.frames import Frame, MessageFrame, Replayed
from gateway.store.inbox import Inbox


class Submission:
    """Accepts messages, waits for their outcome, and hands the reply to a responder."""

    def __init__(self, intake: Intake, inbox: Inbox, sessions: Sessions, agents: Agents) -> None:
        self._intake = intake
        self._agents = agents
        self._inbox = inbox
        self._sessions = sessions
        self._feeds: set[Feed] = set()

    async def submit(
        self,
        message: InboundMessage,
        responder: Responder | None = None,
        *,
        exclusive: bool = False,
        model: str | None = None,
        agent: str | None = None,
        options: TurnOptions | None = None,
    ) -> Message | None:
        """Accept a message and wait for its answer. Returns it once it is durable; None if there is none.

        The message waits for those before it in its session. ``model``, ``agent`` and ``options`` apply to
        this turn only and override those of the message.

        Raises InvalidStateError if ``exclusive`` is set and the session has a running turn, NotFoundError for
        an unknown agent, and OverloadedError when a limit is reached or the gateway stops before the answer:
        an accepted message is then answered after the restart.
        """
        agent = agent or message.agent
        if agent is not None and agent not in self._agents.all:
            near = ", ".join(self._agents.close_matches(agent)) or ", ".join(self._agents.all)
            raise NotFoundError(f"unknown agent {agent!r}; configured agents: {near}")
        message = msgspec.structs.replace(
            message, model=model or message.model, agent=agent, options=options or message.options
        )
        live = self._sessions.get(message.session)
        if exclusive and live is not None and live.pending:
            raise InvalidStateError(
                f"session {live.id!r} is already running a turn; abort the turn or wait for its end"
            )
        feed = Feed()
        # Before it is accepted: what stops from then on ends this call, too.
        self._feeds.add(feed)
        try:
            receipt = (await self._intake.accept(message.address.channel, (message,)))[0]
            if isinstance(responder, SendsAck):
                await responder.send_ack(receipt.message_id)
            if receipt.ignored or receipt.refused:
                return None
            answer = await self._outcome(await self._sessions.find(receipt.session), receipt, feed)
        finally:
            self._feeds.discard(feed)
        if answer is not None and responder is not None:
            await _respond(responder, message, answer)
        return answer

    def close(self) -> None:
        """End all pending calls of ``submit`` with an OverloadedError."""
        for feed in tuple(self._feeds):
            feed.close(
                OverloadedError("the gateway is stopping; the message will be answered after the restart")
            )

    async def _outcome(self, session: Session, receipt: Receipt, feed: Feed) -> Message | None:
        try:
            # From the accepted message on: an answer that is committed already is replayed to the feed.
            await session.follow(feed, receipt.seq)
            while True:
                for event in await feed.take():
                    if await self._is_settled_by(event.frame, receipt, session):
                        return next((m for m in session.messages() if m.id == receipt.answer_id), None)
        finally:
            session.remove_sink(feed)

    async def _is_settled_by(self, frame: Frame, receipt: Receipt, session: Session) -> bool:
        """Return whether a frame shows that the message is settled, with or without an answer."""
        match frame:
            case Complete(message_id=answer_id):
                return answer_id == receipt.answer_id
            case MessageFrame(message=message):
                return message.id == receipt.answer_id
            case Replayed():
                # A message that was settled without an answer before the feed began sends no frame at all.
                is_open, turn = await self._inbox.is_open(receipt.message_id), session.turn
                return not is_open and (turn is None or turn.message_id != receipt.answer_id)
            case _:
                return False


async def _respond(responder: Responder, message: InboundMessage, answer: Message) -> None:
    text = answer.text
    failures = [part.message for part in answer.parts if isinstance(part, ErrorPart)]
    if text and message.response_mode == "voice" and isinstance(responder, SendsVoice):
        await responder.send_voice(text)
    elif text:
        await responder.send_text(text)
    for failure in failures:
        await (responder.send_error if isinstance(responder, SendsError) else responder.send_text)(failure)
