"""Streamed HTTP for model backends: readers for SSE and NDJSON, and a stream with an idle timeout.

The readers are pure: bytes in, events out. ``EventStream`` reads a response through one of them and
returns all events that arrived together, so that the parser can process them together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from msgspec import Struct

from gateway.contract.errors import DeltaParseError, StreamAbortedError, StreamTimeoutError
from gateway.http_client import HttpError, HttpResponse

TransportKind = Literal["sse", "ndjson"]

LINE_LIMIT = 8 * 1024 * 1024
"""Most bytes of one line and of one event: image models send a whole image in one event."""
STREAM_LIMIT = 64 * 1024 * 1024
"""Most bytes of a whole stream."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class StreamEvent(Struct, frozen=True, gc=False):
    """One event of a stream: its payload, and its name if the transport has names."""

    data: bytes
    name: bytes = b""


class EventReader(Protocol):
    """Turns the bytes of a stream into events. Raises DeltaParseError if a limit is exceeded."""

    @property
    def saw_unknown(self) -> bool:
        """True if the stream had a line that the transport does not define."""
        ...

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that ``chunk`` completes."""
        ...

    def finish(self) -> list[StreamEvent]:
        """Return the event that the end of the stream completes, if there is one."""
        ...


class LineReader:
    """Splits bytes into lines at LF, CRLF and CR, independent of chunk borders."""

    __slots__ = ("_after_cr", "_limit", "_open", "_size")

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._open: list[bytes] = []
        self._size = 0
        self._after_cr = False

    @property
    def at_line_start(self) -> bool:
        """True if the last line is complete and no byte followed it."""
        return not self._open and not self._after_cr

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that ``chunk`` completes, without their ends."""
        if self._after_cr or b"\r" in chunk:
            chunk = self._only_lf(chunk)
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._open:
            lines[0] = self._close(lines[0])
        if rest:
            self._open.append(rest)
            self._size += len(rest)
        if self._size > self._limit or (lines and max(map(len, lines)) > self._limit):
            raise DeltaParseError(f"the stream has a line of more than {self._limit} bytes")
        return lines

    def finish(self) -> bytes:
        """Return the incomplete last line."""
        return self._close(b"")

    def _close(self, end: bytes) -> bytes:
        line = b"".join((*self._open, end))
        self._open.clear()
        self._size = 0
        return line

    def _only_lf(self, chunk: bytes) -> bytes:
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class SSEReader:
    """Reads server-sent events: multi-line data is joined, comments are skipped, names are kept.

    An incomplete last event counts: several backends omit the last blank line.
    """

    __slots__ = ("_at_event_start", "_data", "_limit", "_lines", "_name", "_size", "_started", "saw_unknown")

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._lines = LineReader(limit)
        self._limit = limit
        self._data: list[bytes] = []
        self._name = b""
        self._size = 0
        self._started = False
        self._at_event_start = True
        self.saw_unknown = False

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that ``chunk`` completes."""
        # Complete one-line events, as most backends send for every token, are read five times as fast.
        if self._at_event_start and chunk.startswith(b"data: ") and chunk.endswith(b"\n\n"):
            size = len(chunk)
            if b"\r" not in chunk and size <= self._limit:
                if chunk.find(b"\n") == size - 2:
                    return [StreamEvent(chunk[6:-2])]
                found = chunk[6:-2].split(b"\n\ndata: ")
                if chunk.count(b"\n") == 2 * len(found):
                    return [StreamEvent(data) for data in found]
        return self._by_line(chunk)

    def _by_line(self, chunk: bytes) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        for line in self._lines.feed(chunk):
            if line.startswith(b"data: "):
                self._add(line[6:])
            elif line:
                self._field(line)
            else:
                self._dispatch(events)
        self._at_event_start = not self._data and not self._name and self._lines.at_line_start
        return events

    def finish(self) -> list[StreamEvent]:
        """Return the incomplete last event, if there is one."""
        events: list[StreamEvent] = []
        if line := self._lines.finish():
            self._field(line)
        self._dispatch(events)
        return events

    def _add(self, data: bytes) -> None:
        self._data.append(data)
        self._size += len(data)
        if self._size > self._limit:
            raise DeltaParseError(f"the stream has an event of more than {self._limit} bytes")

    def _field(self, line: bytes) -> None:
        if not self._started:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        self._started = True
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._add(value)
        elif field == b"event":
            self._name = value
        elif field not in (b"", b"id", b"retry"):
            self.saw_unknown = True

    def _dispatch(self, events: list[StreamEvent]) -> None:
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            events.append(StreamEvent(data, self._name))
            self._data.clear()
            self._size = 0
        self._name = b""


class NDJSONReader:
    """Reads one JSON text per line; skips blank lines; the last line needs no end."""

    __slots__ = ("_lines",)
    saw_unknown = False

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._lines = LineReader(limit)

    def feed(self, chunk: bytes) -> list[StreamEvent]:
        """Return the events that ``chunk`` completes."""
        return [StreamEvent(text) for line in self._lines.feed(chunk) if (text := line.strip())]

    def finish(self) -> list[StreamEvent]:
        """Return the incomplete last line, if there is one."""
        text = self._lines.finish().strip()
        return [StreamEvent(text)] if text else []


Transport = TransportKind | Callable[[], EventReader]
"""The framing of a stream: a standard one, or a factory of readers."""


def event_reader(kind: Transport) -> EventReader:
    """Make a reader for one stream."""
    if callable(kind):
        return kind()
    return SSEReader() if kind == "sse" else NDJSONReader()


class EventStream:
    """The events of a streamed response, in the groups in which they arrived.

    ``idle`` is the timeout in seconds without a byte, comments included; it runs only during a read. Raises
    StreamTimeoutError, StreamAbortedError (the connection broke) or DeltaParseError.
    """

    __slots__ = ("_ended", "_idle", "_left", "_reader", "_response", "_seen")

    def __init__(
        self,
        response: HttpResponse,
        kind: Transport,
        idle: float,
        limit: int = STREAM_LIMIT,
    ) -> None:
        self._response = response
        self._reader = event_reader(kind)
        self._idle = idle
        self._left = limit
        self._ended = False
        self._seen = False

    async def read(self) -> list[StreamEvent] | None:
        """Return the events of the next read (maybe none), or None once the stream has ended."""
        if self._ended:
            return None
        try:
            chunk = await self._response.read(self._idle)
        except TimeoutError as error:
            raise StreamTimeoutError(f"nothing arrived for {self._idle:g} s") from error
        except HttpError as error:
            raise StreamAbortedError(f"the connection broke: {error}") from error
        self._left -= len(chunk)
        if self._left < 0:
            raise DeltaParseError("the stream exceeds the size limit of an answer")
        self._ended = not chunk
        events = self._reader.feed(chunk) if chunk else self._reader.finish()
        if events:
            self._seen = True
        elif self._ended and self._reader.saw_unknown and not self._seen:
            raise DeltaParseError("the response is not an event stream")
        return events

    async def release(self) -> None:
        """Leave the rest of the body, so that the connection can be used again."""
        await self._response.release()

    def close(self) -> None:
        """End the stream at once. Keeps the connection if the body was read to its end."""
        self._response.close()
