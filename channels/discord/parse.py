"""Discord's objects, and their conversion to the gateway's messages. Pure: no input or output.

The structs have only the fields that the channel uses. They are validated when an event is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Struct

from channels.discord.options import Options
from gateway.channel import (
    Address,
    Addressing,
    Feedback,
    InboundMessage,
    InvalidRequestError,
    MessageLink,
    Quoted,
    QuoteKind,
    Sender,
    SessionKey,
    feedback_value,
)

Snowflake = Annotated[str, Meta(pattern=r"\A(?:[0-9]{1,18}|[1-8][0-9]{18})\Z")]
"""Snowflake id: a creation time and a number. It fits into 63 bits."""
Content = Annotated[str, Meta(max_length=20_000)]
Name = Annotated[str, Meta(max_length=2_000)]
ChatKind = Literal["dm", "channel", "thread"]
T = TypeVar("T")

DEFAULT, REPLY = 0, 19
"""Types of the messages that users write."""
COMMAND_ANSWER, THREAD_STARTER, MENU_ANSWER = 20, 21, 23
"""Types of the answers to commands, and of the copy of the message that a thread was opened on."""
TYPING = 4
"""Type of the interaction with a command that is being typed, which asks for choices."""
_FORWARD = 1
"""Type of the reference of a forwarded message."""
DM, GROUP_DM = 1, 3
THREADS = (10, 11, 12)
FORUMS = (15, 16)
"""Types of channels; all others are channels of a server. A forum or media channel has posts only, which are
threads."""
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

_ABOUT = "What about this?"
_MAX_QUOTE = 8_000
_MAX_MARKED = 2 * _MAX_QUOTE
"""Characters of a quoted message that are read; ids in it may be longer than the names."""
_MAX_OPTIONS = 16_000
"""Characters of the options of a command; Discord allows 6,000 in each, and the commands have one."""
_MAX_ORDER = 2**63 - 1
_MARK = re.compile(
    r"<(?:@!?(?P<user>[0-9]{1,20})|@&(?P<role>[0-9]{1,20})|#(?P<channel>[0-9]{1,20})"
    r"|a?:(?P<emoji>\w{1,64}):[0-9]{1,20}|t:(?P<time>-?[0-9]{1,13})(?::[a-zA-Z])?)>"
)
"""Marks in a text: mentions of users, roles and channels, emojis of servers, and times."""
_MAX_SNAPSHOTS, _MAX_EMBEDS, _MAX_ANSWERS = 10, 10, 20
"""Numbers of forwarded messages, embeds and answers of a poll that are read; Discord allows no more."""
_LINK = re.compile(
    r"https://(?:(?:ptb|canary)\.)?discord(?:app)?\.com/channels/(?:@me|\d{1,20})/(\d{1,20})/(\d{1,20})/?"
)
_ROLE = re.compile(r"<@&([0-9]{1,20})>")
_FIRST_MENTION = re.compile(r"\s*<@!?([0-9]{1,20})>")


class Member(Struct, frozen=True):
    """Member of a server, with the ids of the roles. Some events name the user elsewhere."""

    user: User | None = None
    nick: Name | None = None
    roles: tuple[Snowflake, ...] = ()

    @property
    def is_bot(self) -> bool:
        """Return whether the user is known to be a bot."""
        return self.user is not None and self.user.bot


class User(Struct, frozen=True):
    """Discord user: the author of a message, or the user of an interaction."""

    id: Snowflake
    username: Name = ""
    global_name: Name | None = None
    bot: bool = False
    member: Member | None = None

    @property
    def name(self) -> str:
        """Return the name on the server or else the display name; the user name if there is neither."""
        nick = None if self.member is None else self.member.nick
        return nick or self.global_name or self.username


class Attachment(Struct, frozen=True):
    """File of a message."""

    id: Snowflake
    filename: Name
    url: Name
    size: int = 0
    content_type: Name | None = None
    width: int | None = None
    height: int | None = None
    waveform: str | None = None

    @property
    def is_voice(self) -> bool:
        """Return whether it is a voice message."""
        return self.waveform is not None


Attachments = Annotated[tuple[Attachment, ...], Meta(max_length=20)]


class Reference(Struct, frozen=True):
    """Reference to the message that is replied to or, by its ``type``, forwarded."""

    message_id: Snowflake | None = None
    type: int = 0


class Sticker(Struct, frozen=True):
    """Sticker of a message."""

    name: str = ""


class PollText(Struct, frozen=True):
    """Text of a poll."""

    text: str | None = None


class PollAnswer(Struct, frozen=True):
    """Answer of a poll."""

    poll_media: PollText = PollText()


class Poll(Struct, frozen=True):
    """Poll with its answers."""

    question: PollText = PollText()
    answers: tuple[PollAnswer, ...] = ()


class EmbedField(Struct, frozen=True):
    """Field of an embed."""

    name: str = ""
    value: str = ""


class Embed(Struct, frozen=True):
    """Card in a message. The type ``rich`` is that of cards that bots write; others preview links."""

    type: str = "rich"
    title: str | None = None
    description: str | None = None
    fields: tuple[EmbedField, ...] = ()


class Excerpt(Struct, frozen=True, kw_only=True):
    """Content of a message, which is all that a forwarded message shows of its original.

    Stickers, poll, embeds and snapshots are converted when they are needed: an invalid one is left out.
    """

    content: str = ""
    mentions: tuple[User, ...] = ()
    attachments: Attachments = ()
    sticker_items: Any = ()
    poll: Any = None
    embeds: Any = ()


class Posted(Excerpt, frozen=True, kw_only=True):
    """Message as part of another event or of a history.

    ``message_snapshots`` are what it forwards; ``referenced_message`` is the message that it replies to.
    """

    id: Snowflake
    author: User
    type: int = DEFAULT
    webhook_id: Snowflake | None = None
    message_reference: Reference | None = None
    message_snapshots: Any = ()
    referenced_message: Posted | None = None

    @property
    def sent_at(self) -> int:
        """Return the Unix time at which it was sent, in milliseconds."""
        return time_of(self.id)

    @property
    def is_forward(self) -> bool:
        """Return whether it forwards another message."""
        return self.message_reference is not None and self.message_reference.type == _FORWARD

    @property
    def answered(self) -> Posted | None:
        """Return the message that it replies to."""
        return None if self.is_forward else self.referenced_message


class Snapshot(Struct, frozen=True):
    """Message that another one forwards."""

    message: Excerpt


class Message(Posted, frozen=True, kw_only=True):
    """New or edited message, or one from a chat's history."""

    channel_id: Snowflake
    content: Content = ""
    guild_id: Snowflake | None = None
    channel_type: int | None = None
    edited_timestamp: Name | None = None
    member: Member | None = None


