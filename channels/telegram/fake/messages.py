"""Methods that send, change or delete messages, and those that show drafts and actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import replace

from channels.telegram.fake import files, text
from channels.telegram.fake.calls import NotReached, Refused, Request, bad, forbidden, mistaken
from channels.telegram.fake.files import Stored
from channels.telegram.fake.state import GENERAL_TOPIC, Chat, Draft, Message, World, person_json
from channels.telegram.fake.text import Entity, Styled

_MAX_BUTTONS = 100


class Content(Struct, frozen=True, kw_only=True):
    """Content of a message: text or caption, files, and further fields of its JSON."""

    text: str = ""
    entities: tuple[Entity, ...] = ()
    media: Mapping[str, Any] = {}
    more: Mapping[str, Any] = {}


def content_of(world: World, styled: Styled, media: Mapping[str, Any] | None = None) -> Content:
    """Return a text or caption with its files; entities that mention users get the users' data."""
    people = {person.id: person for person in world.people.values()}
    entities: list[Entity] = []
    for entity in styled.entities:
        if "user" not in entity:
            entities.append(entity)
        elif (person := people.get(entity["user"]["id"])) is not None:
            entities.append(entity | {"user": person_json(person)})
    return Content(text=styled.text, entities=tuple(entities), media=media or {})


def add_message(world: World, request: Request, content: Content, *, album: str | None = None) -> Message:
    """Add a message of the bot, with the parameters that all send methods share."""
    markup, keyboard = markup_of(request)
    chat = world.writable(request["chat_id"])
    answered = _reply_target(chat, request)
    thread, in_topic = thread_of(world, chat, request.get("message_thread_id"), answered)
    protected = {"has_protected_content": True} if request.get("protect_content") else {}
    for draft in [draft for draft in chat.drafts.values() if draft.thread == thread]:
        del chat.drafts[draft.thread, draft.id]
    message = Message(
        id=world.next_id(chat),
        chat=chat.id,
        date=world.clock.date(),
        sender=world.bot,
        text=content.text,
        entities=content.entities,
        media=content.media,
        more={**content.more, **protected},
        markup=markup,
        keyboard=keyboard,
        thread=thread,
        in_topic=in_topic,
        reply_to=answered.id if answered is not None else None,
        album=album,
    )
    return world.place(message)


def thread_of(
    world: World, chat: Chat, wanted: int | None, answered: Message | None
) -> tuple[int | None, bool]:
    """Return the thread of a message, and whether it is a topic. Raises Refused for an unknown or closed
    topic."""
    has_topics = chat.forum or (chat.kind == "private" and world.traits.topics)
    if wanted and (chat.forum or chat.kind == "private"):
        topic = chat.topics.get(wanted) if has_topics and wanted != GENERAL_TOPIC else None
        if topic is None:
            raise bad("message thread not found")
        if topic.closed and chat.status != "administrator":
            raise bad("TOPIC_CLOSED")
        return topic.id, True
    if answered is None or chat.kind == "group":
        return None, False
    if has_topics:
        return answered.thread, answered.in_topic
    if chat.kind == "supergroup":
        return answered.thread or answered.id, False
    return None, False


def markup_of(request: Request) -> tuple[Mapping[str, Any] | None, bool]:
    """Return the inline keyboard, and whether the message has another kind of keyboard, which prevents
    edits."""
    given: Mapping[str, Any] = request.get("reply_markup") or {}
    rows = [row for row in given.get("inline_keyboard", ()) if row]
    for row in rows:
        for button in row:
            if len(button) < 2 or not button["text"]:
                text = "can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard"
                raise mistaken(text)
    if sum(map(len, rows)) > _MAX_BUTTONS:
        raise mistaken("reply markup is too long", f"more than {_MAX_BUTTONS} buttons")
    if rows:
        return {"inline_keyboard": rows}, False
    return None, any(given.get(name) for name in ("keyboard", "remove_keyboard", "force_reply"))


