"""Dead letters over REST: lists, groups by cause, and dry runs to answer them again or to drop them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from gateway.contract.errors import InvalidRequestError, InvalidStateError, NotFoundError
from gateway.server.routes import Call, Nothing, Route
from gateway.server.sessions.why import WhyQuery, requester
from gateway.store.writes import audit_op
from gateway.why import ReplayPlan, Replays, Why
from gateway.why.dead_letters import DeadCause, DeadLetter, DeadLetters, LetterChoice

LetterId = Annotated[str, Meta(pattern=r"^[!-~]{1,64}$", description="The dead letter's id")]
CauseKey = Annotated[str, Meta(pattern=r"^[!-~]{1,200}$", description="``key`` of a cause")]


class DeadLetterPath(Struct, frozen=True):
    """A dead letter."""

    id: LetterId


class DeadLetterQuery(Struct, frozen=True):
    """A page of dead letters, and a filter."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="Maximum number")] = 500
    cursor: (
        Annotated[str, Meta(pattern=r"^[0-9]{1,16}:[!-~]{1,64}$", description="``next`` of the last page")]
        | UnsetType
    ) = UNSET
    cause: CauseKey | UnsetType = UNSET


class DeadLetterList(Struct, frozen=True):
    """Dead letters, newest first. ``next`` is the ``cursor`` of the next page, null on the last one."""

    dead: list[DeadLetter]
    next: str | None


class DeadCauseList(Struct, frozen=True):
    """The causes of dead letters, that of the newest letter first."""

    causes: list[DeadCause]


class LetterPlan(Struct, frozen=True, forbid_unknown_fields=True):
    """Action on dead letters: those with these ids, those with one cause, or all.

    ``old`` also answers messages that are older than a day.
    """

    action: Literal["replay", "drop"]
    ids: Annotated[list[LetterId], Meta(min_length=1, max_length=1000)] | UnsetType = UNSET
    cause: CauseKey | UnsetType = UNSET
    all: bool = False
    old: bool = False


class DeadLetterRoutes:
    """The routes under ``/api/dead``. A plan is confirmed by ``confirmReplay``."""

    def __init__(self, letters: DeadLetters, replays: Replays, why: Why) -> None:
        self._letters = letters
        self._replays = replays
        self._why = why

    def routes(self) -> list[Route]:
        """Return the routes."""
        one = "/api/dead/{id}"
        return [
            Route(
                "GET",
                "/api/dead",
                "listDead",
                "List messages without an answer or unreadable.",
                self._list,
                role="viewer",
                hides=("dead.text",),
            ),
            Route(
                "GET",
                "/api/dead/causes",
                "listDeadCauses",
                "Group the dead letters by cause.",
                self._causes,
                role="viewer",
            ),
            Route(
                "POST",
                "/api/dead/plan",
                "planDead",
                "Dry run: list the dead letters that would be answered or dropped, and the estimated cost.",
                self._plan,
                errors=(NotFoundError,),
            ),
            Route(
                "GET",
                one,
                "showDead",
                "Show a dead letter with the trace of its failure.",
                self._show,
                errors=(NotFoundError,),
            ),
            Route(
                "POST",
                f"{one}/replay",
                "replayDead",
                "Try once more to answer a message.",
                self._replay,
                errors=(NotFoundError, InvalidStateError),
            ),
            Route("DELETE", one, "dropDead", "Delete a dead letter.", self._drop, errors=(NotFoundError,)),
        ]

    async def _list(self, call: Call[Nothing, DeadLetterQuery, Nothing, None]) -> DeadLetterList:
        asked, before = call.query, None
        if isinstance(asked.cursor, str):
            at, _, letter_id = asked.cursor.partition(":")
            before = int(at), letter_id
        cause = asked.cause if isinstance(asked.cause, str) else None
        letters = await self._letters.list(asked.limit + 1, before, cause)
        shown = letters[: asked.limit]
        more = f"{shown[-1].at}:{shown[-1].id}" if len(letters) > len(shown) else None
        if not call.identity.reads_messages:
            # The kind of the error remains: its words may quote the message.
            shown = [replace(one, reason=one.reason.partition(":")[0]) for one in shown]
        return DeadLetterList(shown, more)

    async def _causes(self, call: Call[Nothing, WhyQuery, Nothing, None]) -> DeadCauseList:
        return DeadCauseList(await self._letters.causes(self._why.words(call.query.lang)))

    async def _plan(self, call: Call[Nothing, WhyQuery, Nothing, LetterPlan]) -> ReplayPlan:
        body = call.body
        ids = body.ids if isinstance(body.ids, list) else None
        cause = body.cause if isinstance(body.cause, str) else None
        if (ids is not None) + (cause is not None) + body.all != 1:
            raise InvalidRequestError("the body: exactly one of ids, cause and all is required")
        choice, words = LetterChoice(ids, cause), self._why.words(call.query.lang)
        return await self._replays.plan_letters(
            choice, requester(call.request), body.action, old=body.old, words=words
        )

    async def _show(self, call: Call[DeadLetterPath, Nothing, Nothing, None]) -> DeadLetter:
        return await self._letters.get(call.path.id)

    async def _replay(self, call: Call[DeadLetterPath, Nothing, Nothing, None]) -> None:
        letter = call.path.id
        await self._letters.replay(letter, audit_op(call.identity.account, "message.replay", letter))

    async def _drop(self, call: Call[DeadLetterPath, Nothing, Nothing, None]) -> None:
        letter = call.path.id
        await self._letters.drop(letter, audit_op(call.identity.account, "message.drop", letter))