class Pointed(Struct, frozen=True):
    """Message that another one points at: its quote, which has no files yet, and its files."""

    quote: Quoted
    attachments: tuple[Attachment, ...] = ()


class Deleted(Struct, frozen=True):
    """Event of one deleted message (``id``) or of several (``ids``)."""

    channel_id: Snowflake
    id: Snowflake | None = None
    ids: tuple[Snowflake, ...] = ()


class Sign(Struct, frozen=True):
    """Emoji of a reaction; one of a server has an ``id``."""

    id: Snowflake | None = None
    name: Name | None = None


class Reaction(Struct, frozen=True):
    """Event of a reaction that a user added or removed.

    Without ``user_id`` those of all users were removed, without ``emoji`` all reactions.
    """

    channel_id: Snowflake
    message_id: Snowflake
    guild_id: Snowflake | None = None
    user_id: Snowflake | None = None
    emoji: Sign | None = None
    message_author_id: Snowflake | None = None
    member: Member | None = None


class ThreadMember(Struct, frozen=True):
    """The bot's membership in a thread; a channel has it only if the bot is a member."""

    user_id: Snowflake | None = None


class Channel(Struct, frozen=True):
    """Discord channel of any kind: of a server, a thread, or direct messages."""

    id: Snowflake
    type: int = 0
    name: Name | None = None
    guild_id: Snowflake | None = None
    parent_id: Snowflake | None = None
    owner_id: Snowflake | None = None
    last_message_id: Snowflake | None = None
    member: ThreadMember | None = None


