"""People as channels know them, and the members: those who were let in beside the settings."""

from __future__ import annotations

from msgspec import Struct
from sqlalchemy import Connection, select

from gateway.auth import OWNER
from gateway.channel import SenderRole
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


class Who(Struct, frozen=True):
    """Somebody on a channel, by id. Whoever holds the gateway's own token is the owner, on no channel."""

    channel: str
    user: str

    @classmethod
    def named(cls, text: str) -> Who:
        """Whoever ``str`` names so."""
        channel, colon, user = text.partition(":")
        return cls(channel, user) if colon else cls("", text)

    def __str__(self) -> str:
        return f"{self.channel}:{self.user}" if self.channel else self.user


THE_OWNER = Who("", OWNER)


class Member(Struct, frozen=True, kw_only=True):
    """Somebody who was let in. ``name`` is what the platform said, for people only; ``at`` milliseconds."""

    id: str
    channel: str
    user_id: str
    role: SenderRole
    name: str = ""
    approved_by: str
    at: int

    @property
    def who(self) -> Who:
        """Who it is."""
        return Who(self.channel, self.user_id)

    def put(self) -> Op:
        """The write that lets them in."""
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
    """All members, in memory: every message asks for its sender's role."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._members: dict[Who, Member] = {}

    async def load(self) -> None:
        """Read them. To be called once, before anybody is asked for."""

        def read(connection: Connection) -> list[Member]:
            return [Member(**row) for row in connection.execute(select(t.member)).mappings()]

        self._members = {m.who: m for m in await self._store.read(read)}

    def get(self, who: Who) -> Member | None:
        """The member, if there is one."""
        return self._members.get(who)

    def list(self) -> list[Member]:
        """All of them, the latest first."""
        return sorted(self._members.values(), key=lambda m: (-m.at, m.channel, m.user_id))

    async def add(self, member: Member, *ops: Op) -> None:
        """Let somebody in, durably, together with other writes."""
        await self._store.write(member.put(), *ops)
        self._members[member.who] = member

    async def remove(self, member: Member, *ops: Op) -> None:
        """Let somebody out again, at once, and durably together with other writes."""
        self._members.pop(member.who, None)
        await self._store.write((DROP_MEMBER, (member.id,)), *ops)
