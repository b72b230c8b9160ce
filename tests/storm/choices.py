"""Choices: what the model asks people with the tool ``question``, across kills; they press the first button.

Each call asks once, also if its turn is repeated. The model gets the
acknowledged answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from client import Client
from model import ASK, CHOSEN, TOOLS, choice_in
from person import Person
from record import Record, failed
from verdict import Verdict

from gateway.contract.messages import Message, ToolCallPart, ToolResultPart

_TOOL = TOOLS[ASK]
OWNER = f"tool:{_TOOL}"
"""The owner of the model's questions."""
_TOO_LATE = "did not answer"
"""The tool's result for a question that expired."""


def check_choices(
    verdict: Verdict,
    record: Record,
    clients: Sequence[Client],
    persons: Sequence[Person],
    pressed: Collection[str],
    asked: Iterable[str],
) -> int:
    """Check all calls of the tool; return how many questions were asked.

    ``pressed`` has the words whose buttons in rooms were acknowledged, ``asked`` a word for each question
    that was stored.
    """
    kept = {sent.word: "websocket" for client in clients for sent in client.sent}
    kept |= {s.word: person.platform.name for person in persons for s in person.sent if s.is_plain}
    answered = {*pressed, *(word for client in clients for word in client.chosen)}
    found: dict[str, list[Message]] = {}
    for message in record.messages():
        for part in message.parts:
            if isinstance(part, ToolCallPart) and part.tool_name == _TOOL:
                word = choice_in(str(part.arguments))
                found.setdefault(word, []).append(message)
                verdict.channel = kept.get(word, "")
                if not _is_cut(message):
                    _check_result(verdict, message, part, word, known=word in answered)
    times = Counter(asked)
    for word, channel in kept.items():
        verdict.channel = channel
        if times[word] > 1:
            verdict.add("duplicate", f"{word} was asked about {times[word]} times")
        if len(found.get(word, ())) > 1:
            verdict.add("duplicate", f"the question about {word} is there {len(found[word])} times")
        if word in answered and word not in found:
            verdict.add("lost", f"the answered question about {word} is in no answer")
    verdict.channel = ""
    return times.total()


def _check_result(verdict: Verdict, message: Message, call: ToolCallPart, word: str, *, known: bool) -> None:
    """Check that the model got the answer, or that the question expired."""
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    output = next((part.output for part in results if part.tool_call_id == call.tool_call_id), None)
    if output is None:
        verdict.add("lost", f"the question about {word} has no result")
    elif output != CHOSEN and (known or _TOO_LATE not in output):
        verdict.add("wrong", f"{word} was answered with {CHOSEN!r}, and the model got {output!r}")


def _is_cut(message: Message) -> bool:
    return failed(message) or message.metadata.stop_reason == "cancelled"
