"""What became of every message: the database, the platforms, the tool's effects and the clients' views.

Each list holds one line for every violation, and has to be empty.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chat_platform import Stands
from client import Client, Person, Sent
from model import WORD, is_question, is_said, is_whole, pieces
from sqlalchemy import Connection, Engine, select

from gateway.messages import ErrorPart, Message, TextPart
from gateway.session.log import read_messages
from gateway.store import schema as t

KINDS = ("lost", "duplicate", "orphan", "out_of_order", "wrong", "seq", "dead")
Rooms = Mapping[str, Mapping[str, Sequence[Stands]]]
"""What stands of the bot, by platform and room."""


@dataclass
class Verdict:
    """The violations, by kind and by the channel that they were seen on."""

    found: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    channels: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    channel: str = ""
    """What is being looked at."""

    def add(self, kind: str, what: str) -> None:
        """Note one violation."""
        self.found[kind].append(f"{self.channel}: {what}" if self.channel else what)
        self.channels.setdefault(self.channel or "gateway", Counter())[kind] += 1

    @property
    def counts(self) -> dict[str, int]:
        """How many of each kind."""
        return {kind: len(lines) for kind, lines in self.found.items()}


@dataclass
class Record:
    """What the database holds in the end."""

    logs: dict[str, list[Message]]
    inbox: Sequence[Mapping[str, Any]]
    outbox: Sequence[Mapping[str, Any]]
    steps: int
    dead: Sequence[str]

    @classmethod
    def read(cls, engine: Engine) -> Record:
        """Read all of it."""
        with engine.connect() as c:
            logs = {
                s: [m for _, m in read_messages(c, s)] for s in c.execute(select(t.sessions.c.id)).scalars()
            }
            return cls(
                logs=logs,
                inbox=_rows(c, t.inbox),
                outbox=_rows(c, t.outbox),
                steps=len(_rows(c, t.turn_step)),
                dead=[f"{row['inbox_id']}: {row['reason']}" for row in _rows(c, t.dead_letter)],
            )


def check(
    record: Record, clients: Sequence[Client], persons: Sequence[Person], rooms: Rooms, effects: Path
) -> Verdict:
    """Compare what was promised with what there is."""
    verdict = Verdict(channel="websocket")
    for client in clients:
        _check_log(verdict, record.logs.get(client.session, []), client.sent)
        _check_view(verdict, client)
    for person in persons:
        verdict.channel = person.platform.name
        log = _log_of(verdict, record, person)
        _check_log(verdict, log, person.sent)
        _check_room(verdict, log, rooms[verdict.channel].get(person.room, ()), person)
    for platform, spoken in rooms.items():
        verdict.channel = platform
        _check_elsewhere(verdict, spoken, {p.room for p in persons if p.platform.name == platform})
    verdict.channel = ""
    _check_rows(verdict, record)
    _check_effects(verdict, effects)
    return verdict


def _log_of(verdict: Verdict, record: Record, person: Person) -> list[Message]:
    """The log of the one session that a person has."""
    found = [
        session
        for session, log in record.logs.items()
        if session.startswith(f"{person.platform.name}:")
        and any(_word(message).startswith(f"q{person.number}x") for message in log)
    ]
    if len(found) > 1:
        verdict.add("wrong", f"{person.name} has several sessions: {', '.join(found)}")
    return [message for session in found for message in record.logs[session]]


def _check_log(verdict: Verdict, log: Sequence[Message], sent: Sequence[Sent]) -> None:
    """A session's log against what was sent to it."""
    asked = [_word(m) for m in log if m.role == "user"]
    words = [s.word for s in sent if s.message_id is not None]
    _compare(verdict, "user message", asked, words)
    answers = {m.id: m for m in log if m.role == "assistant"}
    outcomes = [w for m in log if m.role == "assistant" for w in [_outcome(verdict, m)] if w]
    _once(verdict, "answer", outcomes)
    _in_order(verdict, "answer", outcomes)
    for message in sent:
        if message.answer_id is not None:
            _check_answer(verdict, message, answers.get(message.answer_id))


def _check_answer(verdict: Verdict, sent: Sent, answer: Message | None) -> None:
    if answer is None:
        verdict.add("lost", f"{sent.word} was acknowledged and has no answer")
    elif _word(answer) not in (sent.word, ""):
        verdict.add("wrong", f"{sent.word} was answered with {_word(answer)}")


def _outcome(verdict: Verdict, answer: Message) -> str:
    """The word an answer is about. It is whole, or it says what went wrong."""
    text = _text(answer)
    if not answer.parts:
        verdict.add("orphan", f"message {answer.id} has no parts")
    elif not is_whole(text) and not _failed(answer):
        verdict.add("orphan", f"half an answer: {text!r}")
    if len(set(WORD.findall(text))) > 1:
        verdict.add("wrong", f"an answer about several questions: {text!r}")
    return _word(answer)


