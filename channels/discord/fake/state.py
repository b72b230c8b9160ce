"""State of the fake: users, guilds, channels, messages, commands and interactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from gateway.testing.fake_platform import Changes, Clock

EPOCH = 1_420_070_400_000
"""Unix time at which the time in ids begins, 2015-01-01, in milliseconds."""


class Snowflakes:
    """Generator of ids. Each is greater than all before it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0

    def new(self) -> int:
        """Return a new id."""
        self._last = max(self._last + 1, at(self._clock.now()))
        return self._last


def at(seconds: float) -> int:
    """Return the smallest id of a time."""
    return (int(seconds * 1000) - EPOCH) << 22


def made(snowflake: int) -> float:
    """Return the time of an id, in seconds."""
    return ((snowflake >> 22) + EPOCH) / 1000


Permission = Literal[
    "MANAGE_CHANNELS",
    "ADD_REACTIONS",
    "VIEW_CHANNEL",
    "SEND_MESSAGES",
    "MANAGE_MESSAGES",
    "EMBED_LINKS",
    "ATTACH_FILES",
    "READ_MESSAGE_HISTORY",
    "MENTION_EVERYONE",
    "USE_APPLICATION_COMMANDS",
    "MANAGE_THREADS",
    "CREATE_PUBLIC_THREADS",
    "CREATE_PRIVATE_THREADS",
    "SEND_MESSAGES_IN_THREADS",
    "SEND_VOICE_MESSAGES",
]

BITS: Final[dict[Permission, int]] = {
    "MANAGE_CHANNELS": 1 << 4,
    "ADD_REACTIONS": 1 << 6,
    "VIEW_CHANNEL": 1 << 10,
    "SEND_MESSAGES": 1 << 11,
    "MANAGE_MESSAGES": 1 << 13,
    "EMBED_LINKS": 1 << 14,
    "ATTACH_FILES": 1 << 15,
    "READ_MESSAGE_HISTORY": 1 << 16,
    "MENTION_EVERYONE": 1 << 17,
    "USE_APPLICATION_COMMANDS": 1 << 31,
    "MANAGE_THREADS": 1 << 34,
    "CREATE_PUBLIC_THREADS": 1 << 35,
    "CREATE_PRIVATE_THREADS": 1 << 36,
    "SEND_MESSAGES_IN_THREADS": 1 << 38,
    "SEND_VOICE_MESSAGES": 1 << 46,
}

EVERYTHING: Final = sum(BITS.values())
MODERATION: Final = BITS["MANAGE_CHANNELS"] | BITS["MANAGE_MESSAGES"] | BITS["MANAGE_THREADS"]
INVITED: Final = EVERYTHING & ~MODERATION
"""Permissions of an invited bot: all except moderation."""


def bits(*names: Permission) -> int:
    """Return permissions as a number."""
    return sum(BITS[name] for name in set(names))


TEXT, DM, PUBLIC_THREAD, PRIVATE_THREAD, FORUM, MEDIA = 0, 1, 11, 12, 15, 16
"""Kinds of channels."""
FORUMS: Final = (FORUM, MEDIA)
"""Kinds of channels that have only posts, which are threads."""
THREADS: Final = (PUBLIC_THREAD, PRIVATE_THREAD)

DEFAULT, THREAD_CREATED, REPLY, COMMAND, THREAD_STARTER, CONTEXT_COMMAND = 0, 18, 19, 20, 21, 23
"""Kinds of messages."""

SUPPRESS_EMBEDS, HAS_THREAD, EPHEMERAL, LOADING = 1 << 2, 1 << 5, 1 << 6, 1 << 7
SUPPRESS_NOTIFICATIONS, VOICE_MESSAGE, COMPONENTS_V2 = 1 << 12, 1 << 13, 1 << 15
"""Flags of messages."""

Json = Mapping[str, Any]


def stamp(seconds: float) -> str:
    """Return a time as Discord writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")


class User(Struct, frozen=True):
    """User, or the bot."""

    id: int
    name: str
    bot: bool = False


class Role(Struct, frozen=True):
    """Role in a guild. The role @everyone has the guild's id."""

    id: int
    name: str
    permissions: int
    managed: bool = False


class Guild(Struct, frozen=True):
    """Guild (server) with its members; nicknames and given roles are by user id."""

    id: int
    name: str
    owner: int
    made: float
    roles: tuple[Role, ...] = ()
    members: tuple[int, ...] = ()
    nicks: Mapping[int, str] = {}
    given: Mapping[int, tuple[int, ...]] = {}


class ThreadState(Struct, frozen=True):
    """Fields of a channel that only a thread has. ``changed`` is when it was last archived or taken out."""

    made: float
    changed: float
    archived: bool = False
    locked: bool = False
    minutes: int = 4320
    count: int = 0
    total: int = 0
    members: tuple[int, ...] = ()


