"""Text of messages: cleaned, parsed into entities, within its limits. Limits count code points."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from channels.telegram.fake.calls import Refused, Request, mistaken

Entity = dict[str, Any]
"""As the Bot API writes it: ``type``, ``offset`` and ``length`` in UTF-16 units, and what the type needs."""

_TYPES = {
    "Bold": "bold",
    "Italic": "italic",
    "Underline": "underline",
    "Strikethrough": "strikethrough",
    "Spoiler": "spoiler",
    "Code": "code",
    "Pre": "pre",
    "PreCode": "pre",
    "TextUrl": "text_link",
    "MentionName": "text_mention",
    "CustomEmoji": "custom_emoji",
    "BlockQuote": "blockquote",
    "ExpandableBlockQuote": "expandable_blockquote",
    "Mention": "mention",
    "Hashtag": "hashtag",
    "Cashtag": "cashtag",
    "BotCommand": "bot_command",
    "Url": "url",
    "EmailAddress": "email",
    "PhoneNumber": "phone_number",
}
_BACK = {written: kind for kind, written in _TYPES.items() if kind != "PreCode"}
_PLAIN = re.compile(
    r"(?P<bot_command>(?<![\w/])/\w{1,64}(?:@\w{3,32})?)|(?P<mention>(?<!\w)@\w{4,32})|(?P<url>https?://[^\s<>\"]+)"
)
_MARKED = re.compile(r"[*_~|`\[\]]")


def installed() -> bool:
    """Return whether the platform's own parser is there."""
    return _execute() is not None


def parsed(text: str, mode: str) -> tuple[str, list[Entity]]:
    """A text without its markup, and the entities it stood for. Raises Refused for malformed markup."""
    if mode not in ("markdown", "markdownv2", "html"):
        raise mistaken("unsupported parse_mode", f"there is no parse mode {mode}")
    if not installed():
        raise Refused(
            "Bad Request: parse modes are read where tdjson is installed",
            501,
            problem="parse_mode without a parser",
        )
    kind: dict[str, Any] = {"@type": "textParseModeHTML"}
    if mode != "html":
        kind = {"@type": "textParseModeMarkdown", "version": 2 if mode == "markdownv2" else 1}
    answer = _ask({"@type": "parseTextEntities", "text": text, "parse_mode": kind})
    return answer["text"], [_entity(item) for item in answer["entities"] if _kind(item) in _TYPES]


def found(text: str) -> list[Entity]:
    """Return the entities that a text has without markup: commands, mentions, addresses, tags."""
    if not installed():
        return [
            {"type": match.lastgroup, "offset": utf16(text[: match.start()]), "length": utf16(match[0])}
            for match in _PLAIN.finditer(text)
        ]
    answer = _ask({"@type": "getTextEntities", "text": text})
    return [_entity(item) for item in answer["entities"] if _kind(item) in _TYPES]


def fixed(text: str, entities: Iterable[Entity]) -> list[Entity]:
    """Entities as the platform keeps them: in order, overlaps resolved. Raises Refused for impossible
    ones."""
    given = list(entities)
    if not given:
        return []
    if not installed():
        return _bounded(text, given)
    own: list[dict[str, Any]] = []
    for entity in given:
        kind = _BACK.get(entity["type"])
        if kind is not None:
            own.append({"@type": "textEntity", "offset": entity["offset"], "length": entity["length"]})
            own[-1]["type"] = {"@type": f"textEntityType{'PreCode' if entity.get('language') else kind}"}
            own[-1]["type"] |= _details(entity)
    # Only its entities are wanted here, so whatever it would take for markup is covered first.
    covered = _MARKED.sub("x", text)
    answer = _ask(
        {"@type": "parseMarkdown", "text": {"@type": "formattedText", "text": covered, "entities": own}}
    )
    return [_entity(item) for item in answer["entities"] if _kind(item) in _TYPES]


def utf16(text: str) -> int:
    """Length in UTF-16 units, in which the platform counts offsets."""
    return len(text.encode("utf-16-le")) // 2


@cache
def _execute() -> Any:
    # For tests, and for those who want exact answers; too large to ask of everybody.
    try:
        from tdjson import td_execute
    except ImportError:
        return None
    td_execute(b'{"@type":"setLogVerbosityLevel","new_verbosity_level":0}')
    return td_execute


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = msgspec.json.decode(_execute()(msgspec.json.encode(request)))
    if answer["@type"] == "error":
        said: str = answer["message"]
        raise mistaken(said[:1].lower() + said[1:])
    return answer


def _kind(item: dict[str, Any]) -> str:
    return item["type"]["@type"].removeprefix("textEntityType")


def _entity(item: dict[str, Any]) -> Entity:
    kind = item["type"]
    entity: Entity = {"type": _TYPES[_kind(item)], "offset": item["offset"], "length": item["length"]}
    if kind.get("url"):
        entity["url"] = kind["url"]
    if kind.get("language"):
        entity["language"] = kind["language"]
    if kind.get("user_id"):
        entity["user"] = {"id": kind["user_id"]}
    if kind.get("custom_emoji_id"):
        entity["custom_emoji_id"] = str(kind["custom_emoji_id"])
    return entity


