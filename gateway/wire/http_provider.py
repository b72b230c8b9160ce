"""A provider made of an adapter and HTTP: sends, retries, streams, and names what goes wrong."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TYPE_CHECKING

import aiohttp

from gateway.deltas import Delta, MetadataDelta, RateLimit
from gateway.errors import DeltaParseError, ProviderError, RateLimitError, StreamAbortedError
from gateway.messages import Message
from gateway.provider import AuthMethod, Capabilities, ChatOptions, ModelInfo, ProviderConfig
from gateway.wire.adapter import AnswerWriter, ChatParser, ProviderAdapter, assembled
from gateway.wire.authorizer import Authorizer
from gateway.wire.exchange import RequestSpec, body_of, check_reachable, client_session, send
from gateway.wire.transport import EventStream
from gateway.wire.upstream import (
    ERROR_BODY_LIMIT,
    ERROR_BODY_SECONDS,
    check_status,
    redacted,
    said_in,
    whole_body,
)

if TYPE_CHECKING:
    import stamina

_MODELS_SECONDS = 30.0
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 20.0


class Call:
    """One answer on its way: reads the stream, feeds the parser, hands out deltas."""

    __slots__ = ("_config", "_failure", "_parser", "_stream", "_writer", "deltas")

    def __init__(
        self, stream: EventStream, parser: ChatParser, writer: AnswerWriter, config: ProviderConfig
    ) -> None:
        self._stream = stream
        self._parser = parser
        self._writer = writer
        self._config = config
        self._failure: ProviderError | None = None
        self.deltas: list[Delta] = []
        """What the last ``read`` found; empty once the answer is whole."""

    async def read(self) -> None:
        """Wait for more. What came before a failure is handed out first; then the failure is raised."""
        self.deltas = []
        while not self.deltas and not self._parser.done:
            if self._failure is not None:
                raise self._failure
            try:
                await self._take_in()
            except ProviderError as failure:
                self._failure = redacted(failure, self._config)
            self.deltas = self._writer.take()
        if self._failure is not None and not self.deltas:
            raise self._failure

    def ending(self, model: str, provider: str) -> list[Delta]:
        """The deltas that end the answer."""
        return self._writer.close(model, provider)

    async def drain(self) -> None:
        """Let the connection come to rest, so that it can be used again."""
        await self._stream.drain()

    def close(self) -> None:
        """End the call at once."""
        self._stream.close()

    async def _take_in(self) -> None:
        parser = self._parser
        try:
            events = await self._stream.read()
        except StreamAbortedError:
            if not self._writer.stopped:
                raise
            events = None
        if events is None:
            parser.finish()
            return
        for event in events:
            parser.feed(event)
            if parser.done:
                return


class HttpProvider:
    """A Provider over HTTP. Many calls may run at once; each has its own parser and connection.

    Given no session it opens one of its own at the first need, and closes only that one.
    """

    def __init__(
        self,
        adapter: ProviderAdapter,
        config: ProviderConfig,
        session: aiohttp.ClientSession | None = None,
        authorizer: Authorizer | None = None,
    ) -> None:
        self._adapter = adapter
        self._authorizer = authorizer
        self._config = config
        self._session = session
        self._owns_session = session is None

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

    async def initialize(self, config: ProviderConfig) -> None:
        """Take the settings. Raises SettingsError if they can never work."""
        check_reachable(config, self._adapter.endpoint(config))
        self._config = config
        self._open_session()

    async def chat(self, messages: Sequence[Message], options: ChatOptions) -> Message:
        """The whole answer at once."""
        return await assembled(self.stream, messages, options)

    async def stream(self, messages: Sequence[Message], options: ChatOptions) -> AsyncGenerator[Delta]:
        """The answer as it comes. Retries happen before its first piece; a rate limit is announced."""
        request = self._adapter.build_chat_request(messages, options, self._config)
        call, failure = await self._attempt(request, options)
        try:
            if failure is not None:
                async with contextlib.aclosing(self._retry(failure, request, options)) as outcomes:
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
        config = self._config
        if config.models:
            return [ModelInfo(name, self.id) for name in config.models]
        seconds = min(config.timeout / 1000, _MODELS_SECONDS)
        try:
            response = await self._send(self._adapter.build_models_request(config), seconds)
            return self._adapter.parse_models_response(await whole_body(response, seconds), config)
        except ProviderError as error:
            redacted(error, config)
            raise

    async def close(self) -> None:
        """Close the connections, if they are our own."""
        if self._owns_session and self._session is not None:
            await self._session.close()
            self._session = None

    async def _attempt(
        self, request: RequestSpec, options: ChatOptions
    ) -> tuple[Call, None] | tuple[None, ProviderError]:
        try:
            return await self._begin(request, options), None
        except ProviderError as error:
            return None, redacted(error, self._config)

    async def _begin(self, request: RequestSpec, options: ChatOptions) -> Call:
        """Send, and wait for the first piece of the answer (or its end)."""
        config = self._config
        response = await self._send(request, config.timeout / 1000)
        try:
            await check_status(response)
            await _check_streams(response)
            writer = AnswerWriter(options.message_id, options.first_part)
            stream = EventStream(response, self._adapter.transport, config.stream_timeout_ms / 1000)
        except BaseException:
            response.close()
            raise
        call = Call(stream, self._adapter.parser(writer), writer, config)
        try:
            await call.read()
        except BaseException:
            call.close()
            raise
        return call

    async def _retry(
        self, first: ProviderError, request: RequestSpec, options: ChatOptions
    ) -> AsyncGenerator[Call | MetadataDelta]:
        """Try again after the first failure as long as that can help; raise the last failure otherwise."""
        policy = RetryPolicy(self._config)
        call: Call | None = None
        failure: ProviderError | None = first
        async for attempt in policy.attempts():
            if attempt.num > 1:
                call, failure = await self._attempt(request, options)
            limited = failure if isinstance(failure, RateLimitError) else None
            with attempt:
                if failure is not None:
                    raise failure
            if call is not None:
                yield call
            elif limited is not None and policy.allows(limited, attempt.num):
                yield self._pause(limited, options, attempt.next_wait)

    def _pause(self, failure: RateLimitError, options: ChatOptions, backoff: float) -> MetadataDelta:
        seconds = backoff if failure.retry_after is None else failure.retry_after
        limit = RateLimit(math.ceil(seconds * 1000), self.id)
        return MetadataDelta(options.message_id, 0, 0, 0.0, rate_limit=limit)

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


class RetryPolicy:
    """How often, how long and after what a call is tried again.

    What a backend asked us to wait is waited exactly; if that is longer than the time left, the call
    fails at once. ``timeout`` bounds the time within which a new attempt may begin.
    """

    __slots__ = ("_deadline", "_retries", "_seconds")

    def __init__(self, config: ProviderConfig) -> None:
        self._retries = config.max_retries
        self._seconds = config.timeout / 1000
        self._deadline = time.monotonic() + self._seconds

    def attempts(self) -> AsyncIterator[stamina.Attempt]:
        """The attempts, the first of which counts as made."""
        # Loaded at the first failure: a gateway that has none needs neither its time nor its memory.
        import stamina

        return aiter(
            stamina.retry_context(
                on=self.pause,
                attempts=self._retries + 1,
                timeout=self._seconds,
                wait_initial=_FIRST_PAUSE,
                wait_jitter=_FIRST_PAUSE,
                wait_max=_LONGEST_PAUSE,
            )
        )

    def allows(self, failure: ProviderError, attempt: int) -> bool:
        """Whether another attempt follows attempt number ``attempt`` (from 1)."""
        return attempt <= self._retries and self.pause(failure) is not False

    def pause(self, failure: Exception) -> bool | float:
        """Seconds to wait as the backend said, True for our own choice, False to give up."""
        if not isinstance(failure, ProviderError) or not failure.retryable:
            return False
        if failure.retry_after is None:
            return True
        return failure.retry_after if time.monotonic() + failure.retry_after < self._deadline else False


def create_provider(
    adapter: ProviderAdapter,
    config: ProviderConfig,
    session: aiohttp.ClientSession | None = None,
    authorizer: Authorizer | None = None,
) -> HttpProvider:
    """A provider that speaks through ``adapter``, over ``session`` or connections of its own."""
    return HttpProvider(adapter, config, session, authorizer)


async def _check_streams(response: aiohttp.ClientResponse) -> None:
    """Some servers answer a streamed call with one JSON text (an error, mostly) or a page."""
    kind = response.headers.get("content-type", "")
    if kind.startswith(("application/json", "text/html")):
        said = said_in(await body_of(response, ERROR_BODY_LIMIT, ERROR_BODY_SECONDS))
        if said.message:
            raise said.error()
        raise DeltaParseError(f"the server answered with {kind} instead of a stream")
