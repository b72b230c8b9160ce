"""The certificate of the link is replaced while nodes work, die, freeze, join and are of an older version."""

from __future__ import annotations

import asyncio
import random
import signal
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from gateway.cluster import advance_rotation, read_nodes, read_rotation, rotate_certificate
from gateway.cluster.certificate import Certificate, new_certificate
from gateway.cluster.link import ANY_PORT, ClientRequest, Link
from gateway.cluster.membership import Membership, Rotation, create_tables
from gateway.cluster.node import follow_certificate
from gateway.cluster.streams import HEAD, OPEN, PROTOCOL, REPLACED
from gateway.contract.errors import InvalidStateError
from tests.gateway.cli.processes import started
from tests.gateway.cluster.nodes import Cluster, settings_of, standing_by, until
from tests.gateway.cluster.test_drain import Operator
from tests.gateway.cluster.test_streams import OPENING, Echo, End

T = TypeVar("T")

pytestmark = pytest.mark.postgres
CLIENT = ClientRequest("127.0.0.1")


class Node:
    """A member of a cluster and its end of the link, which answers clients with what they send."""

    def __init__(self, folder: Path, url: str, name: str, token: str) -> None:
        self.name = name
        self.member = Membership(settings_of(folder, url, name, f'token = "{token}"'))
        self.link = Link(ANY_PORT)
        self.link.accept, self.link.open_to_all = Echo, True

    async def join(self) -> None:
        await self.link.open(await self.member.join("rabbit", self.link))

    async def beat(self, drain_seconds: float = 0) -> None:
        """What a node does each second."""
        assert await self.member.beat()
        await follow_certificate(self.member, self.link, drain_seconds)

    async def connect(self, other: Node) -> End:
        """A client of this node that the other one works for."""
        end = End()
        end.connection_made(await self.link.connect(other.link.address, CLIENT, end))
        return end

    async def ask(self, other: Node) -> None:
        end = await self.connect(other)
        end.transport.write(b"Hi")
        assert await end.until(2) == b"Hi"
        end.transport.close()


