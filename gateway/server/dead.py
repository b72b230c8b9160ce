"""Dead letters over REST: list them, have one answered after all, drop one."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gateway.contract.errors import InvalidStateError, NotFoundError
from gateway.server.routes import Call, Nothing, Route
from gateway.session.dead_letters import DeadLetter, DeadLetters


class DeadPath(Struct, frozen=True):
    """Which dead letter."""

    id: Annotated[str, Meta(pattern=r"^[!-~]{1,64}$", description="The dead letter's id")]


class DeadList(Struct, frozen=True):
    """Dead letters, the latest first."""

    dead: list[DeadLetter]


class DeadRoutes:
    """The routes under ``/api/dead``."""

    def __init__(self, letters: DeadLetters) -> None:
        self._letters = letters

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route(
                method="GET",
                path="/api/dead",
                name="listDead",
                summary="What could not be answered, or not even read.",
                call=self._list,
                answer=DeadList,
            ),
            Route(
                method="POST",
                path="/api/dead/{id}/replay",
                name="replayDead",
                summary="Try once more to answer a message.",
                call=self._replay,
                takes=DeadPath,
                status=204,
                errors=(NotFoundError, InvalidStateError),
            ),
            Route(
                method="DELETE",
                path="/api/dead/{id}",
                name="dropDead",
                summary="Remove a dead letter for good.",
                call=self._drop,
                takes=DeadPath,
                status=204,
                errors=(NotFoundError,),
            ),
        ]

    async def _list(self, _call: Call[Nothing, Nothing, Nothing, None]) -> DeadList:
        return DeadList(await self._letters.list())

    async def _replay(self, call: Call[DeadPath, Nothing, Nothing, None]) -> None:
        await self._letters.replay(call.path.id)

    async def _drop(self, call: Call[DeadPath, Nothing, Nothing, None]) -> None:
        await self._letters.drop(call.path.id)
