"""Conversion of LaTeX formulas to MathML for the web page by latex2mathml, which is loaded on first use.

The result is rebuilt from allowed elements and attributes only, because the library passes on links, styles
and unescaped text. A formula that it does not support is shown as its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from html import escape, unescape
from xml.etree.ElementTree import Element

from gateway.markdown.math import formula_of, is_display

MAX_IN_BLOCK = 2_000
"""Maximum characters of formulas converted in one block; each costs about 10 µs in the event loop."""

_DEEPEST = 40
# fmt: off
_ELEMENTS = frozenset({
    "math", "menclose", "mfrac", "mi", "mmultiscripts", "mn", "mo", "mover", "mpadded", "mphantom",
    "mprescripts", "mroot", "mrow", "mspace", "msqrt", "mstyle", "msub", "msubsup", "msup", "mtable",
    "mtd", "mtext", "mtr", "munder", "munderover", "none",
})
_ATTRIBUTES = frozenset({
    "accent", "accentunder", "depth", "display", "displaystyle", "fence", "form", "height", "largeop",
    "linethickness", "lspace", "mathvariant", "maxsize", "minsize", "movablelimits", "notation",
    "rspace", "scriptlevel", "separator", "stretchy", "voffset", "width",
})
# fmt: on
_CHILDREN = {
    "mfrac": 2,
    "mover": 2,
    "mroot": 2,
    "msub": 2,
    "msubsup": 3,
    "msup": 2,
    "munder": 2,
    "munderover": 3,
}
"""Required number of children of an element, because the library passes on truncated ones."""
_VALUE = re.compile(r"[a-z-]{1,24}|[-+]?\d{0,2}(?:\.\d{1,3})?(?:em|ex|pt|px|mu)?")
_DEFINES = re.compile(
    r"\\(?:[egx]?def|let|(?:re)?newcommand|providecommand|DeclareMathOperator|newenvironment)"
)
_ENVIRONMENT = re.compile(r"\\(begin|end)\{(\w+\*?)\}")
_ENVIRONMENTS = {
    "align": "align*",
    "aligned": "split",
    "displaymath": "",
    "eqnarray": "align*",
    "eqnarray*": "align*",
    "equation": "",
    "equation*": "",
    "gather": "matrix",
    "gather*": "matrix",
    "gathered": "matrix",
    "math": "",
    "multline": "matrix",
    "multline*": "matrix",
}
"""Environments and those that the library supports in their place; empty removes the environment."""
_TABLES = {"align*", "array", "cases", "matrix", "smallmatrix", "split"} | {
    f"{kind}matrix" for kind in "bBpvV"
}


class _UnsupportedFormula(Exception):
    """A formula that cannot be shown as MathML."""


@lru_cache(maxsize=1024)
def formula_html(source: str) -> str:
    """Return a formula, delimiters included, as MathML; or its source as text if it is not supported."""
    latex = _ENVIRONMENT.sub(_replace_environment, formula_of(source))
    unknown = {match[2] for match in _ENVIRONMENT.finditer(latex)} - _TABLES
    # Macros can double the output with each definition, and answers do not need them.
    if unknown or _DEFINES.search(latex) or _depth(latex) > _DEEPEST:
        return _source_html(source)
    from latex2mathml.converter import convert_to_element  # 40 ms, for chats with formulas only

    try:
        made = convert_to_element(latex, display="block" if is_display(source) else "inline")
        return "".join(_mathml(made, 0))
    except Exception:  # noqa: BLE001 - the library raises errors of many types for unsupported input
        return _source_html(source)


def _source_html(source: str) -> str:
    return f'<span class="formula">{escape(source)}</span>'


def _replace_environment(match: re.Match[str]) -> str:
    name = _ENVIRONMENTS.get(match[2], match[2])
    return f"\\{match[1]}{{{name}}}" if name else ""


def _depth(latex: str) -> int:
    """Return the maximum nesting of braces, \\left brackets and environments."""
    depth = deepest = 0
    for mark in re.finditer(r"\\begin|\\left\b|\\end|\\right\b|\\.|[{}]", latex):
        if mark[0] in ("{", "\\begin", "\\left"):
            depth += 1
            deepest = max(deepest, depth)
        elif mark[0] in ("}", "\\end", "\\right"):
            depth -= 1
    return deepest


def _mathml(element: Element, depth: int) -> Iterator[str]:
    if element.tag not in _ELEMENTS or depth > 4 * _DEEPEST:
        raise _UnsupportedFormula(element.tag)
    # The library loses all cells of a table if a row ends with "&".
    if len(element) != _CHILDREN.get(element.tag, len(element)) or (
        element.tag == "mtable" and not len(element)
    ):
        raise _UnsupportedFormula(element.tag)
    yield f"<{element.tag}{''.join(_attributes(element))}>"
    text = unescape(element.text or "")
    if text.startswith("\\") and text[1:2].isalpha():
        raise _UnsupportedFormula(text)  # an unknown command
    yield escape(text)
    for child in element:
        yield from _mathml(child, depth + 1)
    yield f"</{element.tag}>"


def _attributes(element: Element) -> Iterator[str]:
    if element.tag == "mtd":
        side = element.get("columnalign", "")
        if side in ("left", "right"):
            yield f' class="align-{side}"'
    for name, value in element.attrib.items():
        if name in _ATTRIBUTES and _VALUE.fullmatch(value):
            yield f' {name}="{value}"'
