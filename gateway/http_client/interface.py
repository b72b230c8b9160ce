"""The interface of HTTP clients: a request, a response whose body arrives in pieces, and their errors.

HttpError
├── ConnectError            no connection: not resolved, refused, timed out, or its certificate is not trusted
├── ConnectionLostError     the server closed the connection before the end of the response
└── MalformedResponseError  the response is not HTTP, exceeds a limit, or is encoded in an unknown way
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")


class HttpError(Exception):
    """A request that failed; the text is the reason, without the address."""


class ConnectError(HttpError):
    """No connection could be opened; nothing was sent."""


class ConnectionLostError(HttpError):
    """The connection closed before the response was complete."""


class MalformedResponseError(HttpError):
    """The response is not valid HTTP, or exceeds a limit."""


class HttpResponse(Protocol):
    """A response whose headers arrived. Read its body to the end, or call ``close``."""

    @property
    def status(self) -> int:
        """The status code."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; look them up by lowercase names."""
        ...

    async def read(self, idle: float | None = None) -> bytes:
        """Return all bytes that arrived since the last call, or wait for some; empty at the end of the body.

        Raises TimeoutError if nothing arrives for ``idle`` seconds, or else an HttpError.
        """
        ...

    async def release(self) -> None:
        """Ignore the rest of the body; keep the connection for the next request if it ends within 50 ms."""
        ...

    def close(self) -> None:
        """End the response at once; without effect after its end or ``release``."""
        ...


class HttpClient(Protocol):
    """Sends requests over connections that are kept open and used again. Stores no cookies."""

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, seconds: float
    ) -> HttpResponse:
        """Send a request; return the response, with any status, once its headers arrived.

        ``seconds`` bounds the wait for the headers, half of it the wait for the connection; the body has no
        time limit. Redirects are not followed. Raises TimeoutError, HttpError, or ValueError for an address
        or a header that cannot be sent.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


def is_header_name(name: str) -> bool:
    """Return whether a header can have this name."""
    return _HEADER_NAME.fullmatch(name) is not None


def is_header_value(value: str) -> bool:
    """Return whether a header can have this value: no control characters, which could begin a new header."""
    return _HEADER_VALUE.fullmatch(value) is not None
