"""Discord's objects, and their conversion to the gateway's messages. Pure: no input or output.

The structs have only the fields that the channel uses. They are validated when an event is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from channels.discord.options import Options
from gateway import Part
from gateway.channel import Address, Audio, InboundMessage, Sender, SessionKey

Snowflake = Annotated[str, Meta(pattern=r"\A(?:[0-9]{1,18}|[1-8][0-9]{18})\Z")]
"""Snowflake id: a creation time and a number. It fits into 63 bits."""
Content = Annotated[str, Meta(max_length=20_000)]
Name = Annotated[str, Meta(max_length=2_000)]
ChatKind = Literal["dm", "channel", "thread"]
T = TypeVar("T")

DEFAULT, REPLY = 0, 19
"""Types of the messages that users write."""
DM, GROUP_DM = 1, 3
THREADS = (10, 11, 12)
"""Types of channels; all others are channels of a server."""
VOICE_FLAG = 1 << 13
"""Flag of a voice message."""
EPOCH_MS = 1_420_070_400_000
"""Unix time at which the time in snowflake ids begins, in milliseconds."""
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

ASK = "ask"
"""Slash command that sends a prompt to the model, for chats where the bot does not read messages."""
ASK_ABOUT = "Ask about this"
ASK_WHO = "Ask about this person"
"""Labels in the context menus of messages and of users."""

_MAX_QUOTE = 1_000
_MAX_ORDER = 2**63 - 1
_MENTION = re.compile(r"<@!?([0-9]{1,20})>")


class User(Struct, frozen=True):
    """Discord user: the author of a message, or the user of an interaction."""

    id: Snowflake
    username: Name = ""
    global_name: Name | None = None
    bot: bool = False

    @property
    def name(self) -> str:
        """Return the display name, or the user name if there is none."""
        return self.global_name or self.username


class Attachment(Struct, frozen=True):
    """File of a message."""

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
    """Message that is replied to, or that a context menu was opened on."""

    id: Snowflake
    author: User
    content: Content = ""


class Message(Struct, frozen=True):
    """New or edited message, or one from a chat's history."""

    id: Snowflake
    channel_id: Snowflake
    author: User
    content: Content = ""
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
    """Event of one deleted message (``id``) or of several (``ids``)."""

    channel_id: Snowflake
    id: Snowflake | None = None
    ids: tuple[Snowflake, ...] = ()


class ThreadMember(Struct, frozen=True):
    """The bot's membership in a thread; a channel has it only if the bot is a member."""

    user_id: Snowflake | None = None


class Channel(Struct, frozen=True):
    """Discord channel of any kind: of a server, a thread, or direct messages."""

    id: Snowflake
    type: int = 0
    guild_id: Snowflake | None = None
    parent_id: Snowflake | None = None
    owner_id: Snowflake | None = None
    last_message_id: Snowflake | None = None
    member: ThreadMember | None = None


class Guild(Struct, frozen=True):
    """Server with its channels and active threads."""

    id: Snowflake
    channels: tuple[Channel, ...] = ()
    threads: tuple[Channel, ...] = ()
    unavailable: bool = False


class GuildId(Struct, frozen=True):
    """Id of a server."""

    id: Snowflake


class Ready(Struct, frozen=True):
    """First event of a session."""

    session_id: Name
    resume_gateway_url: Name
    guilds: tuple[GuildId, ...] = ()


class Option(Struct, frozen=True):
    """Option of a command, with its value."""

    name: Name
    value: str | int | float | bool | None = None


class Resolved(Struct, frozen=True):
    """Objects that an interaction refers to."""

    messages: Mapping[str, Quoted] = {}
    users: Mapping[str, User] = {}


class InteractionData(Struct, frozen=True):
    """Command or button that was used. ``type`` is 1 for a slash command, 2 for the menu of a user, 3 for
    the menu of a message."""

    name: Name = ""
    type: int = 1
    custom_id: Name = ""
    options: tuple[Option, ...] = ()
    target_id: Snowflake | None = None
    resolved: Resolved = Resolved()


class Member(Struct, frozen=True):
    """Member of a server."""

    user: User


