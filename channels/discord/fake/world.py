"""Everything that stands on the platform, by id: people, guilds, rooms, messages, commands, interactions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from channels.discord.fake import permissions
from channels.discord.fake.changes import Changes
from channels.discord.fake.clock import Clock
from channels.discord.fake.nouns import (
    DM,
    TEXT,
    Attachment,
    Channel,
    Command,
    Guild,
    Interaction,
    Message,
    Role,
    ThreadState,
    User,
)
from channels.discord.fake.snowflakes import Snowflakes

Room = int | str | Channel
"""A room as tests name it: its id, the name of a channel, or the room itself."""


class World:
    """The store. What is put here replaces what stood under the same id."""

    def __init__(self, clock: Clock, bot: str) -> None:
        self.clock = clock
        self.ids = Snowflakes(clock)
        self.changes = Changes()
        self.bot = User(self.ids.new(), bot, bot=True)
        self.owner = User(self.ids.new(), "owner")
        self.users: dict[int, User] = {user.id: user for user in (self.bot, self.owner)}
        self.guilds: dict[int, Guild] = {}
        self.channels: dict[int, Channel] = {}
        self.messages: dict[int, dict[int, Message]] = {}
        self.commands: dict[int, Command] = {}
        self.interactions: dict[int, Interaction] = {}
        self.files: dict[int, tuple[int, Attachment]] = {}
        self.refusing: set[int] = set()
        """People who take no direct messages."""

    def user(self, who: str | int) -> User:
        """A person by name or id. A name that nobody has yet makes a person, who joins all guilds."""
        if isinstance(who, int):
            return self.users[who]
        for user in self.users.values():
            if user.name == who:
                return user
        user = User(self.ids.new(), who)
        self.users[user.id] = user
        for guild in self.guilds.values():
            self.guilds[guild.id] = msgspec.structs.replace(guild, members=(*guild.members, user.id))
        self.changes.bump()
        return user

    def add_guild(self, name: str) -> Guild:
        """A guild with everybody in it, and with the bot's own role."""
        key = self.ids.new()
        roles = (
            Role(key, "@everyone", permissions.DEFAULT),
            Role(self.ids.new(), self.bot.name, permissions.DEFAULT, managed=True),
        )
        guild = Guild(key, name, self.owner.id, self.clock.now(), roles, tuple(self.users))
        self.guilds[key] = guild
        self.changes.bump()
        return guild

    def put_guild(self, guild: Guild) -> None:
        """A guild changed."""
        self.guilds[guild.id] = guild
        self.changes.bump()

    def add_channel(self, name: str, guild: Guild) -> Channel:
        """A text channel."""
        position = sum(channel.guild == guild.id for channel in self.channels.values())
        return self.put_channel(
            Channel(id=self.ids.new(), kind=TEXT, name=name, guild=guild.id, position=position)
        )

    def dm(self, user: User) -> Channel:
        """The direct conversation of a person with the bot; made when it is first asked for."""
        for channel in self.channels.values():
            if channel.kind == DM and channel.recipient == user.id:
                return channel
        return self.put_channel(Channel(id=self.ids.new(), kind=DM, recipient=user.id))

    def put_channel(self, channel: Channel) -> Channel:
        """A room is new, or changed."""
        self.channels[channel.id] = channel
        self.messages.setdefault(channel.id, {})
        self.changes.bump()
        return channel

    def remove_channel(self, channel: Channel) -> None:
        """A room and its messages are gone."""
        self.channels.pop(channel.id, None)
        self.messages.pop(channel.id, None)
        self.changes.bump()

    def room(self, room: Room) -> Channel:
        """A room by id or name. Raises LookupError."""
        if isinstance(room, Channel):
            return self.channels[room.id]
        if isinstance(room, int) or room.isdecimal():
            return self.channels[int(room)]
        for channel in self.channels.values():
            if channel.name == room.removeprefix("#"):
                return channel
        raise LookupError(f"no room named {room!r}")

    def put(self, message: Message) -> Message:
        """A message is new, or changed."""
        self.messages[message.channel][message.id] = message
        for attachment in message.attachments:
            self.files[attachment.id] = (message.channel, attachment)
        self.changes.bump()
        return message

    def remove(self, message: Message) -> None:
        """A message is gone."""
        self.messages[message.channel].pop(message.id, None)
        self.changes.bump()

    def history(self, channel: int) -> Sequence[Message]:
        """The messages of a room, oldest first."""
        return [message for _, message in sorted(self.messages.get(channel, {}).items())]

    def threads(self, parent: int | None = None, *, archived: bool = False) -> Sequence[Channel]:
        """The threads (of one channel, or of all) that are archived, or not."""
        return [
            channel
            for channel in self.channels.values()
            if channel.thread is not None
            and channel.thread.archived is archived
            and parent in (None, channel.parent)
        ]

    def put_thread(self, channel: Channel, state: ThreadState) -> Channel:
        """A thread's own state changed."""
        return self.put_channel(msgspec.structs.replace(channel, thread=state))

    def may(self, channel: Channel, *names: permissions.Permission) -> bool:
        """Whether the bot may do all of this in a room. Threads have the permissions of their channel."""
        if channel.guild is None:
            return True
        wanted = permissions.bits(*names)
        return self.bot_permissions(channel) & wanted == wanted

    def bot_permissions(self, channel: Channel) -> int:
        """The bot's permissions in a room."""
        if channel.guild is None:
            return permissions.DEFAULT
        given = 0
        for role in self.guilds[channel.guild].roles[:2]:
            given |= role.permissions
        parent = self.channels.get(channel.parent or 0)
        return given & ~channel.denied & ~(parent.denied if parent is not None else 0)
