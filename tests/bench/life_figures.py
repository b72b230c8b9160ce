"""The figures of a gateway's life: its start, its memory, and what a turn costs after many others."""

from __future__ import annotations

import json
import resource
import sqlite3
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any

import procfs
from figures import MIB, Bench, Row, cost, middle, row
from processes import Process

KIB = 1024
_START = 2.97
WITH_SQLALCHEMY = "without SQLAlchemy ≤ {}"
"""The goals are those of a gateway that uses it; the note says what it should need without."""
SETTLED_SECONDS = 1.0
"""What is loaded in the background after the start is there by then."""


def sockets(bench: Bench) -> Iterator[Row]:
    """Memory of connected clients that say nothing."""
    count = 10_000
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if limit < count + 200:
        note = f"not measured: the limit of open files is {limit}, too low for {count:,} sockets"
        yield Row("an idle websocket", "KiB", None, goal=20, absolute=True, note=note)
        return
    each = {}
    for name, server in (("relay", bench.lab.relay()), ("ours", bench.lab.gateway())):
        warm = bench.lab.load(server, kind="idle", clients=50)
        before = warm.measure().rss
        load = bench.lab.load(server, kind="idle", clients=count)
        each[name] = (load.measure().rss - before) / count / KIB
        load.stop()
        warm.stop()
        bench.lab.stop(server)
    yield Row(f"an idle websocket, of {count:,}", "KiB", each["ours"], each["relay"], 20, absolute=True)


def start(bench: Bench) -> Iterator[Row]:
    """From the command to the line that says it is ready."""
    folders = {name: bench.lab.folder / f"start-{name}" for name in bench.trees}
    for name, tree in bench.trees.items():
        bench.lab.compile(bench.plain, tree)
        folders[name].mkdir()
        bench.lab.stop(_started(bench, name, folder=folders[name]))
    fresh: dict[str, list[float]] = defaultdict(list)
    again: dict[str, list[float]] = defaultdict(list)
    for _ in range(max(bench.rounds, 5)):
        for name in ("relay", *bench.trees):
            for seen, folder in ((fresh, None), (again, folders.get(name))):
                server = _started(bench, name, folder=folder)
                seen[name].append(server.start_seconds)
                bench.lab.stop(server)
    fresh["relay"] = again["relay"]  # it has no database
    yield row("start to ready, new database", "s", fresh, _START, note=WITH_SQLALCHEMY.format("2.35 x"))
    yield row("start to ready", "s", again, _START, note=WITH_SQLALCHEMY.format("2.35 x"))


def _started(bench: Bench, name: str, **settings: Any) -> Process:
    """Start the floor, or the gateway of a checkout with what users install."""
    if name == "relay":
        return bench.lab.relay()
    return bench.lab.gateway(tree=bench.trees[name], python=bench.plain, **settings)


def idle(bench: Bench) -> Iterator[Row]:
    """Memory a second after the start, and after two turns."""
    before: dict[str, list[float]] = defaultdict(list)
    after: dict[str, list[float]] = defaultdict(list)
    for _ in range(3):
        for name in ("relay", *bench.trees):
            server = _started(bench, name)
            time.sleep(SETTLED_SECONDS)
            before[name].append(procfs.rss_bytes(server.pid) / MIB)
            load = bench.lab.load(server, kind="burst", mode="s32", messages=2)
            after[name].append(load.measure().rss / MIB)
            load.stop()
            bench.lab.stop(server)
    note = WITH_SQLALCHEMY
    yield row("idle memory", "MiB", before, 73, absolute=True, note=note.format("68"))
    yield row("memory after two turns", "MiB", after, 76, absolute=True, note=note.format("70"))


