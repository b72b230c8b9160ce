"""Known chats of a bot: the kind of each, and the parent channel of each thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from channels.discord.wire import DM, GROUP_DM, THREADS, Channel, read

RoomKind = Literal["dm", "channel", "thread"]
Ask = Callable[[str], Awaitable[Any]]
"""Function that fetches a Discord channel by its id. Raises LookupError if the bot has no access to it."""

_MOST = 50_000


class Room(Struct, frozen=True):
    """A chat. ``joined`` is true if the bot is a member of the thread."""

    id: str
    kind: RoomKind
    parent: str | None = None
    joined: bool = False


def room_of(channel: Channel, me: str) -> Room:
    """Return a chat from Discord's description."""
    if channel.type in (DM, GROUP_DM):
        return Room(channel.id, "dm")
    if channel.type in THREADS:
        joined = channel.member is not None or channel.owner_id == me
        return Room(channel.id, "thread", channel.parent_id, joined)
    return Room(channel.id, "channel")


class Rooms:
    """Cache of chats, filled from events; unknown chats are fetched."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._rooms: OrderedDict[str, Room] = OrderedDict()

    def put(self, room: Room) -> Room:
        """Add or update a chat."""
        known = self._rooms.get(room.id)
        if known is not None and known.joined and not room.joined:
            room = msgspec.structs.replace(room, joined=True)
        self._rooms[room.id] = room
        self._rooms.move_to_end(room.id)
        while len(self._rooms) > _MOST:
            self._rooms.popitem(last=False)
        return room

    def known(self, key: str) -> Room | None:
        """Return a known chat."""
        return self._rooms.get(key)

    def join(self, key: str) -> None:
        """Record that the bot joined a thread."""
        room = self._rooms.get(key)
        if room is not None and room.kind == "thread":
            self.put(msgspec.structs.replace(room, joined=True))

    def forget(self, key: str) -> None:
        """Remove a chat."""
        self._rooms.pop(key, None)

    async def of(self, key: str, guild: str | None, kind: int | None, me: str) -> Room:
        """Return the chat of a message; ``kind`` is the kind that the message itself names, if any."""
        if guild is None:
            return Room(key, "dm")
        room = self._rooms.get(key)
        if room is not None:
            return room
        if kind is not None and kind not in THREADS:
            return self.put(Room(key, "channel"))
        try:
            return self.put(room_of(read(await self._ask(key), Channel), me))
        except (LookupError, msgspec.ValidationError):
            return Room(key, "channel")

    def hear(self, name: str, data: Mapping[str, Any], me: str) -> None:
        """Process an event about chats. Raises msgspec.ValidationError."""
        if name in ("CHANNEL_CREATE", "CHANNEL_UPDATE", "THREAD_CREATE", "THREAD_UPDATE"):
            self.put(room_of(read(data, Channel), me))
        elif name in ("CHANNEL_DELETE", "THREAD_DELETE"):
            self.forget(read(data, Channel).id)
        elif name == "THREAD_LIST_SYNC":
            for thread in read(data.get("threads", ()), tuple[Channel, ...]):
                self.put(room_of(thread, me))
