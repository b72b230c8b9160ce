"""The types of events. To add one, define a frozen subclass of ``BusEvent`` here or in a plugin, and emit it.

``tag`` is the stable dotted name of the type::

    class PageVisited(BusEvent, frozen=True, tag="page.visited"):
        session: str
        url: str

    events.emit(PageVisited(session.id, url))
"""

from __future__ import annotations

from gateway.contract.events import AgentEvent, BusEvent
from gateway.contract.messages import Message


class AgentProgress(BusEvent, frozen=True, tag="agent.progress"):
    """An agent event of a session's turn."""

    detailed = True
    session: str
    event: AgentEvent


class TranscriptChanged(BusEvent, frozen=True, tag="session.transcript"):
    """The messages of a session after they changed."""

    detailed = True
    session: str
    messages: tuple[Message, ...]


class SessionCreated(BusEvent, frozen=True, tag="session.created"):
    """A new conversation. ``channel`` is the id of its channel."""

    session: str
    channel: str


class SessionTitled(BusEvent, frozen=True, tag="session.titled"):
    """A session got its title, or another one."""

    session: str
    title: str


class SessionCompacted(BusEvent, frozen=True, tag="session.compacted"):
    """Messages of a session were replaced by a summary for its model.

    ``trigger`` is ``auto`` or ``manual``, ``messages`` their number, ``summary`` the id of its message.
    """

    session: str
    trigger: str
    messages: int
    summary: str


class SessionUndone(BusEvent, frozen=True, tag="session.undone"):
    """The last exchange of a session is hidden, which is durable.

    ``turns`` are the ids of its answers, several if its message was edited; ``messages`` of all it hid.
    """

    session: str
    turns: tuple[str, ...]
    messages: tuple[str, ...]


class SessionRedone(BusEvent, frozen=True, tag="session.redone"):
    """An exchange that was undone is shown again, which is durable; see ``session.undone``."""

    session: str
    turns: tuple[str, ...]
    messages: tuple[str, ...]


class SessionDeleted(BusEvent, frozen=True, tag="session.deleted"):
    """A session was deleted with its messages."""

    session: str


class TurnStarted(BusEvent, frozen=True, tag="turn.started"):
    """The processing of a message began. ``answer`` is the id of its answer."""

    session: str
    answer: str
    channel: str


class TurnFinished(BusEvent, frozen=True, tag="turn.finished"):
    """The answer to a message is durable. ``outcome`` is that of ``trunkline_turns``, or ``unanswered``."""

    session: str
    answer: str
    channel: str
    outcome: str
    error: str
    model: str
    input_tokens: int
    output_tokens: int
    cost: float


class FeedbackGiven(BusEvent, frozen=True, tag="feedback.given"):
    """A user rated an answer: ``up``, ``down``, or ``none`` when the rating was taken back."""

    session: str
    answer: str
    channel: str
    user: str
    value: str


class AccessRevoked(BusEvent, frozen=True, tag="access.revoked"):
    """A user may no longer use the bot."""

    channel: str
    user: str


class ChannelHealth(BusEvent, frozen=True, tag="channel.health"):
    """A channel began to work, or failed; ``detail`` is the reason."""

    channel: str
    ok: bool
    detail: str


class ModelChanged(BusEvent, frozen=True, tag="model.changed"):
    """Another model is the default, or with ``session`` the model of that session."""

    model: str
    session: str = ""


class PluginRegistered(BusEvent, frozen=True, tag="plugin.registered"):
    """A plugin is active."""

    plugin: str
    version: str


class PluginUnregistered(BusEvent, frozen=True, tag="plugin.unregistered"):
    """A plugin was removed."""

    plugin: str


class ContributionsChanged(BusEvent, frozen=True, tag="contributions.changed"):
    """Contributions of a kind changed: ``status``, ``shortcut``, ``mention`` or ``renderer``."""

    kind: str


class FileModified(BusEvent, frozen=True, tag="file.modified"):
    """A tool wrote a file. ``path`` is absolute, ``answer`` the id of the turn's answer.

    ``diff`` has at most 16,000 characters, without the gateway's secrets.
    """

    session: str
    path: str
    answer: str = ""
    diff: str = ""


class FileDeleted(BusEvent, frozen=True, tag="file.deleted"):
    """A tool deleted a file; see FileModified."""

    session: str
    path: str
    answer: str = ""
    diff: str = ""


class GatewayReady(BusEvent, frozen=True, tag="gateway.ready"):
    """The gateway has started: its channels run."""


class Disposed(BusEvent, frozen=True, tag="gateway.disposed"):
    """The last event: the gateway has answered its running turns and stops."""
