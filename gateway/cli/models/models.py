"""``trunkline models``: list models and show one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.models.model_catalog import Catalog, CatalogModel, ModelDetails, describe_model, list_models
from gateway.cli.options import FAILED, REFUSED, AsJson, File, fail, settings_from
from gateway.cli.output import echo_json, plain, print_table
from gateway.contract.errors import ProviderError, SettingsError
from gateway.models import Rates

Pattern = Annotated[
    str | None,
    typer.Argument(help="Part of a name, or a pattern such as 'groq/*llama*'.", show_default=False),
]
Provider = Annotated[
    str | None, typer.Option(help="Only models of this provider, configured or not.", show_default=False)
]
Everything = Annotated[
    bool, typer.Option("--all", help="Include unconfigured providers and non-chat models.")
]
Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Name or alias of a model, with or without its provider.")
]


def list_(
    pattern: Pattern = None,
    provider: Provider = None,
    everything: Everything = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """List the models of the configured providers.

    Queries each provider (10 s timeout). Unreachable ones are listed with offline data.

    \b
    Examples:
      trunkline models list
      trunkline models list sonnet
      trunkline models list --provider openrouter 'openrouter/*:free'
      trunkline models list --all --json
    """

    settings = settings_from(config)
    try:
        found = asyncio.run(list_models(settings, os.environ, pattern or "", provider, everything=everything))
    except SettingsError as error:
        fail(str(error), REFUSED)
    except ProviderError as error:
        fail(str(error))
    if as_json:
        echo_json(found.models)
    else:
        print_catalog(found)
    _report_missing(found, pattern or "")


def _report_missing(found: Catalog, pattern: str) -> None:
    for name, reason in found.missing.items():
        text = f"{name} is unreachable: {plain(reason)}; showing offline data"
        typer.secho(text, fg=typer.colors.YELLOW, err=True)
    if not found.models:
        fail(f"no model matches {pattern!r}" if pattern else "no provider has a key", FAILED)


def info(model: Model, as_json: AsJson = False, config: File = None) -> None:
    """Show limits, abilities, prices and fallbacks of a model.

    \b
    Examples:
      trunkline models info claude-sonnet-5-5
      trunkline models info groq/openai/gpt-oss-120b --json
    """

    settings = settings_from(config)
    try:
        found = asyncio.run(describe_model(settings, os.environ, model))
    except SettingsError as error:
        fail(str(error), REFUSED)
    except ProviderError as error:
        fail(str(error))
    if as_json:
        echo_json(found)
    else:
        print_details(found)


_UNKNOWN = Text("-", style="dim")
_FEATURES = ("tools", "images", "reasoning", "json_mode")


def print_catalog(found: Catalog) -> None:
    """Print a table of models, and below it the number of hidden ones."""
    table = Table(box=box.SIMPLE)
    table.add_column("model", overflow="fold")
    for title in ("context", "output", "$ in", "$ out"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("can")
    table.add_column("")
    for each in found.models:
        facts, rates = each.facts, each.facts.rates or Rates()
        table.add_row(
            _name(each.model),
            _tokens(facts.context_window),
            _tokens(facts.output_limit),
            _dollars(rates.input),
            _dollars(rates.output),
            _can(each),
            _notes(each),
        )
    console = Console(highlight=False)
    if found.models:
        print_table(table)
        console.print(
            Text("Context window and output limit in tokens; US dollars per million tokens.", style="dim")
        )
    if found.hidden:
        console.print(Text(f"{found.hidden} non-chat models hidden; --all shows them.", style="dim"))


def print_details(found: ModelDetails) -> None:
    """Print the details of one model."""
    table = Table(box=None, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for title, text in _lines(found):
        table.add_row(title, text)
    console = Console(highlight=False)
    console.print(Text(plain(found.model.model), style="bold"), Text(plain(found.model.facts.name)))
    if found.model.facts.description:
        console.print(Text(plain(found.model.facts.description), style="italic"))
    console.print(table)
    if found.problem:
        console.print(Text(plain(found.problem), style="yellow"))


def _lines(found: ModelDetails) -> Iterator[tuple[str, Text]]:
    model, facts = found.model, found.model.facts
    rates = facts.rates or Rates()
    yield "context", _tokens(facts.context_window, " tokens")
    yield "output", _tokens(facts.output_limit, " tokens")
    yield "can", _can(model)
    if facts.audio is not None:
        yield "audio", Text("yes" if facts.audio else "no")
    for title, price in (
        ("input price", rates.input),
        ("output price", rates.output),
        ("cached", rates.cached),
        ("cache write", rates.cache_write),
    ):
        yield title, _dollars(price, " per million tokens")
    if rates.rising:
        yield "", Text("higher for long requests", style="yellow")
    yield "released", Text(facts.released) if facts.released else _UNKNOWN
    if facts.deprecated:
        yield "deprecated", Text("by its provider", style="yellow")
    if facts.retires:
        yield "retires", Text(facts.retires, style="yellow")
    if model.aliases:
        yield "aliases", Text(", ".join(model.aliases))
    if found.endpoint:
        yield "endpoint", Text(plain(found.endpoint))
    if found.stand_ins:
        yield "fallbacks", Text(plain(", ".join(found.stand_ins)))


def _name(full_name: str) -> Text:
    provider, _, model = plain(full_name).partition("/")
    return Text.assemble((f"{provider}/", "dim"), model)


def _tokens(count: int | None, unit: str = "") -> Text:
    if count is None:
        return _UNKNOWN
    if unit:
        return Text(f"{count:,}{unit}")
    return Text(f"{count / 1_000_000:.3g}M" if count >= 1_000_000 else f"{count / 1000:.4g}k")


def _dollars(price: float | None, unit: str = "") -> Text:
    if price is None:
        return _UNKNOWN
    return Text(f"${price:.4g}{unit}" if unit else f"{price:.4g}", style="green")


def _can(model: CatalogModel) -> Text:
    """Return the abilities; for an unknown provider only those that the model itself states."""
    if model.can is not None:
        return Text(" ".join(name for name in _FEATURES if name in model.can))
    features = [name for name in _FEATURES if getattr(model.facts, name)]
    return Text(" ".join(features)) if features else _UNKNOWN


def _notes(model: CatalogModel) -> Text:
    notes = Text(", ".join(model.aliases), style="cyan")
    if model.facts.deprecated:
        notes.append(" deprecated", style="yellow")
    if model.facts.retires:
        notes.append(f" retires {model.facts.retires}", style="yellow")
    return notes
