"""A provider made of an adapter and HTTP: sends requests, retries, streams answers, and maps errors."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec
import structlog

from gateway.contract.deltas import Delta, MetadataDelta, RateLimit
from gateway.contract.errors import (
    AuthFailedError,
    BadRequestError,
    DeltaParseError,
    PluginError,
    ProviderError,
    RateLimitError,
    SettingsError,
    sentence,
)
from gateway.contract.messages import Message
from gateway.contract.provider import (
    AuthMethod,
    Capabilities,
    ChatOptions,
    KnowsModels,
    ModelInfo,
    ProviderConfig,
    credential_fields,
)
from gateway.http_client import HttpClient, HttpResponse, open_client
from gateway.provider_http.adapter import AnswerWriter, BuildsKeyRequest, ProviderAdapter, assemble
from gateway.provider_http.authorizer import Authorizer, BearerAuthorizer, Fetch, Token
from gateway.provider_http.call import Call, RetryPolicy
from gateway.provider_http.exchange import RequestSpec, check_reachable, read_body, send
from gateway.provider_http.leases import (
    KeyLease,
    KeyScheduler,
    KeyUse,
    LeaseTicket,
    LimitState,
    estimate_request,
    scheduler_for,
)
from gateway.provider_http.rate_limits import seconds_until_reset
from gateway.provider_http.transport import EventStream
from gateway.provider_http.upstream_errors import (
    ERROR_BODY_LIMIT,
    ERROR_BODY_SECONDS,
    check_status,
    parse_error_body,
    read_checked_body,
    redact,
)

log = structlog.get_logger("trunkline.provider")

T = TypeVar("T")

_KNOWN_TOKENS = 5
_REFUSED_SECONDS = 3600.0
"""Seconds after which an option that a model refused is sent to it again."""
_MOST_REFUSED = 256
_UNKNOWN_FIELD = re.compile(
    r"extra_forbidden|extra (inputs|fields)|unknown|unrecognized|unsupported|additional propert",
    re.IGNORECASE,
)
"""The words of a server that refuses the fields of reasoning, and not only what is in them."""
_ABOUT_EFFORT = re.compile(r"think|reason|output_config")
_NO_SCHEMAS = re.compile(
    r"(response.?format|json.?schema).{0,80}(unavailable|unsupported|not support|must be one of)"
    r"|not support.{0,60}(response.?format|json.?schema)|'text' or 'json_object'",
    re.IGNORECASE,
)
"""The words of a model without answers by a schema. One that calls the schema wrong has them."""
_REASONING = "the reasoning so far"
_SCHEMA = "the schema of the answer"
_SUMMARY = "a summary of the reasoning"

AuthorizerFor = Callable[[ProviderConfig], Authorizer | None]
"""Makes the authorizer that replaces the API key, if the settings have one. Raises SettingsError."""

_REQUEST_SECONDS = 30.0


class HttpProvider:
    """A Provider over HTTP. Many calls may run at once; each has its own parser and connection.

    Without ``client`` it opens one at the first request, and closes only that one. Raises SettingsError if
    the settings have several keys although ``authorizer_for`` replaces the key.
    """

    def __init__(
        self,
        adapter: ProviderAdapter,
        config: ProviderConfig,
        client: HttpClient | None = None,
        authorizer_for: AuthorizerFor | None = None,
    ) -> None:
        self._adapter = adapter
        self._authorizer_for = authorizer_for
        self._client = client
        self._owns_client = client is None
        self._tokens: deque[str] = deque(maxlen=_KNOWN_TOKENS)
        """Of a plugin, the latest last; servers repeat in errors what they reject."""
        self._configure(config)
        self._variants: dict[Capabilities, ProviderAdapter] = {}
        self._refused: dict[tuple[str, str], float] = {}
        """Until when not to send an option (or the ``reasoning`` of the conversation) to a model."""

    @property
    def id(self) -> str:
        """The id under which the provider is configured."""
        return self._config.id

    @property
    def name(self) -> str:
        """The display name."""
        return self._config.name or self._adapter.name

    @property
    def api_endpoint(self) -> str:
        """The address that requests go to."""
        return self._adapter.endpoint(self._config)

    @property
    def auth_method(self) -> AuthMethod:
        """The way in which requests are authorized."""
        return self._adapter.auth_method

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the vendor's models."""
        return self._adapter.capabilities

    @property
    def limits(self) -> LimitState | None:
        """The use of its keys and limits now; None for a single key without a known limit."""
        return None if self._scheduler is None else self._scheduler.state

    @property
    def key_uses(self) -> Sequence[KeyUse]:
        """The state of each key now; empty for a single key without a known limit."""
        return () if self._scheduler is None else self._scheduler.uses

    def end_holds(self) -> int:
        """Use the keys again that wait for a rate limit of the backend. Returns their number."""
        return 0 if self._scheduler is None else self._scheduler.end_holds()

    def capabilities_of(self, model: str) -> Capabilities:
        """Return the capabilities of one model, or those of the adapter if it has no others."""
        adapter = self._adapter
        return adapter.capabilities_of(model) if isinstance(adapter, KnowsModels) else adapter.capabilities

    async def initialize(self, config: ProviderConfig) -> None:
        """Apply the settings. Raises SettingsError if they can never work."""
        check_reachable(config, self._adapter.endpoint(config))
        if config is not self._config:
            self._configure(config)
        self._open_client()

    def reload(self, config: ProviderConfig) -> None:
        """Use the new credentials from the next call on. Running calls keep those that they began with."""
        if _credentials(config) != _credentials(self._config):
            self._configure(config)

    def _configure(self, config: ProviderConfig) -> None:
        authorizer = None if self._authorizer_for is None else self._authorizer_for(config)
        if config.fetch_token is not None:
            authorizer = BearerAuthorizer(_fetch_of(config.fetch_token, self._tokens))
        if authorizer is not None and len(config.keys) > 1:
            raise SettingsError(
                f"providers.{config.id}.api_keys: {self._adapter.name} does not use API keys here; "
                "set one credential"
            )
        self._authorizer = authorizer
        self._config = config
        self._scheduler = scheduler_for(config)

    async def chat(self, messages: Sequence[Message], options: ChatOptions) -> Message:
        """Return the complete answer."""
        return await assemble(self.stream, messages, options)

    async def stream(self, messages: Sequence[Message], options: ChatOptions) -> AsyncGenerator[Delta]:
        """Yield the answer as it arrives. Retries only before its first delta; announces waits for limits."""
        messages = [message.with_state_of(self.id, options.model) for message in messages]
        # The first attempt runs outside ``_retry``: most calls need no more, and its generators cost time.
        first = await self._attempt(messages, options) if self._scheduler is None else None
        call = first if isinstance(first, Call) else None
        try:
            if not isinstance(first, Call):
                async with contextlib.aclosing(self._retry(first, messages, options)) as outcomes:
                    async for outcome in outcomes:
                        if isinstance(outcome, MetadataDelta):
                            yield outcome
                        else:
                            call = outcome
            assert call is not None, "_retry ends with a call or an error"
            while call.deltas:
                for delta in call.deltas:
                    yield delta
                await call.read()
            for delta in call.closing_deltas(options.model, self.id):
                yield delta
            await call.release()
        finally:
            if call is not None:
                call.close()

    async def list_models(self) -> Sequence[ModelInfo]:
        """Return the models from the settings, or else from the backend. Raises a ProviderError."""
        if self._config.models:
            return [ModelInfo(name, self.id) for name in self._config.models]
        *others, last = self._scheduler.configs if self._scheduler is not None else (self._config,)
        for config in others:
            with contextlib.suppress(AuthFailedError, RateLimitError):
                return await self._list_models_with(config)
        return await self._list_models_with(last)

    async def try_key(self) -> None:
        """Send a request that needs a valid key, if the model list is public. Raises a ProviderError."""
        adapter, config = self._adapter, self._config
        request = adapter.build_key_request(config) if isinstance(adapter, BuildsKeyRequest) else None
        if request is not None:
            await self._fetch(request, config, len)

    async def close(self) -> None:
        """Close the connections, unless the client was passed in."""
        if self._owns_client and self._client is not None:
            await self._client.close()
            self._client = None

    async def _reload_login(self) -> bool:
        """Load the credential of a login made since the start; return whether it is a new one."""
        config = self._config
        if config.load_login is None:
            return False
        try:
            found = await asyncio.to_thread(config.load_login)
        except SettingsError as error:
            log.error("cannot read the stored login", provider=self.id, reason=str(error))
            return False
        if found is None or (fields := credential_fields(found))["api_key"] == config.api_key:
            return False
        self.reload(msgspec.structs.replace(config, **fields))
        return True

    async def _list_models_with(self, config: ProviderConfig) -> Sequence[ModelInfo]:
        adapter = self._adapter
        request = adapter.build_models_request(config)
        return await self._fetch(request, config, lambda body: adapter.parse_models_response(body, config))

    async def _fetch(self, request: RequestSpec, config: ProviderConfig, read: Callable[[bytes], T]) -> T:
        seconds = min(config.timeout / 1000, _REQUEST_SECONDS)
        try:
            return read(await read_checked_body(await self._send(request, seconds), seconds))
        except ProviderError as error:
            redact(error, config, self._tokens)
            raise

    async def _attempt(
        self, messages: Sequence[Message], options: ChatOptions, lease: KeyLease | None = None
    ) -> Call | ProviderError:
        own = self._config
        # The credentials may have changed while the call waited for its lease.
        config = lease.config if lease is not None and lease.config.api_key in own.keys else own
        adapter = self._adapter_for(options)
        if self._is_refused(options.model, _REASONING):
            messages = _without_reasoning(messages)
        options = self._without_refused(options)
        request = adapter.build_chat_request(messages, options, config)
        try:
            return await self._open_call(adapter, request, options, lease)
        except ProviderError as error:
            failure = redact(error, own, self._tokens)
        failure.key = config.key_name
        if isinstance(failure, BadRequestError) and (refused := _refused_option(options, failure, messages)):
            self._record_refused(options, refused, failure)
            messages = _without_reasoning(messages) if refused == _REASONING else messages
            return await self._attempt(messages, options, lease)
        if lease is None and isinstance(failure, RateLimitError) and failure.retry_after:
            self._require_scheduler().record_failure(1, options.model, failure)
        return failure

    def _is_refused(self, model: str, option: str) -> bool:
        return self._refused.get((model, option), 0.0) > time.monotonic()

    def _without_refused(self, options: ChatOptions) -> ChatOptions:
        """Return the options without those that the model refused."""
        if not self._refused:
            return options
        if self._is_refused(options.model, f"effort {options.effort}"):
            options = msgspec.structs.replace(options, effort=None)
        if self._is_refused(options.model, _SUMMARY):
            options = msgspec.structs.replace(options, summarize=False)
        if options.answer_schema is not None and self._is_refused(options.model, _SCHEMA):
            schema = msgspec.json.encode(options.answer_schema.schema).decode()
            prompt = (
                f"{options.system_prompt}\n\nAnswer in JSON that meets this JSON schema:\n{schema}".lstrip()
            )
            options = msgspec.structs.replace(options, answer_schema=None, system_prompt=prompt)
        return options

    def _record_refused(self, options: ChatOptions, option: str, failure: ProviderError) -> None:
        log.info(
            "asking again without what the model refused",
            provider=self.id,
            model=options.model,
            refused=option,
            reason=failure.original,
        )
        # A server that cannot read the reasoning of another account reads that of this one.
        if option != _REASONING or _UNKNOWN_FIELD.search(failure.original):
            if len(self._refused) >= _MOST_REFUSED:
                self._refused.clear()
            self._refused[options.model, option] = time.monotonic() + _REFUSED_SECONDS

    async def _open_call(
        self, adapter: ProviderAdapter, request: RequestSpec, options: ChatOptions, lease: KeyLease | None
    ) -> Call:
        """Send the request, and wait for the first delta of the answer (or its end)."""
        config = self._config
        response = await self._send(request, config.timeout / 1000)
        try:
            if seconds := seconds_until_reset(response.headers):
                self._require_scheduler().hold(lease.position if lease else 1, options.model, seconds)
            await check_status(response)
            await _check_streams(response)
            writer = AnswerWriter(options, self.id)
            stream = EventStream(response, adapter.transport, config.stream_timeout_ms / 1000)
        except BaseException:
            response.close()
            raise
        call = Call(stream, adapter.parser(writer), writer, config, self._tokens)
        try:
            await call.read()
        except BaseException:
            call.close()
            raise
        return call

    async def _retry(
        self, first: ProviderError | None, messages: Sequence[Message], options: ChatOptions
    ) -> AsyncGenerator[Call | MetadataDelta]:
        """Attempt the call until it streams or a retry cannot help; then raise the last failure.

        ``first`` is the failure of the first attempt, if that was already made.
        """
        policy = RetryPolicy(self._config, options.server_retries)
        outcome: Call | ProviderError | None = first
        async for attempt in policy.attempts():
            if attempt.num > 1 or outcome is None:
                leased = self._lease(messages, options)
                while True:
                    if isinstance(leased, LeaseTicket):
                        with leased:
                            yield self._wait_notice(leased.seconds, options, for_lease=True)
                            leased = await leased.wait(policy.remaining_seconds)
                    outcome = await self._attempt_with(leased, messages, options)
                    if self._scheduler is None or leased is None or isinstance(outcome, Call):
                        break
                    leased = self._scheduler.next_lease(leased, outcome)
                    if leased is None:
                        break
                    _report(options, outcome, attempt.num, 0.0)
            if isinstance(outcome, AuthFailedError) and await self._reload_login():
                outcome = await self._attempt(messages, options)
            if isinstance(outcome, Call):
                yield outcome
                return
            pause = policy.next_pause(outcome, attempt.num)
            _report(options, outcome, attempt.num, pause)
            with attempt:
                raise outcome
            if isinstance(outcome, RateLimitError) and pause is not None:
                yield self._wait_notice(pause, options)
                await self._require_scheduler().pause(pause)

    async def _attempt_with(
        self, lease: KeyLease | None, messages: Sequence[Message], options: ChatOptions
    ) -> Call | ProviderError:
        """Make one attempt; a call that streams keeps the lease."""
        if lease is not None and options.on_lease is not None:
            options.on_lease(lease.config.key_name, 0.0)
        try:
            outcome = await self._attempt(messages, options, lease)
        except BaseException:
            if lease is not None:
                lease.release()
            raise
        if isinstance(outcome, Call):
            outcome.lease = lease
        return outcome

    def _wait_notice(self, seconds: float, options: ChatOptions, *, for_lease: bool = False) -> MetadataDelta:
        if for_lease and options.on_lease is not None:
            options.on_lease(None, seconds)
        limit = RateLimit(math.ceil(seconds * 1000), self.id)
        return MetadataDelta(options.message_id, 0, 0, 0.0, rate_limit=limit)

    def _lease(self, messages: Sequence[Message], options: ChatOptions) -> KeyLease | LeaseTicket | None:
        if self._scheduler is None:
            return None
        size = 0
        if self._config.tokens_per_minute is not None:
            adapter = self._adapter_for(options)
            size = len(adapter.build_chat_request(messages, options, self._config).body or b"")
        return self._scheduler.acquire(estimate_request(messages, options.model, size))

    def _adapter_for(self, options: ChatOptions) -> ProviderAdapter:
        """Return the adapter, or a variant of it if the model's capabilities differ from the usual ones."""
        wanted = options.capabilities
        if wanted is None or wanted == self._adapter.capabilities:
            return self._adapter
        # Variants are kept, since each has its own cache of encoded messages.
        if wanted not in self._variants:
            self._variants[wanted] = self._adapter.with_capabilities(wanted)
        return self._variants[wanted]

    def _require_scheduler(self) -> KeyScheduler:
        """Return the scheduler; make one once the backend reports a limit."""
        if self._scheduler is None:
            self._scheduler = KeyScheduler(self._config)
        return self._scheduler

    async def _send(self, request: RequestSpec, seconds: float) -> HttpResponse:
        """Send the authorized request; after a 401, once more if the authorizer can get a new credential."""
        client, authorizer = self._open_client(), self._authorizer
        if authorizer is None:
            return await send(client, request, seconds)
        response = await send(client, await authorizer.authorize(request, client), seconds)
        if response.status == 401 and authorizer.forget():
            response.close()
            response = await send(client, await authorizer.authorize(request, client), seconds)
        return response

    def _open_client(self) -> HttpClient:
        if self._client is None:
            self._client = open_client(self._config.http_client)
        return self._client


