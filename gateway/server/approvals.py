"""Approvals over REST: what people allowed tools for always, and taking it back."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gateway.access import THE_OWNER, Access, Grant
from gateway.contract.errors import NotFoundError
from gateway.server.routes import Call, Nothing, Route


class Allowed(Struct, frozen=True):
    """An "always": in ``session``, ``user`` of ``channel`` (empty for the owner of the gateway) is not asked
    again for calls of ``tool`` that match exactly ``matches``. ``at`` is milliseconds.
    """

    id: str
    session: str
    channel: str
    user: str
    tool: str
    matches: str
    approved_by: str
    at: int

    @classmethod
    def of(cls, grant: Grant) -> Allowed:
        """Return a grant as it is shown."""
        return cls(
            grant.id,
            grant.session,
            grant.channel,
            grant.user_id,
            grant.tool,
            grant.matches,
            grant.approved_by,
            grant.at,
        )


class AllowedList(Struct, frozen=True):
    """What is allowed for always, the latest first."""

    approvals: list[Allowed]

    @classmethod
    async def of(cls, access: Access) -> AllowedList:
        """Return all there are."""
        return cls([Allowed.of(grant) for grant in await access.grants.all()])


class AllowedPath(Struct, frozen=True):
    """Which one."""

    id: Annotated[str, Meta(min_length=1, max_length=64, description="The id in the list")]


class ApprovalRoutes:
    """The routes under ``/api/approvals``."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def routes(self) -> list[Route]:
        """Return all of them."""
        return [
            Route(
                method="GET",
                path="/api/approvals",
                name="listApprovals",
                summary="What people allowed tools for always.",
                call=self._list,
                answer=AllowedList,
            ),
            Route(
                method="DELETE",
                path="/api/approvals/{id}",
                name="revokeApproval",
                summary="Take back an always; the next call asks again.",
                call=self._revoke,
                takes=AllowedPath,
                status=204,
                errors=(NotFoundError,),
            ),
        ]

    async def _list(self, _call: Call[Nothing, Nothing, Nothing, None]) -> AllowedList:
        return await AllowedList.of(self._access)

    async def _revoke(self, call: Call[AllowedPath, Nothing, Nothing, None]) -> None:
        await self._access.grants.revoke(call.path.id, THE_OWNER)
