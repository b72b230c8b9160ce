"""Codex: the protocol of its app server, which streams and asks."""

# What programs send has no type; it is matched by its shape where it is read.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from plugins.cli_backends.adapters.cli import Cli
from plugins.cli_backends.adapters.protocol import (
    Answer,
    Ended,
    Event,
    Line,
    Order,
    Permission,
    Rpc,
    Send,
    Session,
    count_in,
    text_of,
)
from plugins.cli_backends.contract import Called, Returned, Said, Spent

KEY = "OPENAI_API_KEY"
_RESUME = "thread/resume"


class CodexTalk:
    """One dispatch: a handshake, a thread that is begun or resumed, and one turn of it."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._rpc = Rpc({})
        self._thread = order.session or ""
        self._streamed: set[str] = set()
        self._changes: dict[str, Mapping[str, Any]] = {}

    def arguments(self) -> list[str]:
        """The app server on its pipes. Settings in its folder do not count: they could run programs."""
        url = self._order.variables.get("OPENAI_BASE_URL")
        place = msgspec.json.encode(self._order.cwd).decode()
        return [
            "app-server",
            *("-c", f'projects={{{place}={{trust_level="untrusted"}}}}'),
            *(("-c", f'openai_base_url="{url}"') if url else ()),
        ]

    def begin(self) -> Sequence[Line]:
        """The handshake."""
        client = {"name": "trunkline", "title": "Trunkline", "version": "1"}
        return [self._rpc.request("initialize", {"clientInfo": client})]

    def hear(self, line: Line) -> Sequence[Event]:
        """One message."""
        if answer := self._rpc.answered(line):
            return self._answered(answer)
        match line:
            case {"method": str(method), "id": key, "params": dict() as params}:
                return [self._asked(method, key, params)]
            case {"method": str(method), "params": dict() as params}:
                return self._told(method, params)
            case _:
                return []

    def decide(self, asked: Permission, allowed: bool) -> Sequence[Line]:
        """Declined is the one call; the turn goes on."""
        return [self._rpc.reply(asked.key, {"decision": "accept" if allowed else "decline"})]

    def _answered(self, answer: Answer) -> list[Event]:
        if answer.error:
            code = "SESSION_ERROR" if answer.method == _RESUME else "PROVIDER_ERROR"
            return [Ended(f"{answer.method}: {answer.error}", code)]
        match answer.method, answer.result:
            case "initialize", _:
                return [
                    Send(self._rpc.notice("initialized")),
                    Send(self._rpc.request("account/read", {"refreshToken": False})),
                ]
            case "account/read", {"account": None, "requiresOpenaiAuth": True} if self._key:
                login = {"type": "apiKey", "apiKey": self._key}
                return [Send(self._rpc.request("account/login/start", login))]
            case (("account/read" | "account/login/start"), _):
                return [Send(self._opening())]
            case (("thread/start" | "thread/resume"), {"thread": {"id": str(thread)}}):
                self._thread = thread
                turn = {"threadId": thread, "input": self._input()}
                return [Session(thread), Send(self._rpc.request("turn/start", turn))]
            case _:
                return []

    def _input(self) -> list[Line]:
        pictures = [f"data:{picture.mime_type};base64,{picture.data}" for picture in self._order.images]
        images: list[Line] = [{"type": "image", "url": picture} for picture in pictures]
        return [*images, {"type": "text", "text": self._order.prompt}]

    @property
    def _key(self) -> str | None:
        return self._order.variables.get(KEY)

    def _opening(self) -> Line:
        order = self._order
        # Writing in its folder is its own affair; beyond it, and beyond its sandbox, it asks.
        given: dict[str, Any] = {
            "cwd": order.cwd,
            "approvalPolicy": "on-request",
            "sandbox": "workspace-write",
            "developerInstructions": order.system_prompt or None,
            "model": order.model or None,
        }
        params = {name: value for name, value in given.items() if value is not None}
        if order.session:
            return self._rpc.request(_RESUME, {**params, "threadId": order.session})
        return self._rpc.request("thread/start", params)

    def _asked(self, method: str, key: Any, params: Mapping[str, Any]) -> Event:
        match method:
            case "item/commandExecution/requestApproval":
                names = ("command", "cwd", "reason")
                told = {name: params[name] for name in names if params.get(name)}
                return Permission(key, "shell", told)
            case "item/fileChange/requestApproval":
                change = self._changes.get(str(params.get("itemId")), {})
                reason = {"reason": params["reason"]} if params.get("reason") else {}
                return Permission(key, "file_change", {**change, **reason})
            case _:
                return Send(self._rpc.refusal(key))

    def _told(self, method: str, params: Mapping[str, Any]) -> list[Event]:
        match method, params:
            case "item/agentMessage/delta", {"itemId": str(item), "delta": str(text)}:
                self._streamed.add(item)
                return [Said(text)]
            case (("item/reasoning/textDelta" | "item/reasoning/summaryTextDelta"), {"delta": str(text)}):
                return [Said(text, reasoning=True)]
            case "item/started", {"item": dict() as item}:
                return self._started(item)
            case "item/completed", {"item": dict() as item}:
                return self._completed(item)
            case "thread/tokenUsage/updated", {"tokenUsage": {"total": dict() as used}}:
                cached = count_in(used, "cachedInputTokens")
                return [Spent(count_in(used, "inputTokens"), count_in(used, "outputTokens"), cached)]
            case "turn/completed", {"turn": dict() as turn}:
                return [_ended(turn)]
            case _:
                return []

    def _started(self, item: Mapping[str, Any]) -> list[Event]:
        match item:
            case {"type": "commandExecution", "id": str(id), "command": command, "cwd": cwd}:
                return [Called(id, "shell", {"command": command, "cwd": cwd})]
            case {"type": "fileChange", "id": str(id), "changes": [*changes]}:
                self._changes[id] = {"changes": [_change(change) for change in changes]}
                return [Called(id, "file_change", self._changes[id])]
            case {"type": "mcpToolCall", "id": str(id), "server": server, "tool": tool}:
                arguments = item.get("arguments")
                return [Called(id, f"{server}.{tool}", arguments if isinstance(arguments, dict) else {})]
            case {"type": "webSearch", "id": str(id)}:
                return [Called(id, "web_search", {"query": item.get("query")})]
            case _:
                return []

    def _completed(self, item: Mapping[str, Any]) -> list[Event]:
        failed = item.get("status") in ("failed", "declined")
        match item:
            case {"type": "agentMessage", "id": str(id), "text": str(text)}:
                known = id in self._streamed
                self._streamed.discard(id)
                return [] if known or not text else [Said(text)]
            case {"type": "commandExecution", "id": str(id)}:
                output = item.get("aggregatedOutput") or ("declined" if failed else "")
                return [Returned(id, output, failed or bool(item.get("exitCode")))]
            case {"type": "mcpToolCall", "id": str(id)}:
                result = item.get("error") or item.get("result") or {}
                return [Returned(id, text_of(result.get("content") or result.get("message")), failed)]
            case {"type": "fileChange" | "webSearch", "id": str(id)}:
                return [Returned(id, str(item.get("status") or "done"), failed)]
            case _:
                return []


def _change(change: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: change[name] for name in ("path", "kind", "diff") if name in change}


def _ended(turn: Mapping[str, Any]) -> Ended:
    match turn:
        case {"status": "completed"}:
            return Ended()
        case {"error": {"message": str(message)}}:
            return Ended(message)
        case _:
            return Ended(f"the turn was {turn.get('status')}")


CLI = Cli(
    name="codex",
    title="Codex",
    binary="codex",
    install="npm install -g @openai/codex",
    key=KEY,
    variables=(KEY, "OPENAI_BASE_URL", "CODEX_HOME"),
    url="OPENAI_BASE_URL",
    talk=CodexTalk,
)
