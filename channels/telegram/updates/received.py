"""Received messages before their files are downloaded, and the bot that received them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from channels.telegram.updates.objects import KINDS, File
from gateway.channel import Earlier, InboundMessage

FileKind = Literal["picture", "file", "voice"]


class BotIdentity(Struct, frozen=True):
    """The bot as updates see it: its channel, id, user name and options."""

    channel: str
    id: int
    username: str = ""
    strategy: str = "thread"
    edits: bool = True
    commands: Mapping[str, str] = {}
    """Gateway command names by the names typed on Telegram."""
    kinds: tuple[str, ...] = KINDS
    """Kinds of updates that the bot requests; it ignores all others."""
    stop_reaction: str = ""
    """Emoji of the reaction that stops an answer; none if empty."""
    groups: Mapping[str, str] = {}
    """Ids of groups by the ids of the supergroups that they became; their conversations continue there."""
    topics: Mapping[tuple[str, str], str] = {}
    """Names of topics by chat and topic, as far as updates named them."""


class GroupMigration(Struct, frozen=True):
    """A group that became a supergroup. Both are chat ids; message ids start over in the supergroup."""

    group: str
    supergroup: str


class Attached(Struct, frozen=True):
    """A file that came with a message; ``quote`` is the index of the quote that it belongs to, if any."""

    kind: FileKind
    file: File
    mime: str
    name: str
    quote: int | None = None


class ReceivedMessage(Struct, frozen=True):
    """A user's message. Its files are not downloaded yet. ``album`` is the id shared by an album's messages.

    ``replied`` is the message of the same chat that it replies to. ``to_another``: it begins with a mention
    of another user.
    """

    inbound: InboundMessage
    files: tuple[Attached, ...] = ()
    album: str | None = None
    replied: Earlier | None = None
    to_another: bool = False

    @property
    def is_piece(self) -> bool:
        """Return whether it is a piece of an album that may not be complete."""
        return self.album is not None and self.inbound.revises is None
