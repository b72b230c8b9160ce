"""The methods that change or remove what stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from channels.telegram.fake import text
from channels.telegram.fake.placing import Content, content_of, markup_of
from channels.telegram.fake.refusal import NotReached, bad, forbidden, mistaken
from channels.telegram.fake.request import Request
from channels.telegram.fake.rooms import Chat, Message
from channels.telegram.fake.sending import Handler, file_of, media_of, rich
from channels.telegram.fake.world import World

_DELETABLE_SECONDS = 48 * 3600
_SAME = (
    "message is not modified: specified new message content and reply markup are exactly the same as a "
    "current content and reply markup of the message"
)


def edit_message_text(world: World, request: Request) -> Any:
    """``editMessageText``. Without ``reply_markup`` the buttons go."""
    if "rich_message" in request.arguments:
        content = rich(request["rich_message"])
    else:
        content = content_of(world, text.of_message(request))
    message = _editable(world, request)
    if message.media and "rich_message" not in message.media:
        raise bad("there is no text in the message to edit")
    return _changed(world, request, message, content)


def edit_message_caption(world: World, request: Request) -> Any:
    """``editMessageCaption``; without a caption it is taken away."""
    caption = text.of_caption(request)
    message = _editable(world, request)
    if not message.media or "rich_message" in message.media:
        raise bad("there is no caption in the message to edit")
    return _changed(world, request, message, content_of(world, caption, message.media))


def edit_message_media(world: World, request: Request) -> Any:
    """``editMessageMedia``: another file, with its caption."""
    message = _editable(world, request)
    if "voice" in message.media:
        raise bad("there is no media in the message to edit")
    given = request["media"]
    stored = file_of(world, request, given["type"], given["media"], given)
    return _changed(world, request, message, content_of(world, text.caption(given), media_of(stored)))


def edit_message_reply_markup(world: World, request: Request) -> Any:
    """``editMessageReplyMarkup``; without ``reply_markup`` the buttons go."""
    message = _editable(world, request)
    markup = _inline(request)
    if markup == message.markup:
        raise bad(_SAME)
    return world.json(world.change(message, markup=markup))


def delete_message(world: World, request: Request) -> Any:
    """``deleteMessage``."""
    chat = world.chat(request["chat_id"])
    message = world.message(chat, request["message_id"], "message to delete")
    _deletable(world, chat, message)
    del chat.messages[message.id]
    world.clock.beat()
    return True


def delete_messages(world: World, request: Request) -> Any:
    """``deleteMessages``; those that do not stand are passed over."""
    chat = world.chat(request["chat_id"])
    found = [chat.messages[number] for number in request["message_ids"] if number in chat.messages]
    for message in found:
        _deletable(world, chat, message)
    for message in found:
        del chat.messages[message.id]
    world.clock.beat()
    return True


def set_message_reaction(world: World, request: Request) -> Any:
    """``setMessageReaction``: one at most; none takes it back."""
    chat = world.chat(request["chat_id"])
    message = world.message(chat, request["message_id"], "message to react")
    given: list[Mapping[str, Any]] = request.get("reaction", [])
    if len(given) > 1:
        raise mistaken("REACTIONS_TOO_MANY", "more than one reaction of a bot to a message")
    world.change(message, reactions={**message.reactions, world.bot.id: tuple(given)})
    return True


def _editable(world: World, request: Request) -> Message:
    """The message that is to be changed. Raises Refused unless it is the bot's own and can be."""
    if "chat_id" not in request.arguments:
        raise mistaken("chat_id is empty")
    chat = world.chat(request["chat_id"])
    if chat.blocked:
        raise forbidden("bot was blocked by the user")
    message = chat.messages.get(request.get("message_id", 0))
    if message is None:
        raise NotReached("Bad Request: message to edit not found")
    if message.sender.id != world.bot.id or message.service or message.keyboard:
        raise NotReached("Bad Request: message can't be edited")
    return message


def _changed(world: World, request: Request, message: Message, content: Content) -> Any:
    """The message with its new content and buttons. Raises Refused if nothing is new about it."""
    markup = _inline(request)
    before = message.text, message.entities, message.media, message.markup
    if before == (content.text, content.entities, content.media, markup):
        raise bad(_SAME)
    return world.json(
        world.change(
            message,
            text=content.text,
            entities=content.entities,
            media=content.media,
            markup=markup,
            edited=world.clock.date(),
        )
    )


def _inline(request: Request) -> Mapping[str, Any] | None:
    markup, keyboard = markup_of(request)
    if keyboard:
        raise mistaken("inline keyboard expected")
    return markup


def _deletable(world: World, chat: Chat, message: Message) -> None:
    own = message.sender.id == world.bot.id
    if chat.status == "administrator":
        return
    if world.clock.date() - message.date > _DELETABLE_SECONDS or not (own or chat.kind == "private"):
        raise bad("message can't be deleted for everyone")


METHODS: dict[str, Handler] = {
    "editMessageText": edit_message_text,
    "editMessageCaption": edit_message_caption,
    "editMessageMedia": edit_message_media,
    "editMessageReplyMarkup": edit_message_reply_markup,
    "deleteMessage": delete_message,
    "deleteMessages": delete_messages,
    "setMessageReaction": set_message_reaction,
}
