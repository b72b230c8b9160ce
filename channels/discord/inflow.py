"""Intake of the gateway connection's events: makes messages durable, in order, with the read position.

The read position and the rest of a bot's state survive a restart. The position never passes an event that is
not durable. After a session that could not be resumed, the messages of the gap are read from the chats'
histories; until that is done, no read position is stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar, cast

import msgspec
import structlog
from msgspec import Struct

from channels.discord import parse
from channels.discord.api import UNREACHABLE, Api, RateLimited, Refused, ServerFailure
from channels.discord.delivery import MESSAGES, Delivery
from channels.discord.files import may_download, received, safe_name
from channels.discord.parse import (
    EPOCH_MS,
    FORUMS,
    Attachment,
    BotProfile,
    Chat,
    Deleted,
    Guild,
    GuildId,
    Message,
    Pointed,
    Reaction,
    Ready,
    read,
    snowflake,
)
from channels.discord.rooms import Chats, Roles, concurrently
from gateway import FilePart, Part, now_ms
from gateway.channel import (
    Attention,
    Audio,
    Backoff,
    Cursor,
    Feedback,
    InboundMessage,
    OverloadedError,
    Receive,
    Rejected,
    Signal,
    Withdrawal,
)

log = structlog.get_logger("trunkline.discord")

T = TypeVar("T")
PARSE_ERRORS = (
    *(msgspec.ValidationError, ValueError, TypeError, LookupError, AttributeError, OverflowError),
    RecursionError,
)
"""Errors that parsing an invalid event raises."""
MAX_QUEUED = 20_000
"""Events in the queue at which the connection is closed; a resumed session repeats the others."""

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
_CHAT_EVENTS = ("CHANNEL_", "THREAD_", "GUILD_ROLE_")
_DELETE_EVENTS = ("MESSAGE_DELETE", "MESSAGE_DELETE_BULK")
_REACTION_EVENTS = "MESSAGE_REACTION_"
_GUILDS_SECONDS = 30.0
"""Seconds to wait for the data of all servers after a login; unavailable servers send theirs later."""
_MAX_FILES = 20
"""Files that are read per message, with those of the messages that it points at."""
SESSION, BUDGET, COMMANDS, LAYOUT = "", "identify", "commands", "shards"
DM_PREFIX, _SHARD_PREFIX = "dm:", "shard:"
"""Shards of a bot's cursors; that of a direct-message channel has the channel's id after the prefix.

The read position of a bot that never had several shards is that of ``SESSION``.
"""

_MARGIN_MS = 60_000
_MAX_LOGINS, _LOGINS_PER_DAY, _DAY_MS = 100.0, 850.0, 86_400_000
"""Size of the login budget and its growth: at most 950 logins in 24 hours, below Discord's 1000."""
_USUAL_LOGINS = 1000
_LOGIN_INTERVAL_MS = 5_000


class Position(Struct, frozen=True, array_like=True):
    """Gateway session to resume, its last stored event (``seq``) and its URL.

    ``seen`` is the greatest message id up to which all messages are stored; 0 for a bot that never ran.
    """

    session: str | None = None
    seq: int | None = None
    url: str | None = None
    seen: int = 0

    @property
    def resumable(self) -> bool:
        """Return whether there is a session to resume."""
        return self.session is not None and self.seq is not None

    @property
    def floor(self) -> int:
        """Return the message id after which histories are read again when the session cannot be resumed.

        It is one minute before ``seen``, because messages do not arrive strictly in the order of their ids.
        """
        return max(0, self.seen - (_MARGIN_MS << 22))


