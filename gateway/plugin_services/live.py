"""Changes of plugins while the gateway runs: start, replace and stop them, as the settings and the lock say.

The settings file and the lock decide, so a caller can only ask to compare them with what runs. A new
generation of a plugin starts beside the old one and takes its place when it is ready. If it fails, the old
one stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import structlog
from msgspec import Struct

from gateway.contract.errors import PluginActivationError, PluginError, TrunklineError
from gateway.contract.plugin import Plugin
from gateway.extensions.activation import PluginActivator
from gateway.plugin_services.resolver import Resolver
from gateway.settings import Settings

log = structlog.get_logger("trunkline.plugins")

READY_SECONDS = 10.0
"""Time within which a plugin must be checked, started and ready."""

Outcome = Literal["started", "replaced", "stopped", "unchanged", "disabled"]
"""``disabled``: the plugin is not enabled, and did not run."""


class Change(Struct, frozen=True):
    """The change of a plugin: its outcome and the version that runs now, "" if none does."""

    name: str
    outcome: Outcome
    version: str = ""


class LivePlugins:
    """The plugins of a running gateway that the settings enabled. ``changed`` is called after each change."""

    def __init__(
        self,
        settings: Settings,
        activator: PluginActivator,
        resolver: Resolver,
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        self._settings = self._began = settings
        self._applied: dict[str, Settings] = {}
        """The settings that plugins were given since the start, by their entries in ``plugins.enabled``."""
        self._activator = activator
        self._resolver = resolver
        self._changed = changed
        self._applying = asyncio.Lock()

    def can_apply(self, name: str) -> bool:
        """Return whether ``apply`` makes changed settings of a plugin take effect. It reads files.

        A module that runs keeps its settings until the gateway stops: its code is imported once.
        """
        entry = self._entry(name)
        return self._activator.find(entry) is None or self._resolver.owns(entry)

    def entries(self, enabled: Sequence[str]) -> list[str]:
        """Return which of ``plugins.enabled`` the gateway works with, and those that it still runs."""
        active = self._activator.enabled()
        kept = [entry for entry in enabled if entry in active or entry in self._began.plugins.enabled]
        return [*kept, *(entry for entry in active if entry not in enabled)]

    def settings_of(self, name: str) -> Settings | None:
        """Return the settings that a plugin runs with, or None if it does not run. It reads files."""
        entry = self._entry(name)
        return None if self._activator.find(entry) is None else self._applied.get(entry, self._began)

    async def apply(self, name: str, ready_seconds: float = READY_SECONDS) -> Change:
        """Read the settings and the lock again, and change one plugin accordingly.

        ``name`` is its name, or its entry in ``plugins.enabled``. Raises PluginError or SettingsError; then
        what ran before continues.
        """
        async with self._applying:
            try:
                change = await self._apply(name, ready_seconds)
            except TrunklineError as error:
                log.error("a plugin was not changed", plugin=name, error=str(error))
                running = self._activator.enabled().items()
                known = next((one.name for entry, one in running if name in (entry, one.name)), name)
                self._resolver.record_reload(known, f"failed: {error}")
                raise
            if change.outcome in ("started", "replaced", "stopped"):
                log.info("a plugin was changed", plugin=name, outcome=change.outcome, version=change.version)
                self._resolver.record_reload(change.name, change.outcome, change.version)
                await self._changed()
            return change

    async def log_in(self, provider: str, show: Callable[[str], None]) -> float:
        """Let the plugin that a provider's ``auth`` names log in, and return the end of its token.

        ``show`` is called with what the plugin notifies of meanwhile. Raises PluginError.
        """
        return (await self._resolver.token(provider, show))[1]

    async def _apply(self, name: str, ready_seconds: float) -> Change:
        settings = self._settings = await asyncio.to_thread(self._settings.with_plugins_again)
        self._activator.use(settings)
        self._resolver.use(settings)
        entry = await asyncio.to_thread(self._entry, name)
        old = self._activator.find(entry)
        own_name = old.name if old is not None else await asyncio.to_thread(self._name_of, entry)
        if old is None:
            # Another entry may have enabled it: a folder that was installed meanwhile.
            running = self._activator.enabled().items()
            gone = (one for each, one in running if each not in settings.plugins.enabled)
            old = next((one for one in gone if one.name == own_name), None)
        disabled = {entry, own_name} & {*settings.plugins.disabled}
        if disabled or entry not in settings.plugins.enabled:
            if old is not None and not disabled and old not in self._activator.enabled().values():
                return Change(old.name, "unchanged", old.version)  # it comes with the gateway
            return await self._stop(entry, old)
        try:
            async with asyncio.timeout(ready_seconds):
                return await self._start(entry, old)
        except TimeoutError:
            text = f"plugin {name!r} was not ready within {ready_seconds:g} s"
            raise PluginActivationError(text) from None

    def _entry(self, name: str) -> str:
        """Return the entry of ``plugins.enabled`` that denotes a plugin, or the name if there is none."""
        enabled = self._settings.plugins.enabled
        if name in enabled:
            return name
        # First of those that run: the manifest of one may have a mistake now.
        running = next((entry for entry, one in self._activator.enabled().items() if one.name == name), "")
        return running or next((entry for entry in enabled if self._name_of(entry) == name), name)

    def _name_of(self, entry: str) -> str:
        try:
            return self._resolver.name_of(entry)
        except PluginError:  # of another plugin
            return ""

    async def _stop(self, entry: str, old: Plugin | None) -> Change:
        if old is None:
            return Change(entry, "disabled")
        await self._activator.remove(old)
        return Change(old.name, "stopped")

    async def _start(self, entry: str, old: Plugin | None) -> Change:
        # Code of modules is imported once for a process.
        if old is not None and not await asyncio.to_thread(self._resolver.owns, entry):
            return Change(old.name, "unchanged", old.version)
        # In a thread, because it reads and hashes all files of the plugin.
        new = await asyncio.to_thread(self._resolver.load, entry)
        if old is not None and self._resolver.is_same(old, new):
            self._applied[entry] = self._settings
            return Change(old.name, "unchanged", old.version)
        await self._activator.exchange(entry, new, old)
        self._applied[entry] = self._settings
        await self._resolver.start_servers()
        return Change(new.name, "started" if old is None else "replaced", new.version)
