"""The plan of a storm, its progress and its outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verdict import Verdict

_KILLS_PER_SECOND = 80 / 60
_NODES_PER_SECOND = 12 / 60
_FAULT_SECONDS = 30.0
"""Seconds of a storm per required fault of each kind: RabbitMQ takes 8 s to start."""
UPGRADED = "cluster upgraded node by node"
PASSED_ON = "token of a killed node passed on"
KEPT = "active node kept its place while RabbitMQ restarted"
_ONCE = (UPGRADED, PASSED_ON, KEPT)
"""Events that have to happen once in a storm with nodes, whatever its length."""
_LONG_ENOUGH = 45
"""Length in seconds from which a storm has to kill at every failpoint."""


@dataclass(frozen=True)
class Plan:
    """The plan of a storm. ``rate`` is messages per second in all, ``faults`` a share, and so is
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
    """Seconds that the drain may take: open answers are sent at the platforms' rates."""
    plugins: bool = False
    """Whether confined plugins run, and are replaced."""
    nodes: int = 1
    """Number of nodes; 1 for a gateway without a cluster."""

    @property
    def fewest_kills(self) -> float:
        """Return the minimum number of kills that proves something. A killed node joins again after 3 s."""
        return self.seconds * (_KILLS_PER_SECOND if self.nodes == 1 else _NODES_PER_SECOND)

    @property
    def fewest_of_each(self) -> int:
        """Return how often each kind of fault has to happen to nodes and servers."""
        return 0 if self.nodes == 1 else round(self.seconds / _FAULT_SECONDS)

    def fewest(self, fault: str) -> int:
        """Return how often a fault has to happen."""
        return 1 if fault in _ONCE else self.fewest_of_each

    @property
    def needs_answers_in_outages(self) -> bool:
        """Return whether answers have to end while RabbitMQ is down, which is often enough for that."""
        return self.seconds >= _LONG_ENOUGH and self.nodes > 1 and "websocket" in self.channels

    @property
    def needs_every_failpoint(self) -> bool:
        """Return whether the storm only passes if it killed at each failpoint."""
        return self.seconds >= _LONG_ENOUGH and self.nodes == 1


@dataclass
class Progress:
    """The progress of a storm."""

    phase: str = "starting"
    elapsed: float = 0.0
    sent: int = 0
    acked: int = 0
    kills: int = 0
    lives: int = 0
    points: str = ""
    """Number of failpoints that were hit, and of all."""


@dataclass
class Outcome:
    """The outcome of a storm."""

    plan: Plan
    engine: str
    messages: int
    said: Counter[str]
    """Number of messages by platform."""
    acked: int
    kills: int
    lives: int
    faults: Mapping[str, int]
    """Number of faults of nodes and servers, by kind."""
    exits: Mapping[int, int]
    """Number of expected exits of nodes, by exit status."""
    answers_in_outages: int
    """Number of answers that ended while RabbitMQ was down."""
    revision: str | None
    """The final revision of the database."""
    hits: dict[str, int]
    drained: bool
    drain_seconds: float
    exit_status: int | None
    unexpected: list[str]
    verdict: Verdict
    failures: int = 0
    """Number of answers that failed because a call of the model did."""
    summaries: int = 0
    """Number of summaries of conversations."""
    notices: int = 0
    """Number of announced notices."""
    inquiries: int = 0
    """Number of inquiries."""
    choices: int = 0
    """Number of questions of the model."""
    tasks: int = 0
    """Number of nested runs."""
    blocked: int = 0
    """Number of calls that a plugin blocked."""
    exchanged: int = 0
    """Number of replacements of a plugin during turns."""
    ticks: int = 0
    """Number of due times at which the job of a plugin ran."""
    changes: int = 0
    """Number of edits, repetitions and switches of versions."""