def first_turn(bench: Bench) -> Iterator[Row]:
    """How long the first turn after the start stops all others, and what it leaves in memory.

    The longest ping is that of the best of some starts: what the turn does happens in each, and what else
    runs on the machine does not.
    """
    stalls: dict[str, list[float]] = defaultdict(list)
    grown: dict[str, list[float]] = defaultdict(list)
    idling: list[float] = []
    for _ in range(max(bench.rounds, 5)):
        for name in ("relay", *bench.trees):
            server = _started(bench, name)
            load = bench.lab.load(server, kind="stall", mode="s32", seconds=SETTLED_SECONDS)
            result = load.measure()
            stalls[name].append(result.stalls[1] * 1e3)
            grown[name].append(result.rss / MIB)
            if name == "ours":
                idling.append(result.stalls[0] * 1e3)
            load.stop()
            bench.lab.stop(server)
    least = {name: [min(values)] for name, values in stalls.items()}
    note = f"the least of {len(idling)} starts; before it: {min(idling):.1f}"
    yield row("first turn after the start: longest ping", "ms", least, 5, absolute=True, note=note)
    yield row("first turn after the start: memory", "MiB", grown, 1, absolute=True)


def sessions(bench: Bench) -> Iterator[Row]:
    """A message costs the same with 10 sessions and with 10,000; ten talk at a time in both."""
    servers = {"relay": bench.lab.gateway(history=1_000), "ours": bench.lab.gateway(history=1_000)}
    common = {"kind": "talk", "mode": "s02", "clients": 10, "seconds": bench.seconds, "fresh": False}
    loads = {
        "relay": bench.lab.load(servers["relay"], sessions=1, fill=20, **common),
        "ours": bench.lab.load(servers["ours"], sessions=1000, fill=1000, **common),
    }
    results = bench.rounds_of(loads)
    bench.lab.stop(*servers.values())
    few, many = middle(results["relay"], cost), middle(results["ours"], cost)
    yield Row("a message among 10,000 sessions (floor: 10)", "µs", many, few, 1.3)


def history(bench: Bench) -> Iterator[Row]:
    """A message costs the same with 50 messages of history sent to the model and with 1,000."""
    servers = {"relay": bench.lab.gateway(history=1_000), "ours": bench.lab.gateway(history=14_000)}
    plan = {
        "kind": "talk",
        "mode": "s02",
        "clients": 10,
        "seconds": bench.seconds,
        "fresh": False,
        "fill": 500,
    }
    loads = {name: bench.lab.load(server, **plan) for name, server in servers.items()}
    results = bench.rounds_of(loads)
    bench.lab.stop(*servers.values())
    short, long = middle(results["relay"], cost), middle(results["ours"], cost)
    yield Row("a message with 1,000 of history (floor: 50)", "µs", long, short, 1.3)


def many_turns(bench: Bench) -> Iterator[Row]:
    """10,000 turns in 100 sessions."""
    seen = [_aged(bench, clients=100, messages=5, slices=20) for _ in range(3)]
    label = "10,000 turns in 100 sessions"
    yield _aged_row(f"{label}: the last 1,000 (floor: the first)", seen, 1.1)
    grown = {name: [one[name].grown for one in seen] for name in bench.trees}
    note = f"from {median(one['ours'].before for one in seen):.0f} MiB after the first 1,000"
    yield row(f"{label}: memory, more than before", "MiB", grown, 20, absolute=True, note=note)


def growth(bench: Bench) -> Iterator[Row]:
    """400 turns of one session."""
    seen = [_aged(bench, clients=1, messages=25, slices=16) for _ in range(3)]
    yield _aged_row("400 turns of one session: the last 50 (floor: the first)", seen, 1.3)


def long_chat(bench: Bench) -> Iterator[Row]:
    """10,000 messages of one chat, whose model has a window of 32,000 tokens. Any that fails ends this."""
    folder = bench.lab.folder / "long-chat"
    folder.mkdir()
    server = bench.lab.gateway(folder=folder, tables='[models."bench/fake"]\ncontext_window = 32000')
    load = bench.lab.load(server, kind="burst", mode="s32", clients=1, messages=500, fresh=False)
    costs = [cost(load.measure()) for _ in range(10)]
    load.stop()
    bench.lab.stop(server)
    with closing(sqlite3.connect(folder / "trunkline.db")) as database:
        where = """FROM messages WHERE extra LIKE '%"custom_type":"summary"%'"""
        (made,) = database.execute(f"SELECT count(*) {where}").fetchone()
        (failed,) = database.execute("SELECT count(*) FROM parts WHERE type = 'error'").fetchone()
    note = f"processor for a turn; {made} summaries, {failed} errors"
    label = "10,000 messages of one chat: the last 1,000 (floor: the second 1,000)"
    yield Row(label, "µs", costs[-1], costs[1], 1.3, note=note)


