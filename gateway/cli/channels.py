"""``trunkline channels``: whether the channels of a running gateway work."""

from __future__ import annotations

from typing import Any

import typer

from gateway.cli.options import AsJson, File, fail, settings_from, to_json

app = typer.Typer(no_args_is_help=True, help="See how the connections to platforms do.")


@app.command()
def status(as_json: AsJson = False, config: File = None) -> None:
    """Show the channels of the running gateway; exit with 1 unless all of them work.

    \b
    Examples:
      trunkline channels status
      trunkline channels status --json
    """
    from gateway.cli.remote import call
    from gateway.errors import TrunklineError

    try:
        told: dict[str, dict[str, Any]] = call(settings_from(config), "GET", "/api/status")["channels"]
    except TrunklineError as error:
        fail(str(error))
    if as_json:
        typer.echo(to_json(told))
    else:
        _print(told)
    if not all(health["ok"] for health in told.values()):
        raise typer.Exit(1)


def _print(told: dict[str, dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("channel", "state", "detail", box=box.SIMPLE)
    for name, health in sorted(told.items()):
        state = "[green]works[/]" if health["ok"] else "[red]does not work[/]"
        table.add_row(escape(name), state, escape(health.get("detail", "")))
    Console().print(table)
