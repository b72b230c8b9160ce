"""Intake of the gateway connection's events: makes messages durable, in order, with the read position.

The read position never passes an event that is not durable. After a session that could not be resumed, the
messages of the gap are read from the chats' histories; until that is done, no read position is stored.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
import structlog
from msgspec import Struct

from channels.discord import parse
from channels.discord.api import UNREACHABLE, Api, RateLimited, Refused, ServerFailure
from channels.discord.cursor import DM_PREFIX, Position, StoredState, first_seen
from channels.discord.delivery import MESSAGES, Delivery
from channels.discord.files import may_download, received
from channels.discord.parse import (
    THREADS,
    Attachment,
    BotProfile,
    Channel,
    Chat,
    Deleted,
    Guild,
    GuildId,
    Message,
    Ready,
    chat_of,
    read,
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

PARSE_ERRORS = (msgspec.ValidationError, ValueError, TypeError, LookupError, AttributeError, OverflowError)
"""Errors that parsing an invalid event raises."""
MAX_QUEUED = 20_000
"""Events in the queue at which the connection is closed; a resumed session repeats the others."""

_MAX_CHATS = 50_000
_HISTORY_PAGE = 100
_HISTORY_BACKOFF = Backoff(0.5, 10)
"""The longest pause is short because the channel is unhealthy while a history is unread; the rate limiter
keeps to Discord's limits anyway."""
_DOWNLOAD_SECONDS = 20.0
_MAX_RAW = 64_000
_MAX_TITLE = 80
_BATCH = 50
_SAVE_EVERY = 100
"""Events without a message after which the read position is stored."""
_OVERLOAD_SECONDS = 0.5
_MESSAGE_EVENTS = ("MESSAGE_CREATE", "MESSAGE_UPDATE")
_DELETE_EVENTS = ("MESSAGE_DELETE", "MESSAGE_DELETE_BULK")
_GUILDS_SECONDS = 30.0
"""Seconds to wait for the data of all servers after a login; unavailable servers send theirs later."""


class Event(Struct, frozen=True):
    """Event of the gateway connection. ``seq`` is its number in the session.

    For an event that is processed outside of the queue, ``durable`` is done when that has ended.
    """

    name: str
    data: Any
    seq: int | None
    durable: asyncio.Future[None] | None = None


class Chats:
    """Cache of chats, filled from events.

    ``fetch`` returns Discord's description of a chat. It raises LookupError if the bot has no access to it.
    """

    def __init__(self, fetch: Callable[[str], Awaitable[Any]]) -> None:
        self._fetch = fetch
        self._chats: OrderedDict[str, Chat] = OrderedDict()

    def put(self, chat: Chat) -> Chat:
        """Add or replace a chat. A thread that the bot joined stays joined."""
        known = self._chats.get(chat.id)
        if known is not None and known.joined and not chat.joined:
            chat = msgspec.structs.replace(chat, joined=True)
        self._chats[chat.id] = chat
        self._chats.move_to_end(chat.id)
        while len(self._chats) > _MAX_CHATS:
            self._chats.popitem(last=False)
        return chat

    def known(self, key: str) -> Chat | None:
        """Return a chat of the cache; None for an unknown one."""
        return self._chats.get(key)

    def join(self, key: str) -> None:
        """Record that the bot joined a thread; other chats stay unchanged."""
        chat = self._chats.get(key)
        if chat is not None and chat.kind == "thread":
            self.put(msgspec.structs.replace(chat, joined=True))

    async def resolve(self, key: str, guild: str | None, kind: int | None, account: str) -> Chat:
        """Return the chat of a message, which names its server and perhaps the type of its channel.

        An unknown thread is fetched; one that cannot be fetched counts as a channel.
        """
        if guild is None:
            return Chat(key, "dm")
        chat = self._chats.get(key)
        if chat is not None:
            return chat
        if kind is not None and kind not in THREADS:
            return self.put(Chat(key, "channel"))
        try:
            return self.put(chat_of(read(await self._fetch(key), Channel), account))
        except (LookupError, msgspec.ValidationError):
            return Chat(key, "channel")

    def apply_event(self, name: str, data: Mapping[str, Any], account: str) -> None:
        """Update the cache from an event about channels or threads. Raises msgspec.ValidationError."""
        if name in ("CHANNEL_CREATE", "CHANNEL_UPDATE", "THREAD_CREATE", "THREAD_UPDATE"):
            self.put(chat_of(read(data, Channel), account))
        elif name in ("CHANNEL_DELETE", "THREAD_DELETE"):
            self._chats.pop(read(data, Channel).id, None)
        elif name == "THREAD_LIST_SYNC":
            for thread in read(data.get("threads", ()), tuple[Channel, ...]):
                self.put(chat_of(thread, account))


