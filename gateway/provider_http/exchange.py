"""One HTTP exchange with a model backend: the request as a value, sending it, and its errors."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Mapping
from typing import Literal
from urllib.request import getproxies

import aiohttp
from msgspec import Struct
from yarl import URL

from gateway.contract.errors import (
    BadRequestError,
    DeltaParseError,
    ProviderUnavailableError,
    SettingsError,
    StreamAbortedError,
    StreamTimeoutError,
)
from gateway.contract.provider import ProviderConfig

REDIRECTS = 3
"""Most redirects of one request, all on the same host."""

_STREAMED_FROM = 1024 * 1024
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class RequestSpec(Struct, frozen=True):
    """One HTTP request, ready to be sent."""

    url: str
    method: Literal["GET", "POST"]
    headers: Mapping[str, str]
    body: bytes | None = None


def client_session(connections: int = 1000) -> aiohttp.ClientSession:
    """Open a session for many concurrent streams: keep-alive, no cookies, no total timeout.

    Call it in a running loop and close it when done. Uses the proxies of the environment.
    """
    # Common servers drop idle connections after 60 s or more: dropping them first avoids failed requests.
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=30, ttl_dns_cache=60),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        trust_env=bool(getproxies()),
    )


async def send(
    session: aiohttp.ClientSession, request: RequestSpec, seconds: float
) -> aiohttp.ClientResponse:
    """Send a request; return the response once its headers arrived, with any status.

    ``seconds`` bounds the wait for the headers, half of it the wait for the connection. Raises
    ProviderUnavailableError, StreamTimeoutError, StreamAbortedError or DeltaParseError.
    """
    url = URL(request.url)
    try:
        async with asyncio.timeout(seconds):
            return await _follow(session, request, url, aiohttp.ClientTimeout(sock_connect=seconds / 2))
    except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as error:
        raise ProviderUnavailableError(f"cannot reach {_address(url)}: {_reason(error)}") from error
    except TimeoutError as error:
        raise StreamTimeoutError(f"{_address(url)} did not answer within {seconds:g} s") from error
    except aiohttp.ClientConnectionError as error:
        raise StreamAbortedError(f"{_address(url)} closed the connection before it answered") from error
    except aiohttp.ClientError as error:
        raise DeltaParseError(f"{_address(url)} does not speak HTTP: {type(error).__name__}") from error


async def read_body(response: aiohttp.ClientResponse, limit: int, seconds: float) -> bytes:
    """Return the first ``limit`` bytes of a body, or what arrives of them within ``seconds``."""
    pieces: list[bytes] = []
    try:
        async with asyncio.timeout(seconds):
            while limit > 0 and (piece := await response.content.readany()):
                pieces.append(piece[:limit])
                limit -= len(piece)
    except (TimeoutError, aiohttp.ClientError):
        response.close()
    return b"".join(pieces)


def check_reachable(config: ProviderConfig, base_url: str) -> None:
    """Check the address and the headers. Raises SettingsError, which quotes no value."""
    url = URL(base_url)
    if url.scheme not in ("http", "https") or not url.host:
        raise SettingsError(f"providers.{config.id}.base_url must be an http or https address")
    if not all(map(_HEADER_VALUE.fullmatch, config.keys)):
        raise SettingsError(f"providers.{config.id}.api_key has a character that is not allowed in a header")
    for name, value in config.custom_headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise SettingsError(f"providers.{config.id}.custom_headers: {name!r} is not a valid header")


async def _follow(
    session: aiohttp.ClientSession, request: RequestSpec, url: URL, limits: aiohttp.ClientTimeout
) -> aiohttp.ClientResponse:
    for _ in range(REDIRECTS):
        response = await session.request(
            request.method,
            url,
            data=_payload(request.body),
            headers=request.headers,
            allow_redirects=False,
            timeout=limits,
        )
        if response.status not in (301, 302, 307, 308):
            return response
        response.close()
        url = _redirect_target(url, response)
    raise BadRequestError(f"{_address(url)} redirects more than {REDIRECTS} times")


def _payload(body: bytes | None) -> bytes | io.BytesIO | None:
    # aiohttp writes ``bytes`` in one go: a large body would delay all other streams.
    return io.BytesIO(body) if body is not None and len(body) > _STREAMED_FROM else body


def _redirect_target(url: URL, response: aiohttp.ClientResponse) -> URL:
    """Return the target of a redirect."""
    # Another host must not get the API key and the conversation.
    target = url.join(URL(response.headers.get("location", "")))
    secure = target.scheme == url.scheme or (url.scheme, target.scheme) == ("http", "https")
    same_port = target.port == url.port or target.scheme != url.scheme
    if target.host != url.host or not secure or not same_port:
        raise BadRequestError(f"{_address(url)} redirects to another server ({_address(target)}); refused")
    return target


def _address(url: URL) -> str:
    return f"{url.host}:{url.port}"


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.ServerTimeoutError):
        return "connection timed out"
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error.strerror or type(error.os_error).__name__
    return type(error).__name__
