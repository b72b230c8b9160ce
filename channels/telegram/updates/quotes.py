"""Messages that a message points at: replied to, selected in part, or forwarded. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from channels.telegram.updates.chats import chat_of
from channels.telegram.updates.content import VOICE, chosen_text, files_of, marked, story_text, text_of
from channels.telegram.updates.objects import (
    Chat,
    Content,
    ExternalReply,
    Message,
    Origin,
    Quote,
    User,
    read,
)
from channels.telegram.updates.received import Attached
from gateway.channel import Earlier, Quoted, Sender

UNKNOWN_SENDER = "0"
_MAX_TEXT = 8_000


def sender_of(message: Message) -> Sender:
    """Return the sender. A message sent on behalf of a chat has that chat as its sender."""
    return _sender(message.sender, message.sender_chat) or Sender(UNKNOWN_SENDER)


def reply_target(message: Message) -> Message | None:
    """Return the message that this one replies to; None if that is only the message that opened the topic."""
    replied = read(message.reply_to_message, Message)
    if replied is None or replied.forum_topic_created is not None:
        return None
    return None if message.is_topic_message and replied.message_id == message.message_thread_id else replied


class _Topic(Struct, frozen=True):
    name: str = ""


def topic_name(message: Message) -> str:
    """Return the name of a message's topic, if the message has it; only some have."""
    begin = read(message.reply_to_message, Message)
    for raw in (message.forum_topic_edited, message.forum_topic_created, begin and begin.forum_topic_created):
        topic = read(raw, _Topic)
        if topic is not None and topic.name:
            return topic.name
    return ""


def is_reply_to(message: Message, bot: int) -> bool:
    """Return whether a message replies to one of the bot, of this chat or another."""
    replied, external = reply_target(message), read(message.external_reply, ExternalReply)
    if replied is not None:
        return _is_by(replied, bot)
    return external is not None and _is_of(read(external.origin, Origin), bot)


def forwarded(message: Message, text: str, bot: int) -> tuple[tuple[Quoted, ...], tuple[Attached, ...]]:
    """Return the quote of a forwarded message with a text, and its files."""
    origin = read(message.forward_origin, Origin)
    shown = VOICE if message.voice is not None and not text.strip() else _capped(text)
    return (Quoted("forward", shown, _author(origin), own=_is_of(origin, bot)),), tuple(files_of(message, 0))


def replied(message: Message, bot: int) -> tuple[tuple[Quoted, ...], tuple[Attached, ...]]:
    """Return the quote of the message that this one replies to, with its files.

    A message of the bot is not repeated: only the part of it that the user selected, and its files.
    """
    if not (message.reply_to_message or message.external_reply or message.quote or message.reply_to_story):
        return (), ()
    target, external = reply_target(message), read(message.external_reply, ExternalReply)
    if target is not None:
        # A forwarded message is by its author, not by the user who forwarded it.
        origin = read(target.forward_origin, Origin)
        content, sender = target, sender_of(target) if origin is None else _author(origin)
    elif external is not None:
        content, sender = external, _author(read(external.origin, Origin))
    elif story := story_text(message.reply_to_story):
        return (Quoted("reply", story),), ()
    else:
        content, sender = Content(), None
    own = is_reply_to(message, bot)
    files = tuple(file for file in files_of(content, 0) if not (own and file.kind == "voice"))
    picked = _selected(message, content)
    text = picked or ("" if own else _quotable(content))
    if not text and not files:
        return (), ()
    return (Quoted("quote" if picked else "reply", text, sender, own=own),), files


def earlier(message: Message, bot: int) -> Earlier | None:
    """Return the message of the same chat that a message replies to, as context."""
    target = reply_target(message)
    if target is None:
        return None
    return Earlier(
        key=f"{chat_of(message)}:{target.message_id}",
        sender=sender_of(target),
        text=_quotable(target),
        at=target.date * 1000,
        files=file_names(files_of(target)),
        own=_is_by(target, bot),
        bot=target.sender is not None and target.sender.is_bot and target.sender_chat is None,
    )


def file_names(files: Iterable[Attached]) -> tuple[str, ...]:
    """Return the names of files as context shows them."""
    return tuple(file.name for file in files)


def _selected(message: Message, content: Content) -> str:
    """Return the part of a message that the user selected: of its text, or of a list or poll."""
    quote = read(message.quote, Quote)
    picked = "" if quote is None else marked(quote.text, quote.entities)
    if not picked.strip():
        picked = chosen_text(content, message.reply_to_checklist_task_id, message.reply_to_poll_option_id)
    return _capped(picked) if picked.strip() else ""


def _quotable(content: Content) -> str:
    text = text_of(content)
    return _capped(text if text.strip() or content.voice is None else VOICE)


def _capped(text: str) -> str:
    cut = text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"
    return cut.replace("\0", "\ufffd")


def _is_by(message: Message, bot: int) -> bool:
    author = message.sender_business_bot or message.sender
    return author is not None and author.id == bot and message.sender_chat is None


def _is_of(origin: Origin | None, bot: int) -> bool:
    return origin is not None and origin.sender_user is not None and origin.sender_user.id == bot


def _sender(user: User | None, chat: Chat | None) -> Sender | None:
    if chat is not None:
        return Sender(str(chat.id), chat.title or chat.first_name, chat.username)
    return None if user is None else Sender(str(user.id), user.name, user.username)


def _author(origin: Origin | None) -> Sender | None:
    """Return the author of a message of another chat; only a name if the user hides the account."""
    if origin is None:
        return None
    found = _sender(origin.sender_user, origin.sender_chat or origin.chat)
    return found or (Sender(UNKNOWN_SENDER, origin.sender_user_name) if origin.sender_user_name else None)
