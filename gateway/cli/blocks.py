"""Cutting Markdown into its top-level blocks, so that finished ones are drawn once."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


def blocks(markdown: str, *, growing: bool = False) -> list[str]:
    """The source of each top-level block, in order.

    Of a text that is ``growing`` all but the last are final, whatever follows: the line that is not ended may
    still become anything, so it tells nothing of where blocks begin.
    """
    if not markdown.strip():
        return []
    parser = _parser()
    tokens: list[Token] = []
    ended = markdown[: markdown.rfind("\n") + 1] if growing else markdown
    parser.block.parse(ended, parser, {}, tokens)
    starts = [token.map[0] for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]
    lines = markdown.split("\n")
    return ["\n".join(lines[start:end]).rstrip() for start, end in pairwise((*(starts or [0]), len(lines)))]


@cache
def _parser() -> MarkdownIt:
    # Reference definitions are off: one at the end would change blocks that were drawn before.
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("reference")
