"""``trunkline run``: start the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from gateway.cli.options import FAILED, INTERRUPTED, REFUSED, File, fail, settings_from

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.settings import Settings

CONNECT = (
    "the built-in demo; for a real model set ANTHROPIC_API_KEY or OPENAI_API_KEY, "
    "start an OpenAI-compatible server on port 11434, or see config/example.toml"
)


def run(
    config: File = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default=False)] = None,
    port: Annotated[
        int | None, typer.Option(help="TCP port; 0 for any free one.", show_default=False)
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Directory of all that is kept.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model to use, provider/name.", show_default=False)
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the web chat in the browser.")] = False,
) -> None:
    """Start the gateway, and run until it is told to stop (Ctrl-C or SIGTERM).

    Exit status: 0 after a stop, or what the plugin that stopped it asked for; 2 when a setting is wrong or
    the store cannot be used; 70 when the store failed while running.

    \b
    Examples:
      trunkline run --open
      trunkline run --port 0 --data-dir /tmp/try
      trunkline run --model openai/gpt-5-mini
    """
    flags: dict[str, Any] = {
        "server": {"host": host, "port": port},
        "data_dir": None if data_dir is None else str(data_dir),
        "model": model,
    }
    try:
        status = _serve(settings_from(config, flags), open_browser)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        _explain(error)
        raise
    raise typer.Exit(status)


def _serve(settings: Settings, open_browser: bool) -> int:
    from gateway.interpreter import share_promptly

    share_promptly()
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serve(settings, open_browser=open_browser))
    return uvloop.run(serve(settings, open_browser=open_browser))


async def serve(settings: Settings, *, open_browser: bool = False) -> int:
    """Run a gateway with its server until it is asked to stop. Returns the exit status to end with."""
    from gateway.app import Gateway
    from gateway.interpreter import settle_garbage
    from gateway.loader import check_siblings
    from gateway.logs import set_up_logs
    from gateway.server import Server

    set_up_logs(settings.log)
    check_siblings()
    gateway = Gateway(settings, environ=os.environ)
    _heed_signals(gateway.stop)
    async with gateway.running(), Server(gateway) as server:
        settle_garbage()
        _welcome(gateway, server.url)
        if open_browser:
            await asyncio.to_thread(_show_page, server.url)
        await gateway.stand_by()
        await gateway.stop.wait()
    return gateway.exit_code


def _heed_signals(stop: asyncio.Event) -> None:
    """Stop in good order at the first signal, and at once at a second Ctrl-C: all that counts is stored."""

    def interrupted() -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        typer.echo("\nStopping; running answers get a moment. Ctrl-C again stops at once.", err=True)
        stop.set()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, interrupted)


def _welcome(gateway: Gateway, url: str) -> None:
    """Say where the chat is, who answers, where things are kept, and how to stop."""
    lines = [
        f"Trunkline is ready: {url}  (model {gateway.model})",
        f"  chat   open {url} in a browser, or run: trunkline chat",
        f"  model  {CONNECT}" if gateway.model.startswith("demo/") else "",
        f"  data   {gateway.settings.data_dir.absolute()}",
        "  stop   Ctrl-C",
    ]
    # Whoever started it may have stopped listening; that is no reason not to serve.
    with contextlib.suppress(BrokenPipeError):
        typer.echo("\n".join(filter(None, lines)))


def _show_page(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        typer.echo(f"No browser could be opened; the chat is at {url}", err=True)


def _explain(error: Exception) -> None:
    """End with one clear line if the error is one of ours; anything else is a bug and keeps its traceback."""
    from gateway.errors import SettingsError, StoreError, TrunklineError

    named = [leaf for leaf in _leaves(error) if isinstance(leaf, TrunklineError)]
    if len(named) != len(list(_leaves(error))):
        return
    for refusal in named:
        if isinstance(refusal, SettingsError | StoreError):
            fail(str(refusal), REFUSED)
    fail("\n".join(f"{leaf.name}: {leaf}" for leaf in named), FAILED)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors themselves, without the groups that task groups put around them."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        for part in group.exceptions:
            yield from _leaves(part)
    else:
        yield error