def _details(entity: Entity) -> dict[str, Any]:
    details: dict[str, Any] = {
        name: entity[name] for name in ("url", "language", "custom_emoji_id") if name in entity
    }
    if "user" in entity:
        details["user_id"] = entity["user"]["id"]
    return details


def _bounded(text: str, entities: list[Entity]) -> list[Entity]:
    end = utf16(text)
    for entity in entities:
        if entity["offset"] < 0 or entity["offset"] + entity["length"] > end:
            raise mistaken("ENTITY_BOUNDS_INVALID")
    return sorted(entities, key=lambda entity: (entity["offset"], -entity["length"]))


MOST_TEXT = 4096
MOST_CAPTION = 1024
MOST_RICH = 32_768
MOST_BYTES = 1 << 15
MOST_ENTITIES = 100

_CLEANED: dict[int, str | None] = {
    **{code: " " for code in range(32) if code != ord("\n")},
    ord("\r"): None,
    **dict.fromkeys(range(0x2028, 0x202F)),
}
_CLOSED = ("code", "pre", "text_link", "text_mention")


class Styled(Struct, frozen=True):
    """A text and what is special about parts of it."""

    text: str = ""
    entities: tuple[Entity, ...] = ()


def styled(text: str, mode: str = "", entities: Iterable[Entity] = ()) -> Styled:
    """A text as the platform keeps it. Raises Refused for malformed markup and impossible entities."""
    if len(text.encode()) > MOST_BYTES:
        raise mistaken("text is too long")
    if text and mode.lower() not in ("", "none"):
        text, read = parsed(text, mode.lower())
    else:
        read = list(entities)
    text, read = _cleaned(text, read)
    return _trimmed(text, _joined(fixed(text, read), found(text))[:MOST_ENTITIES])


def of_message(request: Request, *, empty: bool = False) -> Styled:
    """The text of a message to send. Raises Refused unless it has 1 to 4096 characters (or none, if
    ``empty``)."""
    content = styled(request.get("text", ""), request.get("parse_mode", ""), request.get("entities", ()))
    if not content.text and not empty:
        raise mistaken("message text is empty")
    if len(content.text) > MOST_TEXT:
        raise mistaken("message is too long", f"a text of {len(content.text)} characters")
    return content


def of_caption(request: Request) -> Styled:
    """The caption of a file to send. Raises Refused when it has more than 1024 characters."""
    return caption(request.arguments)


def caption(given: Any) -> Styled:
    """Return the caption of one file of an album."""
    content = styled(given.get("caption", ""), given.get("parse_mode", ""), given.get("caption_entities", ()))
    if len(content.text) > MOST_CAPTION:
        raise mistaken("message caption is too long", f"a caption of {len(content.text)} characters")
    return content


def remarks(request: Request) -> list[str]:
    """Return what the platform accepts but does not show: entities after the hundredth."""
    return [
        f"{len(request[name])} {name}, of which {MOST_ENTITIES} are shown"
        for name in ("entities", "caption_entities")
        if len(request.get(name, ())) > MOST_ENTITIES
    ]


def _cleaned(text: str, entities: Iterable[Entity]) -> tuple[str, list[Entity]]:
    """Without what the platform takes out of every text; entities move along."""
    gone = [utf16(text[:at]) for at, letter in enumerate(text) if _CLEANED.get(ord(letter), "") is None]
    if not gone:
        return text.translate(_CLEANED), list(entities)
    moved: list[Entity] = []
    for entity in entities:
        start, stop = entity["offset"], entity["offset"] + entity["length"]
        before, within = bisect_left(gone, start), bisect_left(gone, stop)
        moved.append(entity | {"offset": start - before, "length": stop - start - (within - before)})
    return text.translate(_CLEANED), moved


def _joined(given: list[Entity], found: list[Entity]) -> list[Entity]:
    """Given entities, and of the found ones those that are not within code or a link."""
    closed = [entity for entity in given if entity["type"] in _CLOSED]
    free = [entity for entity in found if not any(_meet(entity, other) for other in closed)]
    return sorted([*given, *free], key=lambda entity: (entity["offset"], -entity["length"]))


def _meet(one: Entity, other: Entity) -> bool:
    return (
        one["offset"] < other["offset"] + other["length"] and other["offset"] < one["offset"] + one["length"]
    )


def _trimmed(text: str, entities: list[Entity]) -> Styled:
    """Without the space around it; entities move along, and those of nothing but space go."""
    cut = utf16(text) - utf16(text.lstrip())
    kept = text.strip()
    end = utf16(kept)
    moved: list[Entity] = []
    for entity in entities:
        start = max(0, entity["offset"] - cut)
        stop = min(end, entity["offset"] - cut + entity["length"])
        if stop > start:
            moved.append(entity | {"offset": start, "length": stop - start})
    return Styled(kept, tuple(moved))
