"""The service of the completion endpoints: accepts a conversation, follows its answer, and sends it."""

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
from gateway.server.openai.chat import ChatMessage
from gateway.server.openai.errors import OpenAiError, named_error_response, openai_error
from gateway.server.openai.listener import AnswerFollower, final_error
from gateway.server.openai.parse import parse_conversation, session_of_key
from gateway.server.responses import KEEP_ALIVE, EventStream, json_response
from gateway.server.sessions import CHANNEL
from gateway.session.log import UNNAMED_PREFIX

log = structlog.get_logger("trunkline.openai")

_RETRY_AFTER_MS = 5000
"""Delay that is advised for an unavailable backend that gives none."""

_MAX_REFUSALS = 20
"""Refused requests with one idempotency key after which the key is refused."""

_KEEP_ALIVE_POLLS = 15
"""Number of polls without events after which a stream sends a keep-alive."""


class AnswerFormat(Protocol):
    """Renderer of one answer: as a whole, or as the events of a stream."""

    def whole(self, answer: Message | None) -> object: ...

    def first(self) -> bytes: ...

    def text(self, text: str) -> bytes: ...

    def last(self, answer: Message | None) -> bytes: ...

    def failed(self, error: OpenAiError) -> bytes: ...


class AnswerRequest(Struct, frozen=True):
    """A conversation to answer.

    ``session`` is the session to continue, ``key`` the idempotency key, ``options`` those of the model call.
    """

    user: str
    messages: Sequence[ChatMessage]
    model: str | None = None
    session: str | None = None
    key: str | None = None
    stream: bool = False
    options: TurnOptions = TurnOptions()


class ConversationService:
    """Service that answers conversations."""

    def __init__(self, host: Host, models: Models, agents: Agents) -> None:
        self._host = host
        self._agents = agents
        self._models = models
        self._follower = AnswerFollower(host)

    def close(self) -> None:
        """End all waiting requests. Accepted messages are answered after the restart."""
        self._follower.close()

    async def answer(
        self, request: web.Request, asked: AnswerRequest, format_of: Callable[[Receipt], AnswerFormat]
    ) -> web.StreamResponse:
        """Accept a conversation and send its answer. Raises TrunklineError before the response begins."""
        if asked.model and asked.model not in self._agents.all:
            await self._models.resolve(asked.model)
        message, fresh = _message(asked)
        receipt = await self._host.accept(CHANNEL, message, fresh=fresh)
        # Nothing was done for a refused request, so its idempotency key may be used again.
        for number in range(_MAX_REFUSALS):
            if not (receipt.refused and receipt.duplicate):
                break
            again = msgspec.structs.replace(message, dedup_key=f"{message.dedup_key}\x1f{number}")
            receipt = await self._host.accept(CHANNEL, again)
        if receipt.refused:
            raise OverloadedError("too many messages wait in this session; retry later")
        send = self._stream if asked.stream else self._send
        try:
            return await send(request, receipt, format_of(receipt))
        except ConnectionError:
            # With an idempotency key the client can reconnect and get the answer.
            if asked.key is None:
                await self._host.withdraw(CHANNEL, message.address.account, message.dedup_key)
            log.debug("client disconnected", session=receipt.session)
            raise

    async def _send(self, request: web.Request, receipt: Receipt, form: AnswerFormat) -> web.StreamResponse:
        answer = await self._follower.follow(request, receipt, _WholeAnswer())
        if answer is not None and (error := final_error(answer)) is not None:
            return _failed(error, receipt)
        return json_response(form.whole(answer), headers=_session_header(receipt))

    async def _stream(self, request: web.Request, receipt: Receipt, form: AnswerFormat) -> web.StreamResponse:
        """Stream an answer. The response begins with the first text, so an earlier failure has a status."""
        stream = _StreamedAnswer(EventStream(request, _session_header(receipt)), form)
        try:
            answer = await self._follower.follow(request, receipt, stream)
            if answer is None or (error := final_error(answer)) is None:
                await stream.write(form.last, answer)
            elif stream.begun:
                await stream.write(form.failed, openai_error(error.error_name, error.message))
            else:
                return _failed(error, receipt)
        except TrunklineError as error:
            if not stream.begun:
                raise
            await stream.write(form.failed, openai_error(error.name, str(error), error.status))
        return stream.response


