"""Permissions: bits that say what the bot may do in a room."""

from __future__ import annotations

from typing import Final, Literal

Permission = Literal[
    "MANAGE_CHANNELS",
    "ADD_REACTIONS",
    "VIEW_CHANNEL",
    "SEND_MESSAGES",
    "MANAGE_MESSAGES",
    "EMBED_LINKS",
    "ATTACH_FILES",
    "READ_MESSAGE_HISTORY",
    "MENTION_EVERYONE",
    "USE_APPLICATION_COMMANDS",
    "MANAGE_THREADS",
    "CREATE_PUBLIC_THREADS",
    "CREATE_PRIVATE_THREADS",
    "SEND_MESSAGES_IN_THREADS",
    "SEND_VOICE_MESSAGES",
]

BITS: Final[dict[Permission, int]] = {
    "MANAGE_CHANNELS": 1 << 4,
    "ADD_REACTIONS": 1 << 6,
    "VIEW_CHANNEL": 1 << 10,
    "SEND_MESSAGES": 1 << 11,
    "MANAGE_MESSAGES": 1 << 13,
    "EMBED_LINKS": 1 << 14,
    "ATTACH_FILES": 1 << 15,
    "READ_MESSAGE_HISTORY": 1 << 16,
    "MENTION_EVERYONE": 1 << 17,
    "USE_APPLICATION_COMMANDS": 1 << 31,
    "MANAGE_THREADS": 1 << 34,
    "CREATE_PUBLIC_THREADS": 1 << 35,
    "CREATE_PRIVATE_THREADS": 1 << 36,
    "SEND_MESSAGES_IN_THREADS": 1 << 38,
    "SEND_VOICE_MESSAGES": 1 << 46,
}

EVERYTHING: Final = sum(BITS.values())
MODERATION: Final = BITS["MANAGE_CHANNELS"] | BITS["MANAGE_MESSAGES"] | BITS["MANAGE_THREADS"]
DEFAULT: Final = EVERYTHING & ~MODERATION
"""What a bot has that was invited to talk: everything but moderating."""


def bits(*names: Permission) -> int:
    """Some permissions as a number."""
    return sum(BITS[name] for name in set(names))
