"""The HTTP routes of one confined plugin: requests to its process, and what it may answer.

Bodies that are too long for a frame travel in pieces: the process asks for that of a request, which it gets
as a descriptor, and sends that of an answer ahead of it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import Struct

from gateway.api import RawRequest, RawResponse
from gateway.contract.errors import InvalidRequestError, NotFoundError, OverloadedError, PluginError
from gateway.extensions.broker.network import MOST_INLINE, as_descriptor
from gateway.extensions.process.frames import Reply
from gateway.extensions.routes import METHODS, pages_of

MOST_ANSWER = 5 * 1024 * 1024
"""Bytes of an answer."""
_MOST_ROUTES = 100
_MOST_REQUESTS = 16
"""Requests at once: less than the calls at once, so that requests do not hold up turns."""
_PATH = re.compile(r"/|(/([A-Za-z0-9_~-][A-Za-z0-9._~-]*|\{[a-z_]+\}))+/?")
_HEADERS = frozenset(
    (
        *("cache-control", "content-disposition", "content-language", "content-type", "etag"),
        *("last-modified", "location", "retry-after", "vary"),
    )
)
"""The headers that an answer may have: no cookies, and nothing that the gateway sets itself."""

Call = Callable[[str, Mapping[str, Any]], Awaitable[Any]]


class _Answer(Struct, frozen=True):
    """An answer of the process. ``body`` is base64, what follows the pieces that were sent."""

    status: int
    headers: Mapping[str, str] = {}
    body: str = ""


class _Piece(Struct, frozen=True):
    id: int
    data: str = ""


class _Exchange:
    """A request that is being answered."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.answer = bytearray()


class HttpRoutes:
    """The routes of one plugin. ``call`` calls its process."""

    def __init__(self, plugin: str, call: Call) -> None:
        self.declared: tuple[tuple[str, str], ...] = ()
        """Methods and paths, which begin after the plugin's own path."""
        self._plugin = plugin
        self._call = call
        self._patterns: Mapping[tuple[str, str], re.Pattern[str]] = {}
        self._open: dict[int, _Exchange] = {}
        self._last = 0

    def declare(self, routes: Sequence[str]) -> None:
        """Set the routes, such as ``GET /items/{id}``. Raises PluginError."""
        if len(routes) > _MOST_ROUTES:
            raise PluginError(f"it has {len(routes)} routes; at most {_MOST_ROUTES} are allowed")
        self._patterns = {key: pattern for route in routes for key, pattern in _parsed(route)}
        self.declared = tuple(self._patterns)

    async def answer(self, request: RawRequest) -> RawResponse:
        """Answer a request. Raises NotFoundError, OverloadedError, PluginError or InvalidRequestError."""
        route, found = self._match(request)
        with self._exchange(request.body) as (number, exchange):
            inline = len(request.body) <= MOST_INLINE
            params = {
                "id": number,
                "name": route,
                "method": request.method,
                "path": request.path,
                "params": found,
                "query": request.query,
                "headers": request.headers,
                "user": request.user,
                "body": base64.b64encode(request.body).decode() if inline else None,
            }
            try:
                given = msgspec.convert(await self._call("route", params), _Answer)
            except msgspec.ValidationError as error:
                raise PluginError(f"its answer cannot be read: {error}") from None
            self._add(exchange, given.body)
            body = b"" if given.status in (204, 304) else bytes(exchange.answer)
            return RawResponse(given.status, self._checked(given), body)

    def serve(self, method: str, params: Any) -> Reply | None:
        """Answer a call of the process: for the body of a request, or with a piece of an answer."""
        piece = msgspec.convert(params, _Piece)
        exchange = self._open.get(piece.id)
        if exchange is None:
            raise InvalidRequestError(f"{method}: there is no open request {piece.id}")
        if method == "request.body":
            return Reply(len(exchange.body), as_descriptor(exchange.body))
        self._add(exchange, piece.data)
        return None

    def _match(self, request: RawRequest) -> tuple[str, Mapping[str, str]]:
        other = False
        for (method, path), pattern in self._patterns.items():
            if (found := pattern.fullmatch(request.path)) is None:
                continue
            if method == request.method:
                return f"{method} {path}", found.groupdict()
            other = True
        raise NotFoundError(
            f"plugin {self._plugin!r} does not answer {request.method} {request.path[:200]}"
            + ("; it has other methods there" if other else "")
        )

    @contextmanager
    def _exchange(self, body: bytes) -> Generator[tuple[int, _Exchange]]:
        if len(self._open) >= _MOST_REQUESTS:
            raise OverloadedError(f"plugin {self._plugin!r} answers {_MOST_REQUESTS} requests already")
        self._last = number = self._last + 1
        exchange = self._open[number] = _Exchange(body)
        try:
            yield number, exchange
        finally:
            del self._open[number]

    def _add(self, exchange: _Exchange, data: str) -> None:
        try:
            exchange.answer += base64.b64decode(data, validate=True)
        except binascii.Error:
            raise InvalidRequestError("a body is not base64") from None
        if len(exchange.answer) > MOST_ANSWER:
            raise InvalidRequestError(f"an answer has at most {MOST_ANSWER:,} bytes")

    def _checked(self, answer: _Answer) -> Mapping[str, str]:
        """Return the headers of an answer. Raises PluginError for what a plugin may not send."""
        if not 200 <= answer.status <= 599:
            raise PluginError(f"its answer has the status {answer.status}; it must be 200 to 599")
        headers = {name.lower(): value for name, value in answer.headers.items()}
        for name, value in headers.items():
            if name not in _HEADERS or not value.isprintable() or not value.isascii():
                raise PluginError(f"its answer has the header {name[:80]!r}; it may have {sorted(_HEADERS)}")
        target, own = headers.get("location"), f"{pages_of(self._plugin)}/"
        # Browsers read a backslash as a slash, and remove dots, also those that are written as %2e.
        path = unquote((target or "").partition("?")[0])
        if target is not None and (not target.startswith(own) or "\\" in path or "/.." in path):
            raise PluginError(f"its answer leads to {target[:200]!r}; it must begin with {own}")
        return headers


def _parsed(route: str) -> Iterator[tuple[tuple[str, str], re.Pattern[str]]]:
    method, _, path = route.partition(" ")
    names = re.findall(r"\{(\w+)\}", path)
    if method not in METHODS or not _PATH.fullmatch(path) or len(set(names)) < len(names):
        raise PluginError(
            f"it has the route {route[:100]!r}; write a method of {', '.join(METHODS)} and a path, "
            "such as 'GET /items/{id}'"
        )
    parts = re.split(r"\{(\w+)\}", path)
    pattern = "".join(f"(?P<{part}>[^/]+)" if at % 2 else re.escape(part) for at, part in enumerate(parts))
    yield (method, path), re.compile(pattern)
