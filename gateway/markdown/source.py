"""A text that can be cut: what stands between two cuts is Markdown by itself."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct

from gateway.markdown.borders import Container, Stretch, stretches_of, without
from gateway.markdown.words import ended

_BLANK_START = re.compile(r"(?:[ \t]*\n)+")


class Cut(Struct, frozen=True, gc=False):
    """A place in the text, and what is written around it.

    What comes before ends at ``at``, what follows goes on at ``resume``: in a new line, or ``within`` one.
    ``closing`` and ``opening`` are lines, ``marks`` belong to the line. The containers ``around`` stay open.
    ``marks`` may stand for some of the text, which goes on at ``bare`` where there is no room for them.
    """

    at: int
    resume: int
    bare: int
    around: tuple[Container, ...] = ()
    opening: str = ""
    closing: str = ""
    marks: str = ""
    within: bool = False


def spot(at: int) -> Cut:
    """A cut with nothing written around it."""
    return Cut(at, at, at, within=True)


def inside(stretch: Stretch, at: int) -> Cut:
    """A cut through a stretch, which goes on as what it was."""
    return Cut(at, at, at, stretch.inside, stretch.opening, stretch.closing, within=True)


def trimmed(piece: str) -> str:
    """The piece without blank lines before it, and without space behind it."""
    blank = _BLANK_START.match(piece)
    return piece[blank.end() if blank else 0 :].rstrip()


class Source:
    """A normal text with its stretches; ``starts`` are where these begin."""

    def __init__(self, text: str) -> None:
        self.text, self.stretches = stretches_of(text)
        self.starts = [stretch.start for stretch in self.stretches]

    def before(self, index: int) -> Cut:
        """The cut before a stretch."""
        stretch = self.stretches[index]
        at = self.stretches[index - 1].end if index else 0
        if stretch.number:
            end, marks = stretch.number_end, stretch.number
            return Cut(at, end, stretch.start, stretch.across, marks=marks, within=True)
        opening, closing = (stretch.opening, stretch.closing) if stretch.continues else ("", "")
        return Cut(at, stretch.start, stretch.start, stretch.across, opening, closing)

    def piece(self, start: Cut, end: Cut) -> str:
        """The text between two cuts, with what is written around it."""
        body = self.text[start.resume : end.at]
        if not all(map(is_quote, start.around)):
            body = self._taken_out(body, start)
        quotes = "> " * sum(map(is_quote, start.around))
        opening = quotes + start.opening.replace("\n", "\n" + quotes) + start.marks
        if not start.within:
            opening = opening[: len(opening) - len(quotes)]
        head = opening + body
        if self.text[end.at : end.at + 1] not in ("", "\n") and not end.closing.startswith("\n"):
            head = ended(head)
        indents = ["> " if c.quote else "" if c in start.around else " " * c.indent for c in end.around]
        return trimmed(head + end.closing.replace("\n", "\n" + "".join(indents)))

    def _taken_out(self, body: str, start: Cut) -> str:
        """The lines that follow a cut within items, without the indentation that these had.

        Behind the end of an item a blank line keeps apart what the item kept apart, and the next item of its
        list begins a list.
        """
        around, at = list(start.around), start.resume
        lines: list[str] = []
        for number, line in enumerate(body.split("\n")):
            begin = at
            at += len(line) + 1
            if number == 0 and start.within:
                lines.append(line)
                continue
            still = [container for container in around if begin < container.end]
            if len(still) < len(around):
                around = still
                lines += [""] if lines and lines[-1].strip() else []
                line = self._numbered(line, begin)
            lines.append(_outdented(line, around))
        return "\n".join(lines)

    def _numbered(self, line: str, begin: int) -> str:
        """The first line of an item, with the number that it has in its list."""
        stretch = self.stretches[min(bisect_left(self.starts, begin), len(self.stretches) - 1)]
        if stretch.start != begin or not stretch.number:
            return line
        marker_end = stretch.number_end - begin
        indent = len(line[:marker_end].rstrip(".)0123456789"))
        return line[:indent] + stretch.number + line[marker_end:]


def is_quote(container: Container) -> bool:
    """Whether it is a quote, and no item."""
    return container.quote


def _outdented(line: str, around: Sequence[Container]) -> str:
    marks = ""
    for container in around:
        rest = without(line, (container,))
        if container.quote:
            marks += line[: len(line) - len(rest)]
        line = rest
    return marks + line
