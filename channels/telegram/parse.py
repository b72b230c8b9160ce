"""Conversion of Bot API updates to gateway events. Pure: raw JSON in, values out.

The classes of updates have the fields that the channel uses. Unknown fields are ignored, so that additions to
the platform break nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn
from zlib import crc32

import msgspec
from msgspec import Meta, Struct, field

from gateway.channel import Address, InboundMessage, Rejected, Sender, SessionKey

Number = Annotated[int, Meta(ge=-(2**53), le=2**53)]
"""Any number of the platform. Telegram's are at most 2**53, and the store accepts no larger ones."""


class User(Struct, frozen=True):
    """A user or a bot."""

    id: Number
    is_bot: bool = False
    first_name: str = ""
    last_name: str = ""
    username: str = ""

    @property
    def name(self) -> str:
        """Display name: first and last name, or the user name."""
        return " ".join(filter(None, (self.first_name, self.last_name))) or self.username


class Chat(Struct, frozen=True):
    """A chat."""

    id: Number
    type: Literal["private", "group", "supergroup", "channel"] = "private"
    title: str = ""
    is_forum: bool = False


class Entity(Struct, frozen=True):
    """A marked part of a text; offset and length count UTF-16 units."""

    type: str
    offset: Number
    length: Number
    user: User | None = None


class File(Struct, frozen=True):
    """A file of any kind. Width and height are in pixels."""

    file_id: str
    file_size: Number = 0
    file_name: str = ""
    mime_type: str = ""
    width: Number | None = None
    height: Number | None = None


class Quote(Struct, frozen=True):
    """The selected part of the message that is replied to."""

    text: str = ""


class Replied(Struct, frozen=True):
    """The message that is replied to."""

    message_id: Number
    sender: User | None = field(default=None, name="from")
    text: str = ""
    caption: str = ""
    forum_topic_created: object = None


class Message(Struct, frozen=True):
    """A message in a chat."""

    message_id: Number
    chat: Chat
    date: Number = 0
    edit_date: Number = 0
    sender: User | None = field(default=None, name="from")
    sender_chat: Chat | None = None
    message_thread_id: Number | None = None
    is_topic_message: bool = False
    forward_origin: object = None
    via_bot: User | None = None
    reply_to_message: Replied | None = None
    quote: Quote | None = None
    media_group_id: str | None = None
    text: str = ""
    entities: tuple[Entity, ...] = ()
    caption: str = ""
    caption_entities: tuple[Entity, ...] = ()
    photo: tuple[File, ...] = ()
    document: File | None = None
    voice: File | None = None
    audio: File | None = None
    video: File | None = None
    video_note: File | None = None
    animation: File | None = None
    sticker: object = None
    location: object = None
    contact: object = None
    poll: object = None


class Pressed(Struct, frozen=True):
    """The message with the pressed button."""

    message_id: Number
    chat: Chat


class CallbackQuery(Struct, frozen=True):
    """A user pressed a button."""

    id: str
    sender: User = field(name="from")
    message: Pressed | None = None
    data: str = ""


class StoppedGeneration(Struct, frozen=True):
    """A user pressed Stop under a draft."""

    chat: Chat
    draft_id: Number
    message_thread_id: Number | None = None


class Update(Struct, frozen=True):
    """One update; at most one of the optional fields is set."""

    update_id: Number
    message: Message | None = None
    edited_message: Message | None = None
    callback_query: CallbackQuery | None = None
    stopped_message_generation: StoppedGeneration | None = None


KINDS = ("message", "edited_message", "callback_query", "stopped_message_generation")
"""Kinds of updates to request."""


def decoded(payload: bytes) -> Any:
    """Decode JSON; lone surrogates, which UTF-8 cannot encode, become U+FFFD. Raises ValueError."""
    try:
        return msgspec.json.decode(payload)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode_leniently(payload)


def _decode_leniently(payload: bytes) -> Any:
    """Decode JSON that ``msgspec`` refuses but other parsers accept: one bad text must not block up to 100
    updates."""
    try:
        value = json.loads(payload.decode(errors="replace"), parse_constant=_refuse_constant)
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return json.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


_MAX_RAW = 100_000
_MAX_QUOTED = 500
_COMMAND = re.compile(r"/([A-Za-z0-9_]{1,64})(?:@([A-Za-z0-9_]+))?(?=\s|$)")
_LAST_GROUP = -1_000_000_000_000
_UNKNOWN_SENDER = "0"

FileKind = Literal["picture", "file", "voice"]


class BotIdentity(Struct, frozen=True):
    """The bot as updates see it: its channel, id, user name and options."""

    channel: str
    id: int
    username: str = ""
    groups: str = "mention"
    strategy: str = "thread"
    edits: bool = True
    commands: Mapping[str, str] = {}
    """Gateway command names by the names typed on Telegram."""


class Attached(Struct, frozen=True):
    """A file that came with a message."""

    kind: FileKind
    file: File
    mime: str
    name: str


