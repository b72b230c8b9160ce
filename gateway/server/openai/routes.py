"""The routes of the API for OpenAI clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.app import Gateway
from gateway.contract.channel import Receipt
from gateway.contract.client_message import ClientMsgId
from gateway.contract.errors import NotFoundError, OverloadedError
from gateway.contract.messages import now_ms
from gateway.contract.provider import TurnOptions
from gateway.fetching import Reach
from gateway.server.openai.chat import ChatMessage, ChatRequest, turn_options
from gateway.server.openai.chat_events import ChatCompletion, ChatEvents
from gateway.server.openai.errors import OpenAiError
from gateway.server.openai.images import fetch_images
from gateway.server.openai.models import ModelDetails, ModelList, ModelListing
from gateway.server.openai.parse import session_of_user
from gateway.server.openai.response_events import ResponseAnswer, ResponseEvents
from gateway.server.openai.responses import (
    ResponseRequest,
    conversation_of,
    response_options,
    session_of_response,
)
from gateway.server.openai.service import AnswerRequest, ConversationService
from gateway.server.routes import Call, Nothing, PlainCall, Route


class SessionHeaders(Struct, frozen=True):
    """The session to continue, and an idempotency key: a repeated key is the same message."""

    session: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,128}$")] | UnsetType = msgspec.field(
        default=UNSET, name="X-Session-Id"
    )
    key: ClientMsgId | UnsetType = msgspec.field(default=UNSET, name="Idempotency-Key")


class ModelPath(Struct, frozen=True):
    """A model name."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]


_ChatCall = Call[Nothing, Nothing, SessionHeaders, ChatRequest]
_ResponseCall = Call[Nothing, Nothing, SessionHeaders, ResponseRequest]


class OpenAiRoutes:
    """The routes under ``/v1``."""

    def __init__(self, gateway: Gateway) -> None:
        self._host = gateway.parts.host
        self._models = ModelListing(gateway.models, gateway.profiles)
        self._service = ConversationService(gateway.parts.host, gateway.models, gateway.profiles)
        limits = gateway.settings.fetch
        self._reach = Reach(limits.allow, limits.max_bytes, limits.timeout / 1000)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "POST",
                "/v1/chat/completions",
                "createChatCompletion",
                "Answer a conversation, in OpenAI's chat completions format.",
                self._chat,
                sends=ChatCompletion,
                media="text/event-stream",
                error_body=OpenAiError,
                errors=(NotFoundError, OverloadedError),
            ),
            Route(
                "POST",
                "/v1/responses",
                "createResponse",
                "Answer a conversation, in OpenAI's responses format.",
                self._respond,
                sends=ResponseAnswer,
                media="text/event-stream",
                error_body=OpenAiError,
                errors=(NotFoundError, OverloadedError),
            ),
            Route(
                "GET",
                "/v1/models",
                "listModels",
                "List the configured model, aliases, agents, and the models of configured providers.",
                self._list,
                error_body=OpenAiError,
            ),
            Route(
                "GET",
                "/v1/models/{model:.+}",
                "getModel",
                "Show a model, by any of its names.",
                self._show,
                error_body=OpenAiError,
                errors=(NotFoundError,),
            ),
        ]

    def close(self) -> None:
        """End all requests that wait for an answer."""
        self._service.close()

    async def _list(self, _call: PlainCall) -> ModelList:
        return await self._models.list(self._host.model)

    async def _show(self, call: Call[ModelPath, Nothing, Nothing, None]) -> ModelDetails:
        return await self._models.get(call.path.model, self._host.model)

    async def _chat(self, call: _ChatCall) -> web.StreamResponse:
        body = call.body
        options = turn_options(body)
        with_usage = body.stream_options is not None and body.stream_options.include_usage

        def events(receipt: Receipt) -> ChatEvents:
            model = body.model or self._host.model
            return ChatEvents(receipt.answer_id, model, now_ms() // 1000, with_usage=with_usage)

        session = _session(call.headers, body.metadata, body.user)
        asked = await self._request(call, session, body.messages, options)
        return await self._service.answer(call.request, asked, events)

    async def _respond(self, call: _ResponseCall) -> web.StreamResponse:
        body = call.body
        session = _session(call.headers, body.metadata, body.user)
        if body.previous_response_id:
            session = session_of_response(body.previous_response_id)
            await self._host.sessions.find(session)

        def events(receipt: Receipt) -> ResponseEvents:
            return ResponseEvents(body, receipt, body.model or self._host.model, now_ms() // 1000)

        asked = await self._request(call, session, conversation_of(body), response_options(body))
        return await self._service.answer(call.request, asked, events)

    async def _request(
        self,
        call: _ChatCall | _ResponseCall,
        session: str | None,
        messages: Sequence[ChatMessage],
        options: TurnOptions,
    ) -> AnswerRequest:
        key = call.headers.key
        return AnswerRequest(
            user=call.user,
            messages=await fetch_images(messages, self._reach),
            model=call.body.model,
            session=session,
            key=key if isinstance(key, str) else None,
            stream=bool(call.body.stream),
            options=options,
        )


def _session(headers: SessionHeaders, metadata: dict[str, str] | None, user: str | None) -> str | None:
    """Return the session that a request names in its header, its metadata or its user, in this order."""
    if isinstance(headers.session, str):
        return headers.session
    if metadata and metadata.get("session"):
        return metadata["session"]
    return session_of_user(user) if user else None
