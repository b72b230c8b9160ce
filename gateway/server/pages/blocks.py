"""Incremental rendering: cuts a growing Markdown text into final blocks, each rendered once.

A block is final when later text cannot alter it: a paragraph at its blank line, a fence at its closing line,
a list when another block begins. Only the open tail is parsed again, and only when a line ends that may close
it, so that the work stays proportional to the text. A block that would occupy the event loop for too long is
cut, and the text after the cut is parsed as a new block; code is not cut, but not parsed either.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from html import escape

from markdown_it.token import Token
from msgspec import Struct

from gateway.server.pages.markdown_html import block_html, top_level_blocks

_LINE_END = re.compile(r"\r\n|\n|\r(?!\Z)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_LIST = re.compile(r" {0,3}([-+*]|\d{1,9}[.)])(?:\s+|$)")
_SPECIAL = re.compile(r" {0,3}(?:[#>`~+*_=|:$\\-]|\d)")
_FORMULA_ENDS = ("$$", "\\]")

# A parse that closed nothing is repeated only when the tail has grown by a quarter, beyond this size.
_SMALL_TAIL = 300
_GROWTH = 1.25

_LONGEST_LINE = 8_000
"""Maximum characters of a line outside of code; a longer one is shown as plain text."""
_LONGEST_NESTED, _MAX_NESTED_LINES = 8_000, 150
"""Maximum characters and lines of a list or quote before it is cut. A line costs about 150 µs."""
_LONGEST_OPEN, _MAX_OPEN_LINES = 16_000, 500
"""Maximum characters and lines of other blocks before they are cut. A line costs about 50 µs."""
_LONGEST_PARSED_CODE = 8_000
_MAX_HIGHLIGHTED = 100_000
"""Maximum characters of highlighted code in one text."""
_MAX_CACHED = 4_000_000
"""Size of the cache for finished blocks and their HTML, in characters, for all clients together."""
_LINES_BETWEEN_PAUSES = 1_000


class Block(Struct, frozen=True):
    """A final block of a text: its number, its safe HTML, and the code points of text up to its end."""

    index: int
    html: str
    upto: int


class BlockRenderer:
    """Renderer for the text of one part: takes pieces and returns the blocks that became final.

    The HTML of all blocks, ``finish`` included, does not depend on how the text was cut into pieces, and
    equals ``render_html`` of the whole text. Both methods yield None between blocks, where the caller may let
    other tasks run. They have to be exhausted before the next call.
    """

    def __init__(self) -> None:
        self.parsed_size = 0
        """Number of code points given to the parser so far, as a measure of work."""
        self.parse_sizes: list[int] = []
        """Numbers of code points in each parse, which are limited so that the event loop is not blocked."""
        self._highlighted = 0
        self._index = 0
        self._upto = 0
        self._pending: list[str] = []
        self._tail = _Tail()

    def feed(self, chunk: str) -> Iterator[Block | None]:
        """Add text. Yields the blocks that it completed, in order."""
        self._pending.append(chunk)
        if "\n" not in chunk and "\r" not in chunk:
            return iter(())
        return self._take_lines()

    def finish(self) -> Iterator[Block | None]:
        """End the text. Yields the blocks that were still open."""
        yield from self._take_lines()
        if rest := self._pending.pop():
            line = rest.removesuffix("\r")
            if self._is_too_long(line):
                yield from self._long_line(line, len(rest))
            else:
                self._tail.add(line, len(rest))
                self._tail.ends_in_line = not rest.endswith("\r")
        yield from self._close(final=True)

    def _take_lines(self) -> Iterator[Block | None]:
        """Move the pending lines that have ended into the tail."""
        text = "".join(self._pending)
        self._pending = []
        start = 0
        for number, match in enumerate(_LINE_END.finditer(text), 1):
            line, length = text[start : match.start()], match.end() - start
            start = match.end()
            if self._is_too_long(line):
                yield from self._long_line(line, length)
            elif self._tail.add(line, length):
                yield from self._close(final=False)
                yield None
            if self._tail.is_too_long():
                yield from self._close(final=True, upto=self._tail.cut_line())
                yield None
            if number % _LINES_BETWEEN_PAUSES == 0:
                yield None
        self._pending = [text[start:]]

    def _is_too_long(self, line: str) -> bool:
        return len(line) > _LONGEST_LINE and not self._tail.in_code

    def _long_line(self, line: str, length: int) -> Iterator[Block | None]:
        yield from self._close(final=True)
        yield None
        self._upto += self._tail.cut(0) + length
        self._tail.finish_parse(closed=True)
        self._index += 1
        shown = escape(line.strip().replace("\0", "\ufffd"))
        yield Block(self._index - 1, f"<p>{shown}</p>\n", self._upto)

    def _close(self, final: bool, upto: int | None = None) -> Iterator[Block | None]:
        """Yield the final blocks; of a tail that is cut, only its lines up to ``upto``."""
        text = self._tail.text(upto)
        self.parsed_size += len(text)
        if code := self._tail.long_code():
            yield self._block([code])
            self._tail.finish_parse(closed=True)
            return
        self.parse_sizes.append(len(text))
        groups = top_level_blocks(text, growing=not final)
        if groups and not final and not self._tail.closes(groups[-1][0]):
            last = groups.pop()
            # If this formula is never closed, its lines belong to the block before it.
            if groups and last[0].type == "math_block":
                groups.pop()
        for group in groups:
            yield self._block(group)
        self._tail.finish_parse(closed=bool(groups))

    def _block(self, group: list[Token]) -> Block:
        begin, end = group[0].map or (0, 0)
        code = sum(len(token.content) for token in group if token.type == "fence")
        highlight = self._highlighted + code <= _MAX_HIGHLIGHTED
        self._highlighted += code if highlight else 0
        key = group[0].type, highlight, self._tail.lines(begin, end)
        html = _block_cache().get(key)
        if html is None:
            html = block_html(group, highlight=highlight)
            _block_cache().put(key, html)
        self._upto += self._tail.cut(end)
        self._index += 1
        return Block(self._index - 1, html, self._upto)


def render_html(markdown: str) -> str:
    """Return the whole text as HTML."""
    return "".join(block.html for block in rendered_blocks(markdown) if block is not None)


@lru_cache(maxsize=64)
def panel_blocks(markdown: str) -> tuple[str, ...]:
    """Return the HTML of the blocks of a short text, which many clients get."""
    return tuple(block.html for block in rendered_blocks(markdown) if block is not None)


def rendered_blocks(markdown: str) -> Iterator[Block | None]:
    """Yield the blocks of a whole text, and None where the caller may let other tasks run."""
    renderer = BlockRenderer()
    yield from renderer.feed(markdown)
    yield from renderer.finish()


_Key = tuple[str, bool, str]


class _BlockCache:
    """Cache of the HTML of recently used blocks, by their type and source."""

    def __init__(self) -> None:
        self._html: OrderedDict[_Key, str] = OrderedDict()
        self._size = 0

    def get(self, key: _Key) -> str | None:
        html = self._html.get(key)
        if html is not None:
            self._html.move_to_end(key)
        return html

    def put(self, key: _Key, html: str) -> None:
        self._html[key] = html
        self._size += len(key[2]) + len(html)
        while self._size > _MAX_CACHED:
            (_, _, source), old = self._html.popitem(last=False)
            self._size -= len(source) + len(old)


def clear_block_cache() -> None:
    """Clear the cache of finished blocks, so that each is rendered again; for measurements."""
    _block_cache.cache_clear()


@cache
def _block_cache() -> _BlockCache:
    return _BlockCache()


class _Tail:
    """The lines that are not in a final block yet, and the condition for parsing them again."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._raw: list[int] = []
        self._cut = 0
        self._size = 0
        self._next_size = 0.0
        self._may_close: Callable[[str, str], bool] | None = None
        self._first = ""
        self.in_code = False
        """Return whether the tail begins with a fence."""
        self.ends_in_line = False

    def add(self, line: str, raw_length: int) -> bool:
        """Append a line; ``raw_length`` includes the line end. Returns whether the line may end a block."""
        line = line.replace("\0", "\ufffd")
        before = self._lines[-1] if self._lines else ""
        self._lines.append(line)
        self._raw.append(raw_length)
        self._size += raw_length
        if self._may_close is None:
            self._begin(line if line.strip(" \t") else None)
            return self._may_close is not None and not self.in_code
        # A blank line always ends a paragraph, so this parse always closes it.
        due = self._size >= self._next_size or (self._may_close is _may_end_paragraph and not line.strip())
        return due and self._may_close(line, before)

    def _begin(self, first: str | None) -> None:
        """Set the first non-blank line of the tail, which determines when to parse next."""
        self._first = first or ""
        self._may_close = None if first is None else _block_end_test(first)
        self.in_code = first is not None and _FENCE.match(first) is not None

    def is_too_long(self) -> bool:
        """Return whether the tail has to be cut now."""
        if self.in_code or self._may_close is None:
            return False
        nested = _LIST.match(self._first) is not None or self._first.lstrip(" ").startswith(">")
        longest, lines = (_LONGEST_NESTED, _MAX_NESTED_LINES) if nested else (_LONGEST_OPEN, _MAX_OPEN_LINES)
        return self._size > longest or len(self._lines) > lines

    def cut_line(self) -> int:
        """Return the line before which to cut: the last that begins a list item, otherwise the end."""
        if _LIST.match(self._first):
            for number in range(len(self._lines) - 1, 0, -1):
                if not self._lines[number].startswith(" ") and _LIST.match(self._lines[number]):
                    return number
        return len(self._lines)

    def lines(self, begin: int, end: int) -> str:
        return "\n".join(self._lines[begin:end])

    def text(self, upto: int | None = None) -> str:
        ends_in_line = self.ends_in_line and upto is None
        return "\n".join(self._lines[:upto]) + ("" if ends_in_line else "\n")

    def long_code(self) -> Token | None:
        """Return a tail that is one long fence as its token, because the parser would take too long."""
        opening = _FENCE.match(self._first)
        if opening is None or self._size <= _LONGEST_PARSED_CODE:
            return None
        first = self._lines.index(self._first)
        closed = len(self._lines) - first > 1 and _closes_fence(opening[1], self._lines[-1])
        indent = len(self._first) - len(self._first.lstrip(" "))
        code = [
            line[min(indent, len(line) - len(line.lstrip(" "))) :]
            for line in self._lines[first + 1 : len(self._lines) - closed]
        ]
        token = Token("fence", "code", 0, markup=opening[1], info=self._first[opening.end() :].strip())
        token.content = "".join(line + "\n" for line in code)
        token.map = [first, len(self._lines)]
        return token

    def closes(self, opening: Token) -> bool:
        """Return whether the last block, given by its first token, is final."""
        end = opening.map[1] if opening.map else 0
        last = self._lines[end - 1] if 0 < end <= len(self._lines) else ""
        match opening.type:
            case "heading_open" | "hr":
                return True
            case "math_block":
                return bool(opening.meta["closed"])
            case "fence":
                return end - 1 > (opening.map or [0])[0] and _closes_fence(opening.markup, last)
            case "paragraph_open" | "table_open" | "blockquote_open":
                return end < len(self._lines)
            case _:
                return False

    def cut(self, end: int) -> int:
        """Drop the lines before ``end`` and the blank lines after them. Returns the length of their text."""
        while end < len(self._lines) and not self._lines[end].strip(" \t"):
            end += 1
        length = sum(self._raw[self._cut : end])
        self._cut = end
        return length

    def finish_parse(self, closed: bool) -> None:
        """Finish a parse: drop the lines that were cut, and choose the condition for the next parse."""
        del self._lines[: self._cut], self._raw[: self._cut]
        self._cut = 0
        self._size = sum(self._raw) if closed else self._size
        self._next_size = self._size * _GROWTH if self._size > _SMALL_TAIL else 0
        if closed:
            self._begin(next((line for line in self._lines if line.strip(" \t")), None))


