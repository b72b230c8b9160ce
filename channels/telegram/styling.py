"""Conversion of Markdown to Telegram text with entities, without a parse mode. Pure.

Offsets and lengths of entities count UTF-16 units; the limits of texts count code points.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from gateway.markdown import (
    Block,
    Break,
    Code,
    CodeBlock,
    Emphasis,
    Heading,
    Image,
    Inline,
    Item,
    ItemList,
    Link,
    Math,
    Paragraph,
    Quote,
    Rule,
    Strike,
    Strong,
    Table,
    Text,
    inline_text,
    parse_markdown,
)

MOST_ENTITIES = 100

Entity = Mapping[str, Any]

_CLEANED: dict[int, str | None] = {
    **{code: " " for code in range(32) if code != ord("\n")},
    127: None,
    ord("\r"): None,
    **dict.fromkeys(range(0x2028, 0x202F)),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}
_MENTION = re.compile(r"(?<!\w)@(?=\w)")
_INERT = "@\u2060"
_ADDRESS = re.compile(
    r"https?://(?:(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z][A-Za-z0-9-]{1,62}"
    r"|\d{1,3}(?:\.\d{1,3}){3})(?::[1-9]\d{0,3})?(?:[/?#][!-~]*)?"
)
"""Addresses that Telegram certainly accepts; one invalid address makes it refuse the whole message."""
_MOST_ADDRESS = 2000
_WIDE = re.compile("[\U00010000-\U0010ffff]")
_LANGUAGE = re.compile(r"[\w+#.-]{1,40}")
_STYLES = frozenset(("bold", "italic", "underline", "strikethrough"))
_RULE = "———"


class Styled(Struct, frozen=True):
    """A text and its entities."""

    text: str = ""
    entities: tuple[Entity, ...] = ()
    count: int = 0
    """Number of entities before the limit of ``MOST_ENTITIES`` was applied."""


@lru_cache(maxsize=8)
def styled(markdown: str) -> Styled:
    """Convert Markdown to text and entities, without surrounding whitespace, which Telegram removes as
    well."""
    # Cached: each piece is measured and then rendered, and full pages repeat while an answer grows.
    writer = _Writer()
    writer.blocks(parse_markdown(markdown))
    return writer.done()


def utf16(text: str) -> int:
    """Return the length of a text in UTF-16 units."""
    return len(text) if text.isascii() else len(text) + len(_WIDE.findall(text))


def is_blank(text: str) -> bool:
    """Return whether a text has no visible characters."""
    return all(unicodedata.category(letter) in ("Zs", "Zl", "Zp", "Cc", "Cf", "Mn") for letter in text)


def inert(text: str) -> str:
    """Disable mentions in a text: names stay readable but notify no user."""
    return _MENTION.sub(_INERT, text)


class _Writer:
    """Writer for a Markdown tree that records the position of each entity."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._at = 0
        self._entities: list[dict[str, Any]] = []
        self._indent = ""
        self._quoting = False
        self._linking = False

    def done(self) -> Styled:
        """Return the written text with its entities."""
        return _trimmed("".join(self._pieces), list(_apart(self._entities)))

    def blocks(self, blocks: Iterable[Block], between: str = "\n\n") -> None:
        """Write blocks, one below the other."""
        for number, block in enumerate(blocks):
            if number:
                self._line(between)
            self._block(block)

    def _block(self, block: Block) -> None:
        match block:
            case Paragraph(children):
                self._inlines(children)
            case Heading(_, children):
                self._within("bold", children)
            case CodeBlock(text, language):
                more = {"language": language} if _LANGUAGE.fullmatch(language) else {}
                self._marked("pre", text or " ", **more)
            case Quote(children):
                self._quote(children)
            case ItemList():
                self._list(block)
            case Table():
                self._marked("pre", _grid(block))
            case Rule():
                self._write(_RULE)

    def _quote(self, children: tuple[Block, ...]) -> None:
        """Write a quote; Telegram does not nest quotes, so that an inner one gets a leading mark."""
        if self._quoting:
            self._write("» ")
            self.blocks(children)
            return
        start, self._quoting = self._at, True
        self.blocks(children)
        self._quoting = False
        self._note("blockquote", start)

    def _list(self, block: ItemList) -> None:
        for number, item in enumerate(block.items):
            if number:
                self._line("\n" if block.tight else "\n\n")
            mark = f"{block.start + number}. " if block.ordered else "• "
            self._item(item, mark, block.tight)

    def _item(self, item: Item, mark: str, tight: bool) -> None:
        self._write(mark)
        if item.checked is not None:
            self._write("☑ " if item.checked else "☐ ")
        before, self._indent = self._indent, self._indent + " " * (len(mark) + 1)
        self.blocks(item.children, "\n" if tight else "\n\n")
        self._indent = before

    def _inlines(self, inlines: Iterable[Inline]) -> None:
        for inline in inlines:
            self._inline(inline)

    def _inline(self, inline: Inline) -> None:
        match inline:
            case Text(text) | Math(text):
                self._lines(text)
            case Code(text):
                self._code(text)
            case Break():
                self._line("\n")
            case Strong(children):
                self._within("bold", children)
            case Emphasis(children):
                self._within("italic", children)
            case Strike(children):
                self._within("strikethrough", children)
            case Link():
                self._link(inline)
            case Image(alt, href, host):
                self._link(Link((Text(f"🖼 {alt or host}"),), href, host))

    def _lines(self, text: str) -> None:
        first, *others = text.split("\n")
        self._write(inert(first))
        for line in others:
            self._line("\n")
            self._write(inert(line))

    def _link(self, link: Link) -> None:
        label = inline_text(link.children)
        if not _ADDRESS.fullmatch(link.href) or len(link.href) > _MOST_ADDRESS:
            self._write(inert(label if label == link.href else f"{label} ({link.href})"))
        elif label != link.href:
            start, self._linking = self._at, True
            self._inlines(link.children)
            self._linking = False
            self._note("text_link", start, url=link.href)
            if link.shown_differs:
                self._write(f" ({link.host})")
        elif "@" in label:
            self._marked("text_link", label, url=link.href)
        else:
            self._write(label)

    def _within(self, kind: str, children: tuple[Inline, ...]) -> None:
        start = self._at
        self._inlines(children)
        self._note(kind, start)

    def _code(self, text: str) -> None:
        if self._linking:
            self._write(inert(text))
        else:
            self._marked("code", text)

    def _marked(self, kind: str, text: str, **more: Any) -> None:
        start = self._at
        self._write(text)
        self._note(kind, start, **more)

    def _note(self, kind: str, start: int, **more: Any) -> None:
        if self._at > start:
            self._entities.append({"type": kind, "offset": start, "length": self._at - start, **more})

    def _line(self, end: str) -> None:
        self._write(end + self._indent)

    def _write(self, text: str) -> None:
        text = text.translate(_CLEANED)
        self._pieces.append(text)
        self._at += utf16(text)


