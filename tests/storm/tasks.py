"""Checks of nested runs, which the model starts with the tool ``task``, across kills.

Each call has one run in its own session, which is answered once and uses its tool once. The last text
of the run is the result of the call; a repeated turn begins no second run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from client import Client, Sent
from model import GIVE, TOOLS, task_word, word_in
from person import Person
from record import Record, failed, text_of, word_of
from verdict import Verdict

from gateway.contract.errors import ToolError
from gateway.contract.messages import Message, ToolCallPart, ToolResultPart
from gateway.pipeline.nested import final_text

_TOOL = TOOLS[GIVE]


def check_tasks(
    verdict: Verdict, record: Record, clients: Sequence[Client], persons: Sequence[Person]
) -> int:
    """Check all runs and the calls that began them; return their number. Their logs are then no longer in
    the record.
    """
    runs = {row["id"]: _Run(row, record.take_out(row["id"])) for row in record.tasks}
    for run in runs.values():
        verdict.channel = "tasks"
        run.check(verdict)
    told = {client.session: client.sent for client in clients}
    plain = {sent.word: "websocket" for several in told.values() for sent in several}
    plain |= {s.word: person.platform.name for person in persons for s in person.sent if _is_kept(person, s)}
    for message in record.messages():
        for part in message.parts:
            if isinstance(part, ToolCallPart) and part.tool_name == _TOOL:
                verdict.channel = plain.get(word_of(message), "tasks")
                _check_call(verdict, message, part, runs)
    by_word: dict[str, list[_Run]] = {}
    for run in runs.values():
        by_word.setdefault(run.word, []).append(run)
    for word, channel in plain.items():
        verdict.channel = channel
        if len(found := by_word.get(task_word(word), [])) > 1:
            verdict.add("duplicate", f"{word} has {len(found)} runs: {', '.join(run.id for run in found)}")
    verdict.channel = ""
    return len(runs)


def _is_kept(person: Person, sent: Sent) -> bool:
    return sent.is_plain and not person.undoes


def _check_call(verdict: Verdict, message: Message, call: ToolCallPart, runs: Mapping[str, _Run]) -> None:
    """Check that a call has one run, and its last text as the result."""
    own = [run for run in runs.values() if run.is_of(message, call)]
    is_cut = failed(message) or message.metadata.stop_reason == "cancelled"
    result = next(
        (p for p in message.parts if isinstance(p, ToolResultPart) and p.tool_call_id == call.tool_call_id),
        None,
    )
    if len(own) > 1:
        verdict.add("duplicate", f"the call {call.tool_call_id} has {len(own)} runs")
    elif not is_cut and (not own or result is None):
        missing = "result" if own else "run"
        verdict.add("lost", f"the call {call.tool_call_id} in {message.id} has no {missing}")
    elif own and result is not None and not is_cut and result.output != own[0].result:
        verdict.add("wrong", f"{own[0].id} says {own[0].result!r}, and its call got {result.output!r}")


class _Run:
    """The stored session of a run."""

    def __init__(self, row: Mapping[str, Any], log: Sequence[Message]) -> None:
        self.id: str = row["id"]
        self._row = row
        self._prompts = [message for message in log if message.role == "user"]
        self._answers = [message for message in log if message.role == "assistant"]

    @property
    def word(self) -> str:
        """Return the word of its task."""
        return word_in(text_of(self._prompts[0])) if self._prompts else ""

    @property
    def result(self) -> str:
        """Return the expected result of its call."""
        try:
            text = final_text(self._answers[0])
        except (ToolError, IndexError) as error:
            text = f"Error: {error}"
        return f"{text}\n\n(task session: {self.id})"

    def is_of(self, message: Message, call: ToolCallPart) -> bool:
        """Return whether a call of this message began it."""
        return (self._row["parent_message"], self._row["call_id"]) == (message.id, call.tool_call_id)

    def check(self, verdict: Verdict) -> None:
        """Check that it has one task and one answer to it."""
        if len(self._prompts) != 1:
            verdict.add("wrong", f"{self.id} has {len(self._prompts)} tasks")
        if len(self._answers) != 1:
            verdict.add("duplicate" if self._answers else "lost", f"{self.id}: {len(self._answers)} answers")
        for answer in self._answers:
            if word_of(answer) not in (self.word, ""):
                verdict.add("wrong", f"{self.id} has a task about {self.word}, and answers {word_of(answer)}")
