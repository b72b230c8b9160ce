"""How models are shown in a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.drawing import plain
from gateway.cli.stock import About, Stock, Stocked
from gateway.routing import Rates

_FILE_WIDTH = 160
_UNKNOWN = Text("-", style="dim")
_FEATURES = ("tools", "images", "reasoning", "json_mode")


def print_stock(found: Stock) -> None:
    """A table of models, and below it what is not in it."""
    table = Table(box=box.SIMPLE)
    table.add_column("model", overflow="fold")
    for title in ("reads", "writes", "$ in", "$ out"):
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
        (console if console.is_terminal else Console(width=_FILE_WIDTH, highlight=False)).print(table)
        console.print(
            Text("Tokens it reads and writes at most; US dollars per million of them.", style="dim")
        )
    if found.left_out:
        console.print(Text(f"{found.left_out} for other things than talking: --all shows them.", style="dim"))


def print_about(found: About) -> None:
    """One model, line by line."""
    table = Table(box=None, show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for title, told in _lines(found):
        table.add_row(title, told)
    console = Console(highlight=False)
    console.print(Text(plain(found.model.model), style="bold"), Text(plain(found.model.facts.name)))
    if found.model.facts.description:
        console.print(Text(plain(found.model.facts.description), style="italic"))
    console.print(table)
    if found.problem:
        console.print(Text(plain(found.problem), style="yellow"))


def _lines(found: About) -> Iterator[tuple[str, Text]]:
    model, facts = found.model, found.model.facts
    rates = facts.rates or Rates()
    yield "reads", _tokens(facts.context_window, " tokens")
    yield "writes", _tokens(facts.output_limit, " tokens")
    yield "can", _can(model)
    if facts.audio is not None:
        yield "hears", Text("yes" if facts.audio else "no")
    for title, price in (
        ("input", rates.input),
        ("output", rates.output),
        ("cached", rates.cached),
        ("cache write", rates.cache_write),
    ):
        yield title, _dollars(price, " per million tokens")
    if rates.rising:
        yield "", Text("more than that for long requests", style="yellow")
    yield "released", Text(facts.released) if facts.released else _UNKNOWN
    if facts.deprecated:
        yield "given up", Text("by its provider", style="yellow")
    if model.aliases:
        yield "aliases", Text(", ".join(model.aliases))
    if found.endpoint:
        yield "reached at", Text(plain(found.endpoint))
    if found.stand_ins:
        yield "stand in", Text(plain(", ".join(found.stand_ins)))


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


def _can(model: Stocked) -> Text:
    """What it can do; where nobody knows the provider, only what is said of the model itself."""
    if model.can is not None:
        return Text(" ".join(name for name in _FEATURES if name in model.can))
    said = [name for name in _FEATURES if getattr(model.facts, name)]
    return Text(" ".join(said)) if said else _UNKNOWN


def _notes(model: Stocked) -> Text:
    notes = Text(", ".join(model.aliases), style="cyan")
    if model.facts.deprecated:
        notes.append(" given up", style="yellow")
    return notes
