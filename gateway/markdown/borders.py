"""Where a text may be cut between its lines, and what it takes so that both sides stay what they are."""

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
_DEEPER = 2
_LONGEST_LANGUAGE, _LONGEST_INFO = 40, 100
_HIGHEST_NUMBER = 999_999_999


class Container(Struct, frozen=True, gc=False):
    """A quote, or an item of a list, whose further lines are indented by ``indent`` columns.

    It begins in line ``line`` and ends before the offset ``end``.
    """

    line: int
    end: int
    quote: bool
    indent: int = 0


class Stretch(Struct, frozen=True, gc=False, kw_only=True):
    """Lines that stay together as long as there is room: the text from ``start`` to ``end``.

    To cut before it leaves the containers ``across`` open and disturbs by ``cost``; 0 is between blocks. To
    cut within it, between ``soft`` and ``soft_end``, leaves ``inside`` open. What follows such a cut begins
    with ``opening``, what precedes it ends with ``closing``; if it ``continues`` what was before, like a line
    of code, this holds for a cut before it, too. An item that has another number in the text than in its list
    has ``number``, for what stands up to ``number_end``.
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


def stretches_of(text: str) -> tuple[str, list[Stretch]]:
    """All stretches of a normal text; the last one is its end, and empty.

    A fence that ends with what is around it, without a line that closes it, gets one: in the text that comes
    back.
    """
    survey = _survey(text)
    if survey.unclosed:
        done, pieces = 0, list[str]()
        for at, line in survey.unclosed:
            pieces += [text[done:at], line]
            done = at
        survey = _survey(text := "".join([*pieces, text[done:]]))
    return text, [*survey.stretches, survey.end]


def _survey(text: str) -> _Survey:
    survey = _Survey(text)
    for line, tokens in sections(text):
        for token in tokens:
            survey.take(token, line)
    return survey


def without(line: str, containers: Iterable[Container], number: int = -1) -> str:
    """What is in a line, without what the containers around it put before it; ``number`` is the line's."""
    for container in containers:
        if container.quote:
            match = _QUOTE.match(line)
            line = line[match.end() :] if match else line.lstrip(" \t")
        else:
            line = beyond(line, container.indent, container.line == number)
    return line


def beyond(line: str, columns: int, marked: bool = False) -> str:
    """The line without so many columns of leading space; ``marked`` ones hold a list's marker, too."""
    at = column = 0
    while column < columns and at < len(line) and (marked or line[at] in " \t"):
        column += 4 - column % 4 if line[at] == "\t" else 1
        at += 1
    return " " * (column - columns) + line[at:]


