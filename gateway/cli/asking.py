"""Sending one message over a link, and waiting for what comes of it."""

from __future__ import annotations

import asyncio
import secrets

import typer
from msgspec import Struct

from gateway.cli.conversation import Conversation, Question
from gateway.cli.link import Link
from gateway.cli.wire import Ack, Heard, Lost, Refusal
from gateway.errors import DeltaParseError, InvalidRequestError, TrunklineError
from gateway.frames import ApprovalAsked
from gateway.messages import Message


class Exchange(Struct, frozen=True):
    """A message that was accepted, and its answer when there is one."""

    ack: Ack
    answer: Message | None


async def exchange(
    url: str, token: str | None, session: str, text: str, message_id: str | None, *, wait: bool
) -> Exchange:
    """Send a message; return when it is stored, or with ``wait`` when it is answered.

    Raises a TrunklineError when it was refused, or there is no gateway.
    """
    question = Question(message_id or f"cli-{secrets.token_hex(12)}", text)
    asking = _Asking(question, session, wait=wait)
    link = Link(url, token, asking.receive)
    await link.say(session, text, question.client_msg_id)
    failure: TrunklineError | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(link.run())
            await asking.done
            running.cancel()
    except* TrunklineError as group:
        failure = next(error for error in group.exceptions if isinstance(error, TrunklineError))
    if failure is not None:
        raise failure
    return asking.outcome()


class _Asking:
    """Listens until the question has come as far as is wanted; ``done`` is set then."""

    def __init__(self, question: Question, session: str, *, wait: bool) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._question = question
        self._conversation = Conversation(session)
        self._wait = wait

    def receive(self, session: str, heard: Heard) -> None:
        """Take one frame in."""
        question = self._question
        question.take(heard)
        if question.ack is not None and session == question.ack.session:
            self._event(heard)
        match heard:
            case Lost():
                typer.secho(f"{heard.reason}; connecting again …", err=True, dim=True)
            case Refusal(retryable=True):
                typer.secho(f"{heard.message}; trying again …", err=True, dim=True)
            case _:
                pass
        stored = question.ack is not None and not self._wait
        if (stored or self._conversation.settled(question, heard)) and not self.done.done():
            self.done.set_result(None)

    def outcome(self) -> Exchange:
        """What came of it. Raises InvalidRequestError when the gateway refused the message."""
        question = self._question
        if question.ack is None:
            reason = question.refusal.message if question.refusal is not None else "it was not acknowledged"
            raise InvalidRequestError(f"the message was refused: {reason}")
        return Exchange(question.ack, self._conversation.answer(question))

    def _event(self, heard: Heard) -> None:
        if isinstance(heard, ApprovalAsked):
            typer.secho(
                f"The tool {heard.tool_name} waits to be allowed; answer in the web chat or with: "
                f"trunkline chat {self._conversation.session}",
                err=True,
                fg=typer.colors.YELLOW,
            )
            return
        try:
            self._conversation.take(heard)
        except DeltaParseError:
            return  # the whole message follows when it is asked for again
