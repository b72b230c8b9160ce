"""Nodes of a cluster are processes on one PostgreSQL and one RabbitMQ: one works, the others stand by."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

import aio_pika
import aiohttp
import pytest
from sqlalchemy import create_engine, make_url, text
from structlog.testing import capture_logs

from gateway.cluster.link import ANY_PORT, Link
from gateway.cluster.membership import Membership, read_nodes
from gateway.cluster.node import Node
from gateway.cluster.token import _ARGUMENTS, TokenQueue
from gateway.testing.fake_models.script import Reply, Say, Stall
from tests.e2e.gateway_process import GatewayProcess
from tests.gateway.cli.processes import trunkline
from tests.gateway.cluster.broker import Broker
from tests.gateway.cluster.nodes import Cluster, settings_of, standing_by, until

pytestmark = [pytest.mark.slow, pytest.mark.postgres]


async def test_a_killed_node_is_followed_by_one_that_answers_its_messages_once(cluster: Cluster) -> None:
    first, second = cluster.node("one"), cluster.node("two")
    cluster.models.then(Reply((Say("The first begins"), Stall())))
    async with first:
        assert await first.start()
        async with standing_by(cluster, second) as taking_over:
            cluster.telegram.say(cluster.chat, "Hi")
            await until(lambda: cluster.models.requests)
            first.send_signal(signal.SIGKILL)
            assert await taking_over
            assert cluster.owners() == [("two", 2)]
            await until(lambda: cluster.telegram.answers(cluster.chat) == ["You said: Hi"])
            cluster.telegram.say(cluster.chat, "Still there?")
            await until(lambda: len(cluster.telegram.answers(cluster.chat)) == 2)
            assert await second.stop() == 0
    assert cluster.telegram.answers(cluster.chat) == ["You said: Hi", "You said: Still there?"]
    cluster.telegram.transcript.check()


async def test_a_stopped_node_hands_over_and_leaves(cluster: Cluster) -> None:
    first, second = cluster.node("one"), cluster.node("two")
    async with first:
        assert await first.start()
        async with standing_by(cluster, second) as taking_over:
            assert await first.stop() == 0
            assert await taking_over
            assert cluster.owners() == [("two", 2)]
            assert cluster.nodes() == ["two"]
            assert await second.stop() == 0
    assert cluster.owners() == []


async def test_a_standby_that_is_stopped_leaves_with_status_0(cluster: Cluster) -> None:
    async with cluster.node("one") as first:
        assert await first.start()
        second = cluster.node("two")
        async with standing_by(cluster, second) as taking_over:
            await until(lambda: "standing by" in second.errors)
            assert await second.stop() == 0
            assert not await taking_over
        assert cluster.nodes() == ["one"]
        assert cluster.owners() == [("one", 1)]


async def test_a_frozen_node_exits_and_changes_nothing(cluster: Cluster) -> None:
    first, second = cluster.node("one"), cluster.node("two")
    cluster.models.then(Reply((Say("The first begins"), Stall())))
    async with first:
        assert await first.start()
        async with standing_by(cluster, second) as taking_over:
            cluster.telegram.say(cluster.chat, "Hi")
            await until(lambda: cluster.models.requests)
            first.send_signal(signal.SIGSTOP)
            assert await taking_over
            await until(lambda: cluster.telegram.answers(cluster.chat) == ["You said: Hi"])
            first.send_signal(signal.SIGCONT)
            assert await first.ended() in (70, 75)
            assert cluster.owners() == [("two", 2)]
            assert cluster.telegram.answers(cluster.chat) == ["You said: Hi"]
    cluster.telegram.transcript.check()


async def test_the_owner_works_on_while_rabbitmq_is_killed_and_keeps_its_place(cluster: Cluster) -> None:
    async with cluster.node("one") as first:
        assert await first.start()
        second = cluster.node("two")
        async with standing_by(cluster, second) as taking_over:
            await until(lambda: "standing by" in second.errors)
            cluster.broker.kill()
            cluster.telegram.say(cluster.chat, "Hi")
            await until(lambda: len(cluster.telegram.answers(cluster.chat)) == 1)
            await asyncio.to_thread(cluster.broker.start)
            await _token_is_held(cluster)
            first.send_signal(signal.SIGKILL)
            assert await taking_over
            assert cluster.owners() == [("two", 2)]


async def test_a_token_that_nodes_hand_back_in_turn_leaves_the_owner_its_place(
    tmp_path: Path, postgres_url: str, broker: Broker
) -> None:
    stop, handed_back = (
        asyncio.Event(),
        {"event": "the owner lives; handing the token back", "log_level": "info"},
    )
    async with AsyncExitStack() as stack:
        logged = stack.enter_context(capture_logs())
        owner, link = Membership(settings_of(tmp_path, postgres_url, "one")), Link(ANY_PORT)
        stack.callback(link.close)
        stack.push_async_callback(owner.close)
        await owner.join(await _put_token(broker), link)
        await owner.take()
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        beating = tasks.create_task(_beat(owner))
        for name in ("two", "three"):
            settings = settings_of(tmp_path, postgres_url, name, broker=broker.url)
            tasks.create_task(_own(Node(settings, stop), stop))
        await until(lambda: stop.is_set() or logged.count(handed_back) > 3)
        assert (await owner.find_owner()).name == "one"
        stop.set()
        beating.cancel()


async def test_a_node_that_is_named_as_the_owner_and_does_not_work_keeps_the_token(
    tmp_path: Path, postgres_url: str, broker: Broker
) -> None:
    node = Node(settings_of(tmp_path, postgres_url, "one", broker=broker.url), asyncio.Event())
    await _put_token(broker)
    with capture_logs() as logged:
        async with node.joined():
            # As after a takeover that failed, when the database did not take its release either.
            engine = create_engine(postgres_url)
            with engine.begin() as connection:
                own = "UPDATE ownership SET node = n.name, start_id = n.start_id, released = false"
                connection.execute(text(f"{own}, republished_at = clock_timestamp() FROM node n"))
            engine.dispose()
            async with asyncio.timeout(60):
                assert await node.own() is not None
    assert "the owner lives; handing the token back" not in [each["event"] for each in logged]


async def test_a_node_whose_clock_jumped_does_not_take_over_until_it_is_right(
    tmp_path: Path, postgres_url: str, broker: Broker
) -> None:
    stop, ahead, engine = asyncio.Event(), {"two": 0.0, "three": 0.0}, create_engine(postgres_url)

    def states() -> dict[str, str]:
        with engine.connect() as connection:
            return {node.name: node.state for node in read_nodes(connection)}

    def waiting() -> list[str]:
        query = "SELECT name FROM node JOIN subscriber USING (start_id)"
        with engine.connect() as connection:
            return list(connection.execute(text(query)).scalars())

    async with AsyncExitStack() as stack:
        stack.callback(engine.dispose)
        logged = stack.enter_context(capture_logs())
        owner, link = Membership(settings_of(tmp_path, postgres_url, "one")), Link(ANY_PORT)
        stack.callback(link.close)
        stack.push_async_callback(owner.close)
        queue = TokenQueue(broker.url, "trunkline.owner.gateway")
        broker_name, _ = await queue.connect()
        await queue.close()
        await owner.join(broker_name, link)
        await owner.take()
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        beating = tasks.create_task(_beat(owner))
        nodes: dict[str, Node] = {}
        for name in ahead:
            settings = settings_of(tmp_path, postgres_url, name, broker=broker.url)
            nodes[name] = Node(settings, stop, lambda name=name: time.time() + ahead[name])
            tasks.create_task(_own(nodes[name], stop))
            await until(lambda name=name: states().get(name) == "standby")
        ahead["three"] = -30.0
        await until(lambda: states() == {"one": "starting", "two": "standby", "three": "wrong_clock"})
        await until(lambda: waiting() == ["two"])
        beating.cancel()
        await owner.leave()
        # Each may get the token before its next heartbeat.
        ahead["two"] = 30.0
        await _put_token(broker)
        await until(lambda: states() == {"two": "wrong_clock", "three": "wrong_clock"})
        async with aiohttp.ClientSession() as http, http.get(f"{nodes['two'].url}/readyz") as response:
            assert response.status == 503
            assert "two does not take over, since the clock of its machine is wrong" in await response.text()
        assert not stop.is_set()
        ahead["three"] = 0.0
        await until(stop.is_set)
        with engine.connect() as connection:
            taken = connection.execute(text("SELECT epoch FROM ownership")).scalar_one()
        assert taken == 2
    wrong = [(each["seconds_ahead"], each["works"]) for each in logged if "is wrong" in each["event"]]
    assert wrong == [(-30.0, False), (30.0, False)]
    assert {"node": "three", "epoch": 2}.items() <= next(
        each for each in logged if each["event"] == "took over"
    ).items()


async def _put_token(broker: Broker) -> str:
    """Put a token in the queue, as in that of a restarted broker. Returns the broker's name."""
    async with await aio_pika.connect(broker.url) as connection, connection.channel() as channel:
        await channel.declare_queue("trunkline.owner.gateway", durable=True, arguments=_ARGUMENTS)
        token = aio_pika.Message(b"token", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(token, "trunkline.owner.gateway")
    queue = TokenQueue(broker.url, "trunkline.owner.gateway")
    name, _ = await queue.connect()
    await queue.close()
    return name


async def _own(node: Node, stop: asyncio.Event) -> None:
    """Stand by, and end all if that leads to a takeover."""
    async with node.joined():
        await node.own()
        stop.set()


async def _beat(member: Membership) -> None:
    while await member.beat():
        await asyncio.sleep(1)


async def _token_is_held(cluster: Cluster) -> None:
    """Wait until a node has taken the token out of the queue of the restarted broker."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(aio_pika.exceptions.CONNECTION_EXCEPTIONS):
                connection = await aio_pika.connect(cluster.broker.url, timeout=5)
                async with connection, connection.channel() as channel:
                    queue = await channel.declare_queue("trunkline.owner.gateway", passive=True)
                    found = queue.declaration_result
                    if found.consumer_count and not found.message_count:
                        return
            await asyncio.sleep(0.1)


async def test_a_lost_token_is_replaced(cluster: Cluster) -> None:
    connection = await aio_pika.connect(cluster.broker.url)
    async with connection, cluster.node("one") as node:
        assert await node.start()
        first = cluster.owners()
        node.send_signal(signal.SIGKILL)
        await node.ended()
        async with connection.channel() as channel:
            queue = await channel.get_queue("trunkline.owner.gateway")
            await until_purged(queue)
        assert await node.start()
        assert cluster.owners() == [("one", first[0][1] + 1)]


async def until_purged(queue: aio_pika.abc.AbstractQueue) -> None:
    """Delete the token, which the broker returns to the queue once it has noticed the death of its holder."""
    async with asyncio.timeout(30):
        while not (await queue.purge()).message_count:
            await asyncio.sleep(0.05)


async def test_a_takeover_that_fails_in_the_middle_is_made_again(cluster: Cluster, postgres_url: str) -> None:
    url = make_url(postgres_url)
    server = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    allow = f"ALTER DATABASE {url.database} ALLOW_CONNECTIONS"
    first, second = cluster.node("one"), cluster.node("two")
    async with first:
        assert await first.start()
        async with standing_by(cluster, second) as taking_over:
            await until(lambda: "standing by" in second.errors)
            with server.connect() as connection:
                # The second has one already, and gets no other.
                connection.exec_driver_sql(f"{allow} false")
                first.send_signal(signal.SIGKILL)
                await until(lambda: "cannot take over; handing the token back" in second.errors)
                connection.exec_driver_sql(f"{allow} true")
            assert await taking_over
            assert "the owner lives" not in second.errors, "it took itself for an active node"
            assert await second.stop() == 0
    server.dispose()


async def test_nodes_are_listed_and_the_doctor_knows_them(cluster: Cluster, tmp_path: Path) -> None:
    async with cluster.node("one") as first:
        assert await first.start()
        async with standing_by(cluster, cluster.node("two")):
            config = str(tmp_path / "one" / "trunkline.toml")
            listed = await asyncio.to_thread(trunkline, "nodes", "--json", "--config", config, home=tmp_path)
            states = [(node["name"], node["state"]) for node in json.loads(listed.stdout)]
            assert states == [("one", "active"), ("two", "standby")]
            table = await asyncio.to_thread(trunkline, "nodes", "--config", config, home=tmp_path)
            assert "standby" in table.stdout
            checked = await asyncio.to_thread(
                trunkline, "doctor", "--json", "--config", config, home=tmp_path
            )
            [found] = [each for each in json.loads(checked.stdout) if each["name"] == "cluster"]
            assert found["status"] == "ok"
            assert found["detail"].endswith("one (active), two (standby)")


async def refused(node: GatewayProcess) -> tuple[int | None, str]:
    async with node:
        assert not await node.start()
        return node.status, node.errors.strip().splitlines()[-1]


async def test_two_live_nodes_have_two_names(cluster: Cluster) -> None:
    async with cluster.node("one") as first:
        assert await first.start()
        status, said = await refused(cluster.node("one", folder="other"))
        assert status == 2
        assert said.startswith("cluster.name: a live node of this cluster is already named 'one'")


async def test_a_node_needs_the_data_directory_of_the_others(cluster: Cluster, tmp_path: Path) -> None:
    async with cluster.node("one") as first:
        assert await first.start()
        second = cluster.node("two")
        (tmp_path / "two" / "data").unlink()
        (tmp_path / "two" / "data").mkdir()
        status, said = await refused(second)
        assert status == 2
        assert said.startswith("data_dir:")
        assert "all nodes need one shared data directory" in said


@pytest.mark.parametrize(
    ("changed", "status", "expected"),
    [
        ({"store": "sqlite:///t.db"}, 2, "store.url: a cluster needs PostgreSQL"),
        ({"broker": "amqp://guest:guest@192.0.2.1/"}, 2, "cluster.url: amqp:// sends the password in clear"),
        (
            {"broker": "amqps://guest:guest@192.0.2.1/?no_verify_ssl=1"},
            2,
            "cluster.url: with no_verify_ssl any",
        ),
        ({"broker": "amqp://guest:wrong@127.0.0.1:{port}/"}, 2, "cluster.url: RabbitMQ at"),
        ({"broker": "amqp://guest:guest@127.0.0.1:1/", "wait_ms": "1"}, 75, "cannot reach RabbitMQ at"),
    ],
)
async def test_wrong_settings_are_refused_with_key_and_remedy(
    cluster: Cluster, changed: dict[str, str], status: int, expected: str
) -> None:
    given = {key: value.replace("{port}", str(cluster.broker.port)) for key, value in changed.items()}
    found, said = await refused(cluster.node("one", **given))
    assert found == status
    assert said.startswith(expected)
    assert "wrong" not in said


async def test_a_node_that_waits_for_the_broker_says_so_every_five_seconds(cluster: Cluster) -> None:
    node = cluster.node("one", broker="amqp://guest:guest@127.0.0.1:1/", wait_ms="2500")
    await refused(node)
    lines = [json.loads(line) for line in node.errors.splitlines() if line.startswith("{")]
    (waiting,) = [line for line in lines if line["event"] == "waiting to join the cluster"]
    assert waiting["seconds_left"] == 2


async def test_a_gateway_without_a_cluster_and_nodes_exclude_each_other(
    cluster: Cluster, tmp_path: Path, postgres_url: str
) -> None:
    alone = GatewayProcess(
        tmp_path, cluster.models.openai_url, f'[store]\nurl = "{postgres_url}"\nwait_ms = 1\n'
    )
    async with cluster.node("one") as first:
        assert await first.start()
        status, said = await refused(alone)
        assert status == 75
        assert "cluster" in said
    async with alone:
        assert await alone.start()
        status, said = await refused(cluster.node("two", wait_ms="1"))
        assert status == 75
        assert "a gateway without cluster.url already uses this PostgreSQL database" in said
