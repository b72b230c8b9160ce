"""HTTP responses: JSON values, errors, and streams of server-sent events."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from msgspec import Struct

from gateway.contract.errors import (
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    TooManyRequestsError,
    TrunklineError,
    UnauthorizedError,
)
from gateway.server.errors import MethodNotAllowedError, TooLargeError

_encode = msgspec.json.Encoder().encode
_ERRORS = {404: NotFoundError, 405: MethodNotAllowedError, 413: TooLargeError}
_MESSAGES = {
    404: "no such URL",
    405: "this URL does not support this method",
    413: "the body is larger than limits.frame_bytes",
}
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}
_FORMULAS = ("=", "+", "-", "@", "\t", "\r")
_HIGH_WATER = 64 * 1024
"""Unsent bytes above which ``EventStream.put`` asks for a drain: aiohttp's own bound."""

KEEP_ALIVE = b": still here\n\n"
"""A comment that keeps proxies from closing a quiet stream."""


class ErrorFormat(Protocol):
    """Renderer of a named error for the clients of one API."""

    def __call__(self, error: TrunklineError, headers: Mapping[str, str] | None = None) -> web.Response: ...


class ErrorBody(Struct, frozen=True):
    """Error: its stable name, a sentence, and whether a retry can succeed."""

    error_name: str
    message: str
    retryable: bool


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a value as an uncacheable JSON response."""
    return web.Response(
        body=_encode(value),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def csv_response(lines: Iterable[Sequence[object]], name: str) -> web.Response:
    """Return a table as an uncacheable CSV file.

    A spreadsheet runs a text that begins with one of ``_FORMULAS`` as a formula: it gets an apostrophe.
    """
    written = io.StringIO()
    csv.writer(written).writerows([_harmless(cell) for cell in line] for line in lines)
    return web.Response(
        body=written.getvalue().encode(),
        content_type="text/csv",
        charset="utf-8",
        headers={"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="{name}.csv"'},
    )


def _harmless(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULAS) else cell


def error_response(error: TrunklineError, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a named error as a response with its status."""
    body = ErrorBody(error.name, str(error), error.retryable)
    return json_response(body, error.status, {**error_headers(error), **(headers or {})})


def map_http_exception(error: web.HTTPException, render: ErrorFormat = error_response) -> web.StreamResponse:
    """Return an error of aiohttp as a response with one of our names. A status below 400 is kept as it is."""
    if error.status < 400:
        return error
    kind = _ERRORS.get(error.status, InvalidRequestError)
    named = kind(_MESSAGES.get(error.status) or error.text or error.reason)
    response = render(named, {k: v for k, v in error.headers.items() if k == "Allow"})
    response.set_status(error.status)
    return response


def error_headers(error: TrunklineError) -> Mapping[str, str]:
    """Return the headers that advise a client how to react to an error."""
    if isinstance(error, TooManyRequestsError):
        return {"Retry-After": "60"}
    if isinstance(error, OverloadedError):
        return {"Retry-After": "1"}
    if isinstance(error, UnauthorizedError) and error.status == 401:
        return {"WWW-Authenticate": "Bearer"}
    return {}


class EventStream:
    """A response of server-sent events. It has no task of its own: ``put`` writes at once.

    Call ``begin`` first. ``put`` returns whether to call ``drain`` before the next write.
    """

    def __init__(self, request: web.Request, headers: Mapping[str, str] | None = None) -> None:
        self.response = web.StreamResponse(headers={**_STREAM_HEADERS, **(headers or {})})
        self.begun = False
        """True once the response headers were sent."""
        self.writes = 0
        """Number of writes."""
        self._request = request
        self._transport = request.transport
        self._writer: AbstractStreamWriter | None = None
        self._chunked = False

    async def begin(self, first: bytes) -> None:
        """Send the response headers together with the first bytes of the body.

        Raises ConnectionResetError if the client disconnected, or asks for the headers alone.
        """
        self.begun = True
        self._writer = await self.response.prepare(self._request)
        if self._request.method == "HEAD":
            # Without this, ``put`` would send a body, and the stream would never end.
            raise ConnectionResetError("a response to HEAD has no body")
        self._chunked = self.response.headers.get("Transfer-Encoding") == "chunked"
        await self.response.write(first)
        self.writes += 1

    def put(self, data: bytes) -> bool:
        """Write data, which must not be empty. Raises ConnectionResetError if the client disconnected."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client disconnected")
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        self.writes += 1
        return transport.get_write_buffer_size() > _HIGH_WATER

    async def drain(self) -> None:
        """Wait until the client has read enough of what was written."""
        if self._writer is not None:
            await self._writer.drain()


def abort_connection(request: web.Request) -> None:
    """Close a connection without flushing: a flush would wait for a client that does not read."""
    if request.transport is not None:
        request.transport.abort()
