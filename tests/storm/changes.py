"""Checks of messages that their writers edited or deleted.

The last revision is answered once. An older one is answered at most once, and only if its answer was begun
before the next revision was accepted. If another message was answered in between, a new revision is only
stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from client import Sent
from model import is_whole
from record import Record, failed, text_of, word_of
from verdict import Verdict

from gateway.contract.messages import Message

Chain = Sequence[Sent]
"""All revisions of a message, the oldest first."""


def check_changes(verdict: Verdict, record: Record, log: Sequence[Message], sent: Sequence[Sent]) -> None:
    """Check the edited and deleted messages of a person in the log, without undone ones."""
    chains = [chain for chain in _chains(sent) if not chain[-1].is_plain]
    for chain in chains:
        _Changed(verdict, record, log, chain).check()


def _chains(sent: Sequence[Sent]) -> list[list[Sent]]:
    chains: list[list[Sent]] = []
    for one in sent:
        if one.revises is not None:
            chains[-1].append(one)
        else:
            chains.append([one])
    return chains


class _Changed:
    """A message with all its revisions."""

    def __init__(self, verdict: Verdict, record: Record, log: Sequence[Message], chain: Chain) -> None:
        self._verdict = verdict
        self._record = record
        self._log = log
        self._chain = chain
        self._words = [sent.word for sent in chain]
        self._place = {message.id: at for at, message in enumerate(log)}
        self._answers: Mapping[str, list[Message]] = {word: self._of(word) for word in self._words}

    def check(self) -> None:
        """Check every revision, and the last one in particular."""
        for word, answers in self._answers.items():
            if len(answers) > 1:
                self._verdict.add("duplicate", f"{word} was answered {len(answers)} times")
            for answer in answers:
                self._check_answer(word, answer)
        for older, newer in pairwise(self._words):
            if self._is_begun_too_late(older, newer):
                self._verdict.add("duplicate", f"{older} was answered though it was {newer} by then")
        last = self._words[-1]
        if not (self._chain[-1].deleted or self._answers[last] or self._is_overtaken(last)):
            self._verdict.add("lost", f"{last}, the last revision of {self._words[0]}, has no answer")

    def _of(self, word: str) -> list[Message]:
        """Return the answers to a revision."""
        ids = {row["answer_id"] for row in self._record.rows(word)}
        return [message for message in self._log if message.id in ids]

    def _check_answer(self, word: str, answer: Message) -> None:
        if not is_whole(text := text_of(answer)) and not failed(answer):
            self._verdict.add("orphan", f"half an answer to a changed message: {text!r}")
        elif word_of(answer) not in (word, ""):
            self._verdict.add("wrong", f"{word} was answered with {word_of(answer)}")

    def _is_begun_too_late(self, older: str, newer: str) -> bool:
        changed_at = min((row["seq"] for row in self._record.rows(newer)), default=None)
        begun = [self._record.numbers[row["id"]] for row in self._answered_rows(older)]
        return changed_at is not None and any(at > changed_at for at in begun)

    def _answered_rows(self, word: str) -> list[Mapping[str, Any]]:
        ids = {answer.id for answer in self._answers[word]}
        return [row for row in self._record.rows(word) if row["answer_id"] in ids]

    def _is_overtaken(self, word: str) -> bool:
        """Return whether an older revision and then another message were answered before this one."""
        rows = self._record.rows(word)
        heard = max((self._place.get(row["id"], -1) for row in rows), default=-1)
        before = [self._place[answer.id] for older in self._words for answer in self._answers[older]]
        if heard < 0 or not before:
            return False
        between = self._log[max(before) + 1 : heard]
        others = [word_of(message) for message in between if message.role == "assistant"]
        return bool({*others} - {"", *self._words})
