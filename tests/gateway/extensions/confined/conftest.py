"""Plugins with a manifest, over the in-process transport or confined, with a broker that records calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.contract.errors import TrunklineError
from gateway.extensions.admission.capabilities import Capabilities
from gateway.extensions.admission.manifest import Admitted, Manifest, Trust
from gateway.extensions.confined.inprocess import InProcess
from gateway.extensions.confined.plugin import ConfinedPlugin, OnStart, Process
from gateway.extensions.process import kernel
from gateway.extensions.process.frames import Serve
from gateway.extensions.process.launcher import Launcher
from gateway.extensions.process.supervisor import ProcessSupervisor
from gateway.settings import PluginSettings


class CapabilityDenied(TrunklineError):
    """As the broker raises it."""


class RecordingBroker:
    """Answers calls from a table, and keeps them with the sessions that were open."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = answers
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.open: list[str] = []
        self._called = asyncio.Condition()

    async def serve(self, method: str, params: Any) -> Any:
        self.calls.append((method, params))
        async with self._called:
            self._called.notify_all()
        answer = self.answers.get(method)
        if isinstance(answer, BaseException):
            raise answer
        return answer(params) if callable(answer) else answer

    async def until(self, done: Callable[[], bool]) -> None:
        """Wait until calls have made something true."""
        async with self._called, asyncio.timeout(60):
            await self._called.wait_for(done)

    async def check(self, capability: str, value: str, *arguments: object) -> None:
        await self.serve(capability, {"name": value, "arguments": arguments})

    @contextmanager
    def working_in(self, session: str) -> Generator[None]:
        self.open.append(session)
        try:
            yield
        finally:
            self.open.remove(session)


Write = Callable[..., ConfinedPlugin]
Start = Callable[[Admitted, Serve, OnStart], Process]


@pytest.fixture
async def confined() -> AsyncIterator[Start]:
    """Make real confined processes; pass it as ``start`` to ``write``."""
    if missing := kernel.missing(kernel.layers(), strict=False):
        pytest.skip("; ".join(missing))
    launcher = Launcher()
    async with asyncio.TaskGroup() as tasks:

        def start(admitted: Admitted, serve: Serve, on_start: OnStart) -> Process:
            return ProcessSupervisor(
                launcher, admitted, serve, on_start=on_start, audit=lambda _: None, tasks=tasks
            )

        try:
            yield start
        finally:
            await launcher.close()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a plugin's folder, and return the plugin. ``fields`` are those of its manifest."""

    def write(
        code: str,
        name: str = "guarded",
        *,
        broker: RecordingBroker | None = None,
        settings: PluginSettings | None = None,
        trust: Trust = "sandbox",
        granted: bool = True,
        needs: Capabilities | None = None,
        start: Start = InProcess,
        **fields: Any,
    ) -> ConfinedPlugin:
        folder = tmp_path / "plugins" / name
        folder.mkdir(parents=True)
        (folder / "main.py").write_text(code)
        needs = needs or Capabilities()
        manifest = Manifest(name, "1.0", capabilities=needs, **fields)
        admitted = Admitted(manifest, folder, "sha256:test", frozenset(needs.grants()), trust)
        return ConfinedPlugin(
            admitted,
            settings or PluginSettings(),
            broker or RecordingBroker(),
            lambda serve, on_start: start(admitted, serve, on_start),
            lambda grant: granted and grant in admitted.grants,
        )

    return write
