"""Where a message of the bot goes: its topic, what it answers, its keyboard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from channels.telegram.fake.parser import Entity
from channels.telegram.fake.refusal import bad, mistaken
from channels.telegram.fake.request import Request
from channels.telegram.fake.rooms import GENERAL, Chat, Message
from channels.telegram.fake.shown import person_json
from channels.telegram.fake.text import Styled
from channels.telegram.fake.world import World

_MOST_BUTTONS = 100


class Content(Struct, frozen=True, kw_only=True):
    """What a message says: text or caption, files, and what else stands in its JSON."""

    text: str = ""
    entities: tuple[Entity, ...] = ()
    media: Mapping[str, Any] = {}
    more: Mapping[str, Any] = {}


def content_of(world: World, styled: Styled, media: Mapping[str, Any] | None = None) -> Content:
    """A text or a caption, with the files above it; people in it are told by more than a number."""
    people = {person.id: person for person in world.people.values()}
    entities: list[Entity] = []
    for entity in styled.entities:
        if "user" not in entity:
            entities.append(entity)
        elif (person := people.get(entity["user"]["id"])) is not None:
            entities.append(entity | {"user": person_json(person)})
    return Content(text=styled.text, entities=tuple(entities), media=media or {})


def placed(world: World, request: Request, content: Content, *, album: str | None = None) -> Message:
    """A new message of the bot, with what every send method takes besides its content."""
    markup, keyboard = markup_of(request)
    chat = world.writable(request["chat_id"])
    answered = _answered(chat, request)
    thread, in_topic = thread_of(world, chat, request.get("message_thread_id"), answered)
    protected = {"has_protected_content": True} if request.get("protect_content") else {}
    for draft in [draft for draft in chat.drafts.values() if draft.thread == thread]:
        del chat.drafts[draft.thread, draft.id]
    message = Message(
        id=world.next_id(chat),
        chat=chat.id,
        date=world.clock.date(),
        sender=world.bot,
        text=content.text,
        entities=content.entities,
        media=content.media,
        more={**content.more, **protected},
        markup=markup,
        keyboard=keyboard,
        thread=thread,
        in_topic=in_topic,
        reply_to=answered.id if answered is not None else None,
        album=album,
    )
    return world.place(message)


def thread_of(
    world: World, chat: Chat, wanted: int | None, answered: Message | None
) -> tuple[int | None, bool]:
    """The thread that a message belongs to, and whether it is a topic. Raises Refused for one that is not
    there."""
    has_topics = chat.forum or (chat.kind == "private" and world.traits.topics)
    if wanted and (chat.forum or chat.kind == "private"):
        topic = chat.topics.get(wanted) if has_topics and wanted != GENERAL else None
        if topic is None:
            raise bad("message thread not found")
        if topic.closed and chat.status != "administrator":
            raise bad("TOPIC_CLOSED")
        return topic.id, True
    if answered is None or chat.kind == "group":
        return None, False
    if has_topics:
        return answered.thread, answered.in_topic
    if chat.kind == "supergroup":
        return answered.thread or answered.id, False
    return None, False


def markup_of(request: Request) -> tuple[Mapping[str, Any] | None, bool]:
    """The buttons under a message, and whether it has another keyboard instead, so that it is never
    edited."""
    given: Mapping[str, Any] = request.get("reply_markup") or {}
    rows = [row for row in given.get("inline_keyboard", ()) if row]
    for row in rows:
        for button in row:
            if len(button) < 2 or not button["text"]:
                text = "can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard"
                raise mistaken(text)
    if sum(map(len, rows)) > _MOST_BUTTONS:
        raise mistaken("reply markup is too long", f"more than {_MOST_BUTTONS} buttons")
    if rows:
        return {"inline_keyboard": rows}, False
    return None, any(given.get(name) for name in ("keyboard", "remove_keyboard", "force_reply"))


def _answered(chat: Chat, request: Request) -> Message | None:
    """The message that is replied to. Raises Refused if it does not stand, unless it may be missing."""
    given: Mapping[str, Any] = request.get("reply_parameters") or {}
    if not given.get("message_id"):
        return None
    message = chat.messages.get(given["message_id"])
    if message is None and not given.get("allow_sending_without_reply"):
        raise bad("message to be replied not found")
    if message is not None and given.get("quote", "") not in message.text:
        raise bad("QUOTE_TEXT_INVALID")
    return message
