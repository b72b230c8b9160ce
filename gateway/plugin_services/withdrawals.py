"""Checks of the plugin indexes: a version that was withdrawn is stopped while the gateway runs.

The next start refuses it, too, as the copy of the index says; see ``Admission.admit``.
"""

from __future__ import annotations

import asyncio

import structlog

from gateway.contract.errors import PluginError
from gateway.extensions.admission.admission import Admission
from gateway.extensions.confined.plugin import ConfinedPlugin
from gateway.extensions.registry import PluginRegistry
from gateway.plugin_services.actions import PluginActions
from gateway.settings import Settings

log = structlog.get_logger("trunkline.plugins")


class Withdrawals:
    """Fetches the indexes of the settings, and stops the plugins that they withdraw."""

    def __init__(
        self, settings: Settings, admission: Admission, registry: PluginRegistry, actions: PluginActions
    ) -> None:
        self._seconds = settings.plugins.index_check_ms / 1000
        self._admission = admission
        self._registry = registry
        self._actions = actions

    async def run(self) -> None:
        """Check now and after each ``plugins.index_check_ms``, until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(self._seconds)

    async def check(self) -> None:
        """Fetch the indexes once. What cannot be fetched is logged, and its last good copy used."""
        for problem in await self._admission.indexes.refresh():
            log.warning("an index of plugins cannot be used", problem=problem)
        for plugin in self._registry.list():
            if not isinstance(plugin, ConfinedPlugin) or plugin.process.state == "stopped":
                continue
            admitted = plugin.admitted
            manifest = admitted.manifest
            try:
                reason = await asyncio.to_thread(self._admission.withdrawal, manifest, admitted.wheels)
            except PluginError as error:
                log.error("the indexes of plugins cannot be read", error=str(error))
                return
            if reason is not None:
                about = (manifest.name, manifest.version, admitted.digest)
                self._actions.record(about, "withdrawn", reason, allowed=False)
                plugin.stop_soon(reason)
