"""A text that can be cut: the text between two cuts, completed to Markdown of its own."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct

from gateway.markdown.paragraphs import escape_trailing_fence
from gateway.markdown.segments import Container, Segment, segment_text, strip_containers

_BLANK_START = re.compile(r"(?:[ \t]*\n)+")


class Cut(Struct, frozen=True, gc=False):
    """A cut, and the text that is inserted there.

    The head ends at offset ``at``, the rest begins at offset ``resume``: in a new line, or ``within`` one.
    The lines ``closing`` end the head; the lines ``opening`` begin the rest, then ``marks`` in the first
    line of its text. The containers ``around`` stay open. ``marks`` may replace some of the text: without
    room for them the rest begins at offset ``bare``.
    """

    at: int
    resume: int
    bare: int
    around: tuple[Container, ...] = ()
    opening: str = ""
    closing: str = ""
    marks: str = ""
    within: bool = False


def bare_cut(at: int) -> Cut:
    """Return a cut that inserts nothing."""
    return Cut(at, at, at, within=True)


def cut_within(segment: Segment, at: int) -> Cut:
    """Return a cut within a segment; both sides are blocks of its kind."""
    return Cut(at, at, at, segment.inside, segment.opening, segment.closing, within=True)


def trim(piece: str) -> str:
    """Return a piece without leading blank lines and trailing space."""
    blank = _BLANK_START.match(piece)
    return piece[blank.end() if blank else 0 :].rstrip()


class Source:
    """A normal text and its segments. ``starts`` are the offsets where the segments begin."""

    def __init__(self, text: str) -> None:
        self.text, self.segments = segment_text(text)
        self.starts = [segment.start for segment in self.segments]

    def cut_before(self, index: int) -> Cut:
        """Return the cut before a segment."""
        segment = self.segments[index]
        at = self.segments[index - 1].end if index else 0
        if segment.number:
            end, marks = segment.number_end, segment.number
            return Cut(at, end, segment.start, segment.across, marks=marks, within=True)
        opening, closing = (segment.opening, segment.closing) if segment.continues else ("", "")
        return Cut(at, segment.start, segment.start, segment.across, opening, closing)

    def piece(self, start: Cut, end: Cut) -> str:
        """Return the text between two cuts, with the text that they insert."""
        body = self.text[start.resume : end.at]
        if not all(map(is_quote, start.around)):
            body = self._outdent(body, start)
        quotes = "> " * sum(map(is_quote, start.around))
        opening = quotes + start.opening.replace("\n", "\n" + quotes) + start.marks
        if not start.within:
            opening = opening[: len(opening) - len(quotes)]
        head = opening + body
        if self.text[end.at : end.at + 1] not in ("", "\n") and not end.closing.startswith("\n"):
            head = escape_trailing_fence(head)
        indents = ["> " if c.quote else "" if c in start.around else " " * c.indent for c in end.around]
        return trim(head + end.closing.replace("\n", "\n" + "".join(indents)))

    def _outdent(self, body: str, start: Cut) -> str:
        """Remove the indentation of the list items around a cut from the lines after it.

        A blank line is inserted where such an item ends: it separates what the item separated, and lets the
        next item begin a list.
        """
        around, at = list(start.around), start.resume
        lines: list[str] = []
        for number, line in enumerate(body.split("\n")):
            begin = at
            at += len(line) + 1
            if number == 0 and start.within:
                lines.append(line)
                continue
            still_open = [container for container in around if begin < container.end]
            if len(still_open) < len(around):
                around = still_open
                lines += [""] if lines and lines[-1].strip() else []
                line = self._renumber(line, begin)
            lines.append(_outdent_line(line, around))
        return "\n".join(lines)

    def _renumber(self, line: str, begin: int) -> str:
        """Return the first line of a list item with the item's number in its list."""
        segment = self.segments[min(bisect_left(self.starts, begin), len(self.segments) - 1)]
        if segment.start != begin or not segment.number:
            return line
        marker_end = segment.number_end - begin
        indent = len(line[:marker_end].rstrip(".)0123456789"))
        return line[:indent] + segment.number + line[marker_end:]


def is_quote(container: Container) -> bool:
    """Return whether a container is a quote, not a list item."""
    return container.quote


def _outdent_line(line: str, around: Sequence[Container]) -> str:
    marks = ""
    for container in around:
        rest = strip_containers(line, (container,))
        if container.quote:
            marks += line[: len(line) - len(rest)]
        line = rest
    return marks + line
