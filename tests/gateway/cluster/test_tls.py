"""Nodes reach a real RabbitMQ with TLS, with the shipped settings and certificates of the shipped script."""

from __future__ import annotations

import asyncio
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import aio_pika
import pytest
from aio_pika.exceptions import ProbableAuthenticationError
from aiormq.exceptions import ChannelAccessRefused

from gateway.cli.doctor.cluster import cluster as doctor
from gateway.settings import load_settings
from gateway.store import migrate, open_locked
from tests.gateway.cluster.broker import Broker
from tests.gateway.cluster.containers import MOUNTED, make_secrets, read
from tests.gateway.cluster.nodes import Cluster, standing_by

pytestmark = [pytest.mark.slow, pytest.mark.postgres]

_URL: str = tomllib.loads(read("trunkline.toml"))["cluster"]["url"]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the script made, for a RabbitMQ that is reached as localhost."""
    return make_secrets(tmp_path_factory.mktemp("secrets"), "localhost")


@pytest.fixture(scope="module")
def broker(rabbitmq_path: str, tmp_path_factory: pytest.TempPathFactory, secrets: Path) -> Iterator[Broker]:
    """A running RabbitMQ with the shipped settings, in which the port and the folder are its own."""
    folder = tmp_path_factory.mktemp("rabbit")
    made = Broker(rabbitmq_path, folder, listens=False)
    shipped = read("rabbitmq.conf").replace(MOUNTED, str(secrets))
    (folder / "rabbitmq.conf").write_text(shipped.replace(" = 5671", f" = 127.0.0.1:{made.port}"))
    made.url = _URL.replace(MOUNTED, str(secrets)).replace("@rabbitmq/", f"@localhost:{made.port}/")
    try:
        made.start()
        yield made
    finally:
        made.kill()


async def test_nodes_join_and_take_over_with_the_shipped_settings(cluster: Cluster) -> None:
    first, second = cluster.node("one"), cluster.node("two")
    async with first:
        assert await first.start()
        async with standing_by(cluster, second) as taking_over:
            first.send_signal(signal.SIGKILL)
            assert await taking_over
            assert cluster.owners() == [("two", 2)]
            assert await second.stop() == 0


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        (
            "?cafile={secrets}/ca.pem",
            "?cafile={other}/ca.pem",
            "self-signed certificate in certificate chain",
        ),
        ("?cafile={secrets}/ca.pem", "", "self-signed certificate in certificate chain"),
        ("@localhost:", "@127.0.0.1:", "certificate is not valid for '127.0.0.1'"),
    ],
    ids=["another CA", "no CA", "another host"],
)
async def test_a_certificate_that_does_not_fit_is_refused(
    cluster: Cluster, secrets: Path, tmp_path: Path, right: str, wrong: str, expected: str
) -> None:
    other = make_secrets(tmp_path / "other", "localhost")
    url = cluster.broker.url.replace(right.format(secrets=secrets), wrong.format(other=other))
    assert url != cluster.broker.url
    node = cluster.node("one", broker=url)
    async with node:
        assert not await node.start()
        assert node.status == 2, "a restart does not help"
    said = node.errors.strip().splitlines()[-1]
    assert said.startswith("cluster.url: the certificate of RabbitMQ at amqps://trunkline@")
    assert expected in said
    assert "name the file of a private CA at the end of the address: ?cafile=" in said
    assert (secrets / "rabbitmq_password").read_text().strip() not in node.errors


@pytest.mark.parametrize(("name", "reason"), [("none.pem", "No such file"), ("ca.key", "no certificate")])
async def test_a_ca_that_cannot_be_read_is_refused(
    cluster: Cluster, secrets: Path, name: str, reason: str
) -> None:
    node = cluster.node("one", broker=cluster.broker.url.replace("ca.pem", name))
    async with node:
        assert not await node.start()
        assert node.status == 2
    said = node.errors.strip().splitlines()[-1]
    assert said.startswith("cluster.url: the file of cafile cannot be used: ")
    assert reason in said
    assert name in said


def test_the_doctor_finds_nothing_wrong_with_the_shipped_settings(
    tmp_path: Path, postgres_url: str, broker: Broker
) -> None:
    with open_locked(postgres_url, "full") as base:
        migrate.upgrade(base.engine)
    file = tmp_path / "trunkline.toml"
    file.write_text(f'[store]\nurl = "{postgres_url}"\n[cluster]\nurl = "{broker.url}"\n')
    found = {each.name: each.status for each in doctor(load_settings(file, environ={}, cwd=tmp_path))}
    assert found["cluster queue"] == "ok"


async def test_the_user_of_the_shipped_definitions_may_use_one_queue_and_there_is_no_guest(
    broker: Broker, secrets: Path
) -> None:
    password = (secrets / "rabbitmq_password").read_text().strip()
    url = broker.url.replace(f"{{file:{secrets}/rabbitmq_password}}", password)
    connection = await aio_pika.connect(url)
    async with connection, connection.channel() as channel:
        with pytest.raises(ChannelAccessRefused):
            await channel.declare_queue("another")
    with pytest.raises(ProbableAuthenticationError):
        await aio_pika.connect(url.replace(f"trunkline:{password}", "guest:guest"))
    # There is no listener without TLS.
    with pytest.raises(aio_pika.exceptions.CONNECTION_EXCEPTIONS):
        await asyncio.wait_for(aio_pika.connect(url.replace("amqps", "amqp"), timeout=20), 30)
