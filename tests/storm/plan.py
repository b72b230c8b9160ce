"""What a storm is to be like, how far it is, and what it came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verdict import Verdict

_KILLS_PER_SECOND = 80 / 60
_NODES_PER_SECOND = 12 / 60
_FAULT_SECONDS = 30.0
"""Seconds of a storm for which each kind of fault has to happen once more: RabbitMQ takes 8 s to start."""
UPGRADED = "cluster upgraded node by node"
PASSED_ON = "token of a killed node passed on"
KEPT = "active node kept its place while RabbitMQ restarted"
_ONCE = (UPGRADED, PASSED_ON, KEPT)
"""What has to happen once in a storm with nodes, however short or long it is."""
_LONG_ENOUGH = 45
"""Seconds from which on a storm has to kill at every failpoint."""


@dataclass(frozen=True)
class Plan:
    """What a storm is to be like. ``rate`` is messages per second in all, ``faults`` a share, and so is
    ``files``: of the messages that carry a file, and of those that ask for one.
    """

    store: str
    seconds: float
    rate: float
    faults: float
    seed: int
    planted: str | None = None
    channels: Sequence[str] = ("websocket", "line")
    files: float = 0.1
    drain: float = 90.0
    """Seconds that the calm after it may take: what is owed is paid at the platforms' rates."""
    plugins: bool = False
    """Whether confined plugins run, and are replaced."""
    nodes: int = 1
    """How many nodes of a cluster there are; 1 for a gateway without a cluster."""

    @property
    def fewest_kills(self) -> float:
        """How often it has to kill to prove anything. A node that was killed joins again after 3 s."""
        return self.seconds * (_KILLS_PER_SECOND if self.nodes == 1 else _NODES_PER_SECOND)

    @property
    def fewest_of_each(self) -> int:
        """How often each kind of fault has to happen to nodes and servers."""
        return 0 if self.nodes == 1 else round(self.seconds / _FAULT_SECONDS)

    def fewest(self, fault: str) -> int:
        """Return how often a fault has to happen."""
        return 1 if fault in _ONCE else self.fewest_of_each

    @property
    def needs_answers_in_outages(self) -> bool:
        """Return whether answers have to end while RabbitMQ is away, which happens often enough for that."""
        return self.seconds >= _LONG_ENOUGH and self.nodes > 1 and "websocket" in self.channels

    @property
    def needs_every_failpoint(self) -> bool:
        """Return whether the storm only passes if it killed at each failpoint."""
        return self.seconds >= _LONG_ENOUGH and self.nodes == 1


@dataclass
class Progress:
    """How far it is."""

    phase: str = "starting"
    elapsed: float = 0.0
    sent: int = 0
    acked: int = 0
    kills: int = 0
    lives: int = 0
    points: str = ""
    """How many of the failpoints were hit, of how many."""


@dataclass
class Outcome:
    """What a storm came to."""

    plan: Plan
    engine: str
    messages: int
    said: Counter[str]
    """How many of the messages were written on each platform."""
    acked: int
    kills: int
    lives: int
    faults: Mapping[str, int]
    """How often each kind of fault of nodes and servers happened."""
    exits: Mapping[int, int]
    """How often nodes ended by themselves and were started again, by exit status."""
    answers_in_outages: int
    """How many answers clients saw end while RabbitMQ was away."""
    revision: str | None
    """The revision of the database in the end."""
    hits: dict[str, int]
    drained: bool
    drain_seconds: float
    exit_status: int | None
    unexpected: list[str]
    verdict: Verdict
    failures: int = 0
    """How many answers failed, because a call of the model did."""
    summaries: int = 0
    """How many summaries of conversations were made."""
    notices: int = 0
    """How many notices were announced."""
    inquiries: int = 0
    """How many inquiries were asked."""
    choices: int = 0
    """How many questions the model asked."""
    tasks: int = 0
    """How many nested runs there were."""
    blocked: int = 0
    """How many calls a plugin blocked."""
    exchanged: int = 0
    """How often a plugin was replaced while turns ran."""
    ticks: int = 0
    """At how many times the job of a plugin ran."""
    changes: int = 0
    """How many edits, repetitions and switches of versions were made."""
