"""``trunkline pair``: who may talk on the channels, beside those whom the settings allow.

A running gateway is asked to do it, so that it counts at once; when none runs, the store is changed directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.options import AsJson, File, settings_from, to_json

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.cli.pairings import Pairings
    from gateway.server.pairs import Pairs

app = typer.Typer(no_args_is_help=True, help="List strangers and members; let people in and out.")

Code = Annotated[str, typer.Argument(metavar="CODE", help="The stranger's code.", show_default=False)]
AsAdmin = Annotated[bool, typer.Option("--admin", help="Let them also use what is for admins.")]
Channel = Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's id.", show_default=False)]
User = Annotated[str, typer.Argument(metavar="USER", help="The user's id there.", show_default=False)]


@app.command("list")
def list_(as_json: AsJson = False, config: File = None) -> None:
    """List strangers who wait with a code, and members, the latest first.

    \b
    Examples:
      trunkline pair list
      trunkline pair list --json
    """
    pairs = _pairings(config).list()
    if as_json:
        import msgspec

        typer.echo(to_json(msgspec.to_builtins(pairs)))
    elif pairs.waiting or pairs.members:
        _print(pairs)
    else:
        typer.echo("Nobody waits with a code, and nobody was let in.", err=True)


@app.command()
def approve(code: Code, admin: AsAdmin = False, as_json: AsJson = False, config: File = None) -> None:
    """Let in the stranger who was given a code.

    \b
    Examples:
      trunkline pair approve 7KXM3QDR
      trunkline pair approve 7KXM3QDR --admin
    """
    let = _pairings(config).approve(code, "admin" if admin else "user")
    if as_json:
        import msgspec

        typer.echo(to_json(msgspec.to_builtins(let)))
        return
    from gateway.cli.drawing import plain

    name = f" ({let.name})" if let.name else ""
    typer.echo(plain(f"let in on {let.channel} as {let.role}: {let.user}{name}"))


@app.command()
def revoke(channel: Channel, user: User, as_json: AsJson = False, config: File = None) -> None:
    """Let a member out again; their links and moved chats go too.

    \b
    Examples:
      trunkline pair revoke telegram 123456789
    """
    _pairings(config).revoke(channel, user)
    typer.echo(to_json({"channel": channel, "user": user}) if as_json else f"let out on {channel}: {user}")


def _pairings(config: Path | None) -> Pairings:
    from gateway.cli.pairings import Pairings

    return Pairings(settings_from(config))


def _print(pairs: Pairs) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gateway.cli.drawing import moment, plain

    table = Table(box=None, header_style="bold")
    for title in ("channel", "user", "name", "is", "until or since", "by"):
        table.add_column(title, overflow="fold")
    rows = [
        (x.channel, x.user, x.name, f"waiting with {x.code}", moment(x.expires_at), "") for x in pairs.waiting
    ]
    rows += [(x.channel, x.user, x.name, x.role, moment(x.at), x.approved_by) for x in pairs.members]
    for row in rows:
        table.add_row(*(Text(" ".join(plain(cell).split())) for cell in row))
    Console(highlight=False).print(table)
