"""What there is on the platform: people, guilds, rooms, messages and what they carry. Values, all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import Struct

TEXT, DM, PUBLIC_THREAD, PRIVATE_THREAD = 0, 1, 11, 12
"""Kinds of channels."""
THREADS: Final = (PUBLIC_THREAD, PRIVATE_THREAD)

DEFAULT, THREAD_CREATED, REPLY, COMMAND, THREAD_STARTER, CONTEXT_COMMAND = 0, 18, 19, 20, 21, 23
"""Kinds of messages."""

SUPPRESS_EMBEDS, HAS_THREAD, EPHEMERAL, LOADING = 1 << 2, 1 << 5, 1 << 6, 1 << 7
SUPPRESS_NOTIFICATIONS, VOICE_MESSAGE, COMPONENTS_V2 = 1 << 12, 1 << 13, 1 << 15
"""Flags of messages."""

Json = Mapping[str, Any]


class User(Struct, frozen=True):
    """A person, or the bot."""

    id: int
    name: str
    bot: bool = False


class Role(Struct, frozen=True):
    """A role in a guild. The guild's own id is that of @everyone."""

    id: int
    name: str
    permissions: int
    managed: bool = False


class Guild(Struct, frozen=True):
    """A server, with the people in it."""

    id: int
    name: str
    owner: int
    made: float
    roles: tuple[Role, ...] = ()
    members: tuple[int, ...] = ()


class ThreadState(Struct, frozen=True):
    """What only a thread has. ``changed`` is when it was last archived or taken out again."""

    made: float
    changed: float
    archived: bool = False
    locked: bool = False
    minutes: int = 4320
    count: int = 0
    total: int = 0
    members: tuple[int, ...] = ()
    invitable: bool = True


class Channel(Struct, frozen=True, kw_only=True):
    """A room: of a guild, a thread, or a direct conversation with ``recipient``.

    ``denied`` are permissions that the bot lacks here.
    """

    id: int
    kind: int
    name: str = ""
    guild: int | None = None
    parent: int | None = None
    owner: int | None = None
    recipient: int | None = None
    topic: str | None = None
    slowmode: int = 0
    position: int = 0
    denied: int = 0
    last_message: int | None = None
    thread: ThreadState | None = None


class Attachment(Struct, frozen=True, kw_only=True):
    """A file that hangs on a message. ``title`` is its name before the platform tidied it."""

    id: int
    filename: str
    data: bytes
    content_type: str
    title: str | None = None
    description: str | None = None
    width: int | None = None
    height: int | None = None
    duration_secs: float | None = None
    waveform: str | None = None


class Emoji(Struct, frozen=True):
    """A sign to react with: a character, or a guild's own one with an id."""

    name: str
    id: int | None = None


class Reaction(Struct, frozen=True):
    """A sign under a message, and who put it there."""

    emoji: Emoji
    users: tuple[int, ...]


class Mentions(Struct, frozen=True):
    """Whom a text pings."""

    users: tuple[int, ...] = ()
    roles: tuple[int, ...] = ()
    everyone: bool = False

    def __bool__(self) -> bool:
        return bool(self.users or self.roles or self.everyone)


class Reference(Struct, frozen=True):
    """The message that a message answers. It may be gone."""

    message: int | None
    channel: int
    guild: int | None = None


class Origin(Struct, frozen=True, kw_only=True):
    """The interaction that a message answers. ``command`` is the whole name of a command."""

    id: int
    kind: int
    user: int
    command: str | None = None
    guild: int | None = None
    target_user: int | None = None
    target_message: int | None = None
    pressed: int | None = None


class Message(Struct, frozen=True, kw_only=True):
    """A message that stands in a room. ``versions`` are the texts that it had before it was edited.

    An ephemeral message is only seen by ``reader``.
    """

    id: int
    channel: int
    author: int
    at: float
    content: str = ""
    kind: int = DEFAULT
    flags: int = 0
    nonce: str | int | None = None
    tts: bool = False
    edited: float | None = None
    embeds: tuple[Json, ...] = ()
    components: tuple[Json, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    mentions: Mentions = Mentions()
    reference: Reference | None = None
    origin: Origin | None = None
    hook: bool = False
    reactions: tuple[Reaction, ...] = ()
    reader: int | None = None
    versions: tuple[str, ...] = ()

    @property
    def ephemeral(self) -> bool:
        """Whether only one person sees it."""
        return bool(self.flags & EPHEMERAL)

    @property
    def loading(self) -> bool:
        """Whether it says "… is thinking"."""
        return bool(self.flags & LOADING)


class Command(Struct, frozen=True, kw_only=True):
    """A registered command: 1 is typed, 2 is in a person's menu, 3 in a message's."""

    id: int
    kind: int
    name: str
    guild: int | None
    version: int
    body: Json


InteractionState = Literal["waiting", "deferred", "deferred update", "answered"]


class Interaction(Struct, frozen=True, kw_only=True):
    """What a person did with the bot: a command (kind 2), or a component (3) of ``pressed``.

    ``response`` is the message that answers it, ``followups`` those after.
    """

    id: int
    token: str
    kind: int
    user: int
    channel: int
    guild: int | None
    made: float
    command: str | None = None
    pressed: int | None = None
    target_user: int | None = None
    target_message: int | None = None
    state: InteractionState = "waiting"
    response: int | None = None
    followups: tuple[int, ...] = ()
