"""Amazon's binary event stream: lengths, their checksum, headers, a payload, and a checksum of the frame.

botocore can parse it too, at several times the cost per token.
"""

from __future__ import annotations

import struct
from zlib import crc32

from gateway.provider_http import LINE_LIMIT, StreamEvent

EXCEPTION = b"!"
"""The prefix of the name of an event that reports a failure."""
UNREADABLE = b"?"
"""The name of an event that cannot be parsed."""

_PRELUDE = struct.Struct("!III")
_CHECKSUM = struct.Struct("!I")
_LENGTH = struct.Struct("!H")
_LEAST = _PRELUDE.size + _CHECKSUM.size
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""Bytes of a header's value by its type, if fixed; values of types 6 and 7 begin with their length."""
_KNOWN_HEADERS = 64


class BrokenFrameError(Exception):
    """The bytes are not a valid event."""


class EventReader:
    """Splits a stream into events, each named by its kind, or ``EXCEPTION`` and the kind of failure."""

    __slots__ = ("_names", "_rest")
    saw_unknown = False

    def __init__(self) -> None:
        self._rest = b""
        self._names: dict[bytes, bytes] = {}

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that ``chunk`` completes; the last one is ``UNREADABLE`` after invalid bytes."""
        data = self._rest + chunk if self._rest else chunk
        events: list[StreamEvent] = []
        at = 0
        try:
            while (end := _end_of(data, at)) is not None:
                events.append(self._event(data[at:end]))
                at = end
        except BrokenFrameError as error:
            events.append(StreamEvent(str(error).encode(), UNREADABLE))
            at = len(data)
        self._rest = data[at:]
        return events

    def finish(self) -> list[StreamEvent]:
        """Return nothing: an incomplete event is dropped."""
        return []

    def _event(self, frame: bytes) -> StreamEvent:
        (given,) = _CHECKSUM.unpack_from(frame, len(frame) - _CHECKSUM.size)
        if crc32(frame[: -_CHECKSUM.size]) != given:
            raise BrokenFrameError("an event's checksum is wrong")
        begin = _PRELUDE.size + _PRELUDE.unpack_from(frame)[1]
        headers = frame[_PRELUDE.size : begin]
        name = self._names.get(headers)
        if name is None:
            name = _name_in(headers)
            # Events of one kind have the same headers, and there are few kinds.
            if len(self._names) < _KNOWN_HEADERS:
                self._names[headers] = name
        return StreamEvent(frame[begin : -_CHECKSUM.size], name)


def _end_of(data: bytes, at: int) -> int | None:
    """Return the end of the event that begins at ``at``; None if it is incomplete."""
    if len(data) - at < _PRELUDE.size:
        return None
    total, headers, given = _PRELUDE.unpack_from(data, at)
    if crc32(data[at : at + _PRELUDE.size - _CHECKSUM.size]) != given:
        raise BrokenFrameError("the checksum of an event's lengths is wrong")
    if not _LEAST + headers <= total <= LINE_LIMIT:
        raise BrokenFrameError(f"an event declares {total} bytes, {headers} of them headers")
    return at + total if len(data) - at >= total else None


def _name_in(headers: bytes) -> bytes:
    found = _read(headers)
    failure = found.get(b":exception-type") or found.get(b":error-code")
    return found.get(b":event-type", b"") if failure is None else EXCEPTION + failure


def _read(headers: bytes) -> dict[bytes, bytes]:
    """Return the raw values of the headers by name."""
    found: dict[bytes, bytes] = {}
    at = 0
    try:
        while at < len(headers):
            kind_at = at + 1 + headers[at]
            name, kind, at = headers[at + 1 : kind_at], headers[kind_at], kind_at + 1
            if kind in (6, 7):
                size, at = _LENGTH.unpack_from(headers, at)[0], at + _LENGTH.size
            else:
                size = _SIZES[kind]
            found[name], at = headers[at : at + size], at + size
    except (IndexError, KeyError, struct.error):
        raise BrokenFrameError("an event's headers cannot be read") from None
    if at > len(headers):
        raise BrokenFrameError("an event's headers are longer than declared")
    return found
