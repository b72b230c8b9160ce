"""The inflow: what the gateway connection tells, made durable in its order.

An event counts as read when everything before it is durable. What comes after a gap (the session could not be
resumed) waits until the gap is filled from the rooms' histories.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import msgspec
import structlog

from channels.discord.cursor import DM_PREFIX, Kept, Position, first_seen
from channels.discord.history import History
from channels.discord.link import Event
from channels.discord.reader import MISFITS, Reader
from channels.discord.rooms import Room, Rooms, room_of
from channels.discord.wire import Guild, GuildId, Ready, read, snowflake
from gateway import Cursor, InboundMessage, OverloadedError, Receive, Rejected

log = structlog.get_logger("trunkline.discord")

_BATCH = 50
_SAVED_EVERY = 100
_AGAIN = 0.5
_SPEECH = ("MESSAGE_CREATE", "MESSAGE_UPDATE")
_PENDING_SECONDS = 30.0
MOST_WAITING = 20_000


class Withdraws(Protocol):
    """Whoever is told that a message was deleted."""

    def withdraw(self, session_id: str, dedup_key: str) -> bool: ...


class Inflow:
    """Takes events in their order. ``position`` is how far they are durable."""

    def __init__(
        self, receive: Receive, host: Withdraws, reader: Reader, rooms: Rooms, history: History, kept: Kept
    ) -> None:
        self.position = kept.position
        self._receive = receive
        self._host = host
        self._reader = reader
        self._rooms = rooms
        self._history = history
        self._kept = kept
        self._dms = kept.dms
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()
        self._parked: list[InboundMessage] = []
        self._floor: int | None = None
        self._late: dict[str, int] = {}
        self._awaited: set[str] = set()
        self._awaited_until = 0.0
        self._seen = self.position.seen
        self._unsaved = 0

    @property
    def waiting(self) -> int:
        """Events that are heard and not durable."""
        return len(self._events)

    async def begin(self) -> None:
        """Remember since when this bot listens, if it is new here."""
        if not self._seen:
            self._seen = first_seen()
            self.position = Position(seen=self._seen)
            await self._receive(cursor=self._kept.cursor(self.position))

    def offer(self, event: Event) -> None:
        """One more event."""
        self._events.append(event)
        self._news.set()

    async def run(self) -> None:
        """Take events until cancelled. Raises what ``receive`` raises, but for overload."""
        while True:
            if not self._events:
                self._news.clear()
                await self._wait()
            await self._unpark()
            batch = [self._events.popleft() for _ in range(min(_BATCH, len(self._events)))]
            while batch:
                run = _speeches(batch)
                if run:
                    del batch[: len(run)]
                    await self._take_speeches(run)
                else:
                    await self._take(batch.pop(0))

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_AGAIN if self._parked else None):
                await self._news.wait()
        except TimeoutError:
            pass  # what is parked is tried again

    async def _take_speeches(self, events: Sequence[Event]) -> None:
        """Messages in a row: their files are loaded together."""
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
        if event.durable is not None:
            await asyncio.wait([event.durable])
            self._unsaved = _SAVED_EVERY
        try:
            await self._apply(event.name, event.data)
        except MISFITS as error:
            rejected.append(self._reader.rejected(event.name, event.data, error))
        await self._commit((), rejected, event.seq)

    async def _apply(self, name: str, data: Any) -> None:
        """An event that is no message. Raises MISFITS."""
        match name:
            case "READY":
                await self._begin(read(data, Ready))
            case "GUILD_CREATE":
                await self._furnish(read(data, Guild))
            case "GUILD_DELETE":
                self._awaited.discard(read(data, GuildId).id)
            case "MESSAGE_DELETE" | "MESSAGE_DELETE_BULK":
                for session, key in self._reader.removed(data):
                    self._host.withdraw(session, key)
            case "THREAD_MEMBERS_UPDATE":
                self._join(cast("Mapping[str, Any]", data))
            case _ if name.startswith(("CHANNEL_", "THREAD_")) and isinstance(data, dict):
                self._rooms.hear(name, cast("Mapping[str, Any]", data), self._kept.account)
            case _:
                pass

    async def _begin(self, ready: Ready) -> None:
        """A new session: what happened since the old one is not told by it."""
        floor = self._floor = Position(seen=self._seen).floor
        self._awaited = {guild.id for guild in ready.guilds}
        self._awaited_until = asyncio.get_running_loop().time() + _PENDING_SECONDS
        self.position = Position(ready.session_id, None, ready.resume_gateway_url, self._seen)
        self._unsaved = _SAVED_EVERY
        log.info("reading what was missed", rooms=len(self._dms))
        await self._catch_up([Room(key, "dm") for key in sorted(self._dms)], floor)

    async def _furnish(self, guild: Guild) -> None:
        """A server and its rooms."""
        channels = [*guild.channels, *guild.threads]
        for channel in channels:
            self._rooms.put(room_of(channel, self._kept.account))
        floor = self._late.pop(guild.id, None) if self._floor is None else self._floor
        if floor is not None:
            news = [c for c in channels if c.last_message_id is not None and int(c.last_message_id) > floor]
            await self._catch_up([room_of(channel, self._kept.account) for channel in news], floor)
        self._awaited.discard(guild.id)

    async def _catch_up(self, rooms: Iterable[Room], floor: int) -> None:
        """Read what stands in rooms since the gap began."""
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
        """Remember direct conversations: Discord does not list them."""
        address = message.address
        if not address.group and address.chat not in self._dms:
            await self._receive(
                cursor=Cursor(self._kept.account, message.sender.id, DM_PREFIX + address.chat)
            )
            self._dms.add(address.chat)

    async def _commit(
        self, messages: Sequence[InboundMessage], rejected: Sequence[Rejected], seq: int | None
    ) -> None:
        """Make durable what was read, and how far."""
        self._unsaved += 1
        if seq is not None and self.position.session is not None:
            self.position = msgspec.structs.replace(self.position, seq=seq)
        save = messages or rejected or self._unsaved >= _SAVED_EVERY
        await self._accept(messages, rejected, self._cursor() if save else None)

    def _cursor(self) -> Cursor | None:
        """Where to go on reading; None as long as something before it is not durable."""
        if self._floor is not None and not self._awaits():
            self._late = dict.fromkeys(self._awaited, self._floor)
            self._floor = None
        if self._floor is not None or self._parked or not self.position.resumable:
            return None
        self._unsaved = 0
        self.position = msgspec.structs.replace(self.position, seen=self._seen)
        return self._kept.cursor(self.position)

    def _awaits(self) -> bool:
        """Whether servers are still to be furnished; one that is away for long is not waited for."""
        return bool(self._awaited) and asyncio.get_running_loop().time() < self._awaited_until

    async def _accept(
        self, messages: Sequence[InboundMessage], rejected: Sequence[Rejected], cursor: Cursor | None
    ) -> None:
        """Hand in what was read. Messages of sessions that are full wait here, in their order."""
        full = {message.session for message in self._parked}
        ready = [message for message in messages if message.session not in full]
        late = [message for message in messages if message.session in full]
        try:
            if ready or rejected or cursor is not None:
                await self._receive(*ready, cursor=None if late else cursor, rejected=rejected)
        except OverloadedError:
            await self._accept_singly(ready, rejected)
        self._parked += late
        while len(self._parked) > MOST_WAITING:
            await asyncio.sleep(_AGAIN)
            await self._unpark()

    async def _accept_singly(self, messages: Iterable[InboundMessage], rejected: Sequence[Rejected]) -> None:
        full: set[str] = set()
        if rejected:
            await self._receive(rejected=rejected)
        for message in messages:
            try:
                if message.session in full:
                    raise OverloadedError("its session is full")
                await self._receive(message)
            except OverloadedError:
                full.add(message.session)
                self._parked.append(message)

    async def _unpark(self) -> None:
        """Try again what did not find room."""
        if self._parked:
            parked, self._parked = self._parked, []
            await self._accept_singly(parked, ())


def _speeches(events: Sequence[Event]) -> list[Event]:
    """The messages that stand first."""
    found: list[Event] = []
    for event in events:
        if event.name not in _SPEECH:
            break
        found.append(event)
    return found


def _id_of(data: Any) -> int:
    """The id of a message, 0 for none."""
    try:
        return int(snowflake(data["id"]))
    except MISFITS:
        return 0
