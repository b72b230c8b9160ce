"""Updates of the Bot API, and what they mean to the gateway. Pure: raw JSON in, values out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal
from zlib import crc32

import msgspec
from msgspec import Struct

from channels.telegram.wire import (
    CallbackQuery,
    Entity,
    File,
    Message,
    Replied,
    StoppedGeneration,
    Update,
)
from gateway import Address, InboundMessage, Rejected, Sender, SessionKey

_MOST_RAW = 100_000
_MOST_QUOTED = 500
_COMMAND = re.compile(r"/([A-Za-z0-9_]{1,64})(?:@([A-Za-z0-9_]+))?(?=\s|$)")
_FIRST_SUPERGROUP = -1_000_000_000_000
_UNKNOWN_SENDER = "0"

FileKind = Literal["picture", "file", "voice"]


class Self(Struct, frozen=True):
    """The bot: its channel, its own number and name, and how it is set up."""

    channel: str
    id: int
    username: str = ""
    groups: str = "mention"
    strategy: str = "thread"
    edits: bool = True
    commands: Mapping[str, str] = {}
    """The names of commands, as typed on the platform, and what they are called here."""


class Attached(Struct, frozen=True):
    """A file that came with a message."""

    kind: FileKind
    file: File
    mime: str
    name: str


class Heard(Struct, frozen=True):
    """A message for the bot. Its files are still on the platform. ``album`` holds it together with others."""

    inbound: InboundMessage
    files: tuple[Attached, ...] = ()
    album: str | None = None


Event = Heard | CallbackQuery | StoppedGeneration | Rejected | None
"""What an update means; None if it is not for the bot."""


def update_id_of(raw: object) -> int | None:
    """The number of an update, whatever else is wrong with it."""
    found: object = raw.get("update_id") if isinstance(raw, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**63 else None


def parse_update(raw: object, me: Self) -> Event:
    """What an update means. One that cannot be read is Rejected, never an error."""
    try:
        update = msgspec.convert(raw, Update)
        return _event(update, me)
    except (msgspec.ValidationError, ValueError, RecursionError, OverflowError) as error:
        return rejected(raw, me, f"{type(error).__name__}: {error}")


def rejected(raw: object, me: Self, reason: str) -> Rejected:
    """An update in quarantine."""
    number = update_id_of(raw)
    try:
        text = msgspec.json.encode(raw).decode()
    except (TypeError, ValueError, RecursionError):
        text = repr(raw)
    return Rejected(str(me.id), "?" if number is None else str(number), text[:_MOST_RAW], reason[:1000])


def message_ids(raw: object) -> Iterable[tuple[int, int]]:
    """The rooms and numbers of all messages that an update tells of."""
    try:
        update = msgspec.convert(raw, Update)
    except (msgspec.ValidationError, ValueError, RecursionError):
        return
    for message in (update.message, update.edited_message):
        if message is not None:
            yield message.chat.id, message.message_id
    if update.callback_query is not None and update.callback_query.message is not None:
        yield update.callback_query.message.chat.id, update.callback_query.message.message_id


def room_of(chat: str) -> str:
    """The row of message numbers that a room belongs to: supergroups have their own, all others share one."""
    return chat if int(chat) < _FIRST_SUPERGROUP else ""


def is_group(chat: str) -> bool:
    """Whether a room is more than a private chat."""
    return chat.startswith("-")


def _event(update: Update, me: Self) -> Event:
    if update.callback_query is not None:
        return update.callback_query
    if update.stopped_message_generation is not None:
        return update.stopped_message_generation
    message = update.message or update.edited_message
    if message is None:
        return None
    return _heard(update, message, me, edited=update.message is None)


def _heard(update: Update, message: Message, me: Self, *, edited: bool) -> Heard | None:
    if (edited and not me.edits) or _is_own(message, me) or message.chat.type == "channel":
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
    if not text and not files and (edited or not _told(message)):
        return None
    words, call = _words(text, entities, me)
    if message.chat.type != "private" and not _is_meant(message, call, entities, text, me):
        return None
    if call == "other":
        return None
    words = _plainly(words, message, edited=edited) or _told(message)
    quoted = "" if words.startswith("/") else _quoted(message, me)
    return Heard(
        _inbound(update, message, me, f"{quoted}{words}", edited=edited),
        files,
        None if edited else message.media_group_id,
    )


def _inbound(update: Update, message: Message, me: Self, text: str, *, edited: bool) -> InboundMessage:
    chat = str(message.chat.id)
    topic = str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else None
    sender = _sender(message)
    thread = topic if me.strategy == "thread" else None
    user = sender.id if me.strategy == "chat_user" else None
    key = f"{chat}:{message.message_id}"
    return InboundMessage(
        session=str(SessionKey(me.channel, str(me.id), chat, thread, user)),
        # Somebody may change a message twice within the second that the platform counts in.
        dedup_key=f"{key}:e{message.edit_date}-{_digest(text)}" if edited else key,
        # Numbers of updates jump back after a quiet week; with the time one is never that of another.
        alt_key=f"{update.update_id}:{message.edit_date or message.date}",
        revises=key if edited else None,
        address=Address(
            channel=me.channel,
            account=str(me.id),
            chat=chat,
            thread=topic,
            reply_to=str(message.message_id),
            group=message.chat.type != "private",
        ),
        sender=sender,
        text=text.replace("\0", "\ufffd"),
        order=message.message_id,
    )


def _digest(text: str) -> str:
    return f"{crc32(text.encode(errors='replace')):08x}"


def _sender(message: Message) -> Sender:
    """Who wrote. Whoever writes in the name of a room is that room."""
    if message.sender_chat is not None:
        return Sender(str(message.sender_chat.id), message.sender_chat.title)
    if message.sender is None:
        return Sender(_UNKNOWN_SENDER)
    return Sender(str(message.sender.id), message.sender.name)


def _is_own(message: Message, me: Self) -> bool:
    """Whether a bot wrote it: this one, or another that must not be answered for ever."""
    sender = message.sender
    in_name_of_room = message.sender_chat is not None
    return sender is not None and (sender.id == me.id or (sender.is_bot and not in_name_of_room))


def _words(text: str, entities: Sequence[Entity], me: Self) -> tuple[str, Literal["", "own", "other"]]:
    """The text without the bot's name, and whether it is a command: the bot's own or another's."""
    command = _COMMAND.match(text)
    if command is not None and any(e.type == "bot_command" and e.offset == 0 for e in entities):
        name, named = command[1].lower(), command[2]
        if named and named.lower() != me.username.lower():
            return text, "other"
        rest = text[command.end() :].strip()
        known = me.commands.get(name, name)
        if name == "start" and name not in me.commands:
            return "/help", "own"
        return f"/{known} {rest}".strip(), "own"
    return _without_name(text, me), ""


