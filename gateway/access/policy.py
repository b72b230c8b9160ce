"""The access policy: the role of a message's sender, and all access stores behind one object."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Collection
from functools import lru_cache

import structlog
from msgspec.structs import replace

from gateway.access.codes import Codes
from gateway.access.grants import Grants, PluginGrants, is_plugin_grant
from gateway.access.links import AccountLinks
from gateway.access.moved_chats import MovedChats
from gateway.access.pairing import Pairing
from gateway.access.people import THE_OWNER, Members, UserRef
from gateway.access.permissions import Permissions
from gateway.access.rooms import Rooms, Rules, SeenRooms, check_rooms
from gateway.access.tokens import OWNER
from gateway.contract.channel import InboundMessage, ResolvesGroups, Sender, SenderRole
from gateway.contract.errors import CATCHABLE, SettingsError, is_cancellation_requested
from gateway.contract.messages import now_ms
from gateway.events.bus import EventBus
from gateway.events.types import AccessRevoked
from gateway.extensions.registry import ChannelRegistry
from gateway.settings import ChannelRules, table_of
from gateway.store import Store
from gateway.store.inbox import Entry

log = structlog.get_logger("trunkline.access")

_CLOSED = ChannelRules()
_GROUP = re.compile(r"[a-z]+:.")
_GROUPS_SECONDS, _GROUPS_PAUSE = 3.0, 10.0
"""Time limit of one request for a user's groups, and the pause after one that failed."""
_MAX_CHANNELS = 256


class AccessPolicy:
    """Decides from sender ids and channel rules which users may talk, and in which role.

    A message may carry its sender's role: web clients presented the gateway's token, and plugins submit
    their own messages.
    """

    def __init__(self, rules: Rules, channels: ChannelRegistry, members: Members) -> None:
        self._rules = lru_cache(maxsize=_MAX_CHANNELS)(rules)
        self._channels = channels
        self._members = members
        self.rooms = Rooms(self._rules)
        self._names_groups = lru_cache(maxsize=_MAX_CHANNELS)(self._lists_groups)

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
        # A room narrows or widens who may talk in it, and never who is an admin.
        if self.is_admin(UserRef(channel, user)):
            return "admin"
        member = self._members.get(UserRef(channel, user))
        own = self.rooms.of(channel, message).allow if rules.rooms.named else None
        if own is not None:
            return "user" if "*" in own or self._names(channel, user, own) else None
        if member is not None or rules.allow == "*" or self._names(channel, user, rules.allow):
            return "user"
        return None

    def is_admin(self, user: UserRef) -> bool:
        """Return whether a user of a channel is an admin, by the settings or by pairing."""
        member = self._members.get(user)
        listed = self._names(user.channel, user.user, self.rules(user.channel).admins)
        return listed or (member is not None and member.role == "admin")

    def _lists_groups(self, channel: str) -> bool:
        """Return whether the rules of a channel name groups of users; most name none."""
        return bool(_groups_in(self.listed(channel)))

    def _names(self, channel: str, user: str, listed: Collection[str]) -> bool:
        """Return whether a list of ids and groups, such as ``role:123``, names a user."""
        if user in listed:
            return True
        if not self._names_groups(channel):
            return False
        groups = _groups_in(listed)
        source = self._channels.get(channel)
        return isinstance(source, ResolvesGroups) and not groups.isdisjoint(source.groups_of(user))

    def unconfirmed(self, channel: str, message: InboundMessage) -> ResolvesGroups | None:
        """Return the channel to ask for a sender's groups, if rules name groups and none is confirmed."""
        if not self._names_groups(channel):
            return None
        rules, user = self.rules(channel), message.sender.id
        own = self.rooms.of(channel, message).allow
        allow = rules.allow if own is None else own
        groups = _groups_in(rules.admins) | _groups_in(() if allow == "*" else allow)
        if not groups or message.role is not None or user in rules.admins:
            return None
        source = self._channels.get(channel)
        if isinstance(source, ResolvesGroups) and groups.isdisjoint(source.groups_of(user)):
            return source
        return None

    def admits(self, channel: str, message: InboundMessage, author: str, *, bot: bool = False) -> bool:
        """Return whether the author of content that came with a message may use the bot in that room.

        An author of whom no id is known, or who is a bot, is admitted only where everyone is.
        """
        sender = Sender("" if bot else author)
        return self.role(channel, replace(message, sender=sender, role=None)) is not None

    def may_answer(self, channel: str, user: str, answerers: Collection[str]) -> bool:
        """Return whether a user is among those who may answer a question, or in one of their groups."""
        return self._names(channel, user, answerers)

    def admins(self, channel: str) -> tuple[str, ...]:
        """Return the ids of a channel's admins and the groups whose users are, sorted."""
        members = (one for one in self._members.list() if one.channel == channel and one.role == "admin")
        return tuple(sorted({*self.rules(channel).admins, *(one.user_id for one in members)}))

    def listed(self, channel: str) -> frozenset[str]:
        """Return the ids and groups that the rules of a channel and its rooms name, without ``*``."""
        rules = self.rules(channel)
        lists = (rules.allow, rules.admins, *(room.allow or () for room in rules.rooms.named.values()))
        return frozenset(one for names in lists if names != "*" for one in names)

    def hears(self, channel: str, message: InboundMessage) -> bool:
        """Return whether a message gets a reply: unauthorised users in groups do not."""
        return not message.address.group or self.role(channel, message) is not None

    def check(self) -> None:
        """Raise SettingsError for rules on a channel that they would not guard."""
        for channel in self._channels.list():
            written = sorted(self.rules(channel.id).model_fields_set & {"allow", "admins"})
            if not getattr(channel, "follows_session", False):
                continue
            if written:
                raise SettingsError(
                    f"{table_of(channel.id)}.{written[0]}: "
                    "this channel admits every holder of server.token; remove this setting"
                )
            check_rooms(self.rules(channel.id), channel.id)


