"""Channels and threads of the fake: their changes, the events of these changes, and the calls about them."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from channels.discord.fake.calls import (
    DM_WITH_YOURSELF,
    MISSING_ACCESS,
    MISSING_PERMISSIONS,
    THREAD_EXISTS,
    TOO_MANY_REACTIONS,
    UNKNOWN_EMOJI,
    UNKNOWN_USER,
    WRONG_CHANNEL_TYPE,
    Access,
    Answer,
    ApiCall,
    ApiError,
    Handler,
    unmodelled,
)
from channels.discord.fake.gateway import Event, Publish
from channels.discord.fake.payloads import Views
from channels.discord.fake.state import (
    DEFAULT,
    DM,
    FORUMS,
    HAS_THREAD,
    PRIVATE_THREAD,
    PUBLIC_THREAD,
    TEXT,
    THREAD_CREATED,
    THREAD_STARTER,
    Channel,
    Emoji,
    Message,
    Reaction,
    Reference,
    ThreadState,
    User,
    World,
)

_TYPING_SECONDS = 10.0


class Chats:
    """Changes of channels, threads and messages, each with its event."""

    def __init__(self, world: World, views: Views, publish: Publish) -> None:
        self._world = world
        self._views = views
        self._publish = publish
        self._typing: dict[tuple[int, int], float] = {}

    def post(self, message: Message) -> Message:
        """Add a new message to its chat. An archived thread leaves the archive."""
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
        self._publish_message("MESSAGE_CREATE", message, nonce=True)
        return message

    def change(self, message: Message, *, edited: bool = True) -> Message:
        """Replace a message. Its former text is added to ``versions``."""
        old = self._world.messages[message.channel][message.id]
        if edited and old.content != message.content:
            message = replace(message, versions=(*old.versions, old.content))
        if edited:
            message = replace(message, edited=self._world.clock.now())
        self._world.put(message)
        if not message.ephemeral:
            self._publish_message("MESSAGE_UPDATE", message)
        return message

    def remove(self, *messages: Message, bulk: bool = False) -> None:
        """Delete messages."""
        for message in messages:
            self._world.remove(message)
            channel = self._world.channels[message.channel]
            if channel.thread is not None:
                state = replace(channel.thread, count=max(0, channel.thread.count - 1))
                self._world.put_thread(channel, state)
        if bulk:
            ids = [str(message.id) for message in messages]
            self._publish_in(messages[0].channel, "MESSAGE_DELETE_BULK", ids=ids)
            return
        for message in messages:
            if not message.ephemeral:
                self._publish_in(message.channel, "MESSAGE_DELETE", id=str(message.id))

    def react(self, message: Message, emoji: Emoji, user: User, *, on: bool = True) -> Message:
        """Add or remove a user's reaction; return the message. A repetition changes nothing."""
        kept = {reaction.emoji: reaction.users for reaction in message.reactions}
        users = kept.get(emoji, ())
        if (user.id in users) is on:
            return message
        kept[emoji] = (*users, user.id) if on else tuple(other for other in users if other != user.id)
        reactions = tuple(Reaction(sign, users) for sign, users in kept.items() if users)
        message = self._world.put(replace(message, reactions=reactions))
        payload = {"user_id": str(user.id), "message_id": str(message.id), "emoji": self._views.emoji(emoji)}
        payload |= {"type": 0, "burst": False}
        if on:
            payload["message_author_id"] = str(message.author)
            if (guild := self._guild(message.channel)) is not None:
                payload["member"] = self._views.member(guild, user)
        self._publish_in(
            message.channel, "MESSAGE_REACTION_ADD" if on else "MESSAGE_REACTION_REMOVE", **payload
        )
        return message

    def clear_reactions(self, message: Message, emoji: Emoji | None = None) -> None:
        """Remove all reactions of a message, or those with one emoji."""
        kept = tuple(reaction for reaction in message.reactions if emoji not in (None, reaction.emoji))
        self._world.put(replace(message, reactions=kept))
        payload: dict[str, Any] = {"message_id": str(message.id)}
        if emoji is None:
            self._publish_in(message.channel, "MESSAGE_REACTION_REMOVE_ALL", **payload)
        else:
            payload["emoji"] = self._views.emoji(emoji)
            self._publish_in(message.channel, "MESSAGE_REACTION_REMOVE_EMOJI", **payload)

    def type(self, channel: Channel, user: User) -> None:
        """Show a user as typing for ten seconds."""
        now = self._world.clock.now()
        self._typing[channel.id, user.id] = now + _TYPING_SECONDS
        self._world.changes.bump()
        if user.bot:
            return
        payload: dict[str, Any] = {"user_id": str(user.id), "timestamp": int(now)}
        if (guild := self._guild(channel.id)) is not None:
            payload["member"] = self._views.member(guild, user)
        self._publish_in(channel.id, "TYPING_START", **payload)

    def is_typing(self, channel: Channel, user: User) -> bool:
        """Return whether a user is shown as typing."""
        return self._typing.get((channel.id, user.id), 0) > self._world.clock.now()

    def start_thread(
        self, parent: Channel, name: str, user: User, *, kind: int, minutes: int, starter: Message | None
    ) -> Channel:
        """Start a thread on a message, whose id it gets, or on none."""
        key = self._world.ids.new() if starter is None else starter.id
        thread = self._open(parent, key, name, user, kind=kind, minutes=minutes)
        if user.bot:
            self._publish_members(thread, user)
        if starter is not None:
            self.change(replace(starter, flags=starter.flags | HAS_THREAD), edited=False)
            self._system(thread, user, THREAD_STARTER, Reference(starter.id, parent.id, parent.guild))
        elif kind != PRIVATE_THREAD:
            self._system(parent, user, THREAD_CREATED, Reference(None, thread.id, thread.guild), name)
        return self._world.channels[thread.id]

    def start_post(self, forum: Channel, title: str, user: User, message: Message) -> Channel:
        """Start a post of a forum: a thread with the id of its first message, which is in the thread."""
        thread = self._open(forum, message.id, title, user, kind=PUBLIC_THREAD, minutes=_DEFAULT_MINUTES)
        self._world.put_channel(replace(forum, last_message=thread.id))
        self.post(replace(message, channel=thread.id))
        thread = self._world.channels[thread.id]
        # The first message of a post does not count.
        return self._world.put_thread(thread, replace(thread.thread or ThreadState(0, 0), count=0, total=0))

    def _open(self, parent: Channel, key: int, name: str, user: User, *, kind: int, minutes: int) -> Channel:
        now = self._world.clock.now()
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
        payload = {**self._views.channel(thread), "newly_created": True}
        self._publish(Event(name="THREAD_CREATE", data=payload, guild=thread.guild, channel=thread.id))
        return thread

    def change_thread(self, channel: Channel, **changes: Any) -> Channel:
        """Change fields of a thread's state, such as ``archived``, ``locked`` and ``minutes``."""
        state = channel.thread
        assert state is not None
        if changes.get("archived", state.archived) is not state.archived or "minutes" in changes:
            changes["changed"] = self._world.clock.now()
        return self.change_channel(replace(channel, thread=replace(state, **changes)))

    def join_thread(self, channel: Channel, user: User, *, on: bool = True) -> None:
        """Add a user to a thread, or remove the user."""
        state = channel.thread
        assert state is not None
        members = tuple(member for member in state.members if member != user.id)
        channel = self._world.put_thread(
            channel, replace(state, members=(*members, user.id) if on else members)
        )
        self._publish_members(channel, user, on=on)

    def change_channel(self, channel: Channel) -> Channel:
        """Replace a channel or thread."""
        self._world.put_channel(channel)
        name = "THREAD_UPDATE" if channel.thread is not None else "CHANNEL_UPDATE"
        payload = self._views.channel(channel)
        self._publish(Event(name=name, data=payload, guild=channel.guild, channel=channel.id))
        return channel

    def add_channel(self, channel: Channel) -> Channel:
        """Send the event of a new channel."""
        payload = self._views.channel(channel)
        self._publish(Event(name="CHANNEL_CREATE", data=payload, guild=channel.guild, channel=channel.id))
        return channel

    def remove_channel(self, channel: Channel) -> None:
        """Delete a channel with its threads, or a thread."""
        for thread in [chat for chat in self._world.channels.values() if chat.parent == channel.id]:
            self.remove_channel(thread)
        if channel.thread is None:
            payload, name = self._views.channel(channel), "CHANNEL_DELETE"
        else:
            parts = {"id": channel.id, "guild_id": channel.guild, "parent_id": channel.parent}
            payload = {key: str(value) for key, value in parts.items()} | {"type": channel.kind}
            name = "THREAD_DELETE"
        self._publish(Event(name=name, data=payload, guild=channel.guild, channel=channel.id))
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

    def _publish_members(self, thread: Channel, user: User, *, on: bool = True) -> None:
        payload: dict[str, Any] = {
            "id": str(thread.id),
            "guild_id": str(thread.guild),
            "member_count": len(thread.thread.members) if thread.thread else 0,
        }
        if on:
            payload["added_members"] = [self._views.thread_member(thread, user)]
        else:
            payload["removed_member_ids"] = [str(user.id)]
        event = Event(name="THREAD_MEMBERS_UPDATE", data=payload, guild=thread.guild, channel=thread.id)
        self._publish(event)

    def _publish_in(self, channel: int, name: str, **payload: Any) -> None:
        payload["channel_id"] = str(channel)
        guild = self._guild(channel)
        if guild is not None:
            payload["guild_id"] = str(guild.id)
        key = None if guild is None else guild.id
        self._publish(Event(name=name, data=payload, guild=key, channel=channel))

    def _publish_message(self, name: str, message: Message, *, nonce: bool = False) -> None:
        channel = self._world.channels[message.channel]
        more: dict[str, Any] = {"channel_type": channel.kind}
        if nonce and message.nonce is not None:
            more["nonce"] = message.nonce
        if (guild := self._guild(channel.id)) is not None:
            author = self._world.users[message.author]
            more["guild_id"] = str(guild.id)
            more["member"] = self._views.member(guild, author, whole=False)
            more["mentions"] = [
                {**self._views.user(user), "member": self._views.member(guild, user, whole=False)}
                for user in map(self._world.users.__getitem__, message.mentions.users)
            ]
        whole = {**self._views.message(message), **more}
        hidden = self._views.hides(message) or message.kind != DEFAULT
        redacted = {**self._views.message(message, redacted=True), **more} if hidden else None
        self._publish(
            Event(name=name, data=whole, redacted=redacted, guild=channel.guild, channel=channel.id)
        )