def _without_name(text: str, me: Self) -> str:
    if not me.username:
        return text
    name = f"@{me.username.lower()}"
    if text.lower().startswith(name) and not text[len(name) : len(name) + 1].isalnum():
        return text[len(name) :].lstrip(" ,:\n") or text
    return text


def _plainly(words: str, message: Message, *, edited: bool) -> str:
    """What was forwarded or written anew is no command, whatever it looks like."""
    if message.forward_origin is not None:
        return f"Forwarded:\n{words}" if words else ""
    if edited and words.lstrip().startswith("/"):
        return f"Edited: {words}"
    return words


def _is_meant(message: Message, call: str, entities: Sequence[Entity], text: str, me: Self) -> bool:
    """Whether something said in a group is for the bot."""
    if call:
        return call == "own"
    if me.groups == "always":
        return True
    if me.groups == "command":
        return False
    replied = _answered(message)
    if replied is not None and replied.sender is not None and replied.sender.id == me.id:
        return True
    return me.groups == "mention" and any(_names(entity, text, me) for entity in entities)


def _names(entity: Entity, text: str, me: Self) -> bool:
    """Whether an entity is the bot's name."""
    if entity.type == "text_mention":
        return entity.user is not None and entity.user.id == me.id
    if entity.type != "mention" or not me.username:
        return False
    units = text.encode("utf-16-le", "surrogatepass")
    start, stop = 2 * entity.offset, 2 * (entity.offset + entity.length)
    return units[start:stop].decode("utf-16-le", "replace").lower() == f"@{me.username.lower()}"


def _answered(message: Message) -> Replied | None:
    """The message that this one answers: not the one that opened its topic, which is not meant."""
    replied = message.reply_to_message
    if replied is None or replied.forum_topic_created is not None:
        return None
    return None if message.is_topic_message and replied.message_id == message.message_thread_id else replied


def _quoted(message: Message, me: Self) -> str:
    """What is answered, above the answer: what somebody else said, or a part that was picked out."""
    replied = _answered(message)
    picked = message.quote.text if message.quote is not None else ""
    own = replied is not None and replied.sender is not None and replied.sender.id == me.id
    text = picked or ("" if own or replied is None else replied.text or replied.caption)
    if not text.strip():
        return ""
    if len(text) > _MOST_QUOTED:
        text = f"{text[:_MOST_QUOTED]}…"
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


def _told(message: Message) -> str:
    """What a message without words is, where there is no file of it to take in."""
    for name in ("sticker", "location", "contact", "poll"):
        if getattr(message, name) is not None:
            return f"[{name}]"
    return ""
