"""Answers that go on as server-sent events, written to as something happens and by no task of their own."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}
_FULL = 64 * 1024
"""Bytes that wait for the client from which on it is waited for: aiohttp's own bound."""

STILL_HERE = b": still here\n\n"
"""Says nothing, so that nobody on the way takes the connection for dead."""


class Streamed:
    """An answer that goes on. After ``begin``, ``put`` writes at once, and says whether to ``drain`` next."""

    def __init__(self, request: web.Request, headers: Mapping[str, str] | None = None) -> None:
        self.response = web.StreamResponse(headers={**_HEADERS, **(headers or {})})
        self.begun = False
        """Whether the client has its head."""
        self.written = 0
        """How often something was written."""
        self._request = request
        self._transport = request.transport
        self._writer: AbstractStreamWriter | None = None
        self._chunked = False

    async def begin(self, first: bytes) -> None:
        """Send the head, and the first of the body with it."""
        self.begun = True
        self._writer = await self.response.prepare(self._request)
        self._chunked = self.response.headers.get("Transfer-Encoding") == "chunked"
        await self.response.write(first)
        self.written += 1

    def put(self, data: bytes) -> bool:
        """Write more, at least a byte. Raises ConnectionResetError if the client is gone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client is gone")
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        self.written += 1
        return transport.get_write_buffer_size() > _FULL

    async def drain(self) -> None:
        """Wait while the client does not read."""
        if self._writer is not None:
            await self._writer.drain()


def cut(request: web.Request) -> None:
    """End a connection at once: to a client that does not read, a farewell would have to wait as well."""
    if request.transport is not None:
        request.transport.abort()