class Channel(Struct, frozen=True, kw_only=True):
    """Channel of a guild, thread, or direct chat with ``recipient``.

    ``denied`` are permissions that the bot lacks here.
    """

    id: int
    kind: int
    name: str = ""
    guild: int | None = None
    parent: int | None = None
    owner: int | None = None
    recipient: int | None = None
    topic: str | None = None
    slowmode: int = 0
    position: int = 0
    denied: int = 0
    last_message: int | None = None
    thread: ThreadState | None = None


class Attachment(Struct, frozen=True, kw_only=True):
    """File of a message. ``title`` is the original name, if the platform tidied it."""

    id: int
    filename: str
    data: bytes
    content_type: str
    title: str | None = None
    description: str | None = None
    width: int | None = None
    height: int | None = None
    duration_secs: float | None = None
    waveform: str | None = None


class Emoji(Struct, frozen=True):
    """Emoji of a reaction: a character, or one of a guild with an id."""

    name: str
    id: int | None = None


class Reaction(Struct, frozen=True):
    """Reaction to a message, with the users who added it."""

    emoji: Emoji
    users: tuple[int, ...]


class Mentions(Struct, frozen=True):
    """Users and roles that a text mentions or pings."""

    users: tuple[int, ...] = ()
    roles: tuple[int, ...] = ()
    everyone: bool = False

    def __bool__(self) -> bool:
        return bool(self.users or self.roles or self.everyone)


class Reference(Struct, frozen=True):
    """Message that another one replies to or, with ``kind`` 1, forwards; it may be deleted."""

    message: int | None
    channel: int
    guild: int | None = None
    kind: int = 0


class Origin(Struct, frozen=True, kw_only=True):
    """Interaction that a message responds to. ``command`` is the command's whole name."""

    id: int
    kind: int
    user: int
    command: str | None = None
    guild: int | None = None
    target_user: int | None = None
    target_message: int | None = None
    pressed: int | None = None


