"""Options that commands share, exit statuses, and functions that read the settings and end a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from gateway.contract.errors import TrunklineError
from gateway.settings import Settings

FAILED = 1
"""Exit status when the command failed."""
REFUSED = 2
"""Exit status when an argument or a setting is wrong: a retry fails until it is corrected."""
UNAVAILABLE = 75
"""Exit status when the gateway, the store, the address or a plugin is unavailable: a retry may succeed."""
INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""

File = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings file; default: config/trunkline.toml and the other layers.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Url = Annotated[
    str | None,
    typer.Option(help="URL of the gateway; default: the address in the settings.", show_default=False),
]
Token = Annotated[
    str | None,
    typer.Option(
        help="Token of the gateway. Other users of this machine can see it in the process list; "
        "they cannot see the variable TRUNKLINE_SERVER__TOKEN, which commands without --url use.",
        show_default=False,
    ),
]

Discover = Annotated[
    bool,
    typer.Option(
        "--discover",
        help="Find the gateway on the local network. No token of the settings is sent to it.",
    ),
]
Interface = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="With --discover, search only at the network interface with this address.",
        show_default=False,
    ),
]
Yes = Annotated[
    bool, typer.Option("--yes", help="With --discover, use the gateway that is found without asking.")
]


def not_empty(value: str | list[str] | None) -> str | list[str] | None:
    """Return the value of an argument; refuse an empty text, which scripts pass for an unset variable."""
    if any(not each.strip() for each in ([value] if isinstance(value, str) else value or ())):
        raise typer.BadParameter("it is empty")
    return value


def settings_from(config: Path | None, flags: dict[str, Any] | None = None) -> Settings:
    """Return the settings. Ends the command with every mistake if they are wrong."""
    # Imported here: pydantic takes 0.1 s, which `version` and completion would pay.
    from gateway.contract.errors import SettingsError
    from gateway.settings import load_settings

    try:
        return load_settings(config, flags=flags)
    except SettingsError as error:
        fail(str(error), REFUSED)


def fail(reason: str, status: int = FAILED) -> NoReturn:
    """End the command with an error message and an exit status."""
    typer.secho(reason, fg=typer.colors.RED, err=True)
    raise typer.Exit(status) from None


def fail_without_testing(what: str) -> NoReturn:
    """End the command because something of the extra ``testing`` is not installed."""
    checkout = "in a checkout, make install REQUIREMENTS=requirements-testing.txt"
    fail(f"{what} is not installed. Run pip install 'trunkline[testing]'; {checkout}.", REFUSED)


def give_up(error: TrunklineError) -> NoReturn:
    """End the command with an error: 75 if a retry may succeed, such as of a gateway that starts, else 1."""
    fail(str(error), UNAVAILABLE if error.retryable else FAILED)


def refuse(error: TrunklineError) -> NoReturn:
    """End the command with an error of the settings or the store: 75 if a retry may succeed, else 2."""
    fail(str(error), UNAVAILABLE if error.retryable else REFUSED)


def to_json(value: Any, indent: int | None = 2) -> str:
    """Return indented JSON in ASCII, so that control characters of a chat do not reach the terminal."""

    return json.dumps(value, indent=indent)
