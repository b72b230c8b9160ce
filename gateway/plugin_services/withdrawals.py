"""Checks while the gateway runs: versions that an index withdrew, and plugins that the team's policy blocks.

Confined plugins among them are stopped. The next start refuses them, too, and also modules, which cannot be
stopped apart from the gateway; see ``Admission.admit``.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from gateway.contract.errors import PluginError, SettingsError
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.manifest import Admitted
from gateway.extensions.confined.plugin import ConfinedPlugin
from gateway.extensions.registry import PluginRegistry
from gateway.plugin_services.actions import PluginActions
from gateway.settings import Settings

log = structlog.get_logger("trunkline.plugins")


class Withdrawals:
    """Reads the indexes and the policy of the settings, and stops the plugins that must not run any more."""

    def __init__(self, settings: Settings, registry: PluginRegistry, actions: PluginActions) -> None:
        self._settings = settings
        self._seconds = settings.plugins.index_check_ms / 1000
        self._registry = registry
        self._actions = actions

    async def run(self) -> None:
        """Check now and after each ``plugins.index_check_ms``, until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(self._seconds)

    async def check(self) -> None:
        """Read indexes and policy once; log what cannot be read, and use its last good copy."""
        try:
            settings = await asyncio.to_thread(self._settings.reread)
            admission = Admission(settings, home=Path.home())
            for problem in await admission.indexes.refresh():
                log.warning("an index of plugins cannot be used", problem=problem)
            for plugin in self._registry.list():
                if not isinstance(plugin, ConfinedPlugin) or plugin.process.state == "stopped":
                    continue
                admitted = plugin.admitted
                reason = await asyncio.to_thread(_reason, settings, admission, admitted)
                if reason is not None:
                    about = (plugin.name, admitted.manifest.version, admitted.digest)
                    self._actions.record(about, "withdrawn", reason, allowed=False)
                    plugin.stop_soon(reason)
        except (PluginError, SettingsError) as error:
            log.error("the rules for plugins cannot be read", error=str(error))


def _reason(settings: Settings, admission: Admission, admitted: Admitted) -> str | None:
    """Return why a plugin must not run any more, or None. Raises PluginError."""
    manifest = admitted.manifest
    # The rules may name it as the settings do.
    names = (manifest.name, *(e for e in settings.plugins.enabled if _denotes(admission, e, manifest.name)))
    return settings.teams.plugins.refusal(*names) or admission.withdrawal(manifest, admitted.wheels)


def _denotes(admission: Admission, entry: str, name: str) -> bool:
    try:
        return admission.owns(entry) and admission.find(entry).name == name
    except PluginError:  # of another plugin
        return False
