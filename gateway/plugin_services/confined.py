"""Makes plugins with a manifest: each with its broker, and with the process that its trust allows.

A sandboxed plugin runs in a confined process, one with full trust in the gateway's. Commands that only list
plugins start neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from msgspec import Struct, structs

from gateway.contract.errors import PluginError
from gateway.contract.services import Announce
from gateway.extensions.admission.admission import Admission
from gateway.extensions.admission.capabilities import Grant
from gateway.extensions.admission.config_schema import plugin_config
from gateway.extensions.admission.locations import SHIPPED_SOURCE
from gateway.extensions.admission.manifest import Admitted
from gateway.extensions.admission.tree import tree_digest
from gateway.extensions.broker import CompletionService
from gateway.extensions.broker.programs import ProgramResult, ToolRun
from gateway.extensions.confined.folder_tools import folder_tools
from gateway.extensions.confined.inprocess import InProcess
from gateway.extensions.confined.plugin import ConfinedPlugin, OnStart, Process
from gateway.extensions.process.frames import ProcessEnded, Serve
from gateway.extensions.process.records import PluginRecord
from gateway.extensions.process.service import Processes
from gateway.extensions.process.supervisor import ProcessEvent, ProcessSupervisor
from gateway.extensions.registry import PluginRegistry
from gateway.plugin_services.brokers import Brokers
from gateway.plugin_services.bundles import PartServices
from gateway.plugin_services.jobs import Jobs
from gateway.plugin_services.resolver import OpenServices
from gateway.settings import Settings


class ConfinedPlugins:
    """Makes the plugins of a running gateway.

    ``announce`` returns the announcements of a plugin, ``models`` the service that calls models.
    """

    def __init__(
        self,
        settings: Settings,
        registry: PluginRegistry,
        processes: Processes,
        services: OpenServices,
        announce: Callable[[str], Announce],
        models: Callable[[], CompletionService],
        parts: PartServices,
    ) -> None:
        self._jobs = Jobs(services.store, settings.timezone)
        self._parts = parts
        self._registry = registry
        self._grants = services.grants
        self._actions = services.actions
        self._processes = processes
        self._records: dict[str, PluginRecord] = {}
        self._brokers = Brokers(settings, registry, processes, services, announce, models)

    def make(self, settings: Settings, admission: Admission, entry: str) -> ConfinedPlugin:
        """Return the plugin for an entry of ``plugins.enabled``. Raises PluginError."""
        admitted = with_grants(admission.admit(entry))
        name = admitted.manifest.name
        holds = partial(self._holds, admitted)
        check = partial(_check_content, admission, entry, admitted)
        broker = self._brokers.of(admitted, lambda reason: plugin.stop_soon(reason))
        plugin = ConfinedPlugin(
            admitted,
            settings.plugins.of(entry, name),
            broker,
            make_process=partial(self._process, admitted, check),
            holds=holds,
            config=read_config(settings, entry, admitted),
            jobs=self._jobs,
            tools=folder_tools(admitted, broker.run_tool),
            parts=self._parts.of(admitted, settings.plugins.of(entry, name), holds),
        )
        return plugin

    def _process(
        self, admitted: Admitted, check: Callable[[], None], serve: Serve, on_start: OnStart
    ) -> Process:
        if not admitted.manifest.entry:
            return _NoCode()
        record = self._records.setdefault(admitted.manifest.name, PluginRecord())
        if admitted.trust == "full":
            return InProcess(admitted, serve, on_start, record)
        tasks = self._registry.task_group
        assert tasks is not None, "the gateway runs"
        return ProcessSupervisor(
            self._processes.launcher,
            admitted,
            serve,
            on_start=on_start,
            audit=partial(self._record, admitted),
            tasks=tasks,
            record=record,
            check=check,
        )

    def _holds(self, admitted: Admitted, grant: Grant) -> bool:
        name = admitted.manifest.name
        given = grant in admitted.grants or grant in self._grants.given(name)
        return given and (admitted.trust == "full" or grant not in self._grants.refused(name))

    def _record(self, admitted: Admitted, event: ProcessEvent) -> None:
        manifest = admitted.manifest
        about = (manifest.name, manifest.version, admitted.digest)
        self._actions.record(about, f"process.{event.kind}", event.reason)


def _check_content(admission: Admission, entry: str, admitted: Admitted) -> None:
    """Raise PluginError if a plugin's files are not those that were admitted."""
    now = admission.admit(entry)
    # Of an installed plugin that was replaced, the approved version before is still in its own folder.
    digest = now.digest if now.folder == admitted.folder else tree_digest(admitted.folder)
    if digest != admitted.digest:
        name = admitted.manifest.name
        raise PluginError(f"the files of {name!r} were changed; run `trunkline plugin enable {name}`")


