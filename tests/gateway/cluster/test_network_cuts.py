"""Three nodes, PostgreSQL and RabbitMQ on separate hosts, between which packets get lost without a word.

They serve all tests. A service manager starts a node again that ends.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from sqlalchemy import create_engine

from channels.telegram.fake import FakeTelegram
from gateway.cluster import request_drain, resume
from gateway.contract.messages import new_id
from gateway.testing.fake_models.script import Reply, Stall
from gateway.testing.fake_models.server import FakeModels
from gateway.testing.served import SocketClient
from tests.e2e.gateway_process import GatewayProcess
from tests.gateway.cluster.broker import Broker
from tests.gateway.cluster.containers import MOUNTED, make_secrets, read
from tests.gateway.cluster.network import ForbiddenError, Network
from tests.gateway.cluster.nodes import Cluster, until
from tests.storm.servers import Postgres, running, scratch

pytestmark = [pytest.mark.slow, pytest.mark.postgres, pytest.mark.asyncio(loop_scope="module")]

WORLD, DATABASE, BROKER = "world", "database", "broker"
NODES = ("one", "two", "three")
TOKEN = "0123456789abcdef" * 2
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def network(ip_path: str) -> Iterator[Network]:
    """The hosts. The platform, the model and the users are this process, on the host ``WORLD``."""
    made = Network((WORLD, DATABASE, BROKER, *NODES), ip_path)
    try:
        try:
            made.open()
        except ForbiddenError as error:
            pytest.skip(str(error))
        with made.entered(WORLD):
            yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def servers(
    network: Network, rabbitmq_path: str, postgres_programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Postgres, Broker]]:
    """PostgreSQL and RabbitMQ on separate hosts; RabbitMQ with TLS and the shipped settings."""
    database, rabbit = network.address(DATABASE), network.address(BROKER)
    secrets = make_secrets(tmp_path_factory.mktemp("secrets"), rabbit)
    with scratch() as folder:
        (folder / "postgres").mkdir()
        (folder / "rabbit").mkdir()
        broker = Broker(
            rabbitmq_path, folder / "rabbit", listens=False, host=rabbit, prefix=network.command(BROKER)
        )
        shipped = read("rabbitmq.conf").replace(MOUNTED, str(secrets))
        (folder / "rabbit" / "rabbitmq.conf").write_text(
            shipped.replace(" = 5671", f" = {rabbit}:{broker.port}")
        )
        url: str = tomllib.loads(read("trunkline.toml"))["cluster"]["url"]
        broker.url = url.replace(MOUNTED, str(secrets)).replace("@rabbitmq/", f"@{rabbit}:{broker.port}/")
        postgres = Postgres(
            postgres_programs,
            folder / "postgres",
            host=database,
            network=network.subnet,
            prefix=network.command(DATABASE),
        )
        with running(postgres, broker) as started:
            yield started


class Town:
    """The nodes, each kept by a service manager, and what their users see."""

    def __init__(self, cluster: Cluster, network: Network, url: str) -> None:
        self.cluster, self.network = cluster, network
        self.ends: dict[str, list[int]] = {name: [] for name in NODES}
        """The exit statuses of each node so far."""
        self._url = url
        self._chat, self._expected = 0, list[str]()
        self._nodes = {name: self._node(name) for name in NODES}

    def _node(self, name: str) -> GatewayProcess:
        address = self.network.address(name)
        server = f'host = "{address}"\ntoken = "{TOKEN}"'
        node = self.cluster.node(name, cluster=f'address = "{address}:8090"', server=server)
        node.prefix = self.network.command(name)
        return node

    async def keep(self, name: str) -> None:
        """Start a node, again whenever it ends."""
        async with self._nodes[name] as node:
            while True:
                node.url = ""
                await node.start()
                self.ends[name].append(await node.ended())

    async def calm(self) -> tuple[str, Sequence[str]]:
        """Wait until one node is active and the others stand by. Returns its name and their names."""

        def all_live() -> bool:
            states = self.cluster.states()
            return sorted(states.values()) == ["active", "standby", "standby"] and all(
                node.url for node in self._nodes.values()
            )

        await until(all_live)
        self._chat, self._expected = self.cluster.telegram.private(new_id()), []
        working = next(name for name, state in self.cluster.states().items() if state == "active")
        return working, [name for name in NODES if name != working]

    def say(self, text: str) -> None:
        """Write a message to the bot."""
        self.cluster.telegram.say(self._chat, text)
        self._expected.append(f"You said: {text}")

    async def all_is_answered(self) -> None:
        """Wait for the answers, which have to be those of all messages, each once, in order."""
        telegram = self.cluster.telegram
        await until(lambda: len(telegram.answers(self._chat)) >= len(self._expected))
        await until(lambda: telegram.answers(self._chat)[-1] == self._expected[-1])
        assert telegram.answers(self._chat) == self._expected

    async def follows(self, before: str) -> str:
        """Wait until another node than before is active. Returns its name."""
        await until(lambda: before not in dict(self.cluster.owners()) and self.cluster.owners())
        return self.cluster.owners()[0][0]

    async def ends_of(self, name: str, before: int = 0) -> list[int]:
        """Wait until a node ends. Returns the statuses of all its ends from ``before`` on."""
        await until(lambda: len(self.ends[name]) > before)
        return self.ends[name][before:]

    async def status(self, name: str, path: str = "/api/status") -> tuple[int, str, Any]:
        """Ask a node for the gateway's state. Returns the HTTP status, when to retry, and the answer."""
        async with (
            aiohttp.ClientSession(headers=BEARER) as http,
            http.get(self._nodes[name].url + path) as response,
        ):
            return response.status, response.headers.get("Retry-After", ""), await response.json()

    @asynccontextmanager
    async def client(self, name: str) -> AsyncGenerator[SocketClient]:
        """A websocket client of a node."""
        async with self._nodes[name].client(**BEARER) as client:
            yield client

    async def operate(self, work: Any, *arguments: Any) -> None:
        """Change rows of the cluster as the command line does."""

        def run() -> None:
            engine = create_engine(self._url)
            with engine.begin() as connection:
                work(connection, *arguments)
            engine.dispose()

        await asyncio.to_thread(run)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _town(
    network: Network, servers: tuple[Postgres, Broker], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Town]:
    database, broker = servers
    url, host = database.url(database.port), network.address(WORLD)
    async with FakeTelegram(host=host) as telegram, FakeModels(host=host) as models:
        cluster = Cluster(tmp_path_factory.mktemp("nodes"), url, broker, telegram, models)
        town = Town(cluster, network, url)
        kept = [asyncio.create_task(town.keep(NODES[0]))]
        await until(cluster.owners)
        kept += [asyncio.create_task(town.keep(name)) for name in NODES[1:]]
        yield town
        for task in kept:
            task.cancel()
        await asyncio.wait(kept)
        cluster.close()


