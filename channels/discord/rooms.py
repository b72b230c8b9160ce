"""Knowledge of servers: chats and roles with their names, the roles of users, and earlier messages."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
import structlog

from channels.discord.api import Api, Refused, ServerFailure
from channels.discord.delivery import MESSAGE, MESSAGES
from channels.discord.files import safe_name
from channels.discord.parse import (
    COMMAND_ANSWER,
    DEFAULT,
    MENU_ANSWER,
    REPLY,
    THREAD_STARTER,
    THREADS,
    BotProfile,
    Channel,
    Chat,
    Guild,
    GuildRole,
    Named,
    Posted,
    Role,
    chat_of,
    optional,
    read,
    readable,
    sender_of,
)
from gateway.channel import Earlier, InboundMessage

log = structlog.get_logger("trunkline.discord")

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")
_MAX_CHATS = 50_000
_MAX_USERS = 20_000
_MAX_GUILDS = 10
"""Servers per user whose roles are remembered."""
_ROLES_SECONDS = 300.0
"""Time after which the roles of a user count as unknown."""
_HISTORY_PAGE = 100
_MAX_HISTORY = 500
_MAX_REPLIES = 10
"""Messages of a chain of replies that are read."""
_WRITTEN = (DEFAULT, REPLY, COMMAND_ANSWER, MENU_ANSWER)
"""Types of messages that users and bots write."""


def _put(values: OrderedDict[K, V], key: K, value: V, most: int) -> V:
    """Add or replace a value; beyond ``most`` values the one that was put longest ago is removed."""
    values[key] = value
    values.move_to_end(key)
    while len(values) > most:
        values.popitem(last=False)
    return value


class Chats:
    """Cache of chats and of the names of roles, filled from events.

    ``fetch`` returns Discord's description of a chat, ``fetch_guild`` that of a server with its channels and
    roles. Both raise LookupError if the bot has no access.
    """

    def __init__(
        self, fetch: Callable[[str], Awaitable[Any]], fetch_guild: Callable[[str], Awaitable[Any]]
    ) -> None:
        self._fetch = fetch
        self._fetch_guild = fetch_guild
        self._chats: OrderedDict[str, Chat] = OrderedDict()
        self._roles: OrderedDict[str, str] = OrderedDict()
        self.own_roles: set[str] = set()
        """Roles that Discord made for the bot."""
        self._guilds: set[str] = set()
        self._loading = asyncio.Lock()

    def put(self, chat: Chat) -> Chat:
        """Add or replace a chat. A thread that the bot joined stays joined, and a known name is kept."""
        known = self._chats.get(chat.id)
        if known is not None:
            chat = msgspec.structs.replace(
                chat,
                joined=chat.joined or known.joined,
                guild=chat.guild or known.guild,
                name=chat.name or known.name,
            )
        return _put(self._chats, chat.id, chat, _MAX_CHATS)

    def put_guild(self, guild: Guild, account: str) -> None:
        """Add the channels, threads and roles of a server."""
        self._guilds.add(guild.id)
        for role in guild.roles:
            self._put_role(role, account)
        for channel in (*guild.channels, *guild.threads):
            # Discord leaves out the server's id in the data of the server.
            self.put(msgspec.structs.replace(chat_of(channel, account), guild=guild.id))

    def known(self, key: str) -> Chat | None:
        """Return a chat of the cache; None for an unknown one."""
        return self._chats.get(key)

    def name(self, kind: Named, key: str) -> str:
        """Return the name of a role or of a channel; empty for an unknown one."""
        if kind == "role":
            return self._roles.get(key, "")
        chat = self._chats.get(key)
        return "" if chat is None else chat.name

    def join(self, key: str) -> None:
        """Record that the bot joined a thread; other chats stay unchanged."""
        chat = self._chats.get(key)
        if chat is not None and chat.kind == "thread":
            self.put(msgspec.structs.replace(chat, joined=True))

    def leave(self, key: str) -> None:
        """Record that the bot is no longer a member of a thread."""
        chat = self._chats.get(key)
        if chat is not None:
            self._chats[key] = msgspec.structs.replace(chat, joined=False)

    async def resolve(self, key: str, guild: str | None, kind: int | None, account: str) -> Chat:
        """Return the chat of a message, which names its server and perhaps the type of its channel.

        A resumed session does not repeat the data of servers, which is then fetched once for each server. An
        unknown thread is fetched; one that cannot be fetched counts as a channel.
        """
        if guild is None:
            return Chat(key, "dm")
        if guild not in self._guilds:
            # Messages are read concurrently; the others wait for the names, too.
            async with self._loading:
                await self._load(guild, account)
        chat = self._chats.get(key)
        if chat is not None:
            return chat
        if kind is not None and kind not in THREADS:
            return self.put(Chat(key, "channel", guild=guild))
        try:
            chat = chat_of(read(await self._fetch(key), Channel), account)
        except (LookupError, msgspec.ValidationError):
            return Chat(key, "channel", guild=guild)
        return self.put(msgspec.structs.replace(chat, guild=guild))

    async def guild_of(self, key: str) -> str | None:
        """Return the server of a chat. Raises LookupError if the bot has no access to an unknown one."""
        chat = self._chats.get(key)
        return read(await self._fetch(key), Channel).guild_id if chat is None else chat.guild

    def apply_event(self, name: str, data: Mapping[str, Any], account: str) -> None:
        """Update the cache from an event about channels, threads or roles. Raises msgspec.ValidationError."""
        if name in ("CHANNEL_CREATE", "CHANNEL_UPDATE", "THREAD_CREATE", "THREAD_UPDATE"):
            self.put(chat_of(read(data, Channel), account))
        elif name in ("CHANNEL_DELETE", "THREAD_DELETE"):
            self._chats.pop(read(data, Channel).id, None)
        elif name == "THREAD_LIST_SYNC":
            for thread in read(data.get("threads", ()), tuple[Channel, ...]):
                self.put(chat_of(thread, account))
        elif name in ("GUILD_ROLE_CREATE", "GUILD_ROLE_UPDATE"):
            self._put_role(read(data, GuildRole).role, account)

    def _put_role(self, role: Role, account: str) -> None:
        _put(self._roles, role.id, role.name, _MAX_CHATS)
        if role.tags.bot_id == account:
            self.own_roles.add(role.id)

    async def _load(self, guild: str, account: str) -> None:
        if guild in self._guilds:
            return
        try:
            self.put_guild(read(await self._fetch_guild(guild), Guild), account)
        except (LookupError, msgspec.ValidationError) as error:
            log.info("the channels and roles of a server are unknown", guild=guild, reason=str(error))
            # Only names are missing without it, so it is tried once.
            self._guilds.add(guild)


async def concurrently(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Make calls at the same time, and return their results in order.

    The first error ends the other calls. It is raised itself, not in a group, so that callers can catch it.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            begun = [tasks.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in begun]


class Roles:
    """Roles of users as Discord confirmed them, by user and server, for at most five minutes.

    ``fetch`` returns the roles of a user on a server; none for a user who is not a member. ``clock`` is a
    monotonic clock.
    """

    def __init__(
        self,
        fetch: Callable[[str, str], Awaitable[Collection[str]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._confirmed: OrderedDict[str, dict[str, tuple[float, frozenset[str]]]] = OrderedDict()

    def note(self, guild: str, user: str, roles: Iterable[str], age: float = 0) -> None:
        """Record the roles that a user had on a server ``age`` seconds ago, unless newer ones are known."""
        at = self._clock() - max(0.0, age)
        known = self._fresh(user)
        if guild not in known or known[guild][0] <= at:
            known[guild] = (at, frozenset(roles))
        while len(known) > _MAX_GUILDS:
            del known[min(known, key=lambda key: known[key][0])]
        _put(self._confirmed, user, known, _MAX_USERS)

    def of(self, user: str) -> frozenset[str]:
        """Return the roles of a user on all servers that were confirmed in the last five minutes."""
        return frozenset[str]().union(*(roles for _, roles in self._fresh(user).values()))

    async def refresh(self, user: str, guilds: Iterable[str]) -> None:
        """Fetch the roles of a user on servers where they are not known. Raises the errors of ``fetch``."""
        known = self._fresh(user)
        await concurrently(self._confirm(guild, user) for guild in guilds if guild not in known)

    async def _confirm(self, guild: str, user: str) -> None:
        began = self._clock()
        roles = await self._fetch(guild, user)
        self.note(guild, user, roles, self._clock() - began)

    def _fresh(self, user: str) -> dict[str, tuple[float, frozenset[str]]]:
        since = self._clock() - _ROLES_SECONDS
        known = self._confirmed.get(user, {})
        return {guild: found for guild, found in known.items() if found[0] > since}


class Recall:
    """Reader of the messages before a message, for a new session. Its calls raise Refused and UNREACHABLE."""

    def __init__(self, api: Api, bot: BotProfile) -> None:
        self._api = api
        self._bot = bot

    async def history(self, message: InboundMessage, limit: int) -> Sequence[Earlier]:
        """Return the messages of the thread or the chain of replies before a message, oldest first.

        In a thread, the message that it was opened on is always the first one.
        """
        limit = min(limit, _MAX_HISTORY)
        if limit < 1 or message.original == message.written_in:  # nothing is before the first one of a post
            return ()
        if message.written_in is not None:
            found = await self._thread(message.address.chat, message.written_in, message.original, limit)
        elif message.in_reply_to is not None:
            found = await self._replies(message.address.chat, message.in_reply_to, min(limit, _MAX_REPLIES))
        else:
            return ()
        return [earlier for posted in found if (earlier := self._earlier(posted)) is not None]

    async def _thread(self, parent: str, thread: str, before: str, limit: int) -> Sequence[Posted]:
        newest: list[Posted] = []
        starter: Posted | None = None
        left, complete = limit, False
        while left > 0 and not complete:
            asked = min(left, _HISTORY_PAGE)
            count, batch = await self._page(thread, before, asked)
            complete = count < asked
            left -= count
            for posted in batch:
                if posted.type == THREAD_STARTER:
                    starter = posted.referenced_message
                else:
                    newest.append(posted)
            oldest = min((int(posted.id) for posted in batch), default=0)
            complete = complete or not 0 < oldest < int(before)
            before = str(oldest)
        if starter is None and not complete:
            starter = await self._starter(parent, thread)
        newest.sort(key=lambda posted: int(posted.id))
        if starter is None:
            return newest
        return [starter, *newest[max(0, len(newest) - limit + 1) :]]

    async def _starter(self, parent: str, thread: str) -> Posted | None:
        """Return the message that a thread was opened on, which has its id; that of a post is in the post."""
        for chat in (parent, thread):
            try:
                found = await self._message(chat, thread)
            except Refused as refused:
                log.debug("no message that the thread was opened on", chat=chat, reason=str(refused))
            else:
                if found is not None:
                    return found
        return None

    async def _replies(self, chat: str, key: str, limit: int) -> Sequence[Posted]:
        found: list[Posted] = []
        following: str | None = key
        while following is not None and len(found) < limit:
            posted = await self._message(chat, following)
            following = None
            # Discord returns a message with the one that it replies to.
            while posted is not None and len(found) < limit:
                found.append(posted)
                reference = None if posted.is_forward else posted.message_reference
                following = None if reference is None else reference.message_id
                posted = posted.answered
        return found[::-1]

    async def _page(self, chat: str, before: str, limit: int) -> tuple[int, list[Posted]]:
        """Return the number of the messages before an id, and those that are valid."""
        response = await self._api.call(
            "GET", MESSAGES, query={"before": before, "limit": limit}, channel_id=chat
        )
        if not isinstance(response, list):
            raise ServerFailure("the response is not a list")
        listed = cast("list[Any]", response)
        valid = [posted for one in listed if (posted := optional(one, Posted, None)) is not None]
        return len(listed), valid

    async def _message(self, chat: str, key: str) -> Posted | None:
        """Return a message; None if it was deleted."""
        try:
            response = await self._api.call("GET", MESSAGE, channel_id=chat, message_id=key)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise
        return optional(response, Posted, None)

    def _earlier(self, posted: Posted) -> Earlier | None:
        """Convert a message; None for one of Discord itself or without content."""
        own = posted.author.id == self._bot.account
        text = readable(posted, self._bot)
        files = tuple(safe_name(attachment.filename) for attachment in posted.attachments)
        if posted.type not in _WRITTEN or not (text or files):
            return None
        return Earlier(
            key=posted.id,
            sender=sender_of(posted.author),
            text=text,
            at=posted.sent_at,
            files=files,
            own=own,
            bot=not own and (posted.author.bot or posted.webhook_id is not None),
        )