class RoleTags(Struct, frozen=True):
    """Origin of a role. Discord makes one for each bot on a server."""

    bot_id: Snowflake | None = None


class Role(Struct, frozen=True):
    """Role of a server."""

    id: Snowflake
    name: Name = ""
    tags: RoleTags = RoleTags()


class GuildRole(Struct, frozen=True):
    """Event of a new or changed role."""

    role: Role


class Guild(Struct, frozen=True):
    """Server with its roles, channels and active threads."""

    id: Snowflake
    roles: tuple[Role, ...] = ()
    channels: tuple[Channel, ...] = ()
    threads: tuple[Channel, ...] = ()


class GuildId(Struct, frozen=True):
    """Id of a server."""

    id: Snowflake


class Ready(Struct, frozen=True):
    """First event of a session."""

    session_id: Name
    resume_gateway_url: Name
    guilds: tuple[GuildId, ...] = ()


class Option(Struct, frozen=True):
    """Option of a command, with its value; ``focused``: the user is typing it."""

    name: Name
    value: str | int | float | bool | None = None
    focused: bool = False


class Resolved(Struct, frozen=True):
    """Objects that an interaction refers to."""

    messages: Mapping[str, Posted] = {}
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


class PressedMessage(Struct, frozen=True):
    """Message whose button was pressed."""

    id: Snowflake


class Interaction(Struct, frozen=True):
    """Use of a command (``type`` 2) or of a button (``type`` 3), or a command that is being typed (4)."""

    id: Snowflake
    type: int
    token: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_\-.]{1,512}\Z")]
    channel_id: Snowflake | None = None
    guild_id: Snowflake | None = None
    data: InteractionData | None = None
    user: User | None = None
    member: Member | None = None
    channel: Channel | None = None
    message: PressedMessage | None = None

    @property
    def message_id(self) -> str | None:
        """Return the id of the message with the pressed button."""
        return None if self.message is None else self.message.id

    @property
    def person(self) -> User | None:
        """Return the user of the interaction; None if Discord names none."""
        return self.user or (None if self.member is None else self.member.user)


class Chat(Struct, frozen=True):
    """Chat of the bot. A thread has a ``parent`` channel; ``joined``: the bot is a member of it.

    ``guild`` is the id of its server, ``name`` is without "#". Both may be unknown.
    """

    id: str
    kind: ChatKind
    parent: str | None = None
    joined: bool = False
    guild: str | None = None
    name: str = ""

    @property
    def channel(self) -> str:
        """Return the id of the channel: the parent's for a thread."""
        return self.id if self.parent is None else self.parent


Named = Literal["role", "channel"]


def no_names(kind: Named, key: str) -> str:
    """Return no name."""
    return ""


class BotProfile(Struct, frozen=True):
    """Identity and settings of a bot, and the names of its commands, as the parser needs them.

    ``channel`` is the name of the gateway's channel, ``account`` the bot's user id. ``names`` returns the
    name of a role or a channel, empty for an unknown one. ``own_roles`` are the roles that Discord made for
    the bot, one on each server; they have its name, so that users mention them instead of it.
    """

    channel: str
    account: str
    options: Options
    commands: frozenset[str] = frozenset()
    names: Callable[[Named, str], str] = no_names
    own_roles: Collection[str] = frozenset()


def read(value: Any, kind: type[T]) -> T:
    """Convert a JSON value to a type. Raises msgspec.ValidationError."""
    return msgspec.convert(value, kind)


