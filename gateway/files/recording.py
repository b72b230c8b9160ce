"""The duration of a voice recording and the packet sizes that show where it is loud, without decoding it.

Only Opus in an Ogg file is read, the format of voice messages on Telegram and Discord.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from msgspec import Struct

_PAGE = struct.Struct("<4sBxqI8xB")
"""An Ogg page: magic, version, time in samples (-1: no packet ends here), stream, number of laces."""
_RATE = 48_000
_HEAD_BYTES = 19
_HEADERS = 2
"""Packets at the beginning that hold metadata instead of sound."""


class Recording(Struct, frozen=True):
    """An Opus recording in an Ogg file.

    ``sizes`` are the sizes in bytes of its packets, in order. All packets have the same duration, and an
    encoder spends more bytes on louder ones.
    """

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
    """Return the recording in a file; None for other formats and for truncated files."""
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
    """Yield the pages in order, up to the first incomplete one."""
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
    """Yield the sizes of packets. A packet ends with the first lace below 255."""
    size = 0
    for lace in laces:
        size += lace
        if lace < 255:
            yield size
            size = 0
