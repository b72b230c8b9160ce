"""The brokers of confined plugins, each with the gateway's services that its plugin may use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from gateway.contract.services import Announce, NoticeLevel, SessionService
from gateway.events.bus import OwnedEvents
from gateway.events.types import FileDeleted, FileModified
from gateway.extensions.admission.manifest import Admitted
from gateway.extensions.admission.secrets import PluginSecrets
from gateway.extensions.broker import (
    Broker,
    BrokerServices,
    Completion,
    CompletionService,
    Gate,
)
from gateway.extensions.contributions import ConsoleUI
from gateway.extensions.process.service import Processes
from gateway.extensions.registry import PluginRegistry
from gateway.files import SnapshotError, Watch
from gateway.plugin_services.programs import ProgramRunner
from gateway.plugin_services.resolver import OpenServices, mask
from gateway.settings import Settings

log = structlog.get_logger("trunkline.plugins")

_TABLE = "kv"
_FACTS = (
    *("channel", "owner", "messages", "input_tokens", "output_tokens", "cost"),
    *("created_at", "updated_at"),
)
"""The facts about a session that need no grant: no text, and no title, which is made of text."""


class Brokers:
    """Makes brokers. ``models`` returns the service that calls models, once the gateway has one.

    ``announce`` returns the announcements of a plugin.
    """

    def __init__(
        self,
        settings: Settings,
        registry: PluginRegistry,
        processes: Processes,
        services: OpenServices,
        announce: Callable[[str], Announce],
        models: Callable[[], CompletionService],
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._processes = processes
        self._services = services
        self._announce = announce
        self._models = models
        self._secrets = PluginSecrets(settings.data_dir)

    def of(self, admitted: Admitted, stop: Callable[[str], None]) -> Broker:
        """Return the broker of a plugin. ``stop`` ends the plugin, with a reason."""
        name = admitted.manifest.name
        sessions: SessionService = self._services.sessions
        events = OwnedEvents(self._registry.events, name)
        services = BrokerServices(
            workspace=Path.cwd(),
            own=lambda: self._processes.own,
            private=self._settings.fetch.allow,
            events=events,
            sessions=sessions,
            facts=self._facts,
            send=partial(self._send, name),
            models=_LateModels(self._models),
            table=self._services.tables.open(name, _TABLE),
            run=partial(self._run_watched, events, name),
            secret=partial(self._read_secret, name),
            tools=self._registry.get_tools,
            notify=partial(_notify, name),
        )
        gate = Gate(admitted, self._services.grants, self._services.actions, stop)
        return Broker(admitted, gate, services)

    async def _run_watched(
        self,
        events: OwnedEvents,
        plugin: str,
        argv: Sequence[str],
        data: bytes,
        seconds: float,
        *,
        confined: bool,
        session: str,
    ) -> tuple[int, bytes, bytes]:
        """Run a program, and emit an event for each file of the workspace that it changed."""
        watch = None
        if confined and (events.wants(FileModified, session) or events.wants(FileDeleted, session)):
            try:
                watch = await asyncio.to_thread(self._watch_workspace)
            except SnapshotError as error:
                log.info("changes of a program have no events", plugin=plugin, reason=str(error))
        try:
            run = ProgramRunner(self._processes.launcher, Path.cwd(), self._processes.own)
            return await run(argv, data, seconds, confined=confined)
        finally:
            for path, _, after in await asyncio.to_thread(watch.changes) if watch else ():
                kind = FileDeleted if after is None else FileModified
                events.emit(kind(session, path, by=f"plugin:{plugin}"))

    def _watch_workspace(self) -> Watch:
        return Watch([Path.cwd()], self._settings.data_dir.resolve())

    def _read_secret(self, plugin: str, name: str) -> str | None:
        """Return a secret of a plugin, which may be new, and mask it from now on."""
        found = self._secrets.of(plugin).get(name)
        if found is not None:
            mask(self._services.sessions.redactor, (found,))
        return found

    async def _facts(self, session: str) -> Mapping[str, Any]:
        row = (await self._services.sessions.find(session)).row
        chosen = {"agent": row.agent or "", "model": row.model or "", "parent": row.parent or ""}
        return {**chosen, **{name: getattr(row, name) for name in _FACTS}}

    async def _send(self, plugin: str, session: str, text: str, key: str) -> None:
        found = await self._services.sessions.find(session)
        await self._announce(plugin)(found.address, text, key)


def _notify(plugin: str, message: str, level: NoticeLevel) -> None:
    ConsoleUI().notify(f"{plugin}: {message}", level)


class _LateModels:
    """Calls of models by plugins that are made before the part that calls models."""

    def __init__(self, models: Callable[[], CompletionService]) -> None:
        self._models = models

    async def complete(self, plugin: str, session: str, prompt: str, **options: Any) -> Completion:
        """Call a model."""
        return await self._models().complete(plugin, session, prompt, **options)
