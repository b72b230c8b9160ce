"""Markdown trees as Slack's rich text: elements that say what they are, so that no text is read as markup."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from gateway import markdown as md

Element = dict[str, Any]

_LONGEST_URL = 3_000
_WIDEST_TABLE = 2_000
_DEEPEST_LIST = 8
_STYLES: Mapping[type[md.Inline], str] = {md.Strong: "bold", md.Emphasis: "italic", md.Strike: "strike"}


def rich_text(tree: md.Tree) -> list[Element]:
    """The elements of a ``rich_text`` block; at least one."""
    elements = [element for element in _blocks(tree) if element["elements"]]
    return elements or [_section([_text(" ")])]


def shows_links_honestly(tree: md.Tree) -> bool:
    """Return whether Slack may read the Markdown itself: honest links, no picture, and no formula.

    Slack would take the backslashes and underlines of a formula for markup.
    """
    return not any(
        isinstance(one, md.Image | md.Math) or (isinstance(one, md.Link) and one.shown_differs)
        for one in _every_inline(tree)
    )


def _blocks(tree: Iterable[md.Block]) -> Iterator[Element]:
    """Sections and what stands between them; paragraphs that follow each other share one."""
    running: list[Element] = []
    for block in tree:
        words = _words(block)
        if words is not None:
            running += [_text("\n\n"), *words] if running and words else words
            continue
        if running:
            yield _section(running)
            running = []
        yield from _other(block)
    if running:
        yield _section(running)


def _words(block: md.Block) -> list[Element] | None:
    match block:
        case md.Paragraph(children):
            return list(_inlines(children))
        case md.Heading(_, children):
            return list(_inlines(children, {"bold": True}))
        case md.Rule():
            return [_text("―" * 12)]
        case _:
            return None


def _other(block: md.Block) -> Iterator[Element]:
    match block:
        case md.CodeBlock(text):
            yield _preformatted(text)
        case md.Table():
            yield _preformatted(_table(block))
        case md.Quote(children):
            yield {"type": "rich_text_quote", "elements": _flat(children)}
        case md.ItemList():
            yield from _list(block, 0)
        case _:
            return


def _list(block: md.ItemList, depth: int) -> Iterator[Element]:
    """A list; what is nested in an item follows as a list of its own, and then the list goes on."""
    items: list[Element] = []
    first = block.start
    for number, item in enumerate(block.items, block.start):
        nested = [child for child in item.children if isinstance(child, md.ItemList)]
        mark = "" if item.checked is None else "☑ " if item.checked else "☐ "
        words = _flat([child for child in item.children if not isinstance(child, md.ItemList)])
        items.append(_section([*([_text(mark)] if mark else []), *words] or [_text(" ")]))
        if nested:
            yield _items(items, block, depth, first)
            items, first = [], number + 1
            for child in nested:
                yield from _list(child, min(depth + 1, _DEEPEST_LIST))
    if items:
        yield _items(items, block, depth, first)


def _items(items: Sequence[Element], block: md.ItemList, depth: int, first: int) -> Element:
    style = "ordered" if block.ordered else "bullet"
    element: Element = {"type": "rich_text_list", "style": style, "indent": depth, "elements": list(items)}
    if block.ordered and first > 1:
        element["offset"] = first - 1
    return element


def _flat(tree: Iterable[md.Block]) -> list[Element]:
    """Blocks where Slack takes only a line of text: below each other, code as code."""
    found: list[Element] = []
    for block in tree:
        words = _words(block)
        if words is None:
            words = list(_flattened(block))
        found += [_text("\n"), *words] if found and words else words
    return found


def _flattened(block: md.Block) -> Iterator[Element]:
    match block:
        case md.CodeBlock(text) if text:
            yield _text(text, {"code": True})
        case md.Table():
            yield _text(_table(block), {"code": True})
        case md.Quote(children):
            yield from _flat(children)
        case md.ItemList():
            yield _text(md.plain_text((block,)))
        case _:
            return


def _inlines(inlines: Iterable[md.Inline], style: Mapping[str, bool] = {}) -> Iterator[Element]:
    for inline in inlines:
        match inline:
            case md.Text(text) if text:
                yield _text(text, style)
            case md.Math(source):
                yield _text(source, style)
            case md.Code(text) if text:
                yield _text(text, {**style, "code": True})
            case md.Break():
                yield _text("\n")
            case md.Link():
                yield from _link(md.label_of(inline), inline.href, style)
                yield from [_text(f" ({inline.host})", style)] if inline.shown_differs else []
            case md.Image(alt, href, host):
                yield from _link(f"{alt or 'picture'} ({host})", href, style)
            case md.Strong() | md.Emphasis() | md.Strike():
                yield from _inlines(inline.children, {**style, _STYLES[type(inline)]: True})
            case _:
                pass


def _link(label: str, href: str, style: Mapping[str, bool]) -> Iterator[Element]:
    if not href.lower().startswith(("http://", "https://", "mailto:")) or len(href) > _LONGEST_URL:
        yield _text(label or href[:_LONGEST_URL], style)
        return
    element: Element = {"type": "link", "url": href, "text": label or href}
    yield {**element, "style": dict(style)} if style else element


def _text(text: str, style: Mapping[str, bool] = {}) -> Element:
    return {"type": "text", "text": text, "style": dict(style)} if style else {"type": "text", "text": text}


def _section(elements: list[Element]) -> Element:
    return {"type": "rich_text_section", "elements": elements}


def _preformatted(text: str) -> Element:
    return {"type": "rich_text_preformatted", "elements": [_text(text or " ")]}


def _table(table: md.Table) -> str:
    """A table in letters of one width; columns stand below each other unless that takes too much room."""
    rows = [[md.inline_text(cell).replace("\n", " ") for cell in row] for row in (table.header, *table.rows)]
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    if sum(widths) * len(rows) > _WIDEST_TABLE:
        return "\n".join(" | ".join(row) for row in rows)
    padded = ["  ".join(map(_padded, row, widths, table.aligns)).rstrip() for row in rows]
    return "\n".join([padded[0], "  ".join("─" * width for width in widths), *padded[1:]])


def _padded(cell: str, width: int, align: md.Align) -> str:
    return (
        cell.rjust(width)
        if align == "right"
        else cell.center(width)
        if align == "center"
        else cell.ljust(width)
    )


def _every_inline(tree: Iterable[md.Block]) -> Iterator[md.Inline]:
    for block in tree:
        match block:
            case md.Paragraph(children) | md.Heading(_, children):
                yield from _inside(children)
            case md.Quote(children):
                yield from _every_inline(children)
            case md.ItemList(items):
                for item in items:
                    yield from _every_inline(item.children)
            case md.Table(header, rows):
                for row in (header, *rows):
                    for cell in row:
                        yield from _inside(cell)
            case md.CodeBlock() | md.Rule():
                pass


def _inside(inlines: Iterable[md.Inline]) -> Iterator[md.Inline]:
    for inline in inlines:
        yield inline
        if isinstance(inline, md.Strong | md.Emphasis | md.Strike | md.Link):
            yield from _inside(inline.children)
