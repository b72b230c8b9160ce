"""Checks of a cluster: RabbitMQ, its queue, the replicas and the clock of PostgreSQL, and the nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, text

from gateway.cli.doctor.finding import Finding, fail, ok, warn
from gateway.cli.store_reader import reading
from gateway.cluster import MOST_CLOCK_SECONDS, NodeRow, find_unshared, read_nodes, say_clock
from gateway.contract.errors import SettingsError, StoreError
from gateway.settings import Settings

_LOCAL = ("off", "local")
"""Values of synchronous_commit with which a commit waits for no replica."""


def cluster(settings: Settings) -> Iterator[Finding]:
    """Check RabbitMQ, PostgreSQL and the nodes of a cluster, if the settings name one."""
    if settings.cluster.url is None:
        return
    yield from _folders(settings)
    try:
        from gateway.cluster.node import inspect_broker
    except ModuleNotFoundError:
        yield fail("cluster", "the client of RabbitMQ is not installed", "pip install 'trunkline[cluster]'")
        return
    try:
        broker = asyncio.run(inspect_broker(settings))
        with reading(settings, any_schema=True) as connection:
            nodes = [node for node in read_nodes(connection) if node.state != "gone"]
            replicas, clock = _replicas(connection), _clock(connection, nodes)
    except (SettingsError, StoreError) as error:
        yield fail(
            "cluster", str(error), "correct cluster.url and store.url, or start RabbitMQ and PostgreSQL"
        )
        return
    listed = ", ".join(f"{node.name} ({node.state})" for node in nodes) or "no node runs"
    detail = f"RabbitMQ {broker.version} {broker.name}; {listed}"
    advice = "start a second node, which continues when the first one ends"
    yield ok("cluster", detail) if len(nodes) > 1 else warn("cluster", detail, advice)
    if broker.problem:
        yield fail("cluster queue", broker.problem, broker.advice)
    else:
        yield ok("cluster queue", "a quorum queue, and RabbitMQ accepts messages")
    yield replicas
    yield clock


def _folders(settings: Settings) -> Iterator[Finding]:
    """Check that the tools find the same files on each machine of a cluster."""
    if found := find_unshared(settings):
        yield warn(
            "cluster folders",
            f"{', '.join(found)}: not in data_dir; after a takeover another machine uses its own content",
            "use folders below data_dir, or mount each of them on all machines; make logins on each machine",
        )


def _replicas(connection: Connection) -> Finding:
    """Check that a fail-over to a replica loses no acknowledged message."""
    commit = connection.execute(text("SHOW synchronous_commit")).scalar_one()
    query = "SELECT application_name, sync_state FROM pg_stat_replication ORDER BY application_name"
    found = [tuple(row) for row in connection.execute(text(query))]
    late = [f"{name or 'unnamed'}" for name, state in found if state == "async" or commit in _LOCAL]
    if late:
        return warn(
            "cluster replicas",
            f"asynchronous: {', '.join(late)} (synchronous_commit = {commit}); a fail-over to one may lose "
            "messages that were acknowledged",
            "set synchronous_standby_names, and synchronous_commit = on",
        )
    named = ", ".join(name or "unnamed" for name, _ in found) or "none, or not visible to this user"
    return ok("cluster replicas", f"{named}; synchronous_commit = {commit}")


def _clock(connection: Connection, nodes: Sequence[NodeRow]) -> Finding:
    now = connection.execute(text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one()
    apart = abs(time.time() - float(now))
    detail = f"{apart:.1f} s off the database's clock; a node joins with at most {MOST_CLOCK_SECONDS:g} s"
    advice = "synchronize the clocks of both machines, for example with chrony"
    if wrong := ", ".join(say_clock(node) for node in nodes if node.clock_seconds):
        return fail("cluster clock", f"{wrong}; a node that stands by does not take over then", advice)
    if apart > MOST_CLOCK_SECONDS:
        return fail("cluster clock", detail, advice)
    return (
        warn("cluster clock", detail, advice)
        if apart > MOST_CLOCK_SECONDS / 2
        else ok("cluster clock", detail)
    )
