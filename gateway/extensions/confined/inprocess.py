"""Plugins with ``trust = "full"``: the same code on the same API, in the gateway's process.

The package ``trunkline_plugin`` is loaded from ``child`` when the first such plugin starts, and never before.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from gateway.contract.errors import CATCHABLE, PluginError, is_cancellation_requested
from gateway.extensions.admission.manifest import Admitted
from gateway.extensions.confined.plugin import OnStart
from gateway.extensions.process.frames import Connection, ProcessEnded, Serve
from gateway.extensions.process.records import PluginRecord

log = structlog.get_logger("trunkline.plugins")

SDK = "trunkline_plugin"
_CHILD = Path(__file__).parent.parent / "child"


class InProcess:
    """Runs a plugin's code as a task of the gateway's event loop, over a socketpair."""

    def __init__(
        self, admitted: Admitted, serve: Serve, on_start: OnStart, record: PluginRecord | None = None
    ) -> None:
        self.state, self.reason = "stopped", "it was not started"
        self.record = record or PluginRecord()
        self.objects: dict[str, Any] = {}
        """The objects that the plugin's code returned beside handlers, such as model providers, by key."""
        self._admitted = admitted
        self._serve = serve
        self._on_start = on_start
        self._connection: Connection | None = None
        self._tasks: asyncio.TaskGroup | None = None

    async def start(self, seconds: float) -> None:
        """Load the plugin's code and activate it. Raises PluginError."""
        self.state = "starting"
        ours, theirs = socket.socketpair()
        limit = self._admitted.manifest.limits.in_flight
        self._connection = connection = Connection(ours, self._serve, in_flight=limit)
        self._tasks = tasks = await asyncio.TaskGroup().__aenter__()
        tasks.create_task(self._watch(connection), name=f"plugin {self._admitted.manifest.name}")
        tasks.create_task(self._run(theirs), name=f"code of plugin {self._admitted.manifest.name}")
        try:
            async with asyncio.timeout(seconds):
                await self._on_start(connection)
        except BaseException as error:
            await self._end(f"it failed to start: {error}")
            raise
        self.state, self.reason = "running", ""

    async def stop(self, reason: str = "it was stopped") -> None:
        """Close the connection, which ends the plugin's code; ``reason`` says why."""
        await self._end(reason)

    async def call(self, method: str, params: Mapping[str, Any] | Struct, seconds: float) -> Any:
        """Call the plugin. Raises RemoteError, TimeoutError or ProcessEnded."""
        if self._connection is None:
            raise ProcessEnded(self.reason)
        return await self._connection.call(method, params, seconds)

    def notify(self, method: str, params: Mapping[str, Any] | Struct) -> None:
        """Send an event to the plugin."""
        if self._connection is not None:
            self._connection.notify(method, params)

    async def _end(self, reason: str) -> None:
        self.state, self.reason = "stopped", reason
        if self._connection is None or self._tasks is None:
            return
        self._connection.close(reason)
        self._connection = None
        await self._tasks.__aexit__(None, None, None)

    async def _watch(self, connection: Connection) -> None:
        try:
            await connection.run()
        except PluginError as error:
            log.error("a plugin broke the protocol", plugin=self._admitted.manifest.name, error=str(error))
        if self._connection is connection:
            self.state, self.reason = "stopped", "its code ended"
            self.record.deaths += 1

    async def _run(self, sock: socket.socket) -> None:
        admitted = self._admitted
        site = None if admitted.site is None else str(admitted.site)
        try:
            runtime: Any = load_runtime()
            await runtime.serve(sock, str(admitted.folder), admitted.manifest.entry, site, self.objects)
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            log.exception("a plugin's code failed", plugin=admitted.manifest.name)
        finally:
            sock.close()


def load_runtime() -> object:
    """Import the runtime as a top-level package: the name that authors import."""
    if SDK not in sys.modules:
        init = _CHILD / SDK / "__init__.py"
        spec = spec_from_file_location(SDK, init, submodule_search_locations=[str(init.parent)])
        if spec is None or spec.loader is None:
            raise ImportError(f"{init} is missing; install Trunkline again")
        module = sys.modules[SDK] = module_from_spec(spec)
        spec.loader.exec_module(module)
    return import_module(f"{SDK}.runtime")