def create_provider(
    adapter: ProviderAdapter,
    config: ProviderConfig,
    client: HttpClient | None = None,
    authorizer_for: AuthorizerFor | None = None,
) -> HttpProvider:
    """Make a provider that uses ``adapter``, over ``client`` or over its own connections."""
    return HttpProvider(adapter, config, client, authorizer_for)


def _credentials(config: ProviderConfig) -> tuple[object, ...]:
    return config.keys, config.oauth, config.credentials


async def _check_streams(response: HttpResponse) -> None:
    # Some servers answer a streamed call with status 200 and one JSON text (usually an error) or a page.
    kind = response.headers.get("content-type", "")
    if kind.startswith(("application/json", "text/html")):
        error = parse_error_body(await read_body(response, ERROR_BODY_LIMIT, ERROR_BODY_SECONDS))
        if error.message:
            raise error.to_exception()
        raise DeltaParseError(f"the server answered with {kind} instead of a stream")


def _without_reasoning(messages: Sequence[Message]) -> list[Message]:
    return [message.with_state_of() for message in messages]


def _refused_option(
    options: ChatOptions, failure: BadRequestError, messages: Sequence[Message]
) -> str | None:
    """Return what the model refused, if the request can be repeated without it."""
    words = failure.original.lower()
    if options.answer_schema is not None and _NO_SCHEMAS.search(words):
        return _SCHEMA
    if options.summarize and "summar" in words:
        return _SUMMARY
    if options.effort is not None and "effort" in words:
        return f"effort {options.effort}"
    if messages != _without_reasoning(messages):
        return _REASONING
    if options.effort is not None and _ABOUT_EFFORT.search(words):
        return f"effort {options.effort}"
    return None


def _report(options: ChatOptions, failure: ProviderError, attempt: int, seconds: float | None) -> None:
    """Call ``on_retry``, unless no attempt follows."""
    if options.on_retry is not None and seconds is not None:
        options.on_retry(failure, attempt, seconds)


def _fetch_of(fetch_token: Callable[[], Awaitable[tuple[str, float]]], tokens: deque[str]) -> Fetch:
    """Return what fetches a token of a plugin, and notes it in ``tokens``."""

    async def fetch(_client: HttpClient) -> Token:
        try:
            value, expires_at = await fetch_token()
        except PluginError as error:
            raise AuthFailedError(sentence(error)) from None
        tokens.append(value)
        return Token(value, expires_at)

    return fetch