class LoginBudget(Struct, frozen=True, array_like=True):
    """Budget of logins. After 1000 in 24 hours Discord ends all sessions and resets the bot token.

    ``left`` is the number of logins left at the Unix time ``at`` (ms); it grows continuously. An ``at`` in
    the future, from a clock that was ahead, counts as now. ``total`` is the number that Discord allows in 24
    hours: more than 1000 for a bot with very many shards.
    """

    left: float = _MAX_LOGINS
    at: int = 0

    def after(self, now: int, total: int = _USUAL_LOGINS) -> LoginBudget:
        """Return the budget at the Unix time ``now`` (ms)."""
        scale = max(1.0, total / _USUAL_LOGINS)
        gained = max(0, now - self.at) * scale * _LOGINS_PER_DAY / _DAY_MS
        return LoginBudget(min(scale * _MAX_LOGINS, self.left + gained), now)

    def wait(self, now: int, total: int = _USUAL_LOGINS, *, last: int | None = None) -> float:
        """Return the seconds until a login is allowed, five after ``last``, which is ``at`` by default."""
        interval = max(0, min(self.at if last is None else last, now) + _LOGIN_INTERVAL_MS - now)
        per_day = max(1.0, total / _USUAL_LOGINS) * _LOGINS_PER_DAY
        refill = max(0.0, 1 - self.after(now, total).left) * _DAY_MS / per_day
        return max(interval, refill) / 1000

    def spend(self, now: int, total: int = _USUAL_LOGINS) -> LoginBudget:
        """Return the budget after one login."""
        budget = self.after(now, total)
        return LoginBudget(budget.left - 1, budget.at)


class Layout(Struct, frozen=True, array_like=True):
    """Division of a bot's servers among shards. Each change of their number begins a new ``generation``.

    ``seen`` is the ``Position.seen`` of each shard of the generation before.
    """

    shards: int = 1
    generation: int = 0
    seen: tuple[int, ...] = ()

    def key(self, shard: int) -> str:
        """Return the shard of the cursor of a read position."""
        return f"{_SHARD_PREFIX}{self.generation}:{shard}" if self.generation else SESSION

    def floor(self, guild: str | None) -> int:
        """Return up to which message id the generation before stored a server (None: direct messages)."""
        if not self.seen:
            return 0
        return Position(seen=self.seen[(int(guild or 0) >> 22) % len(self.seen)]).floor


class StoredState:
    """Stored state of one shard of a bot. ``account`` is the bot's user id."""

    def __init__(self, cursors: Iterable[Cursor], account: str, shard: int = 0) -> None:
        self.account = account
        self._shard = shard
        self._cursors = [cursor for cursor in cursors if cursor.account == account]
        self._values = {c.shard: c.value for c in self._cursors}
        self.layout = _stored(self._values.get(LAYOUT), Layout)

    def of(self, shard: int) -> StoredState:
        """Return the state of another shard."""
        return StoredState(self._cursors, self.account, shard)

    @property
    def position(self) -> Position:
        """Return the read position; an empty one if none is stored.

        If the number of shards has changed since, there is no session to resume, and ``seen`` is the least
        one of the former shards.
        """
        position = _stored(self._values.get(self.layout.key(self._shard)), Position)
        return position if position.seen else Position(seen=min(self.layout.seen, default=0))

    @property
    def budget(self) -> LoginBudget:
        """Return the login budget; a full one if none is stored."""
        return _stored(self._values.get(BUDGET), LoginBudget)

    @property
    def commands(self) -> str:
        """Return the hash of the commands that were registered last; empty if there were none."""
        return self._values.get(COMMANDS, "")

    @property
    def dms(self) -> set[str]:
        """Return the ids of the known direct-message channels, whose events only shard 0 receives."""
        if self._shard:
            return set()
        return {shard.removeprefix(DM_PREFIX) for shard in self._values if shard.startswith(DM_PREFIX)}

    def divided(self, shards: int) -> Layout:
        """Return the layout with another number of shards."""
        seen = [self.of(shard).position.seen for shard in range(self.layout.shards)]
        least = min(filter(None, seen), default=0)  # a shard without a position never ran
        known = tuple(one or least for one in seen) if least else ()
        return Layout(shards, self.layout.generation + 1, known)

    def cursor(self, value: Position | LoginBudget | Layout) -> Cursor:
        """Return the cursor that stores a value."""
        shard = BUDGET if isinstance(value, LoginBudget) else LAYOUT
        shard = self.layout.key(self._shard) if isinstance(value, Position) else shard
        return Cursor(self.account, msgspec.json.encode(value).decode(), shard)


