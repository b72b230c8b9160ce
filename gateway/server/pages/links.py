"""Safe links: only web and mail addresses, with the real host next to a label that names another one.

Works on the inline tokens of a parsed text, before they become HTML. Nothing is ever loaded: a picture
becomes a link to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from markdown_it.rules_core import StateCore
from markdown_it.token import Token

from gateway.markdown.links import bare_addresses, host_of, names_another_host


def link_rule(state: StateCore) -> None:
    """Check every link, picture and bare address of a text, as a core rule for markdown-it."""
    for token in state.tokens:
        if token.children:
            token.children = list(_relink(_with_bare_links(token.children)))


def _host_of(href: str) -> str | None:
    """Return the host or mail address that a link leads to; None if the link is not allowed."""
    return None if href.lower().startswith("tg:") else host_of(href)


def _relink(tokens: Iterable[Token]) -> Iterator[Token]:
    """Return the tokens with every link made safe. Links never nest, so one open link is tracked."""
    inside: list[Token] | None = None
    for token in tokens:
        if token.type == "link_open":
            inside = [token]
        elif inside is None:
            yield from _picture(token) if token.type == "image" else (token,)
        elif token.type == "link_close":
            yield from _link(inside[0], inside[1:])
            inside = None
        else:
            inside.append(_picture_name(token) if token.type == "image" else token)


def _picture(token: Token) -> Iterator[Token]:
    opening = Token("link_open", "a", 1, attrs={"href": token.attrs["src"], "class": "picture"})
    return _link(opening, [_picture_name(token)], always_host=True)


def _picture_name(token: Token) -> Token:
    return _text(label_of(token.children or []) or "picture")


def _link(opening: Token, label: list[Token], always_host: bool = False) -> Iterator[Token]:
    """Convert one link to an anchor if it is allowed, else to its label and the address as plain text."""
    href = str(opening.attrs.get("href", ""))
    host, words = _host_of(href), label_of(label)
    if host is None:
        yield from label
        if words != href:
            yield _text(f" ({href})")
        return
    classes = {"class": opening.attrs["class"]} if "class" in opening.attrs else {}
    fixed = {"href": href, "target": "_blank", "rel": "noopener noreferrer nofollow"}
    yield Token("link_open", "a", 1, attrs=fixed | classes)
    yield from label
    yield Token("link_close", "a", -1)
    if always_host or names_another_host(words, host):
        yield Token("host_open", "span", 1, attrs={"class": "link-host"})
        yield _text(f" ({host})")
        yield Token("host_close", "span", -1)


def label_of(tokens: Sequence[Token]) -> str:
    """Return the text of inline tokens, without their markup."""
    return "".join(label_of(token.children) if token.children else token.content for token in tokens)


def _text(content: str) -> Token:
    return Token("text", "", 0, content=content)


def _with_bare_links(tokens: Sequence[Token]) -> Iterator[Token]:
    """Return the tokens with addresses in plain text turned into links."""
    depth = 0
    for token in tokens:
        depth += token.nesting if token.type.startswith("link_") else 0
        if depth or token.type != "text" or "://" not in token.content:
            yield token
        else:
            yield from _split_text(token.content)


def _split_text(content: str) -> Iterator[Token]:
    done = 0
    for start, end in bare_addresses(content):
        address = content[start:end]
        yield _text(content[done:start])
        yield Token("link_open", "a", 1, attrs={"href": address})
        yield _text(address)
        yield Token("link_close", "a", -1)
        done = end
    yield _text(content[done:])
