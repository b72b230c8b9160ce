"""Submitting a message from inside: the whole way a channel's message goes, and the reply handed back."""

from __future__ import annotations

from typing import Protocol

from gateway.channel import InboundMessage, Receipt, Responder, SendsAck, SendsError, SendsVoice
from gateway.deltas import Complete
from gateway.errors import InvalidStateError, OverloadedError
from gateway.feed import Feed
from gateway.frames import Frame, MessageFrame, Replayed
from gateway.inbox import Inbox
from gateway.intake import Intake
from gateway.messages import ErrorPart, Message
from gateway.session import Session, Sessions


class Submit(Protocol):
    """How plugins submit; see ``Submission.submit``."""

    async def __call__(
        self, message: InboundMessage, responder: Responder | None = None, *, exclusive: bool = False
    ) -> Message | None: ...


class Submission:
    """Accepts messages, waits for their outcome, and hands the reply to a responder."""

    def __init__(self, intake: Intake, inbox: Inbox, sessions: Sessions) -> None:
        self._intake = intake
        self._inbox = inbox
        self._sessions = sessions
        self._feeds: set[Feed] = set()

    async def submit(
        self, message: InboundMessage, responder: Responder | None = None, *, exclusive: bool = False
    ) -> Message | None:
        """Accept a message, and return its answer once that is durable; None when nothing was said.

        The message waits its turn in its session; with ``exclusive`` a session that answers already is an
        InvalidStateError. Raises OverloadedError when a bound is reached, or when the gateway stops first:
        an accepted message is answered after the restart.
        """
        live = self._sessions.get(message.session)
        if exclusive and live is not None and live.pending:
            raise InvalidStateError(
                f"session {live.id!r} is already running a turn; abort it or wait for its end"
            )
        receipt = (await self._intake.accept(message.address.channel, (message,)))[0]
        if isinstance(responder, SendsAck):
            await responder.send_ack(receipt.message_id)
        if receipt.ignored:
            return None
        session = await self._sessions.find(receipt.session)
        answer = await self._outcome(session, receipt)
        if answer is not None and responder is not None:
            await _respond(responder, message, answer)
        return answer

    def close(self) -> None:
        """Let everyone go who still waits."""
        for feed in tuple(self._feeds):
            feed.close(OverloadedError("the gateway is stopping; this is answered after the restart"))

    async def _outcome(self, session: Session, receipt: Receipt) -> Message | None:
        feed = Feed()
        self._feeds.add(feed)
        try:
            await session.follow(feed, receipt.seq)
            while True:
                for event in await feed.take():
                    if await self._settles(event.frame, receipt, session):
                        return _find(session, receipt.answer_id)
        finally:
            session.unfollow(feed)
            self._feeds.discard(feed)

    async def _settles(self, frame: Frame, receipt: Receipt, session: Session) -> bool:
        """Whether nothing more will come for the message: its answer is there, or it had none."""
        match frame:
            case Complete(message_id=answer_id):
                return answer_id == receipt.answer_id
            case MessageFrame(message=message):
                return message.id == receipt.answer_id
            case Replayed():
                # Nothing tells of what ended without an answer before it was followed.
                return not await self._inbox.is_open(receipt.message_id) and not _is_running(receipt, session)
            case _:
                return False


def _is_running(receipt: Receipt, session: Session) -> bool:
    return session.turn is not None and session.turn.message_id == receipt.answer_id


def _find(session: Session, answer_id: str) -> Message | None:
    return next((m for m in reversed(session.messages()) if m.id == answer_id), None)


async def _respond(responder: Responder, message: InboundMessage, answer: Message) -> None:
    text = answer.text
    failures = [part.message for part in answer.parts if isinstance(part, ErrorPart)]
    if text and message.response_mode == "voice" and isinstance(responder, SendsVoice):
        await responder.send_voice(text)
    elif text:
        await responder.send_text(text)
    for failure in failures:
        await (responder.send_error if isinstance(responder, SendsError) else responder.send_text)(failure)
