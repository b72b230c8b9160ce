"""The routes ``/plugins/NAME/…``: requests that plugins read and answer themselves.

Most of them run in their own process, and may come from an author whom the operator does not know. So
none gets the token or cookies, its pages run no scripts and belong to no origin, and all answers are bounded.
"""

from __future__ import annotations

import asyncio
import re
from functools import cache
from typing import Any, cast

import structlog
from aiohttp import web
from msgspec import Struct, defstruct

from gateway.api import AnswersHttp, RawRequest, RawResponse
from gateway.contract.errors import (
    CATCHABLE,
    InternalError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    TrunklineError,
    is_cancellation_requested,
)
from gateway.extensions.registry import PluginRegistry
from gateway.extensions.routes import pages_of
from gateway.server.errors import SlowRequestError, TooLargeError
from gateway.server.responses import error_response
from gateway.server.routes import Binder, Call, Nothing, Route, Signature

log = structlog.get_logger("trunkline.server")

MOST_BODY = 1024 * 1024
"""Bytes of a request."""
_BODY_SECONDS = 30.0
_RETRY_SECONDS = "5"
_HIDDEN = frozenset(("authorization", "cookie", "proxy-authorization"))
_POLICY = {
    "Content-Security-Policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
}


class PluginPages:
    """Answers the requests for all such plugins, which come and go while the server runs."""

    def __init__(self, registry: PluginRegistry, binder: Binder) -> None:
        self._registry = registry
        self._binder = binder

    def bind(self) -> list[web.AbstractRouteDef]:
        """Return one route for all."""
        return [web.route("*", pages_of("{rest:.+}"), self._answer)]

    def routes(self) -> list[Route]:
        """Return the routes of the plugins that are active now, for the API description."""
        return [
            _described(plugin, method, path) for plugin in self._plugins() for method, path in plugin.pages
        ]

    def _plugins(self) -> list[AnswersHttp]:
        return [each for each in self._registry.list() if isinstance(each, AnswersHttp) and each.pages]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        found = (each for each in self._plugins() if request.path.startswith(f"{pages_of(each.name)}/"))
        plugin = next(found, None)
        # Also for an unknown plugin: without the token a client does not learn which plugins exist.
        user = "" if plugin is not None and plugin.is_public else await self._binder.authenticate(request)
        if plugin is None:
            raise NotFoundError("no plugin answers at this URL")
        given = RawRequest(
            method="GET" if request.method == "HEAD" else request.method,
            path=request.path.removeprefix(pages_of(plugin.name)),
            query=dict(request.query),
            headers={n.lower(): v for n, v in request.headers.items() if n.lower() not in _HIDDEN},
            body=await _body(request),
            user=user,
        )
        if not plugin.is_ready():
            down = OverloadedError(f"the plugin {plugin.name!r} does not run now")
            return error_response(down, {"Retry-After": _RETRY_SECONDS})
        answer = await self._ask(plugin, given)
        return web.Response(status=answer.status, headers={**_POLICY, **answer.headers}, body=answer.body)

    async def _ask(self, plugin: AnswersHttp, given: RawRequest) -> RawResponse:
        limit = self._registry.limit_of_route(plugin.name, f"{given.method} {given.path[:80]}")
        try:
            return await limit.call(plugin.answer_http, given)
        except (NotFoundError, OverloadedError):
            raise
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            log.warning("a route of a plugin failed", plugin=plugin.name, path=given.path, reason=str(error))
            raise InternalError(f"plugin {plugin.name!r} could not answer; see the log") from None


async def _body(request: web.Request) -> bytes:
    """Return the body of a request. Raises TooLargeError before more than the limit is kept."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > MOST_BODY:
                    raise TooLargeError(f"the body for a plugin is larger than {MOST_BODY:,} bytes")
    except TimeoutError:
        raise SlowRequestError(f"the body did not arrive within {_BODY_SECONDS:.0f} seconds") from None
    except web.RequestPayloadError as error:
        raise InvalidRequestError(f"the body cannot be read: {type(error).__name__}") from None
    return bytes(body)


def _described(plugin: AnswersHttp, method: str, path: str) -> Route:
    """Return a route for the API description, which knows no types of it."""
    words = re.findall(r"\w+", f"{plugin.name} {method.lower()} {path}")
    return Route(
        cast("Any", method),  # checked when the plugin was activated
        f"{pages_of(plugin.name)}{path}",
        "_".join(("page", *words)),
        f"Answered by the plugin {plugin.name}.",
        _unused,
        media="*/*",
        takes=None if method in ("GET", "DELETE") else "*/*",
        errors=(NotFoundError, InternalError, OverloadedError),
        open=plugin.is_public,
        types=Signature(_path_type(path), Nothing, Nothing, None, None, is_empty=False),
    )


@cache
def _path_type(path: str) -> type[Struct]:
    """Return the type of the parameters of a path."""
    names: list[str] = re.findall(r"\{(\w+)\}", path)
    return defstruct("_".join(("Page", *names)), [(name, str) for name in names]) if names else Nothing


async def _unused(_call: Call[Struct, Nothing, Nothing, None]) -> web.Response:
    raise TrunklineError("a described route is answered by PluginPages")
