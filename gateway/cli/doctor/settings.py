"""Checks of settings that load: values that ``run`` would reject, skip or ignore.

Starts nothing and makes no request. Plugins are loaded, but not activated.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from gateway.access.permissions import Permissions, Rule
from gateway.app import Gateway
from gateway.cli.discovery import check_announcement
from gateway.cli.doctor.finding import Finding, fail, ok, warn
from gateway.contract.errors import PluginError, SettingsError, StoreError
from gateway.contract.plugin import Plugin
from gateway.contract.tool import Tool
from gateway.extensions.activation import missing_required
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.config_schema import plugin_config
from gateway.extensions.backends import key_variable
from gateway.extensions.loader import (
    BUILTIN_PLUGINS,
    channel_options,
    check_logins,
    check_plugin_settings,
    enabled_channels,
    load_plugin,
)
from gateway.extensions.registry import same_path
from gateway.models.catalog import Catalog
from gateway.models.credentials import CredentialStore
from gateway.settings import ProviderSettings, Settings, table_of
from gateway.settings.layers.own_files import own_files
from gateway.settings.validation import hint
from gateway.store.engine import check_address

OWN_PLUGINS = ("commands", "choosing", "access", "spending")
"""Plugins of the gateway, which ``plugins.disabled`` may name."""


def find_mistakes(settings: Settings) -> list[Finding]:
    """Run all checks. Findings of valid channels are included."""
    loaded, findings = _plugins(settings)
    return [
        *_store(settings),
        *_closed_folders(settings),
        *channels(settings),
        *findings,
        *_permissions(settings, loaded),
        *_providers(settings),
        *_models(settings),
        *durations(settings),
        *sources(settings),
        *_announcement(settings),
    ]


def channels(settings: Settings) -> Iterator[Finding]:
    """Check the settings of each enabled channel, and that no two have one path for their platform."""
    owners: dict[str, str] = {}
    for name, account, channel_id in enabled_channels(settings):
        found = channel(settings, name, account, channel_id)
        options = channel_options(settings, name, account) if found.status == "ok" else None
        posted_path: Callable[[str], str | None] = getattr(options, "posted_path", lambda _: None)
        if (path := posted_path(channel_id)) and owners.setdefault(path, channel_id) != channel_id:
            advice = f"correct [{table_of(channel_id)}]"
            found = fail(found.name, same_path(channel_id, owners[path], path), advice)
        yield found


def channel(settings: Settings, name: str, account: str | None, channel_id: str) -> Finding:
    """Check the settings of one channel or account; makes no request."""
    try:
        channel_options(settings, name, account)
        check_logins(settings, name, account)
    except SettingsError as error:
        advice = f"correct [{table_of(channel_id)}], or set enabled = false there"
        # A plugin may add a channel; its settings are known when the plugin is active.
        brought = "there is no such channel" in str(error) and any(_loadable_plugins(settings))
        return (warn if brought else fail)(f"channel {channel_id}", str(error), advice)
    return ok(f"channel {channel_id}", "the settings are valid; it connects when the gateway runs")


def durations(settings: Settings) -> Iterator[Finding]:
    """Find durations that look like seconds but are milliseconds."""
    for complaint in settings.duration_warnings():
        yield warn("durations", complaint, "add a unit")


def sources(settings: Settings) -> Iterator[Finding]:
    """Find sources of settings that are ignored or outdated."""
    for complaint in settings.origin.warnings:
        yield warn("settings", complaint, "docs/settings.md describes the sources")


def plugin_tables(settings: Settings) -> Iterator[Finding]:
    """Find settings of plugins that are not enabled, and unknown names in plugins.disabled."""
    listed = (*settings.plugins.enabled, *BUILTIN_PLUGINS)
    for name in settings.plugins.tables_of_others(listed):
        text = f"[plugins.{name}] has settings, but the plugin is not enabled; {hint(name, listed)}"
        yield warn(f"plugin {name}", text, "add it to plugins.enabled, or remove the table")
    known_names = (*OWN_PLUGINS, *listed)
    for name in settings.plugins.disabled:
        if name not in known_names:
            text = f'plugins.disabled = "{name}" is not a plugin; {hint(name, known_names)}'
            yield warn(f"plugin {name}", text, "correct or remove the name")


def skipped(gateway: Gateway) -> Iterator[Finding]:
    """Find the settings that a running gateway skips or ignores."""
    for channel_id, reason in gateway.left_out.items():
        yield fail(f"channel {channel_id}", reason, f"correct [{table_of(channel_id)}], then start again")
    for name, reason in gateway.activator.failed.items():
        yield fail(f"plugin {name}", reason, "correct it, then start again")
    yield from plugin_tables(gateway.settings)
    yield from durations(gateway.settings)
    yield from sources(gateway.settings)


def _closed_folders(settings: Settings) -> Iterator[Finding]:
    """Find folders of MCP servers that are the gateway's own, which no confined program gets."""
    closed = [path.resolve() for path in own_files(settings, os.environ).closed]
    for name, server in settings.mcp.items():
        if not server.enabled or not server.command or server.trust == "full":
            continue
        roots = server.capabilities.filesystem.roots
        for key, path in (
            *((f"mcp.{name}.capabilities.filesystem.roots", root) for root in roots),
            *([(f"mcp.{name}.cwd", server.cwd)] if server.cwd else []),
        ):
            if path.resolve() in closed:
                told = (
                    f"{key}: {path} has the data or the settings of the gateway, which are closed to programs"
                )
                yield fail(f"MCP server {name}", told, "name another folder")


