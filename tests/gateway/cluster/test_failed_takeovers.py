"""Takeovers and hand-overs that fail in the middle: another node is active, and nothing is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from sqlalchemy import create_engine, make_url

from gateway.cluster import request_drain
from gateway.testing.fake_models.script import Reply, Say, Stall
from tests.e2e.gateway_process import GatewayProcess
from tests.gateway.cluster.cable import Cable
from tests.gateway.cluster.nodes import Cluster, standing_by, until

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

TAKING = b"UPDATE ownership SET epoch"
OPENING = b"pg_advisory_lock_shared"
READING = b"FROM inbox"
SERVING = b"UPDATE ownership SET address"
RELEASING = b"UPDATE ownership SET node = NULL"


class Wired:
    """A node that reaches PostgreSQL and RabbitMQ through cables."""

    def __init__(self, node: GatewayProcess, database: Cable, broker: Cable) -> None:
        self.node, self.database, self.broker = node, database, broker

    def on(self, what: bytes, harm: str, *, arrived: bool = False) -> None:
        """Do harm when the node sends something to the database."""
        harms: dict[str, Callable[[], object]] = {
            "database": self.database.cut,
            "silence": self.database.silence,
            "broker": self.broker.cut,
            "stop": lambda: self.node.send_signal(signal.SIGTERM),
        }
        self.database.on(what, harms[harm], arrived=arrived)

    def mend(self) -> None:
        """Let it reach both again."""
        self.database.mend()
        self.broker.mend()


@asynccontextmanager
async def wired(cluster: Cluster, postgres_url: str, name: str) -> AsyncGenerator[Wired]:
    """A node that is not started."""
    url = make_url(postgres_url)
    assert url.port is not None
    async with Cable().laid(url.port) as database, Cable().laid(cluster.broker.port) as broker:
        store = url.set(port=database.port).render_as_string(hide_password=False)
        its_broker = cluster.broker.url.replace(str(cluster.broker.port), str(broker.port))
        async with cluster.node(name, store=store, broker=its_broker) as node:
            yield Wired(node, database, broker)


@pytest.mark.parametrize(
    ("what", "harm", "statuses"),
    [
        (TAKING, "database", [None]),
        (TAKING, "silence", [75]),
        (OPENING, "database", [75]),
        (READING, "database", [70]),
        (SERVING, "broker", [70, 75]),
        (OPENING, "stop", [0]),
    ],
)
async def test_another_node_works_when_a_takeover_fails(
    cluster: Cluster, postgres_url: str, what: bytes, harm: str, statuses: list[int | None]
) -> None:
    cluster.models.then(Reply((Say("The first begins"), Stall())))
    first, third = cluster.node("one"), cluster.node("three")
    async with first, wired(cluster, postgres_url, "two") as second:
        assert await first.start()
        async with standing_by(cluster, second.node):
            await until(lambda: "two" in cluster.waiting())
            async with standing_by(cluster, third) as taking_over:
                await until(lambda: "three" in cluster.waiting())
                cluster.telegram.say(cluster.chat, "Hi")
                await until(lambda: cluster.models.requests)
                second.on(what, harm)
                first.send_signal(signal.SIGKILL)
                async with asyncio.timeout(45):  # less than store.wait_ms
                    assert await taking_over
                second.mend()
                await until(lambda: cluster.telegram.answers(cluster.chat) == ["You said: Hi"])
                await until(lambda: (second.node.status or statuses[0]) in statuses)
                await until(lambda: statuses == [None] or second.node.status is not None)
                assert [owner for owner, _ in cluster.owners()] == ["three"]
                assert await third.stop() == 0
    cluster.telegram.transcript.check()


@pytest.mark.parametrize(("harm", "arrived"), [("database", False), ("database", True), ("silence", False)])
async def test_a_node_that_loses_the_database_while_it_hands_over_stays_drained(
    cluster: Cluster, postgres_url: str, harm: str, *, arrived: bool
) -> None:
    second, engine = cluster.node("two"), create_engine(postgres_url)
    async with wired(cluster, postgres_url, "one") as first:
        assert await first.node.start()
        async with standing_by(cluster, second) as taking_over:
            await until(lambda: "two" in cluster.waiting())
            first.on(RELEASING, harm, arrived=arrived)
            with engine.begin() as connection:
                request_drain(connection, "one", "test")
            assert await taking_over
            first.mend()
            await until(lambda: cluster.states() == {"one": "drained", "two": "active"})
            assert cluster.owners() == [("two", 2)]
            assert first.node.status is None
            cluster.telegram.say(cluster.chat, "Hi")
            await until(lambda: cluster.telegram.answers(cluster.chat) == ["You said: Hi"])
            assert await second.stop() == 0
            assert await first.node.stop() == 0
    engine.dispose()
    cluster.telegram.transcript.check()
