"""The figures of several nodes: what a cluster costs, and how soon another node continues.

They need a PostgreSQL server, as those of databases, and RabbitMQ, which is started for them.
"""

from __future__ import annotations

import json
import resource
import shutil
import signal
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import kill
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import procfs
from database_figures import SERVER, database
from figures import MIB, Bench, Row, bursts, cost, each, row
from processes import TREE, Process
from sqlalchemy import create_engine, text

from tests.gateway.cluster.broker import Broker

_PROGRAM = shutil.which("rabbitmq-server", path="/usr/lib/rabbitmq/bin:/usr/local/bin:/usr/bin") or ""
_FOLLOWED_SECONDS = 60.0
_COUNTED_SECONDS = 5.0
"""PostgreSQL counts what a connection did about once a second."""


def cluster(bench: Bench) -> Iterator[Row]:
    """A turn on a node of a cluster, with clients there and at another node, beside a single gateway."""
    if not (SERVER and _PROGRAM):
        yield Row("cluster", "µs", None, note="not measured: no PostgreSQL, or no RabbitMQ")
        return
    with database() as url, _broker() as broker, database() as other:
        plain = bench.lab.gateway(tables=f'[store]\nurl = "{other}"\n')
        active, standby = (_node(bench, broker, url, name) for name in ("one", "two"))
        time.sleep(2.0)
        idle = [procfs.rss_bytes(each.pid) / MIB for each in (active, plain)]
        servers = {"relay": plain, "ours": active}
        costs = each(bench.talks(servers, mode="s02", clients=200), cost)
        through = bench.talks({"ours": standby}, mode="s02", clients=200, also=active.pid)
        first = each(
            bursts(bench, {"relay": active, "ours": standby}, clients=1, mode="p04", messages=20),
            lambda result: median(result.from_send) * 1e3,
        )
        commits, logged = work_of(bench, active, url)
        bench.lab.stop(plain, standby, active)
        held = list(_sockets(bench, broker, url))
    label = "cluster, 2 tokens: processor for a turn (floor: one gateway on PostgreSQL)"
    yield row(label, "µs", costs, 1.15)
    both = {"relay": costs["relay"], "ours": each(through, cost)["ours"]}
    yield row(f"{label}, client at another node", "µs", both, 1.2, note="both nodes together")
    late = [ours - own for ours, own in zip(first["ours"], first["relay"], strict=True)]
    yield row("cluster, 2 tokens: commits of PostgreSQL for a turn", "commits", {"ours": commits})
    yield row("cluster, 2 tokens: write-ahead log of PostgreSQL for a turn", "KiB", {"ours": logged})
    yield row("cluster: first token through another node, later by", "ms", {"ours": late}, 8, absolute=True)
    yield row(
        "cluster: idle memory more than that of one gateway",
        "MiB",
        {"ours": [idle[0] - idle[1]]},
        15,
        absolute=True,
    )
    yield from held


def _sockets(bench: Bench, broker: Broker, url: str) -> Iterator[Row]:
    """Memory of clients that are connected to a node that stands by and say nothing, on both nodes."""
    count = 2_000 if bench.quick else 10_000
    label = f"cluster: an idle websocket, of {count:,}, at a node that stands by"
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit < count + 200:
        yield Row(
            label, "KiB", None, goal=24, absolute=True, note=f"not measured: {limit} open files at most"
        )
        return
    plain = bench.lab.gateway()
    active, standby = (_node(bench, broker, url, name) for name in ("three", "four"))
    time.sleep(2.0)
    direct = _held(bench, count, plain)[0]
    through = _held(bench, count, standby, active)
    bench.lab.stop(plain, standby, active)
    yield row(label, "KiB", {"ours": [through[0]]}, 24, absolute=True)
    works = {"ours": [through[1]], "relay": [direct]}
    yield row(f"{label}: on the active node (floor: connected there)", "KiB", works, 1.2)


