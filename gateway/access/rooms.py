"""Rooms: the settings of one chat, the messages in it that the bot answers, and the chats seen so far.

A room's settings come from its own table, then from its channel or account. ``groups`` means the same on all
channels; a channel only reports the way in which a message addresses the bot.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache

from msgspec import Struct
from sqlalchemy import Connection, select

from gateway.contract.channel import Addressing, Attention, InboundMessage
from gateway.contract.errors import SettingsError
from gateway.contract.messages import now_ms
from gateway.settings import ChannelRules, EnvelopeStyle, Groups, RoomSettings, table_of
from gateway.store import Inserted, Op, Store
from gateway.store import schema as t
from gateway.store.writes import Write

ADD_ROOM = Write("insert-new", 71, t.room, "id channel account chat title group seen_at")
NAME_ROOM = Write("update", 72, t.room, "id title group seen_at")
SEE_ROOM = Write("update", 73, t.room, "id group seen_at")

Rules = Callable[[str], "ChannelRules | None"]
"""The rules of a channel by its id, if the settings have any."""

_MAX_ROOMS = 4_096
_MAX_LISTED = 10_000
_MAX_TITLE = 200
_SEEN_MS = 3_600_000
"""Interval at which the time of a room's last message is stored."""
_OPEN, _CLOSED = RoomSettings(), ChannelRules()
_ANSWERED: dict[Groups, tuple[Addressing, ...]] = {
    "command": ("direct", "command"),
    "reply": ("direct", "command", "reply", "thread"),
    "mention": ("direct", "command", "reply", "thread", "mention"),
    "always": ("direct", "command", "reply", "thread", "mention", "none"),
}


class Room(Struct, frozen=True):
    """The settings in effect in one room. None: the channel's or the agent's own value."""

    enabled: bool
    groups: Groups
    envelope: EnvelopeStyle
    context_messages: int
    system_prompt: str = ""
    tools: frozenset[str] | None = None
    allow: tuple[str, ...] | None = None


class Rooms:
    """The rooms of all channels."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.room = lru_cache(maxsize=_MAX_ROOMS)(self._room)
        """Return the settings of a room, by channel and chat id; ``group``: several people write there."""

    def _room(self, channel: str, chat: str, group: bool) -> Room:
        rules = self._rules(channel) or _CLOSED
        own = rules.rooms.named.get(chat)
        room = own or _OPEN
        listed = own is not None or not group or rules.rooms.default == "allow"
        return Room(
            enabled=room.enabled and listed,
            groups=room.groups or rules.groups,
            envelope=room.envelope or rules.envelope,
            context_messages=(
                rules.context_messages if room.context_messages is None else room.context_messages
            ),
            system_prompt=room.system_prompt or "",
            tools=None if room.tools is None else frozenset(room.tools),
            allow=("*",) if room.allow == "*" else room.allow,
        )

    def of(self, channel: str, message: InboundMessage) -> Room:
        """Return the settings of a message's room."""
        return self.room(channel, message.address.chat, message.address.group)

    def attention(self, channel: str, message: InboundMessage) -> Attention:
        """Return whether a message is answered, kept as context for a later one, or ignored."""
        group = message.address.group
        rules = self._rules(channel)
        if not group and (rules is None or not rules.rooms.named):
            return "answer"
        room = self.of(channel, message)
        if not room.enabled:
            return "ignore"
        if not group or message.addressed in _ANSWERED[room.groups]:
            return "answer"
        return "remember" if room.context_messages else "ignore"


def check_rooms(rules: ChannelRules, channel: str) -> None:
    """Raise SettingsError for the rules of rooms on a channel that has no rooms."""
    written = sorted(rules.model_fields_set & {"groups", "envelope", "context_messages", "rooms"})
    if written:
        raise SettingsError(
            f"{table_of(channel)}.{written[0]}: this channel has no rooms with several people; "
            "remove this setting"
        )


class SeenRoom(Struct, frozen=True):
    """A chat in which a channel has seen a message. ``title`` is its name, or that of its user."""

    channel: str
    account: str
    chat: str
    title: str
    group: bool
    seen_at: int


class SeenRooms:
    """The chats that channels have seen, for operators who need their ids; also those that are ignored.

    Nothing waits for the writes: a chat is stored at its first message in a process, when its name changes,
    and once an hour.
    """

    def __init__(self, store: Store, clock: Callable[[], int] = now_ms) -> None:
        self._store = store
        self._clock = clock
        self._stored: OrderedDict[tuple[str, str, str], tuple[str, int]] = OrderedDict()
        """Names as stored and the times of these writes, the least recently stored chat first."""

    def note(self, channel: str, message: InboundMessage) -> None:
        """Remember the chat of a message."""
        address = message.address
        key = (channel, address.account, address.chat)
        title, at = self._stored.get(key, ("", -_SEEN_MS))
        said = (address.title if address.group else message.sender.name)[:_MAX_TITLE]
        now = self._clock()
        if not address.chat or (now - at < _SEEN_MS and said in ("", title)):
            return
        self._stored[key] = (said or title, now)
        self._stored.move_to_end(key)
        if len(self._stored) > _MAX_ROOMS:
            self._stored.popitem(last=False)
        row_id, group = ":".join(key), int(address.group)
        # A message without the name does not change the stored name.
        named: Op = (NAME_ROOM, (row_id, said, group, now)) if said else (SEE_ROOM, (row_id, group, now))
        new: Op = (ADD_ROOM, (row_id, *key, said, group, now))
        self._store.submit([new, named]).add_done_callback(_ignore_result)

    async def list(self) -> list[SeenRoom]:
        """Return the chats, the latest first; 10,000 at most."""
        c = t.room.c
        columns = (c.channel, c.account, c.chat, c.title, c.group, c.seen_at)
        query = select(*columns).order_by(c.seen_at.desc(), c.id).limit(_MAX_LISTED)

        def read(connection: Connection) -> list[SeenRoom]:
            return [SeenRoom(*row[:4], bool(row[4]), row[5]) for row in connection.execute(query)]

        return await self._store.read(read)


def _ignore_result(written: asyncio.Future[Inserted]) -> None:
    """Retrieve the result of a write: the writer has logged its failure."""
    if not written.cancelled():
        written.exception()
