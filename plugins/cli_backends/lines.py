"""Newline-delimited JSON, as it comes out of a pipe: in pieces, with blanks and banners between."""

from __future__ import annotations

from typing import Any, cast

import msgspec

LINE_BYTES = 10 * 1024 * 1024
"""Bytes of one line. A longer one is no message."""


class OverlongLineError(Exception):
    """A line does not end."""


class LineSplitter:
    """Cuts a stream of bytes into lines. Blank ones are left out."""

    def __init__(self, limit: int = LINE_BYTES) -> None:
        self._limit = limit
        self._open: list[bytes] = []
        self._length = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in this piece. Raises OverlongLineError; what was begun is dropped then."""
        first, *rest = data.split(b"\n")
        self._open.append(first)
        self._length += len(first)
        if not rest:
            self._check(self._length)
            return []
        whole = [b"".join(self._open), *rest[:-1]]
        self._open, self._length = [rest[-1]], len(rest[-1])
        self._check(max(map(len, (*whole, rest[-1]))))
        return [line for line in whole if line.strip()]

    def close(self) -> list[bytes]:
        """The last line, if the stream ended without a line end."""
        last = b"".join(self._open)
        self._open, self._length = [], 0
        return [last] if last.strip() else []

    def _check(self, length: int) -> None:
        if length > self._limit:
            self._open, self._length = [], 0
            raise OverlongLineError(f"a line of more than {self._limit} bytes")


def message_in(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line, or None for anything else, such as a banner."""
    try:
        value: object = msgspec.json.decode(line.removeprefix(b"\xef\xbb\xbf").strip())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None
