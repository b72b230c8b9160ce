"""Objects of the Bot API, with the fields that the channel uses.

Unknown fields are ignored, so that additions to the platform break nothing. Fields of type ``object`` are
read with ``read``, which returns None for a malformed one: it does not make the whole update unreadable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, field

T = TypeVar("T")

Number = Annotated[int, Meta(ge=-(2**53), le=2**53)]
"""Any number of the platform. Telegram's are at most 2**53, and the store accepts no larger ones."""


ConnectionId = Annotated[str, Meta(pattern=r"^[!-9;-~]{0,200}$")]
"""Id of a business connection. Sessions and keys contain it."""


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
    username: str = ""
    first_name: str = ""


class Entity(Struct, frozen=True):
    """A marked part of a text; offset and length count UTF-16 units."""

    type: str
    offset: Number
    length: Number
    user: User | None = None
    url: str = ""
    language: str = ""

    def within(self, text: str) -> str:
        """Return the part of a text that it marks."""
        units = text.encode("utf-16-le", "surrogatepass")
        start, stop = max(0, 2 * self.offset), max(0, 2 * (self.offset + self.length))
        return units[start:stop].decode("utf-16-le", "replace")


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
    entities: tuple[Entity, ...] = ()


class Origin(Struct, frozen=True):
    """The author of a forwarded message, or of one in another chat: a user, a name, a chat or a channel."""

    sender_user: User | None = None
    sender_user_name: str = ""
    sender_chat: Chat | None = None
    chat: Chat | None = None


class Content(Struct, frozen=True, kw_only=True):
    """The content that messages, and messages of other chats that are replied to, have in common."""

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
    live_photo: object = None
    paid_media: object = None
    sticker: object = None
    story: object = None
    venue: object = None
    location: object = None
    contact: object = None
    poll: object = None
    dice: object = None
    checklist: object = None
    game: object = None
    invoice: object = None
    giveaway: object = None
    giveaway_winners: object = None
    rich_message: object = None

    @property
    def written(self) -> tuple[str, Sequence[Entity]]:
        """The text or caption, and its entities."""
        return (self.text, self.entities) if self.text else (self.caption, self.caption_entities)


class Message(Content, frozen=True, kw_only=True):
    """A message in a chat."""

    message_id: Number
    chat: Chat
    date: Number = 0
    edit_date: Number = 0
    sender: User | None = field(default=None, name="from")
    sender_chat: Chat | None = None
    business_connection_id: ConnectionId = ""
    sender_business_bot: User | None = None
    message_thread_id: Number | None = None
    is_topic_message: bool = False
    forward_origin: object = None
    reply_to_message: object = None
    external_reply: object = None
    reply_to_story: object = None
    reply_to_checklist_task_id: object = None
    reply_to_poll_option_id: object = None
    quote: object = None
    media_group_id: str | None = None
    forum_topic_created: object = None
    forum_topic_edited: object = None
    migrate_to_chat_id: Number | None = None
    migrate_from_chat_id: Number | None = None


class ExternalReply(Content, frozen=True, kw_only=True):
    """A message of another chat or topic that is replied to; it comes without its text."""

    origin: object = None


class Pressed(Struct, frozen=True):
    """The message with the pressed button."""

    message_id: Number
    chat: Chat
    business_connection_id: ConnectionId = ""


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


class ReactionType(Struct, frozen=True):
    """A reaction; ``emoji`` is empty for other kinds, such as paid ones."""

    type: str
    emoji: str = ""


class Reaction(Struct, frozen=True):
    """A user changed their reactions to a message; anonymous users have no id."""

    chat: Chat
    message_id: Number
    user: User | None = None
    old_reaction: tuple[ReactionType, ...] = ()
    new_reaction: tuple[ReactionType, ...] = ()


class BusinessRights(Struct, frozen=True):
    """The rights of the bot in a business account."""

    can_reply: bool = False


class BusinessConnection(Struct, frozen=True):
    """The connection of the bot with the business account of a user."""

    id: ConnectionId
    user: User
    is_enabled: bool = False
    rights: BusinessRights | None = None

    @property
    def may_reply(self) -> bool:
        """Return whether the bot may write in the chats of the account."""
        return self.rights is not None and self.rights.can_reply


class DeletedBusinessMessages(Struct, frozen=True):
    """Messages of a business chat were deleted."""

    business_connection_id: ConnectionId
    chat: Chat
    message_ids: tuple[Number, ...] = ()


class InlineQuery(Struct, frozen=True):
    """A user types behind the bot's name in any chat."""

    id: str
    sender: User = field(name="from")
    query: str = ""


class Update(Struct, frozen=True):
    """One update; at most one of the optional fields is set."""

    update_id: Number
    message: Message | None = None
    edited_message: Message | None = None
    callback_query: CallbackQuery | None = None
    stopped_message_generation: StoppedGeneration | None = None
    message_reaction: Reaction | None = None
    business_connection: BusinessConnection | None = None
    business_message: Message | None = None
    edited_business_message: Message | None = None
    deleted_business_messages: DeletedBusinessMessages | None = None
    channel_post: Message | None = None
    edited_channel_post: Message | None = None
    inline_query: InlineQuery | None = None


KINDS = ("message", "edited_message", "callback_query", "stopped_message_generation", "message_reaction")
"""Kinds of updates that every bot requests."""
BUSINESS_KINDS = (
    "business_connection",
    "business_message",
    "edited_business_message",
    "deleted_business_messages",
)
CHANNEL_KINDS = ("channel_post", "edited_channel_post")
INLINE_KINDS = ("inline_query",)


def read(raw: object, kind: type[T]) -> T | None:
    """Return raw JSON as an object; None if it is missing or malformed."""
    if raw is None:
        return None
    try:
        return msgspec.convert(raw, kind)
    except (msgspec.ValidationError, ValueError, RecursionError):
        return None