def _groups_in(listed: Collection[str]) -> frozenset[str]:
    """Return the groups in a list of ids. Prefixes of ids, as in ``T1:U2`` of Slack, have capital letters."""
    return frozenset(one for one in listed if ":" in one and _GROUP.match(one))


class Access:
    """Decides access for every message. Call ``load`` before the first one."""

    def __init__(
        self,
        store: Store,
        rules: Rules,
        channels: ChannelRegistry,
        clock: Callable[[], int] = now_ms,
        events: EventBus | None = None,
    ) -> None:
        self.events = EventBus() if events is None else events
        self.codes = codes = Codes(store, clock)
        self.members = Members(store)
        self.policy = AccessPolicy(rules, channels, self.members)
        self.pairing = Pairing(codes, self.members, clock)
        self.links = AccountLinks(store, codes, clock)
        self.moved_chats = MovedChats(store, codes, self.links, clock)
        self.grants = Grants(store)
        self.permissions = Permissions()
        """The rules of the settings; set once the tools of all plugins are known."""
        self.plugin_grants = PluginGrants(store)
        self.seen_rooms = SeenRooms(store, clock)
        self._paused_until: dict[str, float] = {}
        """Times until which channels are not asked for groups, because that failed."""

    async def load(self) -> None:
        """Read members, moved chats and grants of plugins."""
        await self.members.load()
        await self.moved_chats.load()
        await self.plugin_grants.load()

    async def revoke_approval(self, approval_id: str, by: UserRef) -> None:
        """Remove the grant of a tool call or of a plugin's capability. Raises NotFoundError."""
        grants = self.plugin_grants if is_plugin_grant(approval_id) else self.grants
        await grants.revoke(approval_id, by)

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

    async def confirm(self, channel: str, *messages: InboundMessage) -> None:
        """Ask the platform for the groups of senders, where rules name groups and none is confirmed.

        Call it before a role is looked up. If it fails, the senders are not in any group.
        """
        for message in messages:
            source = self.policy.unconfirmed(channel, message)
            if source is None or time.monotonic() < self._paused_until.get(channel, 0):
                continue
            try:
                async with asyncio.timeout(_GROUPS_SECONDS):
                    await source.refresh_groups(message.sender.id, message.address)
            except CATCHABLE as error:
                if is_cancellation_requested(error):
                    raise
                # The next messages must not wait for a platform that does not answer.
                self._paused_until[channel] = time.monotonic() + _GROUPS_PAUSE
                log.warning(
                    "the groups of a user cannot be confirmed, so they do not count",
                    channel=channel,
                    user=message.sender.id,
                    error=f"{type(error).__name__}: {error}",
                )

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
        self.events.emit(AccessRevoked(user.channel, user.user))
