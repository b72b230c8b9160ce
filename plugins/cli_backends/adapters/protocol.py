"""Terms of all adapters: a request for a program, events from it, the adapter itself, and JSON-RPC.

An adapter does no I/O. For one dispatch it builds messages for the program and translates those it sends.
"""

# Messages of programs have no types; `match` statements check their shape.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from plugins.cli_backends.contract import Code, Image, TextChunk, ToolCall, ToolResult, Usage

JsonObject = Mapping[str, Any]
"""A message to or from a program."""


class ProgramRequest(Struct, frozen=True):
    """The input of one dispatch. ``session`` is the program's session to resume, or None for a new one.

    ``session_cost`` is the cost that the program reported for that session so far, in US dollars.
    ``tools`` are the program's own tools that it may have; None is all.
    """

    prompt: str
    system_prompt: str
    model: str
    cwd: str
    session: str | None = None
    session_cost: float = 0.0
    variables: Mapping[str, str] = {}
    """The environment variables of the program."""
    images: tuple[Image, ...] = ()
    tools: tuple[str, ...] | None = None


class PermissionRequest(Struct, frozen=True):
    """A request of the program to run a tool. ``key`` identifies the request in the program's protocol."""

    key: Any
    tool: str
    arguments: Mapping[str, Any]


class SessionOpened(Struct, frozen=True):
    """The program's id of its session, with which a later dispatch can resume it."""

    id: str


class Outgoing(Struct, frozen=True):
    """A message that the adapter sends to the program in response."""

    message: JsonObject


class Finished(Struct, frozen=True):
    """The end of the dispatch. ``error`` is empty on success; ``turns`` counts the program's model calls."""

    error: str = ""
    code: Code = "PROVIDER_ERROR"
    turns: int | None = None


Event = TextChunk | ToolCall | ToolResult | PermissionRequest | SessionOpened | Usage | Outgoing | Finished


class Adapter(Protocol):
    """One dispatch in the protocol of a program."""

    def arguments(self) -> list[str]:
        """Return the program's arguments; those of the settings follow them."""
        ...

    def begin(self) -> Sequence[JsonObject]:
        """Return the first messages to send."""
        ...

    def read(self, message: JsonObject) -> Sequence[Event]:
        """Translate a message of the program into events; an unknown kind gives none."""
        ...

    def decide(self, request: PermissionRequest, allowed: bool) -> Sequence[JsonObject]:
        """Return the messages that answer a permission request."""
        ...


def content_text(content: object) -> str:
    """Return the text of a program's content: a string, a block or a list of blocks."""
    match content:
        case str():
            return content
        case {"type": "content", "content": inner}:
            return content_text(inner)
        case {"text": str(text)}:
            return text
        case {"type": "diff", "path": path}:
            return f"changed {path}"
        case [*blocks]:
            return "\n".join(filter(None, map(content_text, blocks)))
        case None:
            return ""
        case _:
            return msgspec.json.encode(content).decode()


def sum_counts(usage: Mapping[str, Any], *names: str) -> int:
    """Return the sum of some token counts; a missing or invalid one counts 0."""
    counts = (usage.get(name) for name in names)
    return sum(count for count in counts if isinstance(count, int))


class RpcResponse(Struct, frozen=True):
    """The response to one of our requests: its result, or the text of its error."""

    method: str
    result: Mapping[str, Any]
    error: str = ""


class JsonRpc:
    """JSON-RPC over lines: numbers our requests and matches responses to them."""

    def __init__(self, version: Mapping[str, Any]) -> None:
        self._version = version
        self._sent: dict[int, str] = {}
        self._next = 1

    def request(self, method: str, params: Mapping[str, Any]) -> JsonObject:
        """Return a new request to the program."""
        number, self._next = self._next, self._next + 1
        self._sent[number] = method
        return {**self._version, "id": number, "method": method, "params": params}

    def notification(self, method: str) -> JsonObject:
        """Return a notification, which has no response."""
        return {**self._version, "method": method}

    def response(self, key: Any, result: Mapping[str, Any]) -> JsonObject:
        """Return the response to a request of the program."""
        return {**self._version, "id": key, "result": result}

    def error_response(self, key: Any) -> JsonObject:
        """Return the error response to a request with an unknown method."""
        return {**self._version, "id": key, "error": {"code": -32601, "message": "not supported"}}

    def match_response(self, message: JsonObject) -> RpcResponse | None:
        """Return the response in a message, or None if it is not one to a request of ours."""
        number = message.get("id")
        if "method" in message or not isinstance(number, int) or number not in self._sent:
            return None
        method = self._sent.pop(number)
        match message.get("error"):
            case None:
                result = message.get("result")
                return RpcResponse(method, result if isinstance(result, dict) else {})
            case {"message": str(text), **rest}:
                detail = rest.get("data")
                more = f" ({detail})" if isinstance(detail, str) and detail != text else ""
                return RpcResponse(method, {}, f"{text}{more}")
            case error:
                return RpcResponse(method, {}, str(error))