class Interaction(Struct, frozen=True):
    """Use of a command (``type`` 2) or of a button (``type`` 3)."""

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
        """Return the user of the interaction; None if Discord names none."""
        return self.user or (None if self.member is None else self.member.user)


class Chat(Struct, frozen=True):
    """Chat of the bot. A thread has a ``parent`` channel; ``joined``: the bot is a member of it."""

    id: str
    kind: ChatKind
    parent: str | None = None
    joined: bool = False

    @property
    def channel(self) -> str:
        """Return the id of the channel: the parent's for a thread."""
        return self.id if self.parent is None else self.parent


class BotProfile(Struct, frozen=True):
    """Identity and settings of a bot, and the names of its commands, as the parser needs them.

    ``channel`` is the name of the gateway's channel, ``account`` the bot's user id.
    """

    channel: str
    account: str
    options: Options
    commands: frozenset[str] = frozenset()


def read(value: Any, kind: type[T]) -> T:
    """Convert a JSON value to a type. Raises msgspec.ValidationError."""
    return msgspec.convert(value, kind)


def snowflake(value: Any) -> str:
    """Return a valid snowflake id. Raises msgspec.ValidationError."""
    return str(msgspec.convert(value, Snowflake))


def chat_of(channel: Channel, account: str) -> Chat:
    """Convert Discord's description of a channel. ``account`` is the bot's user id."""
    if channel.type in (DM, GROUP_DM):
        return Chat(channel.id, "dm")
    if channel.type in THREADS:
        joined = channel.member is not None or channel.owner_id == account
        return Chat(channel.id, "thread", channel.parent_id, joined)
    return Chat(channel.id, "channel")


def is_user_message(message: Message, account: str) -> bool:
    """Return whether a user wrote the message: not a bot, not a webhook, not Discord itself."""
    author = message.author
    return not (author.id == account or author.bot or message.webhook_id) and message.type in (DEFAULT, REPLY)


def should_answer(message: Message, chat: Chat, bot: BotProfile) -> bool:
    """Return whether the settings let the bot answer the message in its chat."""
    if chat.kind == "dm":
        return True
    groups = bot.options.groups
    if groups == "always" or (chat.joined and bot.options.threads != "off"):
        return True
    if _command_of(_without_mention(message.content, bot.account), bot.commands):
        return True
    if groups == "command":
        return False
    quoted = message.referenced_message
    if quoted is not None and quoted.author.id == bot.account:
        return True
    return groups == "mention" and f"<@{bot.account}>" in message.content.replace("<@!", "<@")


