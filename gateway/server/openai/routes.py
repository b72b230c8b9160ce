"""``/v1/chat/completions`` and ``/v1/models``: what clients of OpenAI ask for, through our own sessions."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated

import msgspec
import structlog
from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.app import Gateway
from gateway.channel import InboundMessage, Receipt
from gateway.client_message import ClientMessage, ClientMsgId
from gateway.errors import NotFoundError, OverloadedError, ProviderResolutionError, TrunklineError
from gateway.messages import Message, new_id, now_ms
from gateway.routing import Models
from gateway.server.answers import json_answer
from gateway.server.openai.answering import Done, Text, Waiters
from gateway.server.openai.chat import ChatRequest
from gateway.server.openai.failures import FailureAnswer, failure, failure_of
from gateway.server.openai.models import ModelList, Shelf
from gateway.server.openai.parse import conversation, session_named, session_of_key
from gateway.server.openai.render import ChatCompletion, Chunks, completion, event
from gateway.server.openai.telling import failure_in
from gateway.server.routes import Call, Nothing, Route
from gateway.server.sessions import CHANNEL

log = structlog.get_logger("trunkline.openai")

_BEAT = 15
"""After how many rounds without news a stream says that it is still there."""

_STREAM = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}


class Continued(Struct, frozen=True):
    """Which session, and the request's own name: the same one again is the same message."""

    session: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,128}$")] | UnsetType = msgspec.field(
        default=UNSET, name="X-Session-Id"
    )
    key: ClientMsgId | UnsetType = msgspec.field(default=UNSET, name="Idempotency-Key")


_Chat = Call[Nothing, Nothing, Continued, ChatRequest]


class OpenAiRoutes:
    """The routes under ``/v1``."""

    def __init__(self, gateway: Gateway) -> None:
        self._host = gateway.host
        self._models = Models(gateway.providers)
        self._shelf = Shelf(gateway.providers, gateway.settings.providers)
        self._waiters = Waiters(gateway.host)

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route(
                method="POST",
                path="/v1/chat/completions",
                name="createChatCompletion",
                summary="Answer a conversation, as clients of OpenAI ask for it.",
                call=self._chat,
                headers=Continued,
                body=ChatRequest,
                answer=ChatCompletion,
                media="text/event-stream",
                failure=FailureAnswer,
                errors=(ProviderResolutionError, NotFoundError, OverloadedError),
            ),
            Route(
                method="GET",
                path="/v1/models",
                name="listModels",
                summary="The models of the providers that are set up, the configured one first.",
                call=self._list,
                answer=ModelList,
                failure=FailureAnswer,
            ),
        ]

    def close(self) -> None:
        """Let everyone go who waits for an answer."""
        self._waiters.close()

    async def _list(self, _call: Call[Nothing, Nothing, Nothing, None]) -> ModelList:
        return await self._shelf.list(self._host.model)

    async def _chat(self, call: _Chat) -> web.StreamResponse:
        if call.body.model:
            await self._models.resolve(call.body.model)
        message, fresh = _message(call)
        receipt = await self._host.accept(CHANNEL, message, fresh=fresh)
        answer = self._streamed if call.body.stream else self._whole
        try:
            return await answer(call, receipt)
        except ConnectionError:
            # Whoever gave the request a name can come back for its answer.
            if not isinstance(call.headers.key, str):
                self._host.withdraw(receipt.session, message.dedup_key)
            log.debug("a client left", session=receipt.session)
            raise

    async def _whole(self, call: _Chat, receipt: Receipt) -> web.StreamResponse:
        answer: Message | None = None
        async with aclosing(self._waiters.follow(call.request, receipt)) as all_news:
            async for news in all_news:
                if isinstance(news, Done):
                    answer = news.answer
        if answer is not None and (failed := failure_in(answer)) is not None:
            return _failed(failed.error_name, failed.message, receipt)
        asked = call.body.model or self._host.model
        said = completion(receipt.answer_id, asked, now_ms() // 1000, answer)
        return json_answer(said, headers=_session(receipt))

    async def _streamed(self, call: _Chat, receipt: Receipt) -> web.StreamResponse:
        """A stream begins with the first text, so that what fails before has a status of its own."""
        options = call.body.stream_options
        chunks = Chunks(
            receipt.answer_id,
            call.body.model or self._host.model,
            now_ms() // 1000,
            counted=options is not None and options.include_usage,
        )
        stream = _Stream(call.request, chunks, _session(receipt))
        try:
            async with aclosing(self._waiters.follow(call.request, receipt)) as all_news:
                async for news in all_news:
                    if isinstance(news, Text):
                        await stream.write(chunks.text(news.content))
                    elif not isinstance(news, Done):
                        await stream.wait()
                    elif news.answer is not None and (failed := failure_in(news.answer)) is not None:
                        if not stream.begun:
                            return _failed(failed.error_name, failed.message, receipt)
                        await stream.write(event(failure(failed.error_name, failed.message)))
                    else:
                        await stream.write(chunks.last(news.answer))
        except TrunklineError as error:
            if not stream.begun:
                raise
            await stream.write(event(failure(error.name, str(error), error.status)))
        return stream.response


class _Stream:
    """A stream that opens when there is something to write."""

    def __init__(self, request: web.Request, chunks: Chunks, headers: dict[str, str]) -> None:
        self.response = web.StreamResponse(headers={**_STREAM, **headers})
        self.begun = False
        self._request = request
        self._chunks = chunks
        self._waited = 0

    async def write(self, data: bytes) -> None:
        if not self.begun:
            self.begun = True
            await self.response.prepare(self._request)
            data = self._chunks.first() + data
        self._waited = 0
        await self.response.write(data)

    async def wait(self) -> None:
        self._waited += 1
        if self._waited >= _BEAT:
            await self.write(b": still here\n\n")


def _message(call: _Chat) -> tuple[InboundMessage, bool]:
    """The message to accept, and whether its session's id was just minted."""
    body, key = call.body, call.headers.key
    named = _named(call)
    if named is not None:
        session, fresh = named, False
    elif isinstance(key, str):
        session, fresh = session_of_key(call.user, key), False
    else:
        session, fresh = f"chat-{new_id()}", True
    said = conversation(body.messages, session)
    name = key if isinstance(key, str) else new_id()
    message = ClientMessage.checked(name, said.text, said.pictures).inbound(CHANNEL, session, call.user)
    return msgspec.structs.replace(message, model=body.model or None, before=said.before), fresh


def _named(call: _Chat) -> str | None:
    """The session that a request continues: by its header, its metadata or its user."""
    body = call.body
    if isinstance(call.headers.session, str):
        return call.headers.session
    if body.metadata and body.metadata.get("session"):
        return body.metadata["session"]
    return session_named(body.user) if body.user else None


def _session(receipt: Receipt) -> dict[str, str]:
    return {"X-Session-Id": receipt.session}


def _failed(name: str, message: str, receipt: Receipt) -> web.Response:
    """A failed answer. Retries and fallbacks are behind it, so clients are told not to try again at once."""
    return failure_of(name, message, headers={"x-should-retry": "false", **_session(receipt)})
