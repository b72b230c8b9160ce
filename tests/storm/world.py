"""The world of a storm: the model and the platforms, each in a process of its own that nobody kills."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from chat_platform import Platform
from lives import BrokenStormError, end_of
from platforms import PLATFORMS, arrived

HOME = Path(__file__).parent
ROOT = HOME.parent.parent


class World:
    """Starts what is around the gateway; leaving ``stack`` ends it. ``faults`` is a share.

    ``gateway`` is the address of the gateway's own server.
    """

    def __init__(
        self, stack: AsyncExitStack, directory: Path, faults: float, seed: int, gateway: str
    ) -> None:
        self._stack = stack
        self._directory = directory
        self._faults = str(faults)
        self._seed = str(seed)
        self._gateway = gateway

    async def model(self) -> str:
        """The address of a model."""
        process, log = await self._start("model.py", "model", self._faults, self._seed)
        assert process.stdout is not None
        address = (await process.stdout.readline()).decode().strip()
        if not address:
            raise BrokenStormError(f"no model starts: {end_of(log)}")
        return address

    async def platform(self, name: str) -> Platform:
        """A platform."""
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
        process, log = await self._start("room.py", name, name, *flags)
        assert process.stdout is not None
        platform = await arrived(process.stdout, kind, self._gateway)
        if platform is None:
            raise BrokenStormError(f"{name} does not start: {end_of(log)}")
        return platform

    async def _start(
        self, script: str, name: str, *arguments: str
    ) -> tuple[asyncio.subprocess.Process, Path]:
        path = self._directory / f"{name}.log"
        with path.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(HOME / script),
                str(self._directory),
                *arguments,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=environment(),
            )
        self._stack.push_async_callback(_end, process)
        return process, path


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()


def environment() -> dict[str, str]:
    """What processes of a storm are started with."""
    return os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
