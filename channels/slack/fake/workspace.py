"""What stands in the fake's workspaces: users, rooms, messages, files, and what an app was granted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct, field

Json = dict[str, Any]
Kind = Literal["channel", "group", "im", "mpim"]
"""Public channel, private channel, direct message, direct message of several."""

SCOPE_FAMILY: Mapping[Kind, str] = {"channel": "channels", "group": "groups", "im": "im", "mpim": "mpim"}


class User(Struct, frozen=True, kw_only=True):
    """A person, or the app's bot."""

    id: str
    team: str
    name: str
    real_name: str
    is_bot: bool = False
    bot_id: str | None = None


class Room(Struct, kw_only=True):
    """A conversation. ``messages`` are in the order of their ``ts``; ``hidden`` ephemeral ones, by user."""

    id: str
    team: str
    name: str
    kind: Kind
    created: int
    members: set[str] = field(default_factory=set[str])
    messages: dict[str, Json] = field(default_factory=dict[str, Json])
    hidden: dict[str, list[Json]] = field(default_factory=dict[str, list[Json]])
    archived: bool = False

    @property
    def direct(self) -> bool:
        """Whether it is a direct message, of two or several."""
        return self.kind in ("im", "mpim")

    def thread(self, root: str) -> list[Json]:
        """A thread's first message and its replies."""
        return [message for ts, message in self.messages.items() if root in (ts, message.get("thread_ts"))]

    def top(self) -> list[Json]:
        """What shows in the room itself: no replies, except those that were broadcast."""
        return [
            message
            for ts, message in self.messages.items()
            if message.get("thread_ts", ts) == ts or message.get("subtype") == "thread_broadcast"
        ]


class StoredFile(Struct, kw_only=True):
    """A file. ``content`` is None until it was uploaded; ``shares`` maps rooms to messages that show it.

    What is ``spoken`` into the platform is an audio clip.
    """

    id: str
    team: str
    user: str
    name: str
    title: str
    mimetype: str
    created: int
    size: int
    ticket: str = ""
    content: bytes | None = None
    shared: bool = False
    spoken: bool = False
    shares: dict[str, str] = field(default_factory=dict[str, str])
    deleted: bool = False


class Grant(Struct, kw_only=True):
    """A token. ``revoked`` is the error that calls with it get from then on."""

    token: str
    kind: Literal["bot", "user", "app"]
    team: str
    user: str
    scopes: set[str]
    revoked: str | None = None


class Workspace(Struct, kw_only=True):
    """A team. ``bot`` is the app's user in it, None while the app is not installed."""

    id: str
    name: str
    users: dict[str, User] = field(default_factory=dict[str, User])
    rooms: dict[str, Room] = field(default_factory=dict[str, Room])
    bot: User | None = None
    grants: list[Grant] = field(default_factory=list[Grant])

    def user(self, name: str) -> User | None:
        """A user by id or name."""
        return self.users.get(name) or next((user for user in self.users.values() if user.name == name), None)

    def named(self, name: str) -> Room | None:
        """A room by id or name, with or without ``#``."""
        plain = name.removeprefix("#")
        found = (room for room in self.rooms.values() if room.name == plain) if plain else iter(())
        return self.rooms.get(name) or next(found, None)

    def between(self, *users: str) -> Room | None:
        """The direct message of exactly these users."""
        return next((r for r in self.rooms.values() if r.direct and r.members == set(users)), None)

    def sees(self, room: Room) -> bool:
        """Whether the app takes part in a room."""
        return self.bot is not None and self.bot.id in room.members


class Names:
    """Makes ids that look like Slack's, the same ones in every run."""

    def __init__(self) -> None:
        self._numbers: Iterator[int] = iter(range(1, 1_000_000_000))

    def next(self, prefix: str) -> str:
        """``prefix`` and ten characters of A-Z and 0-9."""
        return f"{prefix}0{next(self._numbers):09d}"
