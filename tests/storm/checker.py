"""Checks of every message: in the database, on the platforms, in the tool's effects and the clients' views.

The lists have one line for each violation; all must be empty.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attachments import check_handed, check_received, compare_names, names_handed
from changes import check_changes
from chat_platform import Platform, ShownMessage
from client import Client, Sent
from model import SUMMARIZED, SUMMARY, WORD, is_question, is_reply, is_said, is_whole, pieces, word_in
from person import Person
from record import Record, failed, pieces_in_order, pieces_of_files, text_of, word_of
from verdict import Verdict

from gateway.contract.messages import ErrorPart, Message, source_of

_ON_ITS_WAY = 0.5
"""Seconds that a request may take to reach the model."""

Rooms = Mapping[str, Mapping[str, Sequence[ShownMessage]]]
"""The bot's messages, by platform and room."""


def check(
    verdict: Verdict,
    record: Record,
    clients: Sequence[Client],
    persons: Sequence[Person],
    rooms: Rooms,
    effects: Path,
) -> None:
    """Compare what was acknowledged with what is stored and shown."""
    verdict.channel = "websocket"
    for client in clients:
        log = record.logs.get(client.session, [])
        stopped = _stopped(verdict, client, log, last_asked(effects.with_name("asked")))
        _check_log(verdict, log, client.sent, stopped)
        check_received(verdict, log, client.sent)
        check_handed(verdict, log, client.sent)
        _check_view(verdict, client, log, stopped)
    for person in persons:
        verdict.channel = person.platform.name
        sessions = _sessions_of(verdict, record, person)
        if person.undoes:
            room = rooms[verdict.channel].get(person.room, ())
            person = _check_undone(verdict, record, person, sessions, room)
        log = [message for session in sessions for message in record.logs[session]]
        changed = [sent.word for sent in person.sent if not sent.is_plain]
        gone = record.taken_back(changed)
        standing = [message for message in log if message.id not in gone]
        others = {
            id_
            for word in (*changed, *person.typed)
            for row in record.rows(word)
            for id_ in (row["id"], row["answer_id"])
        }
        plain = [sent for sent in person.sent if sent.is_plain]
        _check_log(verdict, [message for message in log if message.id not in others], plain)
        check_changes(verdict, record, standing, person.sent)
        check_received(verdict, log, person.sent)
        check_handed(verdict, log, person.sent)
        spoken = record.with_notices(sessions, standing)
        _check_room(verdict, spoken, rooms[verdict.channel].get(person.room, ()), person)
    _check_crossings(verdict, record, clients, persons)
    for platform, spoken in rooms.items():
        verdict.channel = platform
        _check_elsewhere(verdict, spoken, {p.room for p in persons if p.platform.name == platform})
    verdict.channel = ""
    _check_context(verdict, record)
    _check_summaries(verdict, record)
    _check_rows(verdict, record)
    _check_effects(verdict, effects)


def _sessions_of(verdict: Verdict, record: Record, person: Person) -> list[str]:
    """Return the one session that a person has; none if nothing is stored of them.

    It counts as theirs also if all that they wrote is undone and only notices are left.
    """
    word = re.compile(rf"\b(?:q{person.number}x|n{person.number}y)\d")
    found = [
        session
        for session, log in record.logs.items()
        if session.startswith(f"{person.platform.name}:")
        and any(
            word.search(text_of(message))
            for message in itertools.chain(log, record.notices[session], *record.hidden[session].values())
        )
    ]
    if len(found) > 1:
        verdict.add("wrong", f"{person.name} has several sessions: {', '.join(found)}")
    return found


def _check_undone(
    verdict: Verdict, record: Record, person: Person, sessions: Sequence[str], room: Sequence[ShownMessage]
) -> Person:
    """Check that each undo and redo had one effect and one reply. Returns the person without these."""
    left = copy.copy(person)
    for session in sessions:
        log, hidden = record.logs[session], record.hidden[session]
        replies = [text_of(m) for m in log if m.role == "assistant" and is_reply(text_of(m))]
        effects = Counter(reply.partition(".")[0] for reply in replies)
        if effects["Undone"] - effects["Redone"] != len(hidden):
            verdict.add("wrong", f"{session}: {len(hidden)} exchanges are hidden after {dict(effects)}")
        stand = Counter(reply.partition(".")[0] for said in room if is_reply(reply := said.text))
        if stand != effects:
            verdict.add("wrong", f"{session}: the room shows {dict(stand)} instead of {dict(effects)}")
        gone = {word_of(m) for several in hidden.values() for m in several}
        # All revisions of a message go with it.
        keys = {sent.message_id for sent in left.sent if sent.word in gone}
        left.sent = [sent for sent in left.sent if sent.message_id not in keys]
        record.logs[session] = [m for m in log if not is_reply(text_of(m)) and not text_of(m).startswith("/")]
    return left