@pytest_asyncio.fixture(loop_scope="module")
async def town(_town: Town) -> AsyncIterator[Town]:
    """The town, in which no packet gets lost at the beginning and afterwards."""
    yield _town
    _town.network.heal()
    _town.cluster.models.forget()
    _town.cluster.telegram.transcript.check()


async def test_a_machine_that_vanishes_is_followed_and_comes_back_as_a_standby(town: Town) -> None:
    vanishing, _ = await town.calm()
    before, asked = len(town.ends[vanishing]), len(town.cluster.models.requests)
    town.cluster.models.then(Reply((Stall(),)))
    town.say("Hi")
    await until(lambda: len(town.cluster.models.requests) > asked)
    town.network.unplug(vanishing)
    town.say("Still there?")
    working = await town.follows(vanishing)
    await town.all_is_answered()
    assert (await town.ends_of(vanishing, before))[0] in (70, 75)
    # Its sessions would keep locks.
    address = town.network.address(vanishing)
    await until(lambda: not town.cluster.sessions_of(address))
    town.network.heal()
    assert (await town.calm())[0] == working
    assert (await town.status(vanishing))[0] == 200


@pytest.mark.parametrize("lost", ["both ways", "to it", "from it"])
async def test_a_working_node_that_cannot_reach_postgresql_ends_and_is_followed(
    town: Town, lost: str
) -> None:
    cut, _ = await town.calm()
    before = len(town.ends[cut])
    town.say("Hi")
    await town.all_is_answered()
    if lost != "from it":
        town.network.lose(cut, DATABASE)
    if lost != "to it":
        town.network.lose(DATABASE, cut)
    town.say("Still there?")
    working = await town.follows(cut)
    await town.all_is_answered()
    assert (await town.ends_of(cut, before))[0] == 70
    town.network.heal()
    assert (await town.calm())[0] == working


async def test_a_working_node_that_cannot_reach_rabbitmq_works_until_another_one_does(town: Town) -> None:
    cut, _ = await town.calm()
    before = len(town.ends[cut])
    town.network.part(cut, BROKER)
    town.say("Hi")
    await town.all_is_answered()
    assert dict(town.cluster.owners()).keys() == {cut}
    working = await town.follows(cut)
    town.say("Still there?")
    await town.all_is_answered()
    assert (await town.ends_of(cut, before))[0] in (70, 75)
    town.network.heal()
    assert (await town.calm())[0] == working


async def test_standbys_that_reach_nothing_for_a_while_continue_later(town: Town) -> None:
    """One cannot reach the active node, and the other one neither PostgreSQL nor RabbitMQ."""
    working, (cut, other) = await town.calm()
    asked, name = len(town.cluster.models.requests), new_id()
    async with town.client(cut) as client:
        town.network.part(working, cut)
        town.network.part(other, DATABASE, BROKER)
        await client.send(type="message", client_msg_id=name, text="Hi")
        asking = asyncio.create_task(town.status(cut))
        assert (await town.status(other))[0] == 200
        assert (await town.status(cut, "/readyz"))[0] == 503
        await client.close_code()
        assert town.cluster.states()[other] == "gone"
        status, retry_after, body = await asking
        assert (status, retry_after) == (503, "1")
        assert f"cannot be reached at {town.network.address(working)}:8090" in body["message"]
        town.network.heal()
    # The client connects again, and sends what was not acknowledged.
    async with town.client(cut) as client:
        await client.say("Hi", client_msg_id=name)
        await client.until("complete")
    assert len(town.cluster.models.requests) == asked + 1
    assert (await town.calm())[0] == working
    await town.operate(request_drain, cut, "test")
    await until(lambda: town.cluster.draining() == [True])
    await town.operate(request_drain, working, "test")
    assert await town.follows(working) == other
    for name in (cut, working):
        await town.operate(resume, name, "test")
    assert (await town.calm())[0] == other


async def test_nodes_hand_over_although_they_cannot_reach_each_other(town: Town) -> None:
    drained, others = await town.calm()
    town.say("Hi")
    await town.all_is_answered()
    town.network.part(drained, *others)
    await town.operate(request_drain, drained, "test")
    town.say("Still there?")
    working = await town.follows(drained)
    await town.all_is_answered()
    town.network.heal()
    await town.operate(resume, drained, "test")
    assert (await town.calm())[0] == working
    assert (await town.status(drained))[0] == 200
