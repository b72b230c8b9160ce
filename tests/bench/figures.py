"""The figures: what is measured, against which floor, and what counts as met."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import procfs
from processes import Lab, Load, Process, Result

KIB = 1024
MIB = 1024 * KIB


@dataclass
class Row:
    """One figure. ``goal`` bounds the ratio, or the value itself where ``absolute``; None only informs."""

    figure: str
    unit: str
    ours: float | None
    floor: float | None = None
    goal: float | None = None
    at_least: bool = False
    absolute: bool = False
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours as a multiple of the floor."""
        return None if self.ours is None or not self.floor else self.ours / self.floor

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none, or nothing could be measured."""
        value = self.ours if self.absolute else self.ratio
        if self.goal is None or value is None:
            return None
        return value >= self.goal if self.at_least else value <= self.goal


@dataclass
class Bench:
    """What a figure measures with."""

    lab: Lab
    rounds: int
    seconds: float
    rival: Path | None
    """The Python that has NoneBot2; None if it could not be installed."""
    plain: Path | None = None
    """The Python that has what users install; None stands for the one that runs this."""
    quick: bool = False
    """Whether what takes long is left out, or done less often."""

    def talks(self, servers: dict[str, Process], **plan: object) -> dict[str, list[Result]]:
        """Let people talk to servers in turns, so many rounds."""
        loads = {
            name: self.lab.load(server, kind="talk", seconds=self.seconds, **plan)
            for name, server in servers.items()
        }
        return self.rounds_of(loads)

    def rounds_of(self, loads: dict[str, Load]) -> dict[str, list[Result]]:
        """Measure with each load in turns, so many rounds, and disconnect them."""
        results: dict[str, list[Result]] = {name: [] for name in loads}
        for _ in range(self.rounds):
            for name, load in loads.items():
                results[name].append(load.measure())
        for load in loads.values():
            load.stop()
        return results


def middle(results: list[Result], value: Callable[[Result], float]) -> float:
    """The median of what the rounds have."""
    return median(map(value, results))


def _rate(result: Result) -> float:
    return result.turns / result.seconds


def _cost(result: Result) -> float:
    """Microseconds of the server's processor for each turn."""
    return result.cpu / result.turns * 1e6


def _busy(results: dict[str, list[Result]]) -> str:
    """How busy the server's core was: a floor that waits for its load is not saturated."""
    shares = (middle(results[name], lambda r: r.cpu / r.seconds) for name in ("ours", "relay"))
    return "core busy {:.0%}, floor's {:.0%}".format(*shares)


def saturated(bench: Bench) -> Iterator[Row]:
    """200 sessions that never pause, with answers of 32 and of 2 tokens."""
    servers = {"relay": bench.lab.relay(), "ours": bench.lab.gateway()}
    if bench.rival is not None:
        servers["rival"] = bench.lab.nonebot(bench.rival)
    for tokens in (32, 2):
        results = bench.talks(servers, mode=f"s{tokens:02}", clients=200)
        yield from _saturated_rows(tokens, results)
    bench.lab.stop(*servers.values())


def _saturated_rows(tokens: int, results: dict[str, list[Result]]) -> Iterator[Row]:
    ours, relay, rival = (results.get(name) for name in ("ours", "relay", "rival"))
    assert ours
    assert relay
    label = f"saturated, 200 sessions, {tokens} tokens"
    rate, cost = middle(ours, _rate), middle(ours, _cost)
    yield Row(label, "turns/s", rate, middle(relay, _rate), 0.5, at_least=True, note=_busy(results))
    per_second = 1e6 / cost, 1e6 / middle(relay, _cost)
    yield Row(label, "turns/CPU-s", *per_second, 0.5, at_least=True, note="no wait counts")
    if tokens > 2:
        floor = middle(relay, _cost) / tokens
        yield Row("processor for a streamed token", "µs", cost / tokens, floor, 2.0)
    if rival:
        yield Row(
            f"{label}: NoneBot2", "turns/CPU-s", 1e6 / cost, 1e6 / middle(rival, _cost), 1.0, at_least=True
        )
    else:
        yield Row(
            f"{label}: NoneBot2", "turns/CPU-s", None, note="not measured: NoneBot2 could not be installed"
        )


def first_token(bench: Bench) -> Iterator[Row]:
    """What is added to the model's own time before the first token is there."""
    servers = {"relay": bench.lab.relay(), "ours": bench.lab.gateway()}
    one = bursts(bench, servers, clients=1, mode="p04", messages=10)
    many = bursts(bench, servers, clients=200, mode="p40", messages=1)
    bench.lab.stop(*servers.values())
    shown = {name: middle(r, lambda r: median(r.from_model)) * 1e3 for name, r in one.items()}
    asked = {name: middle(r, lambda r: median(r.from_send)) * 1e3 for name, r in one.items()}
    crowd = {name: middle(r, lambda r: median(r.from_send)) * 1e3 for name, r in many.items()}
    yield Row(
        "first token after the model sent it, 1 session",
        "ms",
        shown["ours"],
        shown["relay"],
        3.0,
        absolute=True,
    )
    yield Row(
        "first token after the message, 1 session", "ms", asked["ours"], asked["relay"], note="a commit in it"
    )
    yield Row("first token after the message, 200 at once", "ms", crowd["ours"], crowd["relay"], 2.0)


