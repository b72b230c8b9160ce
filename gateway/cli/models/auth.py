"""``trunkline auth``: sign in to providers, list the sources of their keys, and sign out."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct
from rich.table import Table
from rich.text import Text

from gateway.cli.gateway_client import GatewayUnreachableError, follow
from gateway.cli.models.provider_info import idle_gateway, warn_of_failed_plugins
from gateway.cli.options import REFUSED, AsJson, File, fail, settings_from
from gateway.cli.output import echo_json, moment, plain, print_table
from gateway.contract.errors import AuthFailedError, ProviderError, SettingsError, TrunklineError
from gateway.contract.provider import ApiKey, Credential, Provider, SignsIn
from gateway.extensions.backends import Variables, key_variable
from gateway.logs import set_up_logs
from gateway.models.credentials import CredentialStore
from gateway.models.providers import CredentialSource, credential_sources
from gateway.probes import check_key
from gateway.settings import ProviderSettings, Settings

ProviderId = Annotated[
    str, typer.Argument(metavar="PROVIDER", help="The provider's id, such as openai.", show_default=False)
]


def login(
    provider: ProviderId,
    key_stdin: Annotated[
        bool, typer.Option("--key-stdin", help="Read the key from standard input, for scripts.")
    ] = False,
    file: Annotated[
        bool, typer.Option("--file", help="Store it in the data directory, even if there is a keyring.")
    ] = False,
    check: Annotated[bool, typer.Option(help="Test the key at the provider.")] = True,
    config: File = None,
) -> None:
    """Sign in to a provider, or store its key.

    The keyring of the system stores it; without one, a file that only you can read. If a plugin gives the
    tokens of the provider, name either one: the running gateway starts the login of the plugin.

    \b
    Examples:
      trunkline auth login copilot
      trunkline auth login openai
      trunkline auth login gemini
      pass show openai | trunkline auth login openai --key-stdin
    """
    settings, kept = _opened(config)
    if by_plugin := [name for name, one in settings.providers.items() if _is_plugin_of(name, one, provider)]:
        log_in_by_plugin(settings, by_plugin)
        return
    try:
        done = sign_in(settings, provider, typer.echo, from_stdin=key_stdin)
        owner, credential = done.owner, done.credential
        if credential is None:
            typer.echo(f"Signed in to {provider}; its program stores the login")
            return
        text = (
            check_credential(settings, owner, credential) if check else f"The key of {owner} was not tested"
        )
        place = kept.save(owner, credential, in_file=file)
    except SettingsError as error:
        fail(str(error), REFUSED)
    except ProviderError as error:
        fail(str(error))
    typer.echo(text)
    typer.echo(f"Signed in to {owner}; stored in {place}")
    if owner != provider:
        typer.echo(f"{provider} uses this key too; `trunkline auth logout {owner}` removes it for both")
    typer.echo("A running gateway uses it within two seconds")
    _warn_of_other_keys(settings, owner, kept)


def logout(provider: ProviderId, config: File = None) -> None:
    """Delete the stored key or login of a provider.

    \b
    Examples:
      trunkline auth logout openai
    """
    settings, kept = _opened(config)
    try:
        there = kept.delete(provider)
    except SettingsError as error:
        fail(str(error), REFUSED)
    if not there:
        fail(f"no login of {provider} is stored; `trunkline auth list` shows the sources of keys")
    typer.echo(f"Signed out of {provider}; a running gateway stops using it within two seconds")
    _warn_of_other_keys(settings, provider, kept)


def list_(as_json: AsJson = False, config: File = None) -> None:
    """List the providers that have a key, its sources, and the one in use.

    Shows the last four characters of a long key, and nothing of a short one.

    \b
    Examples:
      trunkline auth list
      trunkline auth list --json
    """
    settings, kept = _opened(config)
    try:
        sources = _sources(settings, kept)
    except SettingsError as error:
        fail(str(error), REFUSED)
    if as_json:
        echo_json(sources)
    elif sources:
        _print(sources)
    else:
        typer.echo("No provider has a key. Add one: trunkline auth login PROVIDER", err=True)


def _opened(config: Path | None) -> tuple[Settings, CredentialStore]:
    settings = settings_from(config)
    set_up_logs(settings.log)
    return settings, CredentialStore(settings.data_dir)


def _sources(settings: Settings, kept: CredentialStore) -> list[CredentialSource]:
    variables = asyncio.run(variables_of_all(settings))
    places = kept.stored()
    names = sorted({*variables, *settings.providers, *places})
    own = {name: (key_variable(name),) for name in names}
    return [
        source
        for name in names
        for source in credential_sources(
            settings, os.environ, name, variables.get(name, {"api_key": own[name]}), places.get(name)
        )
    ]


def _warn_of_other_keys(settings: Settings, provider: str, kept: CredentialStore) -> None:
    """Warn if the provider uses a key from another source."""
    others = [
        source
        for source in _sources(settings, kept)
        if source.provider == provider and source.kind != "login" and source.used
    ]
    for source in others:
        typer.secho(
            f"{provider} uses {source.place} ({source.what}), which takes precedence",
            fg=typer.colors.YELLOW,
            err=True,
        )


def _print(sources: list[CredentialSource]) -> None:
    table = Table(box=None, header_style="bold")
    for title in ("provider", "what", "from", "key", "used"):
        table.add_column(title, overflow="fold")
    for source in sources:
        used = "yes" if source.used else "no, another is"
        if source.expires:
            over = source.expires <= time.time()
            used += f", {'expired' if over else 'until'} {moment(int(source.expires * 1000))}"
        row = (source.provider, source.what, source.place, source.hint or "(hidden)", used)
        table.add_row(*(Text(plain(cell), style="" if source.used else "dim") for cell in row))
    print_table(table)


def _is_plugin_of(name: str, given: ProviderSettings, wanted: str) -> bool:
    """Return whether a plugin gives the tokens of a provider, and the name of either one is wanted."""
    return given.auth is not None and wanted in (name, given.auth.partition(":")[2])


def log_in_by_plugin(settings: Settings, providers: Sequence[str]) -> None:
    """Start the logins of providers whose tokens a plugin gives, and show what it says meanwhile."""
    for provider in providers:
        try:
            for event in follow(settings, "/api/plugins/login", {"provider": provider}):
                if notice := event.get("notice"):
                    typer.echo(plain(str(notice)))
                elif "error" in event:
                    fail(plain(str(event["error"])))
                elif expires := event.get("expires_at"):
                    typer.echo(f"Signed in to {provider} until {moment(int(expires * 1000))}")
                else:
                    typer.echo(f"Signed in to {provider}")
        except GatewayUnreachableError as error:
            fail(f"a plugin signs in to {provider}, for which `trunkline run` must be running: {error}")
        except TrunklineError as error:
            fail(str(error))


class SignIn(Struct, frozen=True):
    """The outcome of a login: a credential to keep for ``owner``, or None if a program keeps its login."""

    owner: str
    credential: Credential | None


def sign_in(settings: Settings, provider_id: str, show: Callable[[str], None], *, from_stdin: bool) -> SignIn:
    """Run the login of the provider, or ask for a key.

    For a provider that can use the key of another one, asks for that key first: it serves both.
    Raises SettingsError if the provider has neither, and ProviderError if it is unknown or rejects the login.
    """
    owner = asyncio.run(_key_owner(settings, provider_id))
    if from_stdin:
        return SignIn(owner, read_key(owner, from_stdin=True))
    if owner != provider_id and sys.stdin.isatty():
        show(f"A key of {owner} works for both {owner} and {provider_id}.")
        show(f"Without one, {provider_id} has its own login, which works for {provider_id} only.")
        prompt = f"Key of {owner} (hidden; press Enter to use the login of {provider_id})"
        key = typer.prompt(prompt, default="", show_default=False, hide_input=True).strip()
        if key:
            return SignIn(owner, ApiKey(key))
    own = asyncio.run(_own_login(settings, provider_id, show))
    return own or SignIn(owner, read_key(owner, from_stdin=False))


async def _key_owner(settings: Settings, provider_id: str) -> str:
    async with idle_gateway(settings, os.environ) as gateway:
        return gateway.providers.key_owner(provider_id)


async def _own_login(settings: Settings, provider_id: str, show: Callable[[str], None]) -> SignIn | None:
    """Run the login of the provider. Return None if it takes a key instead."""
    async with idle_gateway(settings, os.environ) as gateway:
        warn_of_failed_plugins(gateway)
        made = await gateway.providers.ready(provider_id)
        if isinstance(made, SignsIn):
            return SignIn(provider_id, await made.sign_in(show))
        _require_key_login(made)
    return None


def read_key(provider_id: str, *, from_stdin: bool) -> Credential:
    """Read the key from a hidden prompt, or from the first line of standard input."""
    if from_stdin:
        key = sys.stdin.readline().strip()
    elif sys.stdin.isatty():
        key = typer.prompt(f"Key of {provider_id} (hidden)", hide_input=True).strip()
    else:
        raise SettingsError("stdin is not a terminal; use --key-stdin")
    if not key:
        raise SettingsError(f"the key of {provider_id} is empty")
    return ApiKey(key)


def check_credential(settings: Settings, provider_id: str, credential: Credential) -> str:
    """Test a credential at the provider; return a sentence. Raises AuthFailedError if it is rejected."""
    key = credential.key if isinstance(credential, ApiKey) else credential.access
    try:
        return asyncio.run(_check_key(settings, provider_id, key))
    except AuthFailedError as error:
        raise AuthFailedError(
            f"{provider_id} rejected it, so it was not stored (--no-check stores it): {error}"
        ) from None


async def _check_key(settings: Settings, provider_id: str, key: str) -> str:
    async with idle_gateway(settings, os.environ) as gateway:
        return await check_key(gateway.providers, provider_id, key)


async def variables_of_all(settings: Settings) -> Mapping[str, Variables]:
    """Return the known providers, each with the environment variables that it reads."""
    async with idle_gateway(settings, os.environ) as gateway:
        return {name: gateway.providers.variables(name) for name in gateway.providers.known()}


def _require_key_login(provider: Provider) -> None:
    if provider.id == "demo":
        raise SettingsError("the built-in demo needs no key")
    if provider.auth_method == "oauth":
        raise SettingsError(f"{provider.name} takes no key; see `credentials` in [providers.{provider.id}]")
