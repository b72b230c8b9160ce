"""How many people one active node serves, and what is full first when there are several clusters.

The costs of a turn and of a token are measured. A simulation of one core with these costs says how late
tokens are; a load that is measured, too, shows whether it promises more than there is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median, quantiles
from typing import NamedTuple

from cluster_figures import work_of
from database_figures import SERVER, database
from figures import Bench, Row, cost, row
from sqlalchemy import create_engine, text

_STREAMS = 100, 200
"""Streams with which the costs are measured, and those that the simulation has to foresee."""
_STREAM_TOKENS, _PACE = 99, 0.02
"""Tokens of an answer of the mode ``q99``, and the seconds between two. Each arrives by itself. A full node
merges those that wait, and needs a tenth for each."""
_FULL = 0.7
"""Share of a core up to which it counts as free enough."""
_SIMULATED_SECONDS = 60.0
_WRITERS = 8
_COMMITS = 2.0
"""Commits of a turn on a node with little to do, which shares none with other turns: its acceptance and its
outcome."""


class Costs(NamedTuple):
    """Seconds of processor for a turn without tokens, and for a token."""

    turn: float
    token: float


class Habit(NamedTuple):
    """What a person does again and again: ask, read the tokens of the answer, pause for some seconds."""

    tokens: int
    pause: float

    @property
    def seconds(self) -> float:
        return self.tokens * _PACE + self.pause


_ASKS_EACH_MINUTE = Habit(tokens=300, pause=54.0)
_NEVER_PAUSES = Habit(tokens=_STREAM_TOKENS, pause=0.0)


def busy(costs: Costs, habit: Habit, people: int) -> float:
    """Return the share of a core that so many people need."""
    return people * (costs.turn + habit.tokens * costs.token) / habit.seconds


def lateness(costs: Costs, habit: Habit, people: int, dice: random.Random) -> Sequence[float]:
    """Return the seconds from the arrival of each token until one core has passed it on, in order of arrival.

    A real gateway merges tokens that wait, and so does more when it is full.
    """
    arrivals: list[tuple[float, float]] = []
    for _ in range(people):
        reads = habit.tokens * _PACE
        pauses = dice.random() * habit.seconds > reads
        begin = dice.expovariate(1 / habit.pause) if pauses else -dice.uniform(0, reads)
        while begin < _SIMULATED_SECONDS:
            arrivals.append((begin, costs.turn))
            arrivals += ((begin + number * _PACE, costs.token) for number in range(habit.tokens))
            begin += reads + (dice.expovariate(1 / habit.pause) if habit.pause else 0)
    free, late = 0.0, list[float]()
    for arrived, takes in sorted(arrivals):
        if 0 <= arrived < _SIMULATED_SECONDS:
            free = max(free, arrived) + takes
            late.append(free - arrived)
    return late


def capacity(bench: Bench) -> Iterator[Row]:
    """People of one active node, and clusters of one PostgreSQL server."""
    gateway = bench.lab.gateway()
    server = {"ours": gateway}
    few, many = _STREAMS
    short = median(map(cost, bench.talks(server, mode="w20", clients=few, spread=2.0, seconds=4.0)["ours"]))
    paced = {"mode": "q99", "spread": 2.0, "warm": 0.1, "seconds": 4.0}
    long = median(map(cost, bench.talks(server, clients=few, **paced)["ours"]))
    streams = bench.talks(server, clients=many, **paced)["ours"]
    bench.lab.stop(gateway)
    token = (long - short) / (_STREAM_TOKENS - 2) / 1e6
    costs = Costs(short / 1e6 - 2 * token, token)
    dice = random.Random(1)
    yield Row("capacity: processor for a turn without tokens", "µs", costs.turn * 1e6)
    yield Row("capacity: processor for a token", "µs", costs.token * 1e6)
    expected = busy(costs, _NEVER_PAUSES, many)
    measured = [result.cpu / result.seconds for result in streams]
    rounds = {"ours": measured, "relay": [expected] * len(measured)}
    label = f"capacity: {many} streams of 50 tokens/s"
    yield row(f"{label}: share of a core (floor: as simulated)", "", rounds, 1.2)
    late = [_last(result.late) for result in streams]
    simulated = _last(lateness(costs, _NEVER_PAUSES, many, dice))
    yield row(f"{label}: a token's latency, p99", "ms", {"ours": late}, note=f"simulated: {simulated:.1f}")
    people = round(_FULL / busy(costs, _ASKS_EACH_MINUTE, 1))
    habit = f"{_ASKS_EACH_MINUTE.tokens} tokens once a minute"
    for share in (1.0, 1.3):
        crowd = round(people * share)
        note = f"a core busy {busy(costs, _ASKS_EACH_MINUTE, crowd):.0%}"
        yield Row(
            f"capacity: {crowd:,} people, {habit}: a token's latency, p99, simulated",
            "ms",
            _last(lateness(costs, _ASKS_EACH_MINUTE, crowd, dice)),
            note=note,
        )
    yield from _clusters(bench, people)


def _clusters(bench: Bench, people: int) -> Iterator[Row]:
    """What one PostgreSQL server has to do for several clusters, beside what it can do."""
    if not SERVER:
        yield Row("capacity: clusters on one PostgreSQL server", "", None, note="not measured: no PostgreSQL")
        return
    with database() as url:
        node = bench.lab.gateway(tables=f'[store]\nurl = "{url}"\n')
        logged = median(work_of(bench, node, url)[1])
        bench.lab.stop(node)
        possible = _commits(url, bench.seconds)
    turns = people / _ASKS_EACH_MINUTE.seconds
    for clusters in (1, 10, 100):
        yield Row(
            f"capacity: {clusters * people:,} people, clusters: {clusters}: commits of one PostgreSQL",
            "1/s",
            clusters * turns * _COMMITS,
            possible,
            note=f"floor: what it can do; {clusters * turns * logged / 1024:.1f} MiB/s of write-ahead log",
        )


def _commits(url: str, seconds: float) -> float:
    """Return how many small transactions a server commits in a second, with some connections."""

    def write(until: float) -> int:
        done = 0
        engine = create_engine(url)
        with engine.connect() as connection:
            while time.monotonic() < until:
                with connection.begin():
                    connection.execute(text("INSERT INTO capacity VALUES (1)"))
                done += 1
        engine.dispose()
        return done

    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE capacity (n integer)"))
    engine.dispose()
    with ThreadPoolExecutor(_WRITERS) as pool:
        return sum(pool.map(write, [time.monotonic() + seconds] * _WRITERS)) / seconds


def _last(late: Sequence[float]) -> float:
    return quantiles(late, n=100)[98] * 1e3


CAPACITY_FIGURES: dict[str, Callable[[Bench], Iterator[Row]]] = {"capacity": capacity}
"""By the names that ``--only`` takes."""
