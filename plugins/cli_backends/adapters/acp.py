"""The Agent Client Protocol, which several coding programs speak on their pipes."""

# What programs send has no type; it is matched by its shape where it is read.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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

VERSION = 1
_NEW, _LOAD, _RESUME, _PROMPT = "session/new", "session/load", "session/resume", "session/prompt"


class AcpTalk:
    """One dispatch: a handshake, a session that is begun or resumed, and one prompt in it.

    ``login`` is the way of logging in to ask for, if any. A loaded session repeats what was said in it;
    until the prompt is sent, nothing that comes is of this dispatch.
    """

    def __init__(self, order: Order, login: str = "") -> None:
        self._order = order
        self._login = login
        self._rpc = Rpc({"jsonrpc": "2.0"})
        self._session = order.session or ""
        self._resumes = _LOAD
        self._sees = self._prompted = False
        self._called: set[str] = set()
        self._returned: set[str] = set()
        self._options: dict[str, Sequence[Mapping[str, Any]]] = {}

    def begin(self) -> Sequence[Line]:
        """The handshake. Files are the program's own affair, not ours."""
        files = {"readTextFile": False, "writeTextFile": False}
        client = {"protocolVersion": VERSION, "clientCapabilities": {"fs": files, "terminal": False}}
        return [self._rpc.request("initialize", client)]

    def hear(self, line: Line) -> Sequence[Event]:
        """One message."""
        if answer := self._rpc.answered(line):
            return self._answered(answer)
        match line:
            case {"method": "session/update", "params": {"update": dict() as update}}:
                return self._updated(update) if self._prompted else []
            case {"method": "session/request_permission", "id": key, "params": dict() as params}:
                return self._asked(key, params)
            case {"method": str(), "id": key}:
                return [Send(self._rpc.refusal(key))]
            case _:
                return []

    def decide(self, asked: Permission, allowed: bool) -> Sequence[Line]:
        """Choose among the answers that were offered; none of them fits: cancelled."""
        wanted = ("allow_once",) if allowed else ("reject_once", "reject_always")
        options = self._options.pop(str(asked.key), ())
        for kind in wanted:
            for option in options:
                if option.get("kind") == kind:
                    chosen = {"outcome": "selected", "optionId": option.get("optionId")}
                    return [self._rpc.reply(asked.key, {"outcome": chosen})]
        return [self._rpc.reply(asked.key, {"outcome": {"outcome": "cancelled"}})]

    def _answered(self, answer: Answer) -> list[Event]:
        if answer.error:
            lost = answer.method in (_LOAD, _RESUME)
            return [Ended(f"{answer.method}: {answer.error}", "SESSION_ERROR" if lost else "PROVIDER_ERROR")]
        match answer.method, answer.result:
            case "initialize", result:
                self._resumes, self._sees = _way_back(result), _sees(result)
                login = {"methodId": self._login}
                return [Send(self._rpc.request("authenticate", login) if self._login else self._opening())]
            case "authenticate", _:
                return [Send(self._opening())]
            case "session/new", {"sessionId": str(session)}:
                self._session = session
                return [Session(session), Send(self._prompt())]
            case (("session/load" | "session/resume"), _):
                return [Session(self._session), Send(self._prompt())]
            case "session/prompt", result:
                return _ended(result)
            case _:
                return [Ended(f"{answer.method}: an answer without a session", "SESSION_ERROR")]

    def _opening(self) -> Line:
        place = {"cwd": self._order.cwd, "mcpServers": []}
        if self._session:
            return self._rpc.request(self._resumes, {**place, "sessionId": self._session})
        return self._rpc.request(_NEW, place)

    def _prompt(self) -> Line:
        """This protocol knows no system prompt, so it comes with the user's words."""
        self._prompted = True
        system = self._order.system_prompt
        blocks = [f"<instructions>\n{system}\n</instructions>"] if system else []
        content = [{"type": "text", "text": text} for text in (*blocks, self._order.prompt)]
        if self._sees:
            images = self._order.images
            content += [{"type": "image", "mimeType": p.mime_type, "data": p.data} for p in images]
        return self._rpc.request(_PROMPT, {"sessionId": self._session, "prompt": content})

    def _asked(self, key: Any, params: Mapping[str, Any]) -> list[Event]:
        match params:
            case {"toolCall": dict() as call, "options": [*options]}:
                self._options[str(key)] = options
                return [*self._begun(call), Permission(key, _tool(call), _arguments(call))]
            case _:
                return [Send(self._rpc.refusal(key))]

    def _updated(self, update: Mapping[str, Any]) -> list[Event]:
        match update:
            case {"sessionUpdate": "agent_message_chunk", "content": content}:
                return [Said(text)] if (text := text_of(content)) else []
            case {"sessionUpdate": "agent_thought_chunk", "content": content}:
                return [Said(text, reasoning=True)] if (text := text_of(content)) else []
            case {"sessionUpdate": "tool_call" | "tool_call_update", "toolCallId": str()}:
                return self._tool_call(update)
            case _:
                return []

    def _tool_call(self, call: Mapping[str, Any]) -> list[Event]:
        """A call is told once its arguments are whole: with its second sign of life, or its end."""
        status = call.get("status")
        events = [] if status == "pending" else self._begun(call)
        id = call["toolCallId"]
        if status in ("completed", "failed") and id not in self._returned:
            self._returned.add(id)
            events.append(Returned(id, _output(call), status == "failed"))
        return events

    def _begun(self, call: Mapping[str, Any]) -> list[Event]:
        id = call.get("toolCallId")
        if not isinstance(id, str) or id in self._called:
            return []
        self._called.add(id)
        return [Called(id, _tool(call), _arguments(call))]


def _way_back(result: Mapping[str, Any]) -> str:
    """How a session is taken up: by resuming, which is silent, or by loading, which repeats it."""
    match result:
        case {"agentCapabilities": {"sessionCapabilities": {"resume": dict()}}}:
            return _RESUME
        case _:
            return _LOAD


def _sees(result: Mapping[str, Any]) -> bool:
    """Return whether the program accepts pictures."""
    match result:
        case {"agentCapabilities": {"promptCapabilities": {"image": True}}}:
            return True
        case _:
            return False


def _tool(call: Mapping[str, Any]) -> str:
    """The protocol has no names of tools, but kinds of them."""
    return str(call.get("kind") or "tool")


def _arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    raw = call.get("rawInput")
    told = {"title": call["title"]} if call.get("title") else {}
    paths = [place.get("path") for place in call.get("locations") or () if isinstance(place, dict)]
    places = {"paths": paths} if paths else {}
    changes = [c for c in call.get("content") or () if isinstance(c, dict) and c.get("type") == "diff"]
    shown = {"changes": changes} if changes else {}
    return {**told, **places, **shown, **(raw if isinstance(raw, dict) else {})}


def _output(call: Mapping[str, Any]) -> str:
    return text_of(call.get("content")) or text_of(call.get("rawOutput"))


def _ended(result: Mapping[str, Any]) -> list[Event]:
    match result:
        case {"usage": {"inputTokens": _} as used}:
            cached = count_in(used, "cachedReadTokens")
            spent = [Spent(count_in(used, "inputTokens"), count_in(used, "outputTokens"), cached)]
        case {"_meta": {"quota": {"token_count": dict() as used}}}:
            spent = [Spent(count_in(used, "input_tokens"), count_in(used, "output_tokens"))]
        case _:
            spent = []
    reason = result.get("stopReason")
    if reason in ("refusal", "cancelled"):
        return [*spent, Ended(f"it stopped: {reason}")]
    return [*spent, Ended()]
