"""Claude Code: its stream of JSON in both directions, with questions about tools on the same pipes."""

# What programs send has no type; it is matched by its shape where it is read.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from plugins.cli_backends.adapters.cli import Cli
from plugins.cli_backends.adapters.protocol import (
    Ended,
    Event,
    Line,
    Order,
    Permission,
    Send,
    Session,
    count_in,
    text_of,
)
from plugins.cli_backends.contract import Called, Returned, Said, Spent

_REFUSAL = "The user did not allow this."
_LOST = "No conversation found"
_NOT_HERE = ("AskUserQuestion", "CronCreate", "EnterPlanMode", "ExitPlanMode", "ScheduleWakeup")
"""Tools that need its own screen, or a process that lives on."""


class ClaudeTalk:
    """One dispatch. The session's name is ours to choose, so it is known before anything happens."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self.session = order.session or str(uuid.uuid4())
        self._streamed = False

    def arguments(self) -> list[str]:
        """Return the program's arguments for this dispatch."""
        order = self._order
        return [
            *("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"),
            *("--include-partial-messages", "--permission-prompt-tool", "stdio"),
            # What its folder allows itself, and would run by itself, does not count.
            *("--setting-sources", "user"),
            *("--disallowed-tools", ",".join(_NOT_HERE)),
            *(("--resume", order.session) if order.session else ("--session-id", self.session)),
            *(("--model", order.model) if order.model else ()),
        ]

    def begin(self) -> Sequence[Line]:
        """The system prompt, and what the user wants."""
        request = {"subtype": "initialize", "appendSystemPrompt": self._order.system_prompt}
        message = {"role": "user", "content": _content(self._order)}
        return [
            {"type": "control_request", "request_id": "begin", "request": request},
            {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": self.session},
        ]

    def hear(self, line: Line) -> Sequence[Event]:
        """One message."""
        match line:
            case {"type": "stream_event", "event": {"delta": dict() as delta}, **rest} if _own(rest):
                return self._delta(delta)
            case {"type": "assistant", "message": {"content": [*blocks]}, **rest}:
                return self._blocks(blocks, own=_own(rest))
            case {"type": "user", "message": {"content": [*blocks]}}:
                return [_returned(block) for block in blocks if block.get("type") == "tool_result"]
            case {"type": "control_request", "request_id": key, "request": dict() as request}:
                return [_asked(key, request)]
            case {"type": "system", "subtype": "init", "session_id": str(session)}:
                return [Session(session)]
            case {"type": "result"}:
                return _ended(line)
            case _:
                return []

    def decide(self, asked: Permission, allowed: bool) -> Sequence[Line]:
        """Allowed is what was asked for, as it was asked."""
        answer: dict[str, Any] = {"behavior": "deny", "message": _REFUSAL}
        if allowed:
            answer = {"behavior": "allow", "updatedInput": asked.arguments}
        return [_response(asked.key, answer)]

    def _delta(self, delta: dict[str, Any]) -> list[Event]:
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                self._streamed = True
                return [Said(text)]
            case {"type": "thinking_delta", "thinking": str(text)}:
                return [Said(text, reasoning=True)]
            case _:
                return []

    def _blocks(self, blocks: list[Any], *, own: bool) -> list[Event]:
        """A finished message. Its text is told only where it was not told piece by piece."""
        events: list[Event] = []
        for block in blocks:
            match block:
                case {"type": "text", "text": str(text)} if own and not self._streamed and text:
                    events.append(Said(text))
                case {"type": "text"}:
                    self._streamed = False
                case {"type": "tool_use", "id": str(id), "name": str(name), "input": dict() as arguments}:
                    events.append(Called(id, name, arguments))
                case _:
                    pass
        return events


def _content(order: Order) -> str | list[Line]:
    if not order.images:
        return order.prompt
    sources = [{"type": "base64", "media_type": p.mime_type, "data": p.data} for p in order.images]
    pictures: list[Line] = [{"type": "image", "source": source} for source in sources]
    return [*pictures, {"type": "text", "text": order.prompt}]


def _own(rest: dict[str, Any]) -> bool:
    """Return whether a message is from the conversation itself, not from a subagent."""
    return rest.get("parent_tool_use_id") is None


def _asked(key: Any, request: dict[str, Any]) -> Event:
    match request:
        case {"subtype": "can_use_tool", "tool_name": str(name), "input": dict() as arguments}:
            return Permission(key, name, arguments)
        case _:
            error = {"subtype": "error", "request_id": key, "error": "this cannot be asked here"}
            return Send({"type": "control_response", "response": error})


def _response(key: Any, answer: dict[str, Any]) -> Line:
    response = {"subtype": "success", "request_id": key, "response": answer}
    return {"type": "control_response", "response": response}


def _returned(block: dict[str, Any]) -> Returned:
    return Returned(str(block.get("tool_use_id")), text_of(block.get("content")), bool(block.get("is_error")))


def _ended(line: Line) -> list[Event]:
    used = line.get("usage") or {}
    cached = count_in(used, "cache_read_input_tokens")
    fresh = count_in(used, "input_tokens", "cache_creation_input_tokens")
    turns, cost = line.get("num_turns"), line.get("total_cost_usd")
    spent = Spent(fresh + cached, count_in(used, "output_tokens"), cached, cost)
    if not line.get("is_error"):
        return [spent, Ended(turns=turns)]
    said = str(line.get("result") or "; ".join(map(str, line.get("errors") or ())) or line.get("subtype"))
    return [spent, Ended(said, "SESSION_ERROR" if _LOST in said else "PROVIDER_ERROR", turns)]


CLI = Cli(
    name="claude-code",
    title="Claude Code",
    binary="claude",
    install="npm install -g @anthropic-ai/claude-code",
    key="ANTHROPIC_API_KEY",
    variables=(
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_BASE_URL",
        "CLAUDE_CODE_OAUTH_TOKEN",
        "CLAUDE_CONFIG_DIR",
    ),
    url="ANTHROPIC_BASE_URL",
    fixed={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    talk=ClaudeTalk,
    lost_session=_LOST,
)