def _grid(table: Table) -> str:
    """Render a table for a monospaced font."""
    rows = [[inline_text(cell).replace("\n", " ") for cell in row] for row in (table.header, *table.rows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("─" * width for width in widths))
    return "\n".join(lines)


def _apart(entities: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Remove the parts of styles that overlap code, which Telegram does not accept."""
    code = sorted(
        (one["offset"], one["offset"] + one["length"]) for one in entities if one["type"] in ("code", "pre")
    )
    for entity in entities:
        if entity["type"] not in _STYLES:
            yield entity
            continue
        start, stop = entity["offset"], entity["offset"] + entity["length"]
        for begin, end in code:
            if end <= start or begin >= stop:
                continue
            if begin > start:
                yield entity | {"offset": start, "length": begin - start}
            start = max(start, end)
        if start < stop:
            yield entity | {"offset": start, "length": stop - start}


def _trimmed(text: str, entities: list[dict[str, Any]]) -> Styled:
    """Remove surrounding whitespace; entities are shifted, and those of whitespace only are dropped."""
    kept = text.strip()
    cut, end = utf16(text[: len(text) - len(text.lstrip())]), utf16(kept)
    moved: list[Entity] = []
    for entity in entities:
        start = max(0, entity["offset"] - cut)
        stop = min(end, entity["offset"] + entity["length"] - cut)
        if stop > start:
            moved.append(entity | {"offset": start, "length": stop - start})
    moved.sort(key=lambda one: (one["offset"], -one["length"]))
    return Styled(kept, tuple(moved[:MOST_ENTITIES]), len(moved))
