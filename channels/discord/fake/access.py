"""Finds rooms and messages for the bot, or says why not: they are gone, or the bot may not."""

from __future__ import annotations

from channels.discord.fake.calls import ApiCall
from channels.discord.fake.errors import (
    ARCHIVED,
    CLOSED_DM,
    MISSING_ACCESS,
    MISSING_PERMISSIONS,
    THREAD_LOCKED,
    UNKNOWN_CHANNEL,
    UNKNOWN_GUILD,
    UNKNOWN_MESSAGE,
    ApiError,
)
from channels.discord.fake.nouns import PRIVATE_THREAD, Channel, Guild, Message
from channels.discord.fake.permissions import Permission
from channels.discord.fake.world import World


class Access:
    """Everything raises ApiError."""

    def __init__(self, world: World) -> None:
        self._world = world

    def guild(self, call: ApiCall) -> Guild:
        """The guild that a call names."""
        guild = self._world.guilds.get(call.id("guild_id"))
        if guild is None:
            raise ApiError(UNKNOWN_GUILD)
        return guild

    def channel(self, call: ApiCall) -> Channel:
        """The room that a call names, if the bot can see it."""
        channel = self._world.channels.get(call.id("channel_id"))
        if channel is None:
            raise ApiError(UNKNOWN_CHANNEL)
        if not self.sees(channel):
            raise ApiError(MISSING_ACCESS)
        return channel

    def sees(self, channel: Channel) -> bool:
        """Whether the bot can see a room."""
        if channel.kind == PRIVATE_THREAD and channel.thread is not None:
            inside = self._world.bot.id in channel.thread.members
            if not inside and not self._world.may(channel, "MANAGE_THREADS"):
                return False
        return self._world.may(channel, "VIEW_CHANNEL")

    def message(self, call: ApiCall, channel: Channel) -> Message:
        """The message that a call names. What only a person sees cannot be had this way."""
        message = self._world.messages[channel.id].get(call.id("message_id"))
        if message is None or message.ephemeral:
            raise ApiError(UNKNOWN_MESSAGE)
        return message

    def demand(self, channel: Channel, *names: Permission) -> None:
        """The bot needs permissions."""
        if not self._world.may(channel, *names):
            raise ApiError(MISSING_PERMISSIONS)

    def demand_write(self, channel: Channel) -> None:
        """The bot wants to write in a room. That takes a thread out of the archive, unless it is locked."""
        if channel.recipient in self._world.refusing:
            raise ApiError(CLOSED_DM)
        state = channel.thread
        self.demand(channel, "SEND_MESSAGES" if state is None else "SEND_MESSAGES_IN_THREADS")
        if state is not None and state.locked and not self._world.may(channel, "MANAGE_THREADS"):
            raise ApiError(ARCHIVED if state.archived else THREAD_LOCKED)

    def demand_active(self, channel: Channel) -> None:
        """The bot wants to do what cannot be done in an archived thread."""
        state = channel.thread
        if state is not None and state.archived:
            raise ApiError(ARCHIVED)
        if state is not None and state.locked and not self._world.may(channel, "MANAGE_THREADS"):
            raise ApiError(THREAD_LOCKED)
