"""The access policy: the role of a message's sender, and all access stores behind one object."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from gateway.access.codes import Codes
from gateway.access.grants import Grants
from gateway.access.links import AccountLinks
from gateway.access.moved_chats import MovedChats
from gateway.access.pairing import Pairing
from gateway.access.people import THE_OWNER, Members, UserRef
from gateway.access.tokens import OWNER
from gateway.contract.channel import InboundMessage, SenderRole
from gateway.contract.errors import SettingsError
from gateway.contract.messages import now_ms
from gateway.extensions.registry import ChannelRegistry
from gateway.session.bus import Listeners
from gateway.settings import ChannelRules
from gateway.store import Store
from gateway.store.inbox import Entry

Rules = Callable[[str], "ChannelRules | None"]
"""The rules of a channel by its id, if the settings have any."""

_CLOSED = ChannelRules()
_MAX_CHANNELS = 256


class AccessPolicy:
    """Decides from sender ids and channel rules which users may talk, and in which role.

    A message may carry its sender's role: web clients presented the gateway's token, and plugins submit
    messages of their own.
    """

    def __init__(self, rules: Rules, channels: ChannelRegistry, members: Members) -> None:
        self._rules = lru_cache(maxsize=_MAX_CHANNELS)(rules)
        self._channels = channels
        self._members = members

    def rules(self, channel: str) -> ChannelRules:
        """Return the rules of a channel; without any, the channel is closed."""
        return self._rules(channel) or _CLOSED

    def user_of(self, channel: str, message: InboundMessage) -> UserRef:
        """Return the sender's identity, as codes and links use it."""
        owner = message.role == "admin" and message.sender.id == OWNER
        return THE_OWNER if owner else UserRef(channel, message.sender.id)

    def role(self, channel: str, message: InboundMessage) -> SenderRole | None:
        """Return the sender's role, or None for an unauthorised user."""
        if message.role is not None:
            return message.role
        user, rules = message.sender.id, self.rules(channel)
        member = self._members.get(UserRef(channel, user))
        if user in rules.admins or (member is not None and member.role == "admin"):
            return "admin"
        if member is not None or rules.allow == "*" or user in rules.allow:
            return "user"
        return None

    def hears(self, channel: str, message: InboundMessage) -> bool:
        """Return whether a message gets a reply: unauthorised users in groups do not."""
        return not message.address.group or self.role(channel, message) is not None

    def check(self) -> None:
        """Raise SettingsError for rules on a channel that they would not guard."""
        for channel in self._channels.list():
            written = sorted(self.rules(channel.id).model_fields_set & {"allow", "admins"})
            if written and getattr(channel, "follows_session", False):
                raise SettingsError(
                    f"channels.{channel.id}.{written[0]}: "
                    "this channel admits every holder of server.token; remove this setting"
                )


class Access:
    """Decides access for every message. Call ``load`` before the first one; ``revoked`` signals removals."""

    def __init__(
        self,
        store: Store,
        rules: Rules,
        channels: ChannelRegistry,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        codes = Codes(store, clock)
        self.members = Members(store)
        self.policy = AccessPolicy(rules, channels, self.members)
        self.pairing = Pairing(codes, self.members, clock)
        self.links = AccountLinks(store, codes, clock)
        self.moved_chats = MovedChats(store, codes, self.links, clock)
        self.grants = Grants(store)
        self.revoked: Listeners[UserRef] = Listeners()

    async def load(self) -> None:
        """Read members and moved chats."""
        await self.members.load()
        await self.moved_chats.load()

    def hears(self, channel: str, message: InboundMessage) -> bool:
        """Return whether a message gets a reply; a pairing instruction to an unauthorised user is one."""
        return self.policy.hears(channel, message)

    def session_of(self, channel: str, message: InboundMessage) -> str:
        """Return the session of a message: its chat's own, or the one that its chat continues."""
        session = self.moved_chats.session_of(message.session)
        if session != message.session and self.policy.role(channel, message) is None:
            return message.session
        return session

    def is_shared(self, session: str) -> bool:
        """Return whether messages of several chats may be queued in a session."""
        return self.moved_chats.is_shared(session)

    def role(self, entry: Entry) -> SenderRole | None:
        """Return the role of a message's sender, or None for an unauthorised user.

        For an admin's role, the senders of the messages merged into it must be admins too.
        """
        role = self.policy.role(entry.channel, entry.inbound)
        if role == "admin" and entry.merged:
            others = {self.policy.role(other.channel, other.inbound) for other in entry.merged}
            return "admin" if others == {"admin"} else "user"
        return role

    async def greet(self, entry: Entry) -> str | None:
        """Return the reply for an unauthorised user, or None for no reply; groups never get one."""
        if entry.inbound.address.group:
            return None
        return await self.pairing.greet(entry.channel, entry.inbound.sender)

    async def revoke(self, user: UserRef, by: UserRef) -> None:
        """Remove a member with their codes, links, grants and moved chats. Raises NotFoundError."""
        member = self.pairing.member(user)
        chats = await self.moved_chats.forgotten(user)
        linked = await self.links.forgotten(user)
        granted = await self.grants.forgotten(user)
        await self.pairing.revoke(member, by, *linked, *granted, *self.moved_chats.forget(chats))
        self.revoked.notify(user)
