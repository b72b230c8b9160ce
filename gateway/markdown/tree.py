"""Markdown as a tree of frozen nodes, which each channel writes in its platform's own way.

A renderer is a function over blocks and one over inlines, each a ``match`` with a case for every kind::

    match inline:
        case Text(text): ...
        case Strong(children): ...

Texts are as they are to be read, nothing in them is escaped. The tree is at most some twenty nodes deep, so
a renderer may call itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

Align = Literal["", "left", "center", "right"]


class Text(Struct, frozen=True, gc=False):
    """Words, without line breaks."""

    text: str


class Code(Struct, frozen=True, gc=False):
    """Code within a line."""

    text: str


class Math(Struct, frozen=True, gc=False):
    """A formula in LaTeX as it was written: ``source`` has its delimiters, and may have several lines.

    Platforms show the source unchanged.
    """

    source: str


class Break(Struct, frozen=True, gc=False):
    """The end of a line within a paragraph. Of a ``hard`` one the author was explicit."""

    hard: bool = False


class Strong(Struct, frozen=True, gc=False):
    """Usually bold."""

    children: tuple[Inline, ...]


class Emphasis(Struct, frozen=True, gc=False):
    """Usually italic."""

    children: tuple[Inline, ...]


class Strike(Struct, frozen=True, gc=False):
    """Struck through."""

    children: tuple[Inline, ...]


class Link(Struct, frozen=True, gc=False):
    """A link to a web page, a mail address or a place in Telegram; holds no other link.

    ``host`` is where it really leads: the host of a web address, the mail address, or the whole of a
    ``tg:`` address. When the words read like another place ``shown_differs``: then show the host, too.
    Addresses that may not be links are text already.
    """

    children: tuple[Inline, ...]
    href: str
    host: str
    shown_differs: bool = False


class Image(Struct, frozen=True, gc=False):
    """A picture by its web address. To load it tells its host who reads, so a link is safer.

    ``alt`` says what it shows, or is empty.
    """

    alt: str
    href: str
    host: str


Inline = Text | Code | Math | Break | Strong | Emphasis | Strike | Link | Image


class Paragraph(Struct, frozen=True, gc=False):
    """Inlines that belong together."""

    children: tuple[Inline, ...]


class Heading(Struct, frozen=True, gc=False):
    """A heading of ``level`` 1 to 6."""

    level: int
    children: tuple[Inline, ...]


class CodeBlock(Struct, frozen=True, gc=False):
    """Lines of code, the last one without its line end. ``language`` is what it was called, or empty."""

    text: str
    language: str = ""


class Quote(Struct, frozen=True, gc=False):
    """What somebody else said."""

    children: tuple[Block, ...]


class Item(Struct, frozen=True, gc=False):
    """One item of a list. ``checked`` is None unless the item is a task."""

    children: tuple[Block, ...]
    checked: bool | None = None


class ItemList(Struct, frozen=True, gc=False):
    """A list; an ordered one counts from ``start``. A ``tight`` one has no space between its items."""

    items: tuple[Item, ...]
    ordered: bool = False
    start: int = 1
    tight: bool = True


Cell = tuple[Inline, ...]


class Table(Struct, frozen=True, gc=False):
    """A table; every row has as many cells as the header."""

    header: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    aligns: tuple[Align, ...]


class Rule(Struct, frozen=True, gc=False):
    """A line across."""


Block = Paragraph | Heading | CodeBlock | Quote | ItemList | Table | Rule

Tree = tuple[Block, ...]


def plain_text(tree: Iterable[Block]) -> str:
    """The tree as text without markup, for where a platform shows none: nothing that can be read is lost."""
    return "\n\n".join(_plain(block) for block in tree)


def inline_text(inlines: Iterable[Inline]) -> str:
    """The words of inlines alone; an address that they do not tell follows in brackets."""
    return "".join(map(_words, inlines))


def label_of(link: Link) -> str:
    """What is shown of a link, without its address."""
    return inline_text(link.children)


def _words(inline: Inline) -> str:
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


def _plain(block: Block) -> str:
    match block:
        case Paragraph(children) | Heading(_, children):
            return inline_text(children)
        case CodeBlock(text):
            return text
        case Quote(children):
            return _led(plain_text(children), "> ", "> ")
        case ItemList():
            return ("\n" if block.tight else "\n\n").join(_items(block))
        case Table(header, rows):
            return "\n".join(map(_row, (header, *rows)))
        case Rule():
            return "---"


def _items(block: ItemList) -> Iterable[str]:
    for number, item in enumerate(block.items, block.start):
        mark = f"{number}. " if block.ordered else "• "
        task = "" if item.checked is None else "[x] " if item.checked else "[ ] "
        between = "\n" if block.tight else "\n\n"
        yield _led(task + between.join(map(_plain, item.children)), mark, " " * len(mark))


def _row(cells: Sequence[Cell]) -> str:
    return " | ".join(inline_text(cell) for cell in cells)


def _led(text: str, first: str, further: str) -> str:
    """The lines of a text behind what leads the first one, and what leads the others."""
    return first + text.replace("\n", "\n" + further)
