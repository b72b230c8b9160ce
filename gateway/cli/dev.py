"""``trunkline dev``: what developers of channels and plugins need."""

from __future__ import annotations

import asyncio
import contextlib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer

from gateway.cli.options import REFUSED, fail

app = typer.Typer(no_args_is_help=True, help="Fake platforms, to try a channel without an account.")

_PASS_ON: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command("fake", context_settings=_PASS_ON)
def fake(context: typer.Context, platform: str = typer.Argument(help="Which platform.")) -> None:
    """Run a fake platform, with a page to write on as its people. Its own --help tells the options.

    \b
    Examples:
      trunkline dev fake telegram --port 8090
      trunkline dev fake slack --help
    """
    there = _fakes()
    if platform not in there:
        fail(f"there is no fake {platform!r}; there is {', '.join(there)}", REFUSED)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(import_module(f"channels.{platform}.fake").serve(context.args))


def _fakes() -> list[str]:
    """The channels that bring a fake of their platform."""
    spec = find_spec("channels")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    return sorted(path.parent.name for folder in folders for path in folder.glob("*/fake"))
