"""Inflow: makes the events of the gateway connection durable, in order.

An event counts as read when all earlier events are durable. If a session could not be resumed, its later
events wait until the gap is filled from the chats' histories.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import aiohttp
import msgspec
import structlog
from msgspec import Struct

from channels.discord import parse
from channels.discord.api import Api, Broken, Later, Refused
from channels.discord.cursor import DM_PREFIX, Kept, Position, first_seen
from channels.discord.delivery import MESSAGES, Places
from channels.discord.files import is_ours, received
from channels.discord.parse import (
    THREADS,
    Attachment,
    Channel,
    Deleted,
    Guild,
    GuildId,
    Message,
    Ready,
    Room,
    View,
    read,
    room_of,
    snowflake,
)
from gateway import FilePart, Part
from gateway.channel import (
    Audio,
    Backoff,
    Cursor,
    InboundMessage,
    OverloadedError,
    Receive,
    Rejected,
    Signal,
    Withdrawal,
)

log = structlog.get_logger("trunkline.discord")

Ask = Callable[[str], Awaitable[Any]]
"""Function that fetches a Discord channel by its id. Raises LookupError if the bot has no access to it."""

_MOST = 50_000
_PAGE = 100
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
"""Seconds between attempts to read a history. The longest pause is short because the channel is not
ready while a history is unread; the rate limiter keeps to the platform's limits anyway."""
_LOADING_SECONDS = 20.0
_KEPT_RAW = 64_000
_TITLE = 80
MISFITS = (msgspec.ValidationError, ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""Errors that reading an invalid event raises."""
_BATCH = 50
_SAVED_EVERY = 100
_AGAIN = 0.5
_SPEECH = ("MESSAGE_CREATE", "MESSAGE_UPDATE")
_DELETED = ("MESSAGE_DELETE", "MESSAGE_DELETE_BULK")
_PENDING_SECONDS = 30.0
MOST_WAITING = 20_000


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


class History:
    """History reader on top of the API. ``problem`` names the history that could not be read yet; it is empty
    otherwise.

    A history is retried until Discord returns it or refuses it permanently, first after ``pause`` seconds,
    then with increasing pauses.
    """

    def __init__(self, api: Api, pause: float = _SHORTEST_PAUSE) -> None:
        self.problem = ""
        self._api = api
        self._backoff = Backoff(pause, _LONGEST_PAUSE)

    async def after(self, room: str, floor: int) -> AsyncIterator[list[Any]]:
        """Yield the messages after an id in batches, oldest first; none if the bot has no access to the
        chat."""
        while True:
            told = await self._portion(room, floor)
            if told:
                yield told
            newest = max((_id_of(message) for message in told), default=0)
            if len(told) < _PAGE or newest <= floor:
                return
            floor = newest

    async def _portion(self, room: str, floor: int) -> list[Any]:
        failures = 0
        while True:
            pause = self._backoff.pause(failures + 1)
            try:
                told = await self._api.call(
                    "GET", MESSAGES, query={"after": str(floor), "limit": _PAGE}, channel_id=room
                )
                if not isinstance(told, list):  # as an empty page it would lose the messages in it
                    raise Broken("an answer that is no list")
            except Refused as refused:
                if refused.status != 401:
                    log.info("a room cannot be read", room=room, reason=str(refused))
                    self.problem = ""
                    return []
                reason = str(refused)
            except Later as later:
                reason, pause = str(later), later.seconds
            except (Broken, aiohttp.ClientError, OSError) as error:
                reason = str(error) or type(error).__name__
            else:
                self.problem = ""
                return sorted(cast("list[Any]", told), key=_id_of)
            failures += 1
            if failures > 1:
                if not self.problem:
                    log.warning("what was missed cannot be read yet", room=room, reason=reason)
                self.problem = f"what was missed cannot be read yet in {room}: {reason}"
            await asyncio.sleep(pause)


class Reader:
    """Reader for the events of one bot."""

    def __init__(self, api: Api, rooms: Rooms, places: Places, view: View) -> None:
        self.view = view
        self._api = api
        self._rooms = rooms
        self._places = places

    async def message(self, data: Any, *, room: Room | None = None) -> InboundMessage | None:
        """Return a new message; None if it needs no answer. Raises MISFITS."""
        said = msgspec.structs.replace(read(data, Message), edited_timestamp=None)
        self._places.note(said.channel_id, said.id)
        if said.author.id == self.view.account:
            self._rooms.join(said.channel_id)
        return await self._inbound(said, room)

    async def past(self, data: Any, room: Room) -> list[InboundMessage]:
        """A message of a room's history, and its new wording if it was changed; none when it needs no answer.

        They go together: then what still tells of an older wording tells nothing new. Raises MISFITS.
        """
        found = [await self.message(data, room=room), await self.changed(data, room=room)]
        return [message for message in found if message is not None]

    async def changed(self, data: Any, *, room: Room | None = None) -> InboundMessage | None:
        """Return an edited message; None if it needs no new answer. Raises MISFITS."""
        if self.view.options.edits == "ignore" or not isinstance(data, dict) or "author" not in data:
            return None
        said = read(data, Message)
        # Without this time no user edited it: Discord added a link preview, or opened a thread.
        return None if said.edited_timestamp is None else await self._inbound(said, room)

    def removed(self, data: Any) -> list[Withdrawal]:
        """Return the deleted messages, including those that were not for the bot. Raises MISFITS."""
        gone = read(data, Deleted)
        keys = (*gone.ids, *(() if gone.id is None else (gone.id,)))
        return [Withdrawal(self.view.account, key) for key in keys]

    def rejected(self, key: str, raw: object, why: object) -> Rejected:
        """Return an event that could not be read, for quarantine."""
        if not isinstance(raw, str):
            try:
                raw = msgspec.json.encode(raw).decode()
            except (TypeError, ValueError, RecursionError):
                raw = repr(raw)[:_KEPT_RAW]
        log.warning("an event could not be read", name=key, reason=_sound(str(why))[:200])
        return Rejected(self.view.account, key, _sound(raw)[:_KEPT_RAW], _sound(str(why))[:1000])

    async def _inbound(self, said: Message, room: Room | None) -> InboundMessage | None:
        view = self.view
        if not parse.is_speech(said, view.account):
            return None
        if room is None:
            room = await self._rooms.of(said.channel_id, said.guild_id, said.channel_type, view.account)
        if not parse.is_meant(said, room, view):
            return None
        parts, audio = await self._files(said.attachments)
        message = parse.inbound(said, room, view, parts, audio)
        if not (message.text or message.parts or message.audio):
            return None
        if message.address.thread == said.id:
            self._places.titles.put(said.id, " ".join(message.text.split())[:_TITLE].strip())
        return message

    async def _files(self, attachments: Sequence[Attachment]) -> tuple[list[Part], Audio | None]:
        """What hangs on a message. What cannot be had is named."""
        parts: list[Part] = []
        audio: Audio | None = None
        for got in await asyncio.gather(*map(self._file, attachments)):
            if isinstance(got, Audio):
                audio = audio or got
            else:
                parts.append(got)
        return parts, audio

    async def _file(self, attachment: Attachment) -> Part | Audio:
        view, why = self.view.options, ""
        if attachment.size > view.file_bytes:
            why = f"it is larger than {view.file_bytes} bytes"
        elif not is_ours(attachment.url, view.api_base_url):
            why = "it does not lie with Discord"
        else:
            try:
                async with asyncio.timeout(_LOADING_SECONDS):
                    data = await self._api.download(attachment.url)
                if len(data) <= view.file_bytes:
                    return received(attachment, data)
                why = f"it is larger than {view.file_bytes} bytes"
            except (Refused, Later, Broken, aiohttp.ClientError, OSError) as error:
                why = f"it could not be loaded ({type(error).__name__})"
        named = received(attachment, b"")
        name = named.path if isinstance(named, FilePart) else attachment.filename
        return FilePart(name, f"[This file was not read: {why}.]")


def _sound(text: str) -> str:
    """Return a text that every database accepts."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


class Event(Struct, frozen=True):
    """A received event. ``seq`` is its number in the session.

    For an event that is processed outside of the ordered stream, ``durable`` is done when it is stored.
    """

    name: str
    data: Any
    seq: int | None
    durable: asyncio.Future[None] | None = None


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
