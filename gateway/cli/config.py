"""``trunkline config``: check the settings, show what is in effect, print their schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.errors import SettingsError

if TYPE_CHECKING:
    from gateway.settings import Settings
    from gateway.settings.effective import Effective

WRONG_SETTINGS = 2
"""Exit status when a setting is unknown, missing or wrong."""

app = typer.Typer(no_args_is_help=True, help="Check, show and describe the settings.")

File = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Read this file instead of the usual ones.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for a machine to read.")]


@app.command()
def check(config: File = None) -> None:
    """Say whether the settings are right; exit with 2 and every mistake when they are not."""
    settings = _loaded(config)
    _check_agents(settings)
    written = len(settings.entries)
    typer.secho("OK", fg=typer.colors.GREEN, bold=True, nl=False)
    typer.echo(f" - {written} setting{'' if written == 1 else 's'} given, the rest are defaults")


def _check_agents(settings: Settings) -> None:
    """Refuse agents of channels that nobody has; where plugins may bring them, only say so."""
    from gateway.settings import MAIN
    from gateway.settings.validation import wrong

    complaints = settings.unknown_agents((MAIN, *settings.agents))
    if complaints and not settings.plugins.enabled:
        typer.secho(str(wrong(complaints)), fg=typer.colors.RED, err=True)
        raise typer.Exit(WRONG_SETTINGS)
    for complaint in complaints:
        told = f"{complaint}, unless a plugin brings it: `trunkline doctor` loads them"
        typer.secho(told, fg=typer.colors.YELLOW, err=True)


@app.command()
def show(config: File = None, as_json: AsJson = False) -> None:
    """List the settings in effect and where each comes from, secrets masked."""
    from gateway.settings.effective import effective

    rows = effective(_loaded(config))
    if as_json:
        typer.echo(
            json.dumps([{"key": row.key, "value": row.value, "source": row.source} for row in rows], indent=2)
        )
    else:
        _print_table(rows)


@app.command()
def schema() -> None:
    """Print the JSON schema of the settings, for editors."""
    typer.echo(schema_text(), nl=False)


def schema_text() -> str:
    """The JSON schema of the settings, as it stands in ``config/schema.json``."""
    from gateway.settings import Settings

    described: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Settings.model_json_schema(),
    }
    return json.dumps(described, indent=2, ensure_ascii=False) + "\n"


def _loaded(config: Path | None) -> Settings:
    from gateway.settings import load_settings

    try:
        return load_settings(config)
    except SettingsError as error:
        typer.secho(str(error), fg=typer.colors.RED, err=True)
        raise typer.Exit(WRONG_SETTINGS) from None


def _print_table(rows: Sequence[Effective]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for title in ("setting", "value", "from"):
        table.add_column(title, overflow="fold")
    for row in rows:
        style = "dim" if row.source == "default" else ""
        value = row.value if isinstance(row.value, str) else json.dumps(row.value, ensure_ascii=False)
        table.add_row(*(Text(cell, style=style) for cell in (row.key, value, row.source)))
    Console().print(table)