def _reply_target(chat: Chat, request: Request) -> Message | None:
    """Return the message that is replied to. Raises Refused if it is missing and may not be."""
    given: Mapping[str, Any] = request.get("reply_parameters") or {}
    if not given.get("message_id"):
        return None
    message = chat.messages.get(given["message_id"])
    if message is None and not given.get("allow_sending_without_reply"):
        raise bad("message to be replied not found")
    if message is not None and given.get("quote", "") not in message.text:
        raise bad("QUOTE_TEXT_INVALID")
    return message


Handler = Callable[[World, Request], Any]

DRAFT_SECONDS = 30
_MAX_IN_ALBUM = 10
_FILE_ATTRIBUTES = ("duration", "width", "height", "performer", "title")


def send_message(world: World, request: Request) -> Any:
    """``sendMessage``."""
    content = content_of(world, text.message_text(request))
    if options := request.get("link_preview_options"):
        content = replace(content, more={"link_preview_options": options})
    return world.json(add_message(world, request, content))


def _check_rich(world: World, request: Request) -> None:
    """Raise Refused if the server is too old for rich messages (since 10.1), or for their blocks (10.2)."""
    if world.bot_api < (10, 1):
        raise Refused("Not Found: method not found", 404)
    if world.bot_api < (10, 2) and "blocks" in request["rich_message"]:
        raise bad("rich message must be non-empty")


def send_rich_message(world: World, request: Request) -> Any:
    """``sendRichMessage``: the source is stored as one paragraph."""
    _check_rich(world, request)
    return world.json(add_message(world, request, rich_content(request["rich_message"])))


def send_media_group(world: World, request: Request) -> Any:
    """``sendMediaGroup``: sends all files or none. A single file is not an album."""
    items: list[Mapping[str, Any]] = request["media"]
    _check_album(items)
    captions = [text.caption(item) for item in items]
    contents = [
        _with_file(world, caption, _album_file(world, request, place, item), item)
        for place, (caption, item) in enumerate(zip(captions, items, strict=True), 1)
    ]
    album = str(13_000_000_000 + world.number()) if len(items) > 1 else None
    return [world.json(add_message(world, request, content, album=album)) for content in contents]


def send_chat_action(world: World, request: Request) -> Any:
    """``sendChatAction``, which channels do not support."""
    chat = world.writable(request["chat_id"])
    if chat.kind == "channel":
        raise mistaken("chat actions aren't supported in channels")
    chat.actions.append(request["action"])
    world.changes.bump()
    return True


def send_message_draft(world: World, request: Request) -> Any:
    """``sendMessageDraft``; an empty text shows that the bot thinks."""
    return _show_draft(world, request, text.message_text(request, empty=True))


def send_rich_message_draft(world: World, request: Request) -> Any:
    """``sendRichMessageDraft``."""
    _check_rich(world, request)
    content = rich_content(request["rich_message"], empty=True)
    return _show_draft(world, request, Styled(content.text), content.media.get("rich_message"))


def rich_content(given: Mapping[str, Any], *, empty: bool = False) -> Content:
    """Return the content of a rich message, with its source as text. Raises Refused unless it has one
    source, and for one that exceeds a limit."""
    sources = [given[name] for name in ("html", "markdown", "blocks") if name in given]
    if len(sources) != 1:
        raise mistaken("exactly one of html, markdown and blocks must be specified in a rich message")
    source = sources[0] if isinstance(sources[0], str) else ""
    if len(source) > text.MAX_RICH:
        raise mistaken("message is too long", f"a rich message of {len(source)} characters")
    if not sources[0] and not empty:
        raise mistaken("message text is empty")
    blocks = [{"type": "paragraph", "text": source}] if isinstance(sources[0], str) else sources[0]
    count, depth, columns, characters = _measured(blocks)
    if count > 500 or depth > 16 or columns > 20 or characters > text.MAX_RICH:
        raise mistaken("RICH_MESSAGE_INVALID", f"{count} blocks, depth {depth}, {columns} columns")
    return Content(text=source or _plain(blocks).strip(), media={"rich_message": {"blocks": blocks}})


