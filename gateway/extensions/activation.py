"""Plugin activation: the built-in plugins and those that the settings enable, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from gateway.contract.errors import PluginActivationError, PluginError, SettingsError
from gateway.contract.plugin import Plugin
from gateway.extensions.backends import ProviderRegistry
from gateway.extensions.loader import SHIPPED_PLUGINS
from gateway.extensions.registry import PluginRegistry
from gateway.settings import PluginSettings, Settings

log = structlog.get_logger("trunkline")

PluginResolver = Callable[[str], Plugin | None]
"""Loads a plugin by name; None skips it. Raises PluginError."""


class PluginActivator:
    """Registers plugins by name and records failures.

    ``failed`` maps each failed plugin to its error; ``provider_owner`` maps each provider to its plugin.
    """

    def __init__(self, registry: PluginRegistry, providers: ProviderRegistry, settings: Settings) -> None:
        self.failed: dict[str, str] = {}
        self.provider_owner: dict[str, str] = {}
        self._registry = registry
        self._providers = providers
        self._settings = settings.plugins
        self._team = settings.teams.plugins
        self._servers = tuple(settings.mcp)
        self._names: dict[str, str] = {}
        self._entries: set[str] = set()
        self._required_failures: dict[str, PluginError] = {}
        self._skipped: dict[str, Plugin | None] = {}

    async def activate(
        self, names: Sequence[str], resolve: PluginResolver, *, built_in: bool = False
    ) -> None:
        """Register plugins in this order, except disabled and registered ones.

        A failed plugin does not stop the others; ``check`` raises its error.
        ``built_in``: they come with Trunkline (see ``PluginRegistry.register``).
        """
        for name in names:
            # Not what another entry registered under this name: a guard would be missing without a word.
            known = self._registry.get(name) is not None and self._names.get(name, name) == name
            if known or name in self._settings.disabled:
                continue
            before = self._providers.known()
            plugin: Plugin | None = None
            try:
                if not built_in:
                    self._check_team(name, Path(name).stem)
                plugin = resolve(name)
                if plugin is not None and plugin.name not in self._settings.disabled:
                    if not built_in:
                        self._check_team(plugin.name, name, Path(name).stem)
                        self._entries.add(name)
                    self._names[plugin.name] = name
                    await self._registry.register(plugin, built_in=built_in or name in SHIPPED_PLUGINS)
            except PluginError as error:
                self._record_failure(name, plugin, error)
            self._record_owners(name, before)

    def use(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self._settings, self._team = settings.plugins, settings.teams.plugins

    def find(self, entry: str) -> Plugin | None:
        """Return the active plugin of an entry of ``plugins.enabled`` or ``plugins.disabled``, or None."""
        found = (self._registry.get(name) for name, known in self._names.items() if known == entry)
        return next((plugin for plugin in found if plugin is not None), None)

    def enabled(self) -> Mapping[str, Plugin]:
        """Return the active plugins that the settings enabled, by their entry in ``plugins.enabled``."""
        found = ((entry, self._registry.get(name)) for name, entry in self._names.items())
        return {entry: plugin for entry, plugin in found if plugin is not None and entry in self._entries}

    async def exchange(self, entry: str, plugin: Plugin, old: Plugin | None) -> None:
        """Register a plugin, in place of the old one if there is one. Raises PluginError, and keeps that."""
        before = self._providers.known()
        self._check_team(plugin.name, entry, Path(entry).stem)
        self._names[plugin.name] = entry
        if old is None:
            await self._registry.register(plugin, built_in=entry in SHIPPED_PLUGINS)
        else:
            await self._registry.replace(old.name, plugin)
        self._entries.add(entry)
        for failures in (self.failed, self._required_failures, self._skipped):
            failures.pop(entry, None)
        self._record_owners(entry, before)

    async def remove(self, plugin: Plugin) -> None:
        """Unregister a plugin. Raises PluginError for one that the team requires."""
        entry = self._names.get(plugin.name, plugin.name)
        if required := next((name for name in (plugin.name, entry) if name in self._team.required), None):
            raise PluginError(missing_required(required, (required,)))
        await self._registry.unregister(plugin.name)

    def check(self) -> None:
        """Raise for every plugin that failed and is not optional.

        Raises PluginActivationError if a later start may succeed, and SettingsError if one of them cannot
        be loaded or registered at all, or if one that the team requires is missing.
        """
        self._check_required()
        if not self._required_failures:
            return
        lines = [
            f"{error}; fix it, remove {name!r} from plugins.enabled, or set optional = true in "
            f"[plugins.{_table(name)}] to start without it"
            for name, error in self._required_failures.items()
        ]
        passing = all(isinstance(error, PluginActivationError) for error in self._required_failures.values())
        raise (PluginActivationError if passing else SettingsError)("\n".join(lines))

    def settings(self, plugin: str) -> PluginSettings:
        """Return the settings of a plugin, under its own name and the name that enabled it."""
        return self._settings.of(*self.tables(plugin))

    def tables(self, plugin: str) -> tuple[str, ...]:
        """Return the names under which a plugin may have a table: the one that enabled it, and its own."""
        return tuple(dict.fromkeys((self._names.get(plugin, plugin), plugin)))

    def options(self, plugin: str) -> Mapping[str, Any]:
        """Return the keys of a plugin's settings that the plugin itself defines."""
        return self.settings(plugin).options

    def may_contribute(self, tool: str) -> bool:
        """Return whether a plugin may still contribute this tool although no plugin offers it now.

        True for the tools of a skipped plugin, and for names that begin with the name of an MCP server, or of
        a plugin that has not listed its tools yet. So are actions of a plugin's programs, such as
        ``coding_agents:claude:Bash``.
        """
        owner, colon, _ = tool.partition(":")
        if colon and (self._registry.get(owner) is not None or owner in self._skipped):
            return True
        # MCP servers of plugins are named PLUGIN-NAME.
        owners = (*(f"{server}_" for server in self._servers), *(f"{p.name}-" for p in self._registry.list()))
        if tool.startswith(owners):
            return True
        silent = [
            plugin.name
            for plugin in self._registry.list()
            if type(plugin).tools is not Plugin.tools and not _tools(plugin)
        ]
        for name, plugin in self._skipped.items():
            tools = _tools(plugin)
            if tool in tools:
                return True
            if not tools:
                silent.append(Path(name).stem if plugin is None else plugin.name)
        return any(_plain(tool).startswith(_plain(name)) for name in silent)

    def _check_team(self, *names: str) -> None:
        """Raise PluginError if the rules of the team refuse a plugin with these names."""
        if reason := self._team.refusal(*names):
            raise PluginError(reason)

    def _check_required(self) -> None:
        """Raise SettingsError for plugins that the team requires and that are not registered."""
        entries = {name for plugin, name in self._names.items() if self._registry.get(plugin) is not None}
        # Those of a failure that is raised anyway say more.
        entries |= self._required_failures.keys()
        lines = [
            missing_required(name, self._settings.disabled, self.failed.get(name))
            for name in self._team.required
            if self._registry.get(name) is None and name not in entries
        ]
        if lines:
            raise SettingsError("\n".join(lines))

    def _record_failure(self, name: str, plugin: Plugin | None, error: PluginError) -> None:
        self.failed[name] = str(error)
        if self._settings.of(name, *([plugin.name] if plugin else [])).optional:
            self._skipped[name] = plugin
            log.error("an optional plugin failed and was skipped", plugin=name, error=str(error))
        else:
            self._required_failures[name] = error

    def _record_owners(self, name: str, before: Collection[str]) -> None:
        self.provider_owner |= {each: name for each in self._providers.known() if each not in before}


def missing_required(name: str, disabled: Collection[str], failure: str | None = None) -> str:
    """Return the complaint about a missing plugin that the team requires."""
    text = f"teams.plugins.required: plugin {name!r}"
    if name in disabled:
        return f"{text} must not be disabled; remove it from plugins.disabled"
    return f"{text} failed: {failure}" if failure else f"{text} is missing; add it to plugins.enabled"


def _tools(plugin: Plugin | None) -> Collection[str]:
    try:
        return {tool.name for tool in plugin.tools()} if plugin else ()
    except Exception:
        log.exception("a plugin could not list its tools", plugin=plugin.name if plugin else "")
        return ()


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _table(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name) else f'"{name}"'
