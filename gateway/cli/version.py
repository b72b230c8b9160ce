"""``trunkline version``: the version of Trunkline, Python and the platform."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

from gateway.cli.options import AsJson, to_json
from gateway.version import VERSION


def version(as_json: AsJson = False) -> None:
    """Print the version.

    \b
    Examples:
      trunkline version
      trunkline version --json
    """
    if as_json:
        described = {
            "version": VERSION,
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
        typer.echo(to_json(described))
    else:
        _print_version(True)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"Trunkline {VERSION} (Python {platform.python_version()})")
        raise typer.Exit


def root(
    _version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Print the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """A self-hosted chat bot gateway: connect one bot to every chat platform."""