def _plain(value: Any) -> str:
    """Return the texts of blocks, for tests and the page: blocks on lines, cells with spaces."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(_plain, cast("list[Any]", value)))
    fields = cast("Mapping[str, Any]", value)
    if "cells" in fields:
        return "".join(f"{_plain(row).rstrip()}\n" for row in fields["cells"])
    end = " " if "valign" in fields else "\n" if fields.get("type") in _BLOCKS else ""
    return "".join(_plain(fields[name]) for name in ("text", "blocks", "items") if name in fields) + end


def _measured(value: Any, columns: int = 0) -> tuple[int, int, int, int]:
    """Return the number of blocks, items and rows, the depth, the most columns and the characters."""
    if isinstance(value, str):
        return 0, 0, columns, len(value)
    if isinstance(value, list):
        many = [_measured(one) for one in cast("list[Any]", value)]
        count, depths, widths, characters = zip(*many, strict=True) if many else ((0,),) * 4
        return sum(count), max(depths), max(widths), sum(characters)
    fields = cast("Mapping[str, Any]", value)
    rows: list[list[Any]] = fields.get("cells", [])
    widest = max(map(len, rows), default=0)
    inner = [_measured(fields[name]) for name in ("text", "blocks", "items", "cells") if name in fields]
    is_block = fields.get("type") in _BLOCKS or "blocks" in fields
    count = sum(one[0] for one in inner) + len(rows) + is_block
    depth = 1 + max((one[1] for one in inner), default=0)
    return count, depth, max([widest, *(one[2] for one in inner)]), sum(one[3] for one in inner)


_BLOCKS = ("paragraph", "heading", "pre", "table", "list", "divider")


def resolve_file(
    world: World, request: Request, kind: str, reference: str, given: Mapping[str, Any]
) -> Stored:
    """Return the file of a parameter: an upload in the request, or a file that was sent before."""
    if not reference.startswith("attach://"):
        return world.files.by_id(kind, reference)
    upload = request.uploads.get(reference.removeprefix("attach://"))
    if upload is None:
        raise mistaken(f"there is no {kind} in the request")
    return world.files.store(kind, upload, {name: given[name] for name in _FILE_ATTRIBUTES if name in given})


def media_of(stored: Stored) -> dict[str, Any]:
    """Return the fields of a message for a file; an animation is also a document."""
    shown = {stored.kind: files.file_json(stored)}
    if stored.kind == "animation":
        shown["document"] = {
            name: value
            for name, value in shown["animation"].items()
            if name not in ("duration", "width", "height")
        }
    return shown


def _file_handler(kind: str) -> Handler:
    def send(world: World, request: Request) -> Any:
        caption = text.request_caption(request)
        stored = resolve_file(world, request, kind, request[kind], request.arguments)
        if kind == "voice":
            files.check_voice(stored.upload.data)
            if world.writable(request["chat_id"]).refuses_voice:
                raise bad("VOICE_MESSAGES_FORBIDDEN")
        if kind == "document" and world.writable(request["chat_id"]).refuses_documents:
            raise bad("not enough rights to send documents to the chat")
        return world.json(add_message(world, request, _with_file(world, caption, stored, request.arguments)))

    return send


def _with_file(world: World, caption: Styled, stored: Stored, given: Mapping[str, Any]) -> Content:
    more: dict[str, Any] = {}
    if given.get("has_spoiler"):
        more["has_media_spoiler"] = True
    if given.get("show_caption_above_media") and caption.text:
        more["show_caption_above_media"] = True
    return replace(content_of(world, caption, media_of(stored)), more=more)


def _check_album(items: list[Mapping[str, Any]]) -> None:
    """Raise Refused for files that cannot form an album."""
    if not items:
        raise mistaken("there are no messages to send")
    if len(items) > _MAX_IN_ALBUM:
        raise mistaken("too many messages to send as an album", f"an album of {len(items)}")
    kinds = {item["type"] for item in items}
    for alone in ("document", "audio"):
        if alone in kinds and len(kinds) > 1:
            raise mistaken(f"{alone} can't be mixed with other media types")


def _album_file(world: World, request: Request, place: int, item: Mapping[str, Any]) -> Stored:
    reference: str = item["media"]
    if reference.startswith("attach://") and reference.removeprefix("attach://") not in request.uploads:
        raise mistaken("can't parse InputMedia: media not found")
    try:
        stored = resolve_file(world, request, item["type"], reference, item)
        if item["type"] == "document" and world.writable(request["chat_id"]).refuses_documents:
            raise bad("not enough rights to send documents to the chat")
        return stored
    except Refused as refused:
        said = refused.description.removeprefix("Bad Request: ")
        raise Refused(
            f'Bad Request: failed to send message #{place} with the error message "{said}"',
            problem=refused.problem,
        ) from None


def _show_draft(
    world: World, request: Request, content: Styled, rich: Mapping[str, Any] | None = None
) -> Any:
    chat = world.writable(request["chat_id"])
    if chat.kind != "private":
        raise mistaken("TEXTDRAFT_PEER_INVALID", "a draft outside private chats")
    if not request["draft_id"]:
        raise mistaken("RANDOM_ID_EMPTY", "a draft with the number 0")
    thread, _ = thread_of(world, chat, request.get("message_thread_id"), None)
    key = thread, request["draft_id"]
    before = chat.drafts.get(key)
    if before is None or not before.stopped:
        chat.drafts[key] = Draft(
            id=request["draft_id"],
            text=content.text,
            entities=content.entities,
            rich=rich,
            thread=thread,
            until=world.clock.now() + DRAFT_SECONDS,
            can_stop=request.get("can_stop", False),
            keep_on_stop=request.get("keep_on_stop", False),
        )
    world.changes.bump()
    return True


def shown_drafts(world: World, chat: Chat) -> list[Draft]:
    """Return the drafts that are not expired, and not stopped unless they have ``keep_on_stop``."""
    now = world.clock.now()
    return [d for d in chat.drafts.values() if d.until > now and (not d.stopped or d.keep_on_stop)]


_DELETABLE_SECONDS = 48 * 3600
_REPLY_SECONDS = 24 * 3600
_SAME = (
    "message is not modified: specified new message content and reply markup are exactly the same as a "
    "current content and reply markup of the message"
)


def edit_message_text(world: World, request: Request) -> Any:
    """``editMessageText``. Without ``reply_markup`` the buttons are removed."""
    if "rich_message" in request.arguments and world.bot_api < (10, 1):
        raise bad("message text is empty")
    if "rich_message" in request.arguments:
        _check_rich(world, request)
        content = rich_content(request["rich_message"])
    else:
        content = content_of(world, text.message_text(request))
    message = _message_to_edit(world, request)
    if message.media and "rich_message" not in message.media:
        raise bad("there is no text in the message to edit")
    return _edit(world, request, message, content)


def edit_message_caption(world: World, request: Request) -> Any:
    """``editMessageCaption``; without a caption the present one is removed."""
    caption = text.request_caption(request)
    message = _message_to_edit(world, request)
    if not message.media or "rich_message" in message.media:
        raise bad("there is no caption in the message to edit")
    return _edit(world, request, message, content_of(world, caption, message.media))


def edit_message_media(world: World, request: Request) -> Any:
    """``editMessageMedia``: replaces the file and its caption."""
    message = _message_to_edit(world, request)
    if "voice" in message.media:
        raise bad("there is no media in the message to edit")
    given = request["media"]
    if message.album is not None and not _fits_album(message, given["type"]):
        raise bad("can't change media type in the album")
    stored = resolve_file(world, request, given["type"], given["media"], given)
    return _edit(world, request, message, content_of(world, text.caption(given), media_of(stored)))


def _fits_album(message: Message, kind: str) -> bool:
    alone = {"audio", "document"} & message.media.keys()
    return kind in alone if alone else kind in ("photo", "video")


def edit_message_reply_markup(world: World, request: Request) -> Any:
    """``editMessageReplyMarkup``; without ``reply_markup`` the buttons are removed. A message of an album
    never has any."""
    message = _message_to_edit(world, request)
    markup = _inline_keyboard(request)
    if markup == message.markup or message.album is not None:
        raise bad(_SAME)
    return world.json(world.change(message, markup=markup))


def delete_message(world: World, request: Request) -> Any:
    """``deleteMessage``."""
    chat = world.chat(request["chat_id"])
    message = world.message(chat, request["message_id"], "message to delete")
    _check_deletable(world, chat, message)
    del chat.messages[message.id]
    world.changes.bump()
    return True


def delete_messages(world: World, request: Request) -> Any:
    """``deleteMessages``; unknown ids are ignored."""
    chat = world.chat(request["chat_id"])
    found = [chat.messages[number] for number in request["message_ids"] if number in chat.messages]
    for message in found:
        _check_deletable(world, chat, message)
    for message in found:
        del chat.messages[message.id]
    world.changes.bump()
    return True


def delete_business_messages(world: World, request: Request) -> Any:
    """``deleteBusinessMessages``: messages of one chat; unknown ids are ignored."""
    connection = world.connection(request["business_connection_id"])
    if not connection.enabled:
        raise bad("BUSINESS_CONNECTION_INVALID")
    chats = [chat for chat in world.chats.values() if chat.connection is connection]
    found = [chat.messages[n] for chat in chats for n in request["message_ids"] if n in chat.messages]
    if len({message.chat for message in found}) > 1:
        raise mistaken("messages must be in the same chat")
    own = all(message.sender.id == world.bot.id for message in found)
    if not connection.rights & {"can_delete_all_messages", *(["can_delete_sent_messages"] if own else [])}:
        raise forbidden("BOT_ACCESS_FORBIDDEN")
    for message in found:
        del world.chats[message.chat].messages[message.id]
    world.changes.bump()
    return True


def check_business(world: World, chat: Chat, request: Request) -> None:
    """Raise Refused for a call that the bot may not make in a chat of a business account.

    It may reply to messages of the last 24 hours, if the owner gave it that right.
    """
    if chat.connection is None or "can_reply" not in chat.connection.rights:
        raise forbidden("BOT_ACCESS_FORBIDDEN")
    earliest = world.clock.date() - _REPLY_SECONDS
    customer = next(iter(chat.members))
    is_recent = any(one.sender.id == customer and one.date >= earliest for one in chat.messages.values())
    if request.method.startswith("send") and not is_recent:
        raise bad("BUSINESS_PEER_USAGE_MISSING")


def set_message_reaction(world: World, request: Request) -> Any:
    """``setMessageReaction``: one reaction at most; an empty list removes it."""
    chat = world.chat(request["chat_id"])
    message = world.message(chat, request["message_id"], "message to react")
    given: list[Mapping[str, Any]] = request.get("reaction", [])
    if len(given) > 1:
        raise mistaken("REACTIONS_TOO_MANY", "more than one reaction of a bot to a message")
    world.change(message, reactions={**message.reactions, world.bot.id: tuple(given)})
    return True


def _message_to_edit(world: World, request: Request) -> Message:
    """Return the message to edit. Raises Refused unless the bot sent it and it can be edited."""
    if "chat_id" not in request.arguments:
        raise mistaken("chat_id is empty")
    chat = world.chat(request["chat_id"], edits=True)
    if chat.blocked:
        raise forbidden("bot was blocked by the user")
    message = chat.messages.get(request.get("message_id", 0))
    if message is None:
        raise NotReached("Bad Request: message to edit not found")
    authors = [world.bot.id, *([chat.connection.owner.id] if chat.connection else [])]
    if message.sender.id not in authors or message.service or message.keyboard:
        raise NotReached("Bad Request: message can't be edited")
    return message


def _edit(world: World, request: Request, message: Message, content: Content) -> Any:
    """Replace content and buttons of a message. Raises Refused if both are unchanged."""
    markup = _inline_keyboard(request)
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


def _inline_keyboard(request: Request) -> Mapping[str, Any] | None:
    markup, keyboard = markup_of(request)
    if keyboard:
        raise mistaken("inline keyboard expected")
    return markup


def _check_deletable(world: World, chat: Chat, message: Message) -> None:
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
    "deleteBusinessMessages": delete_business_messages,
    "setMessageReaction": set_message_reaction,
    "sendMessage": send_message,
    "sendRichMessage": send_rich_message,
    "sendMediaGroup": send_media_group,
    "sendChatAction": send_chat_action,
    "sendMessageDraft": send_message_draft,
    "sendRichMessageDraft": send_rich_message_draft,
} | {
    f"send{kind.title()}": _file_handler(kind)
    for kind in ("photo", "document", "voice", "audio", "video", "animation")
}