def inbound(
    message: Message, chat: Chat, bot: BotProfile, parts: Sequence[Part] = (), audio: Audio | None = None
) -> InboundMessage:
    """Convert a message; an edited one becomes a revision. Raises ValueError for an invalid time."""
    thread = _thread_of(message.id, chat, bot)
    session = session_of(chat, message.author.id, bot, thread)
    order, key, revises = int(message.id), message.id, None
    if message.edited_timestamp is not None:
        changed = _microseconds(message.edited_timestamp)
        # After the ids of that millisecond, which begin with the time, and in the order of the edits.
        order = ((changed // 1000 - EPOCH_MS + 1) << 22) - 1000 + changed % 1000
        key, revises = f"{message.id}:e{changed}", message.id
    return InboundMessage(
        session=session,
        dedup_key=key,
        address=address_of(chat, bot, thread, message.id),
        sender=Sender(message.author.id, message.author.name),
        kind="text" if audio is None else "audio",
        text=text_of(message, bot),
        parts=tuple(parts),
        order=min(max(0, order), _MAX_ORDER),
        sent_at=(int(message.id) >> 22) + EPOCH_MS,
        revises=revises,
        in_reply_to=None if message.referenced_message is None else message.referenced_message.id,
        audio=audio,
    )


def from_command(interaction: Interaction, chat: Chat, bot: BotProfile) -> InboundMessage | None:
    """Convert the use of a command; None for an unknown one.

    The address's ``reply_to`` is the interaction's id and token, separated by a colon: the answer needs both.
    """
    person, text = interaction.person, command_text(interaction)
    if person is None or text is None:
        return None
    thread = chat.id if chat.kind == "thread" else None
    return InboundMessage(
        session=session_of(chat, person.id, bot, thread),
        dedup_key=interaction.id,
        address=address_of(chat, bot, thread, f"{interaction.id}:{interaction.token}"),
        sender=Sender(person.id, person.name),
        text=text,
        order=int(interaction.id),
    )


def command_text(interaction: Interaction) -> str | None:
    """Return a slash command as a user types it, or the prompt of a context menu; None for an unknown one."""
    data = interaction.data
    if data is None or not data.name:
        return None
    if data.type == 1:
        filled = " ".join(str(option.value) for option in data.options if option.value is not None)
        return filled if data.name == ASK else f"/{data.name} {filled}".strip()
    target = data.target_id or ""
    if data.type == 3 and target in data.resolved.messages:
        return f"{_quote(data.resolved.messages[target], account=None)}\n\nWhat about this?"
    if data.type == 2 and target in data.resolved.users:
        return f"Who is {data.resolved.users[target].name} (id {target})?"
    return None


def session_of(chat: Chat, user: str, bot: BotProfile, thread: str | None) -> str:
    """Return the session key of a user's message, by the session strategy."""
    if chat.kind == "dm":
        return str(SessionKey(bot.channel, bot.account, chat.id))
    strategy = bot.options.session_strategy
    key = SessionKey(
        bot.channel,
        bot.account,
        chat.channel,
        thread=thread if strategy == "thread" else None,
        user=user if strategy == "chat_user" else None,
    )
    return str(key)


def address_of(chat: Chat, bot: BotProfile, thread: str | None, reply_to: str) -> Address:
    """Return the address of the answer."""
    group = chat.kind != "dm"
    return Address(bot.channel, bot.account, chat.channel, thread=thread, reply_to=reply_to, group=group)


def text_of(message: Message, bot: BotProfile) -> str:
    """Return the text without the bot's mention, with names in place of user ids.

    The text begins with a quote of the message that is replied to, unless the bot wrote that one or the text
    is a command.
    """
    text = _without_mention(message.content, bot.account)
    names = {user.id: user.name for user in message.mentions}
    text = _MENTION.sub(lambda m: f"@{names[m[1]]}" if names.get(m[1]) else m[0], text)
    quoted = message.referenced_message
    if quoted is None or quoted.author.id == bot.account or _command_of(text, bot.commands):
        return text
    return f"{_quote(quoted, bot.account)}\n\n{text}"


def _thread_of(message: str, chat: Chat, bot: BotProfile) -> str | None:
    """Return the thread of the answer. A thread that is opened on a message gets the message's id."""
    if chat.kind == "thread":
        return chat.id
    return message if chat.kind == "channel" and bot.options.threads == "open" else None


def _without_mention(text: str, account: str) -> str:
    return re.sub(rf"\A\s*<@!?{account}>[ ,:]*|\s*<@!?{account}>\s*\Z", "", text, count=1).strip()


def _command_of(text: str, commands: frozenset[str]) -> str | None:
    """Return the name of the command that a text begins with; None if it begins with none."""
    if not text.startswith("/"):
        return None
    name = text[1:].split(maxsplit=1)[:1]
    return name[0] if name and name[0] in commands else None


def _quote(quoted: Quoted, account: str | None) -> str:
    words = quoted.content[:_MAX_QUOTE] + ("…" if len(quoted.content) > _MAX_QUOTE else "")
    who = "you" if quoted.author.id == account else _plain_name(quoted.author)
    return "\n".join(f"> {line}" for line in f"{who} wrote: {words}".splitlines())


def _plain_name(user: User) -> str:
    return " ".join(user.name.split()) or user.id


def _microseconds(timestamp: str) -> int:
    """Return the Unix time of an ISO 8601 timestamp. Raises ValueError."""
    # Two edits in a millisecond are two revisions. Whole numbers, as a float would round the last digit.
    at = datetime.fromisoformat(timestamp)
    return (at.replace(tzinfo=at.tzinfo or UTC) - _UNIX_EPOCH) // timedelta(microseconds=1)
