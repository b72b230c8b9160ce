"""TCP links of a storm, which can be held and cut: between a node and its database, its broker or a platform,
and between the world and the nodes.

They run in their own process, so that a busy storm does not delay the database. On its standard input it
takes one command a line, and answers ``open`` with the port that the link listens on, ``held`` with a number:

    open NAME PORT...   a link to a port, or to any of some
    aim NAME PORT...    new connections go to these ports, each to one that accepts it
    hold NAME           pass nothing on until the link is mended, as when packets are lost
    cut NAME            end all connections, and refuse new ones until the link is mended
    mend NAME           pass everything on again
    held NAME           how many calls of a platform it has held back so far, but for those that only listen
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

HOST = "127.0.0.1"
_BLOCK = 65_536
_LISTENING = b"/getUpdates "


class Link:
    """A listener that passes connections on to one of some ports."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.targets = ports
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._is_cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self.held = 0

    async def listen(self) -> int:
        """Accept connections from now on. Returns the port."""
        server = await asyncio.start_server(self._accept, HOST, 0)
        return server.sockets[0].getsockname()[1]

    def hold(self) -> None:
        """Pass nothing on."""
        self._flowing.clear()

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self._is_cut = True
        for writer in self._open:
            writer.transport.abort()

    def mend(self) -> None:
        """Pass everything on again."""
        self._is_cut = False
        self._flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        self._open.add(writer)
        try:
            if not self._is_cut:
                there, far = await self._connect()
                ends.append(far)
                self._open.add(far)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._pass(reader, far))
                    tasks.create_task(self._pass(there, writer))
        except* OSError:
            pass
        finally:
            for end in ends:
                self._open.discard(end)
                end.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to one of the ports. Raises OSError if none of them accepts that."""
        for port in random.sample(self.targets, len(self.targets)):
            with contextlib.suppress(ConnectionRefusedError):
                return await asyncio.open_connection(HOST, port)
        raise ConnectionRefusedError

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_BLOCK):
            if not self._flowing.is_set() and data.startswith(b"POST ") and _LISTENING not in data:
                self.held += 1
            await self._flowing.wait()
            if writer.is_closing():
                return
            writer.write(data)
            await writer.drain()
        await self._flowing.wait()
        if not writer.is_closing():
            writer.write_eof()


class Links:
    """The process with the links, as the storm controls it."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._asking = asyncio.Lock()

    async def start(self, environment: dict[str, str]) -> None:
        """Start the process."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment,
        )

    async def open(self, name: str, *ports: int) -> int:
        """Open a link to a port, or to any of some. Returns the port that it listens on."""
        return await self._ask("open", name, *ports)

    async def held(self, name: str) -> int:
        """Return how many calls a link has held back so far."""
        return await self._ask("held", name)

    async def _ask(self, what: str, name: str, *ports: int) -> int:
        """Send a command whose answer is a number."""
        assert self._process is not None
        assert self._process.stdout is not None
        async with self._asking:
            self.tell(what, name, *ports)
            return int(await self._process.stdout.readline())

    def tell(self, what: str, name: str, *ports: int) -> None:
        """Send a command without an answer."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{' '.join((what, name, *map(str, ports)))}\n".encode())

    async def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


async def serve() -> None:
    """Process commands until the input ends."""
    links: dict[str, Link] = {}
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        what, name, *ports = line.decode().split()
        match what:
            case "open":
                links[name] = Link([*map(int, ports)])
                print(await links[name].listen(), flush=True)
            case "aim":
                links[name].targets = [*map(int, ports)]
            case "hold":
                links[name].hold()
            case "cut":
                links[name].cut()
            case "held":
                print(links[name].held, flush=True)
            case _:
                links[name].mend()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no process outlives the storm
    importlib.import_module("uvloop").run(serve())
