"""What became of every message: the database, the platforms, the tool's effects and the clients' views.

Each list holds one line for every violation, and has to be empty.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from changes import check_changes
from chat_platform import Stands
from client import Client, Sent
from model import WORD, is_question, is_said, is_whole, pieces
from person import Person
from record import Record, failed, text_of, word_of
from verdict import Verdict

from gateway.messages import Message

Rooms = Mapping[str, Mapping[str, Sequence[Stands]]]
"""What stands of the bot, by platform and room."""


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
        changed = [sent.word for sent in person.sent if not sent.is_plain]
        gone = record.taken_back(changed)
        standing = [message for message in log if message.id not in gone]
        others = {
            id_ for word in changed for row in record.rows(word) for id_ in (row["id"], row["answer_id"])
        }
        plain = [sent for sent in person.sent if sent.is_plain]
        _check_log(verdict, [message for message in log if message.id not in others], plain)
        check_changes(verdict, record, standing, person.sent)
        _check_room(verdict, standing, rooms[verdict.channel].get(person.room, ()), person)
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
        and any(word_of(message).startswith(f"q{person.number}x") for message in log)
    ]
    if len(found) > 1:
        verdict.add("wrong", f"{person.name} has several sessions: {', '.join(found)}")
    return [message for session in found for message in record.logs[session]]


def _check_log(verdict: Verdict, log: Sequence[Message], sent: Sequence[Sent]) -> None:
    """A session's log against what was sent to it."""
    asked = [word_of(m) for m in log if m.role == "user"]
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
    elif word_of(answer) not in (sent.word, ""):
        verdict.add("wrong", f"{sent.word} was answered with {word_of(answer)}")


def _outcome(verdict: Verdict, answer: Message) -> str:
    """The word an answer is about. It is whole, or it says what went wrong."""
    text = text_of(answer)
    if not answer.parts:
        verdict.add("orphan", f"message {answer.id} has no parts")
    elif not is_whole(text) and not failed(answer):
        verdict.add("orphan", f"half an answer: {text!r}")
    if len(set(WORD.findall(text))) > 1:
        verdict.add("wrong", f"an answer about several questions: {text!r}")
    return word_of(answer)


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
    words: dict[str | None, set[str]] = {}
    for sent in person.sent:
        words.setdefault(sent.message_id, set()).add(sent.word)
    room = [message for message in room if not is_question(message.text)]
    for message in room:
        about = WORD.search(message.text)
        asked = words.get(message.reply_to)
        if about is not None and asked is not None and about[0] not in asked:
            verdict.add("wrong", f"{', '.join(asked)} was answered in its room with {about[0]}")
        if message.unfinished or not message.text.strip(" .\u2026"):
            verdict.add("orphan", f"a message was left as it was: {message.text!r}")
    answers = [message for message in log if message.role == "assistant"]
    wanted = [piece for answer in answers for piece in pieces(text_of(answer))]
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
    broken = [answer for answer in answers if failed(answer)]
    silent = sum(not pieces(text_of(answer)) for answer in broken)
    if len(notices) < silent:
        verdict.add("lost", f"{person.room} does not say that {silent} answers failed, but {notices}")
    if len(notices) > len(broken):
        verdict.add("orphan", f"{person.room} says more than that {len(broken)} answers failed: {notices}")


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
