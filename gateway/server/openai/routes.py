"""What clients of OpenAI ask for, through our own sessions."""

from __future__ import annotations

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
from gateway.server.openai.chat import ChatRequest, turn_options
from gateway.server.openai.conversing import Asked, Conversing
from gateway.server.openai.failures import FailureAnswer
from gateway.server.openai.models import KnownModel, ModelList, Shelf
from gateway.server.openai.parse import session_named
from gateway.server.openai.pictures import fetched
from gateway.server.openai.render import ChatCompletion, Chunks
from gateway.server.openai.responses import ResponseRequest, conversation_of, session_of_response
from gateway.server.openai.written import ResponseAnswer, Written
from gateway.server.routes import Call, Nothing, Route


class Continued(Struct, frozen=True):
    """Which session, and the request's own name: the same one again is the same message."""

    session: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,128}$")] | UnsetType = msgspec.field(
        default=UNSET, name="X-Session-Id"
    )
    key: ClientMsgId | UnsetType = msgspec.field(default=UNSET, name="Idempotency-Key")


class Named(Struct, frozen=True):
    """Which model."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]


class OpenAiRoutes:
    """The routes under ``/v1``."""

    def __init__(self, gateway: Gateway) -> None:
        self._host = gateway.parts.host
        self._shelf = Shelf(gateway.models, gateway.profiles)
        self._conversing = Conversing(gateway.parts.host, gateway.models, gateway.profiles)
        far = gateway.settings.fetch
        self._reach = Reach(far.allow, far.max_bytes, far.timeout / 1000)

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route(
                "POST",
                "/v1/chat/completions",
                "createChatCompletion",
                "Answer a conversation, in OpenAI's chat completions format.",
                self._chat,
                sends=ChatCompletion,
                media="text/event-stream",
                error_body=FailureAnswer,
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
                error_body=FailureAnswer,
                errors=(NotFoundError, OverloadedError),
            ),
            Route(
                "GET",
                "/v1/models",
                "listModels",
                "List the configured model, aliases, agents, and the models of configured providers.",
                self._list,
                error_body=FailureAnswer,
            ),
            Route(
                "GET",
                "/v1/models/{model:.+}",
                "getModel",
                "Show a model, by any of its names.",
                self._tell,
                error_body=FailureAnswer,
                errors=(NotFoundError,),
            ),
        ]

    def close(self) -> None:
        """Let everyone go who waits for an answer."""
        self._conversing.close()

    async def _list(self, _call: Call[Nothing, Nothing, Nothing, None]) -> ModelList:
        return await self._shelf.list(self._host.model)

    async def _tell(self, call: Call[Named, Nothing, Nothing, None]) -> KnownModel:
        return await self._shelf.tell(call.path.model, self._host.model)

    async def _chat(self, call: Call[Nothing, Nothing, Continued, ChatRequest]) -> web.StreamResponse:
        body = call.body
        options = turn_options(body)
        counted = body.stream_options is not None and body.stream_options.include_usage

        def form(receipt: Receipt) -> Chunks:
            model = body.model or self._host.model
            return Chunks(receipt.answer_id, model, now_ms() // 1000, counted=counted)

        asked = _asked(call, _named(call.headers, body.metadata, body.user))
        return await self._conversing.answer(
            call.request,
            msgspec.structs.replace(
                asked, messages=await fetched(body.messages, self._reach), options=options
            ),
            form,
        )

    async def _respond(self, call: Call[Nothing, Nothing, Continued, ResponseRequest]) -> web.StreamResponse:
        body = call.body
        session = _named(call.headers, body.metadata, body.user)
        if body.previous_response_id:
            session = session_of_response(body.previous_response_id)
            await self._host.sessions.find(session)

        def form(receipt: Receipt) -> Written:
            return Written(body, receipt, body.model or self._host.model, now_ms() // 1000)

        asked = _asked(call, session)
        return await self._conversing.answer(
            call.request,
            msgspec.structs.replace(
                asked,
                messages=await fetched(conversation_of(body), self._reach),
                options=TurnOptions(server_retries=1),
            ),
            form,
        )


def _asked(
    call: Call[Nothing, Nothing, Continued, ChatRequest] | Call[Nothing, Nothing, Continued, ResponseRequest],
    session: str | None,
) -> Asked:
    key = call.headers.key
    return Asked(
        user=call.user,
        messages=(),
        model=call.body.model,
        session=session,
        key=key if isinstance(key, str) else None,
        stream=bool(call.body.stream),
    )


def _named(headers: Continued, metadata: dict[str, str] | None, user: str | None) -> str | None:
    """The session that a request continues: by its header, its metadata or its user."""
    if isinstance(headers.session, str):
        return headers.session
    if metadata and metadata.get("session"):
        return metadata["session"]
    return session_named(user) if user else None
