"""The 24 events as confined plugins see them, and the names of the hooks behind those that decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
from msgspec import Struct

from gateway.contract.events import BusEvent, ChatMessage, PermissionAsked, ToolStarting
from gateway.contract.messages import now_ms
from gateway.events import types
from gateway.extensions.admission.manifest import ALIASES

DECIDING = {
    "tool.execute.before": "tool_execute_before",
    "permission.ask": "permission_ask",
    "session.compacting": "session_compacting",
    "chat.message": "chat_message",
}
"""The hook of each event whose handler decides."""

EVENTS: Mapping[str, type[BusEvent]] = {
    kind.event_name(): kind
    for kind in (
        ToolStarting,
        types.ToolFinished,
        PermissionAsked,
        types.PermissionReplied,
        types.SessionCreated,
        types.SessionResumed,
        types.SessionIdle,
        types.SessionError,
        types.SessionCompacting,
        types.SessionCompacted,
        types.MessageAdded,
        types.MessageUpdated,
        types.MessageRemoved,
        ChatMessage,
        types.AgentCreated,
        types.AgentStarted,
        types.AgentCompleted,
        types.AgentFailed,
        types.FileModified,
        types.FileDeleted,
        types.CommandExecuted,
        types.SlashCommandExecuted,
        types.CostUpdated,
        types.BudgetExceeded,
    )
}

_OF_MESSAGES = frozenset(("message.added", "message.updated", "message.removed", "chat.message"))
_OF_CALLS = frozenset(("args", "result", "command"))
_OF_FILES = frozenset(("answer", "diff"))


class Access(Struct, frozen=True):
    """The content that a plugin may see: that of messages, and that of tool calls."""

    messages: bool = False
    tools: bool = False


def kind_of(name: str) -> type[BusEvent] | None:
    """Return the type of an event by its name or alias."""
    return EVENTS.get(ALIASES.get(name, name))


def payload_of(event: BusEvent, name: str, access: Access) -> dict[str, Any]:
    """Return what a handler gets of an event. Content that the plugin may not see is left out."""
    fields = cast("dict[str, Any]", msgspec.to_builtins(event))
    kind, session = fields.pop("name"), fields.pop("session", "")
    hidden: frozenset[str] = frozenset()
    if kind in _OF_MESSAGES and not access.messages:
        hidden = frozenset(("text",))
    elif kind.startswith(("tool.", "permission.")) and not (access.tools or access.messages):
        hidden = _OF_CALLS
    elif kind.startswith("file."):
        hidden = _OF_FILES
    shown = {key: value for key, value in fields.items() if key not in hidden}
    return {"event": name, "timestamp": now_ms(), "session_id": session, **shown}