def _block_end_test(first: str) -> Callable[[str, str], bool]:
    """Return the test (line, line before) of whether a line may end a block that begins with ``first``."""
    if fence := _FENCE.match(first):
        return lambda line, before: _closes_fence(fence[1], line)
    if item := _LIST.match(first):
        width, mark = item.end(), item[1][-1]
        return lambda line, before: _ends_list(line, before, width, mark)
    if first.startswith((" " * 4, "\t")):
        return lambda line, before: bool(line.strip()) and not line.startswith((" " * 4, "\t"))
    if first.lstrip(" ").startswith(">"):
        return lambda line, before: not line.lstrip(" ").startswith(">")
    return _may_end_paragraph


def _may_end_paragraph(line: str, before: str) -> bool:
    """Return whether a line may end a paragraph, or a formula at the position of a paragraph."""
    special = not line.strip() or _SPECIAL.match(line) is not None
    return special or any(end in line for end in _FORMULA_ENDS)


def _closes_fence(opening: str, line: str) -> bool:
    """Return whether the line closes a fence opened with this run of marks; a tab is too much indentation."""
    bare = line.lstrip(" ")
    run = bare.rstrip(" \t")
    return len(line) - len(bare) < 4 and len(run) >= len(opening) and run == opening[0] * len(run)


def _ends_list(line: str, before: str, width: int, mark: str) -> bool:
    """Return whether a line is outside the item, not the next item, and not a lazy continuation line."""
    bare = line.lstrip(" ")
    if not bare or len(line) - len(bare) >= width:
        return False
    item = _LIST.match(line)
    if item and item[1][-1] == mark:
        return False
    return not before.strip() or _SPECIAL.match(line) is not None
