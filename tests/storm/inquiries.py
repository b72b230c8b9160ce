"""Inquiries: the questions of the announcer, which people answer with buttons or by typing, and their checks.

Each inquiry is answered once, the announcer gets that answer, and a typed answer gets no reply of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from person import Person
from record import Record
from verdict import Verdict

LEFT, RIGHT = "left", "right"
"""The answers: that of the first button, and the typed one."""
OWNER = "plugin:announcer"
_KEY = re.compile(r"\b[ab]\d+y\d+\b")
_ONE_IN = 7
_TYPED = 9_000
"""Offset from the number of a message to that of the word of a typed answer."""
_TRIES, _REPEATED = 10, 1_000
"""How often an answer is typed at most, and the offset of the word of each repetition."""


class Inquiry(Struct):
    """An inquiry: its chat, who may answer, whether it was accepted, and the answers to the announcer."""

    address: Mapping[str, Any]
    answerer: str
    kept: bool = False
    ends: list[tuple[str, Sequence[str]]] = field(default_factory=list[tuple[str, Sequence[str]]])


def inquiry_for(word: str) -> str | None:
    """Return the key of the inquiry that a message leads to, by its word; None for most."""
    person, _, index = word.removeprefix("q").partition("x")
    return f"a{person}y{index}" if index and int(index) % _ONE_IN == 3 and int(index) < _TYPED else None


def inquiry_in(text: str) -> str | None:
    """Return the key of the inquiry, or of the model's question, that a text asks."""
    found = _KEY.search(text)
    return found[0] if found else None


def is_choice(key: str) -> bool:
    """Return whether a key is that of a question of the model, not of the announcer."""
    return key.startswith("b")


def word_of_choice(key: str) -> str:
    """Return the word of the message about which the model asks."""
    return key.replace("b", "q").replace("y", "x")


def title_of(key: str) -> str:
    """Return the text of an inquiry. It holds no word of a message."""
    return f"Which way, {key}?"


def typed_words(key: str) -> Sequence[str]:
    """Return the words of the messages that answer an inquiry by typing; the later ones repeat the answer."""
    person, _, index = key.removeprefix("a").partition("y")
    return [f"q{person}x{_TYPED + _REPEATED * number + int(index)}" for number in range(_TRIES)]


def typed_answer(word: str) -> str:
    """Return what a person types to answer ``RIGHT``."""
    return f"{word}, right"


class Ledger:
    """The announcer's record of its inquiries on disk, which survives its processes."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Inquiry]:
        """Return all inquiries, by key."""
        found: dict[str, Inquiry] = {}
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            what, key, *more = json.loads(line)
            if what == "asks":
                found.setdefault(key, Inquiry(*more))
            elif what == "asked":
                found[key].kept = True
            else:
                found[key].ends.append((more[0], more[1]))
        return found

    def write(self, what: str, key: str, *more: object) -> None:
        """Record that an inquiry is about to be asked, that it was accepted, or its end."""
        with self._path.open("a") as lines:
            lines.write(json.dumps([what, key, *more]) + "\n")

    @property
    def is_complete(self) -> bool:
        """Return whether each inquiry was accepted and came to an end."""
        return all(inquiry.kept and inquiry.ends for inquiry in self.read().values())


def check_inquiries(
    verdict: Verdict, record: Record, asked: Mapping[str, Inquiry], persons: Sequence[Person]
) -> None:
    """Check that each inquiry has one answer, which its person gave and the announcer got."""
    rows = {row["key"]: row for row in record.questions if row["owner"] == OWNER}
    answered = {message.id for message in record.messages() if message.role == "assistant"}
    typed = {word for person in persons for word in person.typed}
    for key, inquiry in asked.items():
        verdict.channel = inquiry.address["channel"]
        row = rows.pop(key, None)
        if row is None:
            verdict.add("lost", f"the inquiry {key} is not there")
        else:
            _check_end(verdict, row, inquiry)
            words = [word for word in typed_words(key) if word in typed]
            answers = sum(one["answer_id"] in answered for word in words for one in record.rows(word))
            _check_typed(verdict, row, words, answers)
    verdict.channel = ""
    for key in rows:
        verdict.add("wrong", f"the inquiry {key} was never asked")
    for row in record.questions:
        if row["state"] == "open":
            verdict.add("orphan", f"a question of {row['owner']} is still open: {row['key']}")


def _check_end(verdict: Verdict, row: Mapping[str, Any], inquiry: Inquiry) -> None:
    """Check that the announcer got the stored answer, and no other one."""
    key, told = row["key"], {(state, *values) for state, values in inquiry.ends}
    if row["state"] != "answered" or not row["acknowledged"]:
        verdict.add("orphan", f"the inquiry {key} is {row['state']}, and the announcer was told {told}")
    elif not told:
        verdict.add("lost", f"the announcer was never told the answer to {key}")
    elif told != {("answered", *json.loads(row["answer"]))}:
        verdict.add("wrong", f"the answer to {key} is {row['answer']}, and the announcer was told {told}")


def _check_typed(verdict: Verdict, row: Mapping[str, Any], words: Sequence[str], answers: int) -> None:
    """Check that each typed answer either answers the question or is answered like any message, once."""
    counts = json.loads(row["answer"]) == [RIGHT]
    if counts and not words:
        verdict.add("wrong", f"{row['key']} was answered {row['answer']}, and its person did not type that")
    elif counts + answers != len(words):
        kind = "duplicate" if counts + answers > len(words) else "lost"
        verdict.add(kind, f"{words} have {answers} answers, and {row['key']} is {row['answer']}")
