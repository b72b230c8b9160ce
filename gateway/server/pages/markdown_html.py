"""Conversion of Markdown to safe HTML for a page: CommonMark with tables, strikethrough, tasks, formulas.

Raw HTML is shown as text. The result has no inline styles, scripts or loaded pictures, so that a strict
content security policy holds. Link reference definitions are off: a definition at the end would change blocks
that were already shown, and as plain text its address stays readable.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from html import escape

from markdown_it import MarkdownIt
from markdown_it.common.utils import unescapeAll
from markdown_it.renderer import RendererHTML
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from gateway.markdown.grammar import bound_tables, stays_text
from gateway.markdown.math import GROWING, add_math
from gateway.server.pages.formulas import MAX_IN_BLOCK, formula_html
from gateway.server.pages.highlight import code_html
from gateway.server.pages.links import label_of, link_rule

_MAX_MARKS = 2_500
"""Maximum number of emphasis and link marks in one block; later text stays plain. Each costs up to 15 µs."""
_PLAIN = "plain"


def top_level_blocks(markdown: str, *, growing: bool = False) -> list[list[Token]]:
    """Return the block structure: a list of tokens per top-level block, with inline text not yet parsed.

    The text must have bare newlines and no NUL characters. If the text is ``growing``, a formula at its end
    may be open: a ``math_block`` with a false ``meta["closed"]``.
    """
    parser = _parser()
    tokens: list[Token] = []
    parser.block.parse(markdown, parser, {GROWING: growing}, tokens)
    return list(_grouped(tokens))


def block_html(tokens: list[Token], *, highlight: bool = True) -> str:
    """Return one block of ``top_level_blocks`` as HTML; code is plain without ``highlight``."""
    parser = _parser()
    state = StateCore("", parser, {}, tokens)
    parser.core.process(state)
    return parser.renderer.render(state.tokens, parser.options, {_PLAIN: not highlight})


def _grouped(tokens: Sequence[Token]) -> list[list[Token]]:
    groups: list[list[Token]] = []
    depth = 0
    for token in tokens:
        if depth == 0:
            groups.append([])
        groups[-1].append(token)
        depth += token.nesting
    return groups


@cache
def _parser() -> MarkdownIt:
    """Return the parser that all answers share: it holds rules, never a text."""
    options = {"html": False, "linkify": False, "tasklists": True, "maxNesting": 20}
    parser = MarkdownIt("commonmark", options, renderer_cls=_PageRenderer)
    parser.enable("strikethrough")
    parser.disable(["reference", "html_block", "html_inline"])
    parser.validateLink = _accept_every_link
    add_math(parser)
    bound_tables(parser)
    parser.core.ruler.before("inline", "overlong", _overlong_rule)
    parser.core.ruler.push("formulas", _formula_rule)
    parser.core.ruler.push("links", link_rule)
    parser.core.ruler.push("alignment", _alignment_rule)
    return parser


def _accept_every_link(url: str) -> bool:
    """Disable the parser's own link check; ``links`` decides and shows the refused ones."""
    return True


def _overlong_rule(state: StateCore) -> None:
    """Leave text unparsed if it is excessively long, or if its marks would hold up the event loop."""
    marks = 0
    for token in state.tokens:
        if token.type == "inline":
            marks += sum(map(token.content.count, "*_~[`"))
            if marks > _MAX_MARKS or stays_text(token.content):
                token.type, token.children = "overlong", []


def _formula_rule(state: StateCore) -> None:
    """Convert formulas up to a limit for each top-level block; further ones stay as source."""
    left = MAX_IN_BLOCK
    for token in state.tokens:
        if token.level == 0 and token.nesting >= 0 and token.type != "inline":
            left = MAX_IN_BLOCK
        for formula in (token, *(token.children or ())):
            if formula.type in ("math_block", "math_inline"):
                left -= len(formula.content)
                formula.meta["written"] = left < 0


def _alignment_rule(state: StateCore) -> None:
    """Align table cells by class: a policy without inline styles ignores the style attribute."""
    for token in state.tokens:
        if token.type in ("th_open", "td_open") and "style" in token.attrs:
            side = str(token.attrs.pop("style")).rpartition(":")[2]
            token.attrSet("class", f"align-{side}")


class _PageRenderer(RendererHTML):
    """HTML renderer for the web page: code as figures, tables in their own scroll container."""

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        info = unescapeAll(tokens[idx].info).split()
        return code_html(tokens[idx].content, info[0] if info and not env.get(_PLAIN) else "")

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return code_html(tokens[idx].content)

    def overlong(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return escape(tokens[idx].content)

    def math_inline(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        token = tokens[idx]
        return escape(token.content) if token.meta.get("written") else formula_html(token.content)

    def math_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        formula = self.math_inline(tokens, idx, options, env)
        return f'<div class="math" role="group" aria-label="Formula" tabindex="0">{formula}</div>\n'

    def list_item_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        opening = super().list_item_open(tokens, idx, options, env)
        # A bounded search, because an unbounded one for each item would take quadratic time.
        label = next((token.children for token in tokens[idx + 1 : idx + 9] if token.type == "inline"), None)
        named = f' type="checkbox" aria-label="{escape(label_of(label or ()) or "Task")}"'
        return opening.replace(' type="checkbox"', named)

    def table_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return '<div class="table" role="group" aria-label="Table" tabindex="0"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return "</table></div>\n"
