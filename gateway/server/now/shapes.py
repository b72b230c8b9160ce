"""The JSON of ``/api/now`` and of the events of its stream. Times are in milliseconds since the epoch."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

Tick = Literal["none", "ok", "brief", "down"]
"""Five minutes of a channel: not observed, without a failure, failing for less than a minute, or longer."""

StepKind = Literal["waited", "model", "writing", "tool", "question", "placement"]
DotState = Literal["ok", "running", "waiting", "failed"]
NeedKind = Literal[
    "question", "pairing", "channel", "provider", "budget", "dead_letter", "disk", "plugin", "store"
]


class Headline(Struct, frozen=True):
    """The number of things that need a person, and the same in a sentence."""

    count: int
    text: str


class NeedAction(Struct, frozen=True):
    """Action for a need: a label, the place in the console, and the command for the terminal, or ""."""

    kind: Literal["open", "replace_key", "raise_budget"]
    label: str
    target: str
    command: str = ""


class Need(Struct, frozen=True):
    """An item that needs a person: what it is, since when, why, what it causes, and one action.

    ``name`` is the channel, provider, budget or plugin; ``cause`` its own words, never text of a message.
    """

    kind: NeedKind
    name: str
    count: int
    since: int
    text: str
    cause: str
    effect: str
    action: NeedAction

    def without_text(self) -> Need:
        """Return the need without its command, which viewers do not get."""
        return replace(self, action=replace(self.action, command=""))


class Figure(Struct, frozen=True):
    """A figure of the last hour, and its value in each minute, the oldest first; null without one.

    Messages, answers, errors and cost (US dollars) are sums, ``first_token`` is a median in seconds, and
    ``running`` is the number of turns now.
    """

    name: Literal["messages", "answers", "first_token", "errors", "cost", "running"]
    value: float | None
    points: Annotated[list[float | None], Meta(min_length=60, max_length=60)]


class Step(Struct, frozen=True):
    """Current step of a turn. ``name`` is the model, the tool, the provider it waits for, or the question.

    ``waited`` is a message whose next attempt is not due, or that waits for a rate limit.
    """

    kind: StepKind
    name: str
    since: int


class Dot(Struct, frozen=True):
    """A station on the way of a running turn."""

    kind: Literal["accepted", "model", "tool", "question", "waited", "placement"]
    state: DotState


class RunningRow(Struct, frozen=True):
    """A message that is being answered. ``person`` is the sender's name, or the id without one."""

    id: str
    answer: str
    session: str
    channel: str
    person: str
    title: str
    agent: str
    model: str
    attempt: int
    since: int
    step: Step
    path: list[Dot]

    def without_text(self) -> RunningRow:
        """Return the row without text of messages and questions."""
        step = replace(self.step, name="") if self.step.kind == "question" else self.step
        return replace(self, title="", step=step)


class Running(Struct, frozen=True):
    """The messages that are being answered, the oldest first; at most 1,000 of ``total``."""

    total: int
    rows: list[RunningRow]


class EndedTurn(Struct, frozen=True):
    """A turn that ended: how, and how long after its message was accepted."""

    id: str
    session: str
    channel: str
    person: str
    outcome: str
    error: str
    took: int
    at: int


class ChannelNow(Struct, frozen=True):
    """A channel, and its last four hours in ticks of five minutes, the oldest first.

    ``detail`` says why it does not work, ``since`` when that began, or when it began to work.
    """

    id: str
    ok: bool
    detail: str
    since: int
    ticks: Annotated[list[Tick], Meta(min_length=48, max_length=48)]


class ProviderNow(Struct, frozen=True):
    """A provider that was called: its circuit in words and numbers, and the use of its keys and limits.

    ``name`` is its display name, such as OpenAI.

    ``circuit``: ``closed`` (works), ``failing`` (failed, and is still called), ``open`` (is skipped),
    ``testing`` (the next call tries it), or ``rejected`` (the key is). ``until`` is the end of a pause.
    Limits are null if there are none.
    """

    id: str
    name: str
    circuit: Literal["closed", "failing", "open", "testing", "rejected"]
    text: str
    failures: int
    until: int | None
    since: int
    keys: int
    refused_keys: int
    held_keys: int
    running: int
    waiting: int
    concurrency: int | None
    requests: int
    requests_per_minute: int | None
    tokens: int
    tokens_per_minute: int | None


class Queues(Struct, frozen=True):
    """Lengths and ages of the queues. Ages are in seconds.

    ``conversations`` have waiting messages, ``longest`` in the fullest of them; ``messages`` of
    ``most_messages`` are accepted and not settled, ``stored`` of them are on disk alone. ``calls`` are in
    line for a key. ``sending`` are pages on their way to a platform. ``writer_age`` is the age of the oldest
    write that is not committed.
    """

    conversations: int
    longest: int
    messages: int
    most_messages: int
    stored: int
    oldest_message: int
    calls: int
    sending: int
    oldest_sending: int
    dead_letters: int
    writer_age: float


class Asked(Struct, frozen=True):
    """Questions and pairing codes that wait for a person."""

    questions: int
    pairings: int
    oldest: int | None


class Spend(Struct, frozen=True):
    """Cost of today (UTC), in US dollars."""

    today_usd: float


class NowSnapshot(Struct, frozen=True):
    """The state of the gateway now. ``id`` is where the stream continues; ``uptime`` is in seconds.

    ``activity`` are the latest turns that ended while the state was followed.
    """

    id: str
    at: int
    version: str
    uptime: int
    headline: Headline
    needs: list[Need]
    figures: list[Figure]
    running: Running
    activity: list[EndedTurn]
    channels: list[ChannelNow]
    providers: list[ProviderNow]
    queues: Queues
    asked: Asked
    spend: Spend

    def without_text(self) -> NowSnapshot:
        """Return the snapshot for a reader who may read no messages."""
        rows = [row.without_text() for row in self.running.rows]
        needs = [need.without_text() for need in self.needs]
        return replace(self, needs=needs, running=replace(self.running, rows=rows))


class TurnChanges(Struct, frozen=True):
    """Event ``turn``: rows that are new or changed, and turns that ended; at most 50."""

    total: int
    changed: list[RunningRow]
    gone: list[str]
    ended: list[EndedTurn]

    def without_text(self) -> TurnChanges:
        """Return the changes for a reader who may read no messages."""
        return replace(self, changed=[row.without_text() for row in self.changed])


class HealthChanges(Struct, frozen=True):
    """Event ``health``: the channels that changed, and what needs a person now."""

    headline: Headline
    needs: list[Need]
    channels: list[ChannelNow]

    def without_text(self) -> HealthChanges:
        """Return the changes for a reader who may read no messages."""
        return replace(self, needs=[need.without_text() for need in self.needs])


class CircuitChanges(Struct, frozen=True):
    """Event ``circuit``: the providers that changed."""

    providers: list[ProviderNow]


class SpendChanges(Struct, frozen=True):
    """Event ``spend``: today's cost and the figures."""

    today_usd: float
    figures: list[Figure]
