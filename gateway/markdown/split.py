"""The splitter: cuts Markdown into pieces that fit into messages and are Markdown of their own."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from gateway.markdown.grammar import normal
from gateway.markdown.graphemes import grapheme_start
from gateway.markdown.paragraphs import escape_block_start, paragraph_cuts
from gateway.markdown.sections import fences_are_closed
from gateway.markdown.segments import Segment
from gateway.markdown.source import Cut, Source, bare_cut, cut_within, is_quote, trim

_QUOTE_MARK = re.compile(r"[ \t]*>[ \t]*")
_LOOKAHEAD = 1_000
"""Characters after a cut that are parsed to find its markup."""
_ESTIMATES, _MAX_STRIDE = 5, 4
"""Probes that are estimated from sizes, before bisection; and the longest step in reaches."""
_WINDOW = 4
"""Characters that are scanned at once, as a multiple of the limit of all wanted pieces."""


def split_markdown(
    text: str, limit: int, measure: Callable[[str], int] = len, *, most: int | None = None
) -> list[str]:
    """Cut Markdown into pieces, each Markdown of its own, with ``measure(piece) <= limit``.

    No readable text is lost. A cut is made between blocks if that leaves the piece at least half full, else
    between items, rows or lines, else at the end of a sentence or a word. Code and tables that are cut
    continue under the same fence or header; a fence that is open at the end of the text is closed. When a
    text grows, its pieces except the last stay the same, as far as Markdown allows. Blank text has no
    pieces.

    ``measure`` returns the size of a piece in the units of ``limit``; longer pieces should be larger.
    Fences and markup around a cut are omitted where they do not fit. With ``most``, only so many pieces are
    made, and little more of the text is scanned than they need. Raises ValueError if not even one character
    fits.
    """
    text = normal(text)
    if not text.strip():
        return []
    if len(text) <= 2 * limit and fences_are_closed(text):
        piece = trim(text)
        # A quote's last mark may have no text after it, which only the segments show.
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
    """Cut a text after at most ``longest`` characters: after a blank line, after a line, or anywhere."""
    if len(text) <= longest:
        return text, ""
    at = text.rfind("\n\n", longest // 2, longest) + 2
    if at < 2:
        at = text.rfind("\n", longest // 2, longest) + 1
    at = at or longest
    return text[:at], text[at:]


class _Splitter:
    """Splitter of one source. ``_reach`` is the estimated number of characters that fit."""

    def __init__(self, source: Source, limit: int, measure: Callable[[str], int]) -> None:
        self._source = source
        self._limit = limit
        self._measure = measure
        self._reach = max(limit, 1)
        self._sizes: dict[str, int] = {}

    def pieces(self) -> Iterator[str]:
        """Yield the pieces in order."""
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
        """Return the cuts around the next piece. The first is ``start``, perhaps without its insertions."""
        source = self._source
        first, last = bisect_right(source.starts, start.resume), len(source.segments) - 1
        furthest = self._furthest(start, range(first, last + 1), source.cut_before, source.starts)
        if furthest == last:
            return start, source.cut_before(last)
        if furthest >= first and (cut := self._best_cut(start, first, furthest)):
            return start, cut
        if cut := self._cut_within(start, source.segments[max(furthest, first - 1)]):
            return start, cut
        if furthest >= first:
            return start, source.cut_before(furthest)
        return self._cut_anywhere(start, source.segments[first - 1])

    def _best_cut(self, start: Cut, first: int, furthest: int) -> Cut | None:
        """Return the cheapest cut between segments that leaves the piece at least half full, or None."""
        source, full = self._source, self._source.cut_before(furthest)
        size = self._size(start, full)
        if 2 * size < self._limit:
            return None
        half = start.resume + (source.starts[furthest] - start.resume) * self._limit // (2 * max(size, 1))
        near = range(max(first, bisect_left(source.starts, half)), furthest + 1)
        best = min(near, key=lambda at: (source.segments[at].cost, -at), default=furthest)
        cut = source.cut_before(best)
        return cut if best == furthest or self._fits(start, cut) else full

    def _cut_within(self, start: Cut, segment: Segment) -> Cut | None:
        """Return a cut within a segment that does not fit as a whole, if it may be cut."""
        low = max(segment.soft, start.resume)
        if low >= segment.soft_end:
            return None
        cuts = range(low + 1, segment.soft_end)
        furthest = self._furthest(start, cuts, lambda at: cut_within(segment, at))
        if furthest <= low:
            return None
        if segment.code:
            cut = cut_within(segment, grapheme_start(self._source.text, furthest))
            return cut if cut.at > low and self._fits(start, cut) else cut_within(segment, furthest)
        half = max(low, start.resume + (furthest - start.resume) // 2)
        return self._cut_paragraph(start, segment, low, half, furthest)

    def _cut_paragraph(self, start: Cut, segment: Segment, low: int, half: int, furthest: int) -> Cut | None:
        """Return the best cut between ``half`` and ``furthest`` that fits together with its insertions."""
        text = self._source.text
        marks = start.marks if start.resume == low else ""
        begin = low - len(marks)
        window = marks + text[low : min(furthest + _LOOKAHEAD, segment.soft_end)]
        for found in paragraph_cuts(window, half - begin, furthest - begin):
            at = found.at + begin
            resume = self._after_quote_marks(at, found.resume + begin, segment)
            escape, replaced = escape_block_start(text[resume : resume + _LOOKAHEAD])
            if found.opening:
                escape, replaced = "", 0
            marks, end = found.opening + escape, resume + replaced
            cut = Cut(at, end, resume, segment.inside, segment.opening, found.closing, marks, within=True)
            if at > low and self._fits(start, cut):
                return cut
        return None

    def _after_quote_marks(self, at: int, resume: int, segment: Segment) -> int:
        """Return where the paragraph resumes: in a new line, after the marks of the quotes around it."""
        text = self._source.text
        if "\n" in text[at:resume]:
            for _ in filter(is_quote, segment.inside):
                match = _QUOTE_MARK.match(text, resume, segment.end)
                resume = match.end() if match else resume
        return resume

    def _cut_anywhere(self, start: Cut, segment: Segment) -> tuple[Cut, Cut]:
        """Return the cuts around a piece that ends at the limit, because no better cut fits."""
        bare = Cut(start.at, start.bare, start.bare, within=True)
        for begin in (bare,) if start.opening else (start, bare):
            end = max(segment.end, begin.resume + 1)
            furthest = self._furthest(begin, range(begin.resume + 1, end + 1), bare_cut)
            if furthest > begin.resume:
                return begin, bare_cut(furthest)
        raise ValueError(f"not even one character fits into {self._limit}")

    def _furthest(
        self, start: Cut, cuts: range, cut_at: Callable[[int], Cut], offsets: Sequence[int] | None = None
    ) -> int:
        """Return the last place in ``cuts`` up to which the piece fits, or the one before ``cuts``.

        ``offsets`` are the offsets of all places; by default places are offsets. A measured size shows
        about how many more characters fit, so few sizes are needed. No measured piece is much longer than
        what fits.
        """
        offsets = range(cuts.stop) if offsets is None else offsets
        good, bad, origin, reach = cuts.start - 1, cuts.stop, start.resume, self._reach
        tries = 0
        while bad - good > 1:
            tries += 1
            probe = bisect_right(offsets, origin + reach) - 1
            if tries > _ESTIMATES:
                probe = (good + bad) // 2 if bad < cuts.stop else good + (1 << (tries - _ESTIMATES))
            probe = max(good + 1, min(probe, bad - 1))
            length = offsets[probe] - origin
            if length > _MAX_STRIDE * reach:
                fits = self._fits(start, bare_cut(origin + _MAX_STRIDE * reach))
                reach, bad = (_MAX_STRIDE * reach, bad) if fits else (reach, probe)
                continue
            size = self._size(start, cut_at(probe))
            if size <= self._limit:
                good = probe
            else:
                bad = probe
            reach = max(1, min(length * self._limit // max(size, 1), 2 * length))
        if good >= cuts.start:
            self._reach = max(offsets[good] - origin, 1)
        return good
