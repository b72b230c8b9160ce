"""A provider made of an adapter and HTTP: sends, retries, streams, and names what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

import aiohttp
import msgspec
import structlog

from gateway.deltas import Delta, MetadataDelta, RateLimit
from gateway.errors import AuthFailedError, DeltaParseError, ProviderError, RateLimitError, SettingsError
from gateway.messages import Message
from gateway.provider import (
    AuthMethod,
    Capabilities,
    ChatOptions,
    KnowsModels,
    ModelInfo,
    ProviderConfig,
    fields_of,
)
from gateway.wire.adapter import AnswerWriter, ListsForAll, ProviderAdapter, assembled
from gateway.wire.authorizer import Authorizer
from gateway.wire.call import Call
from gateway.wire.exchange import RequestSpec, body_of, check_reachable, client_session, send
from gateway.wire.remaining import seconds_until_reset
from gateway.wire.retrying import RetryPolicy
from gateway.wire.slots import Slots, slots_for
from gateway.wire.transport import EventStream
from gateway.wire.upstream import (
    ERROR_BODY_LIMIT,
    ERROR_BODY_SECONDS,
    check_status,
    redacted,
    said_in,
    whole_body,
)
from gateway.wire.waiting import Slot, Waiting, Wish, wish_for

log = structlog.get_logger("trunkline.provider")

T = TypeVar("T")

AuthorizerFor = Callable[[ProviderConfig], Authorizer | None]
"""What shows something else than a key, if the settings say so. Raises SettingsError."""

_MODELS_SECONDS = 30.0


class HttpProvider:
    """A Provider over HTTP. Many calls may run at once; each has its own parser and connection.

    Given no session it opens one of its own at the first need, and closes only that one. Raises SettingsError
    if there are several keys where ``authorizer_for`` shows something else.
    """

    def __init__(
        self,
        adapter: ProviderAdapter,
        config: ProviderConfig,
        session: aiohttp.ClientSession | None = None,
        authorizer_for: AuthorizerFor | None = None,
    ) -> None:
        self._adapter = adapter
        self._authorizer_for = authorizer_for
        self._session = session
        self._owns_session = session is None
        self._take(config)
        self._others: dict[Capabilities, ProviderAdapter] = {}

    @property
    def id(self) -> str:
        """The id the provider is configured under."""
        return self._config.id

    @property
    def name(self) -> str:
        """What people call it."""
        return self._config.name or self._adapter.name

    @property
    def api_endpoint(self) -> str:
        """The address requests go to."""
        return self._adapter.endpoint(self._config)

    @property
    def auth_method(self) -> AuthMethod:
        """How we identify ourselves."""
        return self._adapter.auth_method

    @property
    def capabilities(self) -> Capabilities:
        """What the vendor's models can do."""
        return self._adapter.capabilities

    def capabilities_of(self, model: str) -> Capabilities:
        """What one of them can do, where the adapter knows."""
        adapter = self._adapter
        return adapter.capabilities_of(model) if isinstance(adapter, KnowsModels) else adapter.capabilities

    async def initialize(self, config: ProviderConfig) -> None:
        """Take the settings. Raises SettingsError if they can never work."""
        check_reachable(config, self._adapter.endpoint(config))
        if config is not self._config:
            self._take(config)
        self._open_session()

    def adopt(self, config: ProviderConfig) -> None:
        """Go on with other credentials. Calls that are under way end with those that they began with."""
        if _shown(config) != _shown(self._config):
            self._take(config)

    def _take(self, config: ProviderConfig) -> None:
        authorizer = None if self._authorizer_for is None else self._authorizer_for(config)
        if authorizer is not None and len(config.keys) > 1:
            raise SettingsError(
                f"providers.{config.id}.api_keys: {self._adapter.name} is not called with keys; "
                "give one credential"
            )
        self._authorizer = authorizer
        self._config = config
        self._slots = slots_for(config)

    async def chat(self, messages: Sequence[Message], options: ChatOptions) -> Message:
        """The whole answer at once."""
        return await assembled(self.stream, messages, options)

    async def stream(self, messages: Sequence[Message], options: ChatOptions) -> AsyncGenerator[Delta]:
        """The answer as it comes. Retries happen before its first piece; waits for limits are announced."""
        first = await self._attempt(messages, options) if self._slots is None else None
        call = first if isinstance(first, Call) else None
        try:
            if not isinstance(first, Call):
                async with contextlib.aclosing(self._retry(first, messages, options)) as outcomes:
                    async for outcome in outcomes:
                        if isinstance(outcome, MetadataDelta):
                            yield outcome
                        else:
                            call = outcome
            assert call is not None, "retrying ends with a call or an error"
            while call.deltas:
                for delta in call.deltas:
                    yield delta
                await call.read()
            for delta in call.ending(options.model, self.id):
                yield delta
            await call.drain()
        finally:
            if call is not None:
                call.close()

    async def list_models(self) -> Sequence[ModelInfo]:
        """The models the settings list, or else the backend. Raises a ProviderError if it does not say."""
        if self._config.models:
            return [ModelInfo(name, self.id) for name in self._config.models]
        *others, last = self._slots.configs if self._slots is not None else (self._config,)
        for config in others:
            with contextlib.suppress(AuthFailedError, RateLimitError):
                return await self._listed(config)
        return await self._listed(last)

    async def try_key(self) -> None:
        """Show the key where the list of models is for everybody, and so proves nothing."""
        adapter, config = self._adapter, self._config
        request = adapter.build_key_request(config) if isinstance(adapter, ListsForAll) else None
        if request is not None:
            await self._asked(request, config, len)

    async def close(self) -> None:
        """Close the connections, if they are our own."""
        if self._owns_session and self._session is not None:
            await self._session.close()
            self._session = None

    async def _signed_in_since(self) -> bool:
        """Whether somebody signed in meanwhile; what that left is shown from now on."""
        config = self._config
        if config.login is None:
            return False
        try:
            found = await asyncio.to_thread(config.login)
        except SettingsError as error:
            log.error("what a login left cannot be read", provider=self.id, reason=str(error))
            return False
        if found is None or (fields := fields_of(found))["api_key"] == config.api_key:
            return False
        self.adopt(msgspec.structs.replace(config, **fields))
        return True

    async def _listed(self, config: ProviderConfig) -> Sequence[ModelInfo]:
        adapter = self._adapter
        request = adapter.build_models_request(config)
        return await self._asked(request, config, lambda body: adapter.parse_models_response(body, config))

    async def _asked(self, request: RequestSpec, config: ProviderConfig, read: Callable[[bytes], T]) -> T:
        seconds = min(config.timeout / 1000, _MODELS_SECONDS)
        try:
            return read(await whole_body(await self._send(request, seconds), seconds))
        except ProviderError as error:
            redacted(error, config)
            raise

    async def _attempt(
        self, messages: Sequence[Message], options: ChatOptions, slot: Slot | None = None
    ) -> Call | ProviderError:
        own = self._config
        # Whoever waited for a slot may have been signed out meanwhile.
        config = slot.config if slot is not None and slot.config.api_key in own.keys else own
        adapter = self._adapter_for(options)
        request = adapter.build_chat_request(messages, options, config)
        try:
            return await self._begin(adapter, request, options, slot)
        except ProviderError as error:
            failure = redacted(error, own)
        if slot is None and isinstance(failure, RateLimitError) and failure.retry_after:
            self._limited().note(1, options.model, failure)
        return failure

    async def _begin(
        self, adapter: ProviderAdapter, request: RequestSpec, options: ChatOptions, slot: Slot | None
    ) -> Call:
        """Send, and wait for the first piece of the answer (or its end)."""
        config = self._config
        response = await self._send(request, config.timeout / 1000)
        try:
            if seconds := seconds_until_reset(response.headers):
                self._limited().rest(slot.position if slot else 1, options.model, seconds)
            await check_status(response)
            await _check_streams(response)
            writer = AnswerWriter(options)
            stream = EventStream(response, adapter.transport, config.stream_timeout_ms / 1000)
        except BaseException:
            response.close()
            raise
        call = Call(stream, adapter.parser(writer), writer, config)
        try:
            await call.read()
        except BaseException:
            call.close()
            raise
        return call

    async def _retry(
        self, first: ProviderError | None, messages: Sequence[Message], options: ChatOptions
    ) -> AsyncGenerator[Call | MetadataDelta]:
        """Try, again too, as long as that can help; raise the last failure otherwise.

        ``first`` is the failure of the first attempt, if it was made already.
        """
        policy = RetryPolicy(self._config)
        outcome: Call | ProviderError | None = first
        async for attempt in policy.attempts():
            if attempt.num > 1 or outcome is None:
                asked = None if self._slots is None else self._slots.ask(self._wish(messages, options))
                while True:
                    if isinstance(asked, Waiting):
                        with asked:
                            yield self._told(asked.seconds, options)
                            asked = await asked.slot(policy.left)
                    outcome = await self._with_slot(messages, options, asked)
                    if self._slots is None or asked is None or isinstance(outcome, Call):
                        break
                    asked = self._slots.instead(asked, outcome)
                    if asked is None:
                        break
            if isinstance(outcome, AuthFailedError) and await self._signed_in_since():
                outcome = await self._attempt(messages, options)
            if isinstance(outcome, Call):
                yield outcome
                return
            pause = policy.failed(outcome, attempt.num)
            with attempt:
                raise outcome
            if isinstance(outcome, RateLimitError) and pause is not None:
                yield self._told(pause, options)

    async def _with_slot(
        self, messages: Sequence[Message], options: ChatOptions, slot: Slot | None
    ) -> Call | ProviderError:
        """One attempt, whose slot is the call's if there is one."""
        try:
            outcome = await self._attempt(messages, options, slot)
        except BaseException:
            if slot is not None:
                slot.release()
            raise
        if isinstance(outcome, Call):
            outcome.slot = slot
        return outcome

    def _told(self, seconds: float, options: ChatOptions) -> MetadataDelta:
        limit = RateLimit(math.ceil(seconds * 1000), self.id)
        return MetadataDelta(options.message_id, 0, 0, 0.0, rate_limit=limit)

    def _wish(self, messages: Sequence[Message], options: ChatOptions) -> Wish:
        size = 0
        if self._config.tokens_per_minute is not None:
            adapter = self._adapter_for(options)
            size = len(adapter.build_chat_request(messages, options, self._config).body or b"")
        return wish_for(messages, options.model, size)

    def _adapter_for(self, options: ChatOptions) -> ProviderAdapter:
        """The adapter, or one like it for models that can do other things than is usual there."""
        able = options.capabilities
        if able is None or able == self._adapter.capabilities:
            return self._adapter
        if able not in self._others:
            self._others[able] = self._adapter.able(able)
        return self._others[able]

    def _limited(self) -> Slots:
        """The slots, also of a provider that needed none until it said that it has a limit."""
        if self._slots is None:
            self._slots = Slots(self._config)
        return self._slots

    async def _send(self, request: RequestSpec, seconds: float) -> aiohttp.ClientResponse:
        """Send with proof of who we are; if that is refused and another can be had, once more with that."""
        session, authorizer = self._open_session(), self._authorizer
        if authorizer is None:
            return await send(session, request, seconds)
        response = await send(session, await authorizer.authorize(request, session), seconds)
        if response.status == 401 and authorizer.forget():
            response.close()
            response = await send(session, await authorizer.authorize(request, session), seconds)
        return response

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = client_session()
        return self._session


def create_provider(
    adapter: ProviderAdapter,
    config: ProviderConfig,
    session: aiohttp.ClientSession | None = None,
    authorizer_for: AuthorizerFor | None = None,
) -> HttpProvider:
    """A provider that speaks through ``adapter``, over ``session`` or connections of its own."""
    return HttpProvider(adapter, config, session, authorizer_for)


def _shown(config: ProviderConfig) -> tuple[object, ...]:
    """All that a backend may be shown of who we are."""
    return config.keys, config.oauth, config.credentials


async def _check_streams(response: aiohttp.ClientResponse) -> None:
    """Some servers answer a streamed call with one JSON text (an error, mostly) or a page."""
    kind = response.headers.get("content-type", "")
    if kind.startswith(("application/json", "text/html")):
        said = said_in(await body_of(response, ERROR_BODY_LIMIT, ERROR_BODY_SECONDS))
        if said.message:
            raise said.error()
        raise DeltaParseError(f"the server answered with {kind} instead of a stream")
