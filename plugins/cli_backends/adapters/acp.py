"""The Agent Client Protocol over stdin and stdout, which Gemini CLI and OpenCode speak."""

# Messages of programs have no types; `match` statements check their shape.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import structs

from plugins.cli_backends.adapters.protocol import (
    Event,
    Finished,
    JsonObject,
    JsonRpc,
    Outgoing,
    PermissionRequest,
    ProgramRequest,
    RpcResponse,
    SessionOpened,
    content_text,
    sum_counts,
)
from plugins.cli_backends.contract import TextChunk, ToolCall, ToolResult, Usage

VERSION = 1
_NEW, _LOAD, _RESUME, _PROMPT = "session/new", "session/load", "session/resume", "session/prompt"


class AcpAdapter:
    """One dispatch: a handshake, a session that is created or resumed, and one prompt in it.

    ``login`` is the authentication method to request, if any. The program replays the messages of a loaded
    session, so updates before the prompt are ignored.
    """

    def __init__(self, request: ProgramRequest, login: str = "") -> None:
        self._request = request
        self._login = login
        self._rpc = JsonRpc({"jsonrpc": "2.0"})
        self._session = request.session or ""
        self._resume_method = _LOAD
        self._accepts_images = self._prompted = False
        self._cost_before = request.session_cost
        self._session_cost: float | None = None
        self._called: set[str] = set()
        self._returned: set[str] = set()
        self._options: dict[str, Sequence[Mapping[str, Any]]] = {}

    def begin(self) -> Sequence[JsonObject]:
        """Return the handshake, without file capabilities: the program accesses files itself."""
        files = {"readTextFile": False, "writeTextFile": False}
        client = {"protocolVersion": VERSION, "clientCapabilities": {"fs": files, "terminal": False}}
        return [self._rpc.request("initialize", client)]

    def read(self, message: JsonObject) -> Sequence[Event]:
        """Translate a message of the program into events."""
        if response := self._rpc.match_response(message):
            return self._handle_response(response)
        match message:
            case {
                "method": "session/update",
                "params": {"update": {"sessionUpdate": "usage_update"} as update},
            }:
                return self._note_cost(update)
            case {"method": "session/update", "params": {"update": dict() as update}}:
                return self._update_events(update) if self._prompted else []
            case {"method": "session/request_permission", "id": key, "params": dict() as params}:
                return self._permission_events(key, params)
            case {"method": str(), "id": key}:
                return [Outgoing(self._rpc.error_response(key))]
            case _:
                return []

    def decide(self, request: PermissionRequest, allowed: bool) -> Sequence[JsonObject]:
        """Choose the offered option that allows or rejects the call; if none fits, answer "cancelled"."""
        kinds = ("allow_once",) if allowed else ("reject_once", "reject_always")
        options = self._options.pop(str(request.key), ())
        for kind in kinds:
            for option in options:
                if option.get("kind") == kind:
                    chosen = {"outcome": "selected", "optionId": option.get("optionId")}
                    return [self._rpc.response(request.key, {"outcome": chosen})]
        return [self._rpc.response(request.key, {"outcome": {"outcome": "cancelled"}})]

    def _handle_response(self, response: RpcResponse) -> list[Event]:
        if response.error:
            code = "SESSION_ERROR" if response.method in (_LOAD, _RESUME) else "PROVIDER_ERROR"
            return [Finished(f"{response.method}: {response.error}", code)]
        match response.method, response.result:
            case "initialize", result:
                self._resume_method, self._accepts_images = _resume_method(result), _accepts_images(result)
                if not self._login:
                    return [Outgoing(self._open_session())]
                return [Outgoing(self._rpc.request("authenticate", {"methodId": self._login}))]
            case "authenticate", _:
                return [Outgoing(self._open_session())]
            case "session/new", {"sessionId": str(session)}:
                self._session = session
                return [SessionOpened(session), Outgoing(self._prompt())]
            case (("session/load" | "session/resume"), _):
                return [SessionOpened(self._session), Outgoing(self._prompt())]
            case "session/prompt", result:
                return self._finish_events(result)
            case _:
                return [Finished(f"{response.method}: a response without a session", "SESSION_ERROR")]

    def _open_session(self) -> JsonObject:
        place = {"cwd": self._request.cwd, "mcpServers": []}
        if self._session:
            return self._rpc.request(self._resume_method, {**place, "sessionId": self._session})
        return self._rpc.request(_NEW, place)

    def _prompt(self) -> JsonObject:
        """Return the prompt. The protocol has no system prompt, so that goes before the user's text."""
        self._prompted = True
        system = self._request.system_prompt
        blocks = [f"<instructions>\n{system}\n</instructions>"] if system else []
        content = [{"type": "text", "text": text} for text in (*blocks, self._request.prompt)]
        if self._accepts_images:
            images = self._request.images
            content += [{"type": "image", "mimeType": p.mime_type, "data": p.data} for p in images]
        return self._rpc.request(_PROMPT, {"sessionId": self._session, "prompt": content})

    def _permission_events(self, key: Any, params: Mapping[str, Any]) -> list[Event]:
        match params:
            case {"toolCall": dict() as call, "options": [*options]}:
                self._options[str(key)] = options
                return [*self._call_events(call), PermissionRequest(key, _tool(call), _arguments(call))]
            case _:
                return [Outgoing(self._rpc.error_response(key))]

    def _update_events(self, update: Mapping[str, Any]) -> list[Event]:
        match update:
            case {"sessionUpdate": "agent_message_chunk", "content": content}:
                return [TextChunk(text)] if (text := content_text(content)) else []
            case {"sessionUpdate": "agent_thought_chunk", "content": content}:
                return [TextChunk(text, reasoning=True)] if (text := content_text(content)) else []
            case {"sessionUpdate": "tool_call" | "tool_call_update", "toolCallId": str()}:
                return self._tool_call(update)
            case _:
                return []

    def _note_cost(self, update: Mapping[str, Any]) -> list[Event]:
        match update:
            case {"cost": {"amount": int() | float() as amount, "currency": "USD"}} if self._prompted:
                self._session_cost = float(amount)
            case {"cost": {"amount": int() | float() as amount, "currency": "USD"}}:
                self._cost_before = float(amount)
            case _:
                pass
        return []

    def _finish_events(self, result: Mapping[str, Any]) -> list[Event]:
        """Return the usage and the end.

        OpenCode counts the tokens of its last step only, and the cost of the whole session.
        """
        usage, total = _usage(result), self._session_cost
        if total is not None:
            spent = total - self._cost_before if total >= self._cost_before else total
            usage = structs.replace(usage or Usage(0, 0), cost=spent, session_cost=total)
        events: list[Event] = [] if usage is None else [usage]
        reason = result.get("stopReason")
        if reason in ("refusal", "cancelled"):
            return [*events, Finished(f"the program stopped with reason {reason!r}")]
        return [*events, Finished()]

    def _tool_call(self, call: Mapping[str, Any]) -> list[Event]:
        """Report a call with its first status that is not "pending": only then its arguments are complete."""
        status = call.get("status")
        events = [] if status == "pending" else self._call_events(call)
        call_id = call["toolCallId"]
        if status in ("completed", "failed") and call_id not in self._returned:
            self._returned.add(call_id)
            events.append(ToolResult(call_id, _output(call), status == "failed"))
        return events

    def _call_events(self, call: Mapping[str, Any]) -> list[Event]:
        call_id = call.get("toolCallId")
        if not isinstance(call_id, str) or call_id in self._called:
            return []
        self._called.add(call_id)
        return [ToolCall(call_id, _tool(call), _arguments(call))]


