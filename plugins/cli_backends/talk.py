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

from plugins.cli_backends.failures import Code

Line = Mapping[str, Any]
"""One message of a program, or for it: a JSON object."""


class Picture(Struct, frozen=True):
    """A picture that goes with a prompt; ``data`` is base64."""

    mime_type: str
    data: str


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


class Said(Struct, frozen=True):
    """More of the answer, or of the reasoning before it."""

    text: str
    reasoning: bool = False


class Called(Struct, frozen=True):
    """The program uses one of its tools."""

    id: str
    tool: str
    arguments: Mapping[str, Any]


class Returned(Struct, frozen=True):
    """A tool of the program is done."""

    id: str
    output: str
    is_error: bool = False


class Permission(Struct, frozen=True):
    """The program asks whether it may. ``key`` is how it knows the question."""

    key: Any
    tool: str
    arguments: Mapping[str, Any]


class Session(Struct, frozen=True):
    """The program's own name for the conversation, by which it can be resumed."""

    id: str


class Spent(Struct, frozen=True):
    """Tokens so far, the cached ones among the input; the last word counts. ``cost`` is US dollars."""

    input: int
    output: int
    cached: int = 0
    cost: float | None = None


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
