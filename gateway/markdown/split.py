"""Markdown in pieces: the source of a text cut into sources that each fit into one message."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import islice

from gateway.markdown.borders import Stretch
from gateway.markdown.clusters import cluster_start
from gateway.markdown.grammar import normal
from gateway.markdown.sections import fences_are_closed
from gateway.markdown.source import Cut, Source, inside, is_quote, spot, trimmed
from gateway.markdown.words import as_words, word_cuts

_QUOTE_MARK = re.compile(r"[ \t]*>[ \t]*")
_LOOKED_AHEAD = 1_000
_ESTIMATES, _STRIDE = 5, 4
_WINDOW = 4
"""Times the room of the wanted pieces: so much text is surveyed at once."""


def split_markdown(
    text: str, limit: int, measure: Callable[[str], int] = len, *, most: int | None = None
) -> list[str]:
    """Cut Markdown into pieces, each Markdown by itself, with ``measure(piece) <= limit``.

    What can be read is not lost. Cuts are made between blocks where that leaves pieces at least half full,
    else between items, rows or lines, else at the end of a sentence or a word. Code and tables that are cut
    go on under the same fence and the same header; a fence that is open at the end of the text is closed.
    A text that grows keeps its pieces but the last, as far as Markdown allows. Blank text has no pieces.

    ``measure`` tells how much room a piece takes, in the units of ``limit``; longer pieces should take more.
    Fences and markup around a cut are left out where they do not fit. With ``most`` only so many pieces are
    made, and little more of the text is looked at than they take. Raises ValueError if not even one
    character fits.
    """
    text = normal(text)
    if not text.strip():
        return []
    if len(text) <= 2 * limit and fences_are_closed(text):
        piece = trimmed(text)
        # A quote's last mark may have nothing behind it, which only the survey can tell.
        if not piece.endswith(">") and measure(piece) <= limit:
            return [piece]
    if most is None:
        return list(_Splitter(Source(text), limit, measure).pieces())
    pieces: list[str] = []
    while text.strip() and len(pieces) < most:
        window, text = _window(text, _WINDOW * limit * most)
        splitter = _Splitter(Source(window), limit, measure)
        pieces += islice(splitter.pieces(), most - len(pieces))
    return pieces


def _window(text: str, longest: int) -> tuple[str, str]:
    """Cut a text after so many characters at most: behind a blank line, a line, or anywhere."""
    if len(text) <= longest:
        return text, ""
    at = text.rfind("\n\n", longest // 2, longest) + 2
    if at < 2:
        at = text.rfind("\n", longest // 2, longest) + 1
    at = at or longest
    return text[:at], text[at:]


class _Splitter:
    """One text on its way into pieces."""

    def __init__(self, source: Source, limit: int, measure: Callable[[str], int]) -> None:
        self._source = source
        self._limit = limit
        self._measure = measure
        self._reach = max(limit, 1)
        self._sizes: dict[str, int] = {}

    def pieces(self) -> Iterator[str]:
        """The pieces in order."""
        start = Cut(0, 0, 0)
        while start.resume < len(self._source.text):
            self._sizes.clear()
            start, end = self._next(start)
            piece = self._source.piece(start, end)
            if piece:
                yield piece
            start = end

    def _size(self, start: Cut, end: Cut) -> int:
        piece = self._source.piece(start, end)
        size = self._sizes.get(piece)
        if size is None:
            size = self._sizes[piece] = self._measure(piece)
        return size

    def _fits(self, start: Cut, end: Cut) -> bool:
        return self._size(start, end) <= self._limit

    def _next(self, start: Cut) -> tuple[Cut, Cut]:
        """The piece that begins at ``start``, which may have to do without its opening: from, to."""
        source = self._source
        first, last = bisect_right(source.starts, start.resume), len(source.stretches) - 1
        furthest = self._furthest(
            start,
            range(first, last + 1),
            source.before,
            source.starts.__getitem__,
            lambda offset: bisect_right(source.starts, offset) - 1,
        )
        if furthest == last:
            return start, source.before(last)
        if furthest >= first and (border := self._best_border(start, first, furthest)):
            return start, border
        if word := self._within(start, source.stretches[max(furthest, first - 1)]):
            return start, word
        if furthest >= first:
            return start, source.before(furthest)
        return self._anywhere(start, source.stretches[first - 1])

    def _best_border(self, start: Cut, first: int, furthest: int) -> Cut | None:
        """The border that disturbs least, among those that leave the piece at least half full."""
        source, full = self._source, self._source.before(furthest)
        size = self._size(start, full)
        if 2 * size < self._limit:
            return None
        half = start.resume + (source.starts[furthest] - start.resume) * self._limit // (2 * max(size, 1))
        near = range(max(first, bisect_left(source.starts, half)), furthest + 1)
        best = min(near, key=lambda at: (source.stretches[at].cost, -at), default=furthest)
        cut = source.before(best)
        return cut if best == furthest or self._fits(start, cut) else full

    def _within(self, start: Cut, stretch: Stretch) -> Cut | None:
        """A cut within a stretch, which is too long to be taken as a whole."""
        low = max(stretch.soft, start.resume)
        if low >= stretch.soft_end:
            return None
        furthest = self._furthest_at(start, range(low + 1, stretch.soft_end), lambda at: inside(stretch, at))
        if furthest <= low:
            return None
        if stretch.code:
            cut = inside(stretch, cluster_start(self._source.text, furthest))
            return cut if cut.at > low and self._fits(start, cut) else inside(stretch, furthest)
        half = max(low, start.resume + (furthest - start.resume) // 2)
        return self._between_words(start, stretch, low, half, furthest)

    def _between_words(self, start: Cut, stretch: Stretch, low: int, half: int, furthest: int) -> Cut | None:
        text = self._source.text
        marks = start.marks if start.resume == low else ""
        begin = low - len(marks)
        window = marks + text[low : min(furthest + _LOOKED_AHEAD, stretch.soft_end)]
        for word in word_cuts(window, half - begin, furthest - begin):
            at = word.at + begin
            resume = self._past_quotes(at, word.resume + begin, stretch)
            escape, replaced = as_words(text[resume : resume + _LOOKED_AHEAD])
            if word.opening:
                escape, replaced = "", 0
            marks, end = word.opening + escape, resume + replaced
            cut = Cut(at, end, resume, stretch.inside, stretch.opening, word.closing, marks, within=True)
            if at > low and self._fits(start, cut):
                return cut
        return None

    def _past_quotes(self, at: int, resume: int, stretch: Stretch) -> int:
        """Where the words go on: in a new line that is behind the marks of the quotes around it."""
        text = self._source.text
        if "\n" in text[at:resume]:
            for _ in filter(is_quote, stretch.inside):
                match = _QUOTE_MARK.match(text, resume, stretch.end)
                resume = match.end() if match else resume
        return resume

    def _anywhere(self, start: Cut, stretch: Stretch) -> tuple[Cut, Cut]:
        """A piece that ends wherever it is full: nothing better fits."""
        bare = Cut(start.at, start.bare, start.bare, within=True)
        for begin in (bare,) if start.opening else (start, bare):
            end = max(stretch.end, begin.resume + 1)
            furthest = self._furthest_at(begin, range(begin.resume + 1, end + 1), spot)
            if furthest > begin.resume:
                return begin, spot(furthest)
        raise ValueError(f"not even one character fits into {self._limit}")

    def _furthest_at(self, start: Cut, room: range, cut_at: Callable[[int], Cut]) -> int:
        return self._furthest(start, room, cut_at, int, int)

    def _furthest(
        self,
        start: Cut,
        room: range,
        cut_at: Callable[[int], Cut],
        offset_of: Callable[[int], int],
        place_at: Callable[[int], int],
    ) -> int:
        """The last place in a range up to which the piece fits, or the one before the range.

        A size tells about how far there is room, so it takes few of them. What is measured is never much
        longer than what fits.
        """
        good, bad, origin, reach = room.start - 1, room.stop, start.resume, self._reach
        tries = 0
        while bad - good > 1:
            tries += 1
            probe = place_at(origin + reach)
            if tries > _ESTIMATES:
                probe = (good + bad) // 2 if bad < room.stop else good + (1 << (tries - _ESTIMATES))
            probe = max(good + 1, min(probe, bad - 1))
            length = offset_of(probe) - origin
            if length > _STRIDE * reach:
                stride = self._fits(start, spot(origin + _STRIDE * reach))
                reach, bad = (_STRIDE * reach, bad) if stride else (reach, probe)
                continue
            size = self._size(start, cut_at(probe))
            if size <= self._limit:
                good = probe
            else:
                bad = probe
            reach = max(1, min(length * self._limit // max(size, 1), 2 * length))
        if good >= room.start:
            self._reach = max(offset_of(good) - origin, 1)
        return good
