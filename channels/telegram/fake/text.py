"""Text as it stands in a room: cleaned, with its entities, within its limits. Limits count code points."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from channels.telegram.fake import parser
from channels.telegram.fake.parser import Entity, utf16
from channels.telegram.fake.refusal import mistaken
from channels.telegram.fake.request import Request

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
        text, read = parser.parsed(text, mode.lower())
    else:
        read = list(entities)
    text, read = _cleaned(text, read)
    return _trimmed(text, _joined(parser.fixed(text, read), parser.found(text))[:MOST_ENTITIES])


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
    """The same, of one file of an album."""
    content = styled(given.get("caption", ""), given.get("parse_mode", ""), given.get("caption_entities", ()))
    if len(content.text) > MOST_CAPTION:
        raise mistaken("message caption is too long", f"a caption of {len(content.text)} characters")
    return content


def remarks(request: Request) -> list[str]:
    """What passes, but not as it was meant: entities behind the hundredth are not shown."""
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
