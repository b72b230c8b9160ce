"""The supported Markdown, with limits so that parsing a hostile text takes time in proportion to its length.

CommonMark with tables, strikethrough, task lists and formulas. Raw HTML is text. Link reference definitions
are off: one at the end of a text would change what was already shown, and as text its URL stays readable.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock, fence, table
from markdown_it.token import Token

from gateway.markdown.math import add_math

MAX_DEPTH = 16
"""Nesting depth of blocks (a list counts as two) and of emphasis; deeper blocks are text."""

_MAX_PARSED = 8_000
"""Characters of a paragraph; a longer one stays text, because markup takes about 10 µs per character."""

FENCES = ("```", "~~~")
"""The beginnings of fences."""

_MAX_CELLS = 1_000
"""Cells of a table; the rows after them are text. A cell takes about 20 µs."""

_MAX_BRACKETS = 256
_MAX_MARKS = 2_000
_MAX_FILLED_CELLS = 200
"""Empty cells that fill up short rows. Without a limit, a row of three characters makes twenty cells."""
_MAX_COLUMNS = 20
_OVERLONG_FENCE = re.compile(r"`{33}|~{33}")
_CARRIAGE_RETURN = re.compile(r"\r\n?")


def normal(text: str) -> str:
    """Return a text with plain newlines and without NUL characters, as the parser requires."""
    if "\r" in text:
        text = _CARRIAGE_RETURN.sub("\n", text)
    return text.replace("\0", "\ufffd")


def parsed_blocks(text: str) -> Sequence[Token]:
    """Return the block tokens of a normal text. Their inline content is not parsed."""
    tokens: list[Token] = []
    parser = _parser()
    parser.block.parse(text, parser, {}, tokens)
    return tuple(tokens)


def inline_tokens(content: str) -> list[Token] | None:
    """Return the inline tokens of a paragraph; None if it is too long to be parsed and stays text."""
    if stays_text(content):
        return None
    tokens: list[Token] = []
    parser = _parser()
    parser.inline.parse(content, parser, {}, tokens)
    return tokens


def stays_text(content: str) -> bool:
    """Return whether a paragraph or cell has too many characters or marks to be parsed."""
    return (
        len(content) > _MAX_PARSED
        or content.count("[") > _MAX_BRACKETS
        or sum(map(content.count, "*_~")) > _MAX_MARKS
    )


def bound_tables(parser: MarkdownIt) -> None:
    """Enable tables in a parser, with a limited number of columns and cells."""
    parser.enable("table").block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})


def normal_address(href: str) -> str:
    """Return a URL in ASCII, as it is in Markdown links."""
    return _parser().normalizeLink(href)


def readable_address(href: str) -> str:
    """Return a URL as it was probably written, for readers."""
    return _parser().normalizeLinkText(href)


@cache
def _parser() -> MarkdownIt:
    """Return the one parser. It has rules and no state, so all texts share it."""
    options = {"html": False, "linkify": False, "tasklists": True, "maxNesting": MAX_DEPTH + 4}
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
    """Accept every link in the parser: ``links.host_of`` decides later."""
    return True


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a table unless it has too many columns. It ends before the row that exceeds a limit of cells."""
    if start + 1 >= end:
        return False
    columns = state.src.count("|", state.bMarks[start + 1], state.eMarks[start + 1])
    if columns > _MAX_COLUMNS or not table(state, start, end, True):
        return False
    return silent or table(state, start, _end_of_cells(state, start, end), False)


def _end_of_cells(state: StateBlock, start: int, end: int) -> int:
    """Return the line before which a table must end because of its number of cells."""
    columns = len(_row(state, start).split("|"))
    cells, filled_up = columns, 0
    for number in range(start + 2, end):
        cells += columns
        filled_up += max(0, columns - len(_row(state, number).split("|")))
        if cells > _MAX_CELLS or filled_up > _MAX_FILLED_CELLS:
            return number
        if state.isEmpty(number):
            break
    return end


def _row(state: StateBlock, number: int) -> str:
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]].strip().strip("|")


def _fence(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a fence, unless it is too long to be repeated in every piece of its code."""
    at = state.bMarks[start] + state.tShift[start]
    if not state.src.startswith(FENCES, at) or _OVERLONG_FENCE.match(state.src, at):
        return False
    return fence(state, start, end, silent)


def _too_deep(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse blocks that are nested too deep as one paragraph of text, so that they are shown at all."""
    if silent or state.level < MAX_DEPTH:
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
