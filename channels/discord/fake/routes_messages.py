"""Calls about messages: write, read, change, delete."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from channels.discord.fake.access import Access
from channels.discord.fake.calls import Answer, ApiCall, Handler
from channels.discord.fake.drafts import Drafts
from channels.discord.fake.errors import (
    NOT_IN_DM,
    NOT_YOUR_MESSAGE,
    OLD_EDITS,
    TOO_OLD_TO_DELETE,
    ApiError,
    invalid,
)
from channels.discord.fake.figures import Figures
from channels.discord.fake.nouns import Channel, Message
from channels.discord.fake.rooms import Rooms
from channels.discord.fake.snowflakes import made
from channels.discord.fake.views import Views
from channels.discord.fake.world import World

_CHANNEL = "/channels/{channel_id}"
_MESSAGE = "/channels/{channel_id}/messages/{message_id}"
_HOUR, _FORTNIGHT = 3600.0, 14 * 86_400.0


class MessageRoutes:
    """Handles calls about messages. ``reads`` is whether the application may read what people say."""

    def __init__(
        self, world: World, rooms: Rooms, views: Views, drafts: Drafts, figures: Figures, *, reads: bool
    ) -> None:
        self._world = world
        self._rooms = rooms
        self._views = views
        self._drafts = drafts
        self._figures = figures
        self._reads = reads
        self._access = Access(world)
        self._nonces: dict[str, tuple[float, int, int]] = {}
        self._old_edits: dict[int, deque[float]] = {}

    def handlers(self) -> Mapping[str, Handler]:
        """The calls that are handled here."""
        return {
            f"GET {_CHANNEL}/messages": self._list,
            f"POST {_CHANNEL}/messages": self._create,
            f"POST {_CHANNEL}/messages/bulk-delete": self._delete_many,
            f"GET {_MESSAGE}": self._get,
            f"PATCH {_MESSAGE}": self._edit,
            f"DELETE {_MESSAGE}": self._delete,
        }

    def _list(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        query = {name: int(value) for name, value in call.query.items()}
        limit = query.pop("limit", 50)
        if len(query) > 1:
            message = "Only one of before, after and around may be given"
            raise invalid("query", "MUTUALLY_EXCLUSIVE", message)
        if not self._world.may(channel, "READ_MESSAGE_HISTORY"):
            return Answer(200, [])
        history = [message for message in self._world.history(channel.id) if not message.ephemeral]
        found = _window(history, query, limit)
        return Answer(200, [self._view(message) for message in reversed(found)])

    def _get(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        self._access.demand(channel, "READ_MESSAGE_HISTORY")
        return Answer(200, self._view(self._access.message(call, channel)))

    def _create(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        self._access.demand_write(channel)
        body: Mapping[str, Any] = call.body or {}
        nonce = body.get("nonce")
        if body.get("enforce_nonce") and (standing := self._standing(nonce)) is not None:
            return Answer(200, self._view(standing))
        other = self._drafts.reference(body, channel)
        draft = self._drafts.new(body, call.files, channel)
        now = self._world.clock.now()
        message = Message(
            id=self._world.ids.new(),
            channel=channel.id,
            author=self._world.bot.id,
            at=now,
            content=draft.content,
            flags=draft.flags,
            nonce=nonce,
            tts=bool(body.get("tts")),
            embeds=draft.embeds,
            components=draft.components,
            attachments=draft.attachments,
        )
        message = self._rooms.post(replace(message, **self._drafts.replied(draft, body, other)))
        if nonce is not None:
            self._nonces[str(nonce)] = (now, channel.id, message.id)
        answer = self._view(message)
        return Answer(200, answer if nonce is None else {**answer, "nonce": nonce}, draft.problem)

    def _standing(self, nonce: object) -> Message | None:
        """The message that the bot sent with this nonce in the last few minutes."""
        at, channel, message = self._nonces.get(str(nonce), (0.0, 0, 0))
        if nonce is None or at + self._figures.nonces < self._world.clock.now():
            return None
        return self._world.messages.get(channel, {}).get(message)

    def _edit(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        message = self._access.message(call, channel)
        if message.author != self._world.bot.id:
            raise ApiError(NOT_YOUR_MESSAGE)
        self._access.demand_active(channel)
        draft = self._drafts.edit(call.body or {}, call.files, message)
        self._count_old(message)
        message = self._rooms.change(
            replace(
                message,
                content=draft.content,
                embeds=draft.embeds,
                components=draft.components,
                attachments=draft.attachments,
                flags=draft.flags,
                mentions=draft.mentions,
            )
        )
        return Answer(200, self._view(message), draft.problem)

    def _count_old(self, message: Message) -> None:
        """Messages older than an hour may only be edited now and then."""
        now = self._world.clock.now()
        if not self._figures.limits or now - message.at < _HOUR:
            return
        edits = self._old_edits.setdefault(message.channel, deque())
        while edits and edits[0] <= now - self._figures.old_edits_window:
            edits.popleft()
        if len(edits) >= self._figures.old_edits:
            wait = edits[0] + self._figures.old_edits_window - now
            raise ApiError(OLD_EDITS, None, {"retry_after": round(wait, 3), "global": False})
        edits.append(now)

    def _delete(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        message = self._access.message(call, channel)
        if message.author != self._world.bot.id:
            self._demand_moderation(channel)
        self._rooms.remove(message)
        return Answer()

    def _delete_many(self, call: ApiCall) -> Answer:
        channel = self._access.channel(call)
        self._demand_moderation(channel)
        ids = [int(key) for key in call.body["messages"]]
        if any(made(key) < self._world.clock.now() - _FORTNIGHT for key in ids):
            raise ApiError(TOO_OLD_TO_DELETE)
        room = self._world.messages[channel.id]
        found = [room[key] for key in ids if key in room]
        if found:
            self._rooms.remove(*found, bulk=True)
        return Answer()

    def _demand_moderation(self, channel: Channel) -> None:
        if channel.guild is None:
            raise ApiError(NOT_IN_DM)
        self._access.demand(channel, "MANAGE_MESSAGES")

    def _view(self, message: Message) -> dict[str, Any]:
        return self._views.message(message, redacted=not self._reads)


def _window(history: Sequence[Message], query: Mapping[str, int], limit: int) -> Sequence[Message]:
    """Part of a room's history, oldest first: next to an id on one side or both, or the newest."""
    if "after" in query:
        return [message for message in history if message.id > query["after"]][:limit]
    if "around" in query:
        key = query["around"]
        before = [message for message in history if message.id < key][-(limit // 2) :]
        rest = [message for message in history if message.id >= key]
        return [*before, *rest[: limit - len(before)]][:limit] if limit > 1 else rest[:1]
    before_key = query.get("before")
    return [message for message in history if before_key is None or message.id < before_key][-limit:]
