"""``trunkline providers list``: endpoint, key and abilities of each model provider."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module

import typer
from msgspec import Struct, structs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.app import Gateway
from gateway.cli.options import AsJson, File, settings_from
from gateway.cli.output import echo_json, plain, print_table, quiet
from gateway.contract.errors import PluginError, ProviderError, SettingsError
from gateway.contract.provider import Capabilities, Provider, ProviderConfig
from gateway.extensions.backends import ProviderRegistry
from gateway.models.credentials import CredentialStore
from gateway.models.providers import credential_sources
from gateway.settings import Settings
from gateway.settings.secrets import without_passwords


def list_(as_json: AsJson = False, config: File = None) -> None:
    """List the providers with endpoint, key source and abilities.

    Makes no request and shows no secret. Loads the plugins of the settings, as a starting gateway does; the
    table names the plugin of each provider.

    \b
    Examples:
      trunkline providers list
      trunkline providers list --json
    """

    found = asyncio.run(list_providers(settings_from(config), os.environ))
    if as_json:
        echo_json(found)
    else:
        print_providers(found)


_MODELS_SHOWN = 3


class ProviderInfo(Struct, frozen=True, kw_only=True):
    """A provider. ``key_from`` is the source of its key; ``problem`` is what prevents its use.

    ``plugin`` is the plugin that adds it; empty for built-in providers and those of the settings.
    """

    id: str
    plugin: str = ""
    name: str = ""
    protocol: str = ""
    auth_method: str = ""
    endpoint: str = ""
    key_from: str = ""
    capabilities: Sequence[str] = ()
    models: Sequence[str] = ()
    problem: str = ""


@asynccontextmanager
async def idle_gateway(settings: Settings, environ: Mapping[str, str]) -> AsyncGenerator[Gateway]:
    """Open a gateway that does not run, with its plugins active. Log lines are dropped meanwhile."""
    gateway = Gateway(settings, environ=environ)
    with quiet():
        try:
            await gateway.enable_plugins()
            yield gateway
        finally:
            await gateway.providers.close()
            await gateway.registry.shutdown()


def warn_of_failed_plugins(gateway: Gateway) -> None:
    """Warn on standard error of plugins that failed to load: their providers are not listed."""
    for name, reason in gateway.activator.failed.items():
        text = f"plugin {name} failed to load: {plain(without_passwords(reason))}"
        typer.secho(text, fg=typer.colors.YELLOW, err=True)


def plugin_of(gateway: Gateway, provider_id: str) -> str:
    """Return the plugin of a provider, or of the one that it is like; empty if that is built in."""
    like = gateway.providers.configured(provider_id).like
    return {"providers": ""}.get(
        found := gateway.activator.provider_owner.get(like or provider_id, ""), found
    )


async def list_providers(settings: Settings, environ: Mapping[str, str]) -> list[ProviderInfo]:
    """Return all providers, those of the settings first. An error becomes the ``problem`` of its provider."""
    async with idle_gateway(settings, environ) as gateway:
        warn_of_failed_plugins(gateway)
        names = dict.fromkeys((*settings.providers, *gateway.providers.known()))
        return [await _provider_info(gateway, settings, environ, name) for name in names]


def print_providers(found: Sequence[ProviderInfo]) -> None:
    """Print a table, and below it the problems."""
    table = Table(box=None, header_style="bold")
    for title in ("id", "plugin", "name", "protocol", "auth", "key from", "can", "endpoint", "models"):
        table.add_column(title, no_wrap=title in ("id", "auth"), overflow="fold")
    for each in found:
        key = Text(plain(each.key_from) or "none", style="green" if each.key_from else "dim")
        can, models = " ".join(each.capabilities), ", ".join(each.models)
        cells = (each.id, plain(each.plugin), plain(each.name), each.protocol, each.auth_method)
        table.add_row(*cells, key, can, plain(each.endpoint), plain(models))
    print_table(table)
    console = Console(highlight=False)
    for each in found:
        if each.problem:
            console.print(Text(f"{each.id}: {plain(each.problem)}"), soft_wrap=True)


async def _provider_info(
    gateway: Gateway, settings: Settings, environ: Mapping[str, str], name: str
) -> ProviderInfo:
    registry = gateway.providers
    models = registry.configured(name).models or tuple(m for p, m in registry.first_models() if p == name)
    about = ProviderInfo(
        id=name,
        plugin=plugin_of(gateway, name),
        protocol="own" if plugin_of(gateway, name) else _protocol(registry.configured(name)),
        key_from=_key_from(registry, settings, environ, name),
        models=models[:_MODELS_SHOWN],
    )
    try:
        made = await registry.ready(name)
    except (SettingsError, ProviderError, PluginError) as error:
        return structs.replace(about, problem=without_passwords(str(error)))
    return _described(about, made)


def _described(about: ProviderInfo, made: Provider) -> ProviderInfo:
    names = Capabilities.__struct_fields__
    try:
        endpoint = made.api_endpoint
    except SettingsError as error:
        return structs.replace(about, name=made.name, auth_method=made.auth_method, problem=str(error))
    return structs.replace(
        about,
        name=made.name,
        auth_method=made.auth_method,
        endpoint=without_passwords(endpoint),
        capabilities=[name for name in names if getattr(made.capabilities, name)],
    )


def _key_from(registry: ProviderRegistry, settings: Settings, environ: Mapping[str, str], name: str) -> str:
    """Return the source of the key in use: a setting, a login or an environment variable."""
    kept = CredentialStore(settings.data_dir).stored().get(name)
    sources = credential_sources(settings, environ, name, registry.variables(name), kept)
    return next((source.place for source in sources if source.used), "")


def _protocol(config: ProviderConfig) -> str:
    """Return the protocol of a provider that is built in or of the settings."""
    providers = import_module("plugins.providers")
    list_providers = providers.PROVIDERS.get(config.like or config.id) or providers.PROVIDERS["custom"]
    return str(providers.PROTOCOLS[list_providers.module])
