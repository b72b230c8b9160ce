"""Codex: the protocol of its app server, with streaming and permission requests."""

# Messages of programs have no types; `match` statements check their shape.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from plugins.cli_backends.adapters.cli import Cli
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
from plugins.programs.catalog import CODEX

KEY = "OPENAI_API_KEY"
_COUNTS = ("inputTokens", "outputTokens", "cachedInputTokens")
_RESUME = "thread/resume"


class CodexAdapter:
    """One dispatch: a handshake, a thread that is created or resumed, and one turn in it."""

    def __init__(self, request: ProgramRequest) -> None:
        self._request = request
        self._rpc = JsonRpc({})
        self._streamed: set[str] = set()
        self._changes: dict[str, Mapping[str, Any]] = {}
        self._turn = ""
        self._used_before: list[int] | None = None
        """The counts of the thread before this turn."""

    def arguments(self) -> list[str]:
        """Return the arguments of the app server. Codex ignores the settings of an untrusted folder."""
        url = self._request.variables.get("OPENAI_BASE_URL")
        place = msgspec.json.encode(self._request.cwd).decode()
        return [
            "app-server",
            *("-c", f'projects={{{place}={{trust_level="untrusted"}}}}'),
            *(("-c", f'openai_base_url="{url}"') if url else ()),
        ]

    def begin(self) -> Sequence[JsonObject]:
        """Return the handshake."""
        client = {"name": "trunkline", "title": "Trunkline", "version": "1"}
        return [self._rpc.request("initialize", {"clientInfo": client})]

    def read(self, message: JsonObject) -> Sequence[Event]:
        """Translate a message of the program into events."""
        if response := self._rpc.match_response(message):
            return self._handle_response(response)
        match message:
            case {"method": str(method), "id": key, "params": dict() as params}:
                return [self._request_event(method, key, params)]
            case {"method": str(method), "params": dict() as params}:
                return self._notification_events(method, params)
            case _:
                return []

    def decide(self, request: PermissionRequest, allowed: bool) -> Sequence[JsonObject]:
        """Accept or decline the call. After a decline the turn continues."""
        return [self._rpc.response(request.key, {"decision": "accept" if allowed else "decline"})]

    def _handle_response(self, response: RpcResponse) -> list[Event]:
        if response.error:
            code = "SESSION_ERROR" if response.method == _RESUME else "PROVIDER_ERROR"
            return [Finished(f"{response.method}: {response.error}", code)]
        match response.method, response.result:
            case "initialize", _:
                return [
                    Outgoing(self._rpc.notification("initialized")),
                    Outgoing(self._rpc.request("account/read", {"refreshToken": False})),
                ]
            case "account/read", {"account": None, "requiresOpenaiAuth": True} if self._key:
                login = {"type": "apiKey", "apiKey": self._key}
                return [Outgoing(self._rpc.request("account/login/start", login))]
            case (("account/read" | "account/login/start"), _):
                return [Outgoing(self._open_thread())]
            case (("thread/start" | "thread/resume"), {"thread": {"id": str(thread)}}):
                turn = {"threadId": thread, "input": self._input()}
                return [SessionOpened(thread), Outgoing(self._rpc.request("turn/start", turn))]
            case "turn/start", {"turn": {"id": str(turn)}}:
                self._turn = turn
                return []
            case _:
                return []

    def _input(self) -> list[JsonObject]:
        images: list[JsonObject] = [
            {"type": "image", "url": f"data:{image.mime_type};base64,{image.data}"}
            for image in self._request.images
        ]
        return [*images, {"type": "text", "text": self._request.prompt}]

    @property
    def _key(self) -> str | None:
        return self._request.variables.get(KEY)

    def _open_thread(self) -> JsonObject:
        request = self._request
        # Codex may write in its folder; it asks before it leaves the folder or its sandbox. Its tools cannot
        # be left out one by one, but without the right to change files its sandbox is read-only.
        may_write = request.tools is None or "file_change" in request.tools
        given: dict[str, Any] = {
            "cwd": request.cwd,
            "approvalPolicy": "on-request",
            "sandbox": "workspace-write" if may_write else "read-only",
            "developerInstructions": request.system_prompt or None,
            "model": request.model or None,
        }
        params = {name: value for name, value in given.items() if value is not None}
        if request.session:
            return self._rpc.request(_RESUME, {**params, "threadId": request.session})
        return self._rpc.request("thread/start", params)

    def _request_event(self, method: str, key: Any, params: Mapping[str, Any]) -> Event:
        match method:
            case "item/commandExecution/requestApproval":
                names = ("command", "cwd", "reason")
                details = {name: params[name] for name in names if params.get(name)}
                return PermissionRequest(key, "shell", details)
            case "item/fileChange/requestApproval":
                change = self._changes.get(str(params.get("itemId")), {})
                reason = {"reason": params["reason"]} if params.get("reason") else {}
                return PermissionRequest(key, "file_change", {**change, **reason})
            case _:
                return Outgoing(self._rpc.error_response(key))

    def _notification_events(self, method: str, params: Mapping[str, Any]) -> list[Event]:
        match method, params:
            case "item/agentMessage/delta", {"itemId": str(item), "delta": str(text)}:
                self._streamed.add(item)
                return [TextChunk(text)]
            case (("item/reasoning/textDelta" | "item/reasoning/summaryTextDelta"), {"delta": str(text)}):
                return [TextChunk(text, reasoning=True)]
            case "item/started", {"item": dict() as item}:
                return self._started(item)
            case "item/completed", {"item": dict() as item}:
                return self._completed(item)
            case "thread/tokenUsage/updated", {"tokenUsage": {"total": dict(), "last": dict()} as used}:
                return self._usage(str(params.get("turnId")), used["total"], used["last"])
            case "turn/completed", {"turn": dict() as turn}:
                return [_finished(turn)]
            case _:
                return []

    def _usage(self, turn: str, total: Mapping[str, Any], last: Mapping[str, Any]) -> list[Event]:
        """Return the usage of this turn: the program counts that of the whole thread."""
        counts = [sum_counts(total, name) for name in _COUNTS]
        if turn != self._turn:
            # A resumed thread begins with the counts of its earlier turns.
            self._used_before = counts
            return []
        if self._used_before is None:
            self._used_before = [
                count - sum_counts(last, name) for count, name in zip(counts, _COUNTS, strict=True)
            ]
        used = [max(0, count - before) for count, before in zip(counts, self._used_before, strict=True)]
        return [Usage(*used)]

    def _started(self, item: Mapping[str, Any]) -> list[Event]:
        match item:
            case {"type": "commandExecution", "id": str(id), "command": command, "cwd": cwd}:
                return [ToolCall(id, "shell", {"command": command, "cwd": cwd})]
            case {"type": "fileChange", "id": str(id), "changes": [*changes]}:
                self._changes[id] = {"changes": [_change(change) for change in changes]}
                return [ToolCall(id, "file_change", self._changes[id])]
            case {"type": "mcpToolCall", "id": str(id), "server": server, "tool": tool}:
                arguments = item.get("arguments")
                return [ToolCall(id, f"{server}.{tool}", arguments if isinstance(arguments, dict) else {})]
            case {"type": "webSearch", "id": str(id)}:
                return [ToolCall(id, "web_search", {"query": item.get("query")})]
            case _:
                return []

    def _completed(self, item: Mapping[str, Any]) -> list[Event]:
        failed = item.get("status") in ("failed", "declined")
        match item:
            case {"type": "agentMessage", "id": str(id), "text": str(text)}:
                known = id in self._streamed
                self._streamed.discard(id)
                return [] if known or not text else [TextChunk(text)]
            case {"type": "commandExecution", "id": str(id)}:
                output = item.get("aggregatedOutput") or ("declined" if failed else "")
                return [ToolResult(id, output, failed or bool(item.get("exitCode")))]
            case {"type": "mcpToolCall", "id": str(id)}:
                result = item.get("error") or item.get("result") or {}
                return [ToolResult(id, content_text(result.get("content") or result.get("message")), failed)]
            case {"type": "fileChange" | "webSearch", "id": str(id)}:
                return [ToolResult(id, str(item.get("status") or "done"), failed)]
            case _:
                return []


def _change(change: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: change[name] for name in ("path", "kind", "diff") if name in change}


def _finished(turn: Mapping[str, Any]) -> Finished:
    match turn:
        case {"status": "completed"}:
            return Finished()
        case {"error": {"message": str(message)}}:
            return Finished(message)
        case _:
            return Finished(f"the turn was {turn.get('status')}")


CLI = Cli(
    name="codex",
    program=CODEX,
    adapter=CodexAdapter,
)
