"""Formulas in Markdown: rules for markdown-it parsers whose tokens hold the LaTeX source with its delimiters.

``$…$`` by Pandoc's rule (no space inside next to a ``$``, no digit after the closing one, so that "$5 and
$10" stays text), ``$$…$$``, ``\\(…\\)`` and ``\\[…\\]``. A formula that begins a line with ``$$`` or
``\\[`` and ends a line is a block: its lines are not parsed as list items. It contains no blank line.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline

_MAX_LENGTH = 2_000
"""Characters of a formula; a longer one is text."""

GROWING = "growing"
"""Key of the parser's environment for a text that grows: a formula block without its end is still open."""

_PAIRS = {"$$": "$$", "\\[": "\\]", "\\(": "\\)"}
_BLOCKS = ("$$", "\\[")
_DOLLARS = re.compile(r"\$(?![\s$])(?:[^$\\]|\\.)*(?<!\s)\$(?![\d$])", re.DOTALL)


def add_math(parser: MarkdownIt) -> None:
    """Enable formulas in a parser, as tokens ``math_block`` and ``math_inline``."""
    ruler = parser.block.ruler
    ruler.before(
        "fence", "math_block", _math_block, {"alt": ["paragraph", "reference", "blockquote", "list"]}
    )
    parser.inline.ruler.before("escape", "math_inline", _math_inline)


def is_display(source: str) -> bool:
    """Return whether a formula is displayed on its own line."""
    return source.startswith(_BLOCKS)


def formula_of(source: str) -> str:
    """Return the LaTeX of a formula, without its delimiters."""
    width = 2 if source[:2] in _PAIRS else 1
    return source[width:-width].strip()


def _math_inline(state: StateInline, silent: bool) -> bool:
    end = _end_of_inline(state.src, state.pos, state.posMax)
    if end is None:
        return False
    if not silent:
        token = state.push("math_inline", "math", 0)
        token.content = state.src[state.pos : end]
    state.pos = end
    return True


def _end_of_inline(text: str, start: int, maximum: int) -> int | None:
    if text[start] not in "$\\":
        return None
    limit = min(maximum, start + _MAX_LENGTH)
    closing = _PAIRS.get(text[start : start + 2])
    if closing is not None:
        end = _find(text, closing, start + 2, limit)
        return end + 2 if end >= 0 and text[start + 2 : end].strip() else None
    if text[start] != "$":
        return None
    match = _DOLLARS.match(text, start, limit)
    return match.end() if match else None


def _find(text: str, closing: str, start: int, limit: int) -> int:
    """Return the offset of the closing delimiter, or -1. An odd number of backslashes escapes it."""
    at = text.find(closing, start, limit)
    while at >= 0 and (at - len(text[start:at].rstrip("\\")) - start) % 2:
        at = text.find(closing, at + 1, limit)
    return at


def _math_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    if state.is_code_block(start):
        return False
    first = state.src[state.bMarks[start] + state.tShift[start] : state.eMarks[start]]
    if not first.startswith(_BLOCKS):
        return False
    lines, closed = _block_lines(state, start, end, _PAIRS[first[:2]])
    if not closed and not (state.env.get(GROWING) and start + len(lines) >= len(state.bMarks) - 1):
        return False
    source = "\n".join(lines)
    if len(source) > _MAX_LENGTH or (closed and not formula_of(source)):
        return False
    if silent:
        return True
    state.line = start + len(lines)
    token = state.push("math_block", "math", 0)
    token.block = True
    token.content = source
    token.meta = {"closed": closed}
    token.map = [start, state.line]
    return True


def _block_lines(state: StateBlock, start: int, end: int, closing: str) -> tuple[list[str], bool]:
    """Return the lines of a block up to its limit, and whether the last line closes it."""
    lines: list[str] = []
    for number in range(start, end):
        if number > start and (state.isEmpty(number) or state.sCount[number] < state.blkIndent):
            break
        line = state.getLines(number, number + 1, state.blkIndent, False).strip()
        lines.append(line)
        inside = line[2:] if number == start else line
        at = _find(inside, closing, 0, len(inside))
        if at >= 0:
            return lines, at + len(closing) == len(inside)
        if len(lines) > _MAX_LENGTH:
            break
    return lines, False
