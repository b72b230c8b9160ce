"""``trunkline <channel> manifest``: what a platform's registration form takes, for channels that have one."""

from __future__ import annotations

import asyncio
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.options import REFUSED, File, fail, settings_from, to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.plugin import SlashCommand
    from gateway.settings import Settings

Public = Annotated[
    str | None,
    typer.Option(
        help="Public address of the gateway, for a platform that calls it; without, we call the platform.",
        show_default=False,
    ),
]


def platforms() -> list[str]:
    """The channels that bring a manifest."""
    spec = find_spec("channels")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    return sorted(path.parent.name for folder in folders for path in folder.glob("*/manifest.py"))


def group(platform: str) -> typer.Typer:
    """The commands for one platform."""
    app = typer.Typer(no_args_is_help=True, help=f"Register the app with {platform.title()}.")

    @app.callback()
    def about() -> None:
        """Register the app with its platform."""

    @app.command("manifest")
    def manifest(url: Public = None, config: File = None) -> None:
        """Print the app's registration as JSON, with the commands of the configured plugins.

        \b
        Examples:
          trunkline slack manifest
          trunkline slack manifest --url https://bot.example.org
        """
        from gateway.errors import TrunklineError

        settings = settings_from(config)
        channel = settings.channels.get(platform)
        try:
            commands = asyncio.run(_commands(settings))
        except TrunklineError as error:
            fail(str(error), REFUSED)
        made = import_module(f"channels.{platform}.manifest").manifest(
            commands, {} if channel is None else channel.options, url
        )
        typer.echo(to_json(made))

    return app


async def _commands(settings: Settings) -> Sequence[SlashCommand]:
    """The commands of the configured plugins, from a gateway that has no channels and an empty store."""
    from tempfile import TemporaryDirectory

    from gateway.app import Gateway
    from gateway.settings.sections import StoreSettings

    with TemporaryDirectory() as directory:
        alone: dict[str, Any] = {
            "data_dir": Path(directory),
            "store": StoreSettings(),
            "channels": {},
            "model": "none/none",
        }
        gateway = Gateway(settings.model_copy(update=alone))
        async with gateway.running() as host:
            return host.commands()
