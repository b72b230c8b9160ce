"""What is known of a recording without hearing it: how long it is, and roughly where it is loud.

Only Opus in an Ogg file is read, which is what messengers call a voice message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

_PAGE = struct.Struct("<4sBxqI8xB")
"""An Ogg page: its mark, version, time in samples (-1: none ends here), stream, number of laces."""
_RATE = 48_000
_HEAD_BYTES = 19
_HEADERS = 2
"""Packets at the beginning that are no sound."""


class Recording(Struct, frozen=True):
    """Opus in an Ogg file. ``sizes`` are the bytes of its packets, in order, all of which last equally long:
    an encoder spends more of them where there is more to hear."""

    seconds: float
    sizes: tuple[int, ...]


class _Page(Struct, frozen=True, gc=False):
    time: int
    stream: int
    laces: bytes
    start: int

    @property
    def end(self) -> int:
        return self.start + sum(self.laces)


def recording_of(data: bytes) -> Recording | None:
    """The recording that a file holds; None for anything else, and for one that is broken off."""
    pages = [*_pages(data)]
    if not pages or pages[-1].end != len(data) or len({page.stream for page in pages}) != 1:
        return None
    head = data[pages[0].start : pages[0].end]
    if not head.startswith(b"OpusHead") or len(head) < _HEAD_BYTES:
        return None
    samples = max(page.time for page in pages) - int.from_bytes(head[10:12], "little")
    sizes = tuple(_packets(b"".join(page.laces for page in pages)))[_HEADERS:]
    return Recording(samples / _RATE, sizes) if samples > 0 and sizes else None


def _pages(data: bytes) -> Iterator[_Page]:
    """The pages in order; it ends where none is whole."""
    at = 0
    while at + _PAGE.size <= len(data):
        mark, version, time, stream, count = _PAGE.unpack_from(data, at)
        start = at + _PAGE.size + count
        page = _Page(time, stream, data[at + _PAGE.size : start], start)
        if mark != b"OggS" or version or page.end > len(data):
            return
        yield page
        at = page.end


def _packets(laces: bytes) -> Iterator[int]:
    """The sizes of packets: one ends with the first lace that is not full."""
    size = 0
    for lace in laces:
        size += lace
        if lace < 255:
            yield size
            size = 0