def check_failures(verdict: Verdict, record: Record, spoilt: Collection[str]) -> int:
    """Check that answers failed only if a call of the model for their words failed. Returns their number."""
    count = 0
    for session, log in record.logs.items():
        words: set[str] = set()
        for message in log:
            words.update(WORD.findall(text_of(message)))
            if message.role != "assistant":
                continue
            if failed(message):
                count += 1
                if not words.intersection(spoilt):
                    error = next(part.message for part in message.parts if isinstance(part, ErrorPart))
                    verdict.add("wrong", f"{session}: {sorted(words)} failed without a reason: {error}")
            words.clear()
    return count


def check_deletions(
    verdict: Verdict, persons: Sequence[Person], deletions: Mapping[str, float], asked: Path
) -> None:
    """Check that no model is asked about a message after its deletion was acknowledged."""
    last = last_asked(asked)
    for person in persons:
        for sent in person.sent:
            gone = deletions.get(f"{person.platform.name}/{person.room}:{sent.message_id}")
            if gone is not None and last.get(sent.word, 0.0) > gone + _ON_ITS_WAY:
                verdict.channel = person.platform.name
                verdict.add("wrong", f"{sent.word} was sent to the model after it was deleted")


def last_asked(asked: Path) -> Mapping[str, float]:
    """Return when the model was last asked about each word, in monotonic seconds."""
    return {word: float(at) for at, word in (line.split(" ") for line in lines_of(asked))}


def words_of(effects: Path) -> list[str]:
    """Return the word of each effect of a tool."""
    return [line.split(" ")[1] for line in lines_of(effects)]


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file that processes append to; none if there is no such file yet."""
    return path.read_text().splitlines() if path.exists() else []


def _stopped(
    verdict: Verdict, client: Client, log: Sequence[Message], asked: Mapping[str, float]
) -> set[str]:
    """Check a client's stops: each acknowledged one stopped an answer, or came after its end."""
    cut = {m.id for m in log if m.metadata.stop_reason == "cancelled" and not failed(m)}
    if len(cut) > len(client.stops):
        verdict.add("wrong", f"{client.session}: {len(cut)} answers were cut, {len(client.stops)} stopped")
    for stop in client.stops:
        ended = {m.id for m in log if m.metadata.stop_reason == "cancelled"}
        ended |= {s.answer_id or "" for s in client.sent if asked.get(s.word, 0) <= stop.at + _ON_ITS_WAY}
        if stop.acknowledged and stop.answers and not ended & {*stop.answers}:
            verdict.add("wrong", f"{client.session}: none of {stop.answers} stayed stopped")
    return cut


def _check_log(
    verdict: Verdict, log: Sequence[Message], sent: Sequence[Sent], stopped: Collection[str] = ()
) -> None:
    """Compare a session's log with the messages that were sent to it."""
    asked = [word_of(m) for m in log if m.role == "user"]
    words = [s.word for s in sent if s.message_id is not None]
    _compare(verdict, "user message", asked, words)
    answers = {m.id: m for m in log if m.role == "assistant"}
    ended = [m for m in log if m.role == "assistant" and m.id not in stopped]
    outcomes = [w for m in ended for w in [_outcome(verdict, m)] if w]
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
    """Return the word of an answer, which must be whole or name its error."""
    text = text_of(answer)
    if not answer.parts:
        verdict.add("orphan", f"message {answer.id} has no parts")
    elif not is_whole(text) and not failed(answer):
        verdict.add("orphan", f"half an answer: {text!r}")
    if len(set(WORD.findall(text))) > 1:
        verdict.add("wrong", f"an answer about several questions: {text!r}")
    return word_of(answer)


