"""Conversion of events to messages. Pure; raises ValueError for malformed content."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gateway import now_ms
from gateway.channel import Address, Addressing, InboundMessage, Sender, SessionKey, SessionStrategy

Json = dict[str, Any]

MESSAGE = "m.room.message"
_DESCRIBED = {
    "m.sticker": ("sticker", "body"),
    "org.matrix.msc3381.poll.start": ("poll", "org.matrix.msc1767.text"),
}
"""Events that are messages in other words: what they are, and the field of their text."""
NOT_FOR_BOTS = ("m.notice", "m.key.verification.request")
"""Types of messages that are not answered: those of bots, and what Element sends to compare keys."""
_FILES = ("m.image", "m.file", "m.audio", "m.video")
_PLACE = re.compile(r"geo:(-?\d{1,3}(?:\.\d{1,20})?),(-?\d{1,3}(?:\.\d{1,20})?)")
_URI = re.compile(r"mxc://([A-Za-z0-9.:\[\]-]{1,255})/([A-Za-z0-9_=-]{1,255})")
_EVENT = re.compile(r"\$[\x21-\x7e]{1,254}")
_FALLBACK = re.compile(r"> <[^\n]*(\n>[^\n]*)*\n*")
_OTHER = re.compile(r'(<p>)?<a href="https://matrix\.to/#/(@|%40)')
_COMMAND = re.compile(r"[!/]([A-Za-z0-9_-]+)(?=\s|$)")


class Event(Struct, frozen=True):
    """An event of a room; ``content`` is checked where it is used."""

    type: str
    event_id: str
    sender: str
    content: Json
    state_key: str | None = None
    redacts: str | None = None
    origin_server_ts: int = 0
    unsigned: Json = {}

    @property
    def at(self) -> int:
        """The time in ms that its server claims, if that can be."""
        return self.origin_server_ts if 0 < self.origin_server_ts < now_ms() else now_ms()


class File(Struct, frozen=True):
    """A file of a message, by the two parts of its URI; they are empty if it has none."""

    name: str
    mime_type: str
    place: tuple[str, str]


class Relation(Struct, frozen=True):
    """The event that a message changes or the root of its thread, and the event that it replies to."""

    kind: str = ""
    event: str = ""
    reply_to: str | None = None


class Place(Struct, frozen=True):
    """The room of a message, and the name that its author has there."""

    room: str
    group: bool = True
    title: str = ""
    name: str = ""


class Bot(Struct, frozen=True):
    """The account, its display name, and the settings that decide how events are read."""

    channel: str
    me: str
    name: str
    strategy: SessionStrategy
    commands: Collection[str]


def event_of(raw: object) -> Event:
    """Return an event; a sticker or a poll as a message with its description. Raises ValueError."""
    event = msgspec.convert(raw, Event)
    kind, field = _DESCRIBED.get(event.type, ("", ""))
    if not kind or not event.content:
        return event
    described = " ".join(as_text(event.content.get(field)).split())
    content = {**event.content, "msgtype": "m.text", "body": f"[{kind}: {described}]"}
    return replace(event, type=MESSAGE, content=content)


def relation(content: Json) -> Relation:
    """Return the relation of a message's content."""
    given = as_object(content.get("m.relates_to"))
    kind, event = as_text(given.get("rel_type")), event_id(given.get("event_id"))
    reply = event_id(as_object(given.get("m.in_reply_to")).get("event_id")) or None
    if kind == "m.thread" and given.get("is_falling_back") is True:
        reply = None
    return Relation(kind if event else "", event, reply)


def latest(event: Event) -> Json:
    """Return the content of a message with its newest edit, as the homeserver adds it."""
    edit = as_object(as_object(event.unsigned.get("m.relations")).get("m.replace"))
    return as_object(as_object(edit.get("content")).get("m.new_content")) or event.content


def text_of(content: Json, reply: bool) -> str:
    """Return what the user wrote: of a file its caption, of a reply the text without the quote.

    A location is its coordinates; clients write anything beside them.
    """
    body = content.get("body")
    if not isinstance(body, str):
        raise ValueError("the body is not a text")
    if content.get("msgtype") in _FILES and content.get("filename") in (None, body):
        return ""
    if content.get("msgtype") == "m.location" and (place := _PLACE.match(as_text(content.get("geo_uri")))):
        return f"[location: {place[1]}, {place[2]}]"
    return _FALLBACK.sub("", body, count=1) if reply and _FALLBACK.match(body) else body


def file_of(content: Json) -> File | None:
    """Return the file of a message. An encrypted file has no URI here."""
    if content.get("msgtype") not in _FILES:
        return None
    found = _URI.fullmatch(as_text(content.get("url")))
    name = as_text(content.get("filename")) or as_text(content.get("body")) or "file"
    mime_type = as_text(as_object(content.get("info")).get("mimetype"))
    return File(name, mime_type, (found[1], found[2]) if found else ("", ""))


def message_of(
    event: Event, original: Event, content: Json, bot: Bot, place: Place, order: int
) -> InboundMessage:
    """Return the message of an event; for an edit ``original`` is the event that it changes."""
    related = relation(original.content)
    thread = related.event if related.kind == "m.thread" else None
    own_thread = thread if bot.strategy == "thread" else None
    user = event.sender if bot.strategy == "chat_user" else None
    text = text_of(content, related.reply_to is not None)
    addressed: Addressing = "none" if place.group else "direct"
    mentioned = as_object(content.get("m.mentions")).get("user_ids")
    named = rf"@?{re.escape(bot.name)}" if bot.name else re.escape(bot.me)
    called = re.compile(rf"\s*({re.escape(bot.me)}|{named})(?=[\s:,]|$)[:,]?\s*", re.IGNORECASE)
    leads = called.match(text)
    if place.group and (leads or bot.me in text or (isinstance(mentioned, list) and bot.me in mentioned)):
        addressed = "mention"
    text = text[leads.end() :] if leads else text
    command = _COMMAND.match(text)
    if command and command[1] in bot.commands:
        text = f"/{text[1:]}"
        addressed = "command" if place.group else "direct"
    return InboundMessage(
        session=str(SessionKey(bot.channel, bot.me, place.room, own_thread, user)),
        dedup_key=event.event_id,
        revises=original.event_id if original is not event else None,
        address=Address(bot.channel, bot.me, place.room, thread, original.event_id, place.group, place.title),
        sender=Sender(event.sender, place.name, event.sender[1:]),
        addressed=addressed,
        text=text.strip(),
        in_reply_to=related.reply_to,
        order=order,
        sent_at=original.at,
    )


def for_another(content: Json) -> bool:
    """Return whether a message begins with a mention, which is not of the bot."""
    html, body = as_text(content.get("formatted_body")), as_text(content.get("body"))
    return _OTHER.match(html) is not None or re.match(r"@\S+:\S", body) is not None


def event_id(value: object) -> str:
    """Return an id of an event, and an empty text for everything else: a call with it might never succeed."""
    return value if isinstance(value, str) and _EVENT.fullmatch(value) else ""


def as_object(value: object) -> Json:
    """Return an object as it is, and an empty one for every other type."""
    return cast(Json, value) if isinstance(value, dict) else {}


def as_text(value: object) -> str:
    """Return a text as it is, and an empty one for every other type."""
    return value if isinstance(value, str) else ""


def as_list(value: object) -> list[Any]:
    """Return a list as it is, and an empty one for every other type."""
    return cast(list[Any], value) if isinstance(value, list) else []
