"""Users as channels identify them, and the members: users admitted by pairing, not by the settings."""

from __future__ import annotations

from msgspec import Struct
from sqlalchemy import Connection, select

from gateway.access.tokens import OWNER
from gateway.contract.channel import SenderRole
from gateway.store import Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write

ADD_MEMBER = Write(
    "upsert",
    61,
    t.member,
    "channel user_id id role name approved_by at",
    key="channel user_id",
)
DROP_MEMBER = Write("delete", 62, t.member, "id")


class UserRef(Struct, frozen=True):
    """A user of a channel, by id. The holder of the gateway's token is the owner, without a channel."""

    channel: str
    user: str

    @classmethod
    def parse(cls, text: str) -> UserRef:
        """Parse the text form that ``str`` returns."""
        channel, colon, user = text.partition(":")
        return cls(channel, user) if colon else cls("", text)

    def __str__(self) -> str:
        return f"{self.channel}:{self.user}" if self.channel else self.user


THE_OWNER = UserRef("", OWNER)


class Member(Struct, frozen=True, kw_only=True):
    """A user admitted by pairing. ``name`` is the display name, never an identity; ``at`` milliseconds."""

    id: str
    channel: str
    user_id: str
    role: SenderRole
    name: str = ""
    approved_by: str
    at: int

    @property
    def user(self) -> UserRef:
        """The user's identity."""
        return UserRef(self.channel, self.user_id)

    def put(self) -> Op:
        """Return the write that stores the member."""
        return ADD_MEMBER, (
            self.channel,
            self.user_id,
            self.id,
            self.role,
            self.name,
            self.approved_by,
            self.at,
        )


class Members:
    """All members; in memory, because every message needs its sender's role."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._members: dict[UserRef, Member] = {}

    async def load(self) -> None:
        """Read the members. Call it once, before the first lookup."""

        def read(connection: Connection) -> list[Member]:
            return [Member(**row) for row in connection.execute(select(t.member)).mappings()]

        self._members = {m.user: m for m in await self._store.read(read)}

    def get(self, user: UserRef) -> Member | None:
        """Return the member of this identity, or None."""
        return self._members.get(user)

    def list(self) -> list[Member]:
        """Return all members, the latest first."""
        return sorted(self._members.values(), key=lambda m: (-m.at, m.channel, m.user_id))

    async def add(self, member: Member, *ops: Op) -> None:
        """Store a member, in one transaction with other writes."""
        await self._store.write(member.put(), *ops)
        self._members[member.user] = member

    async def remove(self, member: Member, *ops: Op) -> None:
        """Remove a member from memory at once, then from the store together with other writes."""
        self._members.pop(member.user, None)
        await self._store.write((DROP_MEMBER, (member.id,)), *ops)
