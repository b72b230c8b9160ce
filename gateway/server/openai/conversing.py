"""From a conversation to its answer, whatever form the client wants it in: accept, follow, send."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
import structlog
from aiohttp import web
from msgspec import Struct

from gateway.contract.channel import InboundMessage, Receipt
from gateway.contract.client_message import ClientMessage
from gateway.contract.errors import InvalidRequestError, OverloadedError, TrunklineError
from gateway.contract.messages import ErrorMetadata, ErrorPart, Message, ToolCallPart, new_id
from gateway.contract.provider import TurnOptions
from gateway.host import Host
from gateway.models import Agents, Models
from gateway.server.openai.answering import Waiters
from gateway.server.openai.chat import ChatMessage
from gateway.server.openai.failures import FailureAnswer, failure, failure_of
from gateway.server.openai.parse import conversation, session_of_key
from gateway.server.openai.telling import failure_in
from gateway.server.responses import KEEP_ALIVE, EventStream, json_response
from gateway.server.sessions import CHANNEL
from gateway.session.log import UNNAMED_PREFIX

log = structlog.get_logger("trunkline.openai")

_REST_MS = 5000
"""When to come back to a backend that is out of service and does not say when."""

_BEAT = 15
"""After how many rounds without news a stream says that it is still there."""


class Form(Protocol):
    """How one answer is written: whole, or as the events of a stream."""

    def whole(self, answer: Message | None) -> object: ...

    def first(self) -> bytes: ...

    def text(self, more: str) -> bytes: ...

    def last(self, answer: Message | None) -> bytes: ...

    def broken(self, failed: FailureAnswer) -> bytes: ...


class Asked(Struct, frozen=True):
    """A conversation to answer. ``session`` is the one it continues, ``key`` the request's own name.

    ``options`` are how the model is to be asked.
    """

    user: str
    messages: Sequence[ChatMessage]
    model: str | None = None
    session: str | None = None
    key: str | None = None
    stream: bool = False
    options: TurnOptions = TurnOptions()


class Conversing:
    """Answers conversations. ``close`` lets everyone go who waits."""

    def __init__(self, host: Host, models: Models, agents: Agents) -> None:
        self._host = host
        self._agents = agents
        self._models = models
        self._waiters = Waiters(host)

    def close(self) -> None:
        """Let everyone go; what is accepted is answered after the restart."""
        self._waiters.close()

    async def answer(
        self, request: web.Request, asked: Asked, form_of: Callable[[Receipt], Form]
    ) -> web.StreamResponse:
        """Accept a conversation and answer it. Raises a TrunklineError as long as nothing was sent."""
        if asked.model and asked.model not in self._agents.all:
            await self._models.resolve(asked.model)
        message, fresh = _message(asked)
        receipt = await self._host.accept(CHANNEL, message, fresh=fresh)
        if receipt.refused:
            raise OverloadedError("too many messages wait in this session; send this again later")
        send = self._streamed if asked.stream else self._whole
        try:
            return await send(request, receipt, form_of(receipt))
        except ConnectionError:
            # Whoever gave the request a name can come back for its answer.
            if asked.key is None:
                await self._host.withdraw(CHANNEL, message.address.account, message.dedup_key)
            log.debug("a client left", session=receipt.session)
            raise

    async def _whole(self, request: web.Request, receipt: Receipt, form: Form) -> web.StreamResponse:
        answer = await self._waiters.follow(request, receipt, _Patient())
        if answer is not None and (failed := failure_in(answer)) is not None:
            return _failed(failed, receipt)
        return json_response(form.whole(answer), headers=_session(receipt))

    async def _streamed(self, request: web.Request, receipt: Receipt, form: Form) -> web.StreamResponse:
        """A stream begins with the first text, so that what fails before has a status of its own."""
        stream = _Stream(EventStream(request, _session(receipt)), form)
        try:
            answer = await self._waiters.follow(request, receipt, stream)
            if answer is None or (failed := failure_in(answer)) is None:
                await stream.write(form.last, answer)
            elif stream.begun:
                await stream.write(form.broken, failure(failed.error_name, failed.message))
            else:
                return _failed(failed, receipt)
        except TrunklineError as error:
            if not stream.begun:
                raise
            await stream.write(form.broken, failure(error.name, str(error), error.status))
        return stream.response


class _Patient:
    """A listener that wants the whole answer and nothing before."""

    def tell(self, texts: Sequence[str]) -> bool:
        return False

    async def ready(self) -> None:
        return

    async def wait(self) -> None:
        return


class _Stream:
    """A listener that passes on what it hears. It opens the stream when there is something to write."""

    def __init__(self, streamed: EventStream, form: Form) -> None:
        self._streamed = streamed
        self._form = form
        self._early: Sequence[str] = ()
        self._waited = 0

    @property
    def response(self) -> web.StreamResponse:
        return self._streamed.response

    @property
    def begun(self) -> bool:
        return self._streamed.begun

    def tell(self, texts: Sequence[str]) -> bool:
        self._waited = 0
        if self._streamed.begun:
            return self._streamed.put(self._written(texts))
        self._early = texts
        return True

    async def ready(self) -> None:
        if self._streamed.begun:
            await self._streamed.drain()
        elif self._early:
            await self.write(self._written, self._early)

    async def wait(self) -> None:
        self._waited += 1
        if self._waited >= _BEAT:
            self._waited = 0
            await self.write(lambda: KEEP_ALIVE)

    async def write(self, written: Callable[..., bytes], *what: object) -> None:
        if not self._streamed.begun:
            head = self._form.first()
            await self._streamed.begin(head + written(*what))
        elif self._streamed.put(written(*what)):
            await self._streamed.drain()

    def _written(self, texts: Sequence[str]) -> bytes:
        text = self._form.text
        return text(texts[0]) if len(texts) == 1 else b"".join(map(text, texts))


def _message(asked: Asked) -> tuple[InboundMessage, bool]:
    """The message to accept, and whether its session's id was just minted."""
    if asked.session is not None:
        session, fresh = asked.session, False
    elif asked.key is not None:
        session, fresh = session_of_key(asked.user, asked.key), False
    else:
        session, fresh = f"{UNNAMED_PREFIX}{new_id()}", True
    said = conversation(asked.messages, session)
    if said.results and asked.session is None and not any(_calls(message) for message in said.before[-1:]):
        raise InvalidRequestError("a tool's result has to follow the call it belongs to", param="messages")
    name = asked.key or new_id()
    only_results = said.results and not (said.text.strip() or said.pictures)
    checked = (
        ClientMessage(name, "") if only_results else ClientMessage.checked(name, said.text, said.pictures)
    )
    message = checked.inbound(CHANNEL, session, asked.user)
    more = {
        "model": asked.model or None,
        "before": said.before,
        "parts": (*message.parts, *said.results),
        "options": asked.options,
        "unattended": True,
    }
    return msgspec.structs.replace(message, **more), fresh


def _calls(message: Message) -> bool:
    return any(isinstance(part, ToolCallPart) for part in message.parts)


def _session(receipt: Receipt) -> dict[str, str]:
    return {"X-Session-Id": receipt.session}


def _failed(failed: ErrorPart, receipt: Receipt) -> web.Response:
    """A failed answer. Retries and fallbacks are behind it, so clients are told not to try again at once.

    A backend that is out of service (503) was tried only once more: clients are told when to come back.
    """
    name, message, known = failed.error_name, failed.message, failed.metadata or ErrorMetadata()
    if known.code == "503":
        seconds = math.ceil((known.retry_after_ms or _REST_MS) / 1000)
        return failure_of(name, message, 503, {"Retry-After": str(seconds), **_session(receipt)})
    return failure_of(name, message, headers={"x-should-retry": "false", **_session(receipt)})
