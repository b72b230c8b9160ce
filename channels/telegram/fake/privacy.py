"""What the bot hears of what is said in a group."""

from __future__ import annotations

from channels.telegram.fake.rooms import Chat, Message
from channels.telegram.fake.world import World


def heard(world: World, chat: Chat, message: Message) -> bool:
    """Whether the bot is told of a person's message.

    Never of another bot's; of everything in private chats and where it is an administrator. Else privacy mode
    leaves commands that name it, commands that name nobody if it was the last bot to write, and replies to
    what it wrote.
    """
    if message.sender.is_bot or chat.status in ("left", "kicked"):
        return False
    if not chat.is_group or chat.status == "administrator" or not world.traits.privacy:
        return True
    answered = chat.messages.get(message.reply_to or 0)
    if answered is not None and answered.sender.id == world.bot.id and not answered.service:
        return True
    return _commanded(world, chat, message)


def _commanded(world: World, chat: Chat, message: Message) -> bool:
    first = next((entity for entity in message.entities if entity["type"] == "bot_command"), None)
    if first is None or first["offset"] != 0:
        return False
    _, _, named = message.text[: first["length"]].partition("@")
    return named.lower() == world.traits.username.lower() if named else chat.spoke_last
