"""Segments of a Markdown text: the lines that a cut keeps together, and what a cut between them needs.

A cut must leave Markdown on both sides. So a segment knows the containers around it, the fence or table
header that has to be repeated, and the number of its list item.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from markdown_it.token import Token
from msgspec import Struct
from msgspec.structs import replace

from gateway.markdown.sections import sections

_QUOTE = re.compile(r" {0,3}> ?")
_MARKER = re.compile(r" *(?:[-+*]|\d{1,9}[.)])( *)")
_HEADING = re.compile(r"#{1,6}[ \t]*")
_BETWEEN_ITEMS, _BETWEEN_ROWS, _AFTER_BLANK, _BETWEEN_LINES, _AFTER_HEADING = 1, 2, 3, 4, 6
"""Costs of a cut; 0 is the cost between blocks."""
_PER_CONTAINER = 2
"""Cost of each container that a cut goes through."""
_MAX_LANGUAGE, _MAX_INFO = 40, 100
"""Characters of a fence's language that are repeated, and of an info string that is kept in one piece."""
_MAX_NUMBER = 999_999_999


class Container(Struct, frozen=True, gc=False):
    """A quote, or a list item whose lines after the first are indented by ``indent`` columns.

    It begins in line ``line`` and ends before offset ``end``.
    """

    line: int
    end: int
    quote: bool
    indent: int = 0


class Segment(Struct, frozen=True, gc=False, kw_only=True):
    """Lines that stay together if they fit: the text from offset ``start`` to ``end``.

    A cut before the segment goes through the containers ``across``, at ``cost``. A cut within it, between
    offsets ``soft`` and ``soft_end``, goes through the containers ``inside``; it ends its head with
    ``closing`` and begins the rest with ``opening``. In a segment that ``continues`` the one before, as a
    line of code does, these are needed for a cut before it, too. ``number`` is the marker of an item whose
    number in the text is not that of its list; it replaces the text up to ``number_end``.
    """

    start: int
    end: int
    across: tuple[Container, ...] = ()
    inside: tuple[Container, ...] = ()
    cost: int = 0
    soft: int = 0
    soft_end: int = 0
    opening: str = ""
    closing: str = ""
    continues: bool = False
    code: bool = False
    number: str = ""
    number_end: int = 0


def segment_text(text: str) -> tuple[str, list[Segment]]:
    """Return a normal text and its segments. The last segment is the empty one at its end.

    The returned text has a closing line for each fence that ends only with its container.
    """
    scanner = _scan(text)
    if scanner.unclosed:
        done, pieces = 0, list[str]()
        for at, line in scanner.unclosed:
            pieces += [text[done:at], line]
            done = at
        scanner = _scan(text := "".join([*pieces, text[done:]]))
    return text, [*scanner.segments, scanner.end]


def _scan(text: str) -> _SegmentScanner:
    scanner = _SegmentScanner(text)
    for line, tokens in sections(text):
        for token in tokens:
            scanner.visit(token, line)
    return scanner


def strip_containers(line: str, containers: Iterable[Container], number: int = -1) -> str:
    """Return a line without the quote marks and indentation of containers. ``number`` is its line number."""
    for container in containers:
        if container.quote:
            match = _QUOTE.match(line)
            line = line[match.end() :] if match else line.lstrip(" \t")
        else:
            line = _strip_columns(line, container.indent, container.line == number)
    return line


def _strip_columns(line: str, columns: int, has_marker: bool) -> str:
    """Return a line without its first columns of space. With ``has_marker`` they hold a list marker, too."""
    at = column = 0
    while column < columns and at < len(line) and (has_marker or line[at] in " \t"):
        column += 4 - column % 4 if line[at] == "\t" else 1
        at += 1
    return " " * (column - columns) + line[at:]


