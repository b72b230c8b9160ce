"""JSON-RPC over lines, as a talk needs it: one question of ours at a time, theirs whenever they come."""

# What programs send has no type; it is matched by its shape where it is read.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from plugins.cli_backends.talk import Line


class Answer(Struct, frozen=True):
    """What became of our last request: its result, or the error's words."""

    method: str
    result: Mapping[str, Any]
    error: str = ""


class Rpc:
    """Numbers our requests, and knows which of them an answer belongs to."""

    def __init__(self, version: Mapping[str, Any]) -> None:
        self._version = version
        self._sent: dict[int, str] = {}
        self._next = 1

    def request(self, method: str, params: Mapping[str, Any]) -> Line:
        """Return a new request to the program."""
        number, self._next = self._next, self._next + 1
        self._sent[number] = method
        return {**self._version, "id": number, "method": method, "params": params}

    def notice(self, method: str) -> Line:
        """Return a notification, which needs no answer."""
        return {**self._version, "method": method}

    def reply(self, key: Any, result: Mapping[str, Any]) -> Line:
        """Return the answer to a request from the program."""
        return {**self._version, "id": key, "result": result}

    def refusal(self, key: Any) -> Line:
        """Return the error for a request of an unknown method."""
        return {**self._version, "id": key, "error": {"code": -32601, "message": "not supported"}}

    def answered(self, line: Line) -> Answer | None:
        """The answer to a request of ours, if the line is one."""
        if "method" in line or not isinstance(number := line.get("id"), int) or number not in self._sent:
            return None
        method = self._sent.pop(number)
        match line.get("error"):
            case None:
                result = line.get("result")
                return Answer(method, result if isinstance(result, dict) else {})
            case {"message": str(message), **rest}:
                detail = rest.get("data")
                more = f" ({detail})" if isinstance(detail, str) and detail != message else ""
                return Answer(method, {}, f"{message}{more}")
            case error:
                return Answer(method, {}, str(error))