def _resume_method(result: Mapping[str, Any]) -> str:
    """Return the method for resuming a session, if possible the one that replays no messages."""
    match result:
        case {"agentCapabilities": {"sessionCapabilities": {"resume": dict()}}}:
            return _RESUME
        case _:
            return _LOAD


def _accepts_images(result: Mapping[str, Any]) -> bool:
    """Return whether the program accepts images."""
    match result:
        case {"agentCapabilities": {"promptCapabilities": {"image": True}}}:
            return True
        case _:
            return False


def _tool(call: Mapping[str, Any]) -> str:
    """Return the kind of a tool: the protocol has no tool names."""
    return str(call.get("kind") or "tool")


def _arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    raw = call.get("rawInput")
    title = {"title": call["title"]} if call.get("title") else {}
    paths = [place.get("path") for place in call.get("locations") or () if isinstance(place, dict)]
    places = {"paths": paths} if paths else {}
    changes = [c for c in call.get("content") or () if isinstance(c, dict) and c.get("type") == "diff"]
    diffs = {"changes": changes} if changes else {}
    return {**title, **places, **diffs, **(raw if isinstance(raw, dict) else {})}


def _output(call: Mapping[str, Any]) -> str:
    return content_text(call.get("content")) or content_text(call.get("rawOutput"))


def _usage(result: Mapping[str, Any]) -> Usage | None:
    match result:
        case {"usage": {"inputTokens": _} as used}:
            # The kinds of tokens do not overlap: the input excludes the cache, the output the reasoning.
            given = sum_counts(used, "inputTokens", "cachedReadTokens", "cachedWriteTokens")
            made = sum_counts(used, "outputTokens", "thoughtTokens")
            return Usage(given, made, sum_counts(used, "cachedReadTokens"))
        case {"_meta": {"quota": {"token_count": dict() as used}}}:
            return Usage(sum_counts(used, "input_tokens"), sum_counts(used, "output_tokens"))
        case _:
            return None
