"""Rendering of answers: Markdown, cut into pages, as HTML with a plain body, and files. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, assert_never

from msgspec import Struct

from gateway import Message
from gateway import markdown as md
from gateway.channel import AnswerFile, answer_files, answer_markdown

PAGE_BYTES = 40_000
"""Most bytes of a page as JSON, text and HTML together: an event has at most 65,536."""


_EMPTY_ANSWER = "_There was nothing to say._"


class Text(Struct, frozen=True):
    """A page of text."""

    markdown: str


Page = Text | AnswerFile


def pages_of(message: Message, *, final: bool, most: int = 6, tools: bool = True) -> Sequence[Page]:
    """Render an answer as at most ``most`` texts, and its files if final; a longer one also as a file."""
    markdown = answer_markdown(message.parts, final=final, tools=tools)
    pieces = md.split_markdown(markdown, PAGE_BYTES, measure, most=most + 1)
    whole = [AnswerFile("answer.md", "text/markdown", markdown.encode())] if len(pieces) > most else []
    texts = [*map(Text, pieces[:most])]
    if not final:
        return texts
    pages = [*texts, *whole, *answer_files(message)]
    return pages if pages or message.metadata.stop_reason == "cancelled" else [Text(_EMPTY_ANSWER)]


def measure(piece: str) -> int:
    """Return the bytes of a page as JSON."""
    return len(json.dumps(body_of(piece), ensure_ascii=False).encode())


def body_of(markdown: str) -> dict[str, Any]:
    """Return the content of a text message. It mentions no user, also if the model wrote a mention."""
    tree = md.parse_markdown(markdown)
    html = {"format": "org.matrix.custom.html", "formatted_body": html_of(tree)}
    return {"msgtype": "m.text", "body": md.plain_text(tree) or " ", **html, "m.mentions": {}}


def html_of(tree: Iterable[md.Block]) -> str:
    """Return a tree as HTML of the tags that clients show. A picture is a link: nothing is loaded."""
    return "".join(map(_block, tree))


def _block(block: md.Block) -> str:
    match block:
        case md.Paragraph(children):
            return f"<p>{_inlines(children)}</p>"
        case md.Heading(level, children):
            return f"<h{level}>{_inlines(children)}</h{level}>"
        case md.CodeBlock(text, language):
            kind = f' class="language-{escape(language)}"' if language else ""
            return f"<pre><code{kind}>{escape(text)}\n</code></pre>"
        case md.Quote(children):
            return f"<blockquote>{html_of(children)}</blockquote>"
        case md.ItemList():
            tag = "ol" if block.ordered else "ul"
            start = f' start="{block.start}"' if block.ordered and block.start != 1 else ""
            return f"<{tag}{start}>{''.join(_item(item, block.tight) for item in block.items)}</{tag}>"
        case md.Table(header, rows):
            head = "".join(f"<th>{_inlines(cell)}</th>" for cell in header)
            body = "".join(f"<tr>{''.join(f'<td>{_inlines(c)}</td>' for c in row)}</tr>" for row in rows)
            return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        case md.Rule():
            return "<hr>"
        case _:
            assert_never(block)


def _item(item: md.Item, tight: bool) -> str:
    mark = "" if item.checked is None else "☑ " if item.checked else "☐ "
    bare = (
        _inlines(one.children) if tight and isinstance(one, md.Paragraph) else _block(one)
        for one in item.children
    )
    return f"<li>{mark}{''.join(bare)}</li>"


def _inlines(inlines: Iterable[md.Inline]) -> str:
    return "".join(map(_inline, inlines))


_TAGS: Mapping[type[md.Inline], str] = {md.Strong: "strong", md.Emphasis: "em", md.Strike: "del"}


def _inline(inline: md.Inline) -> str:
    match inline:
        case md.Text(text):
            return escape(text)
        case md.Code(text):
            return f"<code>{escape(text)}</code>"
        case md.Math(source):
            return (
                f'<span data-mx-maths="{escape(md.formula_of(source))}"><code>{escape(source)}</code></span>'
            )
        case md.Break():
            return "<br>"
        case md.Strong(children) | md.Emphasis(children) | md.Strike(children):
            tag = _TAGS[type(inline)]
            return f"<{tag}>{_inlines(children)}</{tag}>"
        case md.Spoiler(children):
            return f"<span data-mx-spoiler>{_inlines(children)}</span>"
        case md.Link(children, href, host, shown_differs):
            shown = f" ({escape(host)})" if shown_differs else ""
            return f'<a href="{escape(href)}">{_inlines(children)}</a>{shown}'
        case md.Image(alt, href):
            return f'<a href="{escape(href)}">{escape(alt or href)}</a>'
        case _:
            assert_never(inline)
