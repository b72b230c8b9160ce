"""The command line: one file per command or group of commands.

Their modules are light; what a command works with is imported when it runs, so that ``--help``, ``version``
and shell completion answer at once.
"""

from __future__ import annotations

import typer

from gateway.cli import (
    agents,
    auth,
    channels,
    chat,
    config,
    db,
    dead,
    dev,
    doctor,
    manifests,
    models,
    pair,
    providers,
    run,
    send,
    sessions,
    usage,
    version,
)

app = typer.Typer(
    name="trunkline",
    help="A self-hosted chat bot gateway: one bot, every line.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(run.run)
app.command("chat")(chat.chat)
app.command("send")(send.send)
app.command("doctor")(doctor.doctor)
app.command("usage")(usage.usage)
app.add_typer(auth.app, name="auth")
app.add_typer(sessions.app, name="sessions")
app.add_typer(channels.app, name="channels")
app.add_typer(providers.app, name="providers")
app.add_typer(models.app, name="models")
app.add_typer(agents.app, name="agents")
app.add_typer(dead.app, name="dead")
app.add_typer(pair.app, name="pair")
app.add_typer(db.app, name="db")
app.add_typer(config.app, name="config")
app.add_typer(dev.app, name="dev")
for platform in manifests.platforms():
    app.add_typer(manifests.group(platform), name=platform)
app.command("version")(version.version)
