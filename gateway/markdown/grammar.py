"""The Markdown that is understood, bounded so that hostile text costs no more than its length.

CommonMark with tables, strikethrough, task lists and formulas. Raw HTML is text. Definitions of links are
off: one at the end would change what was already shown, and as text its address stays readable.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, fence, table
from markdown_it.token import Token

from gateway.markdown.math import add_math

DEEPEST = 16
"""How deep blocks may nest, counting a list as two; what is deeper is text. Emphasis may nest as deep."""

LONGEST_PARSED = 8_000
"""A paragraph with more characters than this stays text: markup costs some 10 µs each."""

FENCES = ("```", "~~~")
"""What each fence begins with."""

MOST_CELLS = 1_000
"""Cells of a table; the rows behind them are shown as text. A cell costs some 20 µs."""

_MOST_BRACKETS = 256
_MOST_MARKS = 2_000
_MOST_FILLED_UP = 200
"""Cells of a table that its short rows leave out. Without a bound a row of three characters makes twenty."""
_WIDEST_TABLE = 20
_TOO_LONG_A_FENCE = re.compile(r"`{33}|~{33}")
_ENDS = re.compile(r"\r\n?")


def normal(text: str) -> str:
    """The text with bare newlines and without NUL characters, as the parser takes it."""
    if "\r" in text:
        text = _ENDS.sub("\n", text)
    return text.replace("\0", "\ufffd")


def parsed_blocks(text: str) -> Sequence[Token]:
    """The blocks of a normal text, their words not yet parsed."""
    tokens: list[Token] = []
    parser = _parser()
    parser.block.parse(text, parser, {}, tokens)
    return tuple(tokens)


def inline_tokens(content: str) -> list[Token] | None:
    """What a paragraph holds; None if it is too long to be anything but text."""
    if stays_text(content):
        return None
    tokens: list[Token] = []
    parser = _parser()
    parser.inline.parse(content, parser, {}, tokens)
    return tokens


def stays_text(content: str) -> bool:
    """Return whether a paragraph or cell has too many characters or marks to be anything but text."""
    return (
        len(content) > LONGEST_PARSED
        or content.count("[") > _MOST_BRACKETS
        or sum(map(content.count, "*_~")) > _MOST_MARKS
    )


def bound_tables(parser: MarkdownIt) -> None:
    """Let a parser know tables of a bounded number of columns and cells, as its rule ``table``."""
    parser.enable("table").block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})


def normal_address(href: str) -> str:
    """A web address as links written in Markdown have it: nothing in it that is not ASCII."""
    return _parser().normalizeLink(href)


def readable_address(href: str) -> str:
    """An address as it was probably written, to be read as text."""
    return _parser().normalizeLinkText(href)


@cache
def _parser() -> MarkdownIt:
    """The one parser: it holds rules, never a text, so all answers share it."""
    options = {"html": False, "linkify": False, "tasklists": True, "maxNesting": DEEPEST + 4}
    parser = MarkdownIt("commonmark", options)
    parser.enable("strikethrough")
    parser.disable(["reference", "html_block", "html_inline"])
    parser.validateLink = _every_link
    add_math(parser)
    bound_tables(parser)
    ruler = parser.block.ruler
    ruler.at("fence", _fence, {"alt": ["paragraph", "reference", "blockquote", "list"]})
    ruler.before("table", "too_deep", _too_deep)
    return parser


def _every_link(url: str) -> bool:
    """Let the parser see every link; ``links`` decides."""
    return True


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Take a table, unless it is absurdly wide. It ends with the row that has its last allowed cell."""
    if start + 1 >= end:
        return False
    columns = state.src.count("|", state.bMarks[start + 1], state.eMarks[start + 1])
    if columns > _WIDEST_TABLE or not table(state, start, end, True):
        return False
    return silent or table(state, start, _end_of_cells(state, start, end), False)


def _end_of_cells(state: StateBlock, start: int, end: int) -> int:
    """Return the line before which a table has to end for the number of its cells."""
    columns = len(_row(state, start).split("|"))
    cells, filled_up = columns, 0
    for number in range(start + 2, end):
        cells += columns
        filled_up += max(0, columns - len(_row(state, number).split("|")))
        if cells > MOST_CELLS or filled_up > _MOST_FILLED_UP:
            return number
        if state.isEmpty(number):
            break
    return end


def _row(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]].strip().strip("|")


def _fence(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A fence, unless it is too long to be repeated around every piece of its code."""
    at = state.bMarks[start] + state.tShift[start]
    if not state.src.startswith(FENCES, at) or _TOO_LONG_A_FENCE.match(state.src, at):
        return False
    return fence(state, start, end, silent)


def _too_deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Take what is nested too deep as one paragraph, so that it is shown at all."""
    if silent or state.level < DEEPEST:
        return False
    line = start + 1
    while line < end and (state.isEmpty(line) or state.sCount[line] >= state.blkIndent):
        line += 1
    state.line = line
    state.push("paragraph_open", "p", 1).map = [start, line]
    token = state.push("inline", "", 0)
    token.content = state.getLines(start, line, state.blkIndent, False).strip()
    state.push("paragraph_close", "p", -1)
    return True
