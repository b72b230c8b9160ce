"""Scripts: files of ours that convert what comes from others, each in its own confined process."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from msgspec import Struct

from gateway.extensions.process.launcher import Child, Launcher
from gateway.extensions.process.profile import Profile, ScriptTarget

_CHUNK = 65_536


class ScriptEnd(Struct, frozen=True):
    """The end of a script. ``output`` is what it wrote until then.

    ``status`` is as ``subprocess`` has it; None if it was ended because of its time or its output.
    """

    status: int | None
    output: bytes


async def run_script(
    launcher: Launcher, profile: Profile, target: ScriptTarget, data: bytes, most: int, seconds: float
) -> ScriptEnd:
    """Run a script with ``data`` as its input, for at most ``seconds`` and ``most`` bytes of output.

    Raises ConfinementError if it cannot be confined here.
    """
    child = await launcher.spawn(profile, target)
    output = bytearray()
    try:
        async with asyncio.timeout(seconds):
            if not await _exchange(child, data, output, most):
                return ScriptEnd(None, bytes(output))
            return ScriptEnd(await child.wait(), bytes(output))
    except TimeoutError:
        return ScriptEnd(None, bytes(output))
    finally:
        child.close()


async def _exchange(child: Child, data: bytes, output: bytearray, most: int) -> bool:
    """Send the input and read the output. Return False if that is longer than allowed."""
    assert child.sock is not None
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        feeding = tasks.create_task(feed(child.sock, data))
        while chunk := await _received(loop, child.sock):
            output += chunk
            if len(output) > most:
                feeding.cancel()
                return False
        feeding.cancel()
    return True


async def _received(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> bytes:
    try:
        return await loop.sock_recv(sock, _CHUNK)
    except ConnectionError:
        return b""


async def feed(sock: socket.socket, data: bytes) -> None:
    """Send the whole input of a program; it may end before it has read all."""
    with contextlib.suppress(OSError):
        await asyncio.get_running_loop().sock_sendall(sock, data)
        sock.shutdown(socket.SHUT_WR)
