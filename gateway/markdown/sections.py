"""A text in sections that are parsed one by one: those of a text that grows, or is cut, come again and again.

A section ends where nothing can go on: before a line that is not indented and begins no item, behind a blank
one. A fence may go on there, so one that is open takes its section to the line that closes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from markdown_it.token import Token

from gateway.markdown.grammar import FENCES, parsed_blocks

_SEAM = re.compile(r"\n[ \t]*\n(?!\s|[-+*]\s|\d{1,9}[.)]\s)")
_SHORT, _LONGEST_REMEMBERED = 1_000, 16_000


def sections(text: str) -> Iterator[tuple[int, Sequence[Token]]]:
    """The sections of a normal text: the line each begins in, and its blocks, whose lines count from there.

    The words of the blocks are not yet parsed. Tokens are shared, and not to be changed.
    """
    # With its last line ended, a fence that nobody closed has as many lines as it has line ends.
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
    """The blocks of a normal text, as ``sections`` gives them."""
    for _, tokens in sections(text):
        yield from tokens


def fences_are_closed(text: str) -> bool:
    """Whether each fence of a normal text has a line that closes it."""
    return not any(mark in text for mark in FENCES) or all(map(_is_closed, block_tokens(text)))


def _is_closed(token: Token) -> bool:
    """Whether it is anything but a fence that nobody closed."""
    # A closed one spans two lines more than its code, an open one only that of its opening.
    first, end = token.map or (0, 0)
    return token.type != "fence" or end - first == token.content.count("\n") + 2


def _end_of_fence(text: str, mark: str, inside: int) -> int:
    """Where the line ends that closes it, or the text; ``inside`` is the beginning of a line of its code."""
    closing = re.compile(rf"^ {{0,3}}{mark}{mark[0]}*[ \t]*\n", re.MULTILINE).search(text, inside)
    return closing.end() if closing else len(text)


def _blocks(text: str) -> Sequence[Token]:
    if len(text) <= _SHORT:
        return _short(text)
    return _long(text) if len(text) <= _LONGEST_REMEMBERED else parsed_blocks(text)


# As many of either as take about the same room.
_short = lru_cache(maxsize=128)(parsed_blocks)
_long = lru_cache(maxsize=8)(parsed_blocks)
