"""The command line: one file per command or group of commands.

Their modules are light; what a command works with is imported when it runs, so that ``--help``, ``version``
and shell completion answer at once.
"""

from __future__ import annotations

import typer

from gateway.cli import config, run, version

app = typer.Typer(
    name="trunkline",
    help="A self-hosted chat bot gateway: one bot, every line.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("run")(run.run)
app.add_typer(config.app, name="config")
app.command("version")(version.version)
