"""Finds the plugins of the settings: modules and files as the loader does, and those with a manifest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from gateway.contract.errors import PluginError
from gateway.contract.plugin import Plugin
from gateway.contract.provider import ProviderConfig
from gateway.contract.services import Announce
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.secrets import PluginSecrets
from gateway.extensions.loader import load_plugin
from gateway.extensions.process.service import Processes
from gateway.extensions.registry import PluginRegistry
from gateway.models import Agents
from gateway.plugin_services.actions import PluginActions
from gateway.plugin_services.bundles import PartServices, PluginServers
from gateway.plugin_services.completions import PluginCompletions
from gateway.plugin_services.grant_questions import GrantQuestions
from gateway.session import Sessions
from gateway.session.redaction import MIN_SECRET_LENGTH, Redactor
from gateway.settings import Settings
from gateway.settings.layers.own_files import with_plugins
from gateway.skills import SkillLibrary
from gateway.store import Store
from gateway.tables import PluginTables

if TYPE_CHECKING:
    from gateway.plugin_services.confined import ConfinedPlugins


class OpenServices(Struct, frozen=True):
    """Services for plugins with a manifest; they need an open store."""

    store: Store
    sessions: Sessions
    tables: PluginTables
    grants: GrantQuestions
    actions: PluginActions


class Resolver:
    """Makes a plugin of an entry of ``plugins.enabled``. Without ``services`` it can only be listed.

    ``announce`` returns the announcements of a plugin, ``completions`` the part that calls models. The
    skills and agents of plugins are added to ``library`` and ``agents``.
    """

    def __init__(
        self,
        settings: Settings,
        registry: PluginRegistry,
        processes: Processes,
        announce: Callable[[str], Announce],
        completions: Callable[[], PluginCompletions],
        library: SkillLibrary,
        agents: Agents,
    ) -> None:
        self._parts = PartServices(library, agents, PluginServers())
        self.services: OpenServices | None = None
        self._settings = settings
        self._registry = registry
        self._processes = processes
        self._announce = announce
        self._completions = completions
        self._admission = Admission(settings, home=Path.home())
        self._confined: ConfinedPlugins | None = None

    def use(self, settings: Settings) -> None:
        """Make plugins with these settings from now on."""
        self._settings = settings
        self._admission = Admission(settings, home=Path.home())
        self._processes.own = with_plugins(self._processes.own, settings)
        if self.services is not None:
            # Before a plugin gets them and could say them.
            mask(self.services.sessions.redactor, settings.secrets())

    def owns(self, entry: str) -> bool:
        """Return whether an entry of ``plugins.enabled`` denotes a plugin with a manifest."""
        return self._admission.owns(entry)

    def name_of(self, entry: str) -> str:
        """Return the name of the plugin that an entry of ``plugins.enabled`` denotes. Raises PluginError."""
        return self._admission.find(entry).name if self._admission.owns(entry) else Path(entry).stem

    def is_same(self, old: Plugin, new: Plugin) -> bool:
        """Return whether a plugin with a manifest runs, and another one would be equal to it."""
        # As in ``load``.
        from gateway.extensions.confined.plugin import ConfinedPlugin

        if not (isinstance(old, ConfinedPlugin) and isinstance(new, ConfinedPlugin)):
            return False
        return old.process.state == "running" and old.made_of == new.made_of

    def record_reload(self, plugin: str, outcome: str, version: str = "") -> None:
        """Note in the audit log that a plugin was changed while the gateway runs, or why it was not."""
        if self.services is not None:
            self.services.actions.record((plugin, version, ""), "plugin.reload", outcome)

    async def install_missing(self, environ: Mapping[str, str]) -> None:
        """Install the plugins that the lock names and this machine does not have."""
        if self.services is not None:
            await asyncio.to_thread(self._admission.install_missing, self._settings.plugins.enabled, environ)

    def secrets(self) -> list[str]:
        """Return the secrets that plugins were given, so that they can be masked. Raises PluginError."""
        return [*self._settings.secrets(), *PluginSecrets(self._settings.data_dir).values()]

    @property
    def completions(self) -> PluginCompletions:
        """The part that calls models, once the gateway has it."""
        return self._completions()

    @property
    def actions(self) -> PluginActions:
        """The audit log, once the store is open."""
        assert self.services is not None, "the gateway runs"
        return self.services.actions

    def server_plugins(self) -> Mapping[str, Plugin]:
        """Return the plugins for the MCP servers of the settings and of active plugins, if there are any."""
        if not (self._settings.mcp or self._parts.servers.settings):
            return {}
        from gateway.mcp import mcp_plugins  # a gateway without servers shall not pay for it

        return mcp_plugins(self._settings.mcp, self._parts.servers, lambda: self)

    async def start_servers(self) -> None:
        """Start the first MCP servers of a gateway, if a plugin has brought some while it runs."""
        if self._registry.get("mcp") is None:
            for plugin in self.server_plugins().values():
                await self._registry.register(plugin, built_in=True)

    async def watch(self) -> None:
        """Stop plugins that must not run any more, until cancelled; without indexes and policy return."""
        settings = self._settings
        if self.services is None or not (settings.plugins.indexes or settings.teams.policy):
            return
        # As in ``load``.
        from gateway.plugin_services.withdrawals import Withdrawals

        await Withdrawals(settings, self._registry, self.services.actions).run()

    def with_tokens(self, config: ProviderConfig) -> ProviderConfig:
        """Return a provider's configuration, with the tokens of the plugin that its ``auth`` names."""
        given = self._settings.providers.get(config.id)
        if given is None or given.auth is None:
            return config
        return structs.replace(config, fetch_token=partial(self.token, config.id))

    async def token(self, provider: str, show: Callable[[str], None] | None = None) -> tuple[str, float]:
        """Return a token for a provider and its end, of the plugin that the provider's ``auth`` names.

        With ``show`` a user logs in; see ``ConfinedPlugin.token``. Raises PluginError.
        """
        # As in ``load``.
        from gateway.plugin_services.confined import plugin_token

        given = self._settings.providers.get(provider)
        if given is None or given.auth is None:
            raise PluginError(f"providers.{provider}.auth names no plugin")
        return await plugin_token(self._registry, given.auth, provider, show)

    def load(self, entry: str) -> Plugin:
        """Return the plugin. Raises PluginError."""
        if not self._admission.owns(entry):
            return load_plugin(entry, self._settings.plugin_base(entry))
        # Here, because a gateway without such plugins shall not pay for their code.
        from gateway.plugin_services.confined import ConfinedPlugins, list_only

        if self.services is None:
            return list_only(self._settings, self._admission, entry, self._parts)
        if self._confined is None:
            self._confined = ConfinedPlugins(
                self._settings,
                self._registry,
                self._processes,
                self.services,
                self._announce,
                self._completions,
                self._parts,
            )
        return self._confined.make(self._settings, self._admission, entry)


def mask(redactor: Redactor, secrets: Iterable[str]) -> None:
    """Mask further secrets."""
    found = redactor.secrets.union(each for each in secrets if len(each) >= MIN_SECRET_LENGTH)
    if found != redactor.secrets:
        redactor.replace(found)