def optional(value: Any, kind: type[T], otherwise: T) -> T:
    """Convert a part of an event that the event can do without; an invalid one counts as ``otherwise``."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return otherwise


def time_of(snowflake_id: str) -> int:
    """Return the Unix time of an id, in milliseconds."""
    return (int(snowflake_id) >> 22) + EPOCH_MS


def snowflake(value: Any) -> str:
    """Return a valid snowflake id. Raises msgspec.ValidationError."""
    return str(msgspec.convert(value, Snowflake))


def chat_of(channel: Channel, account: str) -> Chat:
    """Convert Discord's description of a channel. ``account`` is the bot's user id."""
    if channel.type in (DM, GROUP_DM):
        return Chat(channel.id, "dm")
    name = channel.name or ""
    if channel.type in THREADS:
        joined = channel.member is not None or channel.owner_id == account
        return Chat(channel.id, "thread", channel.parent_id, joined, channel.guild_id, name)
    return Chat(channel.id, "channel", guild=channel.guild_id, name=name)


def title_of(chat: Chat, bot: BotProfile) -> str:
    """Return the title of a chat: ``#channel`` or ``#channel / thread``; empty for direct messages."""
    if chat.kind == "dm":
        return ""
    channel = chat.name if chat.parent is None else bot.names("channel", chat.parent)
    thread = "" if chat.parent is None else chat.name
    return " / ".join(name for name in (channel and f"#{channel}", thread) if name)


def sender_of(user: User, member: Member | None = None) -> Sender:
    """Return a user as a sender, with the name on the server if the member is known."""
    return Sender(user.id, (member.nick if member else None) or user.name, user.username)


def is_user_message(message: Message, account: str) -> bool:
    """Return whether a user wrote the message: not a bot, not a webhook, not Discord itself."""
    author = message.author
    return not (author.id == account or author.bot or message.webhook_id) and message.type in (DEFAULT, REPLY)


def addressed(message: Message, chat: Chat, bot: BotProfile) -> Addressing:
    """Return the way in which a message addresses the bot."""
    text, is_mention = _without_mention(message.content, bot), mentions(message.content, bot)
    if chat.kind == "dm":
        return "mention" if is_mention and not text else "direct"
    if _command_of(text, bot.commands):
        return "command"
    if message.answered is not None and message.answered.author.id == bot.account:
        return "reply"
    if chat.joined and not _FIRST_MENTION.match(text):
        return "thread"
    return "mention" if is_mention else "none"


def inbound(message: Message, chat: Chat, bot: BotProfile) -> InboundMessage:
    """Convert a message without files and quotes; an edited one becomes a revision.

    Raises ValueError for an invalid time.
    """
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
        # The first message of a post has the id of its thread, which would mean that the answer opens it.
        address=address_of(chat, bot, thread, None if message.id == chat.id else message.id),
        sender=sender_of(message.author, message.member),
        text=text_of(message, bot),
        order=min(max(0, order), _MAX_ORDER),
        sent_at=message.sent_at,
        revises=revises,
        in_reply_to=None if message.answered is None else message.answered.id,
        addressed=addressed(message, chat, bot),
    )


def pointed(message: Message, bot: BotProfile) -> tuple[Pointed, ...]:
    """Return what a message points at: forwarded messages, or the message that it replies to.

    A command points at nothing. Of a message of the bot only the files are quoted.
    """
    if _command_of(_without_mention(message.content, bot), bot.commands):
        return ()
    if message.is_forward:
        return tuple(
            Pointed(Quoted("forward", _cut(readable(snapshot, bot))), snapshot.attachments)
            for snapshot in _snapshots(message)
        )
    other = message.answered
    if other is None or (other.author.id == bot.account and not other.attachments):
        return ()
    return (_quoted("reply", other, bot),)


def shared(interaction: Interaction, bot: BotProfile) -> tuple[Pointed, ...]:
    """Return the message that a context menu was opened on, if it was one."""
    data = interaction.data
    other = None if data is None or data.type != 3 else data.resolved.messages.get(data.target_id or "")
    return () if other is None else (_quoted("share", other, bot),)


def _quoted(kind: QuoteKind, other: Posted, bot: BotProfile) -> Pointed:
    own = other.author.id == bot.account
    text = "" if own and kind == "reply" else _cut(readable(other, bot))
    return Pointed(Quoted(kind, text, sender_of(other.author), own=own), _all_attachments(other))


def _all_attachments(message: Posted) -> tuple[Attachment, ...]:
    return (*message.attachments, *(file for found in _snapshots(message) for file in found.attachments))


def is_typing(data: Any) -> bool:
    """Return whether the data of an interaction is of a command that a user types."""
    return isinstance(data, dict) and cast("dict[str, Any]", data).get("type") == TYPING


