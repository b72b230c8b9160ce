"""What commands have in common: the options they share, and how they read settings and end with an error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from gateway.settings import Settings

FAILED = 1
"""Exit status when the command could not do what it was asked."""
REFUSED = 2
"""Exit status when a setting is wrong, or the store cannot be used."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells know it."""

File = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Read this file instead of the usual ones.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for a machine to read.")]
Url = Annotated[
    str | None,
    typer.Option(help="Address of the gateway; where the settings say when not given.", show_default=False),
]
Token = Annotated[
    str | None,
    typer.Option(
        help="Token of the gateway. Other users of this machine can see it; "
        "the variable TRUNKLINE_SERVER__TOKEN they cannot.",
        show_default=False,
    ),
]


def settings_from(config: Path | None, flags: dict[str, Any] | None = None) -> Settings:
    """The settings; ends the command with everything that is wrong with them."""
    from gateway.errors import SettingsError
    from gateway.settings import load_settings

    try:
        return load_settings(config, flags=flags)
    except SettingsError as error:
        fail(str(error), REFUSED)


def fail(reason: str, status: int = FAILED) -> NoReturn:
    """End the command with a reason that says what to do."""
    typer.secho(reason, fg=typer.colors.RED, err=True)
    raise typer.Exit(status) from None


def to_json(value: Any) -> str:
    """JSON for people and machines: indented, and ASCII, so that no text of a chat can steer a terminal."""
    import json

    return json.dumps(value, indent=2)
