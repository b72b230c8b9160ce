"""``trunkline providers test``: one short request to each provider, or contract tests of its adapter."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.app import Gateway
from gateway.cli.models.provider_info import idle_gateway, warn_of_failed_plugins
from gateway.cli.options import FAILED, REFUSED, AsJson, File, fail, fail_without_testing, settings_from
from gateway.cli.output import echo_json, plain
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
    RateLimitError,
    ServerFailedError,
    SettingsError,
    StreamTimeoutError,
    TrunklineError,
    is_cancellation_requested,
)
from gateway.contract.messages import Message, TextPart, new_id
from gateway.contract.provider import ChatOptions, Provider
from gateway.models import Route
from gateway.settings import Settings
from gateway.settings.secrets import without_passwords

_SECONDS = 60.0
_TOKENS = 64
_PROMPT = "Answer with the single word: ok"
_DEFAULT_ADVICE = "try again; `trunkline providers test {id} --fake` tests the adapter"
_ADVICE: Mapping[type[TrunklineError], str] = {
    AuthFailedError: "check the key: {variable}, or api_key in [providers.{id}]",
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


Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Providers, or models as provider/model.", show_default=False),
]
Everything = Annotated[bool, typer.Option("--all", help="All of them.")]
Fake = Annotated[
    bool, typer.Option("--fake", help="Test the adapters against fake servers on this machine, offline.")
]


class PingResult(Struct, frozen=True, kw_only=True):
    """The result of a request. Times are milliseconds since its start; ``error`` is the name of the error."""

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


def probe(
    names: Names = None,
    everything: Everything = False,
    fake: Fake = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Send each provider one short request, or test its adapter against a fake server.

    Without names it tests the configured providers, including those of plugins. Exit status 1 when one fails.
    With --fake it makes no request: the adapters of all sixteen providers and four coding programs run
    against sockets and pipes of this machine. A program that is not installed fails only if it is named.

    \b
    Examples:
      trunkline providers test
      trunkline providers test anthropic groq/openai/gpt-oss-120b
      trunkline providers test --all --fake
      trunkline providers test bedrock codex --fake --json
    """
    if fake:
        _run_trials(names or [], as_json=as_json)
    else:
        _ping_providers(names or [], as_json=as_json, config=config)


def _run_trials(names: list[str], *, as_json: bool) -> None:
    try:
        # Imported here: a default installation has no fake model servers.
        from gateway.cli.models.contract_trial import UnknownProviderError, print_trials, run_trials
    except ModuleNotFoundError:
        fail_without_testing("The package with the fake model servers")
    if not __debug__:
        fail("the tests are assertions: run this without -O and PYTHONOPTIMIZE", REFUSED)
    try:
        trials = run_trials(names, os.environ)
    except UnknownProviderError as error:
        fail(str(error), REFUSED)
    if as_json:
        echo_json(trials)
    else:
        print_trials(trials)
    wrong = ("failed", "not installed") if names else ("failed",)
    raise typer.Exit(FAILED if any(trial.outcome in wrong for trial in trials) else 0)


def _ping_providers(names: list[str], *, as_json: bool, config: File) -> None:
    found = asyncio.run(ping(settings_from(config), os.environ, names))
    if not found:
        fail(
            "no provider has a key: set one, such as ANTHROPIC_API_KEY; `trunkline providers list` shows all"
        )
    if as_json:
        echo_json(found)
    else:
        print_pings(found)
    raise typer.Exit(0 if all(each.ok for each in found) else FAILED)


_FIRST = 3


async def ping(settings: Settings, environ: Mapping[str, str], names: Sequence[str]) -> list[PingResult]:
    """Send one request to each named or configured provider, concurrently."""
    async with idle_gateway(settings, environ) as gateway:
        warn_of_failed_plugins(gateway)
        wanted = list(dict.fromkeys(names)) or list(gateway.models.available_providers())
        with Console(stderr=True).status(f"testing {', '.join(wanted)}"):
            async with asyncio.TaskGroup() as tasks:
                calls = [tasks.create_task(_call(gateway, name)) for name in wanted]
    return [call.result() for call in calls]


def print_pings(found: Sequence[PingResult]) -> None:
    """Print a table, and below it each problem with advice."""
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


async def _call(gateway: Gateway, name: str) -> PingResult:
    provider_id, _, model = name.partition("/")
    try:
        async with asyncio.timeout(_SECONDS):
            route = await _route(gateway, provider_id, model)
            return await _measure(route.provider, route.model)
    except TimeoutError:
        error: TrunklineError = StreamTimeoutError(f"no response within {_SECONDS:.0f} s")
    except (ProviderError, SettingsError) as failure:
        error = failure
    except CATCHABLE as failure:
        if is_cancellation_requested(failure):
            raise
        error = PluginError(f"{type(failure).__name__}: {failure}")
    variable = gateway.providers.variables(provider_id)["api_key"][0]
    advice = next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), _DEFAULT_ADVICE)
    return PingResult(
        provider=provider_id,
        model=model,
        error=error.name,
        detail=without_passwords(str(error)),
        way_out=advice.format(id=provider_id, variable=variable),
    )


async def _route(gateway: Gateway, provider_id: str, model: str) -> Route:
    """Return the named model, else the default of the provider, else the first that it lists."""
    if model:
        return await gateway.models.resolve(f"{provider_id}/{model}")
    try:
        return await gateway.models.resolve(gateway.models.default_model(provider_id))
    except ProviderResolutionError:
        provider = await gateway.providers.ready(provider_id)
        if not (listed := await provider.list_models()):
            raise
        return await gateway.models.resolve(f"{provider_id}/{listed[0].id}")


async def _measure(provider: Provider, model: str) -> PingResult:
    """Send the request and read the whole answer. Raises RateLimitError instead of waiting."""
    message = Message(session_id="", role="user", parts=(TextPart(_PROMPT),))
    options = ChatOptions(model=model, max_tokens=_TOKENS, message_id=new_id())
    begun, first = time.perf_counter(), None
    completion: Complete | None = None
    async for delta in provider.stream([message], options):
        if isinstance(delta, MetadataDelta) and delta.rate_limit is not None:
            raise RateLimitError(f"rate limited; retry after {delta.rate_limit.retry_after_ms / 1000:g} s")
        if isinstance(delta, TextDelta) and first is None:
            first = time.perf_counter()
        if isinstance(delta, Complete):
            completion = delta
    ended = time.perf_counter()
    counts = completion.final_metadata if completion is not None else None
    return PingResult(
        provider=provider.id,
        model=model,
        ok=True,
        first_token_ms=None if first is None else (first - begun) * 1000,
        whole_ms=(ended - begun) * 1000,
        input_tokens=counts and counts.input_tokens,
        output_tokens=counts and counts.output_tokens,
    )
