"""The model of a storm: it answers every question with the question's own word, and sometimes fails.

python tests/storm/model.py DIRECTORY FAULTS SEED
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
from failpoints import TASKED, Failpoints

from gateway.testing.fake_models.script import Cut, Gate, ModelRequest, Move, Pause, Refusal, Reply, Say, Use
from gateway.testing.fake_models.server import FakeModels

WORD = re.compile(r"\bq\d+x\d+\b")
SUMMARIZES = "You summarize a conversation"
"""Text of the gateway's request for a summary."""
SUMMARY = "## Done\nThey talked and got answers."
TOOL = "use the tool"
BELL = "ring the bell"
"""Request for a tool that needs an approval."""
FILE = "send the file"
GIVE = "give it to an agent"
ASK = "ask me first"
FORBID = "do what is forbidden"
TOOLS = {
    TOOL: "note",
    BELL: "ring",
    FILE: "hand_over",
    GIVE: "task",
    ASK: "question",
    FORBID: "forbidden",
}
CHOSEN = "Way: left"
"""The model's result if the first button of its question is pressed."""
_TASK = 28_000
"""Offset from the number of a message to that of the word of its task, which is as slow and as long."""
_CHOICE = re.compile(r"\bWhich way, b(\d+)y(\d+)\?")
_PIECE = re.compile(r"(Answer to|part \d of|end of|Notice \d of) (q\d+x\d+|n\d+y\d+t?)")
_NOTICE = re.compile(r"Notice \d of n\d+y\d+")
_QUESTION = re.compile(
    r"May (?:I (?:use|run) )?`?ring\b|\bWhich way, [ab]\d+y\d+|^[✓✗⌛✅] .*\bring\b"
    r"|Question of a deleted message|request has expired|[Tt]his question (?:was|has|is)\b"
)
_TOOL_LINES = re.compile(r"(?:[✓✗⏳✅❌] .+(?:\n|$))+")
SUMMARIZED = "The conversation had become too long for the model, so its earlier part was summarized."
"""Notice at the beginning of an answer if a summary was made in the middle of its turn."""
_FAILURE = "\u26a0"
"""Sign at the beginning of an error in an answer."""
_PIECES = ("Answer to", *(f"part {n} of" for n in range(6)), "end of")
_BLOWS = "It blows and it blows"
_PADDING = f"\n\n{_BLOWS}, from the sea and from the hills, and nobody knows why." + f" {_BLOWS}." * 32
"""Filler between the pieces of a long answer, so that it exceeds one message of a platform."""
_SLOWNESS = 40
"""Factor by which it takes longer then."""


def pieces(text: str) -> list[str]:
    """Return the pieces of answers in a text, in order, each with its word after a colon."""
    return [f"{piece}:{word}" for piece, word in _PIECE.findall(text)]


def whole(word: str) -> list[str]:
    """Return the pieces of a whole answer."""
    return [f"{piece}:{word}" for piece in _PIECES]


def is_whole(text: str) -> bool:
    """Return whether a text is one complete answer, without repeated pieces."""
    found = WORD.search(text)
    return found is not None and pieces(text) == whole(found[0])


def word_in(text: str) -> str:
    """Return the first word in a text; empty for none."""
    found = WORD.search(text)
    return found[0] if found else ""


def is_question(text: str) -> bool:
    """Return whether a text asks a person about a tool, or reports the outcome."""
    return bool(_QUESTION.search(text)) and not pieces(text) and _FAILURE not in text


def is_reply(text: str) -> bool:
    """Return whether a text is the reply to an undo or redo."""
    return text.startswith(("Undone.", "Redone.", "Cannot undo", "Cannot redo"))


def is_notice(text: str) -> bool:
    """Return whether a text is a notice of the announcer."""
    return bool(_NOTICE.search(text))


def is_said(text: str) -> bool:
    """Return whether a text is part of an answer: also of its filler, a summary or its tools."""
    rest = text.replace(SUMMARIZED, "").strip()
    return bool(pieces(text)) or _BLOWS in text or _TOOL_LINES.fullmatch(rest) is not None


def is_long(word: str) -> bool:
    """Return whether the answer to a word exceeds one message of a platform."""
    return _number(word) % 7 == 3


def is_slow(word: str) -> bool:
    """Return whether the answer to a word is so slow that people edit their message during it."""
    return _number(word) % 4 == 1


def _number(word: str) -> int:
    return int(word.partition("x")[2] or 0)


