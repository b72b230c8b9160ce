"""Discord's messages and commands as the gateway understands them. Pure: the same event, the same message."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from channels.discord.options import Options
from gateway import Part
from gateway.channel import Address, Audio, InboundMessage, Sender, SessionKey

Snowflake = Annotated[str, Meta(pattern=r"\A(?:[0-9]{1,18}|[1-8][0-9]{18})\Z")]
"""A snowflake id: creation time and a number. It fits into 63 bits."""
Words = Annotated[str, Meta(max_length=20_000)]
Name = Annotated[str, Meta(max_length=2_000)]

DEFAULT, REPLY = 0, 19
"""Message types that users write."""
DM, GROUP_DM = 1, 3
THREADS = (10, 11, 12)
VOICE_FLAG = 1 << 13
EPOCH_MS = 1_420_070_400_000
T = TypeVar("T")
RoomKind = Literal["dm", "channel", "thread"]


class User(Struct, frozen=True):
    """Author of a message."""

    id: Snowflake
    username: Name = ""
    global_name: Name | None = None
    bot: bool = False

    @property
    def name(self) -> str:
        """Display name."""
        return self.global_name or self.username


class Attachment(Struct, frozen=True):
    """A file of a message."""

    id: Snowflake
    filename: Name
    url: Name
    size: int = 0
    content_type: Name | None = None
    width: int | None = None
    height: int | None = None
    duration_secs: float | None = None
    waveform: str | None = None

    @property
    def is_voice(self) -> bool:
        """Return whether it is a voice message."""
        return self.waveform is not None


class Reference(Struct, frozen=True):
    """Reference to the message that is replied to."""

    message_id: Snowflake | None = None
    channel_id: Snowflake | None = None


class Quoted(Struct, frozen=True):
    """The message that is replied to, as included in the reply."""

    id: Snowflake
    author: User
    content: Words = ""


class Message(Struct, frozen=True):
    """A new or edited message, or one from the history."""

    id: Snowflake
    channel_id: Snowflake
    author: User
    content: Words = ""
    type: int = DEFAULT
    flags: int = 0
    guild_id: Snowflake | None = None
    channel_type: int | None = None
    edited_timestamp: Name | None = None
    webhook_id: Snowflake | None = None
    mentions: tuple[User, ...] = ()
    attachments: Annotated[tuple[Attachment, ...], Meta(max_length=20)] = ()
    message_reference: Reference | None = None
    referenced_message: Quoted | None = None


class Deleted(Struct, frozen=True):
    """Deleted messages."""

    channel_id: Snowflake
    id: Snowflake | None = None
    ids: tuple[Snowflake, ...] = ()


class ThreadMember(Struct, frozen=True):
    """The bot's membership in a thread; only set if it is a member."""

    user_id: Snowflake | None = None


class Channel(Struct, frozen=True):
    """A channel of any kind."""

    id: Snowflake
    type: int = 0
    guild_id: Snowflake | None = None
    parent_id: Snowflake | None = None
    owner_id: Snowflake | None = None
    last_message_id: Snowflake | None = None
    member: ThreadMember | None = None


class Guild(Struct, frozen=True):
    """A server with its channels."""

    id: Snowflake
    channels: tuple[Channel, ...] = ()
    threads: tuple[Channel, ...] = ()
    unavailable: bool = False


class GuildId(Struct, frozen=True):
    """Id of a server."""

    id: Snowflake


class Ready(Struct, frozen=True):
    """The first event of a session."""

    session_id: Name
    resume_gateway_url: Name
    guilds: tuple[GuildId, ...] = ()


class Option(Struct, frozen=True):
    """An option of a command, with its value."""

    name: Name
    value: str | int | float | bool | None = None


class Resolved(Struct, frozen=True):
    """Objects that an interaction refers to."""

    messages: Mapping[str, Quoted] = {}
    users: Mapping[str, User] = {}


class InteractionData(Struct, frozen=True):
    """The command or the button that was used."""

    name: Name = ""
    type: int = 1
    custom_id: Name = ""
    options: tuple[Option, ...] = ()
    target_id: Snowflake | None = None
    resolved: Resolved = Resolved()


class Member(Struct, frozen=True):
    """A member of a server."""

    user: User


class Interaction(Struct, frozen=True):
    """A user ran a command (2) or pressed a button (3)."""

    id: Snowflake
    application_id: Snowflake
    type: int
    token: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_\-.]{1,512}\Z")]
    channel_id: Snowflake | None = None
    guild_id: Snowflake | None = None
    data: InteractionData | None = None
    user: User | None = None
    member: Member | None = None
    channel: Channel | None = None

    @property
    def person(self) -> User | None:
        """The user of the interaction."""
        return self.user or (None if self.member is None else self.member.user)


def read(value: Any, kind: type[T]) -> T:
    """Convert a value to a type. Raises msgspec.ValidationError."""
    return msgspec.convert(value, kind)


def snowflake(value: Any) -> str:
    """Convert an id. Raises msgspec.ValidationError."""
    return str(msgspec.convert(value, Snowflake))


ASK = "ask"
"""The command that talks to the model where messages are not read."""
ASK_ABOUT = "Ask about this"
ASK_WHO = "Ask about this person"
"""What stands in the menus of messages and of people."""

_QUOTED = 1_000
_LATEST = 2**63 - 1
_MENTION = re.compile(r"<@!?([0-9]{1,20})>")


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


class View(Struct, frozen=True):
    """Whose eyes an event is read with."""

    channel: str
    account: str
    options: Options
    commands: frozenset[str] = frozenset()


def is_speech(message: Message, me: str) -> bool:
    """Whether a person said it: not the bot, not another one, nothing that the platform itself tells."""
    author = message.author
    return not (author.id == me or author.bot or message.webhook_id) and message.type in (DEFAULT, REPLY)


