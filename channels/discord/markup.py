"""Markdown as Discord shows it. Pure.

Discord knows headings up to the third, lists, quotes, code, masked links; no tables, no pictures by address.
What a text says about people and rooms stays a text: nothing in it becomes a mention.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from unicodedata import east_asian_width

from gateway.markdown import (
    Block,
    Break,
    Cell,
    Code,
    CodeBlock,
    Emphasis,
    Heading,
    Image,
    Inline,
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

_MARKUP = re.compile(r"([\\`*_~|<\[\]])")
_LEADS = re.compile(r"(?m)^(\s*[0-9]*)([#>+\-.)]+)(?=\s|$)|^(\s*)(-#|>>>)")
_EVERYBODY = re.compile(r"@(?=everyone|here)", re.IGNORECASE)
_LANGUAGE = re.compile(r"[A-Za-z0-9+#_.\-]{1,32}")
_ZERO = "\u200b"
_FENCE = "```"


@lru_cache(maxsize=8)
def discord_markdown(text: str) -> str:
    """A Markdown text as Discord shows it best."""
    # A piece is measured, and then shown; messages that are full come again while an answer grows.
    return "\n".join(_blocks(parse_markdown(text)))


def escaped(text: str) -> str:
    """Words that show as they are."""
    text = _MARKUP.sub(r"\\\1", text)
    text = _LEADS.sub(lambda m: f"{m[1] or m[3] or ''}\\{m[2] or m[4]}", text)
    return unpinged(text)


def unpinged(text: str) -> str:
    """A text in which nobody is called, not even to the eye."""
    return _EVERYBODY.sub(f"@{_ZERO}", text)


def fenced(text: str, language: str = "") -> str:
    """A block of code. A fence inside it is broken, as Discord knows only one kind."""
    inside = re.sub("``(?=`)", f"``{_ZERO}", text)
    if inside.endswith("`"):
        inside += _ZERO
    name = language if _LANGUAGE.fullmatch(language) else ""
    return f"{_FENCE}{name}\n{inside}\n{_FENCE}"


def code(text: str) -> str:
    """Code within a line."""
    if "`" not in text:
        return f"`{text}`" if text.strip() else text
    inside = re.sub("`(?=`)", f"`{_ZERO}", text)
    return f"`` {inside} ``"


def _blocks(blocks: Iterable[Block]) -> Iterator[str]:
    before: Block | None = None
    for block in blocks:
        if before is not None and not (isinstance(block, CodeBlock | ItemList) and _leads(before)):
            yield ""
        yield _block(block)
        before = block


def _leads(block: Block) -> bool:
    """Whether what follows belongs to it so closely that no line parts them."""
    return isinstance(block, Heading)


def _block(block: Block) -> str:
    match block:
        case Paragraph(children):
            return _line(children)
        case Heading(level, children):
            words = " ".join(_line(children).splitlines())
            return f"{'#' * level} {words}" if level <= 3 else f"**{words}**"
        case CodeBlock(text, language):
            return fenced(text, language)
        case Quote(children):
            return "\n".join(f"> {line}" for line in "\n".join(_blocks(children)).split("\n"))
        case ItemList():
            return "\n".join(_items(block))
        case Table(header, rows):
            return fenced(_table(header, rows))
        case Rule():
            return "───"


def _items(block: ItemList) -> Iterator[str]:
    for number, item in enumerate(block.items, block.start):
        mark = f"{number}. " if block.ordered else "- "
        task = {None: "", True: "☑ ", False: "☐ "}[item.checked]
        inside = task + "\n".join(map(_block, item.children) if block.tight else _blocks(item.children))
        yield mark + inside.replace("\n", "\n" + "  " * (2 if block.ordered else 1))


def _table(header: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> str:
    """A table as lines of equal columns."""
    cells = [[" ".join(inline_text(cell).split()) for cell in row] for row in (header, *rows)]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    lines = [" | ".join(_padded(*pair) for pair in zip(row, widths, strict=True)).rstrip() for row in cells]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(lines)


def _width(text: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


@lru_cache(maxsize=512)
def _line(inlines: tuple[Inline, ...]) -> str:
    # A paragraph is in many pieces that are measured before one of them is shown.
    return "".join(map(_inline, inlines))


def _inline(inline: Inline) -> str:
    match inline:
        case Text(text):
            return escaped(text)
        case Code(text):
            return code(text)
        case Math(source):
            return "\n".join(map(escaped, source.split("\n")))
        case Break():
            return "\n"
        case Strong(children):
            return _around("**", children)
        case Emphasis(children):
            return _around("*", children)
        case Strike(children):
            return _around("~~", children)
        case Link():
            return _link(inline)
        case Image(alt, href):
            return f"{escaped(alt)} <{href}>" if alt else f"<{href}>"


def _around(mark: str, children: tuple[Inline, ...]) -> str:
    inside = _line(children)
    return f"{mark}{inside}{mark}" if inside.strip() else inside


def _link(link: Link) -> str:
    """A link. Where the words name another place, the real one stands behind them."""
    label = inline_text(link.children)
    address = link.href.replace(" ", "%20").replace("(", "%28").replace(")", "%29").replace(">", "%3E")
    if label in (link.href, link.host) or "://" in label:
        return f"<{address}>" if not link.shown_differs else f"{_unlinked(label)} (<{address}>)"
    shown = f"[{_line(link.children)}](<{address}>)"
    return f"{shown} ({escaped(link.host)})" if link.shown_differs else shown


def _unlinked(words: str) -> str:
    """Words that look like an address and must not become a link."""
    return escaped(words).replace("://", f":{_ZERO}//")
