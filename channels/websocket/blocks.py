"""Cuts a growing Markdown text into blocks that can no longer change, each rendered once.

A block is final when later text cannot alter it: a paragraph at its blank line, a fence at its closing
line, a list when something else begins. The open tail alone is parsed again, and only when a line ends
that may close it, so the work stays in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from markdown_it.token import Token
from msgspec import Struct

from channels.websocket.markdown_html import block_html, top_level_blocks

_LINE_END = re.compile(r"\r\n|\n|\r(?!\Z)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_LIST = re.compile(r" {0,3}([-+*]|\d{1,9}[.)])(?:\s+|$)")
_SPECIAL = re.compile(r" {0,3}(?:[#>`~+*_=|:-]|\d)")

# A look that closed nothing is repeated only when the tail has grown by a quarter, beyond this size.
_ALWAYS_LOOK = 1_000
_GROWTH = 1.25


class Block(Struct, frozen=True):
    """A finished piece of a text: its number, its safe HTML, and the code points of text up to its end."""

    index: int
    html: str
    upto: int


class BlockRenderer:
    """Takes the text of one part as it comes and gives back the blocks that became final.

    The HTML of all blocks, ``finish`` included, is the same for every way the text was cut, and equal to
    ``render_html`` of the whole.
    """

    def __init__(self) -> None:
        self.looked_at = 0
        """Code points given to the parser so far: what the work is in proportion to."""
        self._index = 0
        self._upto = 0
        self._pending: list[str] = []
        self._tail = _Tail()

    def feed(self, chunk: str) -> list[Block]:
        """More text; returns the blocks it closed, in order."""
        self._pending.append(chunk)
        if "\n" not in chunk and "\r" not in chunk:
            return []
        return self._take_lines()

    def finish(self) -> list[Block]:
        """The text is complete; returns what was still open."""
        blocks = self._take_lines()
        if rest := self._pending.pop():
            self._tail.add(rest.removesuffix("\r"), len(rest))
            self._tail.ends_in_line = not rest.endswith("\r")
        return blocks + self._close(final=True)

    def _take_lines(self) -> list[Block]:
        """Move the pending lines that have ended into the tail."""
        text = "".join(self._pending)
        blocks: list[Block] = []
        start = 0
        for match in _LINE_END.finditer(text):
            if self._tail.add(text[start : match.start()], match.end() - start):
                blocks += self._close(final=False)
            start = match.end()
        self._pending = [text[start:]]
        return blocks

    def _close(self, final: bool) -> list[Block]:
        text = self._tail.text()
        self.looked_at += len(text)
        groups = top_level_blocks(text)
        if groups and not final and not self._tail.closes(groups[-1][0]):
            groups.pop()
        blocks = [self._block(group) for group in groups]
        self._tail.looked(closed=bool(blocks))
        return blocks

    def _block(self, group: list[Token]) -> Block:
        end = group[0].map[1] if group[0].map else 0
        self._upto += self._tail.cut(end)
        self._index += 1
        return Block(self._index - 1, block_html(group), self._upto)


class _Tail:
    """The lines that are not in a finished block yet, and when it is worth looking at them again."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._raw: list[int] = []
        self._cut = 0
        self._size = 0
        self._wait = 0.0
        self._may_close: Callable[[str, str], bool] | None = None
        self.ends_in_line = False

    def add(self, line: str, raw_length: int) -> bool:
        """Append a line (``raw_length`` counts its line end too); true if a block may have ended with it."""
        line = line.replace("\0", "\ufffd")
        before = self._lines[-1] if self._lines else ""
        self._lines.append(line)
        self._raw.append(raw_length)
        self._size += raw_length
        if self._may_close is None:
            self._may_close = _watch(line) if line.strip(" \t") else None
            return self._may_close is not None and not _FENCE.match(line)
        return self._size >= self._wait and self._may_close(line, before)

    def text(self) -> str:
        return "\n".join(self._lines) + ("" if self.ends_in_line else "\n")

    def closes(self, opening: Token) -> bool:
        """Whether the last block, known by its first token, cannot change any more."""
        end = opening.map[1] if opening.map else 0
        last = self._lines[end - 1] if 0 < end <= len(self._lines) else ""
        match opening.type:
            case "heading_open" | "hr":
                return True
            case "fence":
                return end - 1 > (opening.map or [0])[0] and _closing(opening.markup, last)
            case "paragraph_open" | "table_open" | "blockquote_open":
                return end < len(self._lines)
            case _:
                return False

    def cut(self, end: int) -> int:
        """Give up the lines before ``end`` and the blank ones after; returns how much text that was."""
        while end < len(self._lines) and not self._lines[end].strip(" \t"):
            end += 1
        length = sum(self._raw[self._cut : end])
        self._cut = end
        return length

    def looked(self, closed: bool) -> None:
        """A look is over: drop what was cut, and decide what the next one waits for."""
        del self._lines[: self._cut], self._raw[: self._cut]
        self._cut = 0
        self._size = sum(self._raw) if closed else self._size
        self._wait = self._size * _GROWTH if self._size > _ALWAYS_LOOK else 0
        if closed:
            first = next((line for line in self._lines if line.strip(" \t")), None)
            self._may_close = _watch(first) if first is not None else None


def _watch(first: str) -> Callable[[str, str], bool]:
    """For a tail that begins with this line: the test (line, line before) that says when to look again."""
    if fence := _FENCE.match(first):
        return lambda line, before: _closing(fence[1], line)
    if item := _LIST.match(first):
        width, mark = item.end(), item[1][-1]
        return lambda line, before: _leaves_list(line, before, width, mark)
    if first.startswith((" " * 4, "\t")):
        return lambda line, before: bool(line.strip()) and not line.startswith((" " * 4, "\t"))
    if first.lstrip(" ").startswith(">"):
        return lambda line, before: not line.lstrip(" ").startswith(">")
    return lambda line, before: not line.strip() or _SPECIAL.match(line) is not None


def _closing(opening: str, line: str) -> bool:
    """Whether the line closes a fence that was opened with this run of marks; a tab counts as too far in."""
    bare = line.lstrip(" ")
    run = bare.rstrip(" \t")
    return len(line) - len(bare) < 4 and len(run) >= len(opening) and run == opening[0] * len(run)


def _leaves_list(line: str, before: str, width: int, mark: str) -> bool:
    """Not inside an item, not the next item, and not just a lazy line of the paragraph above."""
    bare = line.lstrip(" ")
    if not bare or len(line) - len(bare) >= width:
        return False
    item = _LIST.match(line)
    if item and item[1][-1] == mark:
        return False
    return not before.strip() or _SPECIAL.match(line) is not None
