"""Pings: one short request to a provider or model, what it took, or why it failed and what helps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from gateway.contract.deltas import Complete, MetadataDelta, TextDelta
from gateway.contract.errors import (
    CATCHABLE,
    AuthFailedError,
    BadRequestError,
    ModelNotFoundError,
    PluginError,
    ProviderError,
    ProviderResolutionError,
    ProviderUnavailableError,
    QuotaExceededError,
    RateLimitError,
    ServerFailedError,
    SettingsError,
    StreamTimeoutError,
    TrunklineError,
    is_cancellation_requested,
)
from gateway.contract.messages import Message, TextPart, new_id, now_ms
from gateway.contract.provider import ChatOptions, Provider
from gateway.extensions.backends import ProviderRegistry
from gateway.models import Caller, Ledger, Meter, Models, Prices, Route
from gateway.session import clamp_usage
from gateway.settings.secrets import without_passwords
from gateway.why.causes import Failure
from gateway.why.words import Words

_SOURCE = "models.test"
"""The source of these requests in the usage by plugin."""
_SECONDS = 60.0
_TOKENS = 64
_PROMPT = "Answer with the single word: ok"
_DEFAULT_ADVICE = "try again; `trunkline providers test {id} --fake` tests the adapter"
_ADVICE: Mapping[type[TrunklineError], str] = {
    AuthFailedError: "check the key: {variable}, or api_key in [providers.{id}]",
    QuotaExceededError: "add credit to the account, or raise its spending limit",
    RateLimitError: "wait, or check the limits of the account",
    ModelNotFoundError: "test another model: trunkline providers test {id}/MODEL",
    ProviderUnavailableError: "check the network, and base_url in [providers.{id}]",
    StreamTimeoutError: "try again, or raise timeout in [providers.{id}]",
    ServerFailedError: "the provider failed: try again later",
    BadRequestError: "check base_url in [providers.{id}], and that it is a chat model",
    ProviderResolutionError: "`trunkline providers list` shows all providers",
    SettingsError: "check [providers.{id}] in the settings",
    PluginError: "the plugin of the provider failed",
}


class PingResult(Struct, frozen=True, kw_only=True):
    """The result of a request. Times are milliseconds since its start.

    ``name`` is the display name of the provider, ``error`` the name of the error, ``summary`` what happened
    in a sentence, ``detail`` the original text, and ``way_out`` the remedy.
    """

    provider: str
    name: str = ""
    model: str = ""
    ok: bool = False
    first_token_ms: float | None = None
    whole_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""
    summary: str = ""
    detail: str = ""
    way_out: str = ""


MeterOf = Callable[[str, str, Sequence[Message], ChatOptions], Meter]
"""Returns a meter for a request to a provider and a model."""


def metered(ledger: Ledger, prices: Prices, account: str) -> MeterOf:
    """Return what books requests of an account: in no conversation, of no channel and no agent.

    Their source among the plugins is ``models.test``.
    """

    def meter_of(provider: str, model: str, messages: Sequence[Message], options: ChatOptions) -> Meter:
        caller = Caller("", "", account, "", provider, model, plugin=_SOURCE)
        return Meter(ledger, prices, caller, messages, options, now_ms())

    return meter_of


async def ping(
    providers: ProviderRegistry, models: Models, name: str, meter_of: MeterOf | None = None
) -> PingResult:
    """Send one short request to a provider, or to a model ``provider/model``, and meter what it costs."""
    provider_id, _, model = name.partition("/")
    try:
        async with asyncio.timeout(_SECONDS):
            route = await _route(providers, models, provider_id, model)
            model = route.model
            return await _measure(route.provider, model, meter_of)
    except TimeoutError:
        error: TrunklineError = StreamTimeoutError(f"no response within {_SECONDS:.0f} s")
    except (ProviderError, SettingsError) as failure:
        error = failure
    except CATCHABLE as failure:
        if is_cancellation_requested(failure):
            raise
        error = PluginError(f"{type(failure).__name__}: {failure}")
    variable = providers.variables(provider_id)["api_key"][0]
    advice = next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), _DEFAULT_ADVICE)
    made = providers.get(provider_id)
    name = provider_id if made is None else made.name
    return PingResult(
        provider=provider_id,
        name=name,
        model=model,
        error=error.name,
        summary=_summary(name, model, error),
        detail=without_passwords(str(error)),
        way_out=advice.format(id=provider_id, variable=variable),
    )


def _summary(provider: str, model: str, error: TrunklineError) -> str:
    """Return what happened, as a sentence without a full stop."""
    status = error.upstream_status if isinstance(error, ProviderError) else None
    if isinstance(error, SettingsError):
        return f"{provider} cannot be used with these settings"
    words = Failure(provider, model, type(error).__name__, status=status or 0).in_words(Words())
    return words[:1].upper() + words[1:]


async def _route(providers: ProviderRegistry, models: Models, provider_id: str, model: str) -> Route:
    """Return the named model, else the default of the provider, else the first that it lists."""
    if model:
        return await models.resolve(f"{provider_id}/{model}")
    try:
        return await models.resolve(models.default_model(provider_id))
    except ProviderResolutionError:
        provider = await providers.ready(provider_id)
        if not (listed := await provider.list_models()):
            raise
        return await models.resolve(f"{provider_id}/{listed[0].id}")


async def _measure(provider: Provider, model: str, meter_of: MeterOf | None) -> PingResult:
    """Send the request and read the whole answer. Raises RateLimitError instead of waiting."""
    message = Message(session_id="", role="user", parts=(TextPart(_PROMPT),))
    options = ChatOptions(model=model, max_tokens=_TOKENS, message_id=new_id())
    begun, first = time.perf_counter(), None
    completion: Complete | None = None
    usage, said = MetadataDelta(message.id, 0, 0, 0.0), 0
    meter = None if meter_of is None else meter_of(provider.id, model, [message], options)
    try:
        async for delta in provider.stream([message], options):
            if isinstance(delta, MetadataDelta):
                if delta.rate_limit is not None:
                    wait = delta.rate_limit.retry_after_ms / 1000
                    raise RateLimitError(f"rate limited; retry after {wait:g} s")
                usage = clamp_usage(delta)
            if isinstance(delta, TextDelta):
                first, said = first or time.perf_counter(), said + len(delta.content)
            if isinstance(delta, Complete):
                completion = delta
    finally:
        if meter is not None:
            meter.finish(usage, said, finished=completion is not None)
    ended = time.perf_counter()
    counts = completion.final_metadata if completion is not None else None
    return PingResult(
        provider=provider.id,
        name=provider.name,
        model=model,
        ok=True,
        first_token_ms=None if first is None else (first - begun) * 1000,
        whole_ms=(ended - begun) * 1000,
        input_tokens=counts and counts.input_tokens,
        output_tokens=counts and counts.output_tokens,
    )