class History:
    """Reader of chat histories. ``problem`` names the history that is still unread after two attempts.

    A read is repeated with backoff until Discord returns the history or refuses it; a rejected token counts
    as temporary.
    """

    def __init__(self, api: Api) -> None:
        self.problem = ""
        self._api = api

    async def after(self, chat: str, message: int) -> AsyncIterator[list[Any]]:
        """Yield the messages after an id in batches, oldest first; none if Discord refuses the history."""
        while True:
            batch = await self._batch(chat, message)
            if batch:
                yield batch
            newest = max(map(_id_of, batch), default=0)
            if len(batch) < _HISTORY_PAGE or newest <= message:
                return
            message = newest

    async def _batch(self, chat: str, after: int) -> list[Any]:
        failures = 0
        while True:
            pause = _HISTORY_BACKOFF.pause(failures + 1)
            try:
                response = await self._api.call(
                    "GET", MESSAGES, query={"after": str(after), "limit": _HISTORY_PAGE}, channel_id=chat
                )
                if not isinstance(response, list):  # taken for an empty batch, it would lose messages
                    raise ServerFailure("the response is not a list")
            except Refused as refused:
                if refused.status != 401:
                    log.info("Discord refused the history of a chat", chat=chat, reason=str(refused))
                    self.problem = ""
                    return []
                reason = str(refused)
            except RateLimited as limited:
                reason, pause = str(limited), limited.seconds
            except UNREACHABLE as error:
                reason = str(error) or type(error).__name__
            else:
                self.problem = ""
                return sorted(cast("list[Any]", response), key=_id_of)
            failures += 1
            if failures > 1:
                if not self.problem:
                    log.warning("the history of a chat is unread; retrying", chat=chat, reason=reason)
                self.problem = f"the history of chat {chat} is unread: {reason}"
            await asyncio.sleep(pause)


