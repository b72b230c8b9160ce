"""The figures: what is measured, against which floor, and what counts as met."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from processes import TREE, Lab, Load, Process, Result

MIB = 1024 * 1024


Rounds = Mapping[str, Sequence[float]]
"""What was measured in each round, of the floor (``relay``), of ours, and of the other checkout."""


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
    other: float | None = None
    """The value of the checkout that ``--against`` names."""
    rounds: Rounds = field(default_factory=dict[str, Sequence[float]])
    failed: bool = False
    """Whether the measurement itself failed."""

    @property
    def ratio(self) -> float | None:
        """Ours as a multiple of the floor."""
        return self._multiple("relay", self.floor)

    @property
    def change(self) -> float | None:
        """Ours as a multiple of the other checkout's."""
        return self._multiple("other", self.other)

    def _multiple(self, name: str, value: float | None) -> float | None:
        """Compare within each round: a machine is faster in some rounds than in others."""
        if name in self.rounds:
            return median(a / b for a, b in zip(self.rounds["ours"], self.rounds[name], strict=True))
        return None if self.ours is None or not value else self.ours / value

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none, or what it takes is not installed."""
        if self.failed:
            return False
        value = self.ours if self.absolute else self.ratio
        if self.goal is None or value is None:
            return None
        return value >= self.goal if self.at_least else value <= self.goal


def row(
    figure: str,
    unit: str,
    rounds: Rounds,
    goal: float | None = None,
    *,
    at_least: bool = False,
    absolute: bool = False,
    note: str = "",
) -> Row:
    """Return the figure of some rounds: their medians, and the medians of their ratios."""
    ours, floor, other = (
        median(rounds[name]) if name in rounds else None for name in ("ours", "relay", "other")
    )
    return Row(figure, unit, ours, floor, goal, at_least, absolute, note, other, rounds)


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
    against: Path | None = None
    """Another checkout, whose gateway is measured in the same rounds as ours."""

    @property
    def trees(self) -> dict[str, Path]:
        """The checkouts whose gateways are measured."""
        return {"ours": TREE} if self.against is None else {"ours": TREE, "other": self.against}

    def gateways(self, **settings: Any) -> dict[str, Process]:
        """Start the gateway of each checkout."""
        return {name: self.lab.gateway(tree=tree, **settings) for name, tree in self.trees.items()}

    def servers(self, **settings: Any) -> dict[str, Process]:
        """Start the floor and the gateways."""
        return {"relay": self.lab.relay(), **self.gateways(**settings)}

    def talks(self, servers: dict[str, Process], **plan: object) -> dict[str, list[Result]]:
        """Let people talk to servers in turns, so many rounds."""
        plan = {"kind": "talk", "seconds": self.seconds, **plan}
        loads = {name: self.lab.load(server, **plan) for name, server in servers.items()}
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


def each(results: Mapping[str, Sequence[Result]], value: Callable[[Result], float]) -> Rounds:
    """Return a value of each round of each server."""
    return {name: [value(result) for result in seen] for name, seen in results.items()}


def rate(result: Result) -> float:
    return result.turns / result.seconds


def cost(result: Result) -> float:
    """Microseconds of the server's processor for each turn."""
    if not result.turns:
        raise RuntimeError("no turn ended while it was measured")
    return result.cpu / result.turns * 1e6


def _busy(results: dict[str, list[Result]]) -> str:
    """How busy the server's core was: a floor that waits for its load is not saturated."""
    shares = (middle(results[name], lambda r: r.cpu / r.seconds) for name in ("ours", "relay"))
    return "core busy {:.0%}, floor's {:.0%}".format(*shares)


def saturated(bench: Bench) -> Iterator[Row]:
    """200 sessions that never pause, with answers of 32 and of 2 tokens."""
    servers = bench.servers()
    if bench.rival is not None:
        servers["rival"] = bench.lab.nonebot(bench.rival)
    for tokens, goal in ((32, 1.45), (2, 2.4)):
        results = bench.talks(servers, mode=f"s{tokens:02}", clients=200)
        yield from _saturated_rows(tokens, goal, results)
    bench.lab.stop(*servers.values())


