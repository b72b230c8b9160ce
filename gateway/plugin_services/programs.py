"""Programs of confined plugins: run in a sandbox of their own, with the workspace and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from gateway.contract.errors import ToolError
from gateway.extensions.process.launcher import Child, ConfinementError, Launcher
from gateway.extensions.process.profile import (
    MIB,
    Mount,
    ProcessLimits,
    ProgramTarget,
    program,
    program_mounts,
)

_ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp"}  # noqa: S108 - its own
_LIMITS = ProcessLimits(memory=1024 * MIB, files=256, file_bytes=256 * MIB, processes=64)
_MOST_OUTPUT = 2_000_000
"""Bytes of each stream; a program that writes more is ended."""
_CHUNK = 65_536


class ProgramRunner:
    """Runs programs of plugins; see ``gateway.extensions.broker.programs.RunsPrograms``."""

    def __init__(self, launcher: Launcher, workspace: Path) -> None:
        self._launcher = launcher
        self._workspace = workspace

    async def __call__(
        self, argv: Sequence[str], data: bytes, seconds: float, *, confined: bool
    ) -> tuple[int, bytes, bytes]:
        """Run a program. Returns its status, and what it wrote to stdout and stderr. Raises ToolError."""
        if not confined:
            return await self._unconfined(argv, data, seconds)
        async with contextlib.AsyncExitStack() as stack:
            ours, theirs = _Pipes(stack), list[int]()
            theirs = [ours.input(), ours.output(), ours.output()]
            mounts = (Mount(str(self._workspace), write=True), *program_mounts([argv[0]]))
            profile = program(mounts, _LIMITS, environ=_ENVIRON)
            target = ProgramTarget(tuple(argv), str(self._workspace), *theirs)
            try:
                child = await self._launcher.spawn(profile, target)
            except ConfinementError as error:
                raise ToolError(f"{argv[0]} was not started, because it cannot be confined: {error}") from None
            finally:
                ours.close(theirs)
            stack.callback(child.close)
            try:
                async with asyncio.timeout(seconds):
                    return await _followed(child, ours, data)
            except TimeoutError:
                raise ToolError(f"{argv[0]} was stopped after {seconds:g} s") from None

    async def _unconfined(
        self, argv: Sequence[str], data: bytes, seconds: float
    ) -> tuple[int, bytes, bytes]:
        """Run a container engine, which confines what it starts."""
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_ENVIRON,
            cwd="/",
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(seconds):
                stdout, stderr = await process.communicate(data)
        except TimeoutError:
            raise ToolError(f"{argv[0]} was stopped after {seconds:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        return process.returncode or 0, stdout[:_MOST_OUTPUT], stderr[:_MOST_OUTPUT]
