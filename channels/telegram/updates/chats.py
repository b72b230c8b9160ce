"""Names of chats, and their parts.

The chat of an address is its id. A business chat is a private chat of a user's business account, in which the
bot writes on the user's behalf. Its id is that of the other user, so it is named ``business:CONNECTION:ID``:
it differs from that user's chat with the bot in all that a name decides, such as session, keys and locks. A
channel, where only administrators write and in the channel's name, is ``channel:ID``.
"""

from __future__ import annotations

from typing import Any

from channels.telegram.updates.objects import Message, Pressed

_BUSINESS, _CHANNEL = "business:", "channel:"
_LAST_GROUP = -1_000_000_000_000


def chat_of(message: Message | Pressed) -> str:
    """Return the name of the chat of a message."""
    connection, chat = message.business_connection_id, message.chat
    if chat.type == "channel":
        return f"{_CHANNEL}{chat.id}"
    return business_chat(connection, chat.id) if connection else str(chat.id)


def business_chat(connection: str, chat: int) -> str:
    """Return the name of a business chat."""
    return f"{_BUSINESS}{connection}:{chat}"


def connection_of(chat: str) -> str | None:
    """Return the id of the connection of a business chat; None for any other chat."""
    return chat.removeprefix(_BUSINESS).rpartition(":")[0] if chat.startswith(_BUSINESS) else None


def target_of(chat: str) -> dict[str, Any]:
    """Return the arguments of a call that name its chat."""
    connection = connection_of(chat)
    if connection is None:
        return {"chat_id": int(chat.removeprefix(_CHANNEL))}
    return {"business_connection_id": connection, "chat_id": int(chat.rpartition(":")[2])}


def id_sequence(chat: str) -> str:
    """Return the message id sequence of a chat: each supergroup and channel has its own, the chats of a
    business account share one, and so do all others."""
    connection = connection_of(chat)
    if connection is not None:
        return business_chat(connection, 0)
    return chat if is_channel(chat) or int(chat) < _LAST_GROUP else ""


def is_group(chat: str) -> bool:
    """Return whether a chat is anything but a private chat."""
    return chat.startswith(("-", _CHANNEL))


def is_channel(chat: str) -> bool:
    """Return whether a chat is a channel."""
    return chat.startswith(_CHANNEL)
