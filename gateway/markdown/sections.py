"""Sections of a text, parsed one by one and cached: a text that grows or is cut has the same sections again.

A section ends where no block can continue: after a blank line, before a line that is not indented and
begins no list item. A fence may continue there, so a section with an open fence extends to the line that
closes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from markdown_it.token import Token

from gateway.markdown.grammar import FENCES, parsed_blocks

_SEAM = re.compile(r"\n[ \t]*\n(?!\s|[-+*]\s|\d{1,9}[.)]\s)")
_SHORT, _MAX_CACHED = 1_000, 16_000


def sections(text: str) -> Iterator[tuple[int, Sequence[Token]]]:
    """Yield the sections of a normal text: the number of the first line, and the block tokens.

    Line numbers of tokens count from that line. Inline content is not parsed. Tokens are cached: do not
    change them.
    """
    # With a newline at the end, an unclosed fence has as many lines as newlines.
    text += "\n"
    begin = line = 0
    while begin < len(text):
        seam = _SEAM.search(text, begin)
        end = seam.end() if seam else len(text)
        tokens = _blocks(text[begin:end])
        if end < len(text) and tokens and not _is_closed(tokens[-1]):
            end = _end_of_fence(text, tokens[-1].markup, end)
            tokens = _blocks(text[begin:end])
        yield line, tokens
        line += text.count("\n", begin, end)
        begin = end


def block_tokens(text: str) -> Iterator[Token]:
    """Yield the block tokens of all sections."""
    for _, tokens in sections(text):
        yield from tokens


def fences_are_closed(text: str) -> bool:
    """Return whether each fence of a normal text has a closing line."""
    return not any(mark in text for mark in FENCES) or all(map(_is_closed, block_tokens(text)))


def _is_closed(token: Token) -> bool:
    """Return whether a token is not an unclosed fence."""
    # A closed fence has two lines more than its code; an unclosed one has only the opening line more.
    first, end = token.map or (0, 0)
    return token.type != "fence" or end - first == token.content.count("\n") + 2


def _end_of_fence(text: str, mark: str, inside: int) -> int:
    """Return the end of the closing line, or of the text. ``inside`` is the offset of a line of the code."""
    closing = re.compile(rf"^ {{0,3}}{mark}{mark[0]}*[ \t]*\n", re.MULTILINE).search(text, inside)
    return closing.end() if closing else len(text)


def _blocks(text: str) -> Sequence[Token]:
    if len(text) <= _SHORT:
        return _short(text)
    return _long(text) if len(text) <= _MAX_CACHED else parsed_blocks(text)


# Two caches of about the same size in memory.
_short = lru_cache(maxsize=128)(parsed_blocks)
_long = lru_cache(maxsize=8)(parsed_blocks)
