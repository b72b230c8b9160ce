"""Approvals and other questions of a turn: it waits for a user's decision in the session it runs in.

An approval is a question with the choices once, always and deny. Its decision is kept until the call's result
(or the intent to run its tool) is recorded, so that a turn repeated after a crash uses it once instead of
asking again. An "always" is kept as a grant (``grants.py``).
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct

from gateway.access.grants import grant
from gateway.access.people import UserRef
from gateway.access.permissions import always_text, match_text
from gateway.access.policy import Access
from gateway.access.questions import Held, Questions
from gateway.contract.channel import InboundMessage, Sender
from gateway.contract.messages import now_ms
from gateway.contract.questions import Answer, ApprovalRequest, Choice, Question
from gateway.contract.tool import Tool
from gateway.session import Turn, calling
from gateway.store import Op
from gateway.store.writes import audit_op

Outcome = Literal["once", "always", "deny", "timeout", "nobody", "unshown"]
"""``nobody``: no user can be asked. ``unshown``: the channel cannot show the whole question."""

OWNER = "approvals"
"""The owner of the questions about tool calls."""

_ONCE = Choice("once", "Allow once", style="good", words=("yes", "y", "ok", "allow"))
_DENY = Choice("deny", "Deny", style="bad", words=("no", "n"))
# Without an "always" the word still means yes.
_ONCE_ONLY = msgspec.structs.replace(_ONCE, words=(*_ONCE.words, "always"))

_MAX_MATCH_CHARS = 64
"""Longest match text that a button shows in full; Slack's limit is 75 characters, label included."""


class Ruling(Struct, frozen=True):
    """The outcome of an approval, and the id of the user who answered; "" if no user did."""

    outcome: Outcome
    by: str = ""


class Approvals:
    """Asks for the approval of tool calls; the sender of the message that led to a call decides."""

    def __init__(self, questions: Questions, access: Access, timeout_ms: int) -> None:
        self.questions = questions
        self._access = access
        self._timeout_ms = timeout_ms
        questions.effects[OWNER] = self._effects

    async def ask(
        self,
        turn: Turn,
        tool: Tool,
        arguments: Mapping[str, Any],
        *,
        recorded: bool = False,
        reason: str = "",
        always: str | None = None,
        consult: Callable[[], Awaitable[Outcome | None]] | None = None,
    ) -> Ruling:
        """Ask in the turn's session and wait for a decision, at most the configured timeout.

        Returns at once if a grant covers the call, if it was decided before a crash, or if no user can be
        asked. A question that was open at a crash is not asked again. ``recorded``: the caller commits
        ``used`` with the step that the call becomes. Otherwise a decision is kept until the message is
        answered, and a repeated turn uses it once. With a ``reason``, which the question shows, grants of the
        match text do not count. "Always" is then offered only for the text ``always``, and a grant of that
        text counts. ``consult`` is called before a new question, and may decide in its place.
        """
        matches, digest = match_text(tool, arguments), digest_of(arguments)
        if reason:
            matches = always
        user = self._user_of(turn)
        if matches is not None and await self._access.grants.allows(
            turn.root.session.id, user, tool, matches
        ):
            return Ruling("always")
        subject = f"{tool.name} {digest}"
        held = self._earlier(turn, subject)
        decided_before = held is not None and held.answer is not None
        if held is None:
            if consult is not None and (decided := await consult()) is not None:
                return Ruling(decided)
            if not self.questions.can_ask(turn):
                return Ruling("nobody")
            offered = None if matches is None else always_text(tool, matches)
            request = self._request(turn, tool.name, arguments, offered, reason)
            held = await self.questions.ask(request, inbox_id=turn.questions.inbox_id, subject=subject)
        elif not decided_before:
            self.questions.announce_again(held, turn.root.session)
        answer = await self.questions.wait(held)
        _record(turn, held, answer)
        turn.questions.used.add(held.question.id)
        if recorded:
            turn.questions.unrecorded[calling.get()].append(held.question.id)
        elif decided_before:
            await self.questions.drop(held.question.id)
        if held.unshown:
            return Ruling("unshown")
        return Ruling(cast("Outcome", answer.outcome), UserRef.parse(answer.by).user)

    def asker(self, turn: Turn, owner: str) -> Asker:
        """Return the function with which a tool call or hook of a turn asks its own questions."""
        return Asker(self.questions, turn, owner, self._timeout_ms)

    def used(self, turn: Turn) -> list[Op]:
        """Return the writes that delete the decisions a call used; commit them with its result."""
        return self.questions.used(turn)

    def _earlier(self, turn: Turn, subject: str) -> Held | None:
        """Return the question that an earlier attempt of the turn asked about this call."""
        if not turn.is_repeated:
            return None
        return next(
            (
                held
                for held in self.questions.of_message(turn.questions.inbox_id)
                if held.subject == subject and held.question.owner == OWNER and self._unused(turn, held)
            ),
            None,
        )

    def _unused(self, turn: Turn, held: Held) -> bool:
        # Nested runs may ask the same at once; each question waits for one call.
        return held.question.id not in turn.questions.used and not held.waited_for

    def _effects(self, held: Held, answer: Answer) -> list[Op]:
        """Return what is committed with a decision: its audit row, and the grant of an "always"."""
        request = held.question
        tool, _, digest = held.subject.rpartition(" ")
        detail = f"{request.session} arguments sha256:{digest}"
        ops = [audit_op(answer.by, f"approval.{answer.value}", tool, detail)]
        if answer.value == "always" and isinstance(request, ApprovalRequest) and request.always is not None:
            user, by = self._asked_user(request), UserRef.parse(answer.by)
            ops.append(grant(request.session, user, tool, request.always, by).put())
        return ops

    def _asked_user(self, request: Question) -> UserRef:
        asked = InboundMessage(
            session=request.session,
            dedup_key=request.id,
            address=request.address,
            sender=Sender(request.answerers[0]),
            role=request.role,
        )
        return self._access.policy.user_of(request.address.channel, asked)

    def _user_of(self, turn: Turn) -> UserRef:
        return self._access.policy.user_of(turn.entry.channel, turn.entry.inbound)

    def _request(
        self, turn: Turn, tool_name: str, arguments: Mapping[str, Any], always: str | None, reason: str
    ) -> ApprovalRequest:
        # A button that does not show all of it would not say what it allows.
        hidden = always is not None and turn.session.redactor.redact_text(always) != always
        if always is not None and (hidden or not _fits_a_button(always)):
            always = None
        choices = (_ONCE_ONLY, _DENY)
        if always is not None:
            choices = (_ONCE, _DENY, Choice("always", f"Always: {always}"))
        fields = asked_in(turn, OWNER, f"May {tool_name} run?", self._timeout_ms)
        return ApprovalRequest(
            **fields,
            choices=choices,
            tool_name=tool_name,
            arguments=arguments,
            always=always,
            reason=" ".join(filter(None, (turn.purpose, reason))),
        )