def from_command(interaction: Interaction, chat: Chat, bot: BotProfile) -> InboundMessage | None:
    """Convert the use of a command, without quotes; None for an unknown one.

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
        sender=sender_of(person, interaction.member),
        text=text,
        order=int(interaction.id),
        sent_at=time_of(interaction.id),
        addressed="direct" if chat.kind == "dm" else "command",
    )


def command_text(interaction: Interaction) -> str | None:
    """Return a slash command as a user types it, or the prompt of a context menu; None for an unknown one."""
    data = interaction.data
    if data is None or not data.name:
        return None
    if data.type == 1:
        filled = " ".join(str(option.value) for option in data.options if option.value is not None)
        filled = filled[:_MAX_OPTIONS]
        return filled if data.name == ASK else f"/{data.name} {filled}".strip()
    target = data.target_id or ""
    if data.type == 3 and target in data.resolved.messages:
        return _ABOUT
    if data.type == 2 and target in data.resolved.users:
        return f"Who is {_plain(data.resolved.users[target].name) or target} (id {target})?"
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


def session_at(address: Address, channel: str, options: Options) -> str:
    """Return the session of a chat. Raises InvalidRequestError for ids that are not Discord's."""
    given = (address.account, address.chat, address.thread or "0")
    if not all(one.isdecimal() for one in given):
        raise InvalidRequestError(
            f"an address on {channel} needs ids of account and channel, not {given[:2]}"
        )
    is_thread = options.session_strategy == "thread"
    key = SessionKey(channel, address.account, address.chat, address.thread if is_thread else None)
    return str(key)


def address_of(chat: Chat, bot: BotProfile, thread: str | None, reply_to: str | None) -> Address:
    """Return the address of the answer."""
    group = chat.kind != "dm"
    title = title_of(chat, bot)
    return Address(bot.channel, bot.account, chat.channel, thread, reply_to, group=group, title=title)


def text_of(message: Message, bot: BotProfile) -> str:
    """Return the user's own text without the bot's mention, with names in place of ids."""
    text = _named(_without_mention(message.content, bot), message, bot)
    return "\n".join([text, *_extras(message)]).strip()


def readable(excerpt: Excerpt, bot: BotProfile) -> str:
    """Return a message as text: with names in place of ids, embeds, stickers, poll and what it forwards."""
    lines = [_named(excerpt.content[:_MAX_MARKED], excerpt, bot), *_embedded(excerpt), *_extras(excerpt)]
    if isinstance(excerpt, Posted):
        lines += [readable(snapshot, bot) for snapshot in _snapshots(excerpt)]
    return "\n".join(line for line in lines if line).strip()


def _named(text: str, excerpt: Excerpt, bot: BotProfile) -> str:
    if "<" not in text:
        return text
    users = {user.id: user.name for user in excerpt.mentions}

    def name(mark: re.Match[str]) -> str:
        kind, key = mark.lastgroup, mark[mark.lastgroup or 0]
        match kind:
            case "user":
                found = users.get(key, "")
            case "role" | "channel":
                found = bot.names(kind, key)
            case "emoji":
                return f":{key}:"
            case _:
                return _shown_time(int(key)) or mark[0]
        sign = "#" if kind == "channel" else "@"
        return f"{sign}{_plain(found)}" if found else mark[0]

    return _MARK.sub(name, text)


def _extras(excerpt: Excerpt) -> Iterator[str]:
    """Yield stickers and poll of a message as text."""
    stickers = optional(excerpt.sticker_items, tuple[Sticker, ...], ()) if excerpt.sticker_items else ()
    for sticker in stickers:
        yield f"[Sticker: {_plain(sticker.name)}]"
    poll = None if excerpt.poll is None else optional(excerpt.poll, Poll, None)
    if poll is not None:
        yield f"[Poll: {_plain(poll.question.text or '')}]"
        yield from (f"- {_plain(answer.poll_media.text or '')}" for answer in poll.answers[:_MAX_ANSWERS])


def _embedded(excerpt: Excerpt) -> Iterator[str]:
    embeds = optional(excerpt.embeds, tuple[Embed, ...], ()) if excerpt.embeds else ()
    for embed in embeds[:_MAX_EMBEDS]:
        if embed.type == "rich":
            fields = (f"{field.name}: {field.value}" for field in embed.fields)
            yield "\n".join(line for line in (embed.title, embed.description, *fields) if line)


