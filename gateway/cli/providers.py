"""``trunkline providers``: which model backends there are, and whether they work."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.options import FAILED, REFUSED, AsJson, File, fail, settings_from, to_json

app = typer.Typer(no_args_is_help=True, help="List the model backends, and try whether they work.")

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...", help="Providers, or models of them as provider/model.", show_default=False
    ),
]
Everything = Annotated[bool, typer.Option("--all", help="All of them.")]
Fake = Annotated[
    bool, typer.Option("--fake", help="Try the adapters against fake servers on this machine, offline.")
]


@app.command("list")
def list_(as_json: AsJson = False, config: File = None) -> None:
    """List the providers: how each is reached, whether a key is known and from where, what it can do.

    Nobody is asked, and no secret is shown. The plugins of the settings are loaded, as when the gateway
    starts; the table says which of them brings a provider.

    \b
    Examples:
      trunkline providers list
      trunkline providers list --json
    """
    import asyncio
    import os

    from gateway.cli.providing import known, print_known

    found = asyncio.run(known(settings_from(config), os.environ))
    if as_json:
        import msgspec

        typer.echo(to_json(msgspec.to_builtins(found)))
    else:
        print_known(found)


@app.command("test")
def try_(
    names: Names = None,
    everything: Everything = False,
    fake: Fake = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Ask providers for one tiny answer each, or try their adapters against fake servers.

    Without names, those that are set up are asked, those of plugins too. Exit status 1 when one does not
    work. With --fake nothing is asked of anybody: all sixteen providers and the four coding programs are
    tried on sockets and pipes of this machine. A program that is not installed is no failure, unless it is
    named.

    \b
    Examples:
      trunkline providers test
      trunkline providers test anthropic groq/openai/gpt-oss-120b
      trunkline providers test --all --fake
      trunkline providers test bedrock codex --fake --json
    """
    if fake:
        _try(names or [], as_json=as_json)
    else:
        _ask(names or [], as_json=as_json, config=config)


def _try(names: list[str], *, as_json: bool) -> None:
    import os

    from gateway.cli.trying import Unknown, print_trials, try_out

    if not __debug__:
        fail("the checks are assertions: run this without -O and PYTHONOPTIMIZE", REFUSED)
    try:
        trials = try_out(names, os.environ)
    except Unknown as error:
        fail(str(error), REFUSED)
    if as_json:
        import msgspec

        typer.echo(to_json(msgspec.to_builtins(trials)))
    else:
        print_trials(trials)
    wrong = ("failed", "not installed") if names else ("failed",)
    raise typer.Exit(FAILED if any(trial.outcome in wrong for trial in trials) else 0)


def _ask(names: list[str], *, as_json: bool, config: File) -> None:
    import asyncio
    import os

    from gateway.cli.calling import called, print_called

    found = asyncio.run(called(settings_from(config), os.environ, names))
    if not found:
        fail("no provider is set up: set a key, such as ANTHROPIC_API_KEY; `trunkline providers list`")
    if as_json:
        import msgspec

        typer.echo(to_json(msgspec.to_builtins(found)))
    else:
        print_called(found)
    raise typer.Exit(0 if all(each.ok for each in found) else FAILED)