def parallel(bench: Bench) -> Iterator[Row]:
    """100 sessions at once with a model that takes 0.5 s for 40 tokens."""
    servers = {"relay": bench.lab.relay(), "ours": bench.lab.gateway()}
    results = bursts(bench, servers, clients=100, mode="p40", messages=1)
    bench.lab.stop(*servers.values())
    longest = {name: middle(r, lambda r: max(r.final)) for name, r in results.items()}
    typical = {name: middle(r, lambda r: median(r.final)) for name, r in results.items()}
    label = "100 at once, model of 0.5 s"
    yield Row(f"{label}: p50", "s", typical["ours"], typical["relay"], 0.65, absolute=True)
    yield Row(f"{label}: longest", "s", longest["ours"], longest["relay"], 0.65, absolute=True)


def bursts(bench: Bench, servers: dict[str, Process], **plan: object) -> dict[str, list[Result]]:
    """So many rounds of everybody at once, after one that does not count."""
    loads = {name: bench.lab.load(server, kind="burst", **plan) for name, server in servers.items()}
    for load in loads.values():
        load.measure()
    return bench.rounds_of(loads)


def accept(bench: Bench) -> Iterator[Row]:
    """From sending to the acknowledgement, which says that the message is durable.

    The answers must not cost what is measured here, so the model never answers: the messages pile up in
    four sessions of each sender, 36 in each, below the usual bounds of 50 and 10,000. The floor is a
    relay that acknowledges at once.
    """
    results: dict[str, list[Result]] = {"relay": [], "ours": []}
    for _ in range(bench.rounds):
        servers = {"relay": bench.lab.relay(), "ours": bench.lab.gateway()}
        for name, server in servers.items():
            mode = "ack" if name == "relay" else "#!h00"
            load = bench.lab.load(server, kind="accept", mode=mode, clients=64, sessions=4, messages=144)
            results[name].append(load.measure())
            load.stop()
        bench.lab.stop(*servers.values())
    rates = {name: middle(r, _rate) for name, r in results.items()}
    cpu = middle(results["ours"], _cost)
    note = f"{cpu:.0f} µs of processor each"
    yield Row("durable accept, 64 senders", "1/s", rates["ours"], rates["relay"], 5000, True, True, note)


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
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, limit))
        warm = bench.lab.load(server, kind="idle", clients=50)
        before = warm.measure().rss
        load = bench.lab.load(server, kind="idle", clients=count)
        each[name] = (load.measure().rss - before) / count / KIB
        load.stop()
        warm.stop()
        bench.lab.stop(server)
    yield Row(f"an idle websocket, of {count:,}", "KiB", each["ours"], each["relay"], 20, absolute=True)


def start(bench: Bench) -> Iterator[Row]:
    """From the command to the line that says it is ready, and the memory then."""
    bench.lab.compile(None)
    seconds: dict[str, list[float]] = {"relay": [], "ours": [], "again": []}
    memory: dict[str, list[float]] = {"relay": [], "ours": [], "again": []}
    folder = bench.lab.folder / "start"
    folder.mkdir()
    kinds = {
        "relay": bench.lab.relay,
        "ours": bench.lab.gateway,
        "again": lambda: bench.lab.gateway(folder=folder),
    }
    bench.lab.stop(kinds["again"]())
    for _ in range(max(bench.rounds, 3)):
        for name, begin in kinds.items():
            server = begin()
            seconds[name].append(server.start_seconds)
            memory[name].append(procfs.rss_bytes(server.pid) / MIB)
            bench.lab.stop(server)
    floor = median(seconds["relay"])
    yield Row("start to ready, new database", "s", median(seconds["ours"]), floor, 1.0, absolute=True)
    yield Row("start to ready", "s", median(seconds["again"]), floor, 1.0, absolute=True)
    yield Row(
        "idle memory", "MiB", median(memory["again"]), median(memory["relay"]), 75e6 / MIB, absolute=True
    )


def sessions(bench: Bench) -> Iterator[Row]:
    """A message costs the same with 10 sessions and with 10,000; ten talk at a time in both."""
    servers = {"relay": bench.lab.gateway(window=2), "ours": bench.lab.gateway(window=2)}
    common = {"kind": "talk", "mode": "s02", "clients": 10, "seconds": bench.seconds, "fresh": False}
    loads = {
        "relay": bench.lab.load(servers["relay"], sessions=1, fill=20, **common),
        "ours": bench.lab.load(servers["ours"], sessions=1000, fill=1000, **common),
    }
    results = bench.rounds_of(loads)
    bench.lab.stop(*servers.values())
    few, many = middle(results["relay"], _cost), middle(results["ours"], _cost)
    yield Row("a message among 10,000 sessions (floor: 10)", "µs", many, few, 1.3)


def history(bench: Bench) -> Iterator[Row]:
    """A message costs the same with 10 messages of history sent to the model and with 1,000."""
    servers = {"relay": bench.lab.gateway(window=10), "ours": bench.lab.gateway(window=1000)}
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
    short, long = middle(results["relay"], _cost), middle(results["ours"], _cost)
    yield Row("a message with 1,000 of history (floor: 10)", "µs", long, short, 1.3)


FIGURES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "saturated": saturated,
    "first": first_token,
    "parallel": parallel,
    "accept": accept,
    "sockets": sockets,
    "start": start,
    "sessions": sessions,
    "history": history,
}
