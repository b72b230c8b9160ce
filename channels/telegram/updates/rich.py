"""Rich messages as Markdown, and their files. Pure.

A rich message is a tree of blocks, in which every text is a string, a list of texts or an object. Malformed
parts of it are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from channels.telegram.updates.objects import File, read

_DEEPEST = 20
_MEDIA = ("photo", "video", "animation", "audio", "document", "voice_note")
_TICKS = re.compile("`+")


def code(text: str) -> str:
    """Return a text as Markdown code."""
    ticks = "`" * (1 + max(map(len, _TICKS.findall(text)), default=0))
    return f"{ticks} {text} {ticks}" if "`" in text else f"{ticks}{text}{ticks}"


def fenced(text: str, language: str = "") -> str:
    """Return a text as a fenced block."""
    ticks = "`" * max(3, 1 + max(map(len, _TICKS.findall(text)), default=0))
    return f"{ticks}{_line(language)}\n{text.rstrip(chr(10))}\n{ticks}"


def rich_text(message: object) -> str:
    """Return a rich message as Markdown; empty if it has no text."""
    return _blocks(_fields(message).get("blocks"), 0)


def rich_files(message: object) -> Iterable[tuple[str, Sequence[File]]]:
    """Return the files of a rich message, each with its kind; a photo in its sizes."""
    yield from _files(_fields(message).get("blocks"), 0)


def _fields(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _items(value: object) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list) else ()


def _line(value: object) -> str:
    return " ".join(value.split()) if isinstance(value, str) else ""


def _blocks(value: object, depth: int) -> str:
    if depth > _DEEPEST:
        return ""
    return "\n\n".join(filter(None, (_block(_fields(one), depth + 1) for one in _items(value))))


def _block(block: Mapping[str, Any], depth: int) -> str:
    text = _text(block.get("text"), depth)
    match block.get("type"):
        case "heading":
            size = block.get("size")
            return f"{'#' * (size if isinstance(size, int) and 1 <= size <= 6 else 1)} {_line(text)}"
        case "pre":
            language = block.get("language")
            return fenced(text, language if isinstance(language, str) else "")
        case "list":
            return "\n".join(_item(_fields(item), depth) for item in _items(block.get("items")))
        case "blockquote" | "expandable_blockquote" | "pullquote":
            said = (text, _blocks(block.get("blocks"), depth), _text(block.get("credit"), depth))
            return "\n".join(f"> {line}" for line in "\n".join(filter(None, said)).splitlines())
        case "table":
            rows = [_row(row, depth) for row in _items(block.get("cells"))]
            return "\n".join(filter(None, (_text(block.get("caption"), depth), *rows)))
        case "details":
            said = (_text(block.get("summary"), depth), _blocks(block.get("blocks"), depth))
            return "\n".join(filter(None, said))
        case _:
            return _plain_block(block, text, depth)


def _plain_block(block: Mapping[str, Any], text: str, depth: int) -> str:
    match block.get("type"):
        case "divider":
            return "---"
        case "mathematical_expression":
            return f"$${_line(block.get('expression'))}$$"
        case "map":
            place = _fields(block.get("location"))
            return f"[location: {place.get('latitude')}, {place.get('longitude')}]"
        case "buttons":
            buttons = (_fields(one).get("text") for one in _items(block.get("buttons")))
            return " ".join(f"[{_text(one, depth)}]" for one in buttons)
        case kind:
            caption = _text(_fields(block.get("caption")).get("text"), depth)
            media = f"[{kind}]".replace("_", " ") if kind in _MEDIA else ""
            return "\n".join(filter(None, (text, media, _blocks(block.get("blocks"), depth), caption)))


def _item(item: Mapping[str, Any], depth: int) -> str:
    label = _line(item.get("label")) or "-"
    if item.get("has_checkbox"):
        label = f"- [{'x' if item.get('is_checked') else ' '}]"
    elif not label[:1].isalnum():
        label = "-"
    text = _blocks(item.get("blocks"), depth)
    return f"{label} {text}".replace("\n", "\n  ")


def _row(row: object, depth: int) -> str:
    cells = (_line(_text(_fields(cell).get("text"), depth)) for cell in _items(row))
    return f"| {' | '.join(cells)} |"


def _text(value: object, depth: int) -> str:
    if isinstance(value, str):
        return value
    if depth > _DEEPEST:
        return ""
    if isinstance(value, list):
        return "".join(_text(one, depth + 1) for one in _items(cast("object", value)))
    text = _fields(value)
    inner = _text(text.get("text"), depth + 1)
    match text.get("type"):
        case "url":
            url = text.get("url")
            return f"{inner} ({url})" if isinstance(url, str) and url and url != inner else inner
        case "code":
            return code(inner)
        case "custom_emoji":
            return _text(text.get("alternative_text"), depth + 1)
        case "mathematical_expression":
            return f"${_line(text.get('expression'))}$"
        case "button":
            return f"[{_text(_fields(text.get('button')).get('text'), depth + 1)}]"
        case _:
            return inner


def _files(value: object, depth: int) -> Iterable[tuple[str, Sequence[File]]]:
    if depth > _DEEPEST:
        return
    for block in map(_fields, _items(value)):
        kind = block.get("type")
        if kind in _MEDIA and kind in block:
            many = read(block[kind], tuple[File, ...]) if kind == "photo" else None
            one = read(block[kind], File) if kind != "photo" else None
            if found := many or ((one,) if one is not None else ()):
                yield str(kind), found
        for inner in (block, *map(_fields, _items(block.get("items")))):
            yield from _files(inner.get("blocks"), depth + 1)