def _loadable_plugins(settings: Settings) -> Iterator[str]:
    """Yield the names of the enabled plugins that can be loaded."""
    for name in settings.plugins.enabled:
        with suppress(PluginError):
            yield load_plugin(name, settings.plugin_base(name)).name


def _announcement(settings: Settings) -> Iterator[Finding]:
    try:
        check_announcement(settings)
    except SettingsError as error:
        yield fail("announcement", str(error), "install the extra, or set server.announce = false")


def _store(settings: Settings) -> Iterator[Finding]:
    try:
        check_address(settings.store_url)
    except StoreError as error:
        yield fail("store", str(error), "correct store.url")


def _plugins(settings: Settings) -> tuple[list[Plugin], list[Finding]]:
    loaded: list[Plugin] = []
    findings: list[Finding] = []
    admitted: set[str] = set()
    admission = Admission(settings, home=Path.home())
    for name in (*BUILTIN_PLUGINS, *settings.plugins.enabled):
        if name in settings.plugins.disabled:
            continue
        names = [name]
        try:
            if name not in BUILTIN_PLUGINS:
                admission.check_team(name, Path(name).stem)
            if name not in BUILTIN_PLUGINS and admission.owns(name):
                manifest = admission.admit(name).manifest
                admitted.add(manifest.name)
                plugin_config(settings, (name, manifest.name), manifest.config)
                continue
            plugin = load_plugin(name, settings.plugin_base(name))
            names.append(plugin.name)
            loaded.append(plugin)
            check_plugin_settings(settings, name, plugin)
        except PluginError as error:
            tell = warn if settings.plugins.of(*names).optional else fail
            findings.append(
                tell(f"plugin {name}", str(error), "correct it, or remove it from plugins.enabled")
            )
    names = {plugin.name for plugin in loaded} | admitted
    findings += [
        fail(
            f"plugin {name}", missing_required(name, settings.plugins.disabled), "the gateway does not start"
        )
        for name in settings.teams.plugins.required
        if name not in names and name not in settings.plugins.enabled
    ]
    findings += [each for each in plugin_tables(settings) if each.name.removeprefix("plugin ") not in names]
    return loaded, findings


def _permissions(settings: Settings, loaded: Collection[Plugin]) -> Iterator[Finding]:
    """Check the rules against the tools of plugins that are not active."""
    tools: dict[str, Tool] = {}
    for plugin in loaded:
        with suppress(Exception):  # some plugins have tools only when active
            tools |= {tool.name: tool for tool in plugin.tools()}
    for name, rule in settings.permissions.items():
        rules: dict[str, Rule] = {name: rule}
        try:
            Permissions(rules).check(tools, lambda tool: ":" in tool)
        except SettingsError as error:
            tell = warn if settings.plugins.enabled else fail
            yield tell("permissions", str(error), "correct the name, unless a plugin adds the tool")