_CHANNEL = "/channels/{channel_id}"
_MESSAGE = "/channels/{channel_id}/messages/{message_id}"
_REACTION = _MESSAGE + "/reactions/{emoji_name}"
_MOST_REACTIONS = 20
_DEFAULT_MINUTES = 4320
_SIGNS = {"So", "Sk", "Sm", "Mn", "Me", "Cf", "Nd", "Po"}
"""Unicode categories of the characters in an emoji."""


class ChatRoutes:
    """Handlers of the calls about channels, threads and reactions."""

    def __init__(self, world: World, chats: Chats, views: Views) -> None:
        self._world = world
        self._chats = chats
        self._views = views
        self._access = Access(world)

    def handlers(self) -> Mapping[str, Handler]:
        """Return the handlers of these calls, by name."""
        return {
            "POST /users/@me/channels": self._open_dm,
            f"GET {_CHANNEL}": self._get,
            f"PATCH {_CHANNEL}": self._change,
            f"DELETE {_CHANNEL}": self._delete,
            f"POST {_CHANNEL}/typing": self._type,
            f"POST {_MESSAGE}/threads": self._start_thread,
            f"POST {_CHANNEL}/threads": self._start_thread,
            f"GET {_CHANNEL}/threads/archived/public": self._archived,
            "GET /guilds/{guild_id}/threads/active": self._active,
            f"PUT {_CHANNEL}/thread-members/@me": self._join,
            f"DELETE {_CHANNEL}/thread-members/@me": self._leave,
            f"DELETE {_MESSAGE}/reactions": self._clear,
            f"GET {_REACTION}": self._reactors,
            f"DELETE {_REACTION}": self._clear,
            f"PUT {_REACTION}/@me": self._react,
            f"DELETE {_REACTION}/@me": self._unreact,
            f"DELETE {_REACTION}/{{user_id}}": self._unreact,
        }

    def _open_dm(self, call: ApiCall) -> Answer:
        user = self._world.users.get(int(call.body.get("recipient_id") or 0))
        if user is None:
            raise ApiError(UNKNOWN_USER)
        if user.bot:
            raise ApiError(DM_WITH_YOURSELF)
        return Answer(200, self._views.channel(self._world.dm(user)))

    def _get(self, call: ApiCall) -> Answer:
        return Answer(200, self._views.channel(self._access.channel(call)))

    def _change(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        body: Mapping[str, Any] = call.body or {}
        if channel.thread is not None:
            return Answer(200, self._views.channel(self._change_thread(channel, body)))
        if channel.kind == DM:
            raise ApiError(WRONG_CHANNEL_TYPE)
        self._access.demand(channel, "MANAGE_CHANNELS")
        slowmode = body.get("rate_limit_per_user", channel.slowmode) or 0
        name, topic = body.get("name") or channel.name, body.get("topic", channel.topic)
        changed = replace(channel, name=name, topic=topic, slowmode=int(slowmode))
        return Answer(200, self._views.channel(self._chats.change_channel(changed)))

    def _change_thread(self, channel: Channel, body: Mapping[str, Any]) -> Channel:
        state = channel.thread
        assert state is not None
        moderates = self._world.may(channel, "MANAGE_THREADS")
        mine = channel.owner == self._world.bot.id
        only_opens = set(body) == {"archived"} and not body["archived"]
        inside = self._world.bot.id in state.members
        allowed = moderates or (mine and "locked" not in body) or (only_opens and inside and not state.locked)
        if not allowed:
            raise ApiError(MISSING_PERMISSIONS)
        if body.get("archived") is not False:
            self._access.demand_active(channel)
        changes: dict[str, Any] = {key: body[key] for key in ("archived", "locked") if key in body}
        if body.get("auto_archive_duration"):
            changes["minutes"] = int(body["auto_archive_duration"])
        renamed = replace(channel, name=body.get("name") or channel.name)
        return self._chats.change_thread(renamed, **changes)

    def _delete(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        if channel.kind != DM:
            self._access.demand(channel, "MANAGE_THREADS" if channel.thread else "MANAGE_CHANNELS")
            view = self._views.channel(channel)
            self._chats.remove_channel(channel)
            return Answer(200, view)
        return Answer(200, self._views.channel(channel))

    def _type(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        self._access.demand_write(channel)
        self._chats.type(channel, self._world.bot)
        return Answer()

    def _start_thread(self, call: ApiCall) -> Answer:
        parent = self._access.channel(call)
        if parent.kind in FORUMS and "message_id" not in call.path:
            raise unmodelled("posts of bots")
        if parent.kind != TEXT:
            raise ApiError(WRONG_CHANNEL_TYPE)
        starter = self._access.message(call, parent) if "message_id" in call.path else None
        kind = PUBLIC_THREAD if starter is not None else int(call.body.get("type") or PRIVATE_THREAD)
        private = kind == PRIVATE_THREAD
        self._access.demand(parent, "CREATE_PRIVATE_THREADS" if private else "CREATE_PUBLIC_THREADS")
        if starter is not None and starter.id in self._world.channels:
            raise ApiError(THREAD_EXISTS)
        thread = self._chats.start_thread(
            parent,
            call.body["name"],
            self._world.bot,
            kind=kind,
            minutes=int(call.body.get("auto_archive_duration") or _DEFAULT_MINUTES),
            starter=starter,
        )
        return Answer(201, self._views.channel(thread))

    def _archived(self, call: ApiCall) -> Answer:
        parent = self._access.channel(call)
        self._access.demand(parent, "READ_MESSAGE_HISTORY")
        threads = [
            chat for chat in self._world.threads(parent.id, archived=True) if chat.kind == PUBLIC_THREAD
        ]
        threads.sort(key=lambda chat: chat.thread.changed if chat.thread else 0, reverse=True)
        limit = int(call.query.get("limit", 50))
        return Answer(200, {**self._threads(threads[:limit]), "has_more": len(threads) > limit})

    def _active(self, call: ApiCall) -> Answer:
        guild = self._access.guild(call)
        threads = [
            chat for chat in self._world.threads() if chat.guild == guild.id and self._access.sees(chat)
        ]
        return Answer(200, {**self._threads(threads), "has_more": False})

    def _threads(self, threads: list[Channel]) -> dict[str, Any]:
        bot = self._world.bot
        mine = [chat for chat in threads if chat.thread and bot.id in chat.thread.members]
        return {
            "threads": [self._views.channel(chat) for chat in threads],
            "members": [self._views.thread_member(chat, bot) for chat in mine],
        }

    def _join(self, call: ApiCall) -> Answer:
        return self._move(call, on=True)

    def _leave(self, call: ApiCall) -> Answer:
        return self._move(call, on=False)

    def _move(self, call: ApiCall, *, on: bool) -> Answer:
        thread = self._access.channel(call)
        if thread.thread is None:
            raise ApiError(WRONG_CHANNEL_TYPE)
        self._access.demand_active(thread)
        self._chats.join_thread(thread, self._world.bot, on=on)
        return Answer()

    def _reactors(self, call: ApiCall) -> Answer:
        message, emoji = self._reacted(call)
        users = next((r.users for r in message.reactions if r.emoji == emoji), ())
        return Answer(200, [self._views.user(self._world.users[user]) for user in users])

    def _react(self, call: ApiCall) -> Answer:
        message, emoji = self._reacted(call)
        assert emoji is not None
        channel = self._world.channels[message.channel]
        self._access.demand_active(channel)
        if not self._world.may(channel, "READ_MESSAGE_HISTORY"):
            raise ApiError(MISSING_ACCESS)
        if all(reaction.emoji != emoji for reaction in message.reactions):
            self._access.demand(channel, "ADD_REACTIONS")
            if len(message.reactions) >= _MOST_REACTIONS:
                raise ApiError(TOO_MANY_REACTIONS)
        self._chats.react(message, emoji, self._world.bot)
        return Answer()

    def _unreact(self, call: ApiCall) -> Answer:
        message, emoji = self._reacted(call)
        assert emoji is not None
        channel = self._world.channels[message.channel]
        self._access.demand_active(channel)
        user = self._world.bot
        if "user_id" in call.path and call.id("user_id") != user.id:
            self._access.demand(channel, "MANAGE_MESSAGES")
            if (other := self._world.users.get(call.id("user_id"))) is None:
                raise ApiError(UNKNOWN_USER)
            user = other
        self._chats.react(message, emoji, user, on=False)
        return Answer()

    def _clear(self, call: ApiCall) -> Answer:
        message, emoji = self._reacted(call)
        channel = self._world.channels[message.channel]
        self._access.demand_active(channel)
        self._access.demand(channel, "MANAGE_MESSAGES")
        self._chats.clear_reactions(message, emoji)
        return Answer()

    def _reacted(self, call: ApiCall) -> tuple[Message, Emoji | None]:
        message = self._access.message(call, self._access.channel(call))
        name = call.path.get("emoji_name")
        return message, None if name is None else emoji_from(name)


def emoji_from(given: str) -> Emoji:
    """Parse an emoji: a character, or ``name:id``. Raises ApiError."""
    name, colon, key = given.partition(":")
    if colon and key.isdecimal():
        return Emoji(name, int(key))
    kinds = {unicodedata.category(character) for character in given}
    if given.isascii() or not kinds <= _SIGNS:
        raise ApiError(UNKNOWN_EMOJI)
    return Emoji(given)