def _check_view(verdict: Verdict, client: Client, log: Sequence[Message], stopped: Collection[str]) -> None:
    """Compare the final view of a client with the messages that it sent."""
    view = client.view
    for line in view.anomalies:
        verdict.add("seq", f"{client.session}: {line}")
    for sent in client.sent:
        if sent.answer_id is None:
            verdict.add("lost", f"{sent.word} was never acknowledged")
        elif sent.answer_id not in view.complete:
            verdict.add("lost", f"{sent.word}: its client never saw the answer end")
        elif sent.answer_id in stopped:
            continue
        elif not is_whole(text := view.text(sent.answer_id)) and "Error]" not in text:
            verdict.add("orphan", f"{sent.word}: its client holds {text!r}")
    open_ended = {i for i, role in view.roles.items() if role == "assistant"} - view.complete
    for message_id in open_ended:
        verdict.add("orphan", f"{client.session}: the answer {message_id} began and never ended")
    for message in log:
        if message.id in view.complete:
            compare_names(verdict, client.session, view.files_of(message.id), names_handed(message))
    seen = [view.text(i) for i, role in view.roles.items() if role == "user"]
    _in_order(verdict, "user message seen", [match[0] for s in seen if (match := WORD.search(s))])


def _check_room(
    verdict: Verdict, log: Sequence[Message], room: Sequence[ShownMessage], person: Person
) -> None:
    """Check that a room shows each answer as in the log, in any number of messages, and nothing else."""
    words: dict[str | None, set[str]] = {}
    for sent in person.sent:
        words.setdefault(sent.message_id, set()).add(sent.word)
    room = [message for message in room if not (is_question(message.text) or is_reply(message.text))]
    for message in room:
        about = word_in(" ".join((*pieces(message.text), *message.files)))
        asked = words.get(message.reply_to)
        if about and asked is not None and about not in asked:
            verdict.add("wrong", f"{', '.join(asked)} was answered in its room with {about}")
        if message.unfinished or not (message.files or message.text.strip(" .\u2026")):
            verdict.add("orphan", f"a message was left as it was: {message.text!r}")
    answers = [message for message in log if message.role == "assistant"]
    texts = [message.text for message in room]
    wanted = [piece for answer in answers for piece in _shown(answer, person.platform)]
    found = [piece for message in room for piece in (*pieces(message.text), *message.files)]
    wanted, found = _comparable(wanted, person), _comparable(found, person)
    for piece in (Counter(wanted) - Counter(found)).elements():
        verdict.add("orphan" if _same_word(piece, found) else "lost", f"{person.room} lacks {piece}")
    for piece in (Counter(found) - Counter(wanted)).elements():
        verdict.add("duplicate" if piece in wanted else "orphan", f"{person.room} has one more: {piece}")
    told, shown = (sum(text.count(SUMMARIZED) for text in texts) for texts in (map(text_of, answers), texts))
    if shown > told:
        verdict.add("duplicate", f"{person.room} tells of {shown} summaries instead of {told}")
    if Counter(found) == Counter(wanted) and found != wanted:
        verdict.add("out_of_order", f"{person.room} shows {found} instead of {wanted}")
    _check_notices(verdict, answers, room, person)


def _check_notices(
    verdict: Verdict, answers: Sequence[Message], room: Sequence[ShownMessage], person: Person
) -> None:
    """Check the other messages of a room: one notice for each answer that failed or broke off."""
    notices = [message.text for message in room if not (is_said(message.text) or message.files)]
    broken = [answer for answer in answers if failed(answer)]
    silent = sum(not pieces(text_of(answer)) for answer in broken)
    if len(notices) < silent:
        verdict.add("lost", f"{person.room} does not say that {silent} answers failed, but {notices}")
    if len(notices) > len(broken):
        verdict.add("orphan", f"{person.room} says more than that {len(broken)} answers failed: {notices}")


def _shown(answer: Message, platform: Platform) -> list[str]:
    """Return the pieces of an answer in the order in which a platform shows them."""
    if platform.files_in_order:
        return pieces_in_order(answer)
    return [*pieces(text_of(answer)), *(pieces_of_files(answer) if platform.takes_files else ())]


def _check_crossings(
    verdict: Verdict, record: Record, clients: Sequence[Client], persons: Sequence[Person]
) -> None:
    """Check that no word of a person is in the session of another person or account."""
    own = {client.sent[0].word.partition("x")[0]: client.session for client in clients if client.sent}
    homes = {f"q{person.number}": person.platform.name for person in persons}
    for session, log in record.logs.items():
        words = {word.partition("x")[0]: word for message in log for word in WORD.findall(text_of(message))}
        for writer, word in words.items():
            verdict.channel = homes.get(writer, "websocket")
            if session != own.get(writer) and not session.startswith(f"{verdict.channel}:"):
                verdict.add("wrong", f"{word} is in the session {session}")
        if len(words) > 1:
            verdict.add("wrong", f"the session {session} has words of several people: {[*words.values()]}")


