"""The methods that place a message, or show that one is on its way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec.structs import replace

from channels.telegram.fake import files, text
from channels.telegram.fake.files import Stored
from channels.telegram.fake.placing import Content, content_of, placed, thread_of
from channels.telegram.fake.refusal import Refused, bad, mistaken
from channels.telegram.fake.request import Request
from channels.telegram.fake.rooms import Chat, Draft
from channels.telegram.fake.text import Styled
from channels.telegram.fake.world import World

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
    world.clock.beat()
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
    world.clock.beat()
    return True


def shown_drafts(world: World, chat: Chat) -> list[Draft]:
    """The drafts that have not gone yet."""
    now = world.clock.now()
    return [d for d in chat.drafts.values() if d.until > now and (not d.stopped or d.keep_on_stop)]


METHODS: dict[str, Handler] = {
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
