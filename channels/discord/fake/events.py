"""What the gateway tells bots, and which intents a bot needs to be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

GUILDS, MEMBERS, PRESENCES, CONTENT = 1 << 0, 1 << 1, 1 << 8, 1 << 15
_GUILD_MESSAGES, _GUILD_REACTIONS, _GUILD_TYPING = 1 << 9, 1 << 10, 1 << 11
_DM_MESSAGES, _DM_REACTIONS, _DM_TYPING = 1 << 12, 1 << 13, 1 << 14

PRIVILEGED: Final = {"GUILD_MEMBERS": MEMBERS, "GUILD_PRESENCES": PRESENCES, "MESSAGE_CONTENT": CONTENT}
"""Intents that an application has to be allowed."""
KNOWN: Final = 0b11_0011_0001_1111_1111_1111_1111
"""All intents there are."""

_NEEDED: Final = (
    ("MESSAGE_REACTION", _GUILD_REACTIONS, _DM_REACTIONS),
    ("MESSAGE", _GUILD_MESSAGES, _DM_MESSAGES),
    ("TYPING", _GUILD_TYPING, _DM_TYPING),
    ("GUILD_MEMBER_", MEMBERS, MEMBERS),
    ("GUILD", GUILDS, GUILDS),
    ("CHANNEL", GUILDS, 0),
    ("THREAD", GUILDS, GUILDS),
)


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened. ``redacted`` is what bots are told that may not read what people say.

    ``guild`` and ``channel`` are where; an event of a room is not told to a bot that cannot see the room.
    """

    name: str
    data: dict[str, Any]
    redacted: dict[str, Any] | None = None
    guild: int | None = None
    channel: int | None = None

    def intent(self) -> int:
        """The intent without which it is not told; 0 when it always is."""
        for prefix, guild, direct in _NEEDED:
            if self.name.startswith(prefix):
                return guild if self.guild is not None else direct
        return 0

    def told(self, intents: int) -> dict[str, Any]:
        """What a bot with these intents is told."""
        return self.data if self.redacted is None or intents & CONTENT else self.redacted


Tell = Callable[[Event], None]
