"""``trunkline providers test``: one short request to each provider, or contract tests of its adapter."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway import probes
from gateway.access.people import THE_OWNER
from gateway.app import Gateway, die
from gateway.cli.gateway_client import call
from gateway.cli.models.provider_info import idle_gateway, warn_of_failed_plugins
from gateway.cli.options import FAILED, REFUSED, AsJson, File, fail, fail_without_testing, settings_from
from gateway.cli.output import echo_json, plain
from gateway.cli.store_reader import check_store
from gateway.contract.errors import ProviderResolutionError, StoreError, StoreLockedError, TrunklineError
from gateway.models import Ledger, prices_of
from gateway.probes import MeterOf, PingResult, metered
from gateway.settings import Settings
from gateway.store import Store

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Providers, or models as provider/model.", show_default=False),
]
Everything = Annotated[bool, typer.Option("--all", help="All of them.")]
Fake = Annotated[
    bool, typer.Option("--fake", help="Test the adapters against fake servers on this machine, offline.")
]


def probe(
    names: Names = None,
    everything: Everything = False,
    fake: Fake = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Send each provider one short request, or test its adapter against a fake server.

    Without names it tests the configured providers, including those of plugins. Exit status 1 when one fails.
    The calls are in the usage, with the source models.test; a running gateway makes and books them.
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
        from gateway.cli.models.contract_trial import (
            UnknownProviderError,
            all_passed,
            print_trials,
            run_trials,
        )
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
    raise typer.Exit(0 if all_passed(trials, names) else FAILED)


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


_CALL_SECONDS = 90.0
"""Longer than a request may take, so that the gateway reports its outcome."""


async def ping(settings: Settings, environ: Mapping[str, str], names: Sequence[str]) -> list[PingResult]:
    """Send one request to each named or configured provider, concurrently, and book what they cost.

    A running gateway owns the store, so it makes the requests for the providers that it has.
    """
    async with idle_gateway(settings, environ) as gateway:
        warn_of_failed_plugins(gateway)
        wanted = list(dict.fromkeys(names)) or list(gateway.models.available_providers())
        with Console(stderr=True).status(f"testing {', '.join(wanted)}"):
            async with _booking(settings, gateway) as book, asyncio.TaskGroup() as tasks:
                calls = [tasks.create_task(_ping(settings, gateway, name, book)) for name in wanted]
    return [call.result() for call in calls]


@asynccontextmanager
async def _booking(
    settings: Settings, gateway: Gateway
) -> AsyncGenerator[MeterOf | Literal["gateway"] | None]:
    """Yield what books requests: the store, ``gateway`` if that owns the store, None without a store."""
    try:
        check_store(settings)
        store = Store.open(settings.store_url, settings.durability, die)
    except StoreLockedError:
        yield "gateway"
    except StoreError:
        yield None
    else:
        try:
            yield metered(Ledger(store), prices_of(gateway.models), str(THE_OWNER))
        finally:
            await store.close()


async def _ping(
    settings: Settings, gateway: Gateway, name: str, book: MeterOf | Literal["gateway"] | None
) -> PingResult:
    if book != "gateway":
        return await probes.ping(gateway.providers, gateway.models, name, book)
    try:
        body = {"name": name}
        answer = await asyncio.to_thread(call, settings, "POST", "/api/models/test", body, _CALL_SECONDS)
        return msgspec.convert(answer, PingResult)
    except TrunklineError as error:
        result = await probes.ping(gateway.providers, gateway.models, name)
        if result.error != ProviderResolutionError.__name__:  # else no call was made
            reason = f"{name}: not booked in the usage, because the running gateway did not make the call"
            typer.secho(f"{reason}: {plain(str(error))}", fg=typer.colors.YELLOW, err=True)
        return result


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
