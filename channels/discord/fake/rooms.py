"""What happens in rooms: messages come, change and go, and bots are told. Who may do it is not asked here."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from channels.discord.fake.events import Event, Tell
from channels.discord.fake.nouns import (
    DEFAULT,
    HAS_THREAD,
    PRIVATE_THREAD,
    THREAD_CREATED,
    THREAD_STARTER,
    Channel,
    Emoji,
    Message,
    Reaction,
    Reference,
    ThreadState,
    User,
)
from channels.discord.fake.views import Views
from channels.discord.fake.world import World

_TYPING_SECONDS = 10.0


class Rooms:
    """Changes rooms, and tells of it."""

    def __init__(self, world: World, views: Views, tell: Tell) -> None:
        self._world = world
        self._views = views
        self._tell = tell
        self._typing: dict[tuple[int, int], float] = {}

    def post(self, message: Message) -> Message:
        """A new message stands in its room. An archived thread is taken out again."""
        world = self._world
        channel = world.channels[message.channel]
        world.put(message)
        self._typing.pop((channel.id, message.author), None)
        if message.ephemeral:
            return message
        if channel.thread is not None:
            if channel.thread.archived:
                channel = self.change_thread(channel, archived=False)
            state = channel.thread or ThreadState(0, 0)
            counted = replace(state, count=state.count + 1, total=state.total + 1)
            channel = replace(channel, thread=counted)
        world.put_channel(replace(channel, last_message=message.id))
        self._tell_message("MESSAGE_CREATE", message, nonce=True)
        return message

    def change(self, message: Message, *, edited: bool = True) -> Message:
        """A message has a new form. Its old text is kept among its versions."""
        old = self._world.messages[message.channel][message.id]
        if edited and old.content != message.content:
            message = replace(message, versions=(*old.versions, old.content))
        if edited:
            message = replace(message, edited=self._world.clock.now())
        self._world.put(message)
        if not message.ephemeral:
            self._tell_message("MESSAGE_UPDATE", message)
        return message

    def remove(self, *messages: Message, bulk: bool = False) -> None:
        """Messages are taken away."""
        for message in messages:
            self._world.remove(message)
            channel = self._world.channels[message.channel]
            if channel.thread is not None:
                state = replace(channel.thread, count=max(0, channel.thread.count - 1))
                self._world.put_thread(channel, state)
        if bulk:
            ids = [str(message.id) for message in messages]
            self._tell_in(messages[0].channel, "MESSAGE_DELETE_BULK", ids=ids)
            return
        for message in messages:
            if not message.ephemeral:
                self._tell_in(message.channel, "MESSAGE_DELETE", id=str(message.id))

    def react(self, message: Message, emoji: Emoji, user: User, *, on: bool = True) -> Message:
        """A person or the bot puts a sign under a message, or takes it away. Twice is once."""
        kept = {reaction.emoji: reaction.users for reaction in message.reactions}
        users = kept.get(emoji, ())
        if (user.id in users) is on:
            return message
        kept[emoji] = (*users, user.id) if on else tuple(other for other in users if other != user.id)
        reactions = tuple(Reaction(sign, users) for sign, users in kept.items() if users)
        message = self._world.put(replace(message, reactions=reactions))
        told = {"user_id": str(user.id), "message_id": str(message.id), "emoji": self._views.emoji(emoji)}
        told |= {"type": 0, "burst": False}
        if on:
            told["message_author_id"] = str(message.author)
            if (guild := self._guild(message.channel)) is not None:
                told["member"] = self._views.member(guild, user)
        self._tell_in(message.channel, "MESSAGE_REACTION_ADD" if on else "MESSAGE_REACTION_REMOVE", **told)
        return message

    def clear_reactions(self, message: Message, emoji: Emoji | None = None) -> None:
        """All signs under a message are taken away, or all of one kind."""
        kept = tuple(reaction for reaction in message.reactions if emoji not in (None, reaction.emoji))
        self._world.put(replace(message, reactions=kept))
        told: dict[str, Any] = {"message_id": str(message.id)}
        if emoji is None:
            self._tell_in(message.channel, "MESSAGE_REACTION_REMOVE_ALL", **told)
        else:
            told["emoji"] = self._views.emoji(emoji)
            self._tell_in(message.channel, "MESSAGE_REACTION_REMOVE_EMOJI", **told)

    def type(self, channel: Channel, user: User) -> None:
        """Somebody begins to write, or goes on: shown for ten seconds."""
        now = self._world.clock.now()
        self._typing[channel.id, user.id] = now + _TYPING_SECONDS
        self._world.changes.bump()
        if user.bot:
            return
        told: dict[str, Any] = {"user_id": str(user.id), "timestamp": int(now)}
        if (guild := self._guild(channel.id)) is not None:
            told["member"] = self._views.member(guild, user)
        self._tell_in(channel.id, "TYPING_START", **told)

    def is_typing(self, channel: Channel, user: User) -> bool:
        """Whether it is shown that somebody writes."""
        return self._typing.get((channel.id, user.id), 0) > self._world.clock.now()

    def start_thread(
        self, parent: Channel, name: str, user: User, *, kind: int, minutes: int, starter: Message | None
    ) -> Channel:
        """A thread begins, at a message (then it has the message's id) or beside the others."""
        now = self._world.clock.now()
        key = self._world.ids.new() if starter is None else starter.id
        state = ThreadState(made=now, changed=now, minutes=minutes, members=(user.id,))
        thread = self._world.put_channel(
            Channel(
                id=key,
                kind=kind,
                name=name,
                guild=parent.guild,
                parent=parent.id,
                owner=user.id,
                thread=state,
            )
        )
        told = {**self._views.channel(thread), "newly_created": True}
        self._tell(Event(name="THREAD_CREATE", data=told, guild=thread.guild, channel=thread.id))
        if user.bot:
            self._tell_members(thread, user)
        if starter is not None:
            self.change(replace(starter, flags=starter.flags | HAS_THREAD), edited=False)
            self._system(thread, user, THREAD_STARTER, Reference(starter.id, parent.id, parent.guild))
        elif kind != PRIVATE_THREAD:
            self._system(parent, user, THREAD_CREATED, Reference(None, thread.id, thread.guild), name)
        return self._world.channels[thread.id]

    def change_thread(self, channel: Channel, **changes: Any) -> Channel:
        """A thread's state changes: archived, locked, minutes."""
        state = channel.thread
        assert state is not None
        if changes.get("archived", state.archived) is not state.archived or "minutes" in changes:
            changes["changed"] = self._world.clock.now()
        return self.change_channel(replace(channel, thread=replace(state, **changes)))

    def join_thread(self, channel: Channel, user: User, *, on: bool = True) -> None:
        """The bot goes into a thread, or out of it."""
        state = channel.thread
        assert state is not None
        members = tuple(member for member in state.members if member != user.id)
        channel = self._world.put_thread(
            channel, replace(state, members=(*members, user.id) if on else members)
        )
        self._tell_members(channel, user, on=on)

    def change_channel(self, channel: Channel) -> Channel:
        """A room has a new name, topic or state."""
        self._world.put_channel(channel)
        name = "THREAD_UPDATE" if channel.thread is not None else "CHANNEL_UPDATE"
        told = self._views.channel(channel)
        self._tell(Event(name=name, data=told, guild=channel.guild, channel=channel.id))
        return channel

    def add_channel(self, channel: Channel) -> Channel:
        """Bots are told of a new room."""
        told = self._views.channel(channel)
        self._tell(Event(name="CHANNEL_CREATE", data=told, guild=channel.guild, channel=channel.id))
        return channel

    def remove_channel(self, channel: Channel) -> None:
        """A room is taken away, with its threads."""
        for thread in [room for room in self._world.channels.values() if room.parent == channel.id]:
            self.remove_channel(thread)
        if channel.thread is None:
            told, name = self._views.channel(channel), "CHANNEL_DELETE"
        else:
            parts = {"id": channel.id, "guild_id": channel.guild, "parent_id": channel.parent}
            told = {key: str(value) for key, value in parts.items()} | {"type": channel.kind}
            name = "THREAD_DELETE"
        self._tell(Event(name=name, data=told, guild=channel.guild, channel=channel.id))
        self._world.remove_channel(channel)

    def _system(
        self, channel: Channel, user: User, kind: int, reference: Reference, content: str = ""
    ) -> None:
        now = self._world.clock.now()
        self.post(
            Message(
                id=self._world.ids.new(),
                channel=channel.id,
                author=user.id,
                at=now,
                content=content,
                kind=kind,
                reference=reference,
            )
        )

    def _guild(self, channel: int) -> Any:
        guild = self._world.channels[channel].guild
        return None if guild is None else self._world.guilds[guild]

    def _tell_members(self, thread: Channel, user: User, *, on: bool = True) -> None:
        told: dict[str, Any] = {
            "id": str(thread.id),
            "guild_id": str(thread.guild),
            "member_count": len(thread.thread.members) if thread.thread else 0,
        }
        if on:
            told["added_members"] = [self._views.thread_member(thread, user)]
        else:
            told["removed_member_ids"] = [str(user.id)]
        event = Event(name="THREAD_MEMBERS_UPDATE", data=told, guild=thread.guild, channel=thread.id)
        self._tell(event)

    def _tell_in(self, channel: int, name: str, **told: Any) -> None:
        told["channel_id"] = str(channel)
        guild = self._guild(channel)
        if guild is not None:
            told["guild_id"] = str(guild.id)
        key = None if guild is None else guild.id
        self._tell(Event(name=name, data=told, guild=key, channel=channel))

    def _tell_message(self, name: str, message: Message, *, nonce: bool = False) -> None:
        channel = self._world.channels[message.channel]
        more: dict[str, Any] = {"channel_type": channel.kind}
        if nonce and message.nonce is not None:
            more["nonce"] = message.nonce
        if (guild := self._guild(channel.id)) is not None:
            author = self._world.users[message.author]
            more["guild_id"] = str(guild.id)
            more["member"] = self._views.member(guild, author, whole=False)
        whole = {**self._views.message(message), **more}
        hidden = self._views.hides(message) or message.kind != DEFAULT
        redacted = {**self._views.message(message, redacted=True), **more} if hidden else None
        self._tell(Event(name=name, data=whole, redacted=redacted, guild=channel.guild, channel=channel.id))
