"""Conversion of Bot API updates to gateway events. Pure: raw JSON in, values out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn, cast
from zlib import crc32

import msgspec
from msgspec.structs import replace

from channels.telegram.updates.chats import business_chat, chat_of
from channels.telegram.updates.content import files_of, text_of, unreadable_kind
from channels.telegram.updates.objects import (
    BusinessConnection,
    CallbackQuery,
    DeletedBusinessMessages,
    Entity,
    InlineQuery,
    Message,
    Reaction,
    StoppedGeneration,
    Update,
)
from channels.telegram.updates.quotes import (
    earlier,
    forwarded,
    is_reply_to,
    replied,
    reply_target,
    sender_of,
    topic_name,
)
from channels.telegram.updates.received import Attached, BotIdentity, GroupMigration, ReceivedMessage
from gateway.channel import (
    Address,
    Addressing,
    Feedback,
    InboundMessage,
    InvalidRequestError,
    MessageLink,
    Quoted,
    Rejected,
    SessionKey,
    SessionStrategy,
    Withdrawal,
    feedback_value,
)


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
_COMMAND = re.compile(r"/([A-Za-z0-9_]{1,64})(?:@([A-Za-z0-9_]+))?(?=\s|$)")

_MESSAGES = ("message", "business_message", "channel_post")
_EDITS = ("edited_message", "edited_business_message", "edited_channel_post")

Event = (
    ReceivedMessage
    | CallbackQuery
    | StoppedGeneration
    | Feedback
    | BusinessConnection
    | DeletedBusinessMessages
    | GroupMigration
    | InlineQuery
    | Rejected
    | None
)
"""Meaning of an update; None if the update is not for the bot."""


def update_id_of(raw: object) -> int | None:
    """Return the id of an update, even if the rest of it is invalid; None if it has none."""
    found: object = raw.get("update_id") if isinstance(raw, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**63 else None


def parse_update(raw: object, bot: BotIdentity) -> Event:
    """Return the meaning of an update. Returns Rejected, never raises, for one that cannot be read."""
    try:
        update = msgspec.convert(raw, Update)
        return _meaning(raw, update, bot)
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


def named_topic(raw: object) -> tuple[str, str, str] | None:
    """Return chat, topic and name of the topic that an update names; None if it names none."""
    try:
        update = msgspec.convert(raw, Update)
    except (msgspec.ValidationError, ValueError, RecursionError):
        return None
    message = update.message or update.edited_message
    if message is None or not message.message_thread_id or not (name := topic_name(message)):
        return None
    return chat_of(message), str(message.message_thread_id), name


def message_ids(raw: object) -> Iterable[tuple[str, int]]:
    """Return chat and message id of each message in an update."""
    try:
        update = msgspec.convert(raw, Update)
    except (msgspec.ValidationError, ValueError, RecursionError):
        return
    pressed = None if update.callback_query is None else update.callback_query.message
    for message in (*(getattr(update, kind) for kind in (*_MESSAGES, *_EDITS)), pressed):
        if message is not None:
            yield chat_of(message), message.message_id


def withdrawals(deleted: DeletedBusinessMessages, bot: BotIdentity) -> Iterable[Withdrawal]:
    """Return the deletions of messages."""
    chat = business_chat(deleted.business_connection_id, deleted.chat.id)
    return (Withdrawal(str(bot.id), f"{chat}:{number}") for number in deleted.message_ids)


def stopped_session(stopped: StoppedGeneration, bot: BotIdentity) -> str:
    """Return the session of an answer that a user stopped; only private chats show drafts with a Stop
    button."""
    chat = str(stopped.chat.id)
    thread = None if stopped.message_thread_id is None else str(stopped.message_thread_id)
    user = chat if bot.strategy == "chat_user" else None
    return str(SessionKey(bot.channel, str(bot.id), chat, thread if bot.strategy == "thread" else None, user))


def session_of(
    address: Address, channel: str, account: str, strategy: SessionStrategy, groups: Mapping[str, str]
) -> str:
    """Return the session of a chat. Raises InvalidRequestError for an address of another bot or no chat.

    ``groups`` are the ids of groups by those of the supergroups that they became.
    """
    chat, thread = address.chat, address.thread
    if address.account != account:
        raise InvalidRequestError(f"the account of {channel} is {account!r}, not {address.account!r}")
    if not _CHAT.fullmatch(chat) or not (thread is None or thread.isdecimal()):
        raise InvalidRequestError(f"{chat!r} with the topic {thread!r} is not the id of a Telegram chat")
    # In a private chat the user's id is that of the chat.
    user = chat if strategy == "chat_user" and chat.isdecimal() else None
    thread = thread if strategy == "thread" else None
    return str(SessionKey(channel, account, groups.get(chat, chat), thread, user))


_CHAT = re.compile(r"-?\d+|(channel|business):.+")
_LINK = re.compile(r"https://(?:t|telegram)\.me/c/(\d{1,20})/(?:\d{1,20}/)?(\d{1,20})(?:\?.*)?")


def _feedback(reaction: Reaction, bot: BotIdentity) -> Feedback | None:
    """Return what a user's reactions say about a message; None for an anonymous user."""
    if reaction.user is None or reaction.user.is_bot:
        return None
    value = feedback_value(one.emoji for one in reaction.new_reaction)
    added = {one.emoji for one in reaction.new_reaction} - {one.emoji for one in reaction.old_reaction}
    stops = bool(bot.stop_reaction) and bot.stop_reaction in added
    chat, message = str(reaction.chat.id), str(reaction.message_id)
    return Feedback(str(bot.id), chat, message, str(reaction.user.id), value, stops)


