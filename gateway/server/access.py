"""Access over REST: waiting and allowed users, stored tool approvals, and the rooms seen so far."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from gateway.access import Access, Grant, Member, PluginGrant, UserRef
from gateway.access.policy import AccessPolicy
from gateway.access.rooms import SeenRoom
from gateway.contract.channel import SenderRole
from gateway.contract.errors import NotFoundError
from gateway.server.routes import Call, Nothing, PlainCall, Route

_Id = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x20\x7f]+$")]


class WaitingUser(Struct, frozen=True):
    """An unauthorized user with a pairing code. Times are in milliseconds; ``name`` is from the platform.

    ``code`` is empty if it was issued before the gateway's last start: only its hash is stored.
    """

    code: str
    channel: str
    user: str
    name: str
    created_at: int
    expires_at: int


class AllowedUser(Struct, frozen=True):
    """A user who was allowed by pairing. ``at`` is in milliseconds."""

    channel: str
    user: str
    role: SenderRole
    name: str
    approved_by: str
    at: int

    @classmethod
    def of(cls, member: Member) -> AllowedUser:
        """Return the public view of a member."""
        return cls(member.channel, member.user_id, member.role, member.name, member.approved_by, member.at)


class PairingList(Struct, frozen=True):
    """Waiting users and users allowed by pairing, newest first. Users in the settings are not listed."""

    waiting: list[WaitingUser]
    members: list[AllowedUser]

    @classmethod
    async def of(cls, access: Access) -> PairingList:
        """Read the lists."""
        waiting = [
            WaitingUser(code.code, code.channel, code.user_id, code.name, code.created_at, code.expires_at)
            for code in await access.pairing.waiting()
        ]
        return cls(waiting, [AllowedUser.of(member) for member in access.members.list()])


class PairingApproval(Struct, frozen=True, forbid_unknown_fields=True):
    """A pairing code, and the role that its user gets."""

    code: Annotated[str, Meta(min_length=1, max_length=64)]
    role: SenderRole = "user"


class MemberPath(Struct, frozen=True):
    """A user, by the ids of channel and user."""

    channel: Annotated[_Id, Meta(description="The channel's id")]
    user: Annotated[_Id, Meta(description="The user's id on the platform")]


class ToolApproval(Struct, frozen=True):
    """A stored "always" decision.

    In ``session``, calls of ``tool`` for exactly ``matches`` by ``user`` of ``channel`` (empty for the owner
    of the gateway) need no further approval. ``at`` is in milliseconds. Or a decision about a capability of
    a plugin: ``tool`` is ``plugin NAME``, ``matches`` the capability, "never " before it if it was refused.
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
    def of(cls, grant: Grant) -> ToolApproval:
        """Return the public view of a grant."""
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

    @classmethod
    def of_plugin(cls, grant: PluginGrant) -> ToolApproval:
        """Return the public view of a decision about a capability of a plugin, which holds everywhere."""
        tool, matches = f"plugin {grant.plugin}", f"{'' if grant.allowed else 'never '}{grant.capability}"
        return cls(grant.id, "", "", "", tool, matches, grant.decided_by, grant.at)


class ToolApprovalList(Struct, frozen=True):
    """Stored "always" decisions, newest first."""

    approvals: list[ToolApproval]

    @classmethod
    async def of(cls, access: Access) -> ToolApprovalList:
        """Read the list."""
        tools = [ToolApproval.of(grant) for grant in await access.grants.all()]
        plugins = [ToolApproval.of_plugin(grant) for grant in await access.plugin_grants.all()]
        return cls(sorted((*tools, *plugins), key=lambda approval: -approval.at))


class ToolApprovalPath(Struct, frozen=True):
    """A stored approval."""

    id: Annotated[str, Meta(min_length=1, max_length=500, description="The id in the list")]


