"""The processes around a storm, forked from the storm's own process, which saves a second of imports each."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import model
import victim
from platforms import server_of

from tests.prefork import Forked, Server

HOME = Path(__file__).parent


class ForkedProcess:
    """A forked process, with the used part of the interface of ``asyncio.subprocess.Process``."""

    def __init__(self, forked: Forked, own_input: int, output: asyncio.StreamReader) -> None:
        self.stdout = output
        self.returncode: int | None = None
        self._forked = forked
        self._input = own_input
        forked.answers.setblocking(False)

    def write(self, line: bytes) -> None:
        """Write to its input."""
        os.write(self._input, line)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._forked.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its end. Returns its exit status."""
        if self.returncode is None:
            told = await asyncio.get_running_loop().sock_recv(self._forked.answers, 64)
            self.returncode = int(told or -signal.SIGKILL)
            os.close(self._input)
        return self.returncode


class ForkServer:
    """Forks the processes of storms. Create it before any other thread."""

    def __init__(self, channels: Sequence[str]) -> None:
        for name in channels:
            if name != "websocket":
                server_of(name)
        for name in (model.__name__, *victim.AHEAD):
            importlib.import_module(name)
        self._server = Server(forks=True)

    async def start(
        self, name: str, arguments: Sequence[str], environment: dict[str, str], log: IO[bytes]
    ) -> ForkedProcess:
        """Start a script of the storm: the model, a platform, or the parent of gateways."""
        given, own_input = os.pipe()
        output, told = os.pipe()
        streams = (given, told, log.fileno())
        forked = self._server.fork(arguments, None, environment, streams, script=str(HOME / f"{name}.py"))
        os.close(given)
        os.close(told)
        reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(reader)
        await loop.connect_read_pipe(lambda: protocol, os.fdopen(output, "rb", 0))
        return ForkedProcess(forked, own_input, reader)
