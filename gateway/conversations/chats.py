"""Chats of plugins: the session of an address, and whether a plugin may write there outside of a turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.access import Access
from gateway.contract.channel import (
    Address,
    Channel,
    FollowsSession,
    InboundMessage,
    OpensChats,
    Sender,
    SessionKey,
)
from gateway.contract.errors import ForbiddenError, InvalidRequestError, NotFoundError
from gateway.extensions.registry import ChannelRegistry
from gateway.session import Sessions

LONGEST_KEY = 512
"""Most characters of a plugin's key."""


class Chats:
    """Finds the chats that plugins name by their addresses."""

    def __init__(self, channels: ChannelRegistry, sessions: Sessions, access: Access) -> None:
        self._channels = channels
        self._sessions = sessions
        self._access = access

    def find(self, given: Address | Mapping[str, Any]) -> tuple[Address, Channel]:
        """Return an address and its channel. Raises InvalidRequestError for an address that names no chat."""
        try:
            address = given if isinstance(given, Address) else msgspec.convert(given, Address)
        except msgspec.ValidationError as error:
            raise InvalidRequestError(f"the address {given} is wrong: {error}") from None
        found = self._channels.get(address.channel)
        if found is None:
            known = ", ".join(sorted(one.id for one in self._channels.list())) or "none"
            raise InvalidRequestError(f"there is no channel {address.channel!r}; the channels are: {known}")
        if not address.chat or "\0" in f"{address.account}{address.chat}{address.thread}":
            raise InvalidRequestError(f"the address {address} names no chat")
        return address, found

    def session_of(self, channel: Channel, address: Address) -> str:
        """Return the id of the session of a chat. Raises InvalidRequestError if there cannot be one."""
        if isinstance(channel, OpensChats):
            own = channel.session_of(address)
        else:
            own = str(SessionKey(channel.id, address.account, address.chat, address.thread))
        return self._access.moved_chats.session_of(own)

    async def check_access(self, session_id: str, channel: Channel, address: Address) -> None:
        """Raise ForbiddenError for a private chat whose user may not use the bot."""
        if address.group or isinstance(channel, FollowsSession):
            return
        try:
            owner = (await self._sessions.find(session_id)).row.owner
        except NotFoundError:
            owner = ""
        if not owner:
            return  # no user wrote there yet; the plugin chose the chat
        asked = InboundMessage(session=session_id, dedup_key="", address=address, sender=Sender(owner))
        await self._access.confirm(channel.id, asked)
        if self._access.policy.role(channel.id, asked) is None:
            raise ForbiddenError(
                f"the user {owner!r} of the chat {address.chat!r} may not use the bot on {channel.id}; "
                "a plugin may not write there"
            )
