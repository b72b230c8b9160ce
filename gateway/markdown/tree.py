"""The tree of a Markdown text: frozen nodes, which each channel renders for its platform.

A renderer is one function for blocks and one for inlines, each a ``match`` with a case for every class::

    match inline:
        case Text(text): ...
        case Strong(children): ...

Texts are not escaped. The depth of a tree is limited to about twenty nodes, so a renderer may be recursive.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, assert_never

from msgspec import Struct

Align = Literal["", "left", "center", "right"]


class Text(Struct, frozen=True, gc=False):
    """Text without line breaks."""

    text: str


class Code(Struct, frozen=True, gc=False):
    """Inline code."""

    text: str


class Math(Struct, frozen=True, gc=False):
    """A LaTeX formula. ``source`` is unchanged: it has its delimiters and may have several lines."""

    source: str


class Break(Struct, frozen=True, gc=False):
    """A line break within a paragraph."""


class Strong(Struct, frozen=True, gc=False):
    """Strong emphasis, usually bold."""

    children: tuple[Inline, ...]


class Emphasis(Struct, frozen=True, gc=False):
    """Emphasis, usually italic."""

    children: tuple[Inline, ...]


class Strike(Struct, frozen=True, gc=False):
    """Struck-through text."""

    children: tuple[Inline, ...]


class Spoiler(Struct, frozen=True, gc=False):
    """Text that readers uncover, between ``||`` as on Discord and Telegram."""

    children: tuple[Inline, ...]


class Link(Struct, frozen=True, gc=False):
    """A link to a web page, a mail address or a place in Telegram; contains no other link.

    ``host`` is the real destination: the host of the URL, the mail address, or the whole ``tg:`` URL. If
    ``shown_differs``, the text looks like another destination: then show the host, too. URLs that must not be
    links are text in the tree.
    """

    children: tuple[Inline, ...]
    href: str
    host: str
    shown_differs: bool = False


class Image(Struct, frozen=True, gc=False):
    """An image by its URL. Loading it reveals the reader to its host, so a link is safer.

    ``alt`` is its description, or empty.
    """

    alt: str
    href: str
    host: str


Inline = Text | Code | Math | Break | Strong | Emphasis | Strike | Spoiler | Link | Image


class Paragraph(Struct, frozen=True, gc=False):
    """A paragraph."""

    children: tuple[Inline, ...]


class Heading(Struct, frozen=True, gc=False):
    """A heading of ``level`` 1 to 6."""

    level: int
    children: tuple[Inline, ...]


class CodeBlock(Struct, frozen=True, gc=False):
    """A block of code, without the newline at its end. ``language`` may be empty."""

    text: str
    language: str = ""


class Quote(Struct, frozen=True, gc=False):
    """A block quote."""

    children: tuple[Block, ...]


class Item(Struct, frozen=True, gc=False):
    """One item of a list. ``checked`` is None unless the item is a task."""

    children: tuple[Block, ...]
    checked: bool | None = None


class ItemList(Struct, frozen=True, gc=False):
    """A list. An ordered list counts from ``start``. A ``tight`` list has no space between its items."""

    items: tuple[Item, ...]
    ordered: bool = False
    start: int = 1
    tight: bool = True


Cell = tuple[Inline, ...]


class Table(Struct, frozen=True, gc=False):
    """A table. Every row has as many cells as the header."""

    header: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    aligns: tuple[Align, ...]


class Rule(Struct, frozen=True, gc=False):
    """A horizontal rule."""


Block = Paragraph | Heading | CodeBlock | Quote | ItemList | Table | Rule

Tree = tuple[Block, ...]


def plain_text(tree: Iterable[Block]) -> str:
    """Return the tree as text without markup. No readable text is lost."""
    return "\n\n".join(_block_text(block) for block in tree)


def inline_text(inlines: Iterable[Inline]) -> str:
    """Return the text of inlines. A URL that the text does not contain follows in brackets."""
    return "".join(map(_inline_text, inlines))


def table_text(table: Table, most: float = math.inf) -> str:
    """Return a table as lines for a monospaced font, with columns aligned by display width.

    Columns are only separated if alignment would take more than ``most`` terminal cells: one long text
    makes every row of its column as long.
    """
    import wcwidth  # takes 15 ms, and most gateways show few tables

    rows = [[" ".join(inline_text(cell).split()) for cell in row] for row in (table.header, *table.rows)]
    widths = [max(map(wcwidth.width, column)) for column in zip(*rows, strict=True)]
    if sum(widths) * len(rows) > most:
        return "\n".join(" | ".join(row) for row in rows)
    place = {"right": wcwidth.rjust, "center": wcwidth.center, "left": wcwidth.ljust, "": wcwidth.ljust}
    columns = [(place[align], width) for align, width in zip(table.aligns, widths, strict=True)]
    lines = [
        "  ".join(put(cell, width) for cell, (put, width) in zip(row, columns, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def label_of(link: Link) -> str:
    """Return the text of a link, without its URL."""
    return inline_text(link.children)


def _inline_text(inline: Inline) -> str:
    match inline:
        case Text(text) | Code(text) | Math(text):
            return text
        case Break():
            return "\n"
        case Link():
            label = label_of(inline)
            return label if label in (inline.href, inline.host) else f"{label} ({inline.href})"
        case Image(alt, href):
            return f"{alt} ({href})" if alt else href
        case Strong(children) | Emphasis(children) | Strike(children):
            return inline_text(children)
        case Spoiler(children):
            return f"||{inline_text(children)}||"
        case _:
            assert_never(inline)


def _block_text(block: Block) -> str:
    match block:
        case Paragraph(children) | Heading(_, children):
            return inline_text(children)
        case CodeBlock(text):
            return text
        case Quote(children):
            return _prefix_lines(plain_text(children), "> ", "> ")
        case ItemList():
            return ("\n" if block.tight else "\n\n").join(_items(block))
        case Table(header, rows):
            return "\n".join(map(_row, (header, *rows)))
        case Rule():
            return "---"
        case _:
            assert_never(block)


def _items(block: ItemList) -> Iterable[str]:
    for number, item in enumerate(block.items, block.start):
        mark = f"{number}. " if block.ordered else "• "
        task = "" if item.checked is None else "[x] " if item.checked else "[ ] "
        between = "\n" if block.tight else "\n\n"
        yield _prefix_lines(task + between.join(map(_block_text, item.children)), mark, " " * len(mark))


def _row(cells: Sequence[Cell]) -> str:
    return " | ".join(inline_text(cell) for cell in cells)


def _prefix_lines(text: str, first: str, further: str) -> str:
    """Return a text with one prefix for its first line and one for the others."""
    return first + text.replace("\n", "\n" + further)
