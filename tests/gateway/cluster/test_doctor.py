"""The doctor of a cluster, with a real RabbitMQ and PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import aio_pika
import pytest
from sqlalchemy import create_engine, text

from gateway.cli.doctor.cluster import cluster
from gateway.cli.doctor.finding import Finding
from gateway.cluster.link import ANY_PORT, Link
from gateway.cluster.membership import Membership
from gateway.settings import load_settings
from tests.gateway.cli.processes import trunkline
from tests.gateway.cluster.broker import Broker
from tests.gateway.cluster.nodes import settings_of

pytestmark = [pytest.mark.slow, pytest.mark.postgres]


def findings(folder: Path, url: str, broker: Broker) -> dict[str, Finding]:
    file = folder / "trunkline.toml"
    file.write_text(f'[store]\nurl = "{url}"\n[cluster]\nurl = "{broker.url}"\n')
    return {found.name: found for found in cluster(load_settings(file, environ={}, cwd=folder))}


def test_servers_that_fit_are_well(tmp_path: Path, migrated_postgres_url: str, broker: Broker) -> None:
    found = findings(tmp_path, migrated_postgres_url, broker)
    assert {name: each.status for name, each in found.items()} == {
        "cluster": "warn",
        "cluster queue": "ok",
        "cluster replicas": "ok",
        "cluster clock": "ok",
    }
    assert found["cluster"].detail.endswith("no node runs")
    assert "synchronous_commit = on" in found["cluster replicas"].detail


def test_an_asynchronous_replica_is_a_warning(
    tmp_path: Path, migrated_postgres_url: str, broker: Broker
) -> None:
    engine = create_engine(migrated_postgres_url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        # Stands for the view of the server, which has no replica.
        connection.execute(
            text("CREATE TABLE public.pg_stat_replication (application_name text, sync_state text)")
        )
        connection.execute(
            text("INSERT INTO public.pg_stat_replication VALUES ('far', 'async'), ('near', 'sync')")
        )
        name = engine.url.database
        connection.execute(text(f"ALTER DATABASE {name} SET search_path = public, pg_catalog"))
    engine.dispose()
    found = findings(tmp_path, migrated_postgres_url, broker)["cluster replicas"]
    assert found.status == "warn"
    assert found.detail.startswith("asynchronous: far (synchronous_commit = on)")


async def test_a_working_node_whose_clock_jumped_is_a_failure(
    tmp_path: Path, migrated_postgres_url: str, broker: Broker
) -> None:
    # The first command of a worker may take longer than a node without a heartbeat counts as running.
    await asyncio.to_thread(trunkline, "version", home=tmp_path)
    ahead, link = 0.0, Link(ANY_PORT)
    member = Membership(settings_of(tmp_path, migrated_postgres_url, "one"), lambda: time.time() + ahead)
    await member.join("rabbit@here", link)
    await member.take()
    ahead = -30.0
    await member.beat()
    found = (await asyncio.to_thread(findings, tmp_path, migrated_postgres_url, broker))["cluster clock"]
    assert found.status == "fail"
    assert "the clock of one is 30.0 s behind the database's" in found.detail
    config = str(tmp_path / "trunkline.toml")
    listed = await asyncio.to_thread(trunkline, "nodes", "--config", config, home=tmp_path)
    assert "the clock of one is 30.0 s behind the database's; synchronize it" in listed.stdout
    ahead = 0.0
    await member.beat()
    found = (await asyncio.to_thread(findings, tmp_path, migrated_postgres_url, broker))["cluster clock"]
    assert found.status == "ok"
    link.close()
    await member.close()


async def test_a_queue_of_another_kind_and_an_alarm_of_rabbitmq_are_failures(
    tmp_path: Path, migrated_postgres_url: str, rabbitmq_path: str
) -> None:
    (tmp_path / "rabbitmq.conf").write_text("vm_memory_high_watermark.absolute = 1\n")
    own = Broker(rabbitmq_path, tmp_path)
    try:
        await asyncio.to_thread(own.start)
        connection = await aio_pika.connect(own.url)
        async with connection, connection.channel() as channel:
            await channel.declare_queue("trunkline.owner.gateway", durable=True)
            found = (await asyncio.to_thread(findings, tmp_path, migrated_postgres_url, own))["cluster queue"]
            assert found.status == "fail"
            assert "trunkline.owner.gateway was declared with other arguments" in found.detail
            assert "delete the queue" in found.advice
            await channel.queue_delete("trunkline.owner.gateway")
        found = (await asyncio.to_thread(findings, tmp_path, migrated_postgres_url, own))["cluster queue"]
        assert found.status == "fail"
        assert found.detail.startswith("RabbitMQ accepts no messages, as with a memory or disk alarm")
    finally:
        own.kill()


def test_missing_rights_in_rabbitmq_are_a_failure(
    tmp_path: Path, migrated_postgres_url: str, rabbitmq_path: str
) -> None:
    rights = {"configure": ".*", "read": "^none$", "write": "^none$"}
    lines = [f"default_permissions.{name} = {pattern}\n" for name, pattern in rights.items()]
    (tmp_path / "rabbitmq.conf").write_text("".join(lines))
    own = Broker(rabbitmq_path, tmp_path)
    try:
        own.start()
        found = findings(tmp_path, migrated_postgres_url, own)["cluster queue"]
        assert found.status == "fail"
        assert found.detail.startswith("RabbitMQ refuses its user: ")
        assert "let the user configure, write and read trunkline.owner.gateway" in found.advice
    finally:
        own.kill()


def test_folders_that_only_one_machine_has_are_a_warning(
    tmp_path: Path, migrated_postgres_url: str, broker: Broker
) -> None:
    data, notes, elsewhere = tmp_path / "data", tmp_path / "notes", "/proc"
    data.mkdir()
    notes.mkdir()
    file = tmp_path / "trunkline.toml"

    def warned(address: str) -> Finding | None:
        file.write_text(
            f'data_dir = "{data}"\n[store]\nurl = "{migrated_postgres_url}"\n'
            f'[cluster]\nurl = "{broker.url}"\naddress = "{address}"\n'
            f'[plugins]\nenabled = ["shell"]\n[plugins.files]\nroots = ["{notes}", "{elsewhere}", "{data}"]\n'
            f'[plugins.shell]\nreadable = ["{elsewhere}"]\n'
            f'[mcp.notes]\ncommand = ["/bin/true", "{elsewhere}"]\ncwd = "{data}"\n'
        )
        found = cluster(load_settings(file, environ={}, cwd=tmp_path))
        return next((each for each in found if each.name == "cluster folders"), None)

    assert warned("127.0.0.1:0") is None
    found = warned("10.0.0.5:8090")
    assert found is not None
    assert found.status == "warn"
    # The others share the file system of the data directory.
    assert found.detail.startswith("plugins.files.roots = /proc, mcp.notes.command = /proc: not in data_dir")