def _saturated_rows(tokens: int, goal: float, results: dict[str, list[Result]]) -> Iterator[Row]:
    label = f"saturated, 200 sessions, {tokens} tokens"
    costs, rates = each(results, cost), each(results, rate)
    yield row(f"{label}: processor for a turn", "µs", costs, goal)
    yield row(label, "turns/s", rates, 0.5, at_least=True, note=_busy(results))
    if tokens > 2:
        tokenwise = each(results, lambda r: cost(r) / tokens)
        yield row("processor for a streamed token", "µs", tokenwise, 2.0)
    label = f"{label}: processor for a turn (floor: NoneBot2)"
    if "rival" in costs:
        yield row(label, "µs", {**costs, "relay": costs["rival"]}, 1.0)
    else:
        yield Row(label, "µs", None, note="not measured: NoneBot2 could not be installed")


def trail(bench: Bench) -> Iterator[Row]:
    """Turns of 2 tokens whose path is stored, and the same without."""
    servers = {
        "relay": bench.lab.gateway(tables='[store]\ntrail = "off"'),
        "ours": bench.lab.gateway(tables='[store]\ntrail = "full"'),
    }
    results = bench.talks(servers, mode="s02", clients=200)
    bench.lab.stop(*servers.values())
    label = "a turn of 2 tokens with its trail (floor: without)"
    yield row(label, "µs", each(results, cost), 1.05, note="processor for a turn")


def first_token(bench: Bench) -> Iterator[Row]:
    """What is added to the model's own time before the first token is there."""
    servers = bench.servers()
    one = bursts(bench, servers, clients=1, mode="p04", messages=10)
    many = bursts(bench, servers, clients=200, mode="p40", messages=1)
    bench.lab.stop(*servers.values())
    shown = each(one, lambda r: median(r.from_model) * 1e3)
    asked = each(one, lambda r: median(r.from_send) * 1e3)
    crowd = each(many, lambda r: median(r.from_send) * 1e3)
    last = each(many, lambda r: quantiles(r.from_send, n=100)[98] * 1e3)
    yield row("first token after the model sent it, 1 session", "ms", shown, 3.0, absolute=True)
    yield row("first token after the message, 1 session", "ms", asked, note="a commit in it")
    yield row("first token after the message, 200 at once: p50", "ms", crowd, 2.0)
    yield row("first token after the message, 200 at once: p99", "ms", last, 60, absolute=True)


def streams(bench: Bench) -> Iterator[Row]:
    """200 websockets with 50 tokens/s each, which begin at different times."""
    servers = bench.servers()
    results = bench.talks(servers, mode="q99", clients=200, spread=2.0, warm=0.1)
    bench.lab.stop(*servers.values())
    label = "200 streams of 50 tokens/s"
    yield row(f"{label}: processor for a token", "µs", each(results, lambda r: r.cpu / r.tokens * 1e6), 1.35)
    late = each(results, lambda r: quantiles(r.late, n=100)[98] * 1e3)
    yield row(f"{label}: a token's latency, p99", "ms", late, note=_busy(results))


def parallel(bench: Bench) -> Iterator[Row]:
    """100 sessions at once with a model that takes 0.5 s for 40 tokens."""
    servers = bench.servers()
    results = bursts(bench, servers, clients=100, mode="p40", messages=1)
    bench.lab.stop(*servers.values())
    longest = each(results, lambda r: max(r.final))
    typical = each(results, lambda r: median(r.final))
    label = "100 at once, model of 0.5 s"
    yield row(f"{label}: p50", "s", typical, 0.65, absolute=True)
    yield row(f"{label}: longest", "s", longest, 0.65, absolute=True)


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
    results: dict[str, list[Result]] = {}
    for _ in range(bench.rounds):
        servers = bench.servers()
        for name, server in servers.items():
            mode = "ack" if name == "relay" else "#!h00"
            load = bench.lab.load(server, kind="accept", mode=mode, clients=64, sessions=4, messages=144)
            results.setdefault(name, []).append(load.measure())
            load.stop()
            bench.lab.kill(server)  # or it would wait for the answers
    rates, costs = each(results, rate), each(results, cost)
    yield row("durable accept, 64 senders", "1/s", rates, 9000, at_least=True, absolute=True)
    yield row("durable accept, 64 senders: processor for each", "µs", costs)


FIGURES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "saturated": saturated,
    "trail": trail,
    "first": first_token,
    "streams": streams,
    "parallel": parallel,
    "accept": accept,
}
