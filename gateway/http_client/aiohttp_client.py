"""The client over aiohttp: for proxies that the other one does not support, and as an alternative."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Mapping

import aiohttp
from yarl import URL

from gateway.http_client.interface import ConnectError, ConnectionLostError, HttpError, MalformedResponseError

_STREAMED_FROM = 1024 * 1024
_DRAIN_SECONDS = 0.05


class AiohttpClient:
    """Sends requests with aiohttp. Create it in a running loop."""

    def __init__(self, connections: int, *, use_proxies: bool) -> None:
        # Common servers drop idle connections after 60 s or more: dropping them first avoids failed requests.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=30, ttl_dns_cache=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            trust_env=use_proxies,
        )

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> AiohttpResponse:
        """Send a request; return the response once its headers arrived."""
        # aiohttp writes ``bytes`` in one go: a large body would delay all other streams.
        data = io.BytesIO(body) if body is not None and len(body) > _STREAMED_FROM else body
        limits = aiohttp.ClientTimeout(sock_connect=seconds / 2)
        try:
            async with asyncio.timeout(seconds):
                response = await self._session.request(
                    method, URL(url), data=data, headers=headers, allow_redirects=False, timeout=limits
                )
        except aiohttp.ClientError as error:
            raise _named(error) from error
        return AiohttpResponse(response)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


class AiohttpResponse:
    """A response of aiohttp. One timer watches a body: it is restarted when it fires, not at each read."""

    __slots__ = ("_content", "_idle", "_loop", "_response", "_timer", "_waiting_since", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._content = response.content
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._idle = 0.0
        self._waiting_since: float | None = None
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers

    async def read(self, idle: float | None = None) -> bytes:
        """Return the bytes that arrived, or wait for some; empty at the end."""
        if idle is not None:
            self._waiting_since, self._idle = self._loop.time(), idle
            if self._timer is None:
                self._timer = self._loop.call_later(idle, self._check)
        try:
            return await self._content.readany()
        except aiohttp.ClientError as error:
            raise _named(error) from error
        finally:
            self._waiting_since = None

    async def release(self) -> None:
        """Wait briefly for the end of the body, so that the connection can be used again."""
        with contextlib.suppress(TimeoutError, HttpError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while await self.read():
                    pass
        self.close()

    def close(self) -> None:
        """End the response at once. Keeps the connection if the body was read to its end."""
        if self._timer is not None:
            self._timer.cancel()
        if self._content.at_eof():
            self._response.release()
        else:
            self._response.close()

    def _check(self) -> None:
        since = self._loop.time() if self._waiting_since is None else self._waiting_since
        left = since + self._idle - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._check)
        else:
            self._content.set_exception(TimeoutError())


def _named(error: aiohttp.ClientError) -> HttpError:
    """Return the error of the interface for one of aiohttp."""
    if isinstance(error, aiohttp.ServerTimeoutError):
        return ConnectError("connection timed out")
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return ConnectError(str(error.certificate_error))
    if isinstance(error, aiohttp.ClientConnectorError):
        return ConnectError(error.os_error.strerror or type(error.os_error).__name__)
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError):
        return ConnectionLostError(type(error).__name__)
    return MalformedResponseError(type(error).__name__)
