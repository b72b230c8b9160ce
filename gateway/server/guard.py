"""The guard in front of every route: whose page asks, under which name we were reached, who it is.

A browser sends the origin of the page that asks, and the name it used for us. Both are checked, so that
neither a foreign page nor a name that was bound to this address afterwards can use an open loopback port.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from gateway.errors import InvalidRequestError, TrunklineError, UnauthorizedError
from gateway.settings import ServerSettings, is_loopback

log = structlog.get_logger("trunkline.server")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def error_response(error: TrunklineError) -> web.Response:
    """An error as the server answers it."""
    body = {"error_name": error.name, "message": str(error), "retryable": error.retryable}
    return web.json_response(body, status=error.status)


class Guard:
    """Checks every request before it reaches a route, and makes answers of named errors."""

    def __init__(self, server: ServerSettings) -> None:
        self._server = server
        self._local = is_loopback(server.host)
        self._origins = frozenset(origin.rstrip("/") for origin in server.allowed_origins)

    @property
    def middleware(self) -> Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]:
        """The aiohttp middleware."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            refusal = self._refusal(request)
            if refusal is not None:
                return refusal
            try:
                return await handler(request)
            except TrunklineError as error:
                return error_response(error)

        return guarded

    async def add_headers(self, _request: web.Request, response: web.StreamResponse) -> None:
        """Give every answer the headers that keep browsers strict."""
        for name, value in SECURITY_HEADERS.items():
            response.headers.setdefault(name, value)

    def _refusal(self, request: web.Request) -> web.Response | None:
        if "token" in request.query or "access_token" in request.query:
            return error_response(InvalidRequestError("a token does not belong in an address; send a header"))
        if self._local and not _is_local_name(request.host):
            return web.json_response(
                {"error_name": "MisdirectedRequest", "message": "this name is not ours", "retryable": False},
                status=421,
            )
        origin = request.headers.get("Origin")
        if origin is not None and not self._may_ask(origin, request):
            error = UnauthorizedError(f"pages of {origin[:100]} may not connect; see server.allowed_origins")
            log.warning("refused a foreign page", origin=origin[:100])
            return web.json_response(
                {"error_name": error.name, "message": str(error), "retryable": False}, status=403
            )
        return None

    def _may_ask(self, origin: str, request: web.Request) -> bool:
        if origin.rstrip("/") in self._origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == request.host.lower()


def _is_local_name(host: str) -> bool:
    """Whether a Host header names this machine itself."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
