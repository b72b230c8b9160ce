"""The parser: Markdown to its tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import cast

from markdown_it.common.utils import unescapeAll
from markdown_it.token import Token

from gateway.markdown.grammar import (
    MAX_DEPTH,
    inline_tokens,
    normal,
    normal_address,
    readable_address,
)
from gateway.markdown.links import bare_addresses, host_of, names_another_host
from gateway.markdown.sections import block_tokens
from gateway.markdown.tree import (
    Align,
    Block,
    Break,
    Cell,
    Code,
    CodeBlock,
    Emphasis,
    Heading,
    Image,
    Inline,
    Item,
    ItemList,
    Link,
    Math,
    Paragraph,
    Quote,
    Rule,
    Spoiler,
    Strike,
    Strong,
    Table,
    Text,
    Tree,
    inline_text,
)

_MARKUP = re.compile(r"[\\`*_~\[\]!<&$]|[ \t]\n|\n[ \t]")
_SPOILER = re.compile(r"(?<!\|)\|\|(?!\|)")
_MAX_CACHED = 1_000


def parse_markdown(text: str) -> Tree:
    """Return the tree of a text. Every text has one, an unfinished one, too."""
    return tuple(_blocks(block_tokens(normal(text))))


def _blocks(tokens: Iterator[Token], seen: list[Token] | None = None) -> Iterator[Block]:
    """Yield the blocks up to the end of their container. Append their opening tokens to ``seen``."""
    for token in tokens:
        if token.nesting < 0:
            return
        if seen is not None:
            seen.append(token)
        yield _BLOCKS[token.type](token, tokens)


def _paragraph(token: Token, tokens: Iterator[Token]) -> Block:
    return Paragraph(_content(tokens))


def _heading(token: Token, tokens: Iterator[Token]) -> Block:
    return Heading(int(token.tag[1]), _content(tokens))


def _content(tokens: Iterator[Token]) -> tuple[Inline, ...]:
    """Return the inlines up to the closing token. The opening token was consumed before."""
    inlines = _inlines(next(tokens).content)
    next(tokens)
    return inlines


def _code_block(token: Token, tokens: Iterator[Token]) -> Block:
    info = unescapeAll(token.info).split()
    return CodeBlock(token.content.removesuffix("\n"), info[0] if info else "")


def _quote(token: Token, tokens: Iterator[Token]) -> Block:
    return Quote(tuple(_blocks(tokens)))


def _list(token: Token, tokens: Iterator[Token]) -> Block:
    items: list[Item] = []
    seen: list[Token] = []
    for opening in tokens:
        if opening.nesting < 0:
            break
        items.append(Item(tuple(_blocks(tokens, seen)), opening.meta.get("checked")))
    tight = all(block.hidden for block in seen if block.type == "paragraph_open")
    start = int(token.attrs.get("start", 1))
    return ItemList(tuple(items), token.type == "ordered_list_open", start, tight)


def _table(token: Token, tokens: Iterator[Token]) -> Block:
    rows: list[list[Cell]] = []
    aligns: list[Align] = []
    for part in tokens:
        if part.type == "table_close":
            break
        if part.type == "tr_open":
            rows.append([])
        elif part.type in ("th_open", "td_open"):
            if part.type == "th_open":
                aligns.append(cast("Align", str(part.attrs.get("style", "")).rpartition(":")[2]))
            rows[-1].append(_content(tokens))
    header, *others = map(tuple, rows)
    return Table(header, tuple(others), tuple(aligns))


def _math(token: Token, tokens: Iterator[Token]) -> Block:
    return Paragraph((Math(token.content),))


def _rule(token: Token, tokens: Iterator[Token]) -> Block:
    return Rule()


_BLOCKS: Mapping[str, Callable[[Token, Iterator[Token]], Block]] = {
    "paragraph_open": _paragraph,
    "heading_open": _heading,
    "fence": _code_block,
    "code_block": _code_block,
    "blockquote_open": _quote,
    "bullet_list_open": _list,
    "ordered_list_open": _list,
    "table_open": _table,
    "math_block": _math,
    "hr": _rule,
}


def _inlines(content: str) -> tuple[Inline, ...]:
    # An answer that grows is parsed again and again, and most of the time is spent on inlines.
    return _parse_cached(content) if len(content) <= _MAX_CACHED else _parse_inlines(content)


def _parse_inlines(content: str) -> tuple[Inline, ...]:
    tokens = inline_tokens(content) if _MARKUP.search(content) else None
    nodes = tuple(_lines(content)) if tokens is None else _nested(tokens)
    return _with_spoilers(nodes) if content.count("||") > 1 else nodes


def _with_spoilers(nodes: tuple[Inline, ...]) -> tuple[Inline, ...]:
    """Return a row of nodes with its spoilers. Both marks of one have to be in texts of the row."""
    made: list[Inline] = []
    done = (0, 0)
    begin: tuple[int, int] | None = None
    for at, node in enumerate(nodes):
        for mark in _SPOILER.finditer(node.text) if isinstance(node, Text) else ():
            before, after = mark.string[: mark.start()], mark.string[mark.end() :]
            if begin is None and _is_edge(before[-1:], after[:1], nodes[at + 1 : at + 2]):
                begin = at, mark.end()
            elif begin is not None and _is_edge(after[:1], before[-1:], nodes[at - 1 : at] if at else ()):
                made += _between(nodes, done, (begin[0], begin[1] - 2))
                made.append(Spoiler(tuple(_between(nodes, begin, (at, mark.start())))))
                done, begin = (at, mark.end()), None
    return (*made, *_between(nodes, done, (len(nodes), 0))) if made else nodes


def _is_edge(outer: str, inner: str, neighbor: Sequence[Inline]) -> bool:
    """Return whether a mark has no letter outside, and text inside: in ``a || b`` and ``a||b`` it has not."""
    is_filled = not inner.isspace() if inner else bool(neighbor) and not isinstance(neighbor[0], Break)
    return not outer.isalnum() and is_filled


def _between(nodes: Sequence[Inline], start: tuple[int, int], end: tuple[int, int]) -> Iterator[Inline]:
    """Yield the nodes between two places, which are nodes and offsets in their texts."""
    for at in range(start[0], min(end[0] + 1, len(nodes))):
        node = nodes[at]
        if isinstance(node, Text):
            node = Text(node.text[start[1] if at == start[0] else 0 : end[1] if at == end[0] else None])
        if not isinstance(node, Text) or node.text:
            yield node


_parse_cached = lru_cache(maxsize=1024)(_parse_inlines)


def _lines(content: str) -> Iterator[Inline]:
    """Yield text without markup."""
    first, *others = content.split("\n")
    yield from _linked(first.strip())
    for line in others:
        yield Break()
        yield from _linked(line.strip())


def _nested(tokens: Iterable[Token]) -> tuple[Inline, ...]:
    """Return the tokens as nodes. Emphasis that is nested too deep becomes plain text."""
    opened: list[tuple[Token, _Line]] = []
    line = _Line(linking=True)
    for token in tokens:
        if token.nesting > 0:
            opened.append((token, line))
            is_link = token.type == "link_open"
            if is_link or len(opened) < MAX_DEPTH:
                line = _Line(linking=line.linking and not is_link)
        elif token.nesting < 0:
            opening, outer = opened.pop()
            if outer is not line:
                for node in _wrapped(opening, line.nodes()):
                    outer.add(node)
                line = outer
        else:
            line.add(_leaf(token, line.linking))
    return line.nodes()


def _leaf(token: Token, linking: bool) -> Inline | str:
    match token.type:
        case "code_inline":
            return Code(token.content)
        case "math_inline":
            return Math(token.content)
        case "softbreak" | "hardbreak":
            return Break()
        case "image":
            image = _image(token)
            return image if linking or not isinstance(image, Image) else image.alt or image.href
        case _:
            return token.content


def _wrapped(opening: Token, children: tuple[Inline, ...]) -> Iterable[Inline | str]:
    match opening.type:
        case "strong_open":
            return (Strong(children),)
        case "em_open":
            return (Emphasis(children),)
        case "s_open":
            return (Strike(children),)
        case _:
            return _link(str(opening.attrs["href"]), children)


def _link(href: str, children: tuple[Inline, ...]) -> Iterable[Inline | str]:
    """Return a link. If its URL is not allowed, return its text followed by the URL."""
    host, label = host_of(href), inline_text(children)
    if not host:
        address = readable_address(href)
        return (*children, "" if label == address else f" ({address})")
    if not label.strip():
        children = (Text(href),)
    return (Link(children, href, host, names_another_host(label, host)),)


def _image(token: Token) -> Inline | str:
    href, alt = str(token.attrs["src"]), inline_text(_nested(token.children or ()))
    host = host_of(href)
    return Image(alt, href, host) if host else f"{alt} ({readable_address(href)})"


class _Line:
    """A row of nodes. Adjacent texts are joined, and URLs in them become links."""

    def __init__(self, linking: bool) -> None:
        self.linking = linking
        self._nodes: list[Inline] = []
        self._texts: list[str] = []

    def add(self, node: Inline | str) -> None:
        """Append a node, or text."""
        if isinstance(node, str):
            self._texts.append(node)
        elif isinstance(node, Text):
            self._texts.append(node.text)
        else:
            self._flush()
            self._nodes.append(node)

    def nodes(self) -> tuple[Inline, ...]:
        """Return the nodes."""
        self._flush()
        return tuple(self._nodes)

    def _flush(self) -> None:
        if self._texts:
            text = "".join(self._texts)
            self._texts.clear()
            self._nodes += _linked(text) if self.linking else filter(_is_not_empty, (Text(text),))


def _is_not_empty(text: Text) -> bool:
    return bool(text.text)


def _linked(text: str) -> Iterator[Inline]:
    """Yield text with its URLs as links."""
    done = 0
    if "://" in text:
        for start, end in bare_addresses(text):
            address = text[start:end]
            href = normal_address(address)
            if host := host_of(href):
                if done < start:
                    yield Text(text[done:start])
                yield Link((Text(address),), href, host, names_another_host(address, host))
                done = end
    if done < len(text):
        yield Text(text[done:])
