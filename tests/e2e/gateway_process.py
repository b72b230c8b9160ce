"""A gateway as its users start it: its own process, to be killed, stopped and started again."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from sqlalchemy import Engine, create_engine

from gateway.testing.served import SocketClient
from tests import prefork

ROOT = Path(__file__).parent.parent.parent
_READY = re.compile(r"Trunkline is ready: (\S+)")
_STANDS_BY = re.compile(r"Trunkline stands by: (\S+)")


class GatewayProcess:
    """The processes of one gateway, one after the other.

    ``settings`` is TOML beside the usual ones; ``server`` and ``provider`` are more lines of those tables.
    ``root`` is the tree whose code runs, and ``prefix`` what comes before the command.
    """

    def __init__(self, directory: Path, model_url: str, settings: str = "", **tables: str) -> None:
        self.url = ""
        self.root = ROOT
        self.prefix: Sequence[str] = ()
        self._directory = directory
        self._process: prefork.Popen | subprocess.Popen[bytes] | None = None
        self._output: asyncio.ReadTransport
        self._config = directory / "trunkline.toml"
        self.configure(model_url, settings, **tables)

    def configure(
        self,
        model_url: str,
        settings: str,
        server: str = "",
        provider: str = "",
        model: str = "openai/fake-small",
    ) -> None:
        """Settings of the next process."""
        self._config.write_text(
            f'model = "{model}"\n{settings}\n'
            f"[server]\nport = 0\n{server}\n"
            f'[providers.openai]\nbase_url = "{model_url}"\napi_key = "none"\n{provider}\n'
        )

    @property
    def data(self) -> Path:
        """Where everything is kept."""
        return self._directory / "data"

    @property
    def errors(self) -> str:
        """What the processes wrote to standard error."""
        return (self._directory / "errors").read_text()

    async def start(self) -> bool:
        """Start it. Returns whether it became ready; if not, it has ended."""
        command = ("run", "--config", str(self._config), "--data-dir", str(self.data))
        path = os.pathsep.join((str(self.root), str(self._directory)))
        # The processes that are forked have loaded this tree's code.
        popen = subprocess.Popen if self.prefix or self.root != ROOT else prefork.Popen
        with (self._directory / "errors").open("ab") as errors:
            self._process = await asyncio.to_thread(
                popen,
                [*self.prefix, sys.executable, "-m", "gateway", *command],
                cwd=self._directory,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": path},
            )
        output = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(output)
        self._output, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: protocol, self._process.stdout
        )
        while line := await output.readline():
            if found := _STANDS_BY.search(line.decode()):
                self.url = found[1]
            if found := _READY.search(line.decode()):
                self.url = found[1]
                return True
        await self.ended()
        return False

    @property
    def status(self) -> int | None:
        """The exit status, once it has ended."""
        return self._process.poll() if self._process is not None else None

    async def ended(self) -> int:
        """Wait for its end. Returns the exit status; a signal's is negative."""
        assert self._process is not None
        # A service may start the next process before this one's end is noticed here.
        process, output = self._process, self._output
        while (status := process.poll()) is None:
            await asyncio.sleep(0.01)
        output.close()
        return status

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end."""
        self.send_signal(number)
        return await self.ended()

    @asynccontextmanager
    async def client(self, **headers: str) -> AsyncGenerator[SocketClient]:
        """A websocket client that was greeted."""
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.ws_connect(f"{self.url}/ws", protocols=("trunkline.v1",)) as socket,
        ):
            client = SocketClient(socket)
            await client.until("ready")
            yield client

    @asynccontextmanager
    async def database(self) -> AsyncGenerator[Engine]:
        """Its database, beside it."""
        engine = create_engine(f"sqlite:///{self.data / 'trunkline.db'}")
        try:
            yield engine
        finally:
            engine.dispose()

    async def __aenter__(self) -> GatewayProcess:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self.status is None:
            await self.stop(signal.SIGKILL)