def _snapshots(message: Posted) -> list[Excerpt]:
    """Return the messages that a message forwards, without invalid ones."""
    if not message.message_snapshots:
        return []
    listed = optional(message.message_snapshots, list[Any], [])[:_MAX_SNAPSHOTS]
    return [found.message for one in listed if (found := optional(one, Snapshot, None)) is not None]


def _shown_time(seconds: int) -> str:
    try:
        return f"{_UNIX_EPOCH + timedelta(seconds=seconds):%Y-%m-%d %H:%M} UTC"
    except OverflowError:
        return ""


def feedback(name: str, reaction: Reaction, bot: BotProfile) -> Feedback | None:
    """Convert the event ``name`` about a reaction; None if it is not feedback. Raises ValueError.

    A removed reaction counts on any message, because the event does not name the author of the message.
    """
    is_new, of_all = name == "MESSAGE_REACTION_ADD", name.startswith("MESSAGE_REACTION_REMOVE_")
    emoji, user, account = reaction.emoji, "" if of_all else reaction.user_id, bot.account
    if user is None or (emoji is None and name != "MESSAGE_REACTION_REMOVE_ALL"):
        raise ValueError("a reaction without a user or an emoji")
    sign = "" if emoji is None or emoji.id is not None else emoji.name or ""
    value = feedback_value([sign])
    by_bot = user == account or (reaction.member is not None and reaction.member.is_bot)
    to_other = is_new and reaction.message_author_id not in (None, account)
    stops = is_new and sign != "" and sign.replace("\ufe0f", "") == bot.options.stop_reaction
    if by_bot or to_other or (value == "none" and emoji is not None and not stops):
        return None
    chat = reaction.channel_id
    message = f"{chat}:{reaction.message_id}"
    return Feedback(account, chat, message, user, value if is_new else "none", stops, sign)


def _thread_of(message: str, chat: Chat, bot: BotProfile) -> str | None:
    """Return the thread of the answer. A thread that is opened on a message gets the message's id."""
    if chat.kind == "thread":
        return chat.id
    return message if chat.kind == "channel" and bot.options.threads == "open" else None


def _without_mention(text: str, bot: BotProfile) -> str:
    if "<@" not in text:
        return text.strip()
    own = _own_marks(text, bot)
    return re.sub(rf"\A\s*{own}[ ,:]*|\s*{own}\s*\Z", "", text, count=1).strip()


def _own_marks(text: str, bot: BotProfile) -> str:
    """Return a pattern of the mentions of the bot in a text, and of its roles."""
    roles = (f"|&{role}" for role in set(_ROLE.findall(text)) if role in bot.own_roles)
    return f"<@(?:!?{bot.account}{''.join(roles)})>"


def _command_of(text: str, commands: frozenset[str]) -> str | None:
    """Return the name of the command that a text begins with; None if it begins with none."""
    if not text.startswith("/"):
        return None
    name = text[1:].split(maxsplit=1)[:1]
    return name[0] if name and name[0] in commands else None


def mentions(text: str, bot: BotProfile) -> bool:
    """Return whether a text mentions the bot."""
    return "<@" in text and re.search(_own_marks(text, bot), text) is not None


def _plain(name: str) -> str:
    return " ".join(name.split())


def _cut(text: str) -> str:
    return text[: _MAX_QUOTE - 1] + "…" if len(text) > _MAX_QUOTE else text


def _microseconds(timestamp: str) -> int:
    """Return the Unix time of an ISO 8601 timestamp. Raises ValueError."""
    # Two edits in a millisecond are two revisions. Whole numbers, as a float would round the last digit.
    at = datetime.fromisoformat(timestamp)
    return (at.replace(tzinfo=at.tzinfo or UTC) - _UNIX_EPOCH) // timedelta(microseconds=1)


def link_of(text: str) -> MessageLink | None:
    """Return the message that a link names."""
    found = _LINK.fullmatch(text.strip())
    return None if found is None else MessageLink(found[1], found[2], found[2])
