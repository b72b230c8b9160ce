"""Programs of confined plugins: run in their own sandbox, with the workspace and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from gateway.contract.errors import ToolError
from gateway.contract.messages import new_id
from gateway.extensions.process.launcher import ConfinementError, Launcher
from gateway.extensions.process.profile import (
    MIB,
    Mount,
    ProcessLimits,
    ProgramTarget,
    program,
    program_mounts,
)
from gateway.extensions.process.scripts import feed
from gateway.extensions.process.service import protected
from gateway.settings.layers.own_files import OwnFiles

_ENVIRON = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/tmp"}  # noqa: S108 - its own
_LIMITS = ProcessLimits(memory=1024 * MIB, files=256, file_bytes=256 * MIB, processes=64)
_MOST_OUTPUT = 2_000_000
"""Bytes of each stream; a program that writes more is ended."""
_CHUNK = 65_536
_FAILED = 127
_REMOVE_SECONDS = 15.0


class ProgramRunner:
    """Runs programs of plugins; see ``gateway.extensions.broker.programs.RunsPrograms``.

    ``own`` are files of the gateway, which they cannot read or change.
    """

    def __init__(self, launcher: Launcher, workspace: Path, own: OwnFiles = OwnFiles()) -> None:  # noqa: B008 - frozen
        self._launcher = launcher
        self._workspace = workspace
        self._own = own

    async def __call__(
        self, argv: Sequence[str], data: bytes, seconds: float, *, confined: bool
    ) -> tuple[int, bytes, bytes]:
        """Run a program. Returns its status, and what it wrote to stdout and stderr. Raises ToolError."""
        try:
            async with asyncio.timeout(seconds):
                if confined:
                    return await self._confined(argv, data)
                return await _container(argv, data)
        except ConfinementError as error:
            raise ToolError(f"{argv[0]} was not started, because it cannot be confined: {error}") from None
        except TimeoutError:
            raise ToolError(f"{argv[0]} was stopped after {seconds:g} s") from None

    async def _confined(self, argv: Sequence[str], data: bytes) -> tuple[int, bytes, bytes]:
        mounts = (Mount(str(self._workspace), write=True), *program_mounts([argv[0]]))
        profile = protected(program(mounts, _LIMITS, environ=_ENVIRON), self._own)
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
                    feeding = tasks.create_task(feed(stdin, data))
                    reads = (partial(_receive, stream) for stream in (stdout, stderr))
                    reading = [tasks.create_task(_read(read, argv[0])) for read in reads]
                    status = await child.wait()
                    feeding.cancel()
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
            if child.problem:
                raise ToolError(f"{argv[0]} was ended: {child.problem}")
            return _FAILED if status is None else status, reading[0].result(), reading[1].result()


async def _container(argv: Sequence[str], data: bytes) -> tuple[int, bytes, bytes]:
    """Run a container engine, which confines what it starts: ``docker run …``. Raises ToolError."""
    engine, verb, *arguments = argv
    name = f"trunkline-{new_id()}"
    process = await asyncio.create_subprocess_exec(
        *(engine, verb, f"--name={name}", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=_ENVIRON,
        cwd="/",
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        async with asyncio.TaskGroup() as tasks:
            reads = (partial(stream.read, _CHUNK) for stream in (process.stdout, process.stderr))
            reading = [tasks.create_task(_read(read, engine)) for read in reads]
            with contextlib.suppress(ConnectionError):
                process.stdin.write(data)
                await process.stdin.drain()
            process.stdin.close()
        return await process.wait(), reading[0].result(), reading[1].result()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        if process.returncode is None:
            process.kill()
            await _remove(engine, name)
        # A pipe that is not read to its end stays open.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REMOVE_SECONDS):
                await asyncio.gather(_discard(process.stdout), _discard(process.stderr))
        await process.wait()


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(_CHUNK):
        pass


async def _remove(engine: str, container: str) -> None:
    """End a container, which outlives the program that started it."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_REMOVE_SECONDS):
            removing = await asyncio.create_subprocess_exec(
                *(engine, "rm", "--force", container),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                env=_ENVIRON,
                cwd="/",
            )
            await removing.wait()


async def _receive(stream: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(stream, _CHUNK)


async def _read(read: Callable[[], Awaitable[bytes]], program: str) -> bytes:
    """Read until all that the program started has closed the stream. Raises ToolError for too much."""
    output = bytearray()
    with contextlib.suppress(ConnectionError):
        while chunk := await read():
            output += chunk
            if len(output) > _MOST_OUTPUT:
                raise ToolError(f"{program} wrote more than {_MOST_OUTPUT:,} bytes")
    return bytes(output)