def _meaning(raw: object, update: Update, bot: BotIdentity) -> Event:
    kind, value = next(((kind, one) for kind in bot.kinds if (one := getattr(update, kind))), ("", None))
    match value:
        case CallbackQuery() | StoppedGeneration() | InlineQuery():
            return value
        case BusinessConnection() | DeletedBusinessMessages():
            return value
        case Reaction():
            return _feedback(value, bot)
        case Message(migrate_to_chat_id=int(supergroup)):
            return GroupMigration(str(value.chat.id), str(supergroup))
        case Message(migrate_from_chat_id=int(group)):
            return GroupMigration(str(group), str(value.chat.id))
        case Message() if not _is_by_bot(value, bot):
            _check_chat(kind, value)
            if kind in _EDITS:
                return _parse_edit(update, value, bot)
            fields = cast("Mapping[str, Mapping[str, object]]", raw)[kind]
            return _parse_message(update, value, _text(fields, value), bot)
        case _:
            return None


def _check_chat(kind: str, message: Message) -> None:
    """Raise ValueError for a message in a chat that its kind of update does not come from."""
    if ("business" in kind) != bool(message.business_connection_id):
        raise ValueError(f"{kind} of the business connection {message.business_connection_id!r}")
    if ("channel" in kind) != (message.chat.type == "channel"):
        raise ValueError(f"{kind} of a chat of type {message.chat.type}")


def _text(fields: Mapping[str, object], message: Message) -> str:
    """Return the text of a message; in a private chat, one without text and files names its kind."""
    said = text_of(message)
    if said or message.chat.type != "private" or any(files_of(message)):
        return said
    kind = unreadable_kind(fields)
    return "" if kind is None else f"[unsupported message: {kind.replace('_', ' ')}]"


def _parse_edit(update: Update, message: Message, bot: BotIdentity) -> ReceivedMessage | None:
    """Return an edited message. Edits of other content are its updates, such as those of a live location."""
    is_text = message.written[0] or message.rich_message is not None or any(files_of(message))
    if not (bot.edits and is_text):
        return None
    return _parse_message(update, message, text_of(message), bot, edited=True)


def _parse_message(
    update: Update, message: Message, said: str, bot: BotIdentity, *, edited: bool = False
) -> ReceivedMessage | None:
    is_private = message.chat.type == "private"
    files: tuple[Attached, ...] = tuple(files_of(message))
    quoted: tuple[tuple[Quoted, ...], tuple[Attached, ...]]
    if not said and not files:
        return None
    if message.forward_origin is not None:
        # The words are another user's: they are not a command, a mention or an answer to a question.
        words, call, to_another = "", "", False
        quoted, files = forwarded(message, said, bot.id), ()
    else:
        words, call = _read_text(said, message.written[1], bot, is_private=is_private)
        to_another = _begins_with_another(message, bot)
        if edited and words.lstrip().startswith("/"):
            words = f"Edited: {words}"
        quoted = ((), ()) if words.startswith("/") else replied(message, bot.id)
    if call == "other":
        return None
    quotes, quoted_files = quoted
    inbound = _to_inbound(update, message, bot, words, quotes, (*files, *quoted_files), edited=edited)
    if not is_private:
        inbound = replace(inbound, addressed=_addressed(message, call, bot))
    return ReceivedMessage(
        inbound,
        (*files, *quoted_files),
        message.media_group_id,
        earlier(message, bot.id),
        to_another,
    )


