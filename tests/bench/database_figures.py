"""The figures of databases: PostgreSQL beside SQLite, far away, and after a crash.

``TRUNKLINE_TEST_POSTGRES_URL`` names a PostgreSQL server, as for the tests; it runs where it likes.
"""

from __future__ import annotations

import os
import re
import time
import urllib.request
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median

from figures import Bench, Row, bursts, cost, each, rate, row
from processes import Process
from sqlalchemy import create_engine, make_url, text

SERVER = os.environ.get("TRUNKLINE_TEST_POSTGRES_URL", "")
_NONE = "not measured: no PostgreSQL"
_UNANSWERED = 1000
_TURNS = re.compile(r"^trunkline_turns_total{(.*)} ([0-9.e+]+)$", re.MULTILINE)
_WAITING = re.compile(r"^trunkline_waiting ([0-9.e+]+)$", re.MULTILINE)
_PATIENCE_SECONDS = 90.0


def postgres(bench: Bench) -> Iterator[Row]:
    """A turn on PostgreSQL, and on SQLite."""
    label = "PostgreSQL, 2 tokens: processor for a turn (floor: SQLite)"
    if not SERVER:
        yield Row(label, "µs", None, note=_NONE)
        return
    with ExitStack() as stack:
        servers = {"relay": bench.lab.gateway()}
        for name, tree in bench.trees.items():
            store = _store(stack.enter_context(database()))
            servers[name] = bench.lab.gateway(tree=tree, tables=store)
        results = bench.talks(servers, mode="s02", clients=200)
        bench.lab.stop(*servers.values())
    yield row(label, "µs", each(results, cost), 1.15)


def postgres_far(bench: Bench) -> Iterator[Row]:
    """PostgreSQL behind a network: turns of many sessions, and the end of an answer of one."""
    for milliseconds, turns, end in ((5, 900, 15), (20, 800, 50)):
        label = f"PostgreSQL at {milliseconds} ms"
        if not SERVER:
            yield Row(label, "turns/s", None, note=_NONE)
            continue
        with ExitStack() as stack:
            proxy = _far(bench, milliseconds)
            servers = {
                name: bench.lab.gateway(tree=tree, tables=_store(stack.enter_context(database()), proxy))
                for name, tree in bench.trees.items()
            }
            # Turns come in waves: a commit at this distance has many of them.
            many = bench.talks(servers, mode="s02", clients=200, seconds=4.0)
            one = bursts(bench, servers, clients=1, mode="q08", messages=5)
            bench.lab.stop(*servers.values(), proxy)
        note = f"{median(each(many, cost)['ours']):.0f} µs of processor each"
        yield row(
            f"{label}, 2 tokens", "turns/s", each(many, rate), turns, at_least=True, absolute=True, note=note
        )
        ended = each(one, lambda r: median(r.ended) * 1e3)
        yield row(f"{label}: complete after the last token", "ms", ended, end, absolute=True)


def recovery(bench: Bench) -> Iterator[Row]:
    """A gateway is killed with 1,000 unanswered messages, and the next one answers them."""
    relay = bench.lab.relay()
    floor = bursts(bench, {"relay": relay}, clients=_UNANSWERED, mode="w20", messages=1)["relay"]
    bench.lab.stop(relay)
    own = [max(result.final) for result in floor]
    for where in ("SQLite", "PostgreSQL", "PostgreSQL at 5 ms"):
        label = f"recovery of 1,000 messages, {where}"
        if where != "SQLite" and not SERVER:
            yield Row(label, "s", None, note=_NONE)
            continue
        ready: dict[str, list[float]] = defaultdict(list)
        answered: dict[str, list[float]] = defaultdict(list)
        for _ in range(1 if bench.quick else 3):
            for name in bench.trees:
                seconds = _recovered(bench, name, where)
                ready[name].append(seconds[0])
                answered[name].append(seconds[1])
        yield row(f"{label}: ready", "s", ready, 1.5, absolute=True)
        answered["relay"] = [median(own)] * len(answered["ours"])
        yield row(f"{label}: answered after that", "s", answered, 1.5, note="floor: the model's own time")


def _recovered(bench: Bench, name: str, where: str) -> Sequence[float]:
    """Return the seconds from the start to ready, and from there until everything is answered."""
    tree = bench.trees[name]
    folder = bench.lab.folder / f"recovery-{uuid.uuid4().hex}"
    folder.mkdir()
    with ExitStack() as stack:
        proxy = _far(bench, 5) if where.endswith("ms") else None
        url = None if where == "SQLite" else stack.enter_context(database())
        killed = bench.lab.gateway(tree=tree, folder=folder, tables=_store(url))
        load = bench.lab.load(killed, kind="accept", mode="#!h00", clients=10, sessions=100, messages=100)
        assert load.measure().turns == _UNANSWERED
        bench.lab.kill(killed)
        load.stop()
        model = bench.lab.start("model.py", "w20")
        gateway = bench.lab.gateway(tree=tree, folder=folder, tables=_store(url, proxy), model=model)
        took = _until_answered(gateway)
        bench.lab.stop(gateway, model, *([proxy] if proxy else []))
    return gateway.start_seconds, took


def _until_answered(gateway: Process) -> float:
    """Return the seconds until all messages are answered, each once, and all without an error."""
    begun = time.monotonic()
    while time.monotonic() < begun + _PATIENCE_SECONDS:
        with urllib.request.urlopen(f"{gateway.address}/metrics", timeout=_PATIENCE_SECONDS) as answer:
            metrics = answer.read().decode()
        turns = {labels: float(count) for labels, count in _TURNS.findall(metrics)}
        waiting = _WAITING.search(metrics)
        assert waiting is not None
        if not float(waiting[1]) and sum(turns.values()) >= _UNANSWERED:
            if sum(turns.values()) > _UNANSWERED or any('outcome="end_turn"' not in each for each in turns):
                raise RuntimeError(f"turns after a crash: {turns}")
            return time.monotonic() - begun
        time.sleep(0.05)
    raise RuntimeError(f"{waiting[1]} messages are not answered; {turns}")


@contextmanager
def database() -> Iterator[str]:
    """The URL of a new, empty database, which is dropped afterwards."""
    name = f"trunkline_bench_{uuid.uuid4().hex}"
    engine = create_engine(
        make_url(SERVER).set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT"
    )
    try:
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        yield make_url(SERVER).set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        engine.dispose()


def _far(bench: Bench, milliseconds: int) -> Process:
    url = make_url(SERVER)
    place = str(url.host), str(url.port or 5432)
    return bench.lab.start("delays.py", *place, str(milliseconds / 1000))


def _store(url: str | None, proxy: Process | None = None) -> str:
    """The settings of a database; none are those of SQLite."""
    if url is None:
        return ""
    if proxy is not None:
        url = make_url(url).set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
    return f'[store]\nurl = "{url}"\n'


DATABASE_FIGURES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "postgres": postgres,
    "postgres_far": postgres_far,
    "recovery": recovery,
}
"""By the names that ``--only`` takes."""
