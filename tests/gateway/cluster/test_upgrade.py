"""Nodes of two versions side by side: the newer one migrates the database when it takes over."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from gateway.store import migrate
from tests.e2e.gateway_process import ROOT, GatewayProcess
from tests.gateway.cluster.newer import REVISION, newer
from tests.gateway.cluster.nodes import Cluster, standing_by, until
from tests.gateway.cluster.test_drain import Operator

pytestmark = [pytest.mark.slow, pytest.mark.postgres]


def revision(url: str) -> Any:
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    finally:
        engine.dispose()


async def ask(cluster: Cluster, question: str) -> None:
    cluster.telegram.say(cluster.chat, question)
    await until(lambda: cluster.telegram.answers(cluster.chat)[-1:] == [f"You said: {question}"])


def node(cluster: Cluster, name: str, root: Path = ROOT) -> GatewayProcess:
    made = cluster.node(name)
    made.root = root
    return made


async def test_a_cluster_is_upgraded_node_by_node(
    cluster: Cluster, tmp_path: Path, postgres_url: str
) -> None:
    new, head, operator = newer(tmp_path / "newer"), migrate.head(), Operator(tmp_path)
    one, two = node(cluster, "one"), node(cluster, "two", new)
    async with one:
        assert await one.start()
        await ask(cluster, "On the old version?")
        async with standing_by(cluster, two) as taking_over:
            await until(lambda: "standing by" in two.errors)
            assert "migrates the database when it takes over" in two.errors
            assert await operator.states() == {"one": "active", "two": "standby"}
            assert revision(postgres_url) == head
            await ask(cluster, "Still on the old one?")

            assert (await operator.run("drain", "one")).returncode == 0
            assert await taking_over
            assert revision(postgres_url) == REVISION
            await ask(cluster, "On the new version?")
            await until(lambda: "install it here, too" in one.errors)
            assert await operator.states() == {"one": "outdated", "two": "active"}
            refused = await operator.run("drain", "two")
            assert "one (outdated)" in refused.stderr

            # It passes clients on as before, and does not work although no other node lives.
            async with one.client() as client:
                await client.say("Through the old one?", session="s")
                await client.until("complete")
            assert await two.stop(signal.SIGKILL) == -signal.SIGKILL
            async with node(cluster, "three", new) as three:
                assert await three.start()
                await ask(cluster, "Is someone there?")
                assert [owner for owner, _epoch in cluster.owners()] == ["three"]
                assert one.status is None

                # The old version does not come back.
                assert await one.stop() == 0
                assert not await one.start()
                assert "install it here, too" in one.errors
                assert await three.stop() == 0
    cluster.telegram.transcript.check()


async def test_a_migration_that_fails_leaves_the_work_to_the_older_version(
    cluster: Cluster, tmp_path: Path, postgres_url: str
) -> None:
    new = newer(tmp_path / "newer", more='op.execute("SELECT 1/0")')
    one, two = node(cluster, "one"), node(cluster, "two", new)
    async with one:
        assert await one.start()
        async with standing_by(cluster, two) as taking_over:
            await until(lambda: "standing by" in two.errors)
            drained = await Operator(tmp_path).run("drain", "one")
            assert "no other node lives" in drained.stderr
            assert not await taking_over
            assert "division by zero" in two.errors
        assert revision(postgres_url) == migrate.head()
        await ask(cluster, "Who works?")
        assert [owner for owner, _epoch in cluster.owners()] == ["one"]
        assert await one.stop() == 0