class Message(Struct, frozen=True, kw_only=True):
    """Message. ``versions`` are its texts before each edit; only ``reader`` sees an ephemeral one.

    ``forwarded`` are copies of other messages; ``stickers`` are names.
    """

    id: int
    channel: int
    author: int
    at: float
    content: str = ""
    kind: int = DEFAULT
    flags: int = 0
    nonce: str | int | None = None
    tts: bool = False
    edited: float | None = None
    embeds: tuple[Json, ...] = ()
    components: tuple[Json, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    mentions: Mentions = Mentions()
    reference: Reference | None = None
    origin: Origin | None = None
    hook: bool = False
    reactions: tuple[Reaction, ...] = ()
    reader: int | None = None
    stickers: tuple[str, ...] = ()
    poll: Json | None = None
    forwarded: tuple[Message, ...] = ()
    versions: tuple[str, ...] = ()

    @property
    def ephemeral(self) -> bool:
        """Return whether only one user sees it."""
        return bool(self.flags & EPHEMERAL)

    @property
    def loading(self) -> bool:
        """Return whether it shows "… is thinking"."""
        return bool(self.flags & LOADING)


class Command(Struct, frozen=True, kw_only=True):
    """Registered command. ``kind`` is 1 for a slash command, 2 and 3 for the menu of a user or a message."""

    id: int
    kind: int
    name: str
    guild: int | None
    version: int
    body: Json


InteractionState = Literal["waiting", "deferred", "deferred update", "answered"]


class Interaction(Struct, frozen=True, kw_only=True):
    """Use of a command (``kind`` 2) or of a component of the message ``pressed`` (3), or a typed option (4).

    ``response`` is the id of the message that responds, ``followups`` are those of later ones. ``choices``
    are the names and values that the bot offers for a typed option.
    """

    id: int
    token: str
    kind: int
    user: int
    channel: int
    guild: int | None
    made: float
    command: str | None = None
    pressed: int | None = None
    target_user: int | None = None
    target_message: int | None = None
    state: InteractionState = "waiting"
    response: int | None = None
    followups: tuple[int, ...] = ()
    choices: tuple[tuple[str, str], ...] = ()


ChatName = int | str | Channel
"""A chat as tests name it: its id, the name of a channel, or the channel itself."""


class World:
    """Store of the platform's state, by id. A put replaces the value with the same id."""

    def __init__(self, clock: Clock, changes: Changes, bot: str) -> None:
        self.clock = clock
        self.changes = changes
        self.ids = Snowflakes(clock)
        self.bot = User(self.ids.new(), bot, bot=True)
        self.owner = User(self.ids.new(), "owner")
        self.users: dict[int, User] = {user.id: user for user in (self.bot, self.owner)}
        self.guilds: dict[int, Guild] = {}
        self.channels: dict[int, Channel] = {}
        self.messages: dict[int, dict[int, Message]] = {}
        self.commands: dict[int, Command] = {}
        self.interactions: dict[int, Interaction] = {}
        self.files: dict[int, tuple[int, Attachment]] = {}
        self.refusing: set[int] = set()
        """Ids of users who refuse direct messages."""

    def user(self, who: str | int) -> User:
        """Return a user by name or id. A new name makes a user, who joins all guilds."""
        if isinstance(who, int):
            return self.users[who]
        for user in self.users.values():
            if user.name == who:
                return user
        user = User(self.ids.new(), who)
        self.users[user.id] = user
        for guild in self.guilds.values():
            self.guilds[guild.id] = msgspec.structs.replace(guild, members=(*guild.members, user.id))
        self.changes.bump()
        return user

    def add_guild(self, name: str) -> Guild:
        """Add a guild with all users, and with a role for the bot."""
        key = self.ids.new()
        roles = (
            Role(key, "@everyone", INVITED),
            Role(self.ids.new(), self.bot.name, INVITED, managed=True),
        )
        guild = Guild(key, name, self.owner.id, self.clock.now(), roles, tuple(self.users))
        self.guilds[key] = guild
        self.changes.bump()
        return guild

    def put_guild(self, guild: Guild) -> None:
        """Add or replace a guild."""
        self.guilds[guild.id] = guild
        self.changes.bump()

    def add_channel(self, name: str, guild: Guild, kind: int = TEXT) -> Channel:
        """Add a text channel, or a forum, to a guild."""
        position = sum(channel.guild == guild.id for channel in self.channels.values())
        return self.put_channel(
            Channel(id=self.ids.new(), kind=kind, name=name, guild=guild.id, position=position)
        )

    def dm(self, user: User) -> Channel:
        """Return the direct chat of a user with the bot; create it at the first call."""
        for channel in self.channels.values():
            if channel.kind == DM and channel.recipient == user.id:
                return channel
        return self.put_channel(Channel(id=self.ids.new(), kind=DM, recipient=user.id))

    def put_channel(self, channel: Channel) -> Channel:
        """Add or replace a channel."""
        self.channels[channel.id] = channel
        self.messages.setdefault(channel.id, {})
        self.changes.bump()
        return channel

    def remove_channel(self, channel: Channel) -> None:
        """Remove a channel and its messages."""
        self.channels.pop(channel.id, None)
        self.messages.pop(channel.id, None)
        self.changes.bump()

    def chat(self, chat: ChatName) -> Channel:
        """Return a chat by id, name or itself. Raises LookupError."""
        if isinstance(chat, Channel):
            return self.channels[chat.id]
        if isinstance(chat, int) or chat.isdecimal():
            return self.channels[int(chat)]
        for channel in self.channels.values():
            if channel.name == chat.removeprefix("#"):
                return channel
        raise LookupError(f"no chat named {chat!r}")

    def put(self, message: Message) -> Message:
        """Add or replace a message."""
        self.messages[message.channel][message.id] = message
        for attachment in message.attachments:
            self.files[attachment.id] = (message.channel, attachment)
        self.changes.bump()
        return message

    def remove(self, message: Message) -> None:
        """Remove a message."""
        self.messages[message.channel].pop(message.id, None)
        self.changes.bump()

    def history(self, channel: int) -> Sequence[Message]:
        """Return the messages of a chat, oldest first."""
        return [message for _, message in sorted(self.messages.get(channel, {}).items())]

    def threads(self, parent: int | None = None, *, archived: bool = False) -> Sequence[Channel]:
        """Return the threads, of one channel or of all, that are archived or not."""
        return [
            channel
            for channel in self.channels.values()
            if channel.thread is not None
            and channel.thread.archived is archived
            and parent in (None, channel.parent)
        ]

    def put_thread(self, channel: Channel, state: ThreadState) -> Channel:
        """Replace the state of a thread."""
        return self.put_channel(msgspec.structs.replace(channel, thread=state))

    def may(self, channel: Channel, *names: Permission) -> bool:
        """Return whether the bot has permissions in a channel; a thread has those of its channel."""
        if channel.guild is None:
            return True
        wanted = bits(*names)
        return self.bot_permissions(channel) & wanted == wanted

    def bot_permissions(self, channel: Channel) -> int:
        """Return the bot's permissions in a channel."""
        if channel.guild is None:
            return INVITED
        given = 0
        for role in self.guilds[channel.guild].roles[:2]:
            given |= role.permissions
        parent = self.channels.get(channel.parent or 0)
        return given & ~channel.denied & ~(parent.denied if parent is not None else 0)
