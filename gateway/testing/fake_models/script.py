"""Scripts for fake model servers: what a model says, piece by piece, and how it misbehaves."""

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
    """A tool call. ``arguments`` is JSON text; ``pieces`` is how many events carry it."""

    name: str
    arguments: str = "{}"
    id: str = "call_1"
    pieces: int = 2

    def fragments(self) -> list[str]:
        """The arguments cut into at most ``pieces`` pieces."""
        step = max(1, -(-len(self.arguments) // self.pieces))
        return [self.arguments[at : at + step] for at in range(0, len(self.arguments), step)]


class UseTogether(Struct, frozen=True):
    """Several tool calls at once; where the protocol allows it, their fragments are interleaved."""

    calls: tuple[Use, ...]


class Pause(Struct, frozen=True):
    """Send what is there and wait some milliseconds."""

    ms: float


class Gate(Struct, frozen=True):
    """Send what is there and wait until somebody opens the gate."""

    opened: asyncio.Event


class Bytes(Struct, frozen=True):
    """These very bytes, whatever they mean. ``times`` repeats them, with a write for each."""

    data: bytes
    times: int = 1


class Cut(Struct, frozen=True):
    """Send what is there and close the connection without an end."""


class Stall(Struct, frozen=True):
    """Send what is there, then nothing more, and keep the connection."""


class Forever(Struct, frozen=True):
    """Repeat some bytes without end, with a pause (milliseconds) between them."""

    data: bytes
    ms: float = 1


class Tokens(Struct, frozen=True):
    """What an answer is said to have cost; cached tokens are part of the input."""

    input: int = 10
    output: int = 5
    cached: int = 0


class Count(Struct, frozen=True):
    """A report of the tokens so far, where the protocol has such reports."""

    tokens: Tokens


Move = Say | Think | Use | UseTogether | Count | Pause | Gate | Bytes | Cut | Stall | Forever


class Reply(Struct, frozen=True):
    """An answer: moves in order, then the usual end. Moves between waits leave in a single write."""

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


class Asked(Struct, frozen=True):
    """A request as the server got it. Header names are in lower case."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]
    user_text: str = ""
    results: tuple[str, ...] = ()
    """The tool results since the last words of the user."""
    tools: tuple[str, ...] = ()
    peer: str = ""
    """The client's end of the connection."""


Answer = Callable[[Asked], Reply | Refusal]

_DIRECTIVE = re.compile(r"\btool:(\w+)\s*(\{.*\})?", re.DOTALL)


def words(text: str, count: int) -> list[str]:
    """``text`` as ``count`` tokens: cut at words, filled up with numbered words, or joined at the end."""
    tokens = re.findall(r"\S+\s*|\s+", text)
    tokens += [f" w{number}" for number in range(len(tokens), count)]
    return [*tokens[: count - 1], "".join(tokens[count - 1 :])] if count > 0 else tokens


def echo(tokens: int = 0, delay_ms: float = 0) -> Answer:
    """An answer that repeats the user's last words, in ``tokens`` pieces spread over ``delay_ms``.

    ``tool:NAME {…}`` in the user's words calls that tool, if it is offered; the answer then repeats its
    result. With 0 tokens each word is one.
    """

    def answer(asked: Asked) -> Reply | Refusal:
        found = _DIRECTIVE.search(asked.user_text)
        if found and found[1] in asked.tools and not asked.results:
            call_id = f"call_{len(asked.body['messages'])}"
            return Reply((Use(found[1], found[2] or "{}", call_id),), "tools")
        text = f"The tool said: {asked.results[-1]}" if asked.results else f"You said: {asked.user_text}"
        pieces = words(text, tokens)
        return Reply(paced(pieces, delay_ms), tokens=Tokens(len(text.split()), len(pieces)))

    return answer


def paced(pieces: Sequence[str], delay_ms: float) -> tuple[Move, ...]:
    """Pieces of text with equal pauses before them, ``delay_ms`` in all."""
    if delay_ms <= 0:
        return tuple(map(Say, pieces))
    pause = Pause(delay_ms / max(1, len(pieces)))
    return tuple(move for piece in pieces for move in (pause, Say(piece)))


class Faults(Struct, frozen=True):
    """How often (0 to 1) an answer is cut off, goes silent, is refused with 429, or is garbled."""

    cut: float = 0
    stall: float = 0
    refuse: float = 0
    garble: float = 0

    def spoil(self, answer: Answer, seed: int) -> Answer:
        """The same answers, some of them spoilt; the same seed spoils the same ones."""
        dice = random.Random(seed)  # noqa: S311 - a repeatable script, not a secret

        def spoilt(asked: Asked) -> Reply | Refusal:
            reply = answer(asked)
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

        return spoilt
