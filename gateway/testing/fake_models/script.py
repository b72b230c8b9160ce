"""Scripts for fake models: the answer, move by move, and the ways in which it fails."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Struct

Stop = Literal["end", "length", "tools", "filter"]


class Say(Struct, frozen=True):
    """A piece of the answer, sent as one event."""

    text: str


class Think(Struct, frozen=True):
    """A piece of the reasoning, sent as one event."""

    text: str


class Use(Struct, frozen=True):
    """A tool call. ``arguments`` is JSON text, sent in ``pieces`` events."""

    name: str
    arguments: str = "{}"
    id: str = "call_1"
    pieces: int = 2

    def fragments(self) -> list[str]:
        """Return the arguments in at most ``pieces`` pieces."""
        step = max(1, -(-len(self.arguments) // self.pieces))
        return [self.arguments[at : at + step] for at in range(0, len(self.arguments), step)]


class UseTogether(Struct, frozen=True):
    """Parallel tool calls; their fragments are interleaved if the protocol allows that."""

    calls: tuple[Use, ...]


class Pause(Struct, frozen=True):
    """A pause of some milliseconds, after the moves before it were sent."""

    ms: float


class Gate(Struct, frozen=True):
    """A wait until the test sets the event, after the moves before it were sent."""

    opened: asyncio.Event


class Bytes(Struct, frozen=True):
    """Raw bytes, which may be invalid. ``times`` repeats them, with one write for each."""

    data: bytes
    times: int = 1


class Cut(Struct, frozen=True):
    """The end of the connection without an end of the answer, after the moves before it were sent."""


class Stall(Struct, frozen=True):
    """Silence on an open connection, after the moves before it were sent."""


class Forever(Struct, frozen=True):
    """An endless repetition of bytes, with a pause (milliseconds) between them."""

    data: bytes
    ms: float = 1


class Tokens(Struct, frozen=True):
    """The reported usage of an answer; cached tokens are part of the input."""

    input: int = 10
    output: int = 5
    cached: int = 0


class Count(Struct, frozen=True):
    """A report of the tokens so far, in protocols that have such reports."""

    tokens: Tokens


Move = Say | Think | Use | UseTogether | Count | Pause | Gate | Bytes | Cut | Stall | Forever


class Reply(Struct, frozen=True):
    """An answer: its moves, then a normal end. Moves between waits are sent in one write."""

    moves: tuple[Move, ...] = ()
    stop: Stop = "end"
    tokens: Tokens = Tokens()


class Refusal(Struct, frozen=True):
    """An HTTP error instead of an answer. Status 0 closes the connection before the first byte."""

    status: int
    message: str = "refused by the script"
    headers: Mapping[str, str] = {}
    code: str = ""
    body: bytes | None = None


class ModelRequest(Struct, frozen=True):
    """A request that a fake server received. Header names are in lower case."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    user_text: str = ""
    results: tuple[str, ...] = ()
    """The tool results after the user's last message."""
    tools: tuple[str, ...] = ()
    peer: str = ""
    """The client's address."""


Answer = Callable[[ModelRequest], Reply | Refusal]

_DIRECTIVE = re.compile(r"\btool:(\w+)\s*(\{.*\})?", re.DOTALL)


def words(text: str, count: int) -> list[str]:
    """Split ``text`` into ``count`` tokens; numbered words fill up a short text, the last token keeps the
    rest.
    """
    tokens = re.findall(r"\S+\s*|\s+", text)
    tokens += [f" w{number}" for number in range(len(tokens), count)]
    return [*tokens[: count - 1], "".join(tokens[count - 1 :])] if count > 0 else tokens


def echo(tokens: int = 0, delay_ms: float = 0) -> Answer:
    """Return an answer that repeats the user's last message, in ``tokens`` pieces over ``delay_ms``.

    ``tool:NAME {…}`` in the message calls that tool, if it is offered; the answer then repeats its result.
    With 0 tokens each word is one piece.
    """

    def answer(request: ModelRequest) -> Reply | Refusal:
        found = _DIRECTIVE.search(request.user_text)
        if found and found[1] in request.tools and not request.results:
            call_id = f"call_{len(request.body['messages'])}"
            return Reply((Use(found[1], found[2] or "{}", call_id),), "tools")
        text = (
            f"The tool said: {request.results[-1]}" if request.results else f"You said: {request.user_text}"
        )
        pieces = words(text, tokens)
        return Reply(paced(pieces, delay_ms), tokens=Tokens(len(text.split()), len(pieces)))

    return answer


def titling(title: str, small: str = "fake-title") -> Answer:
    """Return the title as the answer of the model ``small``; other models repeat the user."""
    repeat = echo()

    def answer(request: ModelRequest) -> Reply | Refusal:
        return Reply((Say(title),)) if request.body.get("model") == small else repeat(request)

    return answer


def paced(pieces: Sequence[str], delay_ms: float) -> tuple[Move, ...]:
    """Return moves for pieces of text with equal pauses, ``delay_ms`` in all."""
    if delay_ms <= 0:
        return tuple(map(Say, pieces))
    pause = Pause(delay_ms / max(1, len(pieces)))
    return tuple(move for piece in pieces for move in (pause, Say(piece)))


class Faults(Struct, frozen=True):
    """The shares (0 to 1) of answers that are cut off, stall, are refused with 429, or become invalid."""

    cut: float = 0
    stall: float = 0
    refuse: float = 0
    garble: float = 0

    def spoil(self, answer: Answer, seed: int) -> Answer:
        """Return the same answers, some with a fault; the seed selects which."""
        dice = random.Random(seed)  # noqa: S311 - a repeatable script, not a secret

        def faulty(request: ModelRequest) -> Reply | Refusal:
            reply = answer(request)
            roll = dice.random()
            if isinstance(reply, Refusal):
                return reply
            if roll < self.refuse:
                return Refusal(429, "slow down", {"retry-after-ms": "50"})
            roll -= self.refuse
            for share, move in (
                (self.cut, Cut()),
                (self.stall, Stall()),
                (self.garble, Bytes(b"data: {no\n\n")),
            ):
                if 0 <= roll < share:
                    keep = dice.randrange(len(reply.moves) + 1)
                    return msgspec.structs.replace(reply, moves=(*reply.moves[:keep], move))
                roll -= share
            return reply

        return faulty
