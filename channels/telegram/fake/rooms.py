"""Who and what there is on the platform: people, chats, topics, messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct, field

from channels.telegram.fake.parser import Entity

Kind = Literal["private", "group", "supergroup"]
Status = Literal["member", "administrator", "left", "kicked"]

GENERAL = 1
"""The topic that every forum has. Its messages carry no thread."""

ICON_COLOURS = (7322096, 16766590, 13338331, 9367192, 16749490, 16478047)


class Person(Struct, frozen=True, kw_only=True):
    """A user; another bot too."""

    id: int
    first_name: str
    last_name: str = ""
    username: str = ""
    language_code: str = "en"
    is_bot: bool = False


class Message(Struct, frozen=True, kw_only=True):
    """A message that stands in a room.

    ``text`` is its text, or the caption of what ``media`` holds; ``media`` is what else stands in its JSON:
    files, or what a service message tells. ``keyboard`` marks one that came with a reply keyboard: it is
    never edited. ``thread`` is the topic, or in a supergroup without topics the message that a line of
    replies began with.
    """

    id: int
    chat: int
    date: int
    sender: Person
    text: str = ""
    entities: tuple[Entity, ...] = ()
    media: Mapping[str, Any] = {}
    markup: Mapping[str, Any] | None = None
    keyboard: bool = False
    thread: int | None = None
    in_topic: bool = False
    reply_to: int | None = None
    album: str | None = None
    edited: int | None = None
    service: bool = False
    more: Mapping[str, Any] = {}
    reactions: Mapping[int, tuple[Mapping[str, Any], ...]] = {}

    @property
    def buttons(self) -> list[Mapping[str, Any]]:
        """The buttons under it, row by row."""
        rows = (self.markup or {}).get("inline_keyboard", ())
        return [button for row in rows for button in row]


class Topic(Struct, kw_only=True):
    """A topic of a forum, or of a private chat."""

    id: int
    name: str
    colour: int = ICON_COLOURS[0]
    closed: bool = False


class Draft(Struct, frozen=True, kw_only=True):
    """What a person is shown while an answer is made. It goes after 30 seconds, or with the next message."""

    id: int
    text: str
    entities: tuple[Entity, ...]
    thread: int | None
    until: float
    can_stop: bool = False
    keep_on_stop: bool = False
    stopped: bool = False


class Chat(Struct, kw_only=True):
    """A room, with everything that stands in it.

    ``refused`` is the answer to everything that the bot sends, for a room that refuses for a reason of its
    own; ``muted`` is the usual one, ``unspoken`` one for voice messages alone. ``spoke_last`` tells whether
    of all bots it was this one that wrote last.
    Message 1 of a supergroup told of its making.
    """

    id: int
    kind: Kind
    title: str = ""
    members: dict[int, Person] = field(default_factory=dict[int, Person])
    status: Status = "member"
    blocked: bool = False
    refused: str = ""
    unspoken: bool = False
    forum: bool = False
    muted: bool = False
    spoke_last: bool = False
    migrated_to: int | None = None
    last_id: int = 1
    messages: dict[int, Message] = field(default_factory=dict[int, Message])
    topics: dict[int, Topic] = field(default_factory=dict[int, Topic])
    drafts: dict[tuple[int | None, int], Draft] = field(default_factory=dict[tuple[int | None, int], Draft])
    actions: list[str] = field(default_factory=list[str])

    @property
    def is_group(self) -> bool:
        """Whether more than two can be in it."""
        return self.kind != "private"

    def newest(self) -> Message:
        """The message with the highest number. Raises LookupError if none stands."""
        if not self.messages:
            raise LookupError(f"nothing stands in {self.id}")
        return self.messages[max(self.messages)]
