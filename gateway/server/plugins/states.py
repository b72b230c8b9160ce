"""The state of every plugin: what runs, what failed, and what each one hooks, offers and may do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from msgspec import Struct
from msgspec.structs import replace

from gateway.app import Gateway
from gateway.contract.errors import InvalidStateError
from gateway.contract.plugin import Figure, Plugin
from gateway.extensions.admission.admission import Admission, rights
from gateway.extensions.generation import ActivePlugin
from gateway.extensions.hooks import DECISIONS, HOOKS, overrides
from gateway.extensions.process.records import CallTimes, HasProcess
from gateway.models.ledger import to_usd
from gateway.plugin_services.configuration import PluginConfigs, PluginSummary
from gateway.server.plugins.configuration import in_thread
from gateway.server.routes import PlainCall, Route

_ALL_TIMES = 1 << 60
_LONGEST_REASON = 2000

StateOfPlugin = Literal["starting", "running", "restarting", "quarantined", "stopped", "failed", "disabled"]


class FigureNow(Struct, frozen=True):
    """A metric of a plugin now."""

    name: str
    value: float
    labels: Mapping[str, str]


class PluginState(Struct, frozen=True, kw_only=True):
    """A plugin: its state, and what it hooks, offers and may do.

    ``reason`` is why it does not run. ``entry`` is that of plugins.enabled; it is empty for one that comes
    with the gateway or is not enabled. ``permissions`` are the grants that its manifest asks for. ``calls``
    and ``deaths`` count from the start of the gateway, ``usd`` is all that it spent. Only admins get
    ``entry`` and ``figures``.
    """

    name: str
    version: str = ""
    description: str = ""
    state: StateOfPlugin
    reason: str = ""
    kind: Literal["built in", "confined", "all rights"]
    entry: str = ""
    has_log: bool = False
    configurable: bool = False
    hooks: Sequence[str] = ()
    tools: Sequence[str] = ()
    commands: Sequence[str] = ()
    permissions: Sequence[str] = ()
    calls: Sequence[CallTimes] = ()
    deaths: int = 0
    usd: float = 0.0
    figures: Sequence[FigureNow] = ()


class McpServerState(Struct, frozen=True):
    """An MCP server: the number of its tools, and of those that wait for an approval; no command or error."""

    name: str
    state: str
    tools: int
    waiting: int


@runtime_checkable
class HasServers(Protocol):
    """The plugin of the MCP servers, which is loaded only where there are some."""

    @property
    def statuses(self) -> Sequence[Any]:
        """The states of all servers, with the fields of ``McpServerState`` and more."""
        ...


class PluginStates(Struct, frozen=True):
    """All plugins: those that run, those that failed, and those that are found and not enabled."""

    plugins: Sequence[PluginState]
    servers: Sequence[McpServerState]


class PluginStateRoutes:
    """The route ``/api/plugins/states``."""

    def __init__(self, gateway: Gateway, configs: PluginConfigs) -> None:
        self._gateway = gateway
        self._configs = configs

    def routes(self) -> list[Route]:
        """Return the route."""
        return [
            Route(
                "GET",
                "/api/plugins/states",
                "listPluginStates",
                "List all plugins with their state, hooks, tools, permissions and calls.",
                self._list,
                errors=(InvalidStateError,),
                role="viewer",
            )
        ]

    async def _list(self, call: PlainCall) -> PluginStates:
        gateway = self._gateway
        summaries = {each.name: each for each in await in_thread(self._configs.list)}
        grants = await in_thread(self._grants)
        spent = await gateway.parts.spending.ledger.usage_by("plugin", 0, _ALL_TIMES)
        costs = {row.key: float(to_usd(row.nano_usd or 0)) for row in spent}
        figures, _failed = await gateway.registry.collect_figures()
        entries = {plugin.name: entry for entry, plugin in gateway.activator.enabled().items()}
        found: dict[str, PluginState] = {}
        for active in gateway.registry.current.active:
            found[active.name] = replace(
                _running(active, summaries.get(active.name)),
                entry=entries.get(active.name, ""),
                permissions=grants.get(active.name, ()),
                usd=costs.get(active.name, 0.0),
                figures=_figures(active.name, figures),
            )
        for entry, reason in gateway.activator.failed.items():
            found.setdefault(entry, self._failed(entry, reason, summaries.get(entry), grants))
        for name, summary in summaries.items():
            found.setdefault(name, _not_enabled(summary, grants))
        states = [found[name] for name in sorted(found)]
        if call.identity.role != "admin":
            states = [replace(state, entry="", figures=()) for state in states]
        return PluginStates(states, self._servers())

    def _servers(self) -> list[McpServerState]:
        plugin = self._gateway.registry.get("mcp")
        statuses = plugin.statuses if isinstance(plugin, HasServers) else ()
        return [McpServerState(one.name, one.state, one.tools, one.waiting) for one in statuses]

    def _failed(
        self, entry: str, reason: str, summary: PluginSummary | None, grants: Mapping[str, Sequence[str]]
    ) -> PluginState:
        trust = self._gateway.settings.plugins.of(entry).trust
        return PluginState(
            name=entry,
            version="" if summary is None else summary.version,
            description="" if summary is None else summary.description,
            state="failed",
            reason=self._gateway.redactor.redact_text(reason)[:_LONGEST_REASON],
            kind=_kind(rights(trust)),
            entry=entry,
            permissions=grants.get(entry, ()),
        )

    def _grants(self) -> dict[str, Sequence[str]]:
        """Return the grants that the manifests of plugins ask for, by plugin."""
        admission = Admission(self._gateway.settings)
        found = {each.name: each.manifest for each in admission.discover()}
        for plugin in self._gateway.registry.list():
            if (manifest := getattr(getattr(plugin, "admitted", None), "manifest", None)) is not None:
                found[plugin.name] = manifest
        return {
            name: [*manifest.capabilities.grants()]
            for name, manifest in found.items()
            if manifest is not None
        }


def _running(active: ActivePlugin, summary: PluginSummary | None) -> PluginState:
    plugin = active.plugin
    process = plugin.process if isinstance(plugin, HasProcess) else None
    return PluginState(
        name=plugin.name,
        version=plugin.version,
        description="" if summary is None else summary.description,
        state="running" if process is None else _state(process.state),
        reason="" if process is None else process.reason[:_LONGEST_REASON],
        kind="confined" if plugin.asks_by_default else "built in" if active.built_in else "all rights",
        has_log=process is not None,
        configurable=summary is not None and summary.configurable,
        hooks=_hooks(plugin),
        tools=[tool.name for tool in active.tools()],
        commands=[command.name for command in active.commands()],
        calls=[] if process is None else process.record.times(),
        deaths=0 if process is None else process.record.deaths,
    )


def _hooks(plugin: Plugin) -> list[str]:
    return [hook for hook in (*HOOKS, *DECISIONS) if overrides(plugin, hook)]


def _state(name: str) -> StateOfPlugin:
    for known in ("starting", "running", "restarting", "quarantined"):
        if name == known:
            return known
    return "stopped"


def _kind(described: str) -> Literal["confined", "all rights"]:
    return "confined" if described == "confined" else "all rights"


def _not_enabled(summary: PluginSummary, grants: Mapping[str, Sequence[str]]) -> PluginState:
    return PluginState(
        name=summary.name,
        version=summary.version,
        description=summary.description,
        state="stopped" if summary.enabled else "disabled",
        reason=summary.problem,
        kind=_kind(summary.rights),
        configurable=summary.configurable,
        permissions=grants.get(summary.name, ()),
    )


def _figures(plugin: str, all_figures: Mapping[str, Sequence[Figure]]) -> list[FigureNow]:
    prefix = f"trunkline_plugin_{re.sub(r'[^a-z0-9_]', '_', plugin.lower())}_"
    return [
        FigureNow(name.removeprefix(prefix), figure.value, figure.labels)
        for name, figures in all_figures.items()
        if name.startswith(prefix)
        for figure in figures
    ]
