"""Cutting Markdown into its top-level blocks, so that finished ones are drawn once."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


def blocks(markdown: str) -> list[str]:
    """The source of each top-level block, in order. All but the last are final, whatever text follows."""
    parser = _parser()
    tokens: list[Token] = []
    parser.block.parse(markdown, parser, {}, tokens)
    starts = [token.map[0] for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]
    lines = markdown.split("\n")
    return ["\n".join(lines[start:end]).rstrip() for start, end in pairwise((*starts, len(lines)))]


@cache
def _parser() -> MarkdownIt:
    # Reference definitions are off: one at the end would change blocks that were drawn before.
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable(["table", "strikethrough"]).disable("reference")