def digest_of(arguments: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a call's arguments; equal arguments have equal digests."""
    try:
        text = msgspec.json.encode(arguments, order="deterministic")
    except (TypeError, ValueError):
        text = repr(sorted(arguments.items())).encode(errors="backslashreplace")
    return hashlib.sha256(text).hexdigest()


def _fits_a_button(matches: str) -> bool:
    """Return whether a button can show this text in full and unambiguously."""
    return 0 < len(matches) <= _MAX_MATCH_CHARS and matches.isprintable() and matches == matches.strip()


class Asker:
    """Asks the sender of a turn's message, and waits for the answer; a repeated turn does not ask twice."""

    def __init__(self, questions: Questions, turn: Turn, owner: str, timeout_ms: int) -> None:
        self._questions = questions
        self._turn = turn
        self._owner = owner
        self._timeout_ms = timeout_ms

    async def __call__(
        self,
        title: str,
        *,
        detail: str = "",
        choices: Sequence[Choice] = (),
        multiple: bool = False,
        free_text: bool = False,
    ) -> Answer | None:
        """Return how the question ended, or None if no user can be asked."""
        turn = self._turn
        if not self._questions.can_ask(turn):
            return None
        asked = turn.questions
        # Of one call, or of the hooks before all calls: a repeated turn does not repeat calls that are done.
        # As a digest, because some models give their calls ids that are too long for an index.
        text = hashlib.sha256(json.dumps([calling.get(), title, detail]).encode()).hexdigest()
        place = f"{asked.inbox_id}:{self._owner}:{text}"
        key = f"{place}:{asked.numbers[place]}"
        asked.numbers[place] += 1
        question = Question(
            **asked_in(turn, self._owner, title, self._timeout_ms, key),
            detail="\n\n".join(filter(None, (turn.purpose, detail))),
            choices=tuple(choices),
            multiple=multiple,
            free_text=free_text,
        )
        held = await self._questions.ask(question, inbox_id=asked.inbox_id, subject=key)
        if held.question.id != question.id:
            self._questions.announce_again(held, turn.root.session)
        answer = await self._questions.wait(held)
        _record(turn, held, answer)
        return answer


def _record(turn: Turn, held: Held, answer: Answer) -> None:
    """Add a question to the trail of its message. What was answered is named for approvals only."""
    asked = held.question
    tool = asked.tool_name if isinstance(asked, ApprovalRequest) else ""
    outcome = answer.outcome if tool else answer.state
    turn.entry.trail.question(asked.id, tool, outcome, answer.by, asked.created_at)


def asked_in(turn: Turn, owner: str, title: str, timeout_ms: int, key: str = "") -> dict[str, Any]:
    """Return the fields of a question to the sender of the turn's message, in its chat."""
    now, question_id = now_ms(), secrets.token_urlsafe(12)
    return {
        "id": question_id,
        "key": key or question_id,
        "owner": owner,
        "session": turn.root.session.id,
        "address": turn.address,
        "answerers": (turn.sender.id,),
        "role": turn.entry.inbound.role,
        "title": title,
        "created_at": now,
        "expires_at": now + timeout_ms,
    }