class _WholeAnswer:
    """A listener that ignores the text: it is sent with the whole answer."""

    def receive(self, texts: Sequence[str]) -> bool:
        return False

    async def ready(self) -> None:
        return

    async def idle(self) -> None:
        return


class _StreamedAnswer:
    """A listener that writes the text to the client. The first write begins the response."""

    def __init__(self, stream: EventStream, form: AnswerFormat) -> None:
        self._stream = stream
        self._form = form
        self._first: Sequence[str] = ()
        self._idle_polls = 0

    @property
    def response(self) -> web.StreamResponse:
        return self._stream.response

    @property
    def begun(self) -> bool:
        return self._stream.begun

    def receive(self, texts: Sequence[str]) -> bool:
        self._idle_polls = 0
        if self._stream.begun:
            return self._stream.put(self._render(texts))
        self._first = texts
        return True

    async def ready(self) -> None:
        if self._stream.begun:
            await self._stream.drain()
        elif self._first:
            await self.write(self._render, self._first)

    async def idle(self) -> None:
        self._idle_polls += 1
        if self._idle_polls >= _KEEP_ALIVE_POLLS:
            self._idle_polls = 0
            await self.write(lambda: KEEP_ALIVE)

    async def write(self, render: Callable[..., bytes], *content: object) -> None:
        # ``first`` numbers its events, so it is rendered before what follows it.
        if not self._stream.begun:
            first = self._form.first()
            await self._stream.begin(first + render(*content))
        elif self._stream.put(render(*content)):
            await self._stream.drain()

    def _render(self, texts: Sequence[str]) -> bytes:
        text = self._form.text
        return text(texts[0]) if len(texts) == 1 else b"".join(map(text, texts))


def _message(asked: AnswerRequest) -> tuple[InboundMessage, bool]:
    """Return the message to accept, and whether the id of its session is new."""
    if asked.session is not None:
        session, fresh = asked.session, False
    elif asked.key is not None:
        session, fresh = session_of_key(asked.user, asked.key), False
    else:
        session, fresh = f"{UNNAMED_PREFIX}{new_id()}", True
    found = parse_conversation(asked.messages, session)
    if found.results and asked.session is None and not any(map(_calls_tools, found.before[-1:])):
        raise InvalidRequestError("a tool result must follow its tool call", param="messages")
    message_id = asked.key or new_id()
    if found.results and not (found.text.strip() or found.images):
        client_message = ClientMessage(message_id, "")
    else:
        client_message = ClientMessage.checked(message_id, found.text, found.images)
    message = client_message.inbound(CHANNEL, session, asked.user)
    changes = {
        "model": asked.model or None,
        "before": found.before,
        "parts": (*message.parts, *found.results),
        "options": asked.options,
        "unattended": True,
    }
    return msgspec.structs.replace(message, **changes), fresh


def _calls_tools(message: Message) -> bool:
    return any(isinstance(part, ToolCallPart) for part in message.parts)


def _session_header(receipt: Receipt) -> dict[str, str]:
    return {"X-Session-Id": receipt.session}


def _failed(error: ErrorPart, receipt: Receipt) -> web.Response:
    """Return the response for a failed answer, with advice on retries.

    The gateway has retried and tried fallbacks already, so clients should not retry at once. An unavailable
    backend (503) was retried only once; the response says when to retry.
    """
    name, message, metadata = error.error_name, error.message, error.metadata or ErrorMetadata()
    headers = _session_header(receipt)
    if metadata.code == "503":
        seconds = math.ceil((metadata.retry_after_ms or _RETRY_AFTER_MS) / 1000)
        return named_error_response(name, message, 503, {"Retry-After": str(seconds), **headers})
    return named_error_response(name, message, headers={"x-should-retry": "false", **headers})
