"""``trunkline models``: which models there are, and what is known of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.options import FAILED, REFUSED, AsJson, File, fail, settings_from, to_json

if TYPE_CHECKING:
    from gateway.cli.stock import Stock

app = typer.Typer(no_args_is_help=True, help="List the models there are, and tell of one.")

Pattern = Annotated[
    str | None,
    typer.Argument(help="Part of a name, or a pattern like 'groq/*llama*'.", show_default=False),
]
Provider = Annotated[
    str | None, typer.Option(help="Only of this one, whether it is set up or not.", show_default=False)
]
Everything = Annotated[
    bool, typer.Option("--all", help="Also of providers that are not set up, and what is not for talking.")
]
Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Its name, or an alias; with its provider or without.")
]


@app.command("list")
def list_(
    pattern: Pattern = None,
    provider: Provider = None,
    everything: Everything = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """List the models: what the providers that are set up offer, and what is known of it.

    They are asked, ten seconds at most. Who cannot be reached is told, and what is known without it.

    \b
    Examples:
      trunkline models list
      trunkline models list sonnet
      trunkline models list --provider openrouter 'openrouter/*:free'
      trunkline models list --all --json
    """
    import asyncio
    import os

    from gateway.cli.stock import stock
    from gateway.errors import ProviderError, SettingsError

    settings = settings_from(config)
    try:
        found = asyncio.run(stock(settings, os.environ, pattern or "", provider, everything=everything))
    except SettingsError as error:
        fail(str(error), REFUSED)
    except ProviderError as error:
        fail(str(error))
    if as_json:
        import msgspec

        typer.echo(to_json(msgspec.to_builtins(found.models)))
    else:
        from gateway.cli.shelf import print_stock

        print_stock(found)
    _say_what_is_missing(found, pattern or "")


def _say_what_is_missing(found: Stock, pattern: str) -> None:
    from gateway.cli.drawing import plain

    for name, reason in found.missing.items():
        told = f"{name} was not reached: {plain(reason)}; only what is known without it is looked at"
        typer.secho(told, fg=typer.colors.YELLOW, err=True)
    if not found.models:
        fail(f"no model fits {pattern!r}" if pattern else "no provider is set up", FAILED)


@app.command()
def info(model: Model, as_json: AsJson = False, config: File = None) -> None:
    """Tell all that is known of a model: what it reads, writes, can do and costs, and who stands in for it.

    \b
    Examples:
      trunkline models info claude-sonnet-4-5
      trunkline models info groq/openai/gpt-oss-120b --json
    """
    import asyncio
    import os

    from gateway.cli.stock import about
    from gateway.errors import ProviderError, SettingsError

    settings = settings_from(config)
    try:
        found = asyncio.run(about(settings, os.environ, model))
    except SettingsError as error:
        fail(str(error), REFUSED)
    except ProviderError as error:
        fail(str(error))
    if as_json:
        import msgspec

        typer.echo(to_json(msgspec.to_builtins(found)))
    else:
        from gateway.cli.shelf import print_about

        print_about(found)
