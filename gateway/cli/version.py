"""``trunkline version``: the version of Trunkline, Python and the platform."""

from __future__ import annotations

import platform

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
        typer.echo(f"Trunkline {VERSION} (Python {platform.python_version()})")
