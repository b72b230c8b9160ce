"""A cable to a server: it passes connections on, and can be cut when certain bytes pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

_BLOCK = 65_536


class Cable:
    """Passes connections on to a port of this machine.

    ``on(what, act)`` calls ``act`` when bytes pass for the first time, in either direction: before they are
    passed on, or after that with ``arrived``.
    """

    def __init__(self) -> None:
        self.port = 0
        self._target = 0
        self._is_cut = False
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._ends: set[asyncio.StreamWriter] = set()
        self._what, self._arrived = b"", False
        self._act: Callable[[], object] | None = None

    @asynccontextmanager
    async def laid(self, target: int) -> AsyncGenerator[Cable]:
        """Listen until the block ends."""
        self._target = target
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            self.cut()

    def cut(self) -> None:
        """End all connections, and accept no others."""
        self._is_cut = True
        for end in [*self._ends]:
            end.transport.abort()

    def silence(self) -> None:
        """Accept connections, and pass nothing on until ``mend``."""
        self._speaks.clear()

    def mend(self) -> None:
        """Accept connections again, and pass everything on."""
        self._is_cut = False
        self._speaks.set()

    def on(self, what: bytes, act: Callable[[], object], *, arrived: bool = False) -> None:
        """Call ``act`` once when bytes pass."""
        self._what, self._act, self._arrived = what, act, arrived

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        self._ends.add(writer)
        try:
            if not self._is_cut:
                there, far = await asyncio.open_connection("127.0.0.1", self._target)
                ends.append(far)
                self._ends.add(far)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._pass(reader, far))
                    tasks.create_task(self._pass(there, writer))
        except* OSError:
            pass
        finally:
            for end in ends:
                self._ends.discard(end)
                end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_BLOCK):
            act = self._act if self._what in data else None
            if act is not None:
                self._act = None
                if not self._arrived:
                    act()
            await self._speaks.wait()
            if writer.is_closing():
                return
            writer.write(data)
            await writer.drain()
            if act is not None and self._arrived:
                act()
        if not writer.is_closing():
            writer.write_eof()
