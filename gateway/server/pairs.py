"""Access over REST: who waits with a code, who was let in; letting somebody in, and out again."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from gateway.access import THE_OWNER, Access, Member, Who
from gateway.contract.channel import SenderRole
from gateway.contract.errors import NotFoundError
from gateway.server.routes import Call, Nothing, Route

_Name = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x20\x7f]+$")]


class Waiting(Struct, frozen=True):
    """A stranger who was given a code. Times are milliseconds; ``name`` is what the platform says.

    ``code`` is empty for one that was given before the gateway's last start: only its hash is stored.
    """

    code: str
    channel: str
    user: str
    name: str
    created_at: int
    expires_at: int


class Let(Struct, frozen=True):
    """Somebody who was let in. ``at`` is milliseconds."""

    channel: str
    user: str
    role: SenderRole
    name: str
    approved_by: str
    at: int

    @classmethod
    def of(cls, member: Member) -> Let:
        """A member, as it is shown."""
        return cls(member.channel, member.user_id, member.role, member.name, member.approved_by, member.at)


class Pairs(Struct, frozen=True):
    """Who waits, and who was let in beside those whom the settings allow; the latest first."""

    waiting: list[Waiting]
    members: list[Let]

    @classmethod
    async def of(cls, access: Access) -> Pairs:
        """All there are."""
        waiting = [
            Waiting(code.code, code.channel, code.user_id, code.name, code.created_at, code.expires_at)
            for code in await access.pairing.waiting()
        ]
        return cls(waiting, [Let.of(member) for member in access.members.list()])


class Approval(Struct, frozen=True, forbid_unknown_fields=True):
    """A stranger's code, and what they are to be."""

    code: Annotated[str, Meta(min_length=1, max_length=64)]
    role: SenderRole = "user"


class MemberPath(Struct, frozen=True):
    """Who, by the ids of channel and user."""

    channel: Annotated[_Name, Meta(description="The channel's id")]
    user: Annotated[_Name, Meta(description="The user's id there")]


class PairRoutes:
    """The routes under ``/api/pairs``."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route(
                method="GET",
                path="/api/pairs",
                name="listPairs",
                summary="Strangers who wait with a code, and members.",
                call=self._list,
                answer=Pairs,
            ),
            Route(
                method="POST",
                path="/api/pairs",
                name="approvePair",
                summary="Let the stranger in who was given a code.",
                call=self._approve,
                body=Approval,
                answer=Let,
                errors=(NotFoundError,),
            ),
            Route(
                method="DELETE",
                path="/api/pairs/{channel}/{user}",
                name="revokePair",
                summary="Let a member out again; a running answer to them ends.",
                call=self._revoke,
                takes=MemberPath,
                status=204,
                errors=(NotFoundError,),
            ),
        ]

    async def _list(self, _call: Call[Nothing, Nothing, Nothing, None]) -> Pairs:
        return await Pairs.of(self._access)

    async def _approve(self, call: Call[Nothing, Nothing, Nothing, Approval]) -> Let:
        body = call.body
        return Let.of(await self._access.pairing.approve(body.code, THE_OWNER, "admin", body.role))

    async def _revoke(self, call: Call[MemberPath, Nothing, Nothing, None]) -> None:
        await self._access.revoke(Who(call.path.channel, call.path.user), THE_OWNER)
