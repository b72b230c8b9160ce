"""Inflow: makes the events of the gateway connection durable, in order.

An event counts as read when all earlier events are durable. If a session could not be resumed, its later
events wait until the gap is filled from the chats' histories.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
import structlog

from channels.discord.cursor import DM_PREFIX, Kept, Position, first_seen
from channels.discord.history import History
from channels.discord.link import Event
from channels.discord.reader import MISFITS, Reader
from channels.discord.rooms import Room, Rooms, room_of
from channels.discord.wire import Guild, GuildId, Ready, read, snowflake
from gateway.channel import Cursor, InboundMessage, OverloadedError, Receive, Rejected, Signal

log = structlog.get_logger("trunkline.discord")

_BATCH = 50
_SAVED_EVERY = 100
_AGAIN = 0.5
_SPEECH = ("MESSAGE_CREATE", "MESSAGE_UPDATE")
_DELETED = ("MESSAGE_DELETE", "MESSAGE_DELETE_BULK")
_PENDING_SECONDS = 30.0
MOST_WAITING = 20_000


class Inflow:
    """Ordered intake of events. ``position`` is the durable read position."""

    def __init__(self, receive: Receive, reader: Reader, rooms: Rooms, history: History, kept: Kept) -> None:
        self.position = kept.position
        self._receive = receive
        self._reader = reader
        self._rooms = rooms
        self._history = history
        self._kept = kept
        self._dms = kept.dms
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()
        self._floor: int | None = None
        self._late: dict[str, int] = {}
        self._awaited: set[str] = set()
        self._awaited_until = 0.0
        self._seen = self.position.seen
        self._unsaved = 0

    @property
    def problem(self) -> str:
        """Name of the history that could not be read yet; empty if there is none."""
        return self._history.problem

    @property
    def waiting(self) -> int:
        """Number of events that were received but are not durable."""
        return len(self._events)

    async def begin(self) -> None:
        """Store the time at which a new bot started to receive."""
        if not self._seen:
            self._seen = first_seen()
            self.position = Position(seen=self._seen)
            await self._receive(cursor=self._kept.cursor(self.position))

    def offer(self, event: Event) -> None:
        """Queue an event."""
        self._events.append(event)
        self._news.set()

    async def run(self) -> None:
        """Process events until cancelled. Raises the errors of ``receive``, except overload."""
        while True:
            if not self._events:
                self._news.clear()
                await self._news.wait()
            batch = [self._events.popleft() for _ in range(min(_BATCH, len(self._events)))]
            while batch:
                run = _speeches(batch)
                if run:
                    del batch[: len(run)]
                    await self._take_speeches(run)
                else:
                    await self._take(batch.pop(0))

    async def _take_speeches(self, events: Sequence[Event]) -> None:
        """Process consecutive messages together, so that their files are downloaded concurrently."""
        read_ = await asyncio.gather(*map(self._read, events))
        messages = [found for found in read_ if isinstance(found, InboundMessage)]
        rejected = [found for found in read_ if isinstance(found, Rejected)]
        for message in messages:
            await self._know_dm(message)
        seq = next((event.seq for event in reversed(events) if event.seq is not None), None)
        ids = [_id_of(event.data) for event in events]
        self._seen = max(self._seen, *ids)
        await self._commit(messages, rejected, seq)

    async def _read(self, event: Event) -> InboundMessage | Rejected | None:
        reading = self._reader.message if event.name == "MESSAGE_CREATE" else self._reader.changed
        try:
            return await reading(event.data)
        except MISFITS as error:
            return self._reader.rejected(event.name, event.data, error)

    async def _take(self, event: Event) -> None:
        rejected: list[Rejected] = []
        signals: Sequence[Signal] = ()
        if event.durable is not None:
            await asyncio.wait([event.durable])
            self._unsaved = _SAVED_EVERY
        try:
            if event.name in _DELETED:
                signals = self._reader.removed(event.data)
            else:
                await self._apply(event.name, event.data)
        except MISFITS as error:
            rejected.append(self._reader.rejected(event.name, event.data, error))
        await self._commit((), rejected, event.seq, signals)

    async def _apply(self, name: str, data: Any) -> None:
        """Process an event other than a message. Raises MISFITS."""
        match name:
            case "READY":
                await self._begin(read(data, Ready))
            case "GUILD_CREATE":
                await self._furnish(read(data, Guild))
            case "GUILD_DELETE":
                self._awaited.discard(read(data, GuildId).id)
            case "THREAD_MEMBERS_UPDATE":
                self._join(cast("Mapping[str, Any]", data))
            case _ if name.startswith(("CHANNEL_", "THREAD_")) and isinstance(data, dict):
                self._rooms.hear(name, cast("Mapping[str, Any]", data), self._kept.account)
            case _:
                pass

    async def _begin(self, ready: Ready) -> None:
        """Begin a new session, and read the direct messages since the old one, which it does not repeat."""
        floor = self._floor = Position(seen=self._seen).floor
        self._awaited = {guild.id for guild in ready.guilds}
        self._awaited_until = asyncio.get_running_loop().time() + _PENDING_SECONDS
        self.position = Position(ready.session_id, None, ready.resume_gateway_url, self._seen)
        self._unsaved = _SAVED_EVERY
        log.info("reading what was missed", rooms=len(self._dms))
        await self._catch_up([Room(key, "dm") for key in sorted(self._dms)], floor)

    async def _furnish(self, guild: Guild) -> None:
        """Record the channels of a server, and read what was missed in them."""
        channels = [*guild.channels, *guild.threads]
        for channel in channels:
            self._rooms.put(room_of(channel, self._kept.account))
        floor = self._late.pop(guild.id, None) if self._floor is None else self._floor
        if floor is not None:
            news = [c for c in channels if c.last_message_id is not None and int(c.last_message_id) > floor]
            await self._catch_up([room_of(channel, self._kept.account) for channel in news], floor)
        self._awaited.discard(guild.id)

    async def _catch_up(self, rooms: Iterable[Room], floor: int) -> None:
        """Read the messages in chats since the gap began."""
        for room in rooms:
            async for told in self._history.after(room.id, floor):
                messages: list[InboundMessage] = []
                rejected: list[Rejected] = []
                for data in told:
                    try:
                        messages += await self._reader.past(data, room)
                    except MISFITS as error:
                        rejected.append(self._reader.rejected("history", data, error))
                await self._accept(messages, rejected, None)

    def _join(self, data: Mapping[str, Any]) -> None:
        if any(member.get("user_id") == self._kept.account for member in data.get("added_members", ())):
            self._rooms.join(read(data["id"], str))

    async def _know_dm(self, message: InboundMessage) -> None:
        """Store the channels of direct messages, because Discord does not list them."""
        address = message.address
        if not address.group and address.chat not in self._dms:
            await self._receive(
                cursor=Cursor(self._kept.account, message.sender.id, DM_PREFIX + address.chat)
            )
            self._dms.add(address.chat)

    async def _commit(
        self,
        messages: Sequence[InboundMessage],
        rejected: Sequence[Rejected],
        seq: int | None,
        signals: Sequence[Signal] = (),
    ) -> None:
        """Make the messages and the read position durable."""
        self._unsaved += 1
        if seq is not None and self.position.session is not None:
            self.position = msgspec.structs.replace(self.position, seq=seq)
        save = messages or rejected or signals or self._unsaved >= _SAVED_EVERY
        cursor = self._cursor() if save else None
        if signals:
            await self._signal(signals, cursor)
        else:
            await self._accept(messages, rejected, cursor)

    async def _signal(self, signals: Sequence[Signal], cursor: Cursor | None) -> None:
        """Make deletions durable with the cursor, before any later event."""
        while True:
            try:
                await self._receive(cursor=cursor, signals=signals)
            except OverloadedError:
                await asyncio.sleep(_AGAIN)
            else:
                return

    def _cursor(self) -> Cursor | None:
        """Return the cursor to store; None while an earlier event is not durable."""
        if self._floor is not None and not self._awaits():
            self._late = dict.fromkeys(self._awaited, self._floor)
            self._floor = None
        if self._floor is not None or not self.position.resumable:
            return None
        self._unsaved = 0
        self.position = msgspec.structs.replace(self.position, seen=self._seen)
        return self._kept.cursor(self.position)

    def _awaits(self) -> bool:
        """Return whether servers are still expected to send their data; there is a timeout for unavailable
        ones."""
        return bool(self._awaited) and asyncio.get_running_loop().time() < self._awaited_until

    async def _accept(
        self, messages: Sequence[InboundMessage], rejected: Sequence[Rejected], cursor: Cursor | None
    ) -> None:
        """Submit what was read, retrying while the gateway is overloaded; the cursor is submitted last."""
        if not (messages or rejected or cursor is not None):
            return
        try:
            await self._receive(*messages, cursor=cursor, rejected=rejected)
            return
        except OverloadedError as error:
            log.warning("Discord has to wait", reason=str(error))
        for message in messages:
            await self._insist(message)
        await self._insist(cursor=cursor, rejected=rejected)

    async def _insist(
        self, *messages: InboundMessage, cursor: Cursor | None = None, rejected: Sequence[Rejected] = ()
    ) -> None:
        while True:
            try:
                await self._receive(*messages, cursor=cursor, rejected=rejected)
            except OverloadedError:
                await asyncio.sleep(_AGAIN)
            else:
                return


def _speeches(events: Sequence[Event]) -> list[Event]:
    """Return the messages at the start of the events."""
    found: list[Event] = []
    for event in events:
        if event.name not in _SPEECH:
            break
        found.append(event)
    return found


def _id_of(data: Any) -> int:
    """Return the id of a message; 0 if it has none."""
    try:
        return int(snowflake(data["id"]))
    except MISFITS:
        return 0
