"""``trunkline plugin search``: finds plugins in the indexes of the settings."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from msgspec import Struct
from rich.table import Table
from rich.text import Text

from gateway.cli.options import AsJson, File
from gateway.cli.output import echo_json, plain, print_table
from gateway.cli.plugins.operator import Operator, one_line_errors
from gateway.contract.errors import PluginError
from gateway.extensions.admission.packages.index import Offer, Ratings

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[WORD]...", help="Words of name, description or author.", show_default=False),
]


class FoundPlugin(Struct, frozen=True):
    """A plugin in an index, with its newest version. ``installed`` is the version in the lock, or ""."""

    name: str
    version: str
    description: str
    author: str
    official: bool
    ratings: Ratings
    capabilities: tuple[str, ...]
    advisories: list[str]
    size: int
    sha256: str
    index: str
    installed: str


def search(words: Words = None, as_json: AsJson = False, config: File = None) -> None:
    """Find plugins in the indexes of the settings, with what each may do; without WORD all.

    An index is at an address in plugins.indexes of the settings.

    \b
    Examples:
      trunkline plugin search weather
      trunkline plugin search rss feed --json
    """
    with one_line_errors():
        operator = Operator(config)
        indexes, lock = operator.admission.indexes, operator.admission.lock()
        if not indexes.listed:
            raise PluginError("there is no index; add one to plugins.indexes of the settings")
        problems = asyncio.run(indexes.refresh())
        if problems and not any(indexes.copies()):
            raise PluginError("; ".join(problems))
        for problem in problems:
            typer.secho(plain(problem), fg=typer.colors.YELLOW, err=True)
        found = [
            _row(offer, locked.version if (locked := lock.get(offer.plugin.name)) else "")
            for offer in indexes.search(words or ())
        ]
    if as_json:
        echo_json(found)
    elif found:
        _print(found)
    else:
        typer.echo("No plugin is found.", err=True)


def _row(offer: Offer, installed: str) -> FoundPlugin:
    plugin, release = offer.plugin, offer.release
    return FoundPlugin(
        name=plugin.name,
        version=release.version,
        description=plugin.description,
        author=plugin.author,
        official=plugin.is_official(release),
        ratings=plugin.ratings,
        capabilities=release.capabilities,
        advisories=offer.warnings,
        size=release.size,
        sha256=release.sha256,
        index=offer.index,
        installed=installed,
    )


def _print(found: list[FoundPlugin]) -> None:
    table = Table(box=None, header_style="bold")
    for title in ("plugin", "version", "installed", "official", "rating", "may", "description"):
        table.add_column(title, overflow="fold")
    for each in found:
        rated = f"{each.ratings.average:.1f} ({each.ratings.count})" if each.ratings.count else ""
        warned = "".join(f"\n! {advisory}" for advisory in each.advisories)
        cells = (each.name, each.version, each.installed, "yes" if each.official else "", rated)
        texts = (*cells, ", ".join(each.capabilities) or "nothing", f"{each.description}{warned}")
        table.add_row(*(Text(plain(cell)) for cell in texts))
    print_table(table)
