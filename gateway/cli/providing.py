"""What is known of each provider without asking anybody: how it is reached, its key, what it can do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module

import typer
from msgspec import Struct, structs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.app import Gateway
from gateway.backends import ProviderRegistry
from gateway.cli.drawing import plain
from gateway.cli.quiet import quiet
from gateway.errors import PluginError, ProviderError, SettingsError
from gateway.provider import Capabilities, Provider, ProviderConfig
from gateway.routing.keys import KeptKeys
from gateway.routing.sources import sources_of
from gateway.settings import Settings
from gateway.settings.masking import without_passwords

_FILE_WIDTH = 160
_FIRST = 3


class KnownProvider(Struct, frozen=True, kw_only=True):
    """A provider. ``key_from`` is where its key is from, if there is one; ``problem`` is what it lacks.

    ``plugin`` had to be loaded to know of it; it is empty for those that are built in or of the settings.
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
async def gateway_of(settings: Settings, environ: Mapping[str, str]) -> AsyncGenerator[Gateway]:
    """A gateway that does not run, with all that its plugins bring: they are loaded as when it runs.

    Nobody logs meanwhile.
    """
    gateway = Gateway(settings, environ=environ)
    with quiet():
        try:
            await gateway.enable_plugins()
            yield gateway
        finally:
            await gateway.providers.close()
            await gateway.registry.shutdown()


def say_who_is_left_out(gateway: Gateway) -> None:
    """Tell, beside the output, of plugins that could not be loaded: what they bring is not known."""
    for name, reason in gateway.enabling.left_out.items():
        told = f"plugin {name} was left out: {plain(without_passwords(reason))}"
        typer.secho(told, fg=typer.colors.YELLOW, err=True)


def plugin_of(gateway: Gateway, provider_id: str) -> str:
    """The plugin that brought a provider, or the one that it is like; nothing if that is built in."""
    like = gateway.providers.configured(provider_id).like
    return {"providers": ""}.get(found := gateway.enabling.brought.get(like or provider_id, ""), found)


async def known(settings: Settings, environ: Mapping[str, str]) -> list[KnownProvider]:
    """All providers: those of the settings first. Raises nothing: what one lacks is its ``problem``."""
    async with gateway_of(settings, environ) as gateway:
        say_who_is_left_out(gateway)
        names = dict.fromkeys((*settings.providers, *gateway.providers.known()))
        return [await _known(gateway, settings, environ, name) for name in names]


def print_known(found: Sequence[KnownProvider]) -> None:
    """A table, and below it what some lack."""
    table = Table(box=None, header_style="bold")
    for title in ("id", "plugin", "name", "protocol", "auth", "key from", "can", "endpoint", "models"):
        table.add_column(title, no_wrap=title in ("id", "auth"), overflow="fold")
    for each in found:
        key = Text(plain(each.key_from) or "none", style="green" if each.key_from else "dim")
        can, models = " ".join(each.capabilities), ", ".join(each.models)
        cells = (each.id, plain(each.plugin), plain(each.name), each.protocol, each.auth_method)
        table.add_row(*cells, key, can, plain(each.endpoint), plain(models))
    console = Console(highlight=False)
    (console if console.is_terminal else Console(width=_FILE_WIDTH, highlight=False)).print(table)
    for each in found:
        if each.problem:
            console.print(Text(f"{each.id}: {plain(each.problem)}"), soft_wrap=True)


async def _known(
    gateway: Gateway, settings: Settings, environ: Mapping[str, str], name: str
) -> KnownProvider:
    registry = gateway.providers
    models = registry.configured(name).models or tuple(m for p, m in registry.first_models() if p == name)
    about = KnownProvider(
        id=name,
        plugin=plugin_of(gateway, name),
        protocol="its own" if plugin_of(gateway, name) else _protocol(registry.configured(name)),
        key_from=_key_from(registry, settings, environ, name),
        models=models[:_FIRST],
    )
    try:
        made = await registry.ready(name)
    except (SettingsError, ProviderError, PluginError) as error:
        return structs.replace(about, problem=without_passwords(str(error)))
    return _described(about, made)


def _described(about: KnownProvider, made: Provider) -> KnownProvider:
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
    """Where the key that counts is from: a place in the settings, a login, a variable of the environment."""
    kept = KeptKeys(settings.data_dir).places().get(name)
    sources = sources_of(settings, environ, name, registry.variables(name), kept)
    return next((source.place for source in sources if source.used), "")


def _protocol(config: ProviderConfig) -> str:
    """What it speaks, if it is built in or of the settings."""
    providers = import_module("plugins.providers")
    known = providers.PROVIDERS.get(config.like or config.id) or providers.PROVIDERS["custom"]
    return str(providers.PROTOCOLS[known.module])
