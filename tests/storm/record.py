"""What the database holds after a storm, and what its messages say."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from files import piece_of
from model import WORD, word_in
from sqlalchemy import Connection, Engine, select

from gateway.contract.messages import ErrorPart, Message, TextPart, ToolResultPart
from gateway.session.log import read_messages
from gateway.store import schema as t


@dataclass
class Record:
    """What the database holds in the end."""

    logs: dict[str, list[Message]]
    numbers: dict[str, int]
    """Where each message stands in its log."""
    inbox: Sequence[Mapping[str, Any]]
    outbox: Sequence[Mapping[str, Any]]
    steps: int
    dead: Sequence[str]

    @classmethod
    def read(cls, engine: Engine) -> Record:
        """Read all of it."""
        with engine.connect() as c:
            numbered = {s: read_messages(c, s) for s in c.execute(select(t.sessions.c.id)).scalars()}
            return cls(
                logs={session: [m for _, m in log] for session, log in numbered.items()},
                numbers={m.id: number for log in numbered.values() for number, m in log},
                inbox=_rows(c, t.inbox),
                outbox=_rows(c, t.outbox),
                steps=len(_rows(c, t.turn_step)),
                dead=[f"{row['inbox_id']}: {row['reason']}" for row in _rows(c, t.dead_letter)],
            )

    def taken_back(self, words: Iterable[str]) -> set[str]:
        """The ids of answers to these words that were ended and not placed."""
        placed = {row["id"].rpartition(".")[0] for row in self.outbox}
        return {row["answer_id"] for word in words for row in self.rows(word)} - placed

    def rows(self, word: str) -> Sequence[Mapping[str, Any]]:
        """What was accepted with this word: a history tells of a changed message once more."""
        return self._by_word.get(word, ())

    @cached_property
    def _by_word(self) -> Mapping[str, list[Mapping[str, Any]]]:
        found: dict[str, list[Mapping[str, Any]]] = {}
        for row in self.inbox:
            for word in {*WORD.findall(row["payload"])}:
                found.setdefault(word, []).append(row)
        return found


def _rows(connection: Connection, table: Any) -> list[Mapping[str, Any]]:
    return [dict(row) for row in connection.execute(select(table)).mappings()]


def text_of(message: Message) -> str:
    """The text of a message, reasoning included."""
    return "".join(part.content for part in message.parts if isinstance(part, TextPart))


def failed(message: Message) -> bool:
    """Whether it says that something went wrong."""
    return any(isinstance(part, ErrorPart) for part in message.parts)


def word_of(message: Message) -> str:
    """The first word that it holds; empty for none."""
    return word_in(text_of(message))


def pieces_of_files(message: Message) -> list[str]:
    """Return the pieces of an answer that its files are."""
    return [
        piece_of(file.name, base64.b64decode(file.data))
        for part in message.parts
        if isinstance(part, ToolResultPart)
        for file in part.attachments
    ]
