"""The command line: one file per group of commands."""

from __future__ import annotations

import typer

from gateway.cli import config, run

app = typer.Typer(
    name="trunkline",
    help="A self-hosted chat bot gateway: one bot, every line.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.add_typer(config.app, name="config")