def _to_inbound(
    update: Update,
    message: Message,
    bot: BotIdentity,
    text: str,
    quotes: tuple[Quoted, ...],
    files: Iterable[Attached],
    *,
    edited: bool,
) -> InboundMessage:
    chat = chat_of(message)
    topic = str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else None
    sender = sender_of(message)
    thread = topic if bot.strategy == "thread" else None
    user = sender.id if bot.strategy == "chat_user" else None
    key = f"{chat}:{message.message_id}"
    target = reply_target(message)
    is_private = message.chat.type == "private"
    return InboundMessage(
        session=str(SessionKey(bot.channel, str(bot.id), bot.groups.get(chat, chat), thread, user)),
        # A message can be edited twice within one second, the resolution of the platform's timestamps.
        dedup_key=f"{key}:e{message.edit_date}-{_digest(text, files)}" if edited else key,
        # Update ids restart at random after a week without updates; with the timestamp they stay unique.
        alt_key=f"{update.update_id}:{message.edit_date or message.date}",
        revises=key if edited else None,
        address=Address(
            channel=bot.channel,
            account=str(bot.id),
            chat=chat,
            thread=topic,
            reply_to=str(message.message_id),
            # The owner of a business account reads the chat, too.
            group=not is_private or bool(message.business_connection_id),
            title="" if is_private else _title(message, bot.topics.get((chat, topic or ""), "")),
        ),
        sender=sender,
        text=text.replace("\0", "\ufffd"),
        order=message.message_id,
        in_reply_to=None if target is None else str(target.message_id),
        sent_at=message.date * 1000,
        quotes=quotes,
    )


def _title(message: Message, topic: str) -> str:
    return f"{message.chat.title} / {topic}" if topic else message.chat.title


def _digest(text: str, files: Iterable[Attached]) -> str:
    """Return a digest of what an edit can change."""
    content = "\n".join((text, *(file.file.file_id for file in files)))
    return f"{crc32(content.encode(errors='replace')):08x}"


def _is_by_bot(message: Message, bot: BotIdentity) -> bool:
    """Return whether a bot wrote it: this one, or another, which is ignored to prevent endless loops.

    In a business chat, so is what the owner of the account wrote, or a bot on the owner's behalf.
    """
    sender = message.sender
    if message.business_connection_id and (sender is None or sender.id != message.chat.id):
        return True
    on_behalf_of_chat = message.sender_chat is not None
    return sender is not None and (sender.id == bot.id or (sender.is_bot and not on_behalf_of_chat))


def _read_text(
    text: str, entities: Sequence[Entity], bot: BotIdentity, *, is_private: bool
) -> tuple[str, Literal["", "own", "other"]]:
    """Return the text without the bot's name, and whether it is a command of this bot, of another, or
    none."""
    command = _COMMAND.match(text)
    if command is not None and any(e.type == "bot_command" and e.offset == 0 for e in entities):
        name, named = command[1].lower(), command[2]
        if named and named.lower() != bot.username.lower() and not is_private:
            return text, "other"
        rest = text[command.end() :].strip()
        known = bot.commands.get(name, name)
        if name == "start" and name not in bot.commands:
            return "/help", "own"
        return f"/{known} {rest}".strip(), "own"
    bare = _without_name(text, bot)
    return (bare or text if is_private else bare), ""


def _without_name(text: str, bot: BotIdentity) -> str:
    if not bot.username:
        return text
    name = f"@{bot.username.lower()}"
    if text.lower().startswith(name) and not text[len(name) : len(name) + 1].isalnum():
        return text[len(name) :].lstrip(" ,:\n")
    return text


def _addressed(message: Message, call: str, bot: BotIdentity) -> Addressing:
    """Return the way in which a message in a group addresses the bot."""
    if call:
        return "command"
    if is_reply_to(message, bot.id):
        return "reply"
    text, entities = message.written
    mentioned = message.forward_origin is None and any(_mentions_bot(one, text, bot) for one in entities)
    return "mention" if mentioned else "none"


def _mentions_bot(entity: Entity, text: str, bot: BotIdentity) -> bool:
    """Return whether an entity mentions the bot."""
    if entity.type == "text_mention":
        return entity.user is not None and entity.user.id == bot.id
    if entity.type != "mention" or not bot.username:
        return False
    return entity.within(text).lower() == f"@{bot.username.lower()}"


def _begins_with_another(message: Message, bot: BotIdentity) -> bool:
    """Return whether a message begins with a mention of another user."""
    text, entities = message.written
    first = [one for one in entities if one.type in ("mention", "text_mention") and one.offset == 0]
    return bool(first) and not any(_mentions_bot(entity, text, bot) for entity in first)


def link_of(text: str) -> MessageLink | None:
    """Return the message that a link names. Links to private chats and by names of chats have no chat id."""
    found = _LINK.fullmatch(text.strip())
    if found is None:
        return None
    chat = f"-100{found[1]}"
    return MessageLink(chat, found[2], f"{chat}:{found[2]}")
