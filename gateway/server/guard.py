"""The guard in front of every route: whose page asks, and under which name we were reached.

A browser sends the origin of the page that asks, and the name it used for us. Both are checked, so that
neither a foreign page nor a name that was bound to this address afterwards can use an open loopback port.
Who it is that asks, each route checks itself: our own by token, those of channels by their own means.
"""

from __future__ import annotations

import ipaddress
import secrets
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.contract.errors import (
    ForeignPageError,
    InternalError,
    InvalidRequestError,
    MisdirectedRequestError,
    TrunklineError,
)
from gateway.server.answers import Shape, error_answer, refusal_of
from gateway.server.openai.failures import OPENAI_ROOT, failure_answer
from gateway.settings import ServerSettings, is_loopback

log = structlog.get_logger("trunkline.server")

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "media-src data:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types trunkline"
    ),
    "Server": "Trunkline",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_TOKEN_NAMES = frozenset(("token", "access_token", "auth_token", "api_key", "apikey", "authorization"))
_BEGUN = web.RequestKey("begun", bool)


class Guard:
    """Checks every request before it reaches a route, and makes answers of errors."""

    def __init__(self, server: ServerSettings) -> None:
        self._local = is_loopback(server.host)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in server.allowed_origins)
        self._names = frozenset(urlsplit(origin).netloc for origin in self._origins)

    @property
    def middleware(self) -> Middleware:
        """The aiohttp middleware."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            shaped = failure_answer if request.path.startswith(OPENAI_ROOT) else error_answer
            try:
                self._check(request)
                return await handler(request)
            except TrunklineError as error:
                return shaped(error)
            except web.HTTPException as error:
                return refusal_of(error, shaped)
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the client
                return _broken(request, error, shaped)

        return guarded

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Give every answer the headers that keep browsers strict, and that tell little of us."""
        request[_BEGUN] = True
        response.headers.update(SECURITY_HEADERS)

    def _check(self, request: web.Request) -> None:
        """Raises the error that refuses the request."""
        if any(name.lower() in _TOKEN_NAMES for name in request.query):
            raise InvalidRequestError("a token does not belong in an address; send it in a header")
        host = request.headers.get("Host")
        if self._local and host is not None and not self._is_ours(host.lower()):
            raise MisdirectedRequestError("this gateway is not known under that name")
        origin = request.headers.get("Origin")
        if origin is not None and not self._may_ask(origin.lower(), host):
            log.warning("refused a foreign page", origin=origin[:100])
            raise ForeignPageError("pages of that origin may not connect; see server.allowed_origins")

    def _is_ours(self, host: str) -> bool:
        return host in self._names or _is_local_name(host)

    def _may_ask(self, origin: str, host: str | None) -> bool:
        if origin.rstrip("/") in self._origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and host is not None and parts.netloc == host.lower()


def _broken(request: web.Request, error: Exception, shaped: Shape) -> web.StreamResponse:
    """A fault of our own: the log has it under an id, the client gets the id."""
    fault = secrets.token_hex(6)
    log.error("a request failed", fault=fault, method=request.method, path=request.path, exc_info=error)
    if request.get(_BEGUN):
        raise ConnectionResetError("the answer had begun") from None
    return shaped(InternalError(f"something went wrong here; the log has it as {fault}"))


def _is_local_name(host: str) -> bool:
    """Whether a Host header names this machine itself."""
    name = host if host.endswith("]") else host.rsplit(":", 1)[0]
    name = name.strip("[]")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
