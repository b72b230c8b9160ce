"""The shipped systemd unit's restart rule, followed by a small supervisor with the real process."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from gateway.testing.fake_models.server import FakeModels
from tests.e2e.gateway_process import ROOT, GatewayProcess


class Service:
    """Starts a gateway again unless it ended with a status that prevents it. ``ends`` holds all statuses."""

    def __init__(self, gateway: GatewayProcess) -> None:
        unit = (ROOT / "config" / "trunkline.service").read_text()
        options = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
        assert options["Restart"] == "always"
        self._prevented = {int(status) for status in options["RestartPreventExitStatus"].split()}
        self._gateway = gateway
        self.ends: list[int] = []
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Keep it running until it ends with a status that prevents another start."""
        while not self.ends or self.ends[-1] not in self._prevented:
            if await self._gateway.start():
                self.ready.set()
            self.ends.append(await self._gateway.ended())
            self.ready.clear()

    async def ended(self, *statuses: int) -> None:
        """Wait until it ended with each of these, and whatever else."""
        while not {*statuses} <= {*self.ends}:
            await asyncio.sleep(0.02)


class Forwarder:
    """A way to a server that can be closed and opened again."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self) -> None:
        """Let connections through."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Cut all connections, and refuse new ones."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._target)
        self._writers |= {writer, back}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy(reader, back))
                tasks.create_task(_copy(there, writer))
        finally:
            self._writers -= {writer, back}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


@asynccontextmanager
async def serving(gateway: GatewayProcess) -> AsyncGenerator[Service]:
    """A service that is ended with the block."""
    service = Service(gateway)
    task = asyncio.create_task(service.run())
    try:
        async with asyncio.timeout(100):
            yield service
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.timeout(120)
async def test_a_service_continues_after_kills_and_stops_for_a_wrong_setting(tmp_path: Path) -> None:
    async with (
        FakeModels() as models,
        GatewayProcess(tmp_path, models.openai_url) as gateway,
        serving(gateway) as service,
    ):
        for _ in range(3):
            await service.ready.wait()
            service.ready.clear()  # before the kill: the next start may be ready before the end is noticed
            async with gateway.client() as client:
                await client.say("hi")
                await gateway.stop(signal.SIGKILL)
            await service.ended(-signal.SIGKILL)
        await service.ready.wait()
        async with gateway.client() as client:
            await client.say("still there?")
            await client.until("complete")
        gateway.configure(models.openai_url, 'colour = "blue"')
        await gateway.stop(signal.SIGTERM)
        await service.ended(2)
        assert service.ends == [*[-signal.SIGKILL] * 3, 0, 2]


@pytest.mark.timeout(120)
async def test_a_service_outlives_an_outage_of_its_database(tmp_path: Path, postgres_url: str) -> None:
    target = make_url(postgres_url)
    way = Forwarder(target.host or "127.0.0.1", target.port or 5432)
    await way.open()
    url = target.set(host="127.0.0.1", port=way.port).render_as_string(hide_password=False)
    settings = f'store.url = "{url}"\nstore.wait_ms = 300'
    async with (
        FakeModels() as models,
        GatewayProcess(tmp_path, models.openai_url, settings) as gateway,
        serving(gateway) as service,
    ):
        await service.ready.wait()
        await way.close()
        end_connections(postgres_url)
        await service.ended(70, 75)
        await way.open()
        await service.ready.wait()
        async with gateway.client() as client:
            await client.say("hi")
            await client.until("complete")
        assert {*service.ends} == {70, 75}
    await way.close()


def end_connections(url: str) -> None:
    """End all connections to a PostgreSQL database, as its restart does."""
    engine = create_engine(make_url(url).set(database="postgres"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        query = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name")
        connection.execute(query, {"name": make_url(url).database})
    engine.dispose()