def session_list(bench: Bench) -> Iterator[Row]:
    """The first page of the list of a channel's sessions, of 100,000 sessions and of 100."""
    servers: dict[str, Process] = {}
    for name, count in (("relay", 100), ("ours", 100_000)):
        folder = bench.lab.folder / f"list-{name}"
        folder.mkdir()
        bench.lab.stop(bench.lab.gateway(folder=folder))
        with closing(sqlite3.connect(folder / "trunkline.db")) as database:
            # The list must find the sessions of a channel among those of another.
            database.executemany(
                "INSERT INTO sessions (id, channel, owner, address, title, seq, messages, input_tokens,"
                " output_tokens, context_from, created_at, updated_at, indexed_title)"
                " VALUES (?1, ?2, 'u', '{\"channel\":\"websocket\"}', ?1, 1, 0, 0, 0, 0, ?3, ?3, ?1)",
                ((f"s{n}", "other" if n % 3 else "websocket", n) for n in range(count * 3)),
            )
            database.commit()
        servers[name] = bench.lab.gateway(folder=folder)
    took: dict[str, list[float]] = defaultdict(list)
    for _ in range(bench.rounds):
        for name, server in servers.items():
            url = f"http://127.0.0.1:{server.port}/api/sessions?channel=websocket&pinned=false&limit=100"
            each: list[float] = []
            for _ in range(20):
                begun = time.perf_counter()
                with urllib.request.urlopen(url) as response:
                    assert len(json.load(response)["sessions"]) == 100
                each.append((time.perf_counter() - begun) * 1e3)
            took[name].append(median(each))
    bench.lab.stop(*servers.values())
    yield row("a page of 100,000 sessions (floor: of 100)", "ms", took, 1.5)
    yield row("a page of 100,000 sessions", "ms", took, 50, absolute=True)


@dataclass
class Aged:
    """A gateway that has worked for a while. Microseconds for each turn, and MiB."""

    first: list[float]
    last: list[float]
    before: float
    grown: float


def _aged(bench: Bench, *, clients: int, messages: int, slices: int) -> dict[str, Aged]:
    """Compare the last two slices of many with the first two of another gateway, in turns."""
    plan = {"kind": "burst", "mode": "s02", "fresh": False}
    aged = {}
    for name in bench.trees:
        old, new = _started(bench, name), _started(bench, name)
        loads = [bench.lab.load(server, clients=clients, messages=messages, **plan) for server in (old, new)]
        warm = bench.lab.load(new, messages=1, **plan)
        warm.measure()
        results = [loads[0].measure() for _ in range(slices - 2)]
        first, last = [], []
        for _ in range(2):
            first.append(cost(loads[1].measure()))
            results.append(loads[0].measure())
            last.append(cost(results[-1]))
        before = results[1].rss / MIB
        aged[name] = Aged(first, last, before, results[-1].rss / MIB - before)
        for load in (*loads, warm):
            load.stop()
        bench.lab.stop(old, new)
    return aged


def _aged_row(label: str, seen: Sequence[Mapping[str, Aged]], goal: float) -> Row:
    rounds = {name: [cost for one in seen for cost in one[name].last] for name in seen[0]}
    rounds["relay"] = [cost for one in seen for cost in one["ours"].first]
    return row(label, "µs", rounds, goal, note="processor for a turn")


LIFE_FIGURES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "start": start,
    "idle": idle,
    "first_turn": first_turn,
    "sockets": sockets,
    "sessions": sessions,
    "history": history,
    "many_turns": many_turns,
    "growth": growth,
    "long_chat": long_chat,
    "session_list": session_list,
}
"""By the names that ``--only`` takes."""