class _Survey:
    """One walk over the blocks of a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.stretches: list[Stretch] = []
        self.end = self._end = Stretch(start=len(text), end=len(text))
        self.unclosed: list[tuple[int, str]] = []
        self._open: tuple[int, str] | None = None
        self._starts = [0, *(match.end() for match in re.finditer("\n", text)), len(text) + 1, len(text) + 1]
        self._around: list[Container] = []
        self._numbers: list[int] = []
        self._cost = 0

    def take(self, token: Token, line: int) -> None:
        """Take down the next token."""
        if token.type in _TAKES:
            first, end = token.map or (0, 0)
            _TAKES[token.type](self, token, line + first, line + end)

    def open_list(self, token: Token, first: int, end: int) -> None:
        """A list begins; its first item begins in the same line."""
        self._numbers.append(int(token.attrs.get("start", 1)) - 1)
        self._add(first, first + 1)

    def close_list(self, token: Token, first: int, end: int) -> None:
        """A list ends."""
        self._numbers.pop()

    def open_quote(self, token: Token, first: int, end: int) -> None:
        """A quote begins."""
        self._add(first, first + 1)
        self._around.append(Container(first, self._starts[end], quote=True))

    def open_item(self, token: Token, first: int, end: int) -> None:
        """An item of a list begins."""
        self._numbers[-1] += 1
        number = str(min(self._numbers[-1], _HIGHEST_NUMBER))
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

    def close_container(self, token: Token, first: int, end: int) -> None:
        """A quote or an item ends."""
        self._around.pop()

    def words(self, token: Token, first: int, end: int) -> None:
        """A paragraph, a heading, or a line across."""
        soft, opening = self._content_start(first), ""
        match = _HEADING.match(self._content(first).lstrip()) if token.markup.startswith("#") else None
        if match:
            soft += match.end()
            opening = match.group().strip() + " "
        self._add(first, end, soft=soft, opening=opening)
        if token.type == "heading_open":
            self._cost = _AFTER_HEADING

    def fence(self, token: Token, first: int, end: int) -> None:
        """Code between fences, which stay with its first and its last line."""
        lines = token.content.count("\n")
        info = token.info.split()
        opening = token.markup + (info[0][:_LONGEST_LANGUAGE] if info else "") + "\n"
        closing = "\n" + token.markup
        for line in range(first + 1, first + 1 + max(lines, 1)):
            begin = first if line == first + 1 else line
            until = end if line >= first + lines else line + 1
            cost = 0 if line == first + 1 else self._cost_of_line(line)
            place = self._bounds(line) if line < end else (0, 0)
            if begin == first and len(token.info) > _LONGEST_INFO:
                markup_end = self._content_start(first) + len(token.markup)
                place = markup_end, max(place[1], self._starts[first + 1] - 1)
            self._add(begin, until, *place, cost, opening, closing, continues=line > first + 1, code=True)
        if end - first < lines + 2:
            around = tuple(self._around)
            self.end = replace(self._end, across=around, closing=closing, continues=True)
            prefix = "".join("> " if container.quote else " " * container.indent for container in around)
            self._open = self._starts[end], prefix + token.markup + "\n"

    def indented(self, token: Token, first: int, end: int) -> None:
        """Code that is code by its indentation."""
        for line in range(first, end):
            cost = self._cost_of_line(line) if line > first else 0
            self._add(line, line + 1, *self._bounds(line), cost, "    ", code=True)

    def math(self, token: Token, first: int, end: int) -> None:
        """A formula, which is only cut where nothing else helps."""
        self._add(first, end, 0, 0)

    def table(self, token: Token, first: int, end: int) -> None:
        """A table: its header stays with the first row, and is repeated over each piece."""
        header = "".join(self._content(line).strip() + "\n" for line in (first, first + 1))
        self._add(
            first, min(first + 3, end), *(self._bounds(first + 2) if end > first + 2 else (0, 0)), 0, header
        )
        for row in range(first + 3, end):
            self._add(row, row + 1, *self._bounds(row), _BETWEEN_ROWS, header, continues=True)

    def _cost_of_line(self, line: int) -> int:
        return _BETWEEN_LINES if self._content(line - 1).strip() else _AFTER_BLANK

    def _line(self, number: int) -> str:
        return self._text[self._starts[number] : self._starts[number + 1] - 1]

    def _content(self, number: int) -> str:
        """What is in a line, without what the open containers put before it."""
        return without(self._line(number), self._around, number)

    def _content_start(self, number: int) -> int:
        """Where its first character is that is no space."""
        return self._starts[number + 1] - 1 - len(self._content(number).lstrip(" \t"))

    def _bounds(self, number: int) -> tuple[int, int]:
        """Where a line may be cut, leading space included."""
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
        """Add the lines from ``first`` up to ``end``; they join what begins in the same line already."""
        start, stop = self._starts[first], min(self._starts[end] - 1, len(self._text))
        across = tuple(container for container in self._around if container.line < first)
        stretch = Stretch(
            start=start,
            end=stop,
            across=across,
            inside=tuple(self._around),
            cost=cost + _DEEPER * len(across) + self._cost,
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
        last = self.stretches[-1] if self.stretches else None
        if last is not None and last.start == start:
            kept = {"across": last.across, "cost": last.cost}
            kept |= {"number": last.number, "number_end": last.number_end}
            self.stretches[-1] = replace(stretch, **kept)
        else:
            self.stretches.append(stretch)


_TAKES: Mapping[str, Callable[[_Survey, Token, int, int], None]] = {
    "bullet_list_open": _Survey.open_list,
    "ordered_list_open": _Survey.open_list,
    "bullet_list_close": _Survey.close_list,
    "ordered_list_close": _Survey.close_list,
    "list_item_open": _Survey.open_item,
    "list_item_close": _Survey.close_container,
    "blockquote_open": _Survey.open_quote,
    "blockquote_close": _Survey.close_container,
    "paragraph_open": _Survey.words,
    "heading_open": _Survey.words,
    "hr": _Survey.words,
    "fence": _Survey.fence,
    "code_block": _Survey.indented,
    "table_open": _Survey.table,
    "math_block": _Survey.math,
}
