"""Access as the rest of the gateway sees it: the door, pairing, linking and moving together."""

from __future__ import annotations

from collections.abc import Callable

from gateway.access.codes import Codes
from gateway.access.door import Door, Rules
from gateway.access.linking import Linking
from gateway.access.moving import Moving
from gateway.access.pairing import Pairing
from gateway.access.people import Members, Who
from gateway.bus import Listeners
from gateway.channel import InboundMessage, SenderRole
from gateway.inbox import Entry
from gateway.messages import now_ms
from gateway.registry import ChannelRegistry
from gateway.store import Store


class Access:
    """Who may talk. ``load`` has to come before the first message. ``revoked`` is told who may no longer."""

    def __init__(
        self,
        store: Store,
        rules: Rules,
        channels: ChannelRegistry,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        codes = Codes(store, clock)
        self.members = Members(store)
        self.door = Door(rules, channels, self.members)
        self.pairing = Pairing(codes, self.members, clock)
        self.linking = Linking(store, codes, clock)
        self.moving = Moving(store, codes, self.linking, clock)
        self.revoked: Listeners[Who] = Listeners()

    async def load(self) -> None:
        """Read members and moved chats."""
        await self.members.load()
        await self.moving.load()

    def hears(self, channel: str, message: InboundMessage) -> bool:
        """Whether a message is answered at all, be it by telling a stranger what to do."""
        return self.door.hears(channel, message)

    def session_of(self, channel: str, message: InboundMessage) -> str:
        """The session a message belongs to: its chat's own, or the one that its chat continues."""
        session = self.moving.session_of(message.session)
        if session != message.session and self.door.role(channel, message) is None:
            return message.session
        return session

    def role(self, entry: Entry) -> SenderRole | None:
        """What the sender of a message may do; None for a stranger.

        What is answered together with it has to be an admin's too, for an admin's answer.
        """
        role = self.door.role(entry.channel, entry.inbound)
        if role == "admin" and entry.merged:
            others = {self.door.role(other.channel, other.inbound) for other in entry.merged}
            return "admin" if others == {"admin"} else "user"
        return role

    async def greet(self, entry: Entry) -> str | None:
        """What a stranger is told; None for silence, as always in groups."""
        if entry.inbound.address.group:
            return None
        return await self.pairing.greet(entry.channel, entry.inbound.sender)

    async def revoke(self, who: Who, by: Who) -> None:
        """Let a member out: their codes, their link and the chats they moved go too. Raises NotFoundError."""
        member = self.pairing.member(who)
        chats = await self.moving.forgotten(who)
        linked = await self.linking.forgotten(who)
        await self.pairing.revoke(member, by, *linked, *self.moving.forget(chats))
        self.revoked.tell(who)
