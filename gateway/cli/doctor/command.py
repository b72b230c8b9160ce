"""``trunkline doctor``: checks of the installation, with advice for each problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.command_group import AS_ITS_USER, cannot_access
from gateway.cli.doctor import cluster, machine, network, store
from gateway.cli.doctor.finding import Finding, fail, ok
from gateway.cli.doctor.plugins import check_plugins
from gateway.cli.doctor.startup import mask_secrets
from gateway.cli.options import FAILED, AsJson, File
from gateway.cli.output import echo_json, plain
from gateway.contract.errors import SettingsError
from gateway.extensions.process.attacks import ATTACKS, Outcome
from gateway.extensions.process.launcher import Mode
from gateway.settings import Settings, load_settings

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(as_json: AsJson = False, config: File = None) -> None:
    """Check settings, store, port, channels, model and machine, with advice.

    A confined process attacks this machine; a terminal and --json show each attack. It changes nothing and
    shows no secret. Exit status 1 when a check fails.

    \b
    Examples:
      trunkline doctor
      trunkline doctor --config /etc/trunkline/trunkline.toml --json
    """
    _finish([*run_checks(config)], as_json)


def _finish(findings: list[Finding], as_json: bool) -> None:
    if as_json:
        echo_json(findings)
    else:
        _print_table(findings)
    raise typer.Exit(FAILED if any(finding.status == "fail" for finding in findings) else 0)


def plugin_doctor(as_json: AsJson = False, config: File = None) -> None:
    """Check that the enabled plugins load and work, and that no two have one command.

    A confined process attacks this machine; a terminal and --json show each attack. It changes nothing and
    shows no secret. Exit status 1 when a check fails.

    \b
    Examples:
      trunkline plugin doctor
    """
    _finish([*_run_on_settings(config, check_plugins), machine.confinement(_mode(config))], as_json)


def run_checks(config: Path | None) -> Iterator[Finding]:
    """Run all checks, the settings first: without them only the machine can be checked."""
    yield from _run_on_settings(config, _check_gateway)
    yield from (
        machine.python(),
        machine.documents(),
        machine.kernel(),
        machine.confinement(_mode(config)),
        machine.agents(_mode(config)),
        machine.open_files(),
        machine.clock(),
    )


def _mode(config: Path | None) -> Mode:
    """Return the mode of confinement in the settings; the default if they are wrong, which is reported."""
    try:
        return load_settings(config).plugins.sandbox
    except SettingsError:
        return "standard"


def _run_on_settings(
    config: Path | None, check: Callable[[Settings], Iterable[Finding]]
) -> Iterator[Finding]:
    try:
        settings = load_settings(config, refresh=True)
    except SettingsError as error:
        yield fail("settings", str(error), "correct the settings; `trunkline config schema` lists every key")
    else:
        yield ok("settings", f"{len(settings.entries)} set, others have defaults")
        try:
            yield from mask_secrets(check(settings), settings)
        except PermissionError as error:
            yield fail("access", cannot_access(error), AS_ITS_USER)


def _check_gateway(settings: Settings) -> Iterator[Finding]:
    yield from store.store(settings)
    yield from cluster.cluster(settings)
    yield from network.listener(settings)
    yield from network.routes(settings)


def _print_table(findings: list[Finding]) -> None:
    table = Table(box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for found in findings:
        text = Text(plain(found.detail))
        if found.advice:
            text.append(f"\n→ {plain(found.advice)}", style="bold")
        table.add_row(Text(found.status, style=_COLOURS[found.status]), found.name, text)
    console = Console(highlight=False)
    console.print(table)
    attacks = [each for found in findings if isinstance(found, machine.Confinement) for each in found.attacks]
    if attacks and console.is_terminal:
        console.print(_attack_table(attacks))
    counts = Counter(found.status for found in findings)
    warnings = "1 warning" if counts["warn"] == 1 else f"{counts['warn']} warnings"
    typer.echo(f"{counts['ok']} ok, {warnings}, {counts['fail']} failed")


def _attack_table(attacks: list[Outcome]) -> Table:
    """Return the attacks and controls of a confined process with their outcomes."""
    table = Table(box=None, header_style="bold", title="from inside a confined process", title_justify="left")
    for title in ("attack", "outcome", "detail"):
        table.add_column(title, overflow="fold")
    for each in attacks:
        is_attack = each.name in ATTACKS
        outcome = (
            ("refused" if each.refused else "possible") if is_attack else "fails" if each.refused else "works"
        )
        colour = "green" if each.refused is is_attack else "red"
        name = each.name if is_attack else f"{each.name} (needed)"
        table.add_row(Text(name), Text(outcome, style=colour), Text(plain(each.detail)))
    return table
