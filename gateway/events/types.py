"""The types of events. To add one, define a frozen subclass of ``BusEvent`` here or in a plugin, and emit it.

``tag`` is the stable dotted name of the type::

    class PageVisited(BusEvent, frozen=True, tag="page.visited"):
        session: str
        url: str

    events.emit(PageVisited(session.id, url))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

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
    """A new conversation. ``channel`` is the id of its channel, ``owner`` its first user."""

    session: str
    channel: str
    owner: str = ""


class SessionResumed(BusEvent, frozen=True, tag="session.resumed"):
    """A stored conversation was loaded. ``messages`` is the number of its messages."""

    session: str
    channel: str
    owner: str
    messages: int


class SessionIdle(BusEvent, frozen=True, tag="session.idle"):
    """No message of a conversation waits any more. ``turns`` were answered since it was idle before."""

    session: str
    channel: str
    owner: str
    turns: int


class SessionError(BusEvent, frozen=True, tag="session.error"):
    """A turn failed. ``error`` is the name of the error, ``message`` its text."""

    session: str
    channel: str
    owner: str
    error: str
    message: str


class SessionCompacting(BusEvent, frozen=True, tag="session.compacting"):
    """A summary of earlier messages is about to be made. ``trigger`` is ``auto`` or ``manual``."""

    session: str
    trigger: str
    instructions: str


class SessionTitled(BusEvent, frozen=True, tag="session.titled"):
    """A session got its title, or another one."""

    session: str
    title: str


class SessionCompacted(BusEvent, frozen=True, tag="session.compacted"):
    """Messages of a session were replaced by a summary for its model.

    ``trigger`` is ``auto`` or ``manual``, ``messages`` their number, ``summary`` the id of its message.
    ``before`` and ``after`` are the estimated tokens of the context.
    """

    session: str
    trigger: str
    messages: int
    summary: str
    before: int = 0
    after: int = 0


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


class ToolFinished(BusEvent, frozen=True, tag="tool.execute.after"):
    """A tool call was made. ``result`` is what the model gets, without the gateway's secrets."""

    detailed = True
    session: str
    tool: str
    args: Mapping[str, Any]
    call_id: str
    result: str
    is_error: bool
    duration_ms: int


class PermissionReplied(BusEvent, frozen=True, tag="permission.replied"):
    """The decision about a tool call that needed an approval.

    ``outcome`` is that of the question, such as once or deny; ``by`` is ``user:ID`` or ``plugin:NAME``, or ""
    if no one answered: no user could, the time was over, or an earlier "always" counts.
    """

    detailed = True
    session: str
    tool: str
    command: str
    args: Mapping[str, Any]
    user: str
    role: str
    outcome: str
    by: str


class MessageAdded(BusEvent, frozen=True, tag="message.added"):
    """A message was added to a conversation. ``text`` is its text, without reasoning and notices."""

    detailed = True
    session: str
    message_id: str
    role: str
    text: str


class MessageUpdated(BusEvent, frozen=True, tag="message.updated"):
    """A message was replaced by another revision."""

    detailed = True
    session: str
    message_id: str
    role: str
    text: str


class MessageRemoved(BusEvent, frozen=True, tag="message.removed"):
    """A message was deleted, or hidden from everyone by /undo or an edit."""

    detailed = True
    session: str
    message_id: str
    role: str
    text: str


class AgentRole(Struct, frozen=True):
    """An agent: the name of its settings, and its model."""

    role: str
    model: str


class AgentCreated(BusEvent, frozen=True, tag="agent.created"):
    """A nested run was created: ``session`` is its conversation, ``parent`` the session that it works for."""

    session: str
    agent: AgentRole
    parent: str
    task: str


class AgentStarted(BusEvent, frozen=True, tag="agent.started"):
    """An agent began with a message or a task. ``parent`` is "" for the agent of a conversation."""

    session: str
    agent: AgentRole
    parent: str
    task: str


class AgentCompleted(BusEvent, frozen=True, tag="agent.completed"):
    """An agent ended. ``outcome`` is why its model stopped, or ``aborted``."""

    session: str
    agent: AgentRole
    parent: str
    task: str
    outcome: str


class AgentFailed(BusEvent, frozen=True, tag="agent.failed"):
    """An agent failed. ``outcome`` is the name of the error."""

    session: str
    agent: AgentRole
    parent: str
    task: str
    outcome: str


class CommandExecuted(BusEvent, frozen=True, tag="command.executed"):
    """A command of the CLI ended, which used the API of this gateway. ``args`` have no secrets."""

    command: str
    args: str
    ok: bool


class SlashCommandExecuted(BusEvent, frozen=True, tag="slash.command.executed"):
    """A command that a user typed in a chat ended. ``args`` have no secrets."""

    session: str
    command: str
    args: str
    ok: bool


class CostUpdated(BusEvent, frozen=True, tag="cost.updated"):
    """A conversation cost money; at most one event in 500 ms. ``total_cost`` is all of it, in US dollars.

    ``tokens`` are those of the calls since the last event.
    """

    session: str
    total_cost: float = field(name="totalCost")
    provider: str
    model: str
    tokens: int


class BudgetExceeded(BusEvent, frozen=True, tag="budget.exceeded"):
    """A call was refused by a budget. ``limit`` and ``spent`` are in US dollars."""

    session: str
    budget: str
    limit: float
    spent: float


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
    """A file was written. ``path`` is absolute, ``answer`` the id of the turn's answer.

    ``by`` is the tool, the CLI backend, ``plugin:NAME``, ``undo`` or ``redo``. ``diff`` is that of a tool:
    at most 16,000 characters, without the gateway's secrets.
    """

    session: str
    path: str
    answer: str = ""
    diff: str = ""
    by: str = ""


class FileDeleted(BusEvent, frozen=True, tag="file.deleted"):
    """A file was deleted; see FileModified."""

    session: str
    path: str
    answer: str = ""
    diff: str = ""
    by: str = ""


class GatewayReady(BusEvent, frozen=True, tag="gateway.ready"):
    """The gateway has started: its channels run."""


class Disposed(BusEvent, frozen=True, tag="gateway.disposed"):
    """The last event: the gateway has answered its running turns and stops."""
