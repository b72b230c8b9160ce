"""Programs of confined plugins: run in a sandbox of their own, with the workspace and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path

from gateway.contract.errors import ToolError
from gateway.extensions.process.launcher import ConfinementError, Launcher
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
_FAILED = 127


class ProgramRunner:
    """Runs programs of plugins; see ``gateway.extensions.broker.programs.RunsPrograms``."""

    def __init__(self, launcher: Launcher, workspace: Path) -> None:
        self._launcher = launcher
        self._workspace = workspace

    async def __call__(
        self, argv: Sequence[str], data: bytes, seconds: float, *, confined: bool
    ) -> tuple[int, bytes, bytes]:
        """Run a program. Returns its status, and what it wrote to stdout and stderr. Raises ToolError."""
        try:
            async with asyncio.timeout(seconds):
                if confined:
                    return await self._confined(argv, data)
                return await _unconfined(argv, data)
        except ConfinementError as error:
            raise ToolError(f"{argv[0]} was not started, because it cannot be confined: {error}") from None
        except TimeoutError:
            raise ToolError(f"{argv[0]} was stopped after {seconds:g} s") from None

    async def _confined(self, argv: Sequence[str], data: bytes) -> tuple[int, bytes, bytes]:
        mounts = (Mount(str(self._workspace), write=True), *program_mounts([argv[0]]))
        profile = program(mounts, _LIMITS, environ=_ENVIRON)
        with contextlib.ExitStack() as stack:
            pairs = [socket.socketpair() for _ in range(3)]
            for ours, theirs in pairs:
                stack.callback(ours.close)
                stack.callback(theirs.close)
                ours.setblocking(False)
            streams = (theirs.fileno() for _, theirs in pairs)
            child = await self._launcher.spawn(
                profile, ProgramTarget(tuple(argv), str(self._workspace), *streams)
            )
            stack.callback(child.close)
            for _, theirs in pairs:
                theirs.close()
            (stdin, stdout, stderr) = (ours for ours, _ in pairs)
            try:
                async with asyncio.TaskGroup() as tasks:
                    feeding = tasks.create_task(_feed(stdin, data))
                    reading = [tasks.create_task(_read(stream, argv[0])) for stream in (stdout, stderr)]
                    status = await child.wait()
                    feeding.cancel()
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
            if child.problem:
                raise ToolError(f"{argv[0]} was ended: {child.problem}")
            return _FAILED if status is None else status, reading[0].result(), reading[1].result()


async def _unconfined(argv: Sequence[str], data: bytes) -> tuple[int, bytes, bytes]:
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
        stdout, stderr = await process.communicate(data)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    return process.returncode or 0, stdout[:_MOST_OUTPUT], stderr[:_MOST_OUTPUT]


async def _feed(stream: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().sock_sendall(stream, data)
        stream.shutdown(socket.SHUT_WR)


async def _read(stream: socket.socket, program: str) -> bytes:
    """Read until all that the program started has closed the stream. Raises ToolError for too much."""
    output, loop = bytearray(), asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        while chunk := await loop.sock_recv(stream, _CHUNK):
            output += chunk
            if len(output) > _MOST_OUTPUT:
                raise ToolError(f"{program} wrote more than {_MOST_OUTPUT:,} bytes")
    return bytes(output)
