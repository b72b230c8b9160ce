"""The fake servers of a storm: the model and the platforms, each in its own process, never killed."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path

from chat_platform import Platform
from forks import ForkedProcess, ForkServer
from lives import BrokenStormError, end_of
from platforms import PLATFORMS, arrived

ROOT = Path(__file__).parent.parent.parent


class World:
    """Starts the fake servers; leaving ``stack`` ends them. ``faults`` is a share.

    ``gateway`` is the address of the gateway's own server.
    """

    def __init__(
        self,
        stack: AsyncExitStack,
        fork_server: ForkServer,
        directory: Path,
        faults: float,
        seed: int,
        gateway: str,
    ) -> None:
        self._stack = stack
        self._fork_server = fork_server
        self._directory = directory
        self._faults = str(faults)
        self._seed = str(seed)
        self._gateway = gateway

    async def model(self) -> str:
        """Start a model. Returns its address."""
        process, log = await self._start("model", "model", self._faults, self._seed)
        address = (await process.stdout.readline()).decode().strip()
        if not address:
            raise BrokenStormError(f"no model starts: {end_of(log)}")
        return address

    async def platform(self, name: str) -> Platform:
        """Start a platform."""
        kind = PLATFORMS[name]
        flags = (
            "--faults",
            self._faults,
            "--repeats",
            "0.1",
            "--seed",
            self._seed,
            *kind.flags(self._gateway),
        )
        process, log = await self._start("room", name, name, *flags)
        platform = await arrived(process.stdout, kind, self._gateway)
        if platform is None:
            raise BrokenStormError(f"{name} does not start: {end_of(log)}")
        return platform

    async def _start(self, script: str, name: str, *arguments: str) -> tuple[ForkedProcess, Path]:
        path, given = self._directory / f"{name}.log", (str(self._directory), *arguments)
        with path.open("wb") as log:
            process = await self._fork_server.start(script, given, environment(), log)
        self._stack.push_async_callback(_end, process)
        return process, path


async def _end(process: ForkedProcess) -> None:
    process.kill()
    await process.wait()


def environment() -> dict[str, str]:
    """Return the environment of the processes of a storm."""
    return os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