def task_word(word: str) -> str:
    """Return the word of the task of a message."""
    return f"{word.partition('x')[0]}x{_number(word) + _TASK}"


def choice_in(text: str) -> str:
    """Return the word of the message about which the model asks with a text; empty for none."""
    found = _CHOICE.search(text)
    return f"q{found[1]}x{found[2]}" if found else ""


def _arguments(tool: str, word: str) -> dict[str, object]:
    if tool == TOOLS[ASK]:
        # Without the word itself: a question of the bot is not an answer.
        title = f"Which way, {word.replace('q', 'b').replace('x', 'y')}?"
        options = [{"label": "left"}, {"label": "right"}]
        return {"questions": [{"question": title, "header": "Way", "options": options, "custom": False}]}
    if tool == TOOLS[GIVE]:
        return {"description": "Look it up", "prompt": f"{task_word(word)}, {TOOL}", "agent": "general"}
    return {"word": word}


class Tripwire(asyncio.Event):
    """An open gate of the script with a failpoint."""

    def __init__(self, reach: Callable[[str], None], point: str) -> None:
        super().__init__()
        self._reach, self._point = reach, point

    async def wait(self) -> Literal[True]:
        await asyncio.sleep(0.003)  # the text before it is being sent
        self._reach(self._point)
        return True


class Model:
    """The script of answers. ``faults`` is the share of answers that fail, in one of four ways."""

    def __init__(self, directory: Path, faults: float, seed: int) -> None:
        self._reach = Failpoints(directory).reach
        self._asked = directory / "asked"
        self._spoilt = directory / "spoilt"
        self._faults = faults
        self._dice = random.Random(seed)

    def answer(self, asked: ModelRequest) -> Reply | Refusal:
        """Return the answer to one request."""
        if SUMMARIZES in str(asked.body["messages"][0]["content"]):
            moves = (
                Say(SUMMARY[:9]),
                Gate(Tripwire(self._reach, "in the middle of a summary")),
                Say(SUMMARY[9:]),
            )
            return self._perhaps_spoil(Reply(moves), "summary")
        word = word_in(asked.user_text) or "nothing"
        with self._asked.open("a") as asked_about:
            asked_about.write(f"{time.monotonic()} {word}\n")
        tool = next((tool for wish, tool in TOOLS.items() if wish in asked.user_text), None)
        if tool is not None and not asked.results:
            arguments = json.dumps(_arguments(tool, word))
            reply = Reply((Use(tool, arguments, f"call_{self._dice.getrandbits(32):08x}"),), "tools")
        else:
            reply = Reply(tuple(self._moves(word)))
        return self._perhaps_spoil(reply, word)

    def _moves(self, word: str) -> list[Move]:
        moves: list[Move] = []
        slowness = _SLOWNESS if is_slow(word) else 1
        for number, piece in enumerate(_PIECES):
            padding = f",{_PADDING}\n\n" if is_long(word) and piece != _PIECES[-1] else ", "
            moves += [Pause(self._dice.uniform(1, 12) * slowness), Say(f"{piece} {word}{padding}")]
            if number == 0:
                moves.append(Gate(Tripwire(self._reach, "at the model's first byte")))
            if number == 4:
                point = TASKED if _number(word) >= _TASK else "in mid-stream"
                moves.append(Gate(Tripwire(self._reach, point)))
        return moves

    def _perhaps_spoil(self, reply: Reply, word: str) -> Reply | Refusal:
        """Make an answer fail at random, and note its word first."""
        if self._dice.random() >= self._faults:
            return reply
        with self._spoilt.open("a") as spoilt:
            spoilt.write(f"{word}\n")
        kind = self._dice.choice(("cut", "close", "busy", "broken"))
        if kind == "cut":
            keep = self._dice.randrange(len(reply.moves) + 1)
            return msgspec.structs.replace(reply, moves=(*reply.moves[:keep], Cut()))
        if kind == "busy":
            return Refusal(429, "slow down", {"retry-after-ms": "50"})
        return Refusal(0) if kind == "close" else Refusal(503, "overloaded", {"retry-after-ms": "50"})


async def serve(directory: str, faults: str, seed: str) -> None:
    """Run until killed; the first line of the output is the address."""
    model = Model(Path(directory), float(faults), int(seed))
    async with FakeModels(model.answer) as fake:
        print(fake.openai_url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(*sys.argv[1:]))
