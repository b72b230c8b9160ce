"""Parsers of what others wrote, in their own processes: the content may attack its parser.

In: a script, its arguments, and the content. Out: what the script writes, and its exit status. The script
runs in an isolated interpreter without environment, with the limits of ``launcher.py``, and ends with the
call. It imports no other package of the gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from msgspec import Struct

_LAUNCHER = Path(__file__).with_name("launcher.py")
_CHUNK = 65_536
_DRAIN_SECONDS = 5.0


class Confinement(Struct, frozen=True):
    """Limits of one process: seconds of the clock and of CPU time, bytes of memory and of output.

    ``threads``: it may start threads, which means processes, too.
    """

    seconds: float
    cpu_seconds: int
    memory: int
    output: int
    threads: bool = False


RunScript = Callable[[str, Path, Sequence[str], bytes, Confinement, bytearray], Awaitable[int | None]]
"""``run_confined``, or a function that does the same with more confinement."""


async def run_confined(
    python: str, script: Path, arguments: Sequence[str], data: bytes, limits: Confinement, output: bytearray
) -> int | None:
    """Run a script with ``data`` as its input, and add what it writes to ``output``, also if it fails.

    Returns its exit status, None if its time was up. Raises OSError if it cannot start.
    """
    numbers = (limits.cpu_seconds, limits.memory, int(limits.threads))
    process = await asyncio.create_subprocess_exec(
        *(python, "-I", str(_LAUNCHER), *map(str, numbers), str(script), *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limits.seconds), asyncio.TaskGroup() as tasks:
            tasks.create_task(_feed(process, data))
            if not await _collect(process, output, limits.output):
                _kill(process)
            return await process.wait()
    except TimeoutError:
        return None
    finally:
        _kill(process)
        await _drain(process)
        await process.wait()


async def _feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _collect(process: asyncio.subprocess.Process, output: bytearray, most: int) -> bool:
    """Read the output to its end. Return False if it is longer than allowed."""
    assert process.stdout is not None
    while chunk := await process.stdout.read(_CHUNK):
        output += chunk
        if len(output) > most:
            return False
    return True


async def _drain(process: asyncio.subprocess.Process) -> None:
    """Read the output of an ended process to its end: a pipe with unread output would stay open."""
    assert process.stdout is not None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while await process.stdout.read(_CHUNK):
                pass


def _kill(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
