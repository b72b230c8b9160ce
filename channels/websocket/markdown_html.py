"""Markdown to HTML that is safe to put into a page: CommonMark with tables, strikethrough and task lists.

Raw HTML is text. There are no inline styles, no scripts and no loaded pictures, so a strict content
security policy holds. Link reference definitions are off: a definition at the end would change blocks
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

from channels.websocket.highlight import code_html
from channels.websocket.links import link_rule

_LONGEST_PARSED = 8_000


def render_html(markdown: str) -> str:
    """The whole text as HTML."""
    return _parser().render(markdown)


def top_level_blocks(markdown: str) -> list[list[Token]]:
    """The block structure alone: one list of tokens per top-level block, their text not yet parsed.

    The text must have bare newlines and no NUL characters.
    """
    parser = _parser()
    tokens: list[Token] = []
    parser.block.parse(markdown, parser, {}, tokens)
    return list(_grouped(tokens))


def block_html(tokens: list[Token]) -> str:
    """One block of ``top_level_blocks`` as HTML."""
    parser = _parser()
    state = StateCore("", parser, {}, tokens)
    parser.core.process(state)
    return parser.renderer.render(state.tokens, parser.options, {})


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
    """The one parser: it holds rules, never a text, so all answers share it."""
    options = {"html": False, "linkify": False, "tasklists": True, "maxNesting": 20}
    parser = MarkdownIt("commonmark", options, renderer_cls=_PageRenderer)
    parser.enable(["table", "strikethrough"])
    parser.disable(["reference", "html_block", "html_inline"])
    parser.validateLink = _every_link
    parser.core.ruler.before("inline", "overlong", _overlong_rule)
    parser.core.ruler.push("links", link_rule)
    parser.core.ruler.push("alignment", _alignment_rule)
    return parser


def _every_link(url: str) -> bool:
    """Let the parser see every link; ``links`` decides and shows what it refuses."""
    return True


def _overlong_rule(state: StateCore) -> None:
    """Leave an absurdly long paragraph unparsed: hostile nesting costs the event loop 10 µs a character."""
    for token in state.tokens:
        if token.type == "inline" and len(token.content) > _LONGEST_PARSED:
            token.type, token.children = "overlong", []


def _alignment_rule(state: StateCore) -> None:
    """Align table cells by class: a policy without inline styles ignores the style attribute."""
    for token in state.tokens:
        if token.type in ("th_open", "td_open") and "style" in token.attrs:
            side = str(token.attrs.pop("style")).rpartition(":")[2]
            token.attrSet("class", f"align-{side}")


class _PageRenderer(RendererHTML):
    """HTML for the web page: code as figures, tables that scroll by themselves."""

    def fence(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        info = unescapeAll(tokens[idx].info).split()
        return code_html(tokens[idx].content, info[0] if info else "")

    def code_block(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return code_html(tokens[idx].content)

    def overlong(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return escape(tokens[idx].content)

    def table_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return '<div class="table" role="region" aria-label="Table" tabindex="0"><table>\n'

    def table_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return "</table></div>\n"
