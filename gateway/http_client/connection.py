"""One HTTP/1.1 connection: sends a request, parses the response, and reports when it can be used again.

llhttp (through httptools) parses, and refuses what proxies and servers read in different ways: both
Content-Length and Transfer-Encoding, repeated lengths, folded headers, lines without CR. This module adds
limits of size, time and memory.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from typing import Any, cast

import httptools

from gateway.http_client.interface import ConnectionLostError, HttpError, MalformedResponseError

OVERHEAD_LIMIT = 64 * 1024
"""Most bytes of a response without any of its body: headers, chunk extensions, trailers."""
HEADER_COUNT_LIMIT = 256
BUFFER_LIMIT = 128 * 1024
"""Bytes of a body that wait for their reader before the connection is read no further."""

_SLICE = 64 * 1024
_STREAMED_FROM = 1024 * 1024
_MOST_INFLATED = 256 * 1024
"""Most bytes that one read decompresses: the reader checks its own limit after each."""
_RELEASE_SECONDS = 0.05
_NO_BODY = (204, 304)
_GZIP = 16 + zlib.MAX_WBITS


class Response:
    """A response whose body arrives. It outlives its use of the connection."""

    __slots__ = (
        "_connection",
        "_encoding",
        "_inflate",
        "_pieces",
        "_released",
        "complete",
        "error",
        "headers",
        "size",
        "status",
    )

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pieces: list[bytes] = []
        self._encoding = ""
        self._inflate: Any = None
        self._released = False
        self.size = 0
        """Bytes that wait for the reader."""
        self.complete = False
        self.error: HttpError | None = None
        self.status = 0
        self.headers: Mapping[str, str] = {}

    def append(self, piece: bytes) -> None:
        """Add bytes of the body."""
        self._pieces.append(piece)
        self.size += len(piece)

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Set the head of the response."""
        self.status, self.headers = status, headers
        if encoding := headers.get("content-encoding"):
            self._encoding = encoding.strip().lower().replace("x-gzip", "gzip").replace("identity", "")

    async def read(self, idle: float | None = None) -> bytes:
        """Return all bytes that arrived since the last call, or wait for some; empty at the end."""
        while True:
            if self._pieces:
                data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
                self._pieces = []
                self.size = 0
                if self._encoding:
                    data = self._decoded(data)
                self._connection.resume(self)
                if data:
                    return data
            elif self.error is not None:
                raise self.error
            elif self.complete:
                return b""
            else:
                await self._connection.expect(idle)

    async def release(self) -> None:
        """Detach the connection: it is reused if the body ends soon."""
        if not self.complete:
            self._released = True
            self._connection.close_later(self)

    def close(self) -> None:
        """End the response at once, unless it is complete or released."""
        if not self._released:
            self._connection.close(self)

    def _decoded(self, data: bytes) -> bytes:
        # The encoding is refused here and not with the headers: the status of an error says more.
        if self._encoding != "gzip":
            self.close()
            raise MalformedResponseError(f"the response is encoded as {self._encoding[:40]!r}")
        inflate: Any = self._inflate or zlib.decompressobj(_GZIP)
        try:
            plain: bytes = inflate.decompress(data, _MOST_INFLATED)
        except zlib.error:
            self.close()
            raise MalformedResponseError("the gzip data of the response is damaged") from None
        self._inflate = None if inflate.eof else inflate
        if rest := inflate.unconsumed_tail or inflate.unused_data:
            self._pieces.append(rest)
            self.size = len(rest)
        elif self.complete and not inflate.eof:
            self.error = ConnectionLostError("the gzip data of the response is incomplete")
        return plain


