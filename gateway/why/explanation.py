"""The explanation of a message: verdict, line, steps, and what its sender saw, from its stored rows."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType
from sqlalchemy import Connection

from gateway.contract.messages import ErrorPart, Message, TextPart, is_notice
from gateway.trail.path import read_path
from gateway.trail.refused import has_gaps
from gateway.trail.steps import Step, Value
from gateway.why.causes import Failure, failures_of, the_cause
from gateway.why.finder import NotAccepted
from gateway.why.path import failures_in, has_trail, steps_from
from gateway.why.records import Records, last_event_at, read_records
from gateway.why.stations import Station, draw_line
from gateway.why.verdict import Case, Live, Verdict, decide, refused, unknown
from gateway.why.words import Words

_NANO = 10**-9
_LONGEST_TEXT = 4_000
"""Characters of a text that an explanation quotes."""


class Subject(Struct, frozen=True):
    """The message: ids, place, and the person who wrote it. ``at`` is milliseconds."""

    id: str
    session: str
    channel: str
    account: str
    chat: str
    title: str
    platform_id: str
    answer_id: str
    attempts: int
    person: str
    at: int
    text: str


class StepRow(Struct, frozen=True):
    """A step. ``at`` is milliseconds, ``took`` microseconds, ``cost`` US dollars or null if it is unknown."""

    kind: str
    name: str
    at: int
    took: int
    state: str
    cost: float | None
    detail: dict[str, Value]


class SameCause(Struct, frozen=True):
    """The failures with one cause: their number, this one included, and the time of the first (ms)."""

    key: str
    count: int
    since: int


class Seen(Struct, frozen=True):
    """Content that the sender saw in the chat: an answer, a notice, or nothing."""

    kind: str
    text: str
    at: int
    platform_id: str


class Choice(Struct, frozen=True):
    """One of several messages that a platform's id may mean."""

    id: str
    text: str
    at: int


class Explanation(Struct, frozen=True, omit_defaults=True):
    """The explanation of a message. With ``choices`` there is nothing else: several messages were found."""

    message: Subject | UnsetType | None = UNSET
    verdict: Verdict | UnsetType = UNSET
    stations: tuple[Station, ...] | UnsetType = UNSET
    steps: tuple[StepRow, ...] | UnsetType = UNSET
    same_cause: SameCause | UnsetType | None = UNSET
    seen: tuple[Seen, ...] | UnsetType = UNSET
    proof: dict[str, int] | UnsetType = UNSET
    choices: tuple[Choice, ...] | UnsetType = UNSET


class Explained(Struct, frozen=True):
    """A message with its explanation. ``cause`` is the failure that explains why it has no answer."""

    records: Records
    verdict: Verdict
    stations: tuple[Station, ...]
    explanation: Explanation
    cause: Failure | None = None


def explain(
    connection: Connection,
    message_id: str,
    words: Words,
    now: int,
    live: Live | None = None,
    *,
    running: bool = True,
) -> Explained | None:
    """Explain a message, by the id of its row in the inbox; None without one."""
    records = read_records(connection, message_id)
    if records is None:
        return None
    steps, failures, rows = read_steps(connection, records, live.steps if live is not None else ())
    verdict = decide(Case(records, steps, failures, words, now, live, running))
    stations = tuple(draw_line(steps, words))
    explanation = Explanation(
        message=_subject(records),
        verdict=verdict,
        stations=stations,
        steps=tuple(map(_step_row, steps)),
        same_cause=None,
        seen=tuple(_seen(records)),
        proof={**records.proof, **rows},
    )
    cause = the_cause(failures) if verdict.code == "failed" else None
    return Explained(records, verdict, stations, explanation, cause)


def read_steps(
    connection: Connection, records: Records, unsaved: Sequence[Step] = ()
) -> tuple[Sequence[Step], list[Failure], dict[str, int]]:
    """Read the steps of a message, its failures, and the number of rows of the trail.

    ``unsaved`` are the newest steps, which no transaction has taken along yet.
    """
    path = read_path(connection, records.id)
    found = (*path.steps, *unsaved)
    recorded = has_trail(found)
    failures = failures_of(records, failures_in(found) if recorded else ())
    steps = found if recorded else steps_from(records, failures)
    trail = path.rows.get("trail", 0)
    return steps, failures, {"trail": trail} if trail else {}


def explain_unknown(connection: Connection, words: Words, channel: str) -> Explanation:
    """Explain that a message was never stored. ``channel`` is the one that it should have come from."""
    last = last_event_at(connection, channel) if channel else None
    return _bare(unknown(words, channel, last, gap=has_gaps(connection, channel)))


def explain_not_accepted(words: Words, found: NotAccepted) -> Explanation:
    """Explain that a message was not accepted."""
    return _bare(refused(words, found.reason, found.channel), {"refused": 1})


def choices_of(connection: Connection, ids: Sequence[str]) -> Explanation:
    """Return the messages that were found, to choose one."""
    found = [read_records(connection, message_id) for message_id in ids]
    return Explanation(
        choices=tuple(
            Choice(one.id, _cut(one.inbound.text), one.received_at) for one in found if one is not None
        )
    )


def _bare(verdict: Verdict, proof: dict[str, int] | None = None) -> Explanation:
    return Explanation(
        message=None, verdict=verdict, stations=(), steps=(), same_cause=None, seen=(), proof=proof or {}
    )


def _subject(records: Records) -> Subject:
    inbound = records.inbound
    sender, address = inbound.sender, inbound.address
    return Subject(
        records.id,
        records.session,
        records.channel,
        records.account,
        address.chat,
        address.title,
        records.platform_id,
        records.answer_id,
        records.attempts,
        sender.name or sender.username or sender.id,
        records.received_at,
        _cut(inbound.text),
    )


def _step_row(step: Step) -> StepRow:
    spent = step.detail.get("nano_usd")
    cost = spent * _NANO if isinstance(spent, int) else None
    return StepRow(step.kind, step.name, step.at, step.took, step.state, cost, dict(step.detail))


def _seen(records: Records) -> list[Seen]:
    answer = records.answer
    placed = [page for page in records.pages if page.platform_id is not None]
    # Clients that follow the session's log see the answer there, so nothing is placed for them.
    visible = answer is not None and (bool(placed) or not records.pages)
    if answer is None or not visible or records.hidden:
        return [Seen("nothing", "", 0, "")]
    kind = "notice" if records.error is not None else "answer"
    platform_id = placed[0].platform_id or "" if placed else ""
    return [Seen(kind, _cut(shown_text(answer)), records.settled_at, platform_id)]


def shown_text(answer: Message) -> str:
    """Return the text of an answer as people see it, with its notices and errors."""
    found: list[str] = []
    for part in answer.parts:
        if isinstance(part, TextPart) and (is_notice(part) or part.kind == "text"):
            found.append(part.content)
        elif isinstance(part, ErrorPart):
            found.append(part.message)
    return "\n\n".join(filter(None, found))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"
