"""``trunkline config``: check and change the settings, show the values in effect, print their schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from gateway.cli.doctor.finding import Finding, fail, ok, warn
from gateway.cli.doctor.settings import find_mistakes
from gateway.cli.doctor.startup import mask_secrets
from gateway.cli.output import echo_json, print_table, quiet
from gateway.contract.errors import SettingsError, TrunklineError
from gateway.models import BUILT_IN_AGENTS
from gateway.plugin_services.configuration import settings_schema
from gateway.settings import MAIN, Settings, load_settings
from gateway.settings.layers.changing import SettingsFile, path_of
from gateway.settings.sections import Effective, effective
from gateway.settings.validation import settings_error

WRONG_SETTINGS = 2
"""Exit status when a setting is unknown, missing or wrong."""

File = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Read this file instead of the usual ones.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for a machine to read.")]


def check(config: File = None, as_json: AsJson = False) -> None:
    """Check the settings of all layers; exit with 2 and every mistake if they are wrong.

    Reads the settings of each channel and of each plugin that declares what it accepts. Loads plugins, but
    starts nothing. Fetches the file of the organization, if there is one. `trunkline doctor` also activates
    plugins and asks the provider of the model.
    """
    found = _findings(config)
    if as_json:
        echo_json(found)
    else:
        for each in found:
            _print_finding(each)
    if any(each.status == "fail" for each in found):
        raise typer.Exit(WRONG_SETTINGS)


def _findings(config: Path | None) -> list[Finding]:
    """Return what ``run`` would reject, skip or ignore, and the number of settings unless it rejects them."""
    try:
        settings = load_settings(config, refresh=True)
    except SettingsError as error:
        return [fail("settings", str(error), "")]
    complaints = settings.unknown_agents((MAIN, *settings.agents, *BUILT_IN_AGENTS))
    if settings.plugins.enabled:
        advice = "`trunkline doctor` checks that"
        found = [warn("agents", f"{each}, unless a plugin adds it", advice) for each in complaints]
    else:
        found = [fail("agents", str(settings_error(complaints)), "")] if complaints else []
    with quiet():
        parts = [*mask_secrets(find_mistakes(settings), settings)]
    found += [each for each in parts if each.status != "ok"]
    if not any(each.status == "fail" for each in found):
        written = len(settings.entries)
        text = f"{written} setting{'' if written == 1 else 's'} set, others have defaults"
        found.append(ok("settings", text))
    return found


def _print_finding(finding: Finding) -> None:
    if finding.status == "ok":
        typer.secho("OK", fg=typer.colors.GREEN, bold=True, nl=False)
        typer.echo(f" - {finding.detail}")
        return
    colour = typer.colors.RED if finding.status == "fail" else typer.colors.YELLOW
    advice = f"\n  → {finding.advice}" if finding.advice else ""
    typer.secho(f"{finding.detail}{advice}", fg=colour, err=True)


def show(
    config: File = None,
    as_json: AsJson = False,
    origin: Annotated[
        bool, typer.Option("--origin", help="Also show the layer of each value: organization, personal, …")
    ] = False,
) -> None:
    """List the settings in effect with their sources, secrets masked.

    \b
    Examples:
      trunkline config show --origin
      trunkline config show --origin --json
    """
    rows = effective(_loaded(config))
    if as_json:
        names = ("key", "value", "layer", "source") if origin else ("key", "value", "source")
        typer.echo(json.dumps([{name: getattr(row, name) for name in names} for row in rows], indent=2))
    else:
        _print_table(rows, origin=origin)


def schema(config: File = None) -> None:
    """Print the JSON schema of the settings, for editors.

    It has the tables of the enabled plugins whose manifest describes them.
    """
    described: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Settings.model_json_schema(),
    }
    try:
        described = settings_schema(described, load_settings(config), Path.home())
    except TrunklineError as error:
        # An editor needs the schema above all while the settings are wrong.
        typer.secho(f"without the tables of plugins: {error}", fg=typer.colors.YELLOW, err=True)
    typer.echo(json.dumps(described, indent=2, ensure_ascii=False))


def set_(
    key: Annotated[str, typer.Argument(help="The setting, such as server.port", show_default=False)],
    value: Annotated[
        str | None,
        typer.Argument(
            help="Its value: text, or JSON; without it, it is asked for, or read from a pipe",
            show_default=False,
        ),
    ] = None,
    config: File = None,
) -> None:
    """Change a setting in the settings file. The next start applies it.

    \b
    Examples:
      trunkline config set server.port 8081
      trunkline config set fallback '["groq", "openai/gpt-5-mini"]'
      trunkline config set providers.openai.api_key
    """
    if value is None:
        asks = sys.stdin.isatty()
        value = str(typer.prompt(f"Value of {key}", hide_input=True) if asks else sys.stdin.read()).strip()
        if not value:
            raise typer.BadParameter(f"the value of {key} is empty; nothing was changed")
    _save(key, _parsed(value), config)


def unset(
    key: Annotated[str, typer.Argument(help="The setting, such as server.port", show_default=False)],
    config: File = None,
) -> None:
    """Remove a setting from the settings file. Its default applies after the next start."""
    _save(key, None, config)


def _save(key: str, value: Any, config: Path | None) -> None:
    try:
        settings = load_settings(config)
        path = path_of(key)
        SettingsFile(settings).save(path, value)
    except TrunklineError as error:
        typer.secho(str(error), fg=typer.colors.RED, err=True)
        raise typer.Exit(WRONG_SETTINGS) from None
    done = "removed from" if value is None else "written to"
    typer.echo(f"{key} is {done} {settings.file}; the next start applies it")


def _parsed(text: str) -> Any:
    """Return JSON, or the text itself: numbers, true, false, lists and tables need no quotes of their own."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return text if parsed is None else parsed


def _loaded(config: Path | None) -> Settings:
    try:
        return load_settings(config)
    except SettingsError as error:
        typer.secho(str(error), fg=typer.colors.RED, err=True)
        raise typer.Exit(WRONG_SETTINGS) from None


def _print_table(rows: Sequence[Effective], *, origin: bool) -> None:
    table = Table(box=None, header_style="bold")
    for title in ("setting", "value", *(("layer",) if origin else ()), "from"):
        table.add_column(title, overflow="fold")
    for row in rows:
        style = "dim" if row.source == "default" else ""
        value = row.value if isinstance(row.value, str) else json.dumps(row.value, ensure_ascii=False)
        cells = (row.key, value, *((row.layer,) if origin else ()), row.source)
        table.add_row(*(Text(cell, style=style) for cell in cells))
    print_table(table)
