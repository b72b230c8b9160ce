"""Texts of messages: cleaned, with entities, and within the limits. Limits count code points."""

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
_TDLIB_TYPES = {written: kind for kind, written in _TYPES.items() if kind != "PreCode"}
_PLAIN = re.compile(
    r"(?P<bot_command>(?<![\w/])/\w{1,64}(?:@\w{3,32})?)|(?P<mention>(?<!\w)@\w{4,32})|(?P<url>https?://[^\s<>\"]+)"
)
_MARKED = re.compile(r"[*_~|`\[\]]")


def has_parser() -> bool:
    """Return whether tdjson, the platform's own parser, is installed."""
    return _execute() is not None


def parse_markup(text: str, mode: str) -> tuple[str, list[Entity]]:
    """Return a text without markup, and the entities of the markup. Raises Refused for malformed markup."""
    if mode not in ("markdown", "markdownv2", "html"):
        raise mistaken("unsupported parse_mode", f"there is no parse mode {mode}")
    if not has_parser():
        raise Refused(
            "Bad Request: parse modes are read where tdjson is installed",
            501,
            problem="parse_mode without a parser",
        )
    kind: dict[str, Any] = {"@type": "textParseModeHTML"}
    if mode != "html":
        kind = {"@type": "textParseModeMarkdown", "version": 2 if mode == "markdownv2" else 1}
    answer = _call_parser({"@type": "parseTextEntities", "text": text, "parse_mode": kind})
    return answer["text"], [_entity(item) for item in answer["entities"] if _kind(item) in _TYPES]


def detect_entities(text: str) -> list[Entity]:
    """Return the entities of plain text: commands, mentions, addresses, tags."""
    if not has_parser():
        return [
            {"type": match.lastgroup, "offset": utf16(text[: match.start()]), "length": utf16(match[0])}
            for match in _PLAIN.finditer(text)
        ]
    answer = _call_parser({"@type": "getTextEntities", "text": text})
    return [_entity(item) for item in answer["entities"] if _kind(item) in _TYPES]


def normalize_entities(text: str, entities: Iterable[Entity]) -> list[Entity]:
    """Return entities in order and with overlaps resolved, as the platform does. Raises Refused for
    impossible ones."""
    given = list(entities)
    if not given:
        return []
    if not has_parser():
        return _check_bounds(text, given)
    own: list[dict[str, Any]] = []
    for entity in given:
        kind = _TDLIB_TYPES.get(entity["type"])
        if kind is not None:
            own.append({"@type": "textEntity", "offset": entity["offset"], "length": entity["length"]})
            own[-1]["type"] = {"@type": f"textEntityType{'PreCode' if entity.get('language') else kind}"}
            own[-1]["type"] |= _details(entity)
    # The parser is used for the entities only, so markup characters are replaced first.
    covered = _MARKED.sub("x", text)
    answer = _call_parser(
        {"@type": "parseMarkdown", "text": {"@type": "formattedText", "text": covered, "entities": own}}
    )
    return [_entity(item) for item in answer["entities"] if _kind(item) in _TYPES]


def utf16(text: str) -> int:
    """Return the length in UTF-16 units, which entities count."""
    return len(text.encode("utf-16-le")) // 2


@cache
def _execute() -> Any:
    # An optional dependency, because it is large.
    try:
        from tdjson import td_execute
    except ImportError:
        return None
    td_execute(b'{"@type":"setLogVerbosityLevel","new_verbosity_level":0}')
    return td_execute


def _call_parser(request: dict[str, Any]) -> dict[str, Any]:
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


def _check_bounds(text: str, entities: list[Entity]) -> list[Entity]:
    end = utf16(text)
    for entity in entities:
        if entity["offset"] < 0 or entity["offset"] + entity["length"] > end:
            raise mistaken("ENTITY_BOUNDS_INVALID")
    return sorted(entities, key=lambda entity: (entity["offset"], -entity["length"]))


