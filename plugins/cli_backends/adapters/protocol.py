"""How a dispatch is talked over with a program: what it is told, and what its messages mean.

A talk does no I/O. It makes lines to send and reads lines that came, for one dispatch.
"""

# What programs send has no type; it is matched by its shape where it is read.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from plugins.cli_backends.contract import Called, Code, Picture, Returned, Said, Spent

Line = Mapping[str, Any]
"""One message of a program, or for it: a JSON object."""


class Order(Struct, frozen=True):
    """What a program is to do. ``session`` is the one to resume, if there is one."""

    prompt: str
    system_prompt: str
    model: str
    cwd: str
    session: str | None = None
    variables: Mapping[str, str] = {}
    """The environment that the program has."""
    images: tuple[Picture, ...] = ()


class Permission(Struct, frozen=True):
    """The program asks whether it may. ``key`` is how it knows the question."""

    key: Any
    tool: str
    arguments: Mapping[str, Any]


class Session(Struct, frozen=True):
    """The program's own name for the conversation, by which it can be resumed."""

    id: str


class Send(Struct, frozen=True):
    """Something to tell the program now."""

    line: Line


class Ended(Struct, frozen=True):
    """The program is done; with a ``problem`` it has failed. ``turns`` counts its calls of the model."""

    problem: str = ""
    code: Code = "PROVIDER_ERROR"
    turns: int | None = None


Event = Said | Called | Returned | Permission | Session | Spent | Send | Ended


class Talk(Protocol):
    """One dispatch in a program's own protocol."""

    def begin(self) -> Sequence[Line]:
        """What to send first."""
        ...

    def hear(self, line: Line) -> Sequence[Event]:
        """What a message means. Messages of kinds that are not known mean nothing."""
        ...

    def decide(self, asked: Permission, allowed: bool) -> Sequence[Line]:
        """The answer to a question."""
        ...


def text_of(content: object) -> str:
    """The text in what programs give as content: a string, a block, or a list of blocks."""
    match content:
        case str():
            return content
        case {"type": "content", "content": inner}:
            return text_of(inner)
        case {"text": str(text)}:
            return text
        case {"type": "diff", "path": path}:
            return f"changed {path}"
        case [*blocks]:
            return "\n".join(filter(None, map(text_of, blocks)))
        case None:
            return ""
        case _:
            return msgspec.json.encode(content).decode()


def count_in(usage: Mapping[str, Any], *names: str) -> int:
    """The sum of some counts; what is missing or no number counts 0."""
    counts = (usage.get(name) for name in names)
    return sum(count for count in counts if isinstance(count, int))


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
