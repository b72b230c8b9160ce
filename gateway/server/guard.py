"""The guard in front of every route. It checks the Host and Origin headers of requests.

Without these checks a foreign web page, or a host name that an attacker points to this address, could use a
gateway on loopback that needs no token. Authentication is the task of the routes: the gateway's own check the
token, those of channels have their own means.
"""

from __future__ import annotations

import ipaddress
import secrets
from urllib.parse import urlsplit

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.contract.errors import InternalError, InvalidRequestError, TrunklineError
from gateway.server.connections import Proxies
from gateway.server.errors import ForeignPageError, MisdirectedRequestError
from gateway.server.openai.errors import OPENAI_ROOT, openai_error_response
from gateway.server.responses import ErrorFormat, error_response, map_http_exception
from gateway.settings import ServerSettings, is_loopback

log = structlog.get_logger("trunkline.server")

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "media-src data:; connect-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; "
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
SHARED_ROOT = "/share/"
"""Path of the public pages, which have their own stricter policy."""
PAGES_ROOT = "/plugins/"
"""Path of what confined plugins answer, also with its own policy."""
_BEGUN = web.RequestKey("begun", bool)


class Guard:
    """Middleware that checks every request first and turns exceptions into error responses."""

    def __init__(self, server: ServerSettings, shared_at: str | None = None) -> None:
        self._shared_host = urlsplit(shared_at or "").netloc.lower()
        self._local = is_loopback(server.host)
        self._origins = frozenset(origin.rstrip("/").lower() for origin in server.allowed_origins)
        self._proxies = Proxies(server.trusted_proxies)
        self._hosts = frozenset(urlsplit(origin).netloc for origin in self._origins)

    @property
    def middleware(self) -> Middleware:
        """The aiohttp middleware."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            render = openai_error_response if request.path.startswith(OPENAI_ROOT) else error_response
            try:
                self._check(request)
                client = self._proxies.client_of(request)
                return await handler(request if client == request.remote else request.clone(remote=client))
            except TrunklineError as error:
                return render(error)
            except web.HTTPException as error:
                return map_http_exception(error, render)
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001 - no detail may reach the client
                return _internal_error(request, error, render)

        return guarded

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the security headers to a response."""
        request[_BEGUN] = True
        own = response.headers if request.path.startswith((SHARED_ROOT, PAGES_ROOT)) else ()
        response.headers.update({name: value for name, value in SECURITY_HEADERS.items() if name not in own})

    def _check(self, request: web.Request) -> None:
        """Raise the error for a request that is not accepted."""
        if any(name.lower() in _TOKEN_NAMES for name in request.query):
            raise InvalidRequestError("a token must not be in the URL; send it in a header")
        host = request.headers.get("Host")
        # The public name of shared pages leads to these pages alone.
        public = request.path.startswith(SHARED_ROOT) and (host or "").lower() == self._shared_host != ""
        if self._local and host is not None and not (public or self._is_own_host(host.lower())):
            raise MisdirectedRequestError("this host name is not accepted; see server.allowed_origins")
        origin = request.headers.get("Origin")
        if origin is not None and not self._is_allowed_origin(origin.lower(), host):
            log.warning("request from a foreign origin refused", origin=origin[:100])
            raise ForeignPageError("this origin is not allowed; see server.allowed_origins")

    def _is_own_host(self, host: str) -> bool:
        return host in self._hosts or is_loopback_name(host)

    def _is_allowed_origin(self, origin: str, host: str | None) -> bool:
        if origin.rstrip("/") in self._origins:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and host is not None and parts.netloc == host.lower()


def _internal_error(request: web.Request, error: Exception, render: ErrorFormat) -> web.StreamResponse:
    """Log an unexpected exception under a random id. The client gets the id alone."""
    fault = secrets.token_hex(6)
    log.error("request failed", fault=fault, method=request.method, path=request.path, exc_info=error)
    if request.get(_BEGUN):
        raise ConnectionResetError("the response had begun") from None
    return render(InternalError(f"internal error; the log has it under fault {fault}"))


def is_loopback_name(host: str) -> bool:
    """Return whether a Host header names this machine."""
    name = host if host.endswith("]") else host.rsplit(":", 1)[0]
    name = name.strip("[]")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
