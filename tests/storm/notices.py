"""Notices: the announcements of a plugin in chats, its record of them, and their checks.

Each notice is there once, in its log and in its room, with its newest revision, in the order of the answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model import word_in
from msgspec import Struct
from record import Record, text_of
from verdict import Verdict

_NAME = re.compile(r"\bNotice (\d) of (n\d+y\d+t?)\b")
_ONE_IN, _COMPANION_IN = 6, 12
"""One of this number of messages leads to a notice; after one of this number another follows by itself."""


class Notice(Struct):
    """A notice: its chat, the newest revision that was announced, and the newest that was accepted."""

    address: Mapping[str, Any]
    tried: int = 0
    kept: int = 0


def key_for(word: str) -> str | None:
    """Return the key of the notice that a message of a person leads to, by its word; None for most."""
    person, _, index = word.removeprefix("q").partition("x")
    return f"n{person}y{index}" if index and int(index) % _ONE_IN == 2 else None


def companion_of(key: str) -> str | None:
    """Return the key of the notice that follows one by itself, if there is one."""
    person, _, index = key.removeprefix("n").partition("y")
    return f"n{person}y{index}t" if index.isdecimal() and int(index) % _COMPANION_IN == 2 else None


def revisions_of(key: str) -> int:
    """Return the number of revisions of a notice."""
    return 1 + sum(map(int, re.findall(r"\d", key))) % 2


def revision(key: str, number: int) -> str:
    """Return the text of a notice. It holds no word of a message."""
    return f"Notice {number} of {key}."


class Notebook:
    """The announcer's record on disk: each revision, before and after it was announced."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, Notice]:
        """Return all notices, by key."""
        found: dict[str, Notice] = {}
        for line in self._path.read_text().splitlines() if self._path.exists() else ():
            key, number, address, kept = json.loads(line)
            notice = found.setdefault(key, Notice(address))
            notice.tried = max(notice.tried, number)
            notice.kept = max(notice.kept, number if kept else 0)
        return found

    def write(self, key: str, number: int, address: Mapping[str, Any], *, kept: bool) -> None:
        """Record that a revision is about to be announced, or that it was accepted."""
        with self._path.open("a") as lines:
            lines.write(json.dumps([key, number, address, kept]) + "\n")

    @property
    def is_complete(self) -> bool:
        """Return whether all announcements were accepted."""
        notices = self.read()
        companions = {companion for key in notices if (companion := companion_of(key)) is not None}
        return companions <= notices.keys() and all(
            notice.kept == revisions_of(key) for key, notice in notices.items()
        )


def check_notices(verdict: Verdict, record: Record, told: Mapping[str, Notice]) -> None:
    """Check that each notice is once in the log of its chat, in its newest revision."""
    found: dict[str, list[tuple[str, str]]] = {}
    for session, notices in record.notices.items():
        for message in notices:
            for number, key in _NAME.findall(text_of(message)):
                found.setdefault(key, []).append((session, number))
                if word_in(text_of(message)):
                    verdict.add("wrong", f"a notice is in an answer: {text_of(message)!r}")
    for key, notice in told.items():
        verdict.channel = notice.address["channel"]
        there = found.pop(key, [])
        if not there:
            verdict.add("lost", f"the notice {key} is in no log")
        elif len(there) > 1:
            verdict.add("duplicate", f"the notice {key} is there {len(there)} times")
        elif there[0][1] != str(notice.tried):
            verdict.add("lost", f"the notice {key} is in revision {there[0][1]}, and not in {notice.tried}")
    verdict.channel = ""
    for key in found:
        verdict.add("wrong", f"the notice {key} was never announced")
