"""A question that is held in memory: its state, its rows, and what readers of its session see of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, cast

import msgspec
from msgspec import structs
from sqlalchemy import RowMapping

from gateway.contract.channel import Address, Placed
from gateway.contract.messages import now_ms
from gateway.contract.questions import Answer, ApprovalRequest, Question, QuestionState
from gateway.session.frames import ApprovalAsked
from gateway.session.redaction import Redactor
from gateway.store import Inserted, Op
from gateway.store import schema as t
from gateway.store.writes import Write

ADD = Write(
    "insert-new",
    84,
    t.question,
    "id owner key inbox_id subject body state created_at expires_at acknowledged",
)
SETTLE = Write("update", 85, t.question, "id state answer answered_by settled_at acknowledged")
SHOWN = Write("update", 86, t.question, "id shown")
ACKNOWLEDGE = Write("update", 87, t.question, "id acknowledged")
CLOSE = Write("update", 87, t.question, "id closed")
SPEND = Write("update", 87, t.question, "id key inbox_id acknowledged closed")
CONCEAL = Write("update", 87, t.question, "id body")
DROP_OF_MESSAGE = Write("delete", 89, t.question, "inbox_id", key="inbox_id")

_CONCEALED = "Question of a deleted message"


class Held:
    """A question that is open, or whose answer its owner has not taken yet.

    ``inbox_id`` is the message whose turn asked, empty without one; ``subject`` is what a repeated turn finds
    it by. ``taken``: an answer is being stored, or the question has ended. ``seq`` is its number in the log
    of its session, ``shown`` its place on the platform, once known.
    """

    def __init__(self, question: Question, inbox_id: str = "", subject: str = "") -> None:
        self.question = question
        self.inbox_id = inbox_id
        self.subject = subject
        self.answer: Answer | None = None
        self.settled: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.stored: asyncio.Future[Inserted] | None = None
        self.taken = False
        self.unshown = False
        """The channel cannot show the whole question."""
        self.waited_for = False
        """A turn waits for the answer."""
        self.dropped = False
        """Its owner withdrew it, so its end is not delivered."""
        self.spent = False
        """Its turn needs it no longer. Its row stays for the list of what was decided."""
        self.concealed = False
        """Its message was deleted, so its row goes as soon as the chat shows its end."""
        self.closed = False
        """The chat shows its outcome."""
        self.delivering = False
        self.ended_at = 0
        self.seq = 0
        self.shown: Placed | None = None
        self.earlier: list[Placed] = []
        """Further places. A process that is killed before it stores the place is followed by one that shows
        the question again."""
        self.showing: asyncio.Task[None] | None = None
        self.closing: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        # A clock that jumps must neither end a question at once nor keep it open for days, so the stored
        # times only say how much time is left when a process begins.
        whole = question.expires_at - question.created_at
        left = min(max(0, question.expires_at - now_ms()), max(0, whole))
        self.expires = asyncio.get_running_loop().time() + left / 1000

    def place(self, shown: Placed) -> None:
        """Keep a place where the platform shows the question."""
        if self.shown is not None and self.shown.platform_id != shown.platform_id:
            self.earlier.append(self.shown)
        self.shown = shown

    @property
    def is_open(self) -> bool:
        """Return whether an answer is accepted."""
        return not self.taken and self.answer is None

    def put(self) -> Op:
        """Return the write that stores the question."""
        asked = self.question
        body = json.dumps(msgspec.to_builtins(asked), default=str)
        whole = (asked.id, asked.owner, asked.key, self.inbox_id, self.subject, body, "open")
        return ADD, (*whole, asked.created_at, asked.expires_at, 0)

    def settle(self, answer: Answer, acknowledged: int = 0) -> Op:
        """Return the write that stores the end of the question."""
        values = json.dumps(answer.values)
        return SETTLE, (self.question.id, answer.state, values, answer.by, now_ms(), acknowledged)

    def spend(self, *, closed: bool) -> Op:
        """Return the write that keeps the row of a question that its turn needs no longer."""
        # Without its key, since the turn may ask the same again, and without the message, with which open
        # questions are deleted. Both are still known by the new key.
        self.spent, name = True, self.question.id
        return SPEND, (name, f"{self.inbox_id} {name}", "", now_ms(), int(closed))

    def conceal(self) -> Op:
        """Return the write that removes the text of the question, because its message was deleted."""
        self.concealed, asked = True, self.question
        nothing: dict[str, Any] = {"title": _CONCEALED, "detail": "", "choices": ()}
        if isinstance(asked, ApprovalRequest):
            nothing |= {"arguments": {}, "reason": "", "always": None}
        body = json.dumps(msgspec.to_builtins(structs.replace(asked, **nothing)), default=str)
        return CONCEAL, (asked.id, body)

    def end(self, state: QuestionState, values: Sequence[str] = (), by: str = "") -> Answer:
        """Return an end of the question."""
        asked = self.question
        return Answer(question_id=asked.id, key=asked.key, state=state, values=tuple(values), by=by)


def masked(question: Question, redactor: Redactor) -> Question:
    """Return a question with the configured secrets masked in all that is shown."""
    mask = redactor.redact_text
    choices = tuple(
        structs.replace(one, label=mask(one.text), description=mask(one.description))
        for one in question.choices
    )
    changed: dict[str, Any] = {
        "title": mask(question.title),
        "detail": mask(question.detail),
        "choices": choices,
    }
    if isinstance(question, ApprovalRequest):
        changed["arguments"] = redactor.redact_value(dict(question.arguments))
    return structs.replace(question, **changed)


def frame_of(held: Held) -> ApprovalAsked:
    """Return the frame that shows a question to the readers of its session."""
    question = held.question
    loop = asyncio.get_running_loop()
    left = max(0, round((held.expires - loop.time()) * 1000))
    if isinstance(question, ApprovalRequest):
        call = (question.id, question.tool_name, question.arguments, left, question.always, question.reason)
        return ApprovalAsked(*call)
    return ApprovalAsked(
        question.id,
        "",
        {},
        left,
        title=question.title,
        detail=question.detail,
        choices=question.choices,
        multiple=question.multiple,
        free_text=question.takes_text,
    )


def read_held(row: RowMapping) -> Held:
    """Return a stored question."""
    held = Held(_question(row), row["inbox_id"], row["subject"])
    held.closed = bool(row["closed"])
    held.concealed = held.question.title == _CONCEALED
    held.spent = bool(row["acknowledged"] and row["subject"])
    held.ended_at = row["settled_at"]
    if held.spent:
        held.inbox_id = row["key"].rpartition(" ")[0]
    if row["shown"]:
        held.shown = Placed(*json.loads(row["shown"]))
    if row["state"] != "open":
        held.taken = True
        held.answer = held.end(row["state"], json.loads(row["answer"]), row["answered_by"])
        held.settled.set_result(held.answer)
    return held


def _question(row: RowMapping) -> Question:
    if row["body"]:
        # Not decoded by msgspec at once: arguments of tools may hold lone surrogates.
        question = msgspec.convert(json.loads(row["body"]), Question | ApprovalRequest)  # type: ignore[call-overload]
        return structs.replace(cast("Question", question), restored=True)
    # A decision of a version that did not store questions.
    return ApprovalRequest(
        id=row["id"],
        key=row["key"],
        owner=row["owner"],
        address=Address(""),
        answerers=(),
        title="",
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        tool_name="",
        arguments={},
    )
