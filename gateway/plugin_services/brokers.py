"""The brokers of confined plugins, each with the gateway's services that its plugin may use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from gateway.contract.services import Announce, NoticeLevel, SessionService
from gateway.events.bus import OwnedEvents
from gateway.events.types import FileDeleted, FileModified
from gateway.extensions.admission.manifest import Admitted
from gateway.extensions.broker import (
    Broker,
    BrokerServices,
    Completion,
    CompletionService,
    Gate,
    GrantService,
)
from gateway.extensions.registry import PluginRegistry
from gateway.files import SnapshotError, Watch
from gateway.plugin_services.actions import PluginActions
from gateway.session import Sessions
from gateway.settings import Settings
from gateway.settings.layers.own_files import OwnFiles
from gateway.tables import PluginTables

log = structlog.get_logger("trunkline.plugins")

_TABLE = "kv"
_FACTS = (
    *("channel", "owner", "messages", "input_tokens", "output_tokens", "cost"),
    *("created_at", "updated_at"),
)
"""What plugins get about a session without a grant: no text, and no title, which is made of text."""

RunProgram = Callable[[Sequence[str], bytes, float, bool], Awaitable[tuple[int, bytes, bytes]]]
"""Runs a program with an input and a limit in seconds; the last argument is whether it is confined."""


class Brokers:
    """Makes brokers. ``models`` returns the service that calls models, once the gateway has one.

    ``announce`` returns the announcements of a plugin, ``secret`` one of its secrets.
    """

    def __init__(
        self,
        settings: Settings,
        registry: PluginRegistry,
        sessions: Sessions,
        tables: PluginTables,
        grants: GrantService,
        actions: PluginActions,
        announce: Callable[[str], Announce],
        models: Callable[[], CompletionService],
        run: RunProgram,
        own: Callable[[], OwnFiles],
        secret: Callable[[str, str], str | None],
        notify: Callable[[str, str, NoticeLevel], None],
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._sessions = sessions
        self._tables = tables
        self._grants = grants
        self._actions = actions
        self._announce = announce
        self._models = models
        self._run = run
        self._own = own
        self._secret = secret
        self._notify = notify

    def of(self, admitted: Admitted, stop: Callable[[str], None]) -> Broker:
        """Return the broker of a plugin. ``stop`` ends the plugin, with a reason."""
        name = admitted.manifest.name
        sessions: SessionService = self._sessions
        events = OwnedEvents(self._registry.events, name)
        services = BrokerServices(
            workspace=Path.cwd(),
            own=self._own,
            private=self._settings.fetch.allow,
            events=events,
            sessions=sessions,
            facts=self._facts,
            send=partial(self._send, name),
            models=_LateModels(self._models),
            table=self._tables.open(name, _TABLE),
            run=partial(self._run_watched, events, name),
            secret=partial(self._secret, name),
            tools=self._registry.get_tools,
            notify=partial(self._notify, name),
        )
        return Broker(admitted, Gate(admitted, self._grants, self._actions, stop), services)

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
            return await self._run(argv, data, seconds, confined)
        finally:
            for path, _, after in await asyncio.to_thread(watch.changes) if watch else ():
                kind = FileDeleted if after is None else FileModified
                events.emit(kind(session, path, by=f"plugin:{plugin}"))

    def _watch_workspace(self) -> Watch:
        return Watch([Path.cwd()], self._settings.data_dir.resolve())

    async def _facts(self, session: str) -> Mapping[str, Any]:
        row = (await self._sessions.find(session)).row
        chosen = {"agent": row.agent or "", "model": row.model or "", "parent": row.parent or ""}
        return {**chosen, **{name: getattr(row, name) for name in _FACTS}}

    async def _send(self, plugin: str, session: str, text: str, key: str) -> None:
        found = await self._sessions.find(session)
        await self._announce(plugin)(found.address, text, key)


class _LateModels:
    """Calls of models by plugins that are made before the part that calls models."""

    def __init__(self, models: Callable[[], CompletionService]) -> None:
        self._models = models

    async def complete(self, plugin: str, session: str, prompt: str, **options: Any) -> Completion:
        """Call a model."""
        return await self._models().complete(plugin, session, prompt, **options)