class EventReader:
    """Conversion of a bot's events to the gateway's messages, with their files."""

    def __init__(self, api: Api, chats: Chats, delivery: Delivery, bot: BotProfile) -> None:
        self._bot = bot
        self._api = api
        self._chats = chats
        self._delivery = delivery

    async def message(self, data: Any, *, chat: Chat | None = None) -> InboundMessage | None:
        """Convert a new message; None if it needs no answer. Raises PARSE_ERRORS."""
        message = msgspec.structs.replace(read(data, Message), edited_timestamp=None)
        self._delivery.note(message.channel_id, message.id)
        if message.author.id == self._bot.account:
            self._chats.join(message.channel_id)
        return await self._inbound(message, chat)

    async def edited(self, data: Any, *, chat: Chat | None = None) -> InboundMessage | None:
        """Convert an edited message; None if it needs no new answer. Raises PARSE_ERRORS."""
        if self._bot.options.edits == "ignore" or not isinstance(data, dict) or "author" not in data:
            return None
        message = read(data, Message)
        # Without this time no user edited it: Discord added a link preview, or a thread was opened on it.
        return None if message.edited_timestamp is None else await self._inbound(message, chat)

    async def past(self, data: Any, chat: Chat) -> list[InboundMessage]:
        """Convert a message of a chat's history: the message, and its revision if it was edited.

        Both are needed: a late event of either is then a duplicate, not a new message. Raises PARSE_ERRORS.
        """
        found = [await self.message(data, chat=chat), await self.edited(data, chat=chat)]
        return [message for message in found if message is not None]

    def deleted(self, data: Any) -> list[Withdrawal]:
        """Convert the deletion of any messages, also of those not for the bot. Raises PARSE_ERRORS."""
        deleted = read(data, Deleted)
        keys = (*deleted.ids, *(() if deleted.id is None else (deleted.id,)))
        return [Withdrawal(self._bot.account, key) for key in keys]

    def rejected(self, key: str, raw: object, reason: object) -> Rejected:
        """Return an event that could not be parsed, for quarantine, and log it."""
        if not isinstance(raw, str):
            try:
                raw = msgspec.json.encode(raw).decode()
            except (TypeError, ValueError, RecursionError):
                raw = repr(raw)[:_MAX_RAW]
        log.warning("an event could not be parsed", name=key, reason=_storable(str(reason))[:200])
        return Rejected(self._bot.account, key, _storable(raw)[:_MAX_RAW], _storable(str(reason))[:1000])

    async def _inbound(self, message: Message, chat: Chat | None) -> InboundMessage | None:
        bot = self._bot
        if not parse.is_user_message(message, bot.account):
            return None
        if chat is None:
            chat = await self._chats.resolve(
                message.channel_id, message.guild_id, message.channel_type, bot.account
            )
        if not parse.should_answer(message, chat, bot):
            return None
        parts, audio = await self._files(message.attachments)
        inbound = parse.inbound(message, chat, bot, parts, audio)
        if not (inbound.text or inbound.parts or inbound.audio):
            return None
        if inbound.address.thread == message.id:
            self._delivery.titles.put(message.id, " ".join(inbound.text.split())[:_MAX_TITLE].strip())
        return inbound

    async def _files(self, attachments: Sequence[Attachment]) -> tuple[list[Part], Audio | None]:
        """Download the files of a message. Only the first voice message is kept."""
        parts: list[Part] = []
        audio: Audio | None = None
        for file in await asyncio.gather(*map(self._file, attachments)):
            if isinstance(file, Audio):
                audio = audio or file
            else:
                parts.append(file)
        return parts, audio

    async def _file(self, attachment: Attachment) -> Part | Audio:
        """Download a file; if that is impossible, return a text with its name and the reason."""
        options = self._bot.options
        if attachment.size > options.file_bytes:
            reason = f"it is larger than {options.file_bytes} bytes"
        elif not may_download(attachment.url, options.api_base_url):
            reason = "it is not stored at Discord"
        else:
            try:
                async with asyncio.timeout(_DOWNLOAD_SECONDS):
                    data = await self._api.download(attachment.url)
                if len(data) <= options.file_bytes:
                    return received(attachment, data)
                reason = f"it is larger than {options.file_bytes} bytes"
            except (Refused, *UNREACHABLE) as error:
                reason = f"the download failed ({type(error).__name__})"
        named = received(attachment, b"")
        name = named.path if isinstance(named, FilePart) else attachment.filename
        return FilePart(name, f"[This file was not read: {reason}.]")