def first_seen(now: int) -> int:
    """Return the ``seen`` of a new bot: its ``floor`` is now (ms), so that no older messages are read."""
    return max(0, now - EPOCH_MS + _MARGIN_MS) << 22


def _stored(value: str | None, kind: type[T]) -> T:
    if value is None:
        return kind()
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.DecodeError:
        return kind()


class Event(Struct, frozen=True):
    """Event of the gateway connection. ``seq`` is its number in the session.

    For an event that is processed outside of the queue, ``durable`` is done when that has ended.
    """

    name: str
    data: Any
    seq: int | None
    durable: asyncio.Future[None] | None = None


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
    """Conversion of a bot's events to the gateway's messages, with their files.

    ``attend`` returns the gateway's treatment of a message: files are downloaded only if it is answered.
    """

    def __init__(
        self,
        api: Api,
        chats: Chats,
        roles: Roles,
        delivery: Delivery,
        bot: BotProfile,
        attend: Callable[[InboundMessage], Attention],
        read_file: Callable[..., Awaitable[Part]],
    ) -> None:
        self.attend = attend
        self._bot = bot
        self._read_file = read_file
        self._api = api
        self._chats = chats
        self._roles = roles
        self._delivery = delivery

    async def message(self, data: Any, *, chat: Chat | None = None) -> InboundMessage | None:
        """Convert a new message; None if the gateway ignores it. Raises PARSE_ERRORS."""
        message = msgspec.structs.replace(read(data, Message), edited_timestamp=None)
        self._delivery.note(message.channel_id, message.id)
        if message.author.id == self._bot.account:
            self._chats.join(message.channel_id)
        self._note_roles(message)
        return await self._inbound(message, chat)

    async def edited(self, data: Any, *, chat: Chat | None = None) -> InboundMessage | None:
        """Convert an edited message; None if the gateway ignores it. Raises PARSE_ERRORS."""
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

    async def feedback(self, name: str, data: Any) -> list[Feedback]:
        """Convert the event ``name`` about reactions to a message. Raises PARSE_ERRORS."""
        reaction, account = read(data, Reaction), self._bot.account
        given = parse.feedback(name, reaction, self._bot)
        if given is None:
            return []
        # The address of an answer in a thread names the thread's channel.
        chat = await self._chats.resolve(reaction.channel_id, reaction.guild_id, None, account)
        return [msgspec.structs.replace(given, chat=chat.channel)]

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
        inbound, pointed = parse.inbound(message, chat, bot), parse.pointed(message, bot)
        if not (inbound.text or message.attachments or pointed or parse.mentions(message.content, bot)):
            return None
        attention = self.attend(inbound)
        if attention == "ignore":
            return None
        inbound = await self.with_files(inbound, message.attachments, pointed, read=attention == "answer")
        if inbound.address.thread == inbound.address.reply_to:
            self._delivery.titles.put(message.id, " ".join(inbound.text.split())[:_MAX_TITLE].strip())
        return inbound

    async def with_files(
        self,
        inbound: InboundMessage,
        attachments: Sequence[Attachment],
        pointed: Sequence[Pointed],
        *,
        read: bool,
        seconds: float = _DOWNLOAD_SECONDS,
    ) -> InboundMessage:
        """Add the files of a message and the messages that it points at; only their names without ``read``.

        The limits apply to all files together. Only the first voice message is heard.
        """
        found = [*attachments, *(file for other in pointed for file in other.attachments)]
        voice = next((file for file in found if file.is_voice), None)
        files: list[Part | Audio] = [FilePart(safe_name(file.filename)) for file in found]
        if read:
            wanted = (self._file(file, seconds, heard=file is voice) for file in found[:_MAX_FILES])
            files = [*await concurrently(wanted)]
            files += [_unread(file, f"there are more than {_MAX_FILES} files") for file in found[_MAX_FILES:]]
        own, others = files[: len(attachments)], iter(files[len(attachments) :])
        quotes = tuple(
            msgspec.structs.replace(other.quote, parts=_parts(islice(others, len(other.attachments))))
            for other in pointed
        )
        audio = next((file for file in files if isinstance(file, Audio)), None)
        # A recording that the message points at is heard as its own; the text beside it is a question then.
        pointed_at = audio is not None and audio not in own
        kind = "text" if audio is None or (pointed_at and inbound.text) else "audio"
        return msgspec.structs.replace(inbound, kind=kind, parts=_parts(own), quotes=quotes, audio=audio)

    def _note_roles(self, message: Message) -> None:
        if message.guild_id is not None and message.member is not None:
            age = (now_ms() - message.sent_at) / 1000
            self._roles.note(message.guild_id, message.author.id, message.member.roles, age)

    async def _file(self, attachment: Attachment, seconds: float, *, heard: bool) -> Part | Audio:
        """Download a file; if that is impossible, return a text with its name and the reason."""
        options = self._bot.options
        if attachment.is_voice and not heard:
            reason = "it is a voice message, and only the first one of a message is heard"
        elif attachment.size > options.file_bytes:
            reason = f"it is larger than {options.file_bytes} bytes"
        elif not may_download(attachment.url, options.api_base_url):
            reason = "it is not stored at Discord"
        else:
            try:
                async with asyncio.timeout(seconds):
                    data = await self._api.download(attachment.url)
                if len(data) <= options.file_bytes:
                    return await received(attachment, data, self._read_file)
                reason = f"it is larger than {options.file_bytes} bytes"
            except (Refused, *UNREACHABLE) as error:
                reason = f"the download failed ({type(error).__name__})"
        return _unread(attachment, reason)


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

    async def store_start(self, now: int) -> None:
        """Store the read position of a bot that has none: its first gap begins now, in Discord's ms."""
        if not self._seen:
            self._seen = first_seen(now)
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
        results = await concurrently(map(self._read, events))
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
            elif event.name.startswith(_REACTION_EVENTS):
                signals = await self._reader.feedback(event.name, event.data)
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
            case _ if name.startswith(_CHAT_EVENTS) and isinstance(data, dict):
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
        chats = [Chat(key, "dm") for key in sorted(self._dms)]
        await self._read_gap(chats, max(gap, self._state.layout.floor(None)))

    async def _add_guild(self, guild: Guild) -> None:
        """Add the channels of a server to the cache, and read the messages of the gap in them."""
        channels = [*guild.channels, *guild.threads]
        self._chats.put_guild(guild, self._state.account)
        gap = self._late_gaps.pop(guild.id, None) if self._gap is None else self._gap
        if gap is not None:
            gap = max(gap, self._state.layout.floor(guild.id))
            # The last "message" of a forum is its newest post, which is one of the threads.
            wanted = (c for c in channels if c.last_message_id is not None and c.type not in FORUMS)
            active = [c for c in wanted if int(c.last_message_id or 0) > gap]
            known = (self._chats.known(channel.id) for channel in active)
            await self._read_gap([chat for chat in known if chat is not None], gap)
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
        """Record that the bot was added to a thread, or removed from it."""
        account, thread = self._state.account, read(data["id"], str)
        if any(member.get("user_id") == account for member in data.get("added_members", ())):
            self._chats.join(thread)
        elif account in data.get("removed_member_ids", ()):
            self._chats.leave(thread)

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
        """Make the result of events durable with the read position.

        Without anything to store, the read position is stored every 100 events.
        """
        self._unsaved += 1
        if seq is not None and self._position.session is not None:
            self._position = msgspec.structs.replace(self._position, seq=seq)
        stored = any(self._reader.attend(message) == "answer" for message in messages)
        save = stored or rejected or signals or self._unsaved >= _SAVE_EVERY
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


def _parts(files: Iterable[Part | Audio]) -> tuple[Part, ...]:
    return tuple(file for file in files if not isinstance(file, Audio))


def _unread(attachment: Attachment, reason: str) -> FilePart:
    return FilePart(safe_name(attachment.filename), f"[This file was not read: {reason}.]")


def _storable(text: str) -> str:
    """Replace the characters that a database does not accept: lone surrogates and NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
