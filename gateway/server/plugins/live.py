"""The plugins that run, over REST: their state, their stderr, and changes at once."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gateway.app import Gateway
from gateway.contract.errors import InvalidStateError, NotFoundError, PluginError, SettingsError
from gateway.contract.plugin import Plugin
from gateway.extensions.process.records import CallTimes, HasProcess
from gateway.models.ledger import to_usd
from gateway.plugin_services import Decision
from gateway.plugin_services.live import Change
from gateway.server.routes import Call, Nothing, PlainCall, Route
from gateway.tables.audit import recorded

_Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=500,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        description="Name of the plugin, or its entry in plugins.enabled",
    ),
]
_ALL_TIMES = 1 << 60


class RunningPlugin(Struct, frozen=True):
    """A plugin that runs. ``entry`` is that of plugins.enabled, ``cost`` all that it spent, in US dollars.

    ``state`` is starting, running, restarting, quarantined or stopped, ``reason`` why it does not run.
    ``deaths`` of its processes and ``calls`` count from the start of the gateway.
    """

    name: str
    entry: str
    version: str
    confined: bool
    state: str
    reason: str
    deaths: int
    cost: float
    calls: list[CallTimes]


class RunningPlugins(Struct, frozen=True):
    """The plugins that the settings enabled. ``settings`` is the file that enables and disables them."""

    settings: str
    plugins: list[RunningPlugin]


class PluginChange(Struct, frozen=True):
    """A plugin whose settings, files or grants were changed."""

    name: _Name


class AppliedChange(Struct, frozen=True):
    """The change of a plugin: the outcome, and the version that runs now, "" if none does.

    ``settings`` is the settings file that was read again.
    """

    settings: str
    change: Change


class LogQuery(Struct, frozen=True):
    """A plugin, and how many bytes of its stderr are known."""

    name: _Name
    after: Annotated[int, Meta(ge=0, le=_ALL_TIMES)] = 0


class PluginLog(Struct, frozen=True):
    """The end of a plugin's stderr, at most 64 KiB. ``end`` is the number of bytes that it wrote so far."""

    text: str
    end: int


class LivePluginRoutes:
    """The routes of plugins that the settings enabled."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "GET",
                "/api/plugins/running",
                "listRunningPlugins",
                "List the plugins that run, with the times of their calls.",
                self._list,
            ),
            Route(
                "POST",
                "/api/plugins/apply",
                "applyPlugin",
                "Read the settings and the lock again, and start, replace or stop a plugin as they say.",
                self._apply,
                errors=(InvalidStateError,),
                needs_proof=True,
            ),
            Route(
                "POST",
                "/api/plugins/decisions",
                "recordPluginDecision",
                "Write to the audit log that a plugin was installed, updated, approved or removed.",
                self._decide,
                success=204,
                needs_proof=True,
            ),
            Route(
                "GET",
                "/api/plugins/log",
                "readPluginLog",
                "Read what a confined plugin wrote to stderr.",
                self._log,
                errors=(NotFoundError,),
            ),
        ]

    async def _list(self, _call: PlainCall) -> RunningPlugins:
        enabled = self._gateway.activator.enabled()
        spent = await self._gateway.parts.spending.ledger.usage_by("plugin", 0, _ALL_TIMES)
        costs = {row.key: float(to_usd(row.nano_usd or 0)) for row in spent}
        states = [_state(entry, one, costs.get(one.name, 0.0)) for entry, one in enabled.items()]
        return RunningPlugins(self._settings(), states)

    async def _apply(self, call: Call[Nothing, Nothing, Nothing, PluginChange]) -> AppliedChange:
        store, actor, name = self._gateway.parts.store, call.identity.account, call.body.name
        async with recorded(store, actor, "plugins.apply", name) as record:
            try:
                change = await self._gateway.live_plugins.apply(name)
            except (PluginError, SettingsError) as error:
                raise InvalidStateError(str(error)) from error
            record.outcome = change.outcome
        return AppliedChange(self._settings(), change)

    async def _decide(self, call: Call[Nothing, Nothing, Nothing, Decision]) -> None:
        parts = self._gateway.parts
        await parts.actions.decide(call.body)
        await parts.access.plugin_grants.load()

    async def _log(self, call: Call[Nothing, LogQuery, Nothing, None]) -> PluginLog:
        name = call.query.name
        enabled = self._gateway.activator.enabled()
        found = enabled.get(name) or next((one for one in enabled.values() if one.name == name), None)
        if not isinstance(found, HasProcess):
            raise NotFoundError(f"plugin {name!r} has no process; `trunkline plugin list` shows the plugins")
        text, end = found.process.record.stderr(call.query.after)
        return PluginLog(self._gateway.redactor.redact_text(text.decode(errors="replace")), end)

    def _settings(self) -> str:
        return str(self._gateway.settings.file.absolute())


def _state(entry: str, plugin: Plugin, cost: float) -> RunningPlugin:
    process = plugin.process if isinstance(plugin, HasProcess) else None
    return RunningPlugin(
        name=plugin.name,
        entry=entry,
        version=plugin.version,
        confined=plugin.asks_by_default,
        state=process.state if process else "running",
        reason=process.reason if process else "",
        deaths=process.record.deaths if process else 0,
        cost=cost,
        calls=process.record.times() if process else [],
    )
