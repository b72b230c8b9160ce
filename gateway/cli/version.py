"""``trunkline version``: which version this is, and what it runs on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

import typer

from gateway.cli.options import AsJson, to_json


def version(as_json: AsJson = False) -> None:
    """Print the version.

    \b
    Examples:
      trunkline version
      trunkline version --json
    """
    if as_json:
        described = {
            "version": current_version(),
            "python": platform.python_version(),
            "platform": platform.platform(),
        }
        typer.echo(to_json(described))
    else:
        typer.echo(f"Trunkline {current_version()} (Python {platform.python_version()})")


def current_version() -> str:
    """The version that is installed, or else that of the tree this file lies in."""
    try:
        return installed_version("trunkline")
    except PackageNotFoundError:
        return _version_of_tree() or "0+unknown"


def _version_of_tree() -> str | None:
    import tomllib

    project = Path(__file__).parents[2] / "pyproject.toml"
    try:
        return tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return None
