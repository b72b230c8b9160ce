"""Nodes of a cluster, each a process, and what their users see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from channels.telegram.fake import FakeTelegram
from gateway.app import Gateway
from gateway.cluster.link import ANY_PORT, Link
from gateway.cluster.membership import Membership, read_nodes
from gateway.server import Server
from gateway.settings import Settings, load_settings
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import until
from tests.e2e.gateway_process import GatewayProcess
from tests.gateway.cluster.broker import Broker


def settings_of(
    folder: Path, url: str, name: str, server: str = "", broker: str = "amqp://guest:guest@127.0.0.1/"
) -> Settings:
    """The settings of a node. ``server`` is TOML of that table."""
    file = folder / f"{name}.toml"
    file.write_text(
        f'data_dir = "{folder}/data"\n[store]\nurl = "{url}"\n'
        f'[cluster]\nurl = "{broker}"\nname = "{name}"\n'
        f"[server]\nport = 0\n{server}\n"
    )
    return load_settings(file, environ={}, cwd=folder)


class Cluster:
    """Nodes with one database, one broker and one data directory, and what their users see."""

    def __init__(
        self, folder: Path, url: str, broker: Broker, telegram: FakeTelegram, models: FakeModels
    ) -> None:
        self.telegram, self.models, self.broker = telegram, models, broker
        self.chat = telegram.private("Ada")
        self._folder, self._url = folder, url
        self._shared = folder / "shared"
        self._shared.mkdir()
        self._engine = create_engine(url, isolation_level="AUTOCOMMIT")

    def node(self, name: str, **changed: str) -> GatewayProcess:
        """A node that is not started."""
        folder = self._folder / (changed.pop("folder", None) or name)
        folder.mkdir(exist_ok=True)
        if not (folder / "data").exists():
            (folder / "data").symlink_to(self._shared)
        store, broker = changed.get("store", self._url), changed.get("broker", self.broker.url)
        settings = (
            f"log.file = true\nlimits.drain_seconds = {changed.get('drain_seconds', '1')}\n"
            f'[store]\nurl = "{store}"\nwait_ms = {changed.get("wait_ms", "60000")}\n'
            f'[cluster]\nurl = "{broker}"\nname = "{name}"\n{changed.get("cluster", "")}\n'
            f'[channels.telegram]\ntoken = "{self.telegram.token}"\napi_base_url = "{self.telegram.url}"\n'
            f'allow = "*"\n{changed.get("settings", "")}\n'
        )
        return GatewayProcess(folder, self.models.openai_url, settings, server=changed.get("server", ""))

    def owners(self) -> list[tuple[str, int]]:
        """The name and the epoch of the owner."""
        return self._rows("SELECT node, epoch FROM ownership WHERE node IS NOT NULL")

    def nodes(self) -> list[str]:
        """The names of all nodes that have not left."""
        return [name for (name,) in self._rows("SELECT name FROM node ORDER BY name")]

    def waiting(self) -> list[str]:
        """The names of the nodes that hold the token, or wait for it."""
        return [name for (name,) in self._rows("SELECT name FROM node JOIN subscriber USING (start_id)")]

    def states(self) -> dict[str, str]:
        """The state of each node."""
        with self._engine.connect() as connection:
            return {node.name: node.state for node in read_nodes(connection)}

    def sessions_of(self, address: str) -> int:
        """How many sessions a machine has on the database."""
        return self._rows(f"SELECT count(*) FROM pg_stat_activity WHERE client_addr = '{address}'")[0][0]

    def draining(self) -> list[bool]:
        """For each node that is to hand over, whether it has done so."""
        return [done for (done,) in self._rows("SELECT done FROM drain")]

    def _rows(self, query: str) -> list[Any]:
        with self._engine.connect() as connection:
            if not connection.execute(text("SELECT to_regclass('ownership')")).scalar():
                return []
            return [tuple(row) for row in connection.execute(text(query))]

    def close(self) -> None:
        self._engine.dispose()


@asynccontextmanager
async def standing_by(cluster: Cluster, node: GatewayProcess) -> AsyncGenerator[asyncio.Task[bool]]:
    """Start a node beside one that works. Yields the task that ends when it works itself."""
    known = len(cluster.nodes())
    async with node:
        starting = asyncio.create_task(node.start())
        await until(lambda: len(cluster.nodes()) > known)
        yield starting


@asynccontextmanager
async def working_beside(
    folder: Path, url: str, server: str = "", clock: Callable[[], float] = time.time
) -> AsyncGenerator[str]:
    """The address of a node "one" that works beside "two", both in this process and without a broker.

    Neither follows a request to hand over. ``server`` is TOML of that table, ``clock`` the clock of "two".
    """
    async with AsyncExitStack() as stack:
        members: list[Membership] = []
        for name, its_clock in {"one": time.time, "two": clock}.items():
            member, link = Membership(settings_of(folder, url, name), its_clock), Link(ANY_PORT)
            stack.callback(link.close)
            stack.push_async_callback(member.close)
            await member.join("rabbit@here", link)
            members.append(member)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        beating = tasks.create_task(_beat(members))
        stack.callback(beating.cancel)
        gateway = Gateway(settings_of(folder, url, "one", server))
        gateway.fence = await members[0].take()
        await stack.enter_async_context(gateway.running())
        server = await stack.enter_async_context(Server(gateway))
        await members[0].serve("127.0.0.1:1", 0.75)
        yield server.url


async def _beat(members: list[Membership]) -> None:
    while True:
        for member in members:
            await member.beat()
        await asyncio.sleep(0.5)