def _check_elsewhere(
    verdict: Verdict, spoken: Mapping[str, Sequence[ShownMessage]], known: Collection[str]
) -> None:
    """Check that the bot wrote only where it was asked."""
    for room, messages in spoken.items():
        if room not in known:
            for message in messages:
                verdict.add("wrong", f"{room} has {message.text!r}, and nobody asked there")


def _comparable(found: list[str], person: Person) -> list[str]:
    """Return pieces in comparable form: a redone answer comes after the answers given in between."""
    known = found if person.platform.edits else [_without_revision(piece) for piece in found]
    return sorted(known) if person.undoes else known


def _without_revision(piece: str) -> str:
    """Return a piece without the number of its revision: in some rooms a notice cannot be edited."""
    return re.sub(r"^Notice \d of:", "Notice of:", piece)


def _same_word(piece: str, found: Sequence[str]) -> bool:
    """Return whether a part of the same answer was found."""
    word = piece.partition(":")[2]
    return bool(word) and any(other.endswith(f":{word}") for other in found)


def _check_rows(verdict: Verdict, record: Record) -> None:
    for row in record.inbox:
        # Nothing was open after the drain, so this row arrived before the gateway's end: a platform repeated
        # an event that needs no answer. Other checks find a message that does need one.
        if row["state"] == "new" and not _needs_no_answer(record, row):
            verdict.add("orphan", f"an inbox row is still open: {row['dedup_key']}")
    for row in record.outbox:
        if row["state"] not in ("final", "removed"):
            verdict.add("orphan", f"an outbox row is {row['state']}: {row['inbox_id']}")
    if record.steps:
        verdict.add("orphan", f"{record.steps} steps of turns are left")
    for line in record.dead:
        verdict.add("dead", line)


def _needs_no_answer(record: Record, row: Mapping[str, Any]) -> bool:
    """Return whether a message that was never tried was deleted, or a newer revision of it is settled."""
    if row["attempts"]:
        return False
    name = (row["channel"], row["account"], row["original"])
    revisions = [
        other for other in record.inbox if (other["channel"], other["account"], other["original"]) == name
    ]
    is_replaced = any(other["ord"] > row["ord"] and other["state"] != "new" for other in revisions)
    return is_replaced or any(other["interrupted"] == "withdrawn" for other in revisions)


def _check_context(verdict: Verdict, record: Record) -> None:
    """Check that messages to others are stored as context once, and not after their deletion."""
    _once(verdict, "context", (f"{name!r} in {session}" for session, name in record.context))
    deleted = {
        source_of(row["channel"], row["account"], row["dedup_key"])
        for row in record.inbox
        if row["interrupted"] == "withdrawn"
    }
    for session, name in record.context:
        if name in deleted:
            verdict.add("wrong", f"deleted context {name!r} is still in {session}")


def _check_summaries(verdict: Verdict, record: Record) -> None:
    """Check that each summary is whole and reported at most once, and that none is superfluous.

    Two may follow one another: the newest messages stay as they are, and a turn may have less room for them
    after a call of a tool.
    """
    for session, (until, summaries) in record.summaries.items():
        numbers = [record.numbers[message.id] for message in summaries]
        if until >= numbers[-1]:
            verdict.add("wrong", f"{session}: the last summary counts up to {until}, and is {numbers[-1]}")
        said = [record.numbers[message.id] for message in record.logs[session]]
        for count, number in enumerate(numbers, 1):
            if sum(each < number for each in said) < count:
                verdict.add("duplicate", f"{session}: summary {number} has no message of its own")
        told = [text_of(message).count(SUMMARIZED) for message in record.logs[session]]
        if max(told, default=0) > 1 or sum(told) > len(summaries):
            verdict.add(
                "duplicate", f"{session}: {len(summaries)} summaries, and {sum(told)} notices of them"
            )
        for message in summaries:
            if text_of(message) != SUMMARY:
                verdict.add("orphan", f"{session}: a summary says {text_of(message)!r}")


def _check_effects(verdict: Verdict, effects: Path) -> None:
    """Check that no tool had its effect twice. After a crash it may be missing (the model learns that)."""
    _once(verdict, "effect of a tool", words_of(effects))


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
