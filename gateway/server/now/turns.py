"""The messages that are being answered, each with its current step and its path so far.

The state is polled, not pushed, so the path of a message has no extra cost. A row is rebuilt only
if its turn has begun another part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import cast

from gateway.access.questions import Held
from gateway.contract.deltas import TextDelta, ToolCallStart, ToolResultStart
from gateway.contract.messages import now_ms
from gateway.contract.questions import ApprovalRequest
from gateway.events.types import TurnFinished
from gateway.pipeline.mailbox import Mailbox
from gateway.server.now.shapes import Dot, EndedTurn, Running, RunningRow, Step, StepKind
from gateway.session import Session, Turn
from gateway.store.inbox import Entry

MOST_ROWS = 1_000
_MOST_DOTS = 6
_LAST_PARTS = 12
_ACTIVITY = 50


class _Watched:
    """A message that is being answered, as it was at the last look."""

    __slots__ = ("key", "row")

    def __init__(self, key: object, row: RunningRow) -> None:
        self.key = key
        self.row = row


class RunningTurns:
    """All messages that are being answered. ``look`` is called about once a second."""

    def __init__(self) -> None:
        self._watched: dict[str, _Watched] = {}
        self._ended: list[EndedTurn] = []
        self._of_answer: dict[str, RunningRow] = {}
        self.activity: deque[EndedTurn] = deque(maxlen=_ACTIVITY)
        """The latest turns that ended while there were readers."""

    def __len__(self) -> int:
        return len(self._watched)

    def look(self, mailboxes: Sequence[Mailbox], asked: Sequence[Held], now: int) -> None:
        """Look at the messages that are being answered. An unchanged row stays the same object."""
        waits = {held.inbox_id: held for held in asked if held.waited_for and held.inbox_id}
        earlier, self._watched = self._watched, {}
        for mailbox in mailboxes:
            entry, session = mailbox.running, mailbox.session
            if entry is None or session is None or entry.announced:
                continue
            turn = cast("Turn | None", session.turn)
            held = waits.get(entry.id)
            key = _key_of(turn, held, session)
            one = earlier.get(entry.id)
            # The result of a tool ends without a new part.
            if one is None or one.key != key or one.row.step.kind == "tool":
                row = _row(entry, session, turn, held, None if one is None else one.row, now)
                if one is None or one.row != row:
                    one = _Watched(key, row)
                one.key = key
            self._watched[entry.id] = one
        self._of_answer = {one.row.answer: one.row for one in self._watched.values()}

    def rows(self) -> Running:
        """Return the rows, the oldest first."""
        rows = sorted((one.row for one in self._watched.values()), key=lambda row: (row.since, row.id))
        return Running(len(rows), rows[:MOST_ROWS])

    def finished(self, event: TurnFinished) -> None:
        """Note a turn that ended, for the activity."""
        if len(self._ended) >= _ACTIVITY:
            return
        # Of a turn that was shorter than the time between two looks only the event is known.
        row, now = self._of_answer.get(event.answer), now_ms()
        ended = EndedTurn(
            id="" if row is None else row.id,
            session=event.session,
            channel=event.channel,
            person="" if row is None else row.person,
            outcome=event.outcome,
            error=event.error,
            took=0 if row is None else now - row.since,
            at=now,
        )
        self._ended.append(ended)

    def take_ended(self) -> list[EndedTurn]:
        """Return the turns that ended since the last call."""
        # Only now: a reader with an earlier snapshot gets them as a change.
        self.activity.extend(self._ended)
        taken, self._ended = self._ended, []
        return taken


def _key_of(turn: Turn | None, held: Held | None, session: Session) -> object:
    if turn is None:
        return held, session.row.title
    return (
        turn.answer_id,
        len(turn.part_seqs),
        turn.committed,
        held and held.question.id,
        turn.model,
        turn.assembler.waits_for,
        session.row.title,
    )


def _row(
    entry: Entry, session: Session, turn: Turn | None, held: Held | None, before: RunningRow | None, now: int
) -> RunningRow:
    kind, name, path = _doing(turn, held)
    same = before is not None and (before.step.kind, before.step.name, before.path) == (kind, name, path)
    sender = entry.inbound.sender
    return RunningRow(
        id=entry.id,
        answer=entry.answer_id,
        session=session.id,
        channel=entry.channel,
        person=sender.name or sender.username or sender.id,
        title=session.row.title,
        agent="" if turn is None else turn.agent,
        model="" if turn is None else turn.model,
        attempt=max(1, entry.attempts),
        since=entry.received_at,
        step=Step(kind, name, before.step.since if before is not None and same else now),
        path=path,
    )


def _doing(turn: Turn | None, held: Held | None) -> tuple[StepKind, str, list[Dot]]:
    """Return the current step of a turn, and its path."""
    path = [Dot("accepted", "ok")]
    if turn is None:
        return "waited", "", [*path, Dot("waited", "waiting")]
    last = ""
    tools: dict[str, str] = {}
    running = ""
    for start, runs in turn.assembler.outline(_LAST_PARTS):
        match start:
            case ToolCallStart():
                tools[start.tool_call_id] = start.tool_name
                _append(path, Dot("model", "ok"))
                last = "call"
            case ToolResultStart():
                name = tools.get(start.tool_call_id, "")
                running = name if runs else running
                _append(path, Dot("tool", "running" if runs else "ok"))
                last = "result"
            case TextDelta(kind="notice"):
                pass
            case _:
                _append(path, Dot("model", "ok"))
                last = "text"
    kind, name, dot = _current(turn, held, last, running, tools)
    if dot.kind == path[-1].kind:
        path.pop()
    path = [*path[:1], *path[1:][-(_MOST_DOTS - 2) :], dot]
    return kind, name, path


def _current(
    turn: Turn, held: Held | None, last: str, running: str, tools: Mapping[str, str]
) -> tuple[StepKind, str, Dot]:
    if held is not None:
        return "question", _title_of(held), Dot("question", "waiting")
    limit = turn.assembler.waits_for
    if limit is not None:
        return "waited", limit.provider, Dot("waited", "waiting")
    if turn.committed:
        return "placement", "", Dot("placement", "running")
    if running:
        return "tool", running, Dot("tool", "running")
    if last == "call":
        return "tool", list(tools.values())[-1], Dot("tool", "running")
    return ("writing" if last == "text" else "model"), turn.model, Dot("model", "running")


def _append(path: list[Dot], dot: Dot) -> None:
    if path[-1] != dot:
        path.append(dot)


def _title_of(held: Held) -> str:
    question = held.question
    return question.tool_name if isinstance(question, ApprovalRequest) else question.title