MAX_TEXT = 4096
MAX_CAPTION = 1024
MAX_RICH = 32_768
MAX_BYTES = 1 << 15
MAX_ENTITIES = 100

_CLEANED: dict[int, str | None] = {
    **{code: " " for code in range(32) if code != ord("\n")},
    ord("\r"): None,
    **dict.fromkeys(range(0x2028, 0x202F)),
}
_CLOSED = ("code", "pre", "text_link", "text_mention")


class Styled(Struct, frozen=True):
    """A text with its entities."""

    text: str = ""
    entities: tuple[Entity, ...] = ()


def styled(text: str, mode: str = "", entities: Iterable[Entity] = ()) -> Styled:
    """Return a text as the platform stores it. Raises Refused for malformed markup or impossible entities."""
    if len(text.encode()) > MAX_BYTES:
        raise mistaken("text is too long")
    if text and mode.lower() not in ("", "none"):
        text, read = parse_markup(text, mode.lower())
    else:
        read = list(entities)
    text, read = _clean(text, read)
    return _strip(text, _merge_entities(normalize_entities(text, read), detect_entities(text))[:MAX_ENTITIES])


def message_text(request: Request, *, empty: bool = False) -> Styled:
    """Return the text of a message to send. Raises Refused unless it has 1 to 4096 characters (0 if
    ``empty``)."""
    content = styled(request.get("text", ""), request.get("parse_mode", ""), request.get("entities", ()))
    if not content.text and not empty:
        raise mistaken("message text is empty")
    if len(content.text) > MAX_TEXT:
        raise mistaken("message is too long", f"a text of {len(content.text)} characters")
    return content


def request_caption(request: Request) -> Styled:
    """Return the caption of a file to send. Raises Refused if it has more than 1024 characters."""
    return caption(request.arguments)


def caption(given: Any) -> Styled:
    """Return the caption of one file of an album. Raises Refused if it has more than 1024 characters."""
    content = styled(given.get("caption", ""), given.get("parse_mode", ""), given.get("caption_entities", ()))
    if len(content.text) > MAX_CAPTION:
        raise mistaken("message caption is too long", f"a caption of {len(content.text)} characters")
    return content


def remarks(request: Request) -> list[str]:
    """Return remarks about entities after the hundredth, which the platform accepts but does not show."""
    return [
        f"{len(request[name])} {name}, of which {MAX_ENTITIES} are shown"
        for name in ("entities", "caption_entities")
        if len(request.get(name, ())) > MAX_ENTITIES
    ]


def _clean(text: str, entities: Iterable[Entity]) -> tuple[str, list[Entity]]:
    """Remove the characters that the platform removes from every text, and shift the entities."""
    gone = [utf16(text[:at]) for at, letter in enumerate(text) if _CLEANED.get(ord(letter), "") is None]
    if not gone:
        return text.translate(_CLEANED), list(entities)
    moved: list[Entity] = []
    for entity in entities:
        start, stop = entity["offset"], entity["offset"] + entity["length"]
        before, within = bisect_left(gone, start), bisect_left(gone, stop)
        moved.append(entity | {"offset": start - before, "length": stop - start - (within - before)})
    return text.translate(_CLEANED), moved


def _merge_entities(given: list[Entity], found: list[Entity]) -> list[Entity]:
    """Return the given entities, and the detected ones that do not overlap code or links."""
    closed = [entity for entity in given if entity["type"] in _CLOSED]
    free = [entity for entity in found if not any(_overlap(entity, other) for other in closed)]
    return sorted([*given, *free], key=lambda entity: (entity["offset"], -entity["length"]))


def _overlap(one: Entity, other: Entity) -> bool:
    return (
        one["offset"] < other["offset"] + other["length"] and other["offset"] < one["offset"] + one["length"]
    )


def _strip(text: str, entities: list[Entity]) -> Styled:
    """Remove surrounding whitespace, shift the entities, and drop those of whitespace only."""
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
