"""One tiny call of each provider that is set up: does it answer, how soon, and if not, what to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.app import Gateway
from gateway.cli.drawing import plain
from gateway.cli.providing import gateway_of, say_who_is_left_out
from gateway.deltas import Complete, MetadataDelta, TextDelta
from gateway.errors import (
    FAILURES,
    AuthFailedError,
    BadRequestError,
    ModelNotFoundError,
    PluginError,
    ProviderError,
    ProviderResolutionError,
    ProviderUnavailableError,
    RateLimitError,
    ServerFailedError,
    SettingsError,
    StreamTimeoutError,
    TrunklineError,
    asked_for,
)
from gateway.messages import Message, TextPart, new_id
from gateway.provider import ChatOptions, Provider
from gateway.routing import Route
from gateway.settings import Settings
from gateway.settings.masking import without_passwords

_SECONDS = 60.0
_TOKENS = 64
_ASKED = "Answer with the single word: ok"
_AGAIN = "try again; whether the adapter is to blame tells `trunkline providers test {id} --fake`"
_WAYS_OUT: Mapping[type[TrunklineError], str] = {
    AuthFailedError: "is the key right? {variable}, or api_key in [providers.{id}]",
    RateLimitError: "wait, or see the limits of the account",
    ModelNotFoundError: "name another model: trunkline providers test {id}/MODEL",
    ProviderUnavailableError: "is the network up, and base_url in [providers.{id}] right?",
    StreamTimeoutError: "try again, or set timeout in [providers.{id}]",
    ServerFailedError: "the fault is theirs: try again later",
    BadRequestError: "is base_url in [providers.{id}] right, and does the model chat?",
    ProviderResolutionError: "`trunkline providers list` shows those there are",
    SettingsError: "see [providers.{id}] in the settings",
    PluginError: "the fault is in the plugin that brings it",
}


class Called(Struct, frozen=True, kw_only=True):
    """What came of a call. Times are milliseconds from the call; ``error`` is a name, ``way_out`` advice."""

    provider: str
    model: str = ""
    ok: bool = False
    first_token_ms: float | None = None
    whole_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""
    detail: str = ""
    way_out: str = ""


async def called(settings: Settings, environ: Mapping[str, str], names: Sequence[str]) -> list[Called]:
    """Call those that are named, or else all that are set up; all at once."""
    async with gateway_of(settings, environ) as gateway:
        say_who_is_left_out(gateway)
        wanted = list(dict.fromkeys(names)) or list(gateway.models.set_up())
        with Console(stderr=True).status(f"asking {', '.join(wanted)}"):
            async with asyncio.TaskGroup() as tasks:
                calls = [tasks.create_task(_call(gateway, name)) for name in wanted]
    return [call.result() for call in calls]


def print_called(found: Sequence[Called]) -> None:
    """A table, and below it what went wrong and what to do."""
    table = Table(box=None, header_style="bold")
    for title in ("provider", "model", "", "first token", "whole", "tokens"):
        table.add_column(title, justify="right" if title in ("first token", "whole", "tokens") else "left")
    for each in found:
        state = Text("✓ answers", style="green") if each.ok else Text(f"✗ {each.error}", style="red")
        tokens = "" if each.input_tokens is None else f"{each.input_tokens} + {each.output_tokens}"
        times = ("" if ms is None else f"{ms:,.0f} ms" for ms in (each.first_token_ms, each.whole_ms))
        table.add_row(plain(each.provider), plain(each.model), state, *times, tokens)
    console = Console(highlight=False)
    console.print(table)
    for each in found:
        if not each.ok:
            console.print(Text(f"{each.provider}: {plain(each.detail)}"), soft_wrap=True)
            console.print(Text(f"→ {each.way_out}", style="bold"), soft_wrap=True)


async def _call(gateway: Gateway, name: str) -> Called:
    provider_id, _, model = name.partition("/")
    try:
        async with asyncio.timeout(_SECONDS):
            route = await _route(gateway, provider_id, model)
            return await _answered(route.provider, route.model)
    except TimeoutError:
        error: TrunklineError = StreamTimeoutError(f"no answer within {_SECONDS:.0f} s")
    except (ProviderError, SettingsError) as failure:
        error = failure
    except FAILURES as failure:
        if asked_for(failure):
            raise
        error = PluginError(f"{type(failure).__name__}: {failure}")
    variable = gateway.providers.variables(provider_id)["api_key"][0]
    advice = next((text for kind, text in _WAYS_OUT.items() if isinstance(error, kind)), _AGAIN)
    return Called(
        provider=provider_id,
        model=model,
        error=error.name,
        detail=without_passwords(str(error)),
        way_out=advice.format(id=provider_id, variable=variable),
    )


async def _route(gateway: Gateway, provider_id: str, model: str) -> Route:
    """The model that is named, else the one that the provider begins with, else the first it lists."""
    if model:
        return await gateway.models.resolve(f"{provider_id}/{model}")
    try:
        return await gateway.models.resolve(gateway.models.first_of(provider_id))
    except ProviderResolutionError:
        provider = await gateway.providers.ready(provider_id)
        if not (listed := await provider.list_models()):
            raise
        return await gateway.models.resolve(f"{provider_id}/{listed[0].id}")


async def _answered(provider: Provider, model: str) -> Called:
    """Ask, and read the answer to its end. Raises what the provider raises, and does not wait for leave."""
    message = Message(session_id="", role="user", parts=(TextPart(_ASKED),))
    options = ChatOptions(model=model, max_tokens=_TOKENS, message_id=new_id())
    begun, first = time.perf_counter(), None
    told: Complete | None = None
    async for delta in provider.stream([message], options):
        if isinstance(delta, MetadataDelta) and delta.rate_limit is not None:
            raise RateLimitError(f"it wants us to wait {delta.rate_limit.retry_after_ms / 1000:g} s")
        if isinstance(delta, TextDelta) and first is None:
            first = time.perf_counter()
        if isinstance(delta, Complete):
            told = delta
    ended = time.perf_counter()
    counts = told.final_metadata if told is not None else None
    return Called(
        provider=provider.id,
        model=model,
        ok=True,
        first_token_ms=None if first is None else (first - begun) * 1000,
        whole_ms=(ended - begun) * 1000,
        input_tokens=counts and counts.input_tokens,
        output_tokens=counts and counts.output_tokens,
    )
