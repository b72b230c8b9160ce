"""Sending one message over a link, and waiting for what comes of it."""

from __future__ import annotations

import asyncio
import secrets

import typer
from msgspec import Struct

from gateway.cli.conversation import Conversation, Question
from gateway.cli.link import Link
from gateway.cli.send import Wish
from gateway.cli.wire import Ack, Heard, Lost, Refusal
from gateway.errors import (
    DeltaParseError,
    InvalidRequestError,
    OverloadedError,
    StreamTimeoutError,
    TrunklineError,
)
from gateway.frames import ApprovalAsked
from gateway.messages import Message


class Exchange(Struct, frozen=True):
    """A message that was accepted, and its answer when there is one."""

    ack: Ack
    answer: Message | None


async def exchange(url: str, token: str | None, wish: Wish) -> Exchange:
    """Say something; return when it is stored, or if that is wished, when it is answered.

    Raises a TrunklineError when it was refused, when there is no gateway, or when the time is over.
    """
    asking = _Asking(wish)
    link = Link(url, token, asking.receive)
    await link.say(wish.session, wish.text, asking.question.client_msg_id)
    failure: TrunklineError | None = None
    try:
        async with asyncio.timeout(wish.seconds), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(link.run())
            await asking.done
            running.cancel()
    except* TrunklineError as group:
        failure = next(error for error in group.exceptions if isinstance(error, TrunklineError))
    except* TimeoutError:
        failure = asking.too_late()
    if failure is not None:
        raise failure
    return asking.outcome()


class _Asking:
    """Listens until the question has come as far as is wanted; ``done`` is set then."""

    def __init__(self, wish: Wish) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.question = Question(wish.message_id or f"cli-{secrets.token_hex(12)}", wish.text)
        self._conversation = Conversation(wish.session)
        self._wish = wish

    def receive(self, session: str, heard: Heard) -> None:
        """Take one frame in."""
        question = self.question
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
        stored = question.ack is not None and not self._wish.wait
        if (stored or self._conversation.settled(question, heard)) and not self.done.done():
            self.done.set_result(None)

    def outcome(self) -> Exchange:
        """What came of it. Raises InvalidRequestError when the gateway refused the message."""
        question = self.question
        if question.ack is None:
            reason = question.refusal.message if question.refusal is not None else "it was not acknowledged"
            raise InvalidRequestError(f"the message was refused: {reason}")
        return Exchange(question.ack, self._conversation.answer(question))

    def too_late(self) -> TrunklineError:
        """What to say when the time is over."""
        ack = self.question.ack
        if ack is None:
            return OverloadedError("the message was not accepted in time; send it again")
        return StreamTimeoutError(
            f"the message is stored, and not answered yet; see: trunkline sessions show {ack.session}"
        )

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
