"""``trunkline auth``: sign in to providers, see where their keys come from, and sign out again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.options import REFUSED, AsJson, File, fail, settings_from, to_json

if TYPE_CHECKING:
    from pathlib import Path

    from gateway.routing.keys import KeptKeys
    from gateway.routing.sources import Source
    from gateway.settings import Settings

app = typer.Typer(no_args_is_help=True, help="Sign in to model providers; see where keys come from.")

Provider = Annotated[
    str, typer.Argument(metavar="PROVIDER", help="The provider's id, such as openai.", show_default=False)
]


@app.command()
def login(
    provider: Provider,
    key_stdin: Annotated[
        bool, typer.Option("--key-stdin", help="Read the key from standard input, for scripts.")
    ] = False,
    file: Annotated[
        bool, typer.Option("--file", help="Keep it in the data directory, even if there is a keyring.")
    ] = False,
    check: Annotated[bool, typer.Option(help="Ask the provider whether it takes the key.")] = True,
    config: File = None,
) -> None:
    """Sign in to a provider, or give the key of one, and keep it for the gateway.

    It is kept in the keyring of the system where there is one, else in a file that only you can read.

    \b
    Examples:
      trunkline auth login copilot
      trunkline auth login openai
      pass show openai | trunkline auth login openai --key-stdin
    """
    from gateway.cli.signing_in import ask, checked, signed_in
    from gateway.errors import ProviderError, SettingsError

    settings, kept = _opened(config)
    try:
        credential = None if key_stdin else signed_in(settings, provider, typer.echo)
        if credential is None:
            credential = ask(settings, provider, from_stdin=key_stdin)
        said = checked(settings, provider, credential) if check else f"{provider} was not asked about it"
        place = kept.keep(provider, credential, in_file=file)
    except SettingsError as error:
        fail(str(error), REFUSED)
    except ProviderError as error:
        fail(f"{error.name}: {error}")
    typer.echo(said)
    typer.echo(f"Signed in to {provider}; kept in {place}")
    typer.echo("A gateway that runs uses it within a second or two")
    _warn_of_others(settings, provider, kept)


@app.command()
def logout(provider: Provider, config: File = None) -> None:
    """Forget what a login to a provider left behind.

    \b
    Examples:
      trunkline auth logout openai
    """
    from gateway.errors import SettingsError

    settings, kept = _opened(config)
    try:
        there = kept.forget(provider)
    except SettingsError as error:
        fail(str(error), REFUSED)
    if not there:
        fail(f"no login to {provider} is kept; `trunkline auth list` shows where keys come from")
    typer.echo(f"Signed out of {provider}; a gateway that runs forgets it within a second or two")
    _warn_of_others(settings, provider, kept)


@app.command("list")
def list_(as_json: AsJson = False, config: File = None) -> None:
    """List the providers that have a key, where that comes from, and which one counts.

    Of a long key the last four letters are shown, of others nothing.

    \b
    Examples:
      trunkline auth list
      trunkline auth list --json
    """
    from gateway.errors import SettingsError

    settings, kept = _opened(config)
    try:
        sources = _sources(settings, kept)
    except SettingsError as error:
        fail(str(error), REFUSED)
    if as_json:
        import msgspec

        typer.echo(to_json(msgspec.to_builtins(sources)))
    elif sources:
        _print(sources)
    else:
        typer.echo("No provider has a key. `trunkline auth login PROVIDER` gives it one.", err=True)


def _opened(config: Path | None) -> tuple[Settings, KeptKeys]:
    from gateway.logs import set_up_logs
    from gateway.routing.keys import KeptKeys

    settings = settings_from(config)
    set_up_logs(settings.log)
    return settings, KeptKeys(settings.data_dir)


def _sources(settings: Settings, kept: KeptKeys) -> list[Source]:
    import asyncio
    import os

    from gateway.cli.signing_in import known
    from gateway.routing.sources import sources_of

    variables = asyncio.run(known(settings))
    places = kept.places()
    names = sorted({*variables, *settings.providers, *places})
    own = {name: (f"{name.upper().replace('-', '_')}_API_KEY",) for name in names}
    return [
        source
        for name in names
        for source in sources_of(
            settings, os.environ, name, variables.get(name, {"api_key": own[name]}), places.get(name)
        )
    ]


def _warn_of_others(settings: Settings, provider: str, kept: KeptKeys) -> None:
    """Say so if the provider is shown, or still has, a key from elsewhere."""
    others = [
        source
        for source in _sources(settings, kept)
        if source.provider == provider and source.kind != "login" and source.used
    ]
    for source in others:
        typer.secho(
            f"{provider} is shown what {source.place} says ({source.what}): that counts",
            fg=typer.colors.YELLOW,
            err=True,
        )


def _print(sources: list[Source]) -> None:
    import time

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gateway.cli.drawing import moment, plain

    table = Table(box=None, header_style="bold")
    for title in ("provider", "what", "from", "key", "used"):
        table.add_column(title, overflow="fold")
    for source in sources:
        used = "yes" if source.used else "no, another counts"
        if source.expires:
            over = source.expires <= time.time()
            used += f", {'ended' if over else 'until'} {moment(int(source.expires * 1000))}"
        row = (source.provider, source.what, source.place, source.hint or "(hidden)", used)
        table.add_row(*(Text(plain(cell), style="" if source.used else "dim") for cell in row))
    Console(highlight=False).print(table)
