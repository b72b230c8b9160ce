"""The questions of all conversations: listed with what they would permit, and answered from the console."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from gateway.access.people import UserRef
from gateway.access.permissions import match_text, rule_to_add
from gateway.access.questions import Held, Questions
from gateway.contract.errors import ForbiddenError, NotFoundError
from gateway.contract.questions import MAX_ANSWER, ApprovalRequest, Choice, Question
from gateway.contract.tool import Tool
from gateway.server.errors import ConfirmIdentityError
from gateway.server.now import ReaderOf, owner_as_reader
from gateway.server.operator.context import Difference, QuestionContext, difference_of, read_led
from gateway.server.routes import Call, Nothing, Route
from gateway.session import Session
from gateway.session.log import read_sessions_by_id
from gateway.store import Store

_Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="The question's id")]


class QuestionPath(Struct, frozen=True):
    """A question."""

    id: _Id


class QuestionQuery(Struct, frozen=True):
    """``open`` questions, the next to expire first; or ``decided`` ones, the latest first."""

    state: Literal["open", "decided"] = "open"


class Effect(Struct, frozen=True):
    """Target of a tool call: a command, a path, an address, or any text that its rules match."""

    kind: Literal["command", "path", "url", "text"]
    text: str


class Decision(Struct, frozen=True):
    """End of a question: ``state``, the chosen values in words, by whom and when (milliseconds).

    ``by`` is a user as channel and id, or the name of an admin; empty if it expired or was withdrawn.
    """

    state: Literal["answered", "expired", "withdrawn"]
    outcome: str
    by: str
    at: int


class OperatorQuestion(Struct, frozen=True):
    """A question with what its answer permits. Times are in milliseconds.

    ``command`` is the exact call, with invisible characters escaped, and empty for a question that is not
    about a tool; ``rule`` is the line of the settings that would have allowed it. ``may_answer`` are the ids
    of the users of ``channel``, besides admins. ``on_expiry`` says what happens without an answer.
    """

    id: str
    kind: Literal["approval", "question"]
    owner: str
    title: str
    detail: str
    session: str
    conversation: str
    channel: str
    message: str
    tool: str
    tool_text: str
    command: str
    effect: Effect | None
    rule: str
    always: str | None
    reason: str
    choices: list[Choice]
    multiple: bool
    free_text: bool
    may_answer: list[str]
    created_at: int
    expires_at: int
    on_expiry: str
    decision: Decision | None

    def without_text(self) -> OperatorQuestion:
        """Return the question without commands and text, for a reader who may not read messages."""
        return replace(
            self,
            title="",
            detail="",
            conversation="",
            command="",
            effect=None,
            rule="",
            always=None,
            reason="",
            choices=[],
            decision=None if self.decision is None else replace(self.decision, outcome=""),
        )


class QuestionList(Struct, frozen=True):
    """Questions. Of those that were decided, the latest 200 are kept; the audit log has all answers."""

    questions: list[OperatorQuestion]


class QuestionAnswer(Struct, frozen=True, forbid_unknown_fields=True):
    """An answer: the values of choices, such as once, always or deny for a tool; or one text."""

    values: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=MAX_ANSWER)]], Meta(min_length=1, max_length=25)
    ]


class QuestionRoutes:
    """The routes under ``/api/questions``.

    ``tools`` returns the tools, ``session_of`` a session in memory, ``reader_of`` the reader of a request.
    The titles of other sessions are read from the store.
    """

    def __init__(
        self,
        questions: Questions,
        tools: Callable[[], Sequence[Tool]],
        session_of: Callable[[str], Session | None],
        store: Store,
        reader_of: ReaderOf = owner_as_reader,
    ) -> None:
        self._questions = questions
        self._tools = tools
        self._session_of = session_of
        self._store = store
        self._reader_of = reader_of

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "GET",
                "/api/questions",
                "listQuestions",
                "List the questions of all conversations: open ones, or those that were decided.",
                self._list,
                role="viewer",
            ),
            Route(
                "POST",
                "/api/questions/{id}",
                "answerQuestion",
                "Answer a question in place of the user it was asked; the audit log has the name.",
                self._answer,
                errors=(NotFoundError, ForbiddenError, ConfirmIdentityError),
            ),
            Route(
                "GET",
                "/api/questions/{id}/context",
                "readQuestionContext",
                "Read what led to a question, and what its answer changes in files.",
                self._read_context,
                role="viewer",
                errors=(NotFoundError,),
                hides=("asked", "difference", "more_lines"),
            ),
        ]

    async def _list(self, call: Call[Nothing, QuestionQuery, Nothing, None]) -> QuestionList:
        if call.query.state == "open":
            held = sorted(self._questions.all_open(), key=lambda one: one.question.expires_at)
        else:
            held: Sequence[Held] = list(reversed(self._questions.decided))
        titles = await self._titles({one.question.session for one in held})
        found = [self._view(one, titles) for one in held]
        if not self._reader_of(call.request).sees_text:
            found = [one.without_text() for one in found]
        return QuestionList(found)

    async def _read_context(self, call: Call[QuestionPath, Nothing, Nothing, None]) -> QuestionContext:
        known = (*self._questions.all_open(), *self._questions.decided)
        held = next((one for one in known if one.question.id == call.path.id), None)
        if held is None:
            raise NotFoundError(f"there is no question {call.path.id!r}, or it was decided long ago")
        question, message = held.question, held.inbox_id
        asked, calls = await self._store.read(lambda c: read_led(c, message, question.created_at))
        changed = Difference()
        if isinstance(question, ApprovalRequest) and self._changes_files(question.tool_name):
            changed = await asyncio.to_thread(difference_of, question.arguments)
        return QuestionContext(asked, calls, *changed)

    def _changes_files(self, tool_name: str) -> bool:
        """Return whether a tool shows diffs. Tools that the gateway does not know are those of a backend."""
        tool = next((one for one in self._tools() if one.name == tool_name), None)
        return tool is None or tool.display.kind == "diff"

    async def _answer(self, call: Call[QuestionPath, Nothing, Nothing, QuestionAnswer]) -> Decision:
        reader = self._reader_of(call.request)
        if not reader.is_admin:
            raise ForbiddenError("only admins answer questions of others")
        if "always" in call.body.values:
            call.require_proof()
        await self._questions.settle(call.path.id, call.body.values, by=UserRef("", reader.name))
        held = next(one for one in self._questions.decided if one.question.id == call.path.id)
        decision = _decision(held)
        assert decision is not None, "it was settled"
        return decision

    async def _titles(self, sessions: Collection[str]) -> Mapping[str, str]:
        """Return the titles of these sessions."""
        live = {name: found.row.title for name in sessions if (found := self._session_of(name)) is not None}
        away = [name for name in sessions if name not in live]
        rows = await self._store.read(lambda c: read_sessions_by_id(c, away)) if away else []
        return live | {row.id: row.title for row in rows}

    def _view(self, held: Held, titles: Mapping[str, str]) -> OperatorQuestion:
        question = held.question
        tool_name, tool_text, command, effect, rule = self._of_tool(question)
        is_approval = isinstance(question, ApprovalRequest)
        return OperatorQuestion(
            id=question.id,
            kind="approval" if is_approval else "question",
            owner=question.owner,
            title=question.title,
            detail=question.detail,
            session=question.session,
            conversation=titles.get(question.session, ""),
            channel=question.address.channel,
            message=held.inbox_id,
            tool=tool_name,
            tool_text=tool_text,
            command=command,
            effect=effect,
            rule=rule,
            always=question.always if is_approval else None,
            reason=question.reason if is_approval else "",
            choices=[*question.choices],
            multiple=question.multiple,
            free_text=question.takes_text,
            may_answer=[*question.answerers],
            created_at=question.created_at,
            expires_at=question.expires_at,
            on_expiry=(
                "The call is refused, and the model continues without it."
                if is_approval
                else "The question ends without an answer."
            ),
            decision=_decision(held),
        )

    def _of_tool(self, question: Question) -> tuple[str, str, str, Effect | None, str]:
        """Return a call's tool, what it does, the exact call, what it touches, and the missing rule."""
        if not isinstance(question, ApprovalRequest):
            return "", "", "", None, ""
        name, command = question.tool_name, question.in_full().decode()
        tool = next((one for one in self._tools() if one.name == name), None)
        if tool is None:  # a tool of a backend, or of a plugin that was removed
            return name, "", command, None, rule_to_add(name)
        key = match_text(tool, question.arguments)
        effect = None if key is None else Effect(tool.match_kind, key)
        return name, tool.definition.description.split("\n")[0], command, effect, rule_to_add(name)


def _decision(held: Held) -> Decision | None:
    answer = held.answer
    if answer is None or answer.state == "open":
        return None
    words = held.question.labels(answer.values)
    return Decision(answer.state, words or answer.outcome, answer.by, held.ended_at)