def with_grants(admitted: Admitted) -> Admitted:
    """Return a plugin with all that it declares granted, if it is shipped or has full trust."""
    if admitted.trust != "full" and not admitted.source.startswith(SHIPPED_SOURCE):
        return admitted
    return structs.replace(admitted, grants=frozenset(admitted.manifest.capabilities.grants()))


def read_config(settings: Settings, entry: str, admitted: Admitted) -> Mapping[str, Any]:
    """Return a plugin's own settings with the defaults of its manifest. Raises PluginError."""
    manifest = admitted.manifest
    return plugin_config(settings, tuple(dict.fromkeys((entry, manifest.name))), manifest.config)


def list_only(settings: Settings, admission: Admission, entry: str, parts: PartServices) -> ConfinedPlugin:
    """Return a plugin that offers the tools of its manifest, and does not run."""
    admitted = with_grants(admission.admit(entry))
    own = settings.plugins.of(entry, admitted.manifest.name)
    return _Listed(
        admitted,
        own,
        _NoBroker(),
        lambda _serve, _on_start: _NoProcess(),
        lambda _grant: True,
        read_config(settings, entry, admitted),
        tools=folder_tools(admitted, _run_nothing),
        parts=parts.of(admitted, own, lambda _grant: True),
    )


async def plugin_token(
    registry: PluginRegistry, auth: str, provider: str, show: Callable[[str], None] | None = None
) -> tuple[str, float]:
    """Return a token for a model provider and its end, of the plugin that ``auth`` names (``plugin:NAME``).

    With ``show`` a user logs in; see ``ConfinedPlugin.token``. Raises PluginError.
    """
    name = auth.partition(":")[2]
    plugin = registry.get(name)
    if not isinstance(plugin, ConfinedPlugin):
        raise PluginError(f"providers.{provider}.auth names the plugin {name!r}, which is not active")
    offered = plugin.declaration.auth
    name = offered[0] if len(offered) == 1 else provider
    token = await plugin.token(name, {"provider": provider}, show)
    return token.token, token.expires_at or math.inf


async def _run_nothing(_run: ToolRun) -> ProgramResult:
    raise PluginError("the gateway does not run")


class _Listed(ConfinedPlugin):
    async def find_problem(self) -> str:
        # That it does not run is not a problem: plugins that are only listed never do.
        return ""


class _NoBroker:
    async def serve(self, method: str, params: Any) -> Any:
        raise PluginError(f"{method}: the gateway does not run")

    def working_in(self, session: str) -> AbstractContextManager[None]:
        return nullcontext()

    async def check(self, capability: str, value: str, *arguments: object) -> None:
        raise PluginError(f"{capability}: the gateway does not run")


class _NoProcess:
    state: str = "stopped"
    reason = "the gateway does not run"
    objects: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.record = PluginRecord()

    async def start(self, seconds: float) -> None:
        """Start nothing."""

    async def stop(self, reason: str = "") -> None:
        """End nothing."""

    async def call(self, method: str, params: Mapping[str, Any] | Struct, seconds: float) -> Any:
        raise ProcessEnded(self.reason)

    def notify(self, method: str, params: Mapping[str, Any] | Struct) -> None:
        """Send nothing."""


class _NoCode(_NoProcess):
    """A bundle works without a process."""

    state = "running"
    reason = ""

    async def stop(self, reason: str = "") -> None:
        """Note that the bundle is stopped."""
        self.state, self.reason = "stopped", reason

    async def call(self, method: str, params: Mapping[str, Any] | Struct, seconds: float) -> Any:
        """Do nothing, because the bundle has no code."""