def _check_view(verdict: Verdict, client: Client) -> None:
    """What a client holds in the end against what it sent."""
    view = client.view
    for line in view.anomalies:
        verdict.add("seq", f"{client.session}: {line}")
    for sent in client.sent:
        if sent.answer_id is None:
            verdict.add("lost", f"{sent.word} was never acknowledged")
        elif sent.answer_id not in view.complete:
            verdict.add("lost", f"{sent.word}: its client never saw the answer end")
        elif not is_whole(text := view.text(sent.answer_id)) and "Error]" not in text:
            verdict.add("orphan", f"{sent.word}: its client holds {text!r}")
    open_ended = {i for i, role in view.roles.items() if role == "assistant"} - view.complete
    for message_id in open_ended:
        verdict.add("orphan", f"{client.session}: the answer {message_id} began and never ended")
    seen = [view.text(i) for i, role in view.roles.items() if role == "user"]
    _in_order(verdict, "user message seen", [match[0] for s in seen if (match := WORD.search(s))])


def _check_room(verdict: Verdict, log: Sequence[Message], room: Sequence[Stands], person: Person) -> None:
    """What stands in a room: each answer as it is in the log, on however many messages, and nothing else."""
    words = {sent.message_id: sent.word for sent in person.sent}
    room = [message for message in room if not is_question(message.text)]
    for message in room:
        about = WORD.search(message.text)
        asked = words.get(message.reply_to)
        if about is not None and asked is not None and about[0] != asked:
            verdict.add("wrong", f"{asked} was answered in its room with {about[0]}")
        if message.unfinished or not message.text.strip(" .\u2026"):
            verdict.add("orphan", f"a message was left as it was: {message.text!r}")
    answers = [message for message in log if message.role == "assistant"]
    wanted = [piece for answer in answers for piece in pieces(_text(answer))]
    found = [piece for message in room for piece in pieces(message.text)]
    for piece in (Counter(wanted) - Counter(found)).elements():
        verdict.add("orphan" if _same_word(piece, found) else "lost", f"{person.room} lacks {piece}")
    for piece in (Counter(found) - Counter(wanted)).elements():
        verdict.add("duplicate" if piece in wanted else "orphan", f"{person.room} has one more: {piece}")
    if Counter(found) == Counter(wanted) and found != wanted:
        verdict.add("out_of_order", f"{person.room} shows {found} instead of {wanted}")
    _check_notices(verdict, answers, room, person)


def _check_notices(
    verdict: Verdict, answers: Sequence[Message], room: Sequence[Stands], person: Person
) -> None:
    """What stands in a room besides answers: a word on each that nothing came of, or that broke off."""
    notices = [message.text for message in room if not is_said(message.text)]
    failed = [answer for answer in answers if _failed(answer)]
    silent = sum(not pieces(_text(answer)) for answer in failed)
    if len(notices) < silent:
        verdict.add("lost", f"{person.room} does not say that {silent} answers failed, but {notices}")
    if len(notices) > len(failed):
        verdict.add("orphan", f"{person.room} says more than that {len(failed)} answers failed: {notices}")


def _check_elsewhere(
    verdict: Verdict, spoken: Mapping[str, Sequence[Stands]], known: Collection[str]
) -> None:
    """Nothing stands of the bot where nobody asked it."""
    for room, messages in spoken.items():
        if room not in known:
            for message in messages:
                verdict.add("wrong", f"{room} has {message.text!r}, and nobody asked there")


def _same_word(piece: str, found: Sequence[str]) -> bool:
    """Whether some of the same answer was found."""
    word = piece.partition(":")[2]
    return bool(word) and any(other.endswith(f":{word}") for other in found)


def _check_rows(verdict: Verdict, record: Record) -> None:
    for row in record.inbox:
        if row["state"] == "new":
            verdict.add("orphan", f"an inbox row is still open: {row['dedup_key']}")
    for row in record.outbox:
        if row["state"] != "final":
            verdict.add("orphan", f"an outbox row is {row['state']}: {row['inbox_id']}")
    if record.steps:
        verdict.add("orphan", f"{record.steps} steps of turns are left")
    for line in record.dead:
        verdict.add("dead", line)


def _check_effects(verdict: Verdict, effects: Path) -> None:
    """A tool's effect may be missing after a crash (the model is told), but never be there twice."""
    lines = effects.read_text().splitlines() if effects.exists() else []
    _once(verdict, "effect of a tool", [line.split(" ")[1] for line in lines])


def _compare(verdict: Verdict, what: str, found: Sequence[str], wanted: Sequence[str]) -> None:
    for word in set(wanted) - set(found):
        verdict.add("lost", f"{what} {word} is missing")
    for word in set(found) - set(wanted):
        verdict.add("wrong", f"{what} {word} was never sent")
    _once(verdict, what, found)
    _in_order(verdict, what, found)


def _once(verdict: Verdict, what: str, words: Iterable[str]) -> None:
    for word, times in Counter(words).items():
        if times > 1:
            verdict.add("duplicate", f"{what} {word} is there {times} times")


def _in_order(verdict: Verdict, what: str, words: Sequence[str]) -> None:
    numbers = [int(word.split("x")[1]) for word in dict.fromkeys(words) if "x" in word]
    for before, after in itertools.pairwise(numbers):
        if after < before:
            verdict.add("out_of_order", f"{what} {after} comes after {before}")


def _rows(connection: Connection, table: Any) -> list[Mapping[str, Any]]:
    return [dict(row) for row in connection.execute(select(table)).mappings()]


def _text(message: Message) -> str:
    return "".join(part.content for part in message.parts if isinstance(part, TextPart))


def _failed(message: Message) -> bool:
    return any(isinstance(part, ErrorPart) for part in message.parts)


def _word(message: Message) -> str:
    found = WORD.search(_text(message))
    return found[0] if found else ""
