"""Calls about rooms: channels, threads, direct conversations, reactions, typing."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from channels.discord.fake.access import Access
from channels.discord.fake.calls import Answer, ApiCall, Handler
from channels.discord.fake.errors import (
    DM_WITH_YOURSELF,
    MISSING_ACCESS,
    MISSING_PERMISSIONS,
    THREAD_EXISTS,
    TOO_MANY_REACTIONS,
    UNKNOWN_EMOJI,
    UNKNOWN_USER,
    WRONG_CHANNEL_TYPE,
    ApiError,
)
from channels.discord.fake.nouns import DM, PRIVATE_THREAD, PUBLIC_THREAD, TEXT, Channel, Emoji, Message
from channels.discord.fake.rooms import Rooms
from channels.discord.fake.views import Views
from channels.discord.fake.world import World

_CHANNEL = "/channels/{channel_id}"
_MESSAGE = "/channels/{channel_id}/messages/{message_id}"
_REACTION = _MESSAGE + "/reactions/{emoji_name}"
_MOST_REACTIONS = 20
_DEFAULT_MINUTES = 4320
_SIGNS = {"So", "Sk", "Sm", "Mn", "Me", "Cf", "Nd", "Po"}
"""Kinds of characters that signs are made of."""


class RoomRoutes:
    """Handles calls about rooms."""

    def __init__(self, world: World, rooms: Rooms, views: Views) -> None:
        self._world = world
        self._rooms = rooms
        self._views = views
        self._access = Access(world)

    def handlers(self) -> Mapping[str, Handler]:
        """The calls that are handled here."""
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
        return Answer(200, self._views.channel(self._rooms.change_channel(changed)))

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
        return self._rooms.change_thread(renamed, **changes)

    def _delete(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        if channel.kind != DM:
            self._access.demand(channel, "MANAGE_THREADS" if channel.thread else "MANAGE_CHANNELS")
            view = self._views.channel(channel)
            self._rooms.remove_channel(channel)
            return Answer(200, view)
        return Answer(200, self._views.channel(channel))

    def _type(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        self._access.demand_write(channel)
        self._rooms.type(channel, self._world.bot)
        return Answer()

    def _start_thread(self, call: ApiCall) -> Answer:
        parent = self._access.channel(call)
        if parent.kind != TEXT:
            raise ApiError(WRONG_CHANNEL_TYPE)
        starter = self._access.message(call, parent) if "message_id" in call.path else None
        kind = PUBLIC_THREAD if starter is not None else int(call.body.get("type") or PRIVATE_THREAD)
        private = kind == PRIVATE_THREAD
        self._access.demand(parent, "CREATE_PRIVATE_THREADS" if private else "CREATE_PUBLIC_THREADS")
        if starter is not None and starter.id in self._world.channels:
            raise ApiError(THREAD_EXISTS)
        thread = self._rooms.start_thread(
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
            room for room in self._world.threads(parent.id, archived=True) if room.kind == PUBLIC_THREAD
        ]
        threads.sort(key=lambda room: room.thread.changed if room.thread else 0, reverse=True)
        limit = int(call.query.get("limit", 50))
        return Answer(200, {**self._threads(threads[:limit]), "has_more": len(threads) > limit})

    def _active(self, call: ApiCall) -> Answer:
        guild = self._access.guild(call)
        threads = [
            room for room in self._world.threads() if room.guild == guild.id and self._access.sees(room)
        ]
        return Answer(200, {**self._threads(threads), "has_more": False})

    def _threads(self, threads: list[Channel]) -> dict[str, Any]:
        bot = self._world.bot
        mine = [room for room in threads if room.thread and bot.id in room.thread.members]
        return {
            "threads": [self._views.channel(room) for room in threads],
            "members": [self._views.thread_member(room, bot) for room in mine],
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
        self._rooms.join_thread(thread, self._world.bot, on=on)
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
        self._rooms.react(message, emoji, self._world.bot)
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
        self._rooms.react(message, emoji, user, on=False)
        return Answer()

    def _clear(self, call: ApiCall) -> Answer:
        message, emoji = self._reacted(call)
        channel = self._world.channels[message.channel]
        self._access.demand_active(channel)
        self._access.demand(channel, "MANAGE_MESSAGES")
        self._rooms.clear_reactions(message, emoji)
        return Answer()

    def _reacted(self, call: ApiCall) -> tuple[Message, Emoji | None]:
        message = self._access.message(call, self._access.channel(call))
        name = call.path.get("emoji_name")
        return message, None if name is None else emoji_from(name)


def emoji_from(given: str) -> Emoji:
    """A sign as a path or a person names it: a character, or ``name:id``. Raises ApiError."""
    name, colon, key = given.partition(":")
    if colon and key.isdecimal():
        return Emoji(name, int(key))
    kinds = {unicodedata.category(character) for character in given}
    if given.isascii() or not kinds <= _SIGNS:
        raise ApiError(UNKNOWN_EMOJI)
    return Emoji(given)