class Nodes:
    """The nodes of a cluster, in this process: each beats when the test says so."""

    def __init__(self, folder: Path, url: str, engine: Engine) -> None:
        self._folder, self._url, self._engine = folder, url, engine
        self.made: list[Node] = []

    async def join(self, name: str, token: str = "t" * 40) -> Node:
        node = Node(self._folder, self._url, name, token)
        self.made.append(node)
        await node.join()
        return node

    def transact(self, work: Callable[[Connection], T]) -> T:
        with self._engine.begin() as connection:
            return work(connection)

    def execute(self, statement: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(text(statement))

    def read(self, query: str) -> list[Any]:
        with self._engine.begin() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    def rotate(self) -> bool:
        return self.transact(lambda connection: rotate_certificate(connection, "ada"))

    def state(self) -> Rotation:
        return self.transact(read_rotation)

    def certificate(self) -> Certificate:
        return Certificate(*self.read("SELECT certificate, key FROM cluster")[0])

    def differing(self) -> dict[str, list[str]]:
        return {row.name: list(row.differs) for row in self.transact(read_nodes) if row.differs}

    def freeze(self, node: Node) -> None:
        """It does not beat any more, and counts as gone."""
        self.execute(f"UPDATE node SET heartbeat_at = 'epoch' WHERE name = '{node.name}'")

    async def close(self) -> None:
        for node in self.made:
            node.link.close()
            await node.member.close()


@pytest.fixture
async def nodes(tmp_path: Path, postgres_url: str) -> AsyncIterator[Nodes]:
    engine = create_engine(postgres_url)
    made = Nodes(tmp_path, postgres_url, engine)
    yield made
    await made.close()
    engine.dispose()


async def accepts(address: str, certificate: Certificate) -> bool:
    """Return whether a node accepts one that has this certificate, and is accepted by it."""
    other = Link(ANY_PORT)
    await other.open(certificate)
    try:
        await other.connect(address, CLIENT, asyncio.Protocol())
    except ConnectionRefusedError as error:
        return str(error) == "it is not ready"
    finally:
        other.close()
    return True


def thief(leaked: Certificate, folder: Path) -> ssl.SSLContext:
    """What someone uses who has this key, and takes any certificate of a node."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([PROTOCOL])
    file = folder / "leaked.pem"
    file.write_text(leaked.certificate + leaked.key)
    context.load_cert_chain(file)
    return context


async def admits(address: str, leaked: Certificate, folder: Path) -> bool:
    """Return whether a node answers someone who has this key."""
    host, port = address.rsplit(":", 1)
    context = thief(leaked, folder)
    return await answers(*await asyncio.open_connection(host, int(port), ssl=context))


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Return whether a node answers when a stream is opened."""
    try:
        writer.write(HEAD.pack(1, OPEN, len(OPENING)) + OPENING)
        async with asyncio.timeout(30):
            return await reader.read(1) != b""
    except OSError:
        return False
    finally:
        writer.transport.abort()


async def trusts(node: Node, leaked: Certificate) -> bool:
    """Return whether a node takes a server that has this key for another node."""
    impostor = Link(ANY_PORT)
    impostor.accept, impostor.open_to_all = Echo, True
    await impostor.open(leaked)
    try:
        await node.link.connect(impostor.address, CLIENT, End())
    except ssl.SSLError:
        return False
    finally:
        impostor.close()
    return True


@pytest.mark.parametrize("seed", range(4))
async def test_nodes_reach_each_other_in_any_order_of_events(nodes: Nodes, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    live = [await nodes.join(name) for name in ("one", "two", "three")]
    await live[0].member.take()
    old = nodes.certificate()
    assert nodes.rotate()
    assert await admits(live[0].link.address, old, tmp_path)
    assert await trusts(live[0], old)
    while not nodes.state().is_done:
        nodes.execute("UPDATE node SET heartbeat_at = clock_timestamp()")
        event = chance.randrange(9)
        if event == 0 and len(live) < 5:
            live.append(await nodes.join(f"late-{len(live)}"))
        elif event == 1:
            assert not nodes.rotate(), "the first one is not done"
        elif event == 2:
            nodes.transact(advance_rotation)
        else:
            await chance.choice(live).beat()
        one, other = chance.sample(live, 2)
        await one.ask(other)
        assert nodes.differing() == {}
    new = nodes.certificate()
    assert (old.certificate != new.certificate, old.key != new.key) == (True, True)
    for node in live:
        assert not await admits(node.link.address, old, tmp_path)
        assert not await trusts(node, old)
        assert await accepts(node.link.address, new)
    # And again: nothing of the first one is left.
    assert nodes.rotate()
    while not nodes.state().is_done:
        for node in live:
            await node.beat()
        await live[1].ask(live[0])
    assert not await admits(live[0].link.address, new, tmp_path)


async def test_a_connection_of_the_old_certificate_ends_before_the_rotation_does(nodes: Nodes) -> None:
    one, two = await nodes.join("one"), await nodes.join("two")
    old, old_client, leaked = nodes.certificate(), await two.connect(one), Link(ANY_PORT)
    await leaked.open(old)
    stolen = End()
    stolen.connection_made(await leaked.connect(one.link.address, CLIENT, stolen))
    nodes.rotate()
    for _ in range(3):
        for node in (one, two):
            await node.beat(drain_seconds=600)
        await two.ask(one)
    # They have streams, which may go on for a while. New ones are refused at once.
    assert nodes.state().waiting == ["one", "two"]
    with pytest.raises(ConnectionRefusedError, match=REPLACED):
        await leaked.connect(one.link.address, CLIENT, End())
    old_client.transport.write(b"still")
    assert await old_client.until(5) == b"still"
    old_client.transport.close()
    await until(lambda: two.link.settled)
    for node in (one, two):
        await node.beat()
    assert nodes.state().waiting == ["one"]
    stolen.transport.close()
    await until(lambda: one.link.settled)
    await one.beat()
    assert nodes.state().is_done
    leaked.close()


async def test_a_connection_of_the_old_certificate_that_does_not_end_is_ended(nodes: Nodes) -> None:
    one, two = await nodes.join("one"), await nodes.join("two")
    client = await two.connect(one)
    nodes.rotate()
    while not nodes.state().is_done:
        for node in (one, two):
            await node.beat(drain_seconds=0.01)
    async with asyncio.timeout(30):
        await client.lost.wait()
    await two.ask(one)


async def test_a_handshake_that_began_with_the_old_certificate_is_refused_at_its_end(
    nodes: Nodes, tmp_path: Path
) -> None:
    one, old = await nodes.join("one"), nodes.certificate()
    host, port = one.link.address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    assert await admits(one.link.address, old, tmp_path)  # the earlier connection is accepted by now, too
    await one.link.open(new_certificate("other"))
    await writer.start_tls(thief(old, tmp_path))
    assert not await answers(reader, writer)


async def test_a_node_that_was_frozen_meanwhile_follows_when_it_wakes(nodes: Nodes) -> None:
    one, two, frozen = [await nodes.join(name) for name in ("one", "two", "frozen")]
    nodes.rotate()
    nodes.freeze(frozen)
    while not nodes.state().is_done:
        for node in (one, two):
            await node.beat()
    assert nodes.state().gone == ["frozen"]
    with pytest.raises(ssl.SSLError):
        await frozen.ask(one)
    await frozen.beat()
    for other in (one, two):
        await frozen.ask(other)
        await other.ask(frozen)
    assert nodes.state() == Rotation(3, waiting=[], gone=[], older=[])


async def test_a_node_that_wakes_in_the_middle_is_waited_for(nodes: Nodes) -> None:
    one, frozen = await nodes.join("one"), await nodes.join("frozen")
    nodes.rotate()
    nodes.freeze(frozen)
    await one.beat()
    await one.beat()
    assert (nodes.state().step, nodes.state().waiting) == (3, ["one"])
    assert await frozen.member.beat()
    assert nodes.state().waiting == ["frozen", "one"]
    for node in (one, frozen):
        await node.beat()
    assert nodes.state().is_done
    await one.ask(frozen)


async def test_an_older_version_that_lives_is_named(nodes: Nodes) -> None:
    one, two = await nodes.join("one"), await nodes.join("two")
    # No node of this version has joined yet.
    nodes.execute("ALTER TABLE node DROP COLUMN certificate_step")
    nodes.execute(
        "ALTER TABLE cluster DROP COLUMN other_certificate, DROP COLUMN other_key, DROP COLUMN step"
    )
    assert nodes.differing() == {}
    with pytest.raises(InvalidStateError, match=r"^the version of one, two is too old to replace the"):
        nodes.rotate()
    nodes.transact(create_tables)
    await one.beat()
    older = "UPDATE node SET certificate_step = NULL WHERE name = 'two'"
    nodes.execute(older)
    with pytest.raises(InvalidStateError, match=r"^the version of two is too old to replace the certificate"):
        nodes.rotate()
    assert nodes.state().step == 0
    await two.beat()
    assert nodes.rotate()
    # One that joins now has the old certificate, so the new one is not presented before it has left.
    nodes.execute(older)
    await one.beat()
    assert nodes.state() == Rotation(1, waiting=["two"], gone=[], older=["two"])
    # One that is gone may be frozen. When it wakes it ends, since its row is not there.
    nodes.freeze(two)
    await one.beat()
    assert nodes.state().step == 2
    assert not await two.member.beat()
    # One that joins now gets the new certificate, as a node of this version does that has done all steps.
    later = await nodes.join("two")
    nodes.execute(older)
    while not nodes.state().is_done:
        await one.beat()
    await later.ask(one)
    assert nodes.state() == Rotation(3, waiting=[], gone=[], older=["two"])


async def test_nodes_of_other_settings_differ_after_a_rotation_as_before(nodes: Nodes) -> None:
    one, two = await nodes.join("one"), await nodes.join("two", "u" * 40)
    await one.member.take()
    before = nodes.differing()
    assert before == {"two": ["server.token"]}
    hashes = "SELECT settings FROM node ORDER BY name"
    written = nodes.read(hashes)
    nodes.rotate()
    while not nodes.state().is_done:
        for node in (one, two):
            await node.beat()
    assert nodes.differing() == before
    rewritten = nodes.read(hashes)
    for (old,), (new,) in zip(written, rewritten, strict=True):
        former, later = (msgspec.json.decode(hashed, type=dict[str, str]) for hashed in (old, new))
        assert former.keys() == later.keys()
        assert not {*former.values()} & {*later.values()}


@pytest.mark.slow
async def test_nodes_replace_the_certificate_under_traffic_although_the_command_is_killed(
    cluster: Cluster, tmp_path: Path, postgres_url: str
) -> None:
    engine, operator = create_engine(postgres_url), Operator(tmp_path)

    def read(query: str) -> Any:
        with engine.connect() as connection:
            return connection.execute(text(query)).all()

    async with AsyncExitStack() as stack:
        stack.callback(engine.dispose)
        one, two = cluster.node("one"), cluster.node("two")
        await stack.enter_async_context(one)
        assert await one.start()
        await stack.enter_async_context(standing_by(cluster, two))
        await until(lambda: two.url and "standing by" in two.errors)
        leaked = Certificate(*read("SELECT certificate, key FROM cluster")[0])
        client = await stack.enter_async_context(two.client())
        await client.say("Hi", session="s")
        await client.until("complete")
        http = await stack.enter_async_context(aiohttp.ClientSession())
        statuses: list[int] = []

        async def ask() -> None:
            while True:
                # A new connection each time, so that each is a new stream.
                async with http.get(f"{two.url}/api/sessions", headers={"Connection": "close"}) as answer:
                    statuses.append(answer.status)
                await asyncio.sleep(0.01)

        traffic = asyncio.create_task(ask())
        config = str(tmp_path / "one" / "trunkline.toml")
        killed = started("nodes", "rotate", "--config", config, home=tmp_path)
        await until(lambda: read("SELECT 1 FROM cluster WHERE step > 0"))
        killed.send_signal(signal.SIGKILL)
        killed.communicate()

        # The nodes go on alone. A client that was there before is disconnected, and resumes.
        await until(lambda: read("SELECT 1 FROM cluster WHERE step = 3"))
        assert await client.close_code() is not None
        again = await stack.enter_async_context(two.client())
        await again.say("Again?", session="s")
        await again.until("complete")

        rotated = await operator.run("rotate")
        assert rotated.returncode == 0, rotated.stderr
        assert rotated.stdout.startswith("all live nodes use the new certificate, after ")
        assert "did not follow" not in rotated.stdout
        addresses = [address for (address,) in read("SELECT address FROM node")]
        now = Certificate(*read("SELECT certificate, key FROM cluster")[0])
        assert now.certificate != leaked.certificate
        assert [await admits(address, leaked, tmp_path) for address in addresses] == [False, False]
        assert [await accepts(address, now) for address in addresses] == [True, True]

        # One that was not there meanwhile joins, and passes clients on.
        async with cluster.node("three") as three, standing_by(cluster, three):
            await until(lambda: three.url and "standing by" in three.errors)
            async with http.get(f"{three.url}/api/sessions") as answer:
                assert answer.status == 200
        traffic.cancel()
        with suppress(asyncio.CancelledError):
            await traffic
        assert len(statuses) > 10
        assert {*statuses} == {200}
        assert cluster.owners() == [("one", 1)]
        audited = read("SELECT actor FROM audit WHERE action = 'node.rotate'")
        assert {actor for (actor,) in audited} == {"cli"}
