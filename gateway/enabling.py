"""Enabling plugins by name: the built-in ones and those of the settings. One that fails is left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import structlog

from gateway.backends import ProviderRegistry
from gateway.errors import PluginError
from gateway.plugin import Plugin
from gateway.registry import PluginRegistry
from gateway.settings import PluginsSettings

log = structlog.get_logger("trunkline")

PluginResolver = Callable[[str], Plugin | None]
"""Finds a plugin by name; None leaves it out. Raises PluginError."""


class Enabling:
    """Registers plugins, and remembers what came of it.

    ``left_out`` are those that failed, and why; ``brought`` tells by provider which plugin it is from.
    """

    def __init__(
        self, registry: PluginRegistry, providers: ProviderRegistry, settings: PluginsSettings
    ) -> None:
        self.left_out: dict[str, str] = {}
        self.brought: dict[str, str] = {}
        self._registry = registry
        self._providers = providers
        self._settings = settings
        self._names: dict[str, str] = {}

    async def enable(self, names: Sequence[str], resolve: PluginResolver) -> None:
        """Register plugins in this order, but for those that are disabled or there already."""
        for name in names:
            if name in self._settings.disabled or self._registry.get(name) is not None:
                continue
            before = self._providers.known()
            try:
                plugin = resolve(name)
                if plugin is not None:
                    self._names[plugin.name] = name
                    await self._registry.register(plugin)
            except PluginError as error:
                log.error("a plugin was left out", plugin=name, error=str(error))
                self.left_out[name] = str(error)
            self._remember(name, before)

    def options(self, plugin: str) -> Mapping[str, Any]:
        """The settings of a plugin: under its own name, and under the one by which it was enabled."""
        return {**self._settings.options(self._names.get(plugin, plugin)), **self._settings.options(plugin)}

    def _remember(self, name: str, before: Collection[str]) -> None:
        self.brought |= {each: name for each in self._providers.known() if each not in before}
