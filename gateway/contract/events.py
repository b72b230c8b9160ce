"""Events: notifications for subscribers, whose other types are in ``gateway/events/types.py``.

``AgentEvent`` reports a run of the agent with cumulative texts; ``Activity`` reports the state of components
to operators; ``SubAgentEvent`` reports nested runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

from msgspec import Struct

from gateway.contract.deltas import Delta, TextDelta, ToolResultStart
from gateway.contract.messages import Message


class BusEvent(Struct, frozen=True, tag_field="name"):
    """A notification of the event bus. Its JSON has its name and its fields.

    A ``detailed`` event is emitted several times a second, and only to those that subscribe to its type. An
    event with a field ``session`` can be subscribed to for one session.
    """

    detailed: ClassVar[bool] = False

    @classmethod
    def event_name(cls) -> str:
        """Return the stable dotted name of the type, such as ``session.created``."""
        return str(cls.__struct_config__.tag)


class ToolStarting(BusEvent, frozen=True, tag="tool.execute.before"):
    """A permitted tool call that is about to be made. ``args`` are its arguments."""

    detailed = True
    session: str
    tool: str
    args: Mapping[str, Any]
    call_id: str


class PermissionAsked(BusEvent, frozen=True, tag="permission.ask"):
    """A tool call that a user is about to be asked about.

    ``command`` is the text that permission patterns are compared with, "" if the tool has none; ``user`` is
    the id of the sender, ``role`` their role.
    """

    detailed = True
    session: str
    tool: str
    command: str
    args: Mapping[str, Any]
    user: str
    role: str


class ChatMessage(BusEvent, frozen=True, tag="chat.message"):
    """A user's message that is about to reach the agent. ``attachments`` are the types of its other parts."""

    detailed = True
    session: str
    text: str
    sender: str
    attachments: tuple[str, ...] = ()


class ContentEvent(Struct, frozen=True, tag_field="type", tag="content"):
    """All text of the current call of the model so far."""

    text: str


class ReasoningEvent(Struct, frozen=True, tag_field="type", tag="reasoning"):
    """All reasoning of the current call of the model so far."""

    text: str


class UsageEvent(Struct, frozen=True, tag_field="type", tag="usage"):
    """Tokens of the last call of the model; ``cached_tokens`` is 0 where it is not reported."""

    total_tokens: int
    cached_tokens: int = 0


class MessagesEvent(Struct, frozen=True, tag_field="type", tag="messages"):
    """The whole transcript, after it changed."""

    messages: tuple[Message, ...]


class TurnEndEvent(Struct, frozen=True, tag_field="type", tag="turn_end"):
    """The end of a round of tools, before the next model call."""


AgentEvent = ContentEvent | ReasoningEvent | UsageEvent | MessagesEvent | TurnEndEvent


class AgentEventMapper:
    """Converts deltas to agent events: the cumulative texts of the current call of the model."""

    def __init__(self) -> None:
        self._content = ""
        self._reasoning = ""

    def convert(self, delta: Delta, emit: Callable[[AgentEvent], None]) -> None:
        """Emit the event of one delta; after a tool's result, text belongs to the next model call."""
        match delta:
            case TextDelta(kind="reasoning"):
                self._reasoning += delta.content
                emit(ReasoningEvent(self._reasoning))
            case TextDelta(kind="notice"):
                pass
            case TextDelta():
                self._content += delta.content
                emit(ContentEvent(self._content))
            case ToolResultStart():
                self._content = self._reasoning = ""
            case _:
                pass


ActivityKind = Literal[
    "agent_start",
    "agent_end",
    "tool_start",
    "tool_end",
    "task_started",
    "task_completed",
    "task_error",
    "feedback",
]
SubAgentKind = Literal[
    "invocation_start", "text_delta", "message_end", "tool_call_start", "tool_call_end", "invocation_end"
]


class Activity(BusEvent, frozen=True, tag="activity"):
    """A start or end of some work, or feedback on an answer.

    ``id`` counts from 1; ``ts`` is milliseconds; ``source`` is the actor. For feedback, ``source`` is the
    session, ``summary`` is up, down or none, and ``detail`` has channel, user and answer.
    """

    id: int
    ts: int
    kind: ActivityKind
    source: str
    summary: str
    detail: Mapping[str, Any] | None = None


class SubAgentEvent(BusEvent, frozen=True, tag="agent.step"):
    """A step of a nested run."""

    detailed = True
    run_id: str
    parent_run_id: str | None
    agent_id: str
    kind: SubAgentKind
    ts: int
    data: Mapping[str, Any]