class RoomInfo(Struct, frozen=True):
    """A chat in which a channel has seen a message, with the settings that apply there.

    ``name`` is that of the room, or of the user in a private chat. ``channel`` and ``chat`` are its place
    in the settings. ``allow`` is the number of users in the list that applies, null if it allows everyone.
    ``seen_at`` is in milliseconds.
    """

    channel: str
    account: str
    chat: str
    name: str
    kind: Literal["group", "private"]
    enabled: bool
    groups: Literal["command", "reply", "mention", "always"]
    allow: int | None
    seen_at: int

    @classmethod
    def of(cls, seen: SeenRoom, policy: AccessPolicy) -> RoomInfo:
        """Return the public view of a chat."""
        room = policy.rooms.room(seen.channel, seen.chat, seen.group)
        allow = policy.rules(seen.channel).allow if room.allow is None else room.allow
        return cls(
            seen.channel,
            seen.account,
            seen.chat,
            seen.title,
            "group" if seen.group else "private",
            room.enabled,
            room.groups,
            None if "*" in allow else len(allow),
            seen.seen_at,
        )


class RoomList(Struct, frozen=True):
    """Chats in which channels have seen messages, the latest first; 10,000 at most."""

    rooms: list[RoomInfo]

    @classmethod
    async def of(cls, access: Access) -> RoomList:
        """Read the list."""
        return cls([RoomInfo.of(seen, access.policy) for seen in await access.seen_rooms.list()])


class AccessRoutes:
    """The routes under ``/api/approvals``, ``/api/pairs`` and ``/api/rooms``."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def routes(self) -> list[Route]:
        """Return the routes."""
        gone = (NotFoundError,)
        return [
            Route(
                "GET",
                "/api/approvals",
                "listApprovals",
                'List the stored "always" approvals of tools.',
                self._list_approvals,
            ),
            Route(
                "DELETE",
                "/api/approvals/{id}",
                "revokeApproval",
                "Revoke a stored approval; the next call asks again.",
                self._revoke_approval,
                errors=gone,
            ),
            Route(
                "GET",
                "/api/pairs",
                "listPairs",
                "List the users who wait with a pairing code, and the allowed users.",
                self._list_pairs,
                role="viewer",
                hides=("waiting.code",),
            ),
            Route(
                "POST",
                "/api/pairs",
                "approvePair",
                "Allow the user with this pairing code.",
                self._approve_pair,
                errors=gone,
            ),
            Route(
                "DELETE",
                "/api/pairs/{channel}/{user}",
                "revokePair",
                "Remove an allowed user; a running answer to this user is aborted.",
                self._revoke_pair,
                errors=gone,
            ),
            Route(
                "GET",
                "/api/rooms",
                "listRooms",
                "List the chats that channels have seen, with the settings that apply there.",
                self._list_rooms,
                role="viewer",
            ),
        ]

    async def _list_approvals(self, _call: PlainCall) -> ToolApprovalList:
        return await ToolApprovalList.of(self._access)

    async def _revoke_approval(self, call: Call[ToolApprovalPath, Nothing, Nothing, None]) -> None:
        await self._access.revoke_approval(call.path.id, _actor(call))

    async def _list_rooms(self, _call: PlainCall) -> RoomList:
        return await RoomList.of(self._access)

    async def _list_pairs(self, _call: PlainCall) -> PairingList:
        return await PairingList.of(self._access)

    async def _approve_pair(self, call: Call[Nothing, Nothing, Nothing, PairingApproval]) -> AllowedUser:
        if call.body.role == "admin":
            call.require_proof()
        member = await self._access.pairing.approve(call.body.code, _actor(call), "admin", call.body.role)
        return AllowedUser.of(member)

    async def _revoke_pair(self, call: Call[MemberPath, Nothing, Nothing, None]) -> None:
        await self._access.revoke(UserRef(call.path.channel, call.path.user), _actor(call))


def _actor(call: Call[Any, Any, Any, Any]) -> UserRef:
    """Return who acts, for the audit log: an admin at the console may do what the owner may."""
    return UserRef("", call.identity.account)
