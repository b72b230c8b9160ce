"""``trunkline run``: start the gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.errors import SettingsError, StoreError, TrunklineError
from gateway.settings import Settings, load_settings

WRONG_SETTINGS = 2
FAILED = 1


def run(
    config: Annotated[
        Path | None, typer.Option(help="Settings file to use instead of the usual ones")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port; 0 for any free one")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Directory of all that is kept")] = None,
    model: Annotated[str | None, typer.Option(help="Model to use, provider/name")] = None,
) -> None:
    """Start the gateway, and run until it is told to stop (Ctrl-C or SIGTERM)."""
    flags: dict[str, Any] = {
        "server": {"host": host, "port": port},
        "data_dir": None if data_dir is None else str(data_dir),
        "model": model,
    }
    try:
        settings = load_settings(config, flags=flags)
        _serve(settings)
    except (SettingsError, StoreError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(WRONG_SETTINGS) from None
    except TrunklineError as error:
        typer.echo(f"{error.name}: {error}", err=True)
        raise typer.Exit(FAILED) from None


def _serve(settings: Settings) -> None:
    sys.setswitchinterval(0.0005)  # the store's thread wants its turn soon, however busy the loop is
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(settings))
    else:
        uvloop.run(serve(settings))


async def serve(settings: Settings) -> None:
    """Run a gateway with its server until it is asked to stop."""
    from gateway.app import Gateway
    from gateway.loader import check_siblings
    from gateway.logs import set_up_logs
    from gateway.server import Server

    set_up_logs(settings.log)
    check_siblings()
    gateway = Gateway(settings, environ=os.environ)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, gateway.stop.set)
    async with gateway.running(), Server(gateway) as server:
        typer.echo(f"Trunkline is ready: {server.url}  (model {gateway.model})")
        await gateway.stop.wait()
