"""A launcher, and plugins that speak frames without the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.extensions.admission.manifest import Admitted, Limits, Manifest
from gateway.extensions.process.frames import Connection, Serve
from gateway.extensions.process.launcher import Launcher
from gateway.extensions.process.supervisor import ProcessEvent, ProcessSupervisor, Runtime

RUNTIME = """
import importlib.util, json, os, socket, struct, sys

class Wire:
    def __init__(self, fd):
        self.sock = socket.socket(fileno=fd)
    def raw(self, data):
        self.sock.sendall(data)
    def send(self, frame):
        data = json.dumps(frame).encode()
        self.raw(struct.pack(">I", len(data)) + data)
    def read(self, size):
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                os._exit(0)
            data += more
        return data
    def receive(self):
        return json.loads(self.read(struct.unpack(">I", self.read(4))[0]))

def main(fd, folder, entry, site):
    sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location("main", folder + "/" + entry)
    module = importlib.util.module_from_spec(spec)
    wire = Wire(fd)
    spec.loader.exec_module(module)
    while True:
        frame = wire.receive()
        if "m" not in frame:
            continue
        if frame["m"] == "ready":
            wire.send({"i": frame["i"], "r": None})
            continue
        handler = getattr(module, frame["m"], None)
        if handler is None:
            if "i" in frame:
                wire.send({"i": frame["i"], "e": {"name": "NotFoundError", "message": frame["m"]}})
            continue
        result = handler(wire, frame)
        if "i" in frame and result is not NotImplemented:
            wire.send({"i": frame["i"], "r": result})
"""

PLUGIN = """
def echo(wire, frame):
    return frame["p"]

def silent(wire, frame):
    return NotImplemented
"""


class Plugins:
    """Starts plugins of the source code of a test, and ends them."""

    def __init__(self, folder: Path, tasks: asyncio.TaskGroup) -> None:
        self.launcher = Launcher()
        self.events: list[ProcessEvent] = []
        self._folder = folder
        self._tasks = tasks
        self._supervisors: list[ProcessSupervisor] = []
        (folder / "runtime").mkdir()
        (folder / "runtime/wire_runtime.py").write_text(RUNTIME)

    @property
    def runtime(self) -> Runtime:
        return Runtime(str(self._folder / "runtime"), "wire_runtime")

    def make(
        self, code: str = PLUGIN, *, name: str = "one", serve: Serve | None = None, **limits: int
    ) -> Any:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        (folder / "main.py").write_text(code)
        admitted = Admitted(Manifest(name, "1", limits=Limits(**limits)), folder, "")

        async def nothing(_method: str, _params: Any) -> None:
            return None

        async def started(connection: Connection) -> None:
            await connection.call("ready", {}, 10)

        supervisor = ProcessSupervisor(
            self.launcher,
            admitted,
            serve or nothing,
            on_start=started,
            audit=self.events.append,
            tasks=self._tasks,
            runtime=self.runtime,
            pauses=(0.01,),
        )
        self._supervisors.append(supervisor)
        return supervisor

    async def start(self, code: str = PLUGIN, **more: Any) -> ProcessSupervisor:
        supervisor = self.make(code, **more)
        await supervisor.start(10)
        return supervisor

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            await asyncio.sleep(0.01)

    async def end(self) -> None:
        for supervisor in self._supervisors:
            await supervisor.stop()
        await self.launcher.close()


@pytest.fixture
async def plugins(tmp_path: Path) -> AsyncIterator[Plugins]:
    async with asyncio.TaskGroup() as tasks:
        plugins = Plugins(tmp_path, tasks)
        try:
            yield plugins
        finally:
            await plugins.end()
