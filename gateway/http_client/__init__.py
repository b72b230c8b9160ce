"""HTTP requests to addresses of the settings, over one of two clients behind one interface.

In: a method, an address, headers and a body. Out: a response whose body arrives in pieces, or ``HttpError``.
``provider_http`` and channels may import it.
"""

from __future__ import annotations

from typing import Literal
from urllib.request import getproxies

from gateway.http_client.aiohttp_client import AiohttpClient
from gateway.http_client.httptools_client import HttptoolsClient
from gateway.http_client.interface import (
    ConnectError,
    ConnectionLostError,
    HttpClient,
    HttpError,
    HttpResponse,
    MalformedResponseError,
    is_header_name,
    is_header_value,
)

__all__ = [
    "ClientKind",
    "ConnectError",
    "ConnectionLostError",
    "HttpClient",
    "HttpError",
    "HttpResponse",
    "MalformedResponseError",
    "is_header_name",
    "is_header_value",
    "open_client",
]

ClientKind = Literal["auto", "httptools", "aiohttp"]
"""A client; ``auto`` is httptools unless the environment has a proxy that it does not support."""

_MOST_CONNECTIONS = 1_000
"""Open connections of a client, for httptools to one server."""


def open_client(kind: ClientKind = "auto") -> HttpClient:
    """Open a client for many concurrent requests; close it when done. Uses the proxies of the environment."""
    proxies = {scheme: url for scheme, url in getproxies().items() if scheme in ("http", "https", "all")}
    if kind == "auto":
        supported = all(url.startswith("http://") for url in proxies.values())
        kind = "httptools" if supported else "aiohttp"
    if kind == "aiohttp":
        return AiohttpClient(_MOST_CONNECTIONS, use_proxies=bool(proxies))
    return HttptoolsClient(_MOST_CONNECTIONS, proxies)
