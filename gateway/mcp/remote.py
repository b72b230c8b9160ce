"""Remote servers over HTTP: streamable HTTP, or SSE from servers that only have that.

Like ``session``, this is imported with the first connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from gateway.mcp.session import MOST_MESSAGE_BYTES, Session
from gateway.settings import McpServerSettings

_SILENCE_SECONDS = 300.0
"""Time without a byte after which a stream is lost."""
_MOST_STREAMED = 2 * MOST_MESSAGE_BYTES
"""Bytes of a stream in a second; more end the session."""
_UNAUTHORIZED, _NOT_FOUND, _FAILED = 401, 404, 500


@asynccontextmanager
async def streamable_http(settings: McpServerSettings, session: Session) -> AsyncGenerator[Any]:
    """Carry the messages of a session by requests, whose responses may be streams."""
    assert settings.url is not None, "the server is a remote one"
    async with (
        _client(settings, session) as client,
        streamable_http_client(settings.url, http_client=client) as streams,
    ):
        yield streams


@asynccontextmanager
async def sse(settings: McpServerSettings, session: Session) -> AsyncGenerator[Any]:
    """Carry the messages of a session by requests, and by one stream for all answers."""
    assert settings.url is not None, "the server is a remote one"

    def make(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return _client(settings, session)

    async with sse_client(settings.url, httpx_client_factory=make) as streams:
        yield streams


def _client(settings: McpServerSettings, session: Session) -> httpx2.AsyncClient:
    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    timeout = httpx2.Timeout(settings.timeout / 1000, read=_SILENCE_SECONDS)
    return httpx2.AsyncClient(headers=headers, timeout=timeout, transport=_Transport(session))


class _Transport(httpx2.AsyncHTTPTransport):
    """Connections that bound what they read, and end the session when the server is lost."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Make a request."""
        try:
            response = await super().handle_async_request(request)
        except httpx2.TransportError as error:
            self._session.lose(f"it cannot be reached: {error or type(error).__name__}")
            raise
        status, is_known = response.status_code, "mcp-session-id" in request.headers
        if status == _UNAUTHORIZED:
            self._session.lose("it rejected the credentials (401); set its headers")
        elif request.method == "POST" and (status >= _FAILED or (status == _NOT_FOUND and is_known)):
            self._session.lose(f"it answered with status {status}")
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream), "the transport is asynchronous"
        response.stream = _Bounded(response.stream, self._session, is_stream=is_stream)
        return response


class _Bounded(httpx2.AsyncByteStream):
    """The body of a response, up to a limit: of all of it, or of a second of a stream."""

    def __init__(self, stream: httpx2.AsyncByteStream, session: Session, *, is_stream: bool) -> None:
        self._stream = stream
        self._session = session
        self._is_stream = is_stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body. Raises ReadError beyond the limit."""
        loop = asyncio.get_running_loop()
        most = _MOST_STREAMED if self._is_stream else MOST_MESSAGE_BYTES
        second, count = loop.time(), 0
        async for chunk in self._stream:
            if self._is_stream and loop.time() - second >= 1:
                second, count = loop.time(), 0
            count += len(chunk)
            if count > most:
                self._session.lose(f"it sent more than {most // 1024**2} MB at once")
                raise httpx2.ReadError("the response is too large")
            yield chunk

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()
