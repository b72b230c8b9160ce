"""People, rooms and messages as the Bot API writes them."""

from __future__ import annotations

from typing import Any

from channels.telegram.fake.rooms import Chat, Message, Person


def person_json(person: Person) -> dict[str, Any]:
    """A ``User``."""
    shown: dict[str, Any] = {"id": person.id, "is_bot": person.is_bot, "first_name": person.first_name}
    if person.last_name:
        shown["last_name"] = person.last_name
    if person.username:
        shown["username"] = person.username
    if not person.is_bot:
        shown["language_code"] = person.language_code
    return shown


def chat_json(chat: Chat) -> dict[str, Any]:
    """A ``Chat``."""
    if chat.kind == "private":
        person = next(iter(chat.members.values()))
        shown: dict[str, Any] = {"id": chat.id, "first_name": person.first_name, "type": "private"}
        return shown | ({"username": person.username} if person.username else {})
    shown = {"id": chat.id, "title": chat.title, "type": chat.kind}
    return shown | ({"is_forum": True} if chat.forum else {})


def message_json(chat: Chat, message: Message, *, with_reply: bool = True) -> dict[str, Any]:
    """A ``Message``. In a topic of a group one that answers nothing answers the message that opened the
    topic."""
    shown: dict[str, Any] = {
        "message_id": message.id,
        "from": person_json(message.sender),
        "chat": chat_json(chat),
        "date": message.date,
    }
    if message.edited is not None:
        shown["edit_date"] = message.edited
    if message.thread is not None:
        shown["message_thread_id"] = message.thread
    if with_reply and (answered := chat.messages.get(_answered(chat, message))) is not None:
        shown["reply_to_message"] = message_json(chat, answered, with_reply=False)
    if message.album is not None:
        shown["media_group_id"] = message.album
    shown |= _content(message)
    shown |= message.more
    if message.markup is not None:
        shown["reply_markup"] = message.markup
    if message.in_topic:
        shown["is_topic_message"] = True
    return shown


def _answered(chat: Chat, message: Message) -> int:
    """The number of the message that this one answers; 0 for none."""
    if message.reply_to is not None:
        return message.reply_to
    implied = message.thread if chat.kind == "supergroup" else None
    return implied if implied is not None and implied < message.id else 0


def _content(message: Message) -> dict[str, Any]:
    if message.service:
        return dict(message.media)
    name = "caption" if message.media and "rich_message" not in message.media else "text"
    shown = dict(message.media)
    if message.text and "rich_message" not in message.media:
        shown[name] = message.text
    if message.entities:
        shown["entities" if name == "text" else "caption_entities"] = list(message.entities)
    return shown
