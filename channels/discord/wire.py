"""Discord's objects, as far as the channel uses them; they are validated when an event is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

Snowflake = Annotated[str, Meta(pattern=r"\A(?:[0-9]{1,18}|[1-8][0-9]{18})\Z")]
"""A snowflake id: creation time and a number. It fits into 63 bits."""
Words = Annotated[str, Meta(max_length=20_000)]
Name = Annotated[str, Meta(max_length=2_000)]

DEFAULT, REPLY = 0, 19
"""Message types that users write."""
DM, GROUP_DM = 1, 3
THREADS = (10, 11, 12)
VOICE_FLAG = 1 << 13
EPOCH_MS = 1_420_070_400_000
T = TypeVar("T")


class User(Struct, frozen=True):
    """Author of a message."""

    id: Snowflake
    username: Name = ""
    global_name: Name | None = None
    bot: bool = False

    @property
    def name(self) -> str:
        """Display name."""
        return self.global_name or self.username


class Attachment(Struct, frozen=True):
    """A file of a message."""

    id: Snowflake
    filename: Name
    url: Name
    size: int = 0
    content_type: Name | None = None
    width: int | None = None
    height: int | None = None
    duration_secs: float | None = None
    waveform: str | None = None

    @property
    def is_voice(self) -> bool:
        """Return whether it is a voice message."""
        return self.waveform is not None


class Reference(Struct, frozen=True):
    """Reference to the message that is replied to."""

    message_id: Snowflake | None = None
    channel_id: Snowflake | None = None


class Quoted(Struct, frozen=True):
    """The message that is replied to, as included in the reply."""

    id: Snowflake
    author: User
    content: Words = ""


class Message(Struct, frozen=True):
    """A new or edited message, or one from the history."""

    id: Snowflake
    channel_id: Snowflake
    author: User
    content: Words = ""
    type: int = DEFAULT
    flags: int = 0
    guild_id: Snowflake | None = None
    channel_type: int | None = None
    edited_timestamp: Name | None = None
    webhook_id: Snowflake | None = None
    mentions: tuple[User, ...] = ()
    attachments: Annotated[tuple[Attachment, ...], Meta(max_length=20)] = ()
    message_reference: Reference | None = None
    referenced_message: Quoted | None = None


class Deleted(Struct, frozen=True):
    """Deleted messages."""

    channel_id: Snowflake
    id: Snowflake | None = None
    ids: tuple[Snowflake, ...] = ()


class ThreadMember(Struct, frozen=True):
    """The bot's membership in a thread; only set if it is a member."""

    user_id: Snowflake | None = None


class Channel(Struct, frozen=True):
    """A channel of any kind."""

    id: Snowflake
    type: int = 0
    guild_id: Snowflake | None = None
    parent_id: Snowflake | None = None
    owner_id: Snowflake | None = None
    last_message_id: Snowflake | None = None
    member: ThreadMember | None = None


class Guild(Struct, frozen=True):
    """A server with its channels."""

    id: Snowflake
    channels: tuple[Channel, ...] = ()
    threads: tuple[Channel, ...] = ()
    unavailable: bool = False


class GuildId(Struct, frozen=True):
    """Id of a server."""

    id: Snowflake


class Ready(Struct, frozen=True):
    """The first event of a session."""

    session_id: Name
    resume_gateway_url: Name
    guilds: tuple[GuildId, ...] = ()


class Option(Struct, frozen=True):
    """An option of a command, with its value."""

    name: Name
    value: str | int | float | bool | None = None


class Resolved(Struct, frozen=True):
    """Objects that an interaction refers to."""

    messages: Mapping[str, Quoted] = {}
    users: Mapping[str, User] = {}


class InteractionData(Struct, frozen=True):
    """The command or the button that was used."""

    name: Name = ""
    type: int = 1
    custom_id: Name = ""
    options: tuple[Option, ...] = ()
    target_id: Snowflake | None = None
    resolved: Resolved = Resolved()


class Member(Struct, frozen=True):
    """A member of a server."""

    user: User


class Interaction(Struct, frozen=True):
    """A user ran a command (2) or pressed a button (3)."""

    id: Snowflake
    application_id: Snowflake
    type: int
    token: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_\-.]{1,512}\Z")]
    channel_id: Snowflake | None = None
    guild_id: Snowflake | None = None
    data: InteractionData | None = None
    user: User | None = None
    member: Member | None = None
    channel: Channel | None = None

    @property
    def person(self) -> User | None:
        """The user of the interaction."""
        return self.user or (None if self.member is None else self.member.user)


def read(value: Any, kind: type[T]) -> T:
    """Convert a value to a type. Raises msgspec.ValidationError."""
    return msgspec.convert(value, kind)


def snowflake(value: Any) -> str:
    """Convert an id. Raises msgspec.ValidationError."""
    return str(msgspec.convert(value, Snowflake))