def _providers(settings: Settings) -> Iterator[Finding]:
    """Find tables of unknown providers."""
    known = tuple(import_module("plugins.providers").PROVIDERS)
    tell = warn if settings.plugins.enabled else fail
    for name, provider in settings.providers.items():
        like = provider.like
        if like is not None and like not in known and like not in settings.providers:
            yield tell(
                f"provider {name}",
                f"providers.{name}.like = {like!r} is not a provider; {hint(like, known)}",
                _ADVICE,
            )
        elif name not in known and like is None and provider.base_url is None:
            text = f"providers.{name} is unknown, and has neither like nor base_url; {hint(name, known)}"
            yield tell(f"provider {name}", text, _ADVICE)


def _models(settings: Settings) -> Iterator[Finding]:
    """Find models whose provider is unknown or not set up, and those that the offline data does not know."""
    built_in = import_module("plugins.providers").PROVIDERS
    known = (*built_in, *settings.providers)
    catalog = Catalog()
    for key, name in _named_models(settings):
        provider, _, model = name.partition("/")
        if provider in known:
            if (found := _lacking(settings, provider, built_in)) is not None:
                yield warn(key, f"{key}: {name!r}: {found[0]}", found[1])
            if (found := _unlisted(settings, catalog, provider, model, built_in)) is not None:
                yield warn(key, f"{key}: {name!r}: {found[0]}", found[1])
        # Names of models contain slashes too.
        elif near := get_close_matches(provider, known, n=1, cutoff=0.8):
            yield warn(key, f"{key}: {name!r} does not name a provider; did you mean {near[0]}?", _ADVICE)
        # A plugin may add the provider.
        elif not settings.plugins.enabled and not _is_offered(settings, catalog, name, known):
            text = f"{key}: {name!r} names no provider, and no provider is known to have such a model"
            yield warn(key, text, f"write provider/model; providers: {', '.join(known)}")


def _named_models(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each name of a model with its key, except aliases."""
    named = {
        "model": settings.model,
        "small_model": settings.small_model,
        **{f"aliases.{name}": model for name, model in settings.aliases.items()},
    }
    named |= {f"fallback = {name}": name for name in settings.fallback}
    named |= {f"agents.{name}.model": agent.model for name, agent in settings.agents.items()}
    yield from ((key, name) for key, name in named.items() if name and name not in settings.aliases)


def _lacking(settings: Settings, provider: str, built_in: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return that a provider has no key, and what to do; None if it has one, or may work without."""
    if provider in settings.providers or built_in[provider].keyless:
        return None
    own = key_variable(provider)
    variables = (own, *(name for names in built_in[provider].variables.values() for name in names))
    if any(map(os.environ.get, variables)) or provider in CredentialStore(settings.data_dir).stored():
        return None
    return (
        f"the provider {provider} has no key here",
        f"set {own} or providers.{provider}.api_key, or run `trunkline auth login {provider}`",
    )


def _unlisted(
    settings: Settings, catalog: Catalog, provider: str, model: str, built_in: Mapping[str, Any]
) -> tuple[str, str] | None:
    """Return that the offline data of a provider has no such model, and the nearest ones; None otherwise."""
    own = settings.providers.get(provider, ProviderSettings())
    seller = own.like or provider
    entry = built_in.get(seller)
    # A server of one's own has other models.
    if not model or own.base_url or (entry and entry.own_names) or f"{provider}/{model}" in settings.models:
        return None
    first = entry.first_model if entry else ""
    offered = [facts.id for facts in catalog.models_of(seller)]
    if not offered or model == first or model in own.models or catalog.find(seller, model):
        return None
    near = [f"{provider}/{each}" for each in get_close_matches(model, offered, n=3, cutoff=0.5)]
    text = f"the list of models that came with this version does not have it for {provider}"
    return (
        f"{text}; did you mean {' or '.join(near)}?" if near else text,
        f"correct the name, unless the model is newer; `trunkline models list --provider {provider}` asks",
    )


def _is_offered(settings: Settings, catalog: Catalog, model: str, providers: Collection[str]) -> bool:
    """Return whether a provider is known to have a model that is named without one."""
    listed = any(model in own.models for own in settings.providers.values())
    return listed or any(catalog.find(provider, model) for provider in providers)


_ADVICE = "correct the name, unless a plugin adds it; `trunkline providers list` shows all"
