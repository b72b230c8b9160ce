"""The content of the database after a storm, and readers of its messages."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from files import piece_of
from model import WORD, is_notice, pieces, word_in
from msgspec.structs import replace
from sqlalchemy import Connection, Engine, select

from gateway.contract.messages import ErrorPart, Message, TextPart, ToolResultPart
from gateway.session.log import read_by_id, read_messages
from gateway.store import schema as t
from gateway.trail import Path, read_path


@dataclass
class Record:
    """The final content of the database."""

    logs: dict[str, list[Message]]
    """Without the context of rooms, summaries and notices."""
    notices: Mapping[str, Sequence[Message]]
    """The messages of the announcer, by session."""
    summaries: Mapping[str, tuple[int, Sequence[Message]]]
    """By session with summaries: the number up to which the last one counts, and the summaries."""
    context: Sequence[tuple[str, str]]
    """The session of each context message, and the name of the quoted message."""
    hidden: Mapping[str, Mapping[int, Sequence[Message]]]
    """The undone messages, by session and number of the undo, which is negative for hidden versions."""
    numbers: dict[str, int]
    """The position of each message in its log."""
    tasks: Sequence[Mapping[str, Any]]
    """The sessions of nested runs."""
    branches: Sequence[Mapping[str, Any]]
    inbox: Sequence[Mapping[str, Any]]
    outbox: Sequence[Mapping[str, Any]]
    steps: int
    questions: Sequence[Mapping[str, Any]]
    dead: Sequence[str]
    paths: Mapping[str, Path]
    """The trail of each message, by its id."""

    @classmethod
    def read(cls, engine: Engine) -> Record:
        """Read all of it."""
        with engine.connect() as c:
            begins = {row.id: row.context_from for row in c.execute(select(t.sessions))}
            numbered = {s: read_messages(c, s) for s in c.execute(select(t.sessions.c.id)).scalars()}
            return cls(
                logs={
                    session: [
                        m
                        for _, m in log
                        if m.custom_type not in ("context", "summary") and not is_notice(text_of(m))
                    ]
                    for session, log in numbered.items()
                },
                notices={
                    session: [m for _, m in log if is_notice(text_of(m))] for session, log in numbered.items()
                },
                summaries={
                    session: (begins[session], found)
                    for session, log in numbered.items()
                    if (found := [m for _, m in log if m.custom_type == "summary"])
                },
                context=[
                    (session, m.origin.source)
                    for session, log in numbered.items()
                    for _, m in log
                    if m.origin is not None and m.origin.context
                ],
                hidden={session: _read_hidden(c, session) for session in numbered},
                numbers={m.id: number for log in numbered.values() for number, m in log},
                tasks=[row for row in _rows(c, t.sessions) if row["root"] is not None],
                branches=_rows(c, t.branches),
                inbox=_rows(c, t.inbox),
                outbox=_rows(c, t.outbox),
                steps=len(_rows(c, t.turn_step)),
                questions=_rows(c, t.question),
                dead=[f"{row['inbox_id']}: {row['reason']}" for row in _rows(c, t.dead_letter)],
                paths={id_: read_path(c, id_) for id_ in c.execute(select(t.inbox.c.id)).scalars()},
            )

    def take_out(self, session: str) -> list[Message]:
        """Return the log of a session that has its own checks, and remove it from the others."""
        self.summaries = {name: found for name, found in self.summaries.items() if name != session}
        return self.logs.pop(session, [])

    def taken_back(self, words: Iterable[str]) -> set[str]:
        """Return the ids of answers to these words that were cancelled and not placed."""
        placed = {row["id"].rpartition(".")[0] for row in self.outbox}
        return {row["answer_id"] for word in words for row in self.rows(word)} - placed

    def with_notices(self, sessions: Iterable[str], log: Iterable[Message]) -> list[Message]:
        """Return the messages of a log with the notices of its session, in order."""
        notices = (message for session in sessions for message in self.notices[session])
        return sorted([*log, *notices], key=lambda message: self.numbers[message.id])

    def messages(self) -> Iterator[Message]:
        """Return all messages of the logs, also undone ones."""
        for log in self.logs.values():
            yield from log
        for undone in self.hidden.values():
            for messages in undone.values():
                yield from messages

    def rows(self, word: str) -> Sequence[Mapping[str, Any]]:
        """Return the inbox rows with this word: a history may repeat an edited message."""
        return self._by_word.get(word, ())

    @cached_property
    def _by_word(self) -> Mapping[str, list[Mapping[str, Any]]]:
        found: dict[str, list[Mapping[str, Any]]] = {}
        for row in self.inbox:
            for word in {*WORD.findall(row["payload"])}:
                found.setdefault(word, []).append(row)
        return found


def _read_hidden(connection: Connection, session: str) -> dict[int, Sequence[Message]]:
    m, found = t.messages.c, dict[int, list[str]]()
    query = select(m.undone, m.id).where(m.session_id == session, m.undone.is_not(None)).order_by(m.seq)
    for number, message_id in connection.execute(query):
        found.setdefault(number, []).append(message_id)
    hidden = {number: read_by_id(connection, ids) for number, ids in found.items()}
    return {number: [hidden[number][id_] for id_ in ids] for number, ids in found.items()}


def _rows(connection: Connection, table: Any) -> list[Mapping[str, Any]]:
    return [dict(row) for row in connection.execute(select(table)).mappings()]


def text_of(message: Message) -> str:
    """Return the text of a message, reasoning included."""
    return "".join(part.content for part in message.parts if isinstance(part, TextPart))


def failed(message: Message) -> bool:
    """Return whether a message reports an error."""
    return any(isinstance(part, ErrorPart) for part in message.parts)


def word_of(message: Message) -> str:
    """Return the first word of a message; empty for none."""
    return word_in(text_of(message))


def pieces_in_order(message: Message) -> list[str]:
    """Return the pieces of an answer, with those of its files in their places."""
    found: list[str] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            found += pieces(part.content)
        elif isinstance(part, ToolResultPart):
            found += pieces_of_files(replace(message, parts=(part,)))
    return found


def pieces_of_files(message: Message) -> list[str]:
    """Return the pieces of an answer that are files."""
    return [
        piece_of(file.name, base64.b64decode(file.data))
        for part in message.parts
        if isinstance(part, ToolResultPart)
        for file in part.attachments
    ]
