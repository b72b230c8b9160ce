"""Bot API updates as sent on the wire, with the fields that the channel uses.

Unknown fields are ignored, so that additions to the platform break nothing.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NoReturn

import msgspec
from msgspec import Meta, Struct, field

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
        return _leniently(payload)


def _leniently(payload: bytes) -> Any:
    """Decode JSON that ``msgspec`` refuses but other parsers accept: one bad text must not block up to 100
    updates."""
    try:
        value = json.loads(payload.decode(errors="replace"), parse_constant=_no_number)
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return json.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