class _SegmentScanner:
    """Builder of segments from the block tokens of a text, in one pass.

    ``unclosed`` holds the offset and the closing line of each fence that ends only with its container.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self.segments: list[Segment] = []
        self.end = self._end = Segment(start=len(text), end=len(text))
        self.unclosed: list[tuple[int, str]] = []
        self._open: tuple[int, str] | None = None
        self._starts = [0, *(match.end() for match in re.finditer("\n", text)), len(text) + 1, len(text) + 1]
        self._around: list[Container] = []
        self._numbers: list[int] = []
        self._cost = 0

    def visit(self, token: Token, line: int) -> None:
        """Add the segments of the next token, whose line numbers count from ``line``."""
        # Most tokens are cells and inlines of no interest: a table of handlers skips them fastest.
        if token.type in _HANDLERS:
            first, end = token.map or (0, 0)
            _HANDLERS[token.type](self, token, line + first, line + end)

    def open_list(self, token: Token, first: int, end: int) -> None:
        """Begin a list. Its first item begins in the same line."""
        self._numbers.append(int(token.attrs.get("start", 1)) - 1)
        self._add(first, first + 1)

    def close_list(self, token: Token, first: int, end: int) -> None:
        """End a list."""
        self._numbers.pop()

    def open_quote(self, token: Token, first: int, end: int) -> None:
        """Begin a quote."""
        self._add(first, first + 1)
        self._around.append(Container(first, self._starts[end], quote=True))

    def close_container(self, token: Token, first: int, end: int) -> None:
        """End a quote or a list item."""
        self._around.pop()

    def add_formula(self, token: Token, first: int, end: int) -> None:
        """Add a formula. It has no soft bounds, so it is cut only where nothing else helps."""
        self._add(first, end, 0, 0)

    def open_item(self, token: Token, first: int, end: int) -> None:
        """Begin a list item."""
        self._numbers[-1] += 1
        number = str(min(self._numbers[-1], _MAX_NUMBER))
        renumbered: dict[str, Any] = {}
        if token.info and token.info != number:
            renumbered["number"] = number + token.markup
            renumbered["number_end"] = self._content_start(first) + len(token.info) + 1
        self._add(first, first + 1, cost=_BETWEEN_ITEMS, **renumbered)
        line = self._content(first).expandtabs(4)
        match = _MARKER.match(line)
        indent = match.end() if match else 0
        if match and (len(match.group(1)) > 4 or indent == len(line)):
            indent = match.start(1) + 1
        self._around.append(Container(first, self._starts[end], quote=False, indent=indent))

    def add_paragraph(self, token: Token, first: int, end: int) -> None:
        """Add a paragraph, a heading or a rule."""
        soft, opening = self._content_start(first), ""
        match = _HEADING.match(self._content(first).lstrip()) if token.markup.startswith("#") else None
        if match:
            soft += match.end()
            opening = match.group().strip() + " "
        self._add(first, end, soft=soft, opening=opening)
        if token.type == "heading_open":
            self._cost = _AFTER_HEADING

    def add_fence(self, token: Token, first: int, end: int) -> None:
        """Add each line of fenced code. The fences belong to the first and the last line."""
        lines = token.content.count("\n")
        info = token.info.split()
        opening = token.markup + (info[0][:_MAX_LANGUAGE] if info else "") + "\n"
        closing = "\n" + token.markup
        for line in range(first + 1, first + 1 + max(lines, 1)):
            begin = first if line == first + 1 else line
            until = end if line >= first + lines else line + 1
            cost = 0 if line == first + 1 else self._cost_of_line(line)
            bounds = self._bounds(line) if line < end else (0, 0)
            if begin == first and len(token.info) > _MAX_INFO:
                markup_end = self._content_start(first) + len(token.markup)
                bounds = markup_end, max(bounds[1], self._starts[first + 1] - 1)
            self._add(begin, until, *bounds, cost, opening, closing, continues=line > first + 1, code=True)
        if end - first < lines + 2:
            around = tuple(self._around)
            self.end = replace(self._end, across=around, closing=closing, continues=True)
            prefix = "".join("> " if container.quote else " " * container.indent for container in around)
            self._open = self._starts[end], prefix + token.markup + "\n"

    def add_indented_code(self, token: Token, first: int, end: int) -> None:
        """Add each line of indented code."""
        for line in range(first, end):
            cost = self._cost_of_line(line) if line > first else 0
            self._add(line, line + 1, *self._bounds(line), cost, "    ", code=True)

    def add_table(self, token: Token, first: int, end: int) -> None:
        """Add each row of a table. The header belongs to the first row and is repeated in each piece."""
        header = "".join(self._content(line).strip() + "\n" for line in (first, first + 1))
        bounds = self._bounds(first + 2) if end > first + 2 else (0, 0)
        self._add(first, min(first + 3, end), *bounds, 0, header)
        for row in range(first + 3, end):
            self._add(row, row + 1, *self._bounds(row), _BETWEEN_ROWS, header, continues=True)

    def _cost_of_line(self, line: int) -> int:
        return _BETWEEN_LINES if self._content(line - 1).strip() else _AFTER_BLANK

    def _content(self, number: int) -> str:
        """Return a line without the marks of the open containers."""
        line = self._text[self._starts[number] : self._starts[number + 1] - 1]
        return strip_containers(line, self._around, number)

    def _content_start(self, number: int) -> int:
        """Return the offset of the first character of a line's content that is not a space."""
        return self._starts[number + 1] - 1 - len(self._content(number).lstrip(" \t"))

    def _bounds(self, number: int) -> tuple[int, int]:
        """Return the offsets between which a line may be cut, leading space included."""
        end = self._starts[number + 1] - 1
        return max(self._starts[number], end - len(self._content(number))), end

    def _add(
        self,
        first: int,
        end: int,
        soft: int = 0,
        soft_end: int = -1,
        cost: int = 0,
        opening: str = "",
        closing: str = "",
        **more: Any,
    ) -> None:
        """Add the lines from ``first`` up to ``end``. They replace a segment that begins in the same line."""
        start, stop = self._starts[first], min(self._starts[end] - 1, len(self._text))
        across = tuple(container for container in self._around if container.line < first)
        segment = Segment(
            start=start,
            end=stop,
            across=across,
            inside=tuple(self._around),
            cost=cost + _PER_CONTAINER * len(across) + self._cost,
            soft=soft,
            soft_end=stop if soft_end < 0 else soft_end,
            opening=opening,
            closing=closing,
            **more,
        )
        self._cost = 0
        if self._open is not None:
            self.unclosed.append(self._open)
            self.end, self._open = self._end, None
        last = self.segments[-1] if self.segments else None
        if last is not None and last.start == start:
            # A cut before it is one before the outer block that begins here: keep what such a cut needs.
            self.segments[-1] = replace(
                segment, across=last.across, cost=last.cost, number=last.number, number_end=last.number_end
            )
        else:
            self.segments.append(segment)


_HANDLERS: Mapping[str, Callable[[_SegmentScanner, Token, int, int], None]] = {
    "bullet_list_open": _SegmentScanner.open_list,
    "ordered_list_open": _SegmentScanner.open_list,
    "bullet_list_close": _SegmentScanner.close_list,
    "ordered_list_close": _SegmentScanner.close_list,
    "list_item_open": _SegmentScanner.open_item,
    "list_item_close": _SegmentScanner.close_container,
    "blockquote_open": _SegmentScanner.open_quote,
    "blockquote_close": _SegmentScanner.close_container,
    "paragraph_open": _SegmentScanner.add_paragraph,
    "heading_open": _SegmentScanner.add_paragraph,
    "hr": _SegmentScanner.add_paragraph,
    "fence": _SegmentScanner.add_fence,
    "code_block": _SegmentScanner.add_indented_code,
    "table_open": _SegmentScanner.add_table,
    "math_block": _SegmentScanner.add_formula,
}
