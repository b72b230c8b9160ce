"""Checks of tools that people allowed: an acknowledged decision survives every crash.

A user is not asked again about a call after the decision was acknowledged, and its tool runs once. If the
gateway died while the tool ran, the model learns that its outcome is unknown, and it does not run again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from chat_platform import Question
from client import Client
from model import BELL, TOOLS
from person import Person
from record import Record
from verdict import Verdict

from gateway.contract.messages import Message, ToolCallPart, ToolResultPart
from gateway.pipeline.tools import OUTCOME_UNKNOWN

_TOOL = TOOLS[BELL]


class Pressed:
    """The questions of chats: all that were seen, and those with an acknowledged press."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], Question] = {}
        self._decided: dict[tuple[str, str], int] = {}

    @property
    def decided(self) -> Collection[tuple[str, str]]:
        """Platforms and words of the decided questions."""
        return self._decided.keys()

    def see(self, platform: str, questions: Iterable[Question]) -> None:
        """Note the questions that show their buttons. The channel's own probe is not a question."""
        for question in (one for one in questions if one.approval):
            self._seen.setdefault((platform, question.approval), question)

    def decide(self, platform: str, question: Question) -> None:
        """Note that a decision was acknowledged, after all present questions were seen.

        Those may include a second question about the same call: after a crash before the decision, the
        gateway asks again, and a press of the older question may still arrive.
        """
        self._decided.setdefault((platform, question.word), len(self._seen))

    def again(self, platform: str, word: str) -> Iterable[Question]:
        """Return the questions about a word that were first seen after its decision."""
        later = list(self._seen.items())[self._decided[platform, word] :]
        return [question for (where, _), question in later if (where, question.word) == (platform, word)]


def check_decisions(
    verdict: Verdict,
    record: Record,
    clients: Sequence[Client],
    persons: Sequence[Person],
    pressed: Pressed,
    effects: Collection[str],
) -> None:
    """Check all decisions that were acknowledged. ``effects`` has a word for each run of a tool."""
    results = _Results(record, Counter(effects))
    verdict.channel = "websocket"
    for client in clients:
        for word in client.asked_again:
            verdict.add("wrong", f"{word} was allowed, and asked about again")
        for word in client.decided:
            results.check(verdict, word)
    plain = {sent.word for person in persons for sent in person.sent if sent.is_plain}
    for platform, word in pressed.decided:
        verdict.channel = platform
        for question in pressed.again(platform, word):
            verdict.add("wrong", f"{word} was allowed, and asked about again in {question.id}")
        if word in plain:
            results.check(verdict, word)


class _Results:
    """The results of the calls that need an approval."""

    def __init__(self, record: Record, effects: Counter[str]) -> None:
        self._effects = effects
        self._found: dict[str, list[tuple[Message, ToolResultPart | None]]] = {}
        for message in record.messages():
            by_id = {part.tool_call_id: part for part in message.parts if isinstance(part, ToolResultPart)}
            for part in message.parts:
                if isinstance(part, ToolCallPart) and part.tool_name == _TOOL:
                    found = self._found.setdefault(str(part.arguments.get("word")), [])
                    found.append((message, by_id.get(part.tool_call_id)))

    def check(self, verdict: Verdict, word: str) -> None:
        """Check the result of the call about an allowed word."""
        found = self._found.get(word, [])
        if len(found) != 1:
            verdict.add(
                "duplicate" if found else "lost", f"the allowed call of {word} is there {len(found)} times"
            )
        for message, result in found:
            if message.metadata.stop_reason == "cancelled":
                continue
            if result is None:
                verdict.add("lost", f"the allowed call of {word} has no result")
            elif result.is_error and result.output != OUTCOME_UNKNOWN:
                verdict.add("wrong", f"{word} was allowed, and its tool says {result.output!r}")
            elif not result.is_error and self._effects[word] != 1:
                verdict.add("lost", f"the tool ran {self._effects[word]} times for {word}")
