"""Explanations over REST: why a message got its answer or none."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gateway.server.routes import Call, Nothing, Route
from gateway.why import Explanation, Why


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


class WhyRoutes:
    """The routes under ``/api/why``."""

    def __init__(self, why: Why) -> None:
        self._why = why

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "GET",
                "/api/why/{id}",
                "explainMessage",
                "Explain why a message got its answer or none; a platform's id may mean several messages.",
                self._explain,
            )
        ]

    async def _explain(self, call: Call[WhyPath, Nothing, Nothing, None]) -> Explanation:
        return await self._why.explain(call.path.id)