def _held(bench: Bench, count: int, *servers: Process) -> list[float]:
    """Return the KiB that each server holds for each of so many silent clients of the first one."""
    warm = bench.lab.load(servers[0], kind="idle", clients=50)
    warm.measure()
    before = [procfs.rss_bytes(server.pid) for server in servers]
    load = bench.lab.load(servers[0], kind="idle", clients=count)
    load.measure()
    after = [procfs.rss_bytes(server.pid) for server in servers]
    load.stop()
    warm.stop()
    return [(now - then) / count / 1024 for now, then in zip(after, before, strict=True)]


def work_of(bench: Bench, node: Process, url: str) -> tuple[list[float], list[float]]:
    """Return, for each round, the commits and the KiB of write-ahead log that a turn costs PostgreSQL."""
    query = text(
        "SELECT xact_commit, pg_current_wal_insert_lsn() - '0/0' FROM pg_stat_database "
        "WHERE datname = current_database()"
    )
    commits: list[float] = []
    logged: list[float] = []
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    load = bench.lab.load(node, kind="talk", seconds=_COUNTED_SECONDS, mode="s02", clients=200)
    with engine.connect() as connection:
        for _ in range(bench.rounds):
            before = connection.execute(query).one()
            turns = load.measure().turns
            after = connection.execute(query).one()
            commits.append(float(after[0] - before[0]) / turns)
            logged.append(float(after[1] - before[1]) / turns / 1024)
    load.stop()
    engine.dispose()
    return commits, logged


def takeover(bench: Bench) -> Iterator[Row]:
    """From the end of the active node until a client of another one is served."""
    if not (SERVER and _PROGRAM):
        yield Row("takeover", "s", None, note="not measured: no PostgreSQL, or no RabbitMQ")
        return
    seconds: dict[signal.Signals, list[float]] = defaultdict(list)
    with database() as url, _broker() as broker:
        names = iter(f"node-{number}" for number in range(100))
        active = _node(bench, broker, url, next(names))
        plan = [*([signal.SIGKILL] * (3 if bench.quick else 9)), signal.SIGSTOP, signal.SIGTERM]
        for how in plan:
            standby = _node(bench, broker, url, next(names))
            time.sleep(2.0)  # a standby that has just subscribed first looks whether the owner lives
            begun = time.monotonic()
            kill(active.pid, how)
            _until_served(standby)
            seconds[how].append(time.monotonic() - begun)
            bench.lab.kill(active)
            active = standby
        bench.lab.stop(active)
    killed = seconds[signal.SIGKILL]
    label = "cluster: until another node serves"
    yield row(f"{label}, after kill -9, p50", "s", {"ours": killed}, 0.5, absolute=True)
    yield row(f"{label}, after kill -9, longest", "s", {"ours": [max(killed)]}, 2.0, absolute=True)
    yield row(f"{label}, after SIGSTOP", "s", {"ours": seconds[signal.SIGSTOP]}, 15.0, absolute=True)
    yield row(f"{label}, after SIGTERM", "s", {"ours": seconds[signal.SIGTERM]}, absolute=True)


@contextmanager
def _broker() -> Iterator[Broker]:
    with TemporaryDirectory(prefix="bench-rabbit-") as folder:
        broker = Broker(_PROGRAM, Path(folder))
        broker.start()
        try:
            yield broker
        finally:
            broker.kill()


def _node(bench: Bench, broker: Broker, url: str, name: str) -> Process:
    """A node. It works if it is the first; else it stands by."""
    shared = bench.lab.folder / f"shared-{broker.port}"
    shared.mkdir(exist_ok=True)
    folder = bench.lab.folder / f"{name}-{broker.port}"
    folder.mkdir()
    tables = f'[store]\nurl = "{url}"\n[cluster]\nurl = "{broker.url}"\nname = "{name}"\n'
    return bench.lab.gateway(folder=folder, data=shared, tables=tables, tree=TREE)


def _until_served(node: Process) -> None:
    """Wait until a node's address answers a request with the name of no other node."""
    deadline = time.monotonic() + _FOLLOWED_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{node.address}/api/status", timeout=_FOLLOWED_SECONDS) as answer:
                json.load(answer)
                return
        except OSError:
            time.sleep(0.005)
    raise RuntimeError("no node took over")


CLUSTER_FIGURES: dict[str, Callable[[Bench], Iterator[Row]]] = {"cluster": cluster, "takeover": takeover}
"""By the names that ``--only`` takes."""
