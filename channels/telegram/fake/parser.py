"""The platform's own text parser, where it is installed (``pip install tdjson``); without it, the little that
must be.

It runs offline: parse modes, the entities that a text has of itself, and what is wrong with given ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec

from channels.telegram.fake.refusal import Refused, mistaken

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
    """Whether the platform's own parser is there."""
    return _execute() is not None


def parsed(text: str, mode: str) -> tuple[str, list[Entity]]:
    """A text without its markup, and the entities it stood for. Raises Refused for malformed markup."""
    if mode not in ("markdown", "markdownv2", "html"):
        raise mistaken("unsupported parse_mode", f"there is no parse mode {mode}")
    if not installed():
        raise Refused(
            "Bad Request: parse modes are read where tdjson is installed",
            501,
            mistake="parse_mode without a parser",
        )
    kind: dict[str, Any] = {"@type": "textParseModeHTML"}
    if mode != "html":
        kind = {"@type": "textParseModeMarkdown", "version": 2 if mode == "markdownv2" else 1}
    answer = _ask({"@type": "parseTextEntities", "text": text, "parse_mode": kind})
    return answer["text"], [_entity(item) for item in answer["entities"] if _kind(item) in _TYPES]


def found(text: str) -> list[Entity]:
    """What a text has of itself: commands, mentions, addresses, tags."""
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
