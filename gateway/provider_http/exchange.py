"""One HTTP exchange with a model backend: the request as a value, sending it, and its errors."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Literal

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
from gateway.http_client import (
    ConnectError,
    ConnectionLostError,
    HttpClient,
    HttpError,
    HttpResponse,
    is_header_name,
    is_header_value,
)

REDIRECTS = 3
"""Most redirects of one request, all on the same host."""

_REDIRECTS = (301, 302, 307, 308)


class RequestSpec(Struct, frozen=True):
    """One HTTP request, ready to be sent."""

    url: str
    method: Literal["GET", "POST"]
    headers: Mapping[str, str]
    body: bytes | None = None


async def send(client: HttpClient, request: RequestSpec, seconds: float) -> HttpResponse:
    """Send a request; return the response once its headers arrived, with any status.

    ``seconds`` bounds the wait for the headers, half of it the wait for the connection. Raises
    ProviderUnavailableError, StreamTimeoutError, StreamAbortedError, DeltaParseError or BadRequestError.
    """
    url = request.url
    try:
        response = await client.request(request.method, url, request.headers, request.body, seconds)
        if response.status not in _REDIRECTS:
            return response
        async with asyncio.timeout(seconds):
            return await _follow(client, request, response, seconds)
    except ConnectError as error:
        raise ProviderUnavailableError(f"cannot reach {_address(url)}: {error}") from error
    except TimeoutError as error:
        raise StreamTimeoutError(f"{_address(url)} did not answer within {seconds:g} s") from error
    except ConnectionLostError as error:
        raise StreamAbortedError(f"{_address(url)} closed the connection before it answered") from error
    except HttpError as error:
        raise DeltaParseError(f"{_address(url)} does not speak HTTP: {error}") from error
    except ValueError as error:
        raise BadRequestError(f"the request to {_address(url)} cannot be sent: {error}") from error


async def read_body(response: HttpResponse, limit: int, seconds: float) -> bytes:
    """Return the first ``limit`` bytes of a body, or what arrives of them within ``seconds``."""
    pieces: list[bytes] = []
    try:
        async with asyncio.timeout(seconds):
            while limit > 0 and (piece := await response.read()):
                pieces.append(piece[:limit])
                limit -= len(piece)
    except (TimeoutError, HttpError):
        response.close()
    return b"".join(pieces)


def check_reachable(config: ProviderConfig, base_url: str) -> None:
    """Check the address and the headers. Raises SettingsError, which quotes no value."""
    url = URL(base_url)
    if url.scheme not in ("http", "https") or not url.host:
        raise SettingsError(f"providers.{config.id}.base_url must be an http or https address")
    if not all(map(is_header_value, config.keys)):
        raise SettingsError(f"providers.{config.id}.api_key has a character that is not allowed in a header")
    for name, value in config.custom_headers.items():
        if not is_header_name(name) or not is_header_value(value):
            raise SettingsError(f"providers.{config.id}.custom_headers: {name!r} is not a valid header")


async def _follow(
    client: HttpClient, request: RequestSpec, response: HttpResponse, seconds: float
) -> HttpResponse:
    url = URL(request.url)
    for _ in range(REDIRECTS - 1):
        response.close()
        url = _redirect_target(url, response)
        response = await client.request(request.method, str(url), request.headers, request.body, seconds)
        if response.status not in _REDIRECTS:
            return response
    response.close()
    raise BadRequestError(f"{_address(str(url))} redirects more than {REDIRECTS} times")


def _redirect_target(url: URL, response: HttpResponse) -> URL:
    """Return the target of a redirect."""
    # Another host must not get the API key and the conversation.
    target = url.join(URL(response.headers.get("location", "")))
    secure = target.scheme == url.scheme or (url.scheme, target.scheme) == ("http", "https")
    same_port = target.port == url.port or target.scheme != url.scheme
    if target.host != url.host or not secure or not same_port:
        raise BadRequestError(
            f"{_address(str(url))} redirects to another server ({_address(str(target))}); refused"
        )
    return target


def _address(url: str) -> str:
    parsed = URL(url)
    return f"{parsed.host}:{parsed.port}"
