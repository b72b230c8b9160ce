"""Explanations over REST: why a message was answered or not, and the replay of messages without one."""

from __future__ import annotations

import hashlib
from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from gateway.contract.errors import InvalidStateError, NotFoundError
from gateway.server.routes import Call, Nothing, Route
from gateway.why import Explanation, Language, ReplayPlan, Replays, ReplayState, Why


class WhyPath(Struct, frozen=True):
    """The message to explain."""

    id: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=500,
            description="The id of a message or its answer, the platform's id of either, or a link to it",
        ),
    ]


_TEXTS = (
    *(
        "message.text",
        "message.title",
        "seen.text",
        "choices.text",
        "stations.detail",
        "verdict.actions.command",
        "verdict.actions.more",
        "verdict.rule",
    ),
    *(f"steps.detail.{name}" for name in ("error", "answer", "by", "id")),
    *(f"steps.detail.{name}" for name in ("allowed_by", "refused_by", "asked_by")),
)
"""The texts that an explanation quotes of messages, people and commands."""


class MessagePath(Struct, frozen=True):
    """The message to answer again."""

    id: Annotated[str, Meta(min_length=1, max_length=64, description="The message's id")]


class CausePath(Struct, frozen=True):
    """The cause of messages without an answer."""

    key: Annotated[
        str, Meta(min_length=1, max_length=200, description="``same_cause.key`` of an explanation")
    ]


class PlanPath(Struct, frozen=True):
    """A plan."""

    plan: Annotated[str, Meta(min_length=1, max_length=64, description="``plan`` of a dry run")]


Lang = Annotated[Language, Meta(description="Language of the sentences")]


class WhyQuery(Struct, frozen=True):
    """Options of an explanation."""

    lang: Lang = "en"


class PlanQuery(Struct, frozen=True):
    """The messages that a plan answers."""

    old: Annotated[bool, Meta(description="Also messages that are older than a day")] = False
    lang: Lang = "en"


class WhyRoutes:
    """The routes under ``/api/why``. A plan can be confirmed with the credential that asked for it."""

    def __init__(self, why: Why, replays: Replays) -> None:
        self._why = why
        self._replays = replays

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "GET",
                "/api/why/{id}",
                "explainMessage",
                "Explain why a message was answered or not; a platform's id may mean several messages.",
                self._explain,
                role="viewer",
                hides=_TEXTS,
            ),
            Route(
                "POST",
                "/api/why/{id}/now",
                "answerNow",
                "End the pause before the next attempt to answer a message.",
                self._try_now,
                errors=(InvalidStateError, NotFoundError),
            ),
            Route(
                "POST",
                "/api/why/{id}/plan",
                "planReplay",
                "Dry run: return whether a message can be answered again, and the estimated cost.",
                self._plan_message,
                errors=(NotFoundError,),
            ),
            Route(
                "POST",
                "/api/why/same-cause/{key}/plan",
                "planReplayOfCause",
                "Dry run: list the messages without an answer for one cause that would be answered.",
                self._plan_cause,
                errors=(NotFoundError,),
            ),
            Route(
                "POST",
                "/api/why/plans/{plan}",
                "confirmReplay",
                "Answer or drop the messages of a plan that have not changed; repeated, return its state.",
                self._confirm,
                errors=(NotFoundError, InvalidStateError),
            ),
        ]

    async def _explain(self, call: Call[WhyPath, WhyQuery, Nothing, None]) -> Explanation:
        return await self._why.explain(call.path.id, call.query.lang)

    async def _try_now(self, call: Call[MessagePath, Nothing, Nothing, None]) -> None:
        if not await self._why.try_now(call.path.id, call.user):
            raise InvalidStateError("this message does not wait for its next attempt any more")

    async def _plan_message(self, call: Call[MessagePath, PlanQuery, Nothing, None]) -> ReplayPlan:
        words, old = self._why.words(call.query.lang), call.query.old
        return await self._replays.plan_message(call.path.id, requester(call.request), old=old, words=words)

    async def _plan_cause(self, call: Call[CausePath, PlanQuery, Nothing, None]) -> ReplayPlan:
        words, old = self._why.words(call.query.lang), call.query.old
        return await self._replays.plan_cause(call.path.key, requester(call.request), old=old, words=words)

    async def _confirm(self, call: Call[PlanPath, Nothing, Nothing, None]) -> ReplayState:
        return self._replays.confirm(call.path.plan, requester(call.request), call.identity.account)


def requester(request: web.Request) -> str:
    """Return a digest of the token or the session cookie of a request: plans of one are not another's."""
    cookies = (f"{name}={value}" for name, value in request.cookies.items() if "trunkline" in name)
    given = request.headers.get("Authorization") or ";".join(sorted(cookies))
    return hashlib.sha256(given.encode(errors="surrogatepass")).hexdigest()
