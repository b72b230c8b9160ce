"""The methods that send, change or delete messages, or show that one is on its way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from channels.telegram.fake import files, text
from channels.telegram.fake.calls import NotReached, Refused, Request, bad, forbidden, mistaken
from channels.telegram.fake.files import Stored
from channels.telegram.fake.state import GENERAL, Chat, Draft, Message, World, person_json
from channels.telegram.fake.text import Entity, Styled

_MOST_BUTTONS = 100


class Content(Struct, frozen=True, kw_only=True):
    """The content of a message: text or caption, files, and further fields of its JSON."""

    text: str = ""
    entities: tuple[Entity, ...] = ()
    media: Mapping[str, Any] = {}
    more: Mapping[str, Any] = {}


def content_of(world: World, styled: Styled, media: Mapping[str, Any] | None = None) -> Content:
    """Return a text or a caption with its files; mentioned users get their names."""
    people = {person.id: person for person in world.people.values()}
    entities: list[Entity] = []
    for entity in styled.entities:
        if "user" not in entity:
            entities.append(entity)
        elif (person := people.get(entity["user"]["id"])) is not None:
            entities.append(entity | {"user": person_json(person)})
    return Content(text=styled.text, entities=tuple(entities), media=media or {})


def placed(world: World, request: Request, content: Content, *, album: str | None = None) -> Message:
    """A new message of the bot, with what every send method takes besides its content."""
    markup, keyboard = markup_of(request)
    chat = world.writable(request["chat_id"])
    answered = _answered(chat, request)
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
    """The thread that a message belongs to, and whether it is a topic. Raises Refused for one that is not
    there."""
    has_topics = chat.forum or (chat.kind == "private" and world.traits.topics)
    if wanted and (chat.forum or chat.kind == "private"):
        topic = chat.topics.get(wanted) if has_topics and wanted != GENERAL else None
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
    """The buttons under a message, and whether it has another keyboard instead, so that it is never
    edited."""
    given: Mapping[str, Any] = request.get("reply_markup") or {}
    rows = [row for row in given.get("inline_keyboard", ()) if row]
    for row in rows:
        for button in row:
            if len(button) < 2 or not button["text"]:
                text = "can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard"
                raise mistaken(text)
    if sum(map(len, rows)) > _MOST_BUTTONS:
        raise mistaken("reply markup is too long", f"more than {_MOST_BUTTONS} buttons")
    if rows:
        return {"inline_keyboard": rows}, False
    return None, any(given.get(name) for name in ("keyboard", "remove_keyboard", "force_reply"))


def _answered(chat: Chat, request: Request) -> Message | None:
    """The message that is replied to. Raises Refused if it does not stand, unless it may be missing."""
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
_MOST_IN_ALBUM = 10
_ATTRIBUTES = ("duration", "width", "height", "performer", "title")


def send_message(world: World, request: Request) -> Any:
    """``sendMessage``."""
    content = content_of(world, text.of_message(request))
    if options := request.get("link_preview_options"):
        content = replace(content, more={"link_preview_options": options})
    return world.json(placed(world, request, content))


def send_rich_message(world: World, request: Request) -> Any:
    """``sendRichMessage``: kept as it was written, as one paragraph."""
    return world.json(placed(world, request, rich(request["rich_message"])))


def send_media_group(world: World, request: Request) -> Any:
    """``sendMediaGroup``: all of it or nothing. One file alone makes no album."""
    items: list[Mapping[str, Any]] = request["media"]
    _fits_together(items)
    captions = [text.caption(item) for item in items]
    contents = [
        _with_file(world, caption, _of_album(world, request, place, item), item)
        for place, (caption, item) in enumerate(zip(captions, items, strict=True), 1)
    ]
    album = str(13_000_000_000 + world.number()) if len(items) > 1 else None
    return [world.json(placed(world, request, content, album=album)) for content in contents]


def send_chat_action(world: World, request: Request) -> Any:
    """``sendChatAction``."""
    world.writable(request["chat_id"]).actions.append(request["action"])
    world.changes.bump()
    return True


def send_message_draft(world: World, request: Request) -> Any:
    """``sendMessageDraft``; empty text shows that the bot thinks."""
    return _drafted(world, request, text.of_message(request, empty=True))


def send_rich_message_draft(world: World, request: Request) -> Any:
    """``sendRichMessageDraft``."""
    return _drafted(world, request, Styled(rich(request["rich_message"], empty=True).text))


def rich(given: Mapping[str, Any], *, empty: bool = False) -> Content:
    """A rich message, with its source for a text. Raises Refused unless it has exactly one source."""
    sources = [given[name] for name in ("html", "markdown", "blocks") if name in given]
    if len(sources) != 1:
        raise mistaken("exactly one of html, markdown and blocks must be specified in a rich message")
    source = sources[0] if isinstance(sources[0], str) else ""
    if len(source) > text.MOST_RICH:
        raise mistaken("message is too long", f"a rich message of {len(source)} characters")
    if not sources[0] and not empty:
        raise mistaken("message text is empty")
    blocks = [{"type": "paragraph", "text": source}] if isinstance(sources[0], str) else sources[0]
    return Content(text=source, media={"rich_message": {"blocks": blocks}})


def file_of(world: World, request: Request, kind: str, reference: str, given: Mapping[str, Any]) -> Stored:
    """The file that a parameter names: one in the request, or one that was sent before."""
    if not reference.startswith("attach://"):
        return world.files.sent_again(kind, reference)
    upload = request.uploads.get(reference.removeprefix("attach://"))
    if upload is None:
        raise mistaken(f"there is no {kind} in the request")
    return world.files.store(kind, upload, {name: given[name] for name in _ATTRIBUTES if name in given})


def media_of(stored: Stored) -> dict[str, Any]:
    """A file as fields of a message; an animation is shown as a document too."""
    shown = {stored.kind: files.shown(stored)}
    if stored.kind == "animation":
        shown["document"] = {
            name: value
            for name, value in shown["animation"].items()
            if name not in ("duration", "width", "height")
        }
    return shown


def _sender(kind: str) -> Handler:
    def send(world: World, request: Request) -> Any:
        caption = text.of_caption(request)
        stored = file_of(world, request, kind, request[kind], request.arguments)
        if kind == "voice":
            files.check_voice(stored.upload.data)
            if world.writable(request["chat_id"]).unspoken:
                raise bad("VOICE_MESSAGES_FORBIDDEN")
        if kind == "document" and world.writable(request["chat_id"]).unfiled:
            raise bad("not enough rights to send documents to the chat")
        return world.json(placed(world, request, _with_file(world, caption, stored, request.arguments)))

    return send


def _with_file(world: World, caption: Styled, stored: Stored, given: Mapping[str, Any]) -> Content:
    more: dict[str, Any] = {}
    if given.get("has_spoiler"):
        more["has_media_spoiler"] = True
    if given.get("show_caption_above_media") and caption.text:
        more["show_caption_above_media"] = True
    return replace(content_of(world, caption, media_of(stored)), more=more)


def _fits_together(items: list[Mapping[str, Any]]) -> None:
    """Raises Refused for files that make no album."""
    if not items:
        raise mistaken("there are no messages to send")
    if len(items) > _MOST_IN_ALBUM:
        raise mistaken("too many messages to send as an album", f"an album of {len(items)}")
    kinds = {item["type"] for item in items}
    for alone in ("document", "audio"):
        if alone in kinds and len(kinds) > 1:
            raise mistaken(f"{alone} can't be mixed with other media types")


def _of_album(world: World, request: Request, place: int, item: Mapping[str, Any]) -> Stored:
    reference: str = item["media"]
    if reference.startswith("attach://") and reference.removeprefix("attach://") not in request.uploads:
        raise mistaken("can't parse InputMedia: media not found")
    try:
        return file_of(world, request, item["type"], reference, item)
    except Refused as refused:
        said = refused.description.removeprefix("Bad Request: ")
        raise mistaken(f'failed to send message #{place} with the error message "{said}"') from None


def _drafted(world: World, request: Request, content: Styled) -> Any:
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
            thread=thread,
            until=world.clock.now() + DRAFT_SECONDS,
            can_stop=request.get("can_stop", False),
            keep_on_stop=request.get("keep_on_stop", False),
        )
    world.changes.bump()
    return True


def shown_drafts(world: World, chat: Chat) -> list[Draft]:
    """The drafts that have not gone yet."""
    now = world.clock.now()
    return [d for d in chat.drafts.values() if d.until > now and (not d.stopped or d.keep_on_stop)]


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
    world.changes.bump()
    return True


def delete_messages(world: World, request: Request) -> Any:
    """``deleteMessages``; those that do not stand are passed over."""
    chat = world.chat(request["chat_id"])
    found = [chat.messages[number] for number in request["message_ids"] if number in chat.messages]
    for message in found:
        _deletable(world, chat, message)
    for message in found:
        del chat.messages[message.id]
    world.changes.bump()
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
    "sendMessage": send_message,
    "sendRichMessage": send_rich_message,
    "sendMediaGroup": send_media_group,
    "sendChatAction": send_chat_action,
    "sendMessageDraft": send_message_draft,
    "sendRichMessageDraft": send_rich_message_draft,
} | {
    f"send{kind.title()}": _sender(kind)
    for kind in ("photo", "document", "voice", "audio", "video", "animation")
}
