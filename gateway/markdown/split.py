"""Markdown in pieces: the source of a text cut into sources that each fit into one message."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from gateway.markdown.borders import Container, Stretch, stretches_of, without
from gateway.markdown.clusters import cluster_start
from gateway.markdown.grammar import normal
from gateway.markdown.words import as_words, ended, word_cuts

_BLANK_START = re.compile(r"(?:[ \t]*\n)+")
_QUOTE_MARK = re.compile(r"[ \t]*>[ \t]*")
_LOOKED_AHEAD = 1_000


def split_markdown(text: str, limit: int, measure: Callable[[str], int] = len) -> list[str]:
    """Cut Markdown into pieces, each Markdown by itself, with ``measure(piece) <= limit``.

    What can be read is not lost. Cuts are made between blocks where that leaves pieces at least half full,
    else between items, rows or lines, else at the end of a sentence or a word. Code and tables that are cut
    go on under the same fence and the same header; a fence that is open at the end of the text is closed.
    A text that grows keeps its pieces but the last, as far as Markdown allows. Blank text has no pieces.

    ``measure`` tells how much room a piece takes, in the units of ``limit``; longer pieces should take more.
    Fences and markup around a cut are left out where they do not fit. Raises ValueError if not even one
    character fits.
    """
    return list(_Splitter(normal(text), limit, measure).pieces())


class _Cut(Struct, frozen=True, gc=False):
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


class _Splitter:
    """One text on its way into pieces."""

    def __init__(self, text: str, limit: int, measure: Callable[[str], int]) -> None:
        self._text = text
        self._limit = limit
        self._measure = measure
        self._stretches: Sequence[Stretch] = ()
        self._starts: Sequence[int] = ()

    def pieces(self) -> Iterator[str]:
        """The pieces in order."""
        text = self._text
        if not text.strip():
            return
        has_fence = "```" in text or "~~~" in text
        if not has_fence and len(text) <= 2 * self._limit and self._fits(piece := _trimmed(text)):
            yield piece
            return
        self._text, self._stretches = stretches_of(text)
        self._starts = [stretch.start for stretch in self._stretches]
        start = _Cut(0, 0, 0)
        while start.resume < len(self._text):
            start, end = self._next(start)
            piece = self._piece(start, end)
            if piece:
                yield piece
            start = end

    def _fits(self, piece: str) -> bool:
        return self._measure(piece) <= self._limit

    def _fit(self, start: _Cut, end: _Cut) -> bool:
        return self._fits(self._piece(start, end))

    def _next(self, start: _Cut) -> tuple[_Cut, _Cut]:
        """The piece that begins at ``start``, which may have to do without its opening: from, to."""
        first = bisect_right(self._starts, start.resume)
        borders = range(first, len(self._stretches))
        guess = max(first, bisect_left(self._starts, start.resume + self._limit) - 1)
        furthest = _furthest(lambda at: self._fit(start, self._before(at)), borders, guess)
        if furthest == len(self._stretches) - 1:
            return start, self._before(furthest)
        if furthest >= first and (border := self._best_border(start, first, furthest)):
            return start, border
        if word := self._within(start, self._stretches[max(furthest, first - 1)]):
            return start, word
        if furthest >= first:
            return start, self._before(furthest)
        return self._anywhere(start, self._stretches[first - 1])

    def _before(self, index: int) -> _Cut:
        """The cut before a stretch."""
        stretch = self._stretches[index]
        at = self._stretches[index - 1].end if index else 0
        opening, closing = (stretch.opening, stretch.closing) if stretch.continues else ("", "")
        if stretch.number:
            return _Cut(
                at, stretch.number_end, stretch.start, stretch.across, marks=stretch.number, within=True
            )
        return _Cut(at, stretch.start, stretch.start, stretch.across, opening, closing)

    def _best_border(self, start: _Cut, first: int, furthest: int) -> _Cut | None:
        """The border that disturbs least, among those that leave the piece at least half full."""
        full = self._before(furthest)
        size = self._measure(self._piece(start, full))
        if 2 * size < self._limit:
            return None
        half = start.resume + (self._starts[furthest] - start.resume) * self._limit // (2 * max(size, 1))
        near = range(max(first, bisect_left(self._starts, half)), furthest + 1)
        best = min(near, key=lambda at: (self._stretches[at].cost, -at), default=furthest)
        cut = self._before(best)
        return cut if best == furthest or self._fit(start, cut) else full

    def _within(self, start: _Cut, stretch: Stretch) -> _Cut | None:
        """A cut within a stretch, which is too long to be taken as a whole."""
        low = max(stretch.soft, start.resume)
        if low >= stretch.soft_end:
            return None
        room = range(low + 1, stretch.soft_end)
        guess = start.resume + self._limit
        furthest = _furthest(lambda at: self._fit(start, self._inside(stretch, at)), room, guess)
        if furthest <= low:
            return None
        if stretch.code:
            cut = self._inside(stretch, cluster_start(self._text, furthest))
            return cut if cut.at > low and self._fit(start, cut) else self._inside(stretch, furthest)
        half = max(low, start.resume + (furthest - start.resume) // 2)
        return self._between_words(start, stretch, low, half, furthest)

    def _inside(self, stretch: Stretch, at: int) -> _Cut:
        return _Cut(at, at, at, stretch.inside, stretch.opening, stretch.closing, within=True)

    def _between_words(
        self, start: _Cut, stretch: Stretch, low: int, half: int, furthest: int
    ) -> _Cut | None:
        marks = start.marks if start.resume == low else ""
        begin = low - len(marks)
        window = marks + self._text[low : min(furthest + _LOOKED_AHEAD, stretch.soft_end)]
        for word in word_cuts(window, half - begin, furthest - begin):
            at = word.at + begin
            resume = self._past_quotes(at, word.resume + begin, stretch)
            escape, replaced = as_words(self._text[resume : resume + _LOOKED_AHEAD])
            if word.opening:
                escape, replaced = "", 0
            marks = word.opening + escape
            end = resume + replaced
            cut = _Cut(at, end, resume, stretch.inside, stretch.opening, word.closing, marks, within=True)
            if at > low and self._fit(start, cut):
                return cut
        return None

    def _past_quotes(self, at: int, resume: int, stretch: Stretch) -> int:
        """Where the words go on: in a new line that is behind the marks of the quotes around it."""
        if "\n" in self._text[at:resume]:
            for _ in filter(_is_quote, stretch.inside):
                match = _QUOTE_MARK.match(self._text, resume, stretch.end)
                resume = match.end() if match else resume
        return resume

    def _anywhere(self, start: _Cut, stretch: Stretch) -> tuple[_Cut, _Cut]:
        """A piece that ends wherever it is full: nothing better fits."""
        bare = _Cut(start.at, start.bare, start.bare, within=True)
        for begin in (bare,) if start.opening else (start, bare):
            room = range(begin.resume + 1, max(stretch.end, begin.resume + 1) + 1)
            guess = begin.resume + self._limit
            furthest = _furthest(lambda at, begin=begin: self._fit(begin, _spot(at)), room, guess)
            if furthest > begin.resume:
                return begin, _spot(furthest)
        raise ValueError(f"not even one character fits into {self._limit}")

    def _piece(self, start: _Cut, end: _Cut) -> str:
        """The text between two cuts, with what is written around it."""
        body = self._text[start.resume : end.at]
        if not all(map(_is_quote, start.around)):
            body = self._taken_out(body, start)
        quotes = "> " * sum(map(_is_quote, start.around))
        opening = quotes + start.opening.replace("\n", "\n" + quotes) + start.marks
        if not start.within:
            opening = opening[: len(opening) - len(quotes)]
        head = opening + body
        if end.within and not end.closing.startswith("\n"):
            head = ended(head)
        indents = ["> " if c.quote else "" if c in start.around else " " * c.indent for c in end.around]
        return _trimmed(head + end.closing.replace("\n", "\n" + "".join(indents)))

    def _taken_out(self, body: str, start: _Cut) -> str:
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
                line = self._numbered(line, begin, around)
            lines.append(_outdented(line, around))
        return "\n".join(lines)

    def _numbered(self, line: str, begin: int, around: Sequence[Container]) -> str:
        """The first line of an item, with the number that it has in its list."""
        stretch = self._stretches[min(bisect_left(self._starts, begin), len(self._stretches) - 1)]
        if stretch.start != begin or not stretch.number:
            return line
        marker_end = stretch.number_end - begin
        indent = len(line[:marker_end].rstrip(".)0123456789"))
        return line[:indent] + stretch.number + line[marker_end:]


def _spot(at: int) -> _Cut:
    return _Cut(at, at, at, within=True)


def _is_quote(container: Container) -> bool:
    return container.quote


def _outdented(line: str, around: Sequence[Container]) -> str:
    marks = ""
    for container in around:
        rest = without(line, (container,))
        if container.quote:
            marks += line[: len(line) - len(rest)]
        line = rest
    return marks + line


def _trimmed(piece: str) -> str:
    blank = _BLANK_START.match(piece)
    return piece[blank.end() if blank else 0 :].rstrip()


def _furthest(fits: Callable[[int], bool], room: range, guess: int) -> int:
    """The last place in a range that fits, or the one before the range; looks around ``guess`` first."""
    good, bad, step, probe = room.start - 1, room.stop, 1, guess
    while bad - good > 1:
        probe = max(good + 1, min(probe, bad - 1))
        if fits(probe):
            good, probe = probe, probe + step
        else:
            bad, probe = probe, probe - step
        if not good < probe < bad:
            probe = (good + bad) // 2
        step *= 2
    return good