class Connection(asyncio.Protocol):
    """A connection with at most one request at a time.

    ``on_free`` is called when a request ends, with True if the connection can be used again.
    One timer serves all waits: it is armed for the earliest deadline and looks at the current one when it
    fires, so most waits cost a clock reading instead of a timer.
    """

    def __init__(self, on_free: Callable[[Connection, bool], None]) -> None:
        self._on_free = on_free
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport
        self.used = False
        """True once a response arrived: the server may have closed it since."""
        self._response: Response | None = None
        self._headers: dict[str, str] = {}
        self._header_count = 0
        self._overhead = 0
        self._malformed = ""
        self._keep = self._until_end = self._done = self._paused = self._sending = False
        self._waiter: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    @property
    def is_open(self) -> bool:
        """True if a request can be sent."""
        return not self.transport.is_closing()

    async def exchange(self, head: bytes, body: bytes | None, seconds: float) -> Response:
        """Send a request; return the response once its headers arrived. Raises TimeoutError or HttpError."""
        response = self._response = Response(self)
        self._headers = {}
        self._header_count = self._overhead = 0
        self._keep = self._until_end = self._done = self._sending = False
        try:
            if self.transport.is_closing():
                raise ConnectionLostError("the server closed the connection")
            if body is None or len(body) <= _STREAMED_FROM:
                self.transport.write(head + body if body else head)
            else:
                async with asyncio.timeout(seconds):
                    await self._send(response, head, body)
            while not response.status and response.error is None:
                await self.expect(seconds)
        except BaseException:
            self.close(response)
            raise
        if not response.status:
            assert response.error is not None, "the wait ended without a status"
            raise response.error
        self.used = True
        return response

    def expect(self, seconds: float | None) -> asyncio.Future[None]:
        """Return a future of more data or the end. It fails with TimeoutError after ``seconds``."""
        self._waiter = self._loop.create_future()
        self._deadline = None
        if seconds is not None:
            deadline = self._deadline = self._loop.time() + seconds
            if self._timer is None or deadline < self._timer_at:
                self._arm(deadline)
        return self._waiter

    def resume(self, response: Response) -> None:
        """Read on after the reader took the waiting bytes."""
        if self._paused and response is self._response and response.size <= BUFFER_LIMIT:
            self._paused = False
            self.transport.resume_reading()

    def close_later(self, response: Response) -> None:
        """Close unless the response is soon complete."""
        # The end usually comes with the last event or right after it; nothing waits for it.
        self._loop.call_later(_RELEASE_SECONDS, self.close, response)

    def close(self, response: Response | None = None) -> None:
        """Close at once; with ``response``, only if it is still the current one."""
        if response is not None and response is not self._response:
            return
        self._fail(ConnectionLostError("closed"))

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._check)

    def _check(self) -> None:
        self._timer = None
        waiter = self._waiter
        if waiter is None or waiter.done() or self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._arm(self._deadline)
        else:
            waiter.set_exception(TimeoutError())

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _send(self, response: Response, head: bytes, body: bytes) -> None:
        """Send a large body in slices, so that other streams continue; stop at a refusal."""
        self._sending = True
        self.transport.write(head)
        view = memoryview(body)
        for start in range(0, len(body), _SLICE):
            if self._drained is not None:
                await self._drained
            if response.error is not None or response.status >= 300 or response.complete:
                return
            self.transport.write(view[start : start + _SLICE])
            await asyncio.sleep(0)
        self._sending = False

    def _finish(self, response: Response, *, keep: bool) -> None:
        """End the exchange, and give the connection back."""
        response.complete = True
        self._response = None
        keep = keep and not self._sending and not self.transport.is_closing()
        if self._paused:
            self._paused = False
            self.transport.resume_reading()
        if not keep:
            self.transport.close()
        self._on_free(self, keep)
        self._wake()

    def _fail(self, error: HttpError) -> None:
        """End the exchange and the connection."""
        response, self._response = self._response, None
        self.transport.abort()
        if response is not None:
            response.error = response.error or error
            self._on_free(self, False)
        self._wake()

    # The callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of a response."""
        response = self._response
        if response is None:
            # A server that sends without a request has timed out, or confuses its responses.
            self.transport.abort()
            return
        self._overhead += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._malformed = "the server changes the protocol"
        except httptools.HttpParserError as error:
            # Bytes after a complete response only end the connection.
            self._malformed = self._malformed or str(error)
        if self._done:
            self._finish(response, keep=self._keep and not self._malformed)
        elif self._malformed:
            self._fail(MalformedResponseError(self._malformed))
        elif self._overhead > OVERHEAD_LIMIT:
            self._fail(MalformedResponseError(f"more than {OVERHEAD_LIMIT} bytes without data"))
        else:
            if response.size > BUFFER_LIMIT and not self._paused:
                self._paused = True
                self.transport.pause_reading()
            if response.status:
                self._wake()

    def pause_writing(self) -> None:
        """Hold back the rest of a large body."""
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        """Continue to send a large body."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    def connection_lost(self, exc: Exception | None) -> None:
        """End the response: well if its end is the end of the connection."""
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()
        response = self._response
        if response is not None and self._until_end and exc is None:
            self._finish(response, keep=False)
        elif response is not None:
            self._fail(ConnectionLostError("the server closed the connection"))
        else:
            self._on_free(self, False)

    # The callbacks of the parser. An error raised here would lose its type, so they store it.

    def on_message_begin(self) -> None:
        """Refuse to use the connection again if a second response follows."""
        if self._done:
            self._keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, the first one of each name; trailers are ignored."""
        response = self._response
        if response is None or response.status or self._done:
            return
        self._header_count += 1
        if self._header_count > HEADER_COUNT_LIMIT:
            self._malformed = f"more than {HEADER_COUNT_LIMIT} headers"
        key = name.lower().decode("ascii")
        if key == "transfer-encoding" and (value.lower() != b"chunked" or key in self._headers):
            self._malformed = "the response has an unknown Transfer-Encoding"
        self._headers.setdefault(key, value.decode("utf-8", "surrogateescape"))

    def on_headers_complete(self) -> None:
        """Begin the response, unless it is an interim one."""
        status, response, headers = self._parser.get_status_code(), self._response, self._headers
        if response is None or self._done or self._malformed:
            return
        if 100 <= status < 200:
            self._headers = {}
            return
        if status < 100 or self._parser.get_http_version() not in ("1.0", "1.1"):
            self._malformed = "the response is not HTTP/1"
            return
        self._until_end = not (
            status in _NO_BODY or "content-length" in headers or "transfer-encoding" in headers
        )
        self._keep = not self._until_end and self._parser.should_keep_alive()
        response.begin(status, headers)

    def on_body(self, body: bytes) -> None:
        """Add to the body."""
        self._overhead = 0
        if self._response is not None and not self._done:
            self._response.append(body)

    def on_message_complete(self) -> None:
        """Mark the end, unless it is that of an interim response."""
        if self._response is not None and self._response.status:
            self._done = True
