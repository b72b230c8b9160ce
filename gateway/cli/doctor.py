"""``trunkline doctor``: what works, what does not, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gateway.cli.options import FAILED, AsJson, File, to_json

if TYPE_CHECKING:
    from gateway.cli.finding import Finding
    from gateway.settings import Settings

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(as_json: AsJson = False, config: File = None) -> None:
    """Check settings, store, port, channels, model and machine, and say what to do.

    Nothing is changed, and no secret is shown. Exit status 1 when something fails.

    \b
    Examples:
      trunkline doctor
      trunkline doctor --config /etc/trunkline/trunkline.toml --json
    """
    findings = list(examine(config))
    if as_json:
        import msgspec

        typer.echo(to_json(msgspec.to_builtins(findings)))
    else:
        _print_table(findings)
    raise typer.Exit(FAILED if any(finding.status == "fail" for finding in findings) else 0)


def examine(config: Path | None) -> Iterator[Finding]:
    """Everything there is to find, the settings first: without them only the machine can be looked at."""
    from gateway.cli import machine
    from gateway.cli.finding import fail, ok
    from gateway.errors import SettingsError
    from gateway.settings import load_settings

    try:
        settings = load_settings(config)
    except SettingsError as error:
        yield fail("settings", str(error), "correct them; `trunkline config schema` lists every key")
    else:
        yield ok("settings", f"{len(settings.entries)} given, the rest are defaults")
        yield from _without_secrets(_of_gateway(settings), settings)
    yield from (machine.python(), machine.kernel(), machine.open_files(), machine.clock())


def _of_gateway(settings: Settings) -> Iterator[Finding]:
    from gateway.cli import keeping, reaching, routes

    yield from keeping.store(settings)
    yield from reaching.listener(settings)
    yield from routes.routes(settings)


def _without_secrets(findings: Iterable[Finding], settings: Settings) -> Iterator[Finding]:
    """The findings with every secret of the settings masked: an error may quote what it was given."""
    import msgspec

    from gateway.settings.masking import MASK, without_passwords

    # A secret of a letter or two would mask half of every word; whoever has one has none.
    secrets = sorted((secret for secret in _secrets(settings) if len(secret) > 3), key=len, reverse=True)

    def masked(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, MASK)
        return without_passwords(text)

    for found in findings:
        yield msgspec.structs.replace(found, detail=masked(found.detail), advice=masked(found.advice))


def _secrets(settings: Settings) -> Iterator[str]:
    import os

    from gateway.settings.masking import sounds_secret

    given = [settings.server.token]
    for provider in settings.providers.values():
        given += [provider.api_key, *provider.api_keys, *provider.credentials.values()]
        given += provider.custom_headers.values()
    yield from (secret.get_secret_value() for secret in given if secret is not None)
    written = ((entry.path[-1], entry.value) for entry in settings.entries)
    yield from (value for name, value in written if sounds_secret(name) and isinstance(value, str) and value)
    yield from (value for name, value in os.environ.items() if sounds_secret(name) and len(value) > 7)


def _print_table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gateway.cli.drawing import plain

    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for found in findings:
        told = Text(plain(found.detail))
        if found.advice:
            told.append(f"\n→ {plain(found.advice)}", style="bold")
        table.add_row(Text(found.status, style=_COLOURS[found.status]), found.name, told)
    Console(highlight=False).print(table)
    counts = Counter(found.status for found in findings)
    typer.echo(f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} failed")