class ReceivedMessage(Struct, frozen=True):
    """A message for the bot. Its files are not downloaded yet. ``album`` is the id shared by an album's
    messages."""

    inbound: InboundMessage
    files: tuple[Attached, ...] = ()
    album: str | None = None


Event = ReceivedMessage | CallbackQuery | StoppedGeneration | Rejected | None
"""Meaning of an update; None if the update is not for the bot."""


def update_id_of(raw: object) -> int | None:
    """Return the id of an update, even if the rest of it is invalid; None if it has none."""
    found: object = raw.get("update_id") if isinstance(raw, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**63 else None


def parse_update(raw: object, bot: BotIdentity) -> Event:
    """Return the meaning of an update. Returns Rejected, never raises, for one that cannot be read."""
    try:
        update = msgspec.convert(raw, Update)
        return _meaning(update, bot)
    except (msgspec.ValidationError, ValueError, RecursionError, OverflowError) as error:
        return rejected(raw, bot, f"{type(error).__name__}: {error}")


def rejected(raw: object, bot: BotIdentity, reason: str) -> Rejected:
    """Return an update for quarantine, with the reason."""
    number = update_id_of(raw)
    try:
        text = msgspec.json.encode(raw).decode()
    except (TypeError, ValueError, RecursionError):
        text = repr(raw)
    return Rejected(str(bot.id), "?" if number is None else str(number), text[:_MAX_RAW], reason[:1000])


def message_ids(raw: object) -> Iterable[tuple[int, int]]:
    """Return chat id and message id of each message in an update."""
    try:
        update = msgspec.convert(raw, Update)
    except (msgspec.ValidationError, ValueError, RecursionError):
        return
    for message in (update.message, update.edited_message):
        if message is not None:
            yield message.chat.id, message.message_id
    if update.callback_query is not None and update.callback_query.message is not None:
        yield update.callback_query.message.chat.id, update.callback_query.message.message_id


def stopped_session(stopped: StoppedGeneration, bot: BotIdentity) -> str:
    """Return the session of an answer that a user stopped; only private chats show drafts with a Stop
    button."""
    chat = str(stopped.chat.id)
    thread = None if stopped.message_thread_id is None else str(stopped.message_thread_id)
    user = chat if bot.strategy == "chat_user" else None
    return str(SessionKey(bot.channel, str(bot.id), chat, thread if bot.strategy == "thread" else None, user))


def id_sequence(chat: str) -> str:
    """Return the message id sequence of a chat: each supergroup has its own, all other chats share one."""
    return chat if int(chat) < _LAST_GROUP else ""


def is_group(chat: str) -> bool:
    """Return whether a chat is anything but a private chat."""
    return chat.startswith("-")


def _meaning(update: Update, bot: BotIdentity) -> Event:
    if update.callback_query is not None:
        return update.callback_query
    if update.stopped_message_generation is not None:
        return update.stopped_message_generation
    message = update.message or update.edited_message
    if message is None:
        return None
    return _parse_message(update, message, bot, edited=update.message is None)


def _parse_message(
    update: Update, message: Message, bot: BotIdentity, *, edited: bool
) -> ReceivedMessage | None:
    if (edited and not bot.edits) or _is_by_bot(message, bot) or message.chat.type == "channel":
        return None
    text, entities = (
        (message.text, message.entities)
        if message.text
        else (
            message.caption,
            message.caption_entities,
        )
    )
    files = tuple(_files(message))
    if not text and not files and (edited or not _placeholder(message)):
        return None
    words, call = _read_text(text, entities, bot)
    if message.chat.type != "private" and not _is_for_bot(message, call, entities, text, bot):
        return None
    if call == "other":
        return None
    words = _prevent_command(words, message, edited=edited) or _placeholder(message)
    quoted = "" if words.startswith("/") else _quoted(message, bot)
    return ReceivedMessage(
        _to_inbound(update, message, bot, f"{quoted}{words}", edited=edited),
        files,
        None if edited else message.media_group_id,
    )


def _to_inbound(
    update: Update, message: Message, bot: BotIdentity, text: str, *, edited: bool
) -> InboundMessage:
    chat = str(message.chat.id)
    topic = str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else None
    sender = _sender(message)
    thread = topic if bot.strategy == "thread" else None
    user = sender.id if bot.strategy == "chat_user" else None
    key = f"{chat}:{message.message_id}"
    return InboundMessage(
        session=str(SessionKey(bot.channel, str(bot.id), chat, thread, user)),
        # A message can be edited twice within one second, the resolution of the platform's timestamps.
        dedup_key=f"{key}:e{message.edit_date}-{_digest(text)}" if edited else key,
        # Update ids restart at random after a week without updates; with the timestamp they stay unique.
        alt_key=f"{update.update_id}:{message.edit_date or message.date}",
        revises=key if edited else None,
        address=Address(
            channel=bot.channel,
            account=str(bot.id),
            chat=chat,
            thread=topic,
            reply_to=str(message.message_id),
            group=message.chat.type != "private",
        ),
        sender=sender,
        text=text.replace("\0", "\ufffd"),
        order=message.message_id,
        in_reply_to=None if (replied := _reply_target(message)) is None else str(replied.message_id),
        sent_at=message.date * 1000,
    )


def _digest(text: str) -> str:
    return f"{crc32(text.encode(errors='replace')):08x}"


def _sender(message: Message) -> Sender:
    """Return the sender. A message sent on behalf of a chat has that chat as its sender."""
    if message.sender_chat is not None:
        return Sender(str(message.sender_chat.id), message.sender_chat.title)
    if message.sender is None:
        return Sender(_UNKNOWN_SENDER)
    return Sender(str(message.sender.id), message.sender.name)


def _is_by_bot(message: Message, bot: BotIdentity) -> bool:
    """Return whether a bot wrote it: this one, or another, which is ignored to prevent endless loops."""
    sender = message.sender
    on_behalf_of_chat = message.sender_chat is not None
    return sender is not None and (sender.id == bot.id or (sender.is_bot and not on_behalf_of_chat))


def _read_text(
    text: str, entities: Sequence[Entity], bot: BotIdentity
) -> tuple[str, Literal["", "own", "other"]]:
    """Return the text without the bot's name, and whether it is a command of this bot, of another, or
    none."""
    command = _COMMAND.match(text)
    if command is not None and any(e.type == "bot_command" and e.offset == 0 for e in entities):
        name, named = command[1].lower(), command[2]
        if named and named.lower() != bot.username.lower():
            return text, "other"
        rest = text[command.end() :].strip()
        known = bot.commands.get(name, name)
        if name == "start" and name not in bot.commands:
            return "/help", "own"
        return f"/{known} {rest}".strip(), "own"
    return _without_name(text, bot), ""


def _without_name(text: str, bot: BotIdentity) -> str:
    if not bot.username:
        return text
    name = f"@{bot.username.lower()}"
    if text.lower().startswith(name) and not text[len(name) : len(name) + 1].isalnum():
        return text[len(name) :].lstrip(" ,:\n") or text
    return text


def _prevent_command(words: str, message: Message, *, edited: bool) -> str:
    """Prevent a forwarded or edited text from being read as a command, by a prefix."""
    if message.forward_origin is not None:
        return f"Forwarded:\n{words}" if words else ""
    if edited and words.lstrip().startswith("/"):
        return f"Edited: {words}"
    return words


def _is_for_bot(message: Message, call: str, entities: Sequence[Entity], text: str, bot: BotIdentity) -> bool:
    """Return whether a message in a group is for the bot."""
    if call:
        return call == "own"
    if bot.groups == "always":
        return True
    if bot.groups == "command":
        return False
    replied = _reply_target(message)
    if replied is not None and replied.sender is not None and replied.sender.id == bot.id:
        return True
    return bot.groups == "mention" and any(_mentions_bot(entity, text, bot) for entity in entities)


def _mentions_bot(entity: Entity, text: str, bot: BotIdentity) -> bool:
    """Return whether an entity mentions the bot."""
    if entity.type == "text_mention":
        return entity.user is not None and entity.user.id == bot.id
    if entity.type != "mention" or not bot.username:
        return False
    units = text.encode("utf-16-le", "surrogatepass")
    start, stop = 2 * entity.offset, 2 * (entity.offset + entity.length)
    return units[start:stop].decode("utf-16-le", "replace").lower() == f"@{bot.username.lower()}"


def _reply_target(message: Message) -> Replied | None:
    """Return the message that this one replies to; None if that is only the message that opened the topic."""
    replied = message.reply_to_message
    if replied is None or replied.forum_topic_created is not None:
        return None
    return None if message.is_topic_message and replied.message_id == message.message_thread_id else replied


def _quoted(message: Message, bot: BotIdentity) -> str:
    """Return the replied text as a quote to put above the reply: another sender's message, or the selected
    part."""
    replied = _reply_target(message)
    picked = message.quote.text if message.quote is not None else ""
    own = replied is not None and replied.sender is not None and replied.sender.id == bot.id
    text = picked or ("" if own or replied is None else replied.text or replied.caption)
    if not text.strip():
        return ""
    if len(text) > _MAX_QUOTED:
        text = f"{text[:_MAX_QUOTED]}…"
    lines = "\n".join(f"> {line}" for line in text.splitlines())
    return f"{lines}\n\n"


def _files(message: Message) -> Iterable[Attached]:
    if message.photo:
        best = max(message.photo, key=lambda size: (size.width or 0) * (size.height or 0))
        yield Attached("picture", best, "image/jpeg", "")
    if message.voice is not None:
        yield Attached("voice", message.voice, message.voice.mime_type or "audio/ogg", "")
    shown_as_document = message.animation
    for file in (
        shown_as_document or message.document,
        message.audio,
        message.video,
        message.video_note,
    ):
        if file is not None:
            yield Attached("file", file, file.mime_type, file.file_name)


def _placeholder(message: Message) -> str:
    """Return a placeholder for a message without text or file, such as a sticker; empty for other kinds."""
    for name in ("sticker", "location", "contact", "poll"):
        if getattr(message, name) is not None:
            return f"[{name}]"
    return ""
