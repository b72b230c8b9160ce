"""Claude Code: its JSON stream in both directions, with permission requests in the same stream."""

# Messages of programs have no types; `match` statements check their shape.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any

from plugins.cli_backends.adapters.cli import Cli
from plugins.cli_backends.adapters.protocol import (
    Event,
    Finished,
    JsonObject,
    Outgoing,
    PermissionRequest,
    ProgramRequest,
    SessionOpened,
    content_text,
    sum_counts,
)
from plugins.cli_backends.contract import TextChunk, ToolCall, ToolResult, Usage
from plugins.programs.catalog import CLAUDE_CODE

_DENIED = "The user did not allow this."
_LOST_SESSION = "No conversation found"
_REPORTS_SESSIONS = (2, 1, 277)
"""The version since which the cost of a resumed session includes that of its earlier dispatches."""
_UNSUPPORTED_TOOLS = ("AskUserQuestion", "CronCreate", "EnterPlanMode", "ExitPlanMode", "ScheduleWakeup")
"""Tools that need the program's own screen, or a process that outlives the dispatch."""


class ClaudeAdapter:
    """One dispatch. The adapter chooses the session id, so the id is known before the program starts."""

    def __init__(self, request: ProgramRequest) -> None:
        self._request = request
        self.session = request.session or str(uuid.uuid4())
        self._streamed = False
        self._reports_session = False

    def arguments(self) -> list[str]:
        """Return the program's arguments for this dispatch."""
        request = self._request
        return [
            *("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"),
            *("--include-partial-messages", "--permission-prompt-tool", "stdio"),
            # Settings of the folder could allow tools and run hooks.
            *("--setting-sources", "user"),
            *("--disallowed-tools", ",".join(_UNSUPPORTED_TOOLS)),
            # Without servers of the user's settings, whose tools --tools does not limit.
            *(() if request.tools is None else ("--tools", ",".join(request.tools), "--strict-mcp-config")),
            *(("--resume", request.session) if request.session else ("--session-id", self.session)),
            *(("--model", request.model) if request.model else ()),
        ]

    def begin(self) -> Sequence[JsonObject]:
        """Return the system prompt and the user's message."""
        request = {"subtype": "initialize", "appendSystemPrompt": self._request.system_prompt}
        message = {"role": "user", "content": _content(self._request)}
        return [
            {"type": "control_request", "request_id": "begin", "request": request},
            {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": self.session},
        ]

    def read(self, message: JsonObject) -> Sequence[Event]:
        """Translate a message of the program into events."""
        match message:
            case {"type": "stream_event", "event": {"delta": dict() as delta}, **rest} if _is_main(rest):
                return self._delta(delta)
            case {"type": "assistant", "message": {"content": [*blocks]}, **rest}:
                return self._blocks(blocks, is_main=_is_main(rest))
            case {"type": "user", "message": {"content": [*blocks]}}:
                return [_tool_result(block) for block in blocks if block.get("type") == "tool_result"]
            case {"type": "control_request", "request_id": key, "request": dict() as request}:
                return [_control_event(key, request)]
            case {"type": "system", "subtype": "init", "session_id": str(session)}:
                version = re.findall(r"\d+", str(message.get("claude_code_version")))
                self._reports_session = tuple(map(int, version[:3])) >= _REPORTS_SESSIONS
                return [SessionOpened(session)]
            case {"type": "result"}:
                return self._finish_events(message)
            case _:
                return []

    def decide(self, request: PermissionRequest, allowed: bool) -> Sequence[JsonObject]:
        """Allow the call with its arguments unchanged, or deny it."""
        answer: dict[str, Any] = {"behavior": "deny", "message": _DENIED}
        if allowed:
            answer = {"behavior": "allow", "updatedInput": request.arguments}
        return [_response(request.key, answer)]

    def _finish_events(self, message: JsonObject) -> list[Event]:
        usage = message.get("usage") or {}
        cached = sum_counts(usage, "cache_read_input_tokens")
        fresh = sum_counts(usage, "input_tokens", "cache_creation_input_tokens")
        cost, session_cost = self._costs(message.get("total_cost_usd"))
        total = Usage(fresh + cached, sum_counts(usage, "output_tokens"), cached, cost, session_cost)
        turns = message.get("num_turns")
        if not message.get("is_error"):
            return [total, Finished(turns=turns)]
        errors = "; ".join(map(str, message.get("errors") or ()))
        error = str(message.get("result") or errors or message.get("subtype"))
        return [
            total,
            Finished(error, "SESSION_ERROR" if _LOST_SESSION in error else "PROVIDER_ERROR", turns),
        ]

    def _costs(self, reported: object) -> tuple[float | None, float | None]:
        """Return the cost of this dispatch, and that of the session if the program reports it."""
        if not isinstance(reported, int | float):
            return None, None
        if not self._reports_session:
            return reported, None
        # A program that was killed did not store its costs: it counts from zero again.
        before = self._request.session_cost
        return (reported - before if reported >= before else reported), reported

    def _delta(self, delta: dict[str, Any]) -> list[Event]:
        match delta:
            case {"type": "text_delta", "text": str(text)}:
                self._streamed = True
                return [TextChunk(text)]
            case {"type": "thinking_delta", "thinking": str(text)}:
                return [TextChunk(text, reasoning=True)]
            case _:
                return []

    def _blocks(self, blocks: list[Any], *, is_main: bool) -> list[Event]:
        """Return the events of a complete message. Its text is skipped if it was streamed before."""
        events: list[Event] = []
        for block in blocks:
            match block:
                case {"type": "text", "text": str(text)} if is_main and not self._streamed and text:
                    events.append(TextChunk(text))
                case {"type": "text"}:
                    self._streamed = False
                case {"type": "tool_use", "id": str(id), "name": str(name), "input": dict() as arguments}:
                    events.append(ToolCall(id, name, arguments))
                case _:
                    pass
        return events


def _content(request: ProgramRequest) -> str | list[JsonObject]:
    if not request.images:
        return request.prompt
    sources = [{"type": "base64", "media_type": p.mime_type, "data": p.data} for p in request.images]
    images: list[JsonObject] = [{"type": "image", "source": source} for source in sources]
    return [*images, {"type": "text", "text": request.prompt}]


def _is_main(rest: dict[str, Any]) -> bool:
    """Return whether a message is from the main conversation, not from a subagent."""
    return rest.get("parent_tool_use_id") is None


def _control_event(key: Any, request: dict[str, Any]) -> Event:
    match request:
        case {"subtype": "can_use_tool", "tool_name": str(name), "input": dict() as arguments}:
            return PermissionRequest(key, name, arguments)
        case _:
            error = {"subtype": "error", "request_id": key, "error": "unsupported request"}
            return Outgoing({"type": "control_response", "response": error})


def _response(key: Any, answer: dict[str, Any]) -> JsonObject:
    response = {"subtype": "success", "request_id": key, "response": answer}
    return {"type": "control_response", "response": response}


def _tool_result(block: dict[str, Any]) -> ToolResult:
    return ToolResult(
        str(block.get("tool_use_id")), content_text(block.get("content")), bool(block.get("is_error"))
    )


CLI = Cli(
    name="claude-code",
    program=CLAUDE_CODE,
    fixed={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    adapter=ClaudeAdapter,
    lost_session=_LOST_SESSION,
)