def is_meant(message: Message, room: Room, view: View) -> bool:
    """Whether the bot should answer, by the rule for servers."""
    if room.kind == "dm":
        return True
    when = view.options.groups
    if when == "always" or (room.joined and view.options.threads != "off"):
        return True
    if _command_of(_without_mention(message.content, view.account), view.commands):
        return True
    if when == "command":
        return False
    quoted = message.referenced_message
    if quoted is not None and quoted.author.id == view.account:
        return True
    return when == "mention" and f"<@{view.account}>" in message.content.replace("<@!", "<@")


def inbound(
    message: Message, room: Room, view: View, parts: Sequence[Part] = (), audio: Audio | None = None
) -> InboundMessage:
    """A message that the bot is to answer."""
    thread = _thread_of(message.id, room, view)
    session = session_of(room, message.author.id, view, thread)
    order, key, revises = int(message.id), message.id, None
    if message.edited_timestamp is not None:
        changed = _milliseconds(message.edited_timestamp)
        # Behind everything of that millisecond: ids begin with the time.
        order, key, revises = ((changed - EPOCH_MS + 1) << 22) - 1, f"{message.id}:e{changed}", message.id
    return InboundMessage(
        session=session,
        dedup_key=key,
        address=address_of(room, view, thread, message.id),
        sender=Sender(message.author.id, message.author.name),
        kind="text" if audio is None else "audio",
        text=text_of(message, view),
        parts=tuple(parts),
        order=min(max(0, order), _LATEST),
        sent_at=(int(message.id) >> 22) + EPOCH_MS,
        revises=revises,
        in_reply_to=None if message.referenced_message is None else message.referenced_message.id,
        audio=audio,
    )


def from_command(interaction: Interaction, room: Room, view: View) -> InboundMessage | None:
    """What a person asked for with a command; None when it is not one of ours."""
    person, text = interaction.person, command_text(interaction)
    if person is None or text is None:
        return None
    return InboundMessage(
        session=session_of(room, person.id, view, room.id if room.kind == "thread" else None),
        dedup_key=interaction.id,
        address=address_of(
            room,
            view,
            room.id if room.kind == "thread" else None,
            f"{interaction.id}:{interaction.token}",
        ),
        sender=Sender(person.id, person.name),
        text=text,
        order=int(interaction.id),
    )


def command_text(interaction: Interaction) -> str | None:
    """A command as it would be typed; words for the model when it is one that talks to it."""
    data = interaction.data
    if data is None or not data.name:
        return None
    if data.type == 1:
        filled = " ".join(str(option.value) for option in data.options if option.value is not None)
        return filled if data.name == ASK else f"/{data.name} {filled}".strip()
    target = data.target_id or ""
    if data.type == 3 and target in data.resolved.messages:
        return f"{_quote(data.resolved.messages[target], view_id=None)}\n\nWhat about this?"
    if data.type == 2 and target in data.resolved.users:
        return f"Who is {data.resolved.users[target].name} (id {target})?"
    return None


def session_of(room: Room, user: str, view: View, thread: str | None) -> str:
    """The conversation that something said in a room belongs to."""
    strategy = view.options.session_strategy
    chat = room.id if room.parent is None else room.parent
    if room.kind == "dm":
        return str(SessionKey(view.channel, view.account, room.id))
    key = SessionKey(
        view.channel,
        view.account,
        chat,
        thread=thread if strategy == "thread" else None,
        user=user if strategy == "chat_user" else None,
    )
    return str(key)


def address_of(room: Room, view: View, thread: str | None, reply_to: str) -> Address:
    """Where the answer goes."""
    chat = room.id if room.parent is None else room.parent
    group = room.kind != "dm"
    return Address(view.channel, view.account, chat, thread=thread, reply_to=reply_to, group=group)


def text_of(message: Message, view: View) -> str:
    """What somebody said to the bot: without the mention that called it, with names in place of ids."""
    text = _without_mention(message.content, view.account)
    names = {user.id: user.name for user in message.mentions}
    text = _MENTION.sub(lambda m: f"@{names[m[1]]}" if names.get(m[1]) else m[0], text)
    quoted = message.referenced_message
    if quoted is None or quoted.author.id == view.account or _command_of(text, view.commands):
        return text
    return f"{_quote(quoted, view.account)}\n\n{text}"


def _thread_of(message: str, room: Room, view: View) -> str | None:
    """The thread of the conversation; one that is opened at a message will have the message's id."""
    if room.kind == "thread":
        return room.id
    return message if room.kind == "channel" and view.options.threads == "open" else None


def _without_mention(text: str, me: str) -> str:
    return re.sub(rf"\A\s*<@!?{me}>[ ,:]*|\s*<@!?{me}>\s*\Z", "", text, count=1).strip()


def _command_of(text: str, commands: frozenset[str]) -> str | None:
    """The command that a text is, if it is one."""
    if not text.startswith("/"):
        return None
    name = text[1:].split(maxsplit=1)[:1]
    return name[0] if name and name[0] in commands else None


def _quote(quoted: Quoted, view_id: str | None) -> str:
    words = quoted.content[:_QUOTED] + ("…" if len(quoted.content) > _QUOTED else "")
    who = "you" if quoted.author.id == view_id else _plain_name(quoted.author)
    return "\n".join(f"> {line}" for line in f"{who} wrote: {words}".splitlines())


def _plain_name(user: User) -> str:
    return " ".join(user.name.split()) or user.id


def _milliseconds(stamp: str) -> int:
    """A time as Discord writes it. Raises ValueError."""
    return int(datetime.fromisoformat(stamp).timestamp() * 1000)