class Inflow:
    """Queue of events. ``run`` processes them in order and makes them durable."""

    def __init__(
        self, receive: Receive, reader: EventReader, chats: Chats, history: History, state: StoredState
    ) -> None:
        self._receive = receive
        self._reader = reader
        self._chats = chats
        self._history = history
        self._state = state
        self._position = state.position
        self._dms = state.dms
        self._events: deque[Event] = deque()
        self._new_events = asyncio.Event()
        self._gap: int | None = None
        """Message id after which histories are read; None once the gap is filled."""
        self._late_gaps: dict[str, int] = {}
        """The same for servers whose data did not arrive in time."""
        self._awaited: set[str] = set()
        """Servers whose data is still to arrive after a login, at most until ``_awaited_until``."""
        self._awaited_until = 0.0
        self._seen = self._position.seen
        self._unsaved = 0

    @property
    def problem(self) -> str:
        """Return which history is unread; empty if there is none."""
        return self._history.problem

    @property
    def queued(self) -> int:
        """Return the number of events in the queue, without the batch that is processed now."""
        return len(self._events)

    async def store_start(self) -> None:
        """Store the read position of a bot that has none: its first gap begins now."""
        if not self._seen:
            self._seen = first_seen()
            self._position = Position(seen=self._seen)
            await self._receive(cursor=self._state.cursor(self._position))

    def put(self, event: Event) -> None:
        """Queue an event."""
        self._events.append(event)
        self._new_events.set()

    async def run(self) -> None:
        """Process events until cancelled. Raises the errors of ``receive``, except OverloadedError."""
        while True:
            if not self._events:
                self._new_events.clear()
                await self._new_events.wait()
            batch = [self._events.popleft() for _ in range(min(_BATCH, len(self._events)))]
            while batch:
                messages = _leading_messages(batch)
                if messages:
                    del batch[: len(messages)]
                    await self._process_messages(messages)
                else:
                    await self._process(batch.pop(0))

    async def _process_messages(self, events: Sequence[Event]) -> None:
        """Process consecutive messages together, so that their files are downloaded concurrently."""
        results = await asyncio.gather(*map(self._read, events))
        messages = [result for result in results if isinstance(result, InboundMessage)]
        rejected = [result for result in results if isinstance(result, Rejected)]
        for message in messages:
            await self._store_dm(message)
        seq = next((event.seq for event in reversed(events) if event.seq is not None), None)
        self._seen = max(self._seen, *(_id_of(event.data) for event in events))
        await self._commit(messages, rejected, seq)

    async def _read(self, event: Event) -> InboundMessage | Rejected | None:
        convert = self._reader.message if event.name == "MESSAGE_CREATE" else self._reader.edited
        try:
            return await convert(event.data)
        except PARSE_ERRORS as error:
            return self._reader.rejected(event.name, event.data, error)

    async def _process(self, event: Event) -> None:
        """Process an event other than a new or edited message."""
        rejected: list[Rejected] = []
        signals: Sequence[Signal] = ()
        if event.durable is not None:
            await asyncio.wait([event.durable])
            self._unsaved = _SAVE_EVERY
        try:
            if event.name in _DELETE_EVENTS:
                signals = self._reader.deleted(event.data)
            else:
                await self._apply(event.name, event.data)
        except PARSE_ERRORS as error:
            rejected.append(self._reader.rejected(event.name, event.data, error))
        await self._commit((), rejected, event.seq, signals)

    async def _apply(self, name: str, data: Any) -> None:
        """Apply an event about the session, a server or a chat; others are ignored. Raises PARSE_ERRORS."""
        match name:
            case "READY":
                await self._begin_session(read(data, Ready))
            case "GUILD_CREATE":
                await self._add_guild(read(data, Guild))
            case "GUILD_DELETE":
                self._awaited.discard(read(data, GuildId).id)
            case "THREAD_MEMBERS_UPDATE":
                self._join(cast("Mapping[str, Any]", data))
            case _ if name.startswith(("CHANNEL_", "THREAD_")) and isinstance(data, dict):
                self._chats.apply_event(name, cast("Mapping[str, Any]", data), self._state.account)
            case _:
                pass

    async def _begin_session(self, ready: Ready) -> None:
        """Begin a new session, which does not repeat earlier events: read the direct messages of the gap.

        The other messages of the gap are read when their server's data arrives.
        """
        gap = self._gap = Position(seen=self._seen).floor
        self._awaited = {guild.id for guild in ready.guilds}
        self._awaited_until = asyncio.get_running_loop().time() + _GUILDS_SECONDS
        self._position = Position(ready.session_id, None, ready.resume_gateway_url, self._seen)
        self._unsaved = _SAVE_EVERY
        log.info("reading the messages since the last session", direct_chats=len(self._dms))
        await self._read_gap([Chat(key, "dm") for key in sorted(self._dms)], gap)

    async def _add_guild(self, guild: Guild) -> None:
        """Add the channels of a server to the cache, and read the messages of the gap in them."""
        channels = [*guild.channels, *guild.threads]
        for channel in channels:
            self._chats.put(chat_of(channel, self._state.account))
        gap = self._late_gaps.pop(guild.id, None) if self._gap is None else self._gap
        if gap is not None:
            active = [c for c in channels if c.last_message_id is not None and int(c.last_message_id) > gap]
            await self._read_gap([chat_of(channel, self._state.account) for channel in active], gap)
        self._awaited.discard(guild.id)

    async def _read_gap(self, chats: Iterable[Chat], gap: int) -> None:
        for chat in chats:
            async for batch in self._history.after(chat.id, gap):
                messages: list[InboundMessage] = []
                rejected: list[Rejected] = []
                for data in batch:
                    try:
                        messages += await self._reader.past(data, chat)
                    except PARSE_ERRORS as error:
                        rejected.append(self._reader.rejected("history", data, error))
                await self._accept(messages, rejected, None)

    def _join(self, data: Mapping[str, Any]) -> None:
        if any(member.get("user_id") == self._state.account for member in data.get("added_members", ())):
            self._chats.join(read(data["id"], str))

    async def _store_dm(self, message: InboundMessage) -> None:
        """Store the chat of a direct message, because Discord does not list these chats."""
        address = message.address
        if not address.group and address.chat not in self._dms:
            await self._receive(
                cursor=Cursor(self._state.account, message.sender.id, DM_PREFIX + address.chat)
            )
            self._dms.add(address.chat)

    async def _commit(
        self,
        messages: Sequence[InboundMessage],
        rejected: Sequence[Rejected],
        seq: int | None,
        signals: Sequence[Signal] = (),
    ) -> None:
        """Make the result of events durable with the read position; an empty one only every 100 events."""
        self._unsaved += 1
        if seq is not None and self._position.session is not None:
            self._position = msgspec.structs.replace(self._position, seq=seq)
        save = messages or rejected or signals or self._unsaved >= _SAVE_EVERY
        cursor = self._cursor() if save else None
        if signals:
            await self._submit(cursor=cursor, signals=signals)
        else:
            await self._accept(messages, rejected, cursor)

    def _cursor(self) -> Cursor | None:
        """Return the read position to store; None while the gap is not filled or no session has begun."""
        if self._gap is not None and not self._awaits_guilds():
            self._late_gaps = dict.fromkeys(self._awaited, self._gap)
            self._gap = None
        if self._gap is not None or not self._position.resumable:
            return None
        self._unsaved = 0
        self._position = msgspec.structs.replace(self._position, seen=self._seen)
        return self._state.cursor(self._position)

    def _awaits_guilds(self) -> bool:
        return bool(self._awaited) and asyncio.get_running_loop().time() < self._awaited_until

    async def _accept(
        self, messages: Sequence[InboundMessage], rejected: Sequence[Rejected], cursor: Cursor | None
    ) -> None:
        """Submit messages and the read position together; if the gateway is overloaded, one by one.

        The read position is then submitted last, when all messages are durable.
        """
        if not (messages or rejected or cursor is not None):
            return
        try:
            await self._receive(*messages, cursor=cursor, rejected=rejected)
            return
        except OverloadedError as error:
            log.warning("the gateway is overloaded; retrying", reason=str(error))
        for message in messages:
            await self._submit(message)
        await self._submit(cursor=cursor, rejected=rejected)

    async def _submit(
        self,
        *messages: InboundMessage,
        cursor: Cursor | None = None,
        rejected: Sequence[Rejected] = (),
        signals: Sequence[Signal] = (),
    ) -> None:
        """Submit until the gateway is no longer overloaded."""
        while True:
            try:
                await self._receive(*messages, cursor=cursor, rejected=rejected, signals=signals)
            except OverloadedError:
                await asyncio.sleep(_OVERLOAD_SECONDS)
            else:
                return


def _leading_messages(events: Sequence[Event]) -> list[Event]:
    """Return the events of messages before the first other event."""
    found: list[Event] = []
    for event in events:
        if event.name not in _MESSAGE_EVENTS:
            break
        found.append(event)
    return found


def _id_of(data: Any) -> int:
    """Return the id of a message; 0 if it has no valid one."""
    try:
        return int(snowflake(data["id"]))
    except PARSE_ERRORS:
        return 0


def _storable(text: str) -> str:
    """Replace the characters that a database does not accept: lone surrogates and NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
