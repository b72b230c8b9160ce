"""Cuts within a paragraph: at the end of a line, a sentence or a word, or else between two characters.

Markup that is open at a cut is closed before it and reopened after it. Links, images and formulas are not
cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from msgspec import Struct

from gateway.markdown.grammar import FENCES, inline_tokens
from gateway.markdown.graphemes import splits_grapheme

_SENTENCE = re.compile(
    r"[.!?…][\"'\u201d\u2019»)\]*_~`]*(?=\s)|[\u3002\uff01\uff1f][\u201d\u2019」』\uff09*_~`]*"
)
_SPACE = re.compile(r"\s+")
_PROBES = "\u2005\u2006\u2004\u2008"
"""Rare kinds of space; one that the text does not contain marks the places to ask the parser about."""
_MAX_OPEN_MARKS = 8
_UNSTRUCTURED = frozenset(("text", "softbreak", "hardbreak"))

_BLOCK_START = re.compile(
    r"#{1,6}(?=\s|$)|>|[-+*](?=\s|$)|`{3,}[^`\n]*$|~{3}|(?:[-*_][ \t]*){3,}$|(\d{1,9})[.)](?=\s|$)",
    re.MULTILINE,
)
_FENCE_LINE = re.compile(r"[ \t>]*(?:(?:[-+*]|\d{1,9}[.)])[ \t>]+)*(?=`{3,}[^`\n]*\Z)")
_TABLE_START = re.compile(r"[^\n|]*\|[^\n]*\n[ \t>]*[|:-][ \t|:-]*$", re.MULTILINE)


class ParagraphCut(Struct, frozen=True, gc=False):
    """A cut: the head ends at ``at`` with ``closing``, the rest begins at ``resume`` with ``opening``."""

    at: int
    resume: int
    opening: str = ""
    closing: str = ""


def paragraph_cuts(window: str, low: int, high: int) -> Iterator[ParagraphCut]:
    """Yield a bounded number of cuts in (low, high] of a part of a paragraph, the better ones first.

    The window extends beyond ``high``, because only later text shows which markup is closed.
    """
    shape = _shape(window)
    gaps = [m.start() for m in _SPACE.finditer(window, low + 1, high + 1)]
    lines = [gap for gap in gaps if "\n" in _gap(window, gap)]
    ends = [m.end() for m in _SENTENCE.finditer(window, low, high + 1) if low < m.end() <= high]
    spaced = [end for end in ends if _gap(window, end)]
    yield from _cuts(window, [*lines[:-5:-1], *spaced[:-5:-1]], shape)
    for end in [end for end in ends[:-3:-1] if end not in spaced]:
        yield from _cuts(window, [end], shape)
    yield from _cuts(window, gaps[:-9:-1], shape)
    between = (at for at in range(high, low, -1) if not splits_grapheme(window, at))
    for at in islice(between, 4):
        yield from _cuts(window, [at], shape)


def escape_block_start(rest: str) -> tuple[str, int]:
    """Return the text that keeps the rest of a paragraph from beginning another block, such as a list.

    It replaces the returned number of characters at the start of ``rest``. Empty if ``rest`` begins no block.
    """
    match = _BLOCK_START.match(rest)
    if match is None:
        return "", 0
    digits = match.group(1) or ""
    return digits + "\\", len(digits)


def escape_trailing_fence(head: str) -> str:
    """Escape the text before a cut if its last line now begins a fence, which the whole line did not."""
    match = _FENCE_LINE.match(head, head.rfind("\n") + 1)
    return head if match is None else head[: match.end()] + "\\" + head[match.end() :]


def _gap(window: str, at: int) -> str:
    match = _SPACE.match(window, at)
    return match.group() if match else ""


def _cuts(window: str, places: Sequence[int], shape: list[str] | None) -> Iterator[ParagraphCut]:
    """Yield cuts at those places that break no markup. All places are in space, or there is only one."""
    if shape is None:
        marks: dict[int, list[str]] = {place: [] for place in places}
    else:
        marks = _marks_at(window, sorted(set(places)), shape)
    for place in places:
        if place in marks:
            cut = _cut(window, place, marks[place])
            if cut is not None:
                yield cut


def _cut(window: str, at: int, marks: list[str]) -> ParagraphCut | None:
    gap = _gap(window, at)
    resume = at + len(gap)
    head = window[:at]
    if (len(head) - len(head.rstrip("\\"))) % 2:
        if not gap.startswith("\n"):
            return None
        at -= 1
    if head.endswith(("`", "~")) and head[-1] == window[resume : resume + 1]:
        return None
    opening = "".join(marks)
    in_code = opening.endswith("`") and "`" in (head[-1:], window[resume : resume + 1])
    if in_code or opening.startswith(FENCES) or _TABLE_START.match(window, resume):
        return None
    return ParagraphCut(at, resume, opening, "".join(reversed(marks)))


def _marks_at(window: str, places: Sequence[int], shape: list[str]) -> dict[int, list[str]]:
    """Return the marks of emphasis and code that are open at each place. Omit places in links and the like.

    Finds them by parsing the window with a probe at each place: a probe appears in the token that it is in.
    """
    probe = next((mark for mark in _PROBES if mark not in window), None)
    if probe is None:
        return {}
    pieces: list[str] = []
    done = 0
    for place in places:
        pieces.append(window[done:place])
        done = place + bool(_gap(window, place))
    found = _marks_of(probe.join([*pieces, window[done:]]), probe, shape)
    if len(found) != len(places):
        return {}
    return {place: marks for place, marks in zip(places, found, strict=True) if marks is not None}


def _marks_of(probed: str, probe: str, shape: list[str]) -> list[list[str] | None]:
    """Return the open marks at each probe, None where no cut is allowed; [] if probes changed the markup."""
    kinds: list[str] = []
    found: list[list[str] | None] = []
    open_marks: list[str] = []
    for token in inline_tokens(probed) or ():
        if token.type not in _UNSTRUCTURED:
            kinds.append(token.type)
        if token.nesting > 0:
            open_marks.append("" if token.type == "link_open" else token.markup)
        elif token.nesting < 0:
            open_marks.pop()
        else:
            inside = [*open_marks, token.markup] if token.type == "code_inline" else list(open_marks)
            firm = token.type in ("image", "math_inline") or "" in inside or len(inside) > _MAX_OPEN_MARKS
            found += [None if firm else inside] * token.content.count(probe)
    return found if kinds == shape else []


def _shape(window: str) -> list[str] | None:
    """Return the types of the markup in a text, in order; None if the text is too long to be parsed."""
    tokens = inline_tokens(window)
    return None if tokens is None else [token.type for token in tokens if token.type not in _UNSTRUCTURED]
