"""The web application: the guard, the gateway's own routes, and the routes of channels."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import MutableMapping
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any

import msgspec
from aiohttp import web

from gateway.access.tokens import cookie_name, session_cookie
from gateway.app import Gateway
from gateway.contract.errors import AddressInUseError, SettingsError
from gateway.conversations import ConversationFinder, Selection
from gateway.plugin_services.configuration import PluginConfigs
from gateway.plugin_services.organization import TeamDirectory
from gateway.server.access import AccessRoutes
from gateway.server.connections import HEAD_SECONDS, Proxies, connection_factory
from gateway.server.console import ConsolePages, ConsoleSessions
from gateway.server.events import GatewayEvents, SessionEvents
from gateway.server.guard import Guard
from gateway.server.now import NowRoutes, Observer
from gateway.server.openapi import describe_routes
from gateway.server.plugins import (
    ConfigRoutes,
    LivePluginRoutes,
    LoginRoutes,
    PluginPages,
    TeamRoutes,
)
from gateway.server.routes import Binder, LateRoutes, PlainCall, PluginRoutes, Route
from gateway.server.sessions import BranchRoutes, FileRoutes, SearchRoutes, SessionRoutes
from gateway.server.status import StatusRoutes

_HANDLERS_SECONDS = 1.0
_OPERATOR_PATHS = (
    "/api/audit",
    "/api/console",
    "/api/dead",
    "/api/models/providers",
    "/api/models/test",
    "/api/nodes",
    "/api/plugins/states",
    "/api/questions",
    "/api/settings",
    "/api/why",
)
_TEMPORARY = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)
"""Errors of listening while a predecessor still ends, or before the machine's network is up."""


class Api:
    """The gateway's own routes."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._events = SessionEvents(gateway.parts.host)
        self._bus = GatewayEvents(gateway.events, gateway.redactor.redact_text)
        parts = gateway.parts
        self.logins = ConsoleSessions(parts.store, parts.host.auth, parts.access)
        self.observer = Observer(gateway)
        self.now = NowRoutes(self.observer, self.logins.reader_of)
        self._selection = Selection(gateway.models, gateway.profiles, lambda: gateway.model)
        self._changing = Lock()
        self._configs = PluginConfigs(gateway.settings, Path.home(), self._changing)
        apply, record = gateway.live_plugins.apply, gateway.parts.actions.decide
        self._teams = TeamDirectory(gateway.settings, Path.home(), apply, record)
        self._metrics: object = None
        self._described: object = None
        self._description: bytes = b""
        self.binder = Binder(parts.host.auth, self.logins, parts.host.logins)
        self.plugins = PluginRoutes(gateway.registry, self.binder)
        self.pages = PluginPages(gateway.registry, self.binder)
        self._late = (
            LateRoutes(self.binder, ("/v1",), "gateway.server.openai.routes", self._make_openai),
            LateRoutes(self.binder, _OPERATOR_PATHS, "gateway.server.operator.routes", self._make_operator),
        )
        self._closing = [each.close for each in (self._events, self._bus, self.now, self.observer)]

    async def routes(self) -> list[Route]:
        """Return all routes, in the order of the API description."""
        late = [route for each in self._late for route in await each.routes()]
        return [*self._early_routes(), *late]

    def bind(self) -> list[web.AbstractRouteDef]:
        """Return the aiohttp routes, those of plugins included."""
        late = [route for each in self._late for route in each.bind()]
        return [*self.binder.bind(self._early_routes()), *late, *self.plugins.bind(), *self.pages.bind()]

    def _make_openai(self) -> list[Route]:
        from gateway.server.openai.routes import OpenAiRoutes  # see LateRoutes

        openai = OpenAiRoutes(self._gateway)
        self._closing.append(openai.close)
        return openai.routes()

    def _make_operator(self) -> list[Route]:
        from gateway.server.operator.routes import operator_routes  # see LateRoutes

        return operator_routes(self._gateway, self.logins, self.observer, self._configs, self._changing)

    def _early_routes(self) -> list[Route]:
        parts = self._gateway.parts
        search = parts.conversations.search
        return [
            *SessionRoutes(parts.host, search, self._selection, ConversationFinder(parts.store)).routes(),
            *BranchRoutes(parts.host).routes(),
            *FileRoutes(parts.host).routes(),
            *SearchRoutes(search).routes(),
            *self._events.routes(),
            *self._bus.routes(),
            *self.now.routes(),
            *AccessRoutes(parts.access).routes(),
            *LivePluginRoutes(self._gateway).routes(),
            *LoginRoutes(self._gateway).routes(),
            *StatusRoutes(self._gateway, self._selection).routes(),
            *ConfigRoutes(self._configs, self._gateway.live_plugins.apply, parts.store).routes(),
            *TeamRoutes(self._gateway, self._teams).routes(),
            Route(
                "POST",
                "/api/browser",
                "rememberBrowser",
                "Set a cookie with the token for this browser session; scripts cannot read it.",
                self._set_cookie,
                success=204,
            ),
            Route(
                "DELETE",
                "/api/browser",
                "forgetBrowser",
                "End the login of this browser at the chat page, also in its other tabs.",
                self._end_cookie,
                success=204,
            ),
            Route(
                "GET",
                "/metrics",
                "readMetrics",
                "Read the metrics for Prometheus.",
                self._read_metrics,
                media="text/plain",
                role="viewer",
            ),
            Route("GET", "/openapi.json", "describe", "This API description.", self._describe, open=True),
        ]

    def close(self) -> None:
        """End the open streams and the requests that wait for an answer."""
        for close in self._closing:
            close()
        self.plugins.sockets.close()

    async def _set_cookie(self, call: PlainCall) -> web.Response:
        request, response = call.request, web.Response(status=204)
        # Behind a proxy that terminates TLS, only the page's origin shows that the browser uses TLS.
        secure = request.secure or request.headers.get("Origin", "").lower().startswith("https://")
        response.set_cookie(
            cookie_name(request.headers.get("Host", "")),
            self._gateway.parts.host.logins.begin(call.identity.account),
            path="/",
            httponly=True,
            samesite="Strict",
            secure=secure,
        )
        return response

    async def _end_cookie(self, call: PlainCall) -> web.Response:
        request, response = call.request, web.Response(status=204)
        cookie = session_cookie(request.method, request.headers, request.cookies)
        if cookie is not None:
            await self._gateway.parts.host.logins.end(cookie)
        response.del_cookie(cookie_name(request.headers.get("Host", "")), path="/")
        return response

    async def _read_metrics(self, _call: PlainCall) -> web.Response:
        from gateway.server.metrics import Metrics  # slow to import, and many gateways never need it

        if not isinstance(self._metrics, Metrics):
            self._metrics = Metrics(self._gateway)
        return await self._metrics.respond()

    async def _describe(self, _call: PlainCall) -> web.Response:
        if self._described is not self._gateway.registry.current:
            self._described = self._gateway.registry.current
            host, plugins = self._gateway.parts.host, self.plugins.routes()
            own = [*await self.routes(), *self.pages.routes()]
            description = describe_routes(own, host.version, plugins, guarded=not host.auth.open)
            self._description = msgspec.json.encode(description)
        return web.Response(body=self._description, content_type="application/json")


def make_app(gateway: Gateway, api: Api) -> web.Application:
    """Return the aiohttp application of a running gateway."""
    guard = Guard(gateway.settings.server, gateway.settings.share.base_url)
    app = web.Application(middlewares=[guard.middleware], client_max_size=gateway.settings.limits.frame_bytes)
    app.on_response_prepare.append(guard.add_headers)
    app.add_routes(api.bind())
    app.add_routes(ConsolePages().bind())
    app.add_routes(gateway.routes())
    return app


class Server:
    """The listening server, as an async context manager. ``url`` is its address.

    On exit it stops listening, lets the channels close their connections, ends its streams, and cuts the
    remaining connections. Running answers continue. ``head_seconds`` limits the time in which the headers of
    a request must arrive. ``bound`` is a bound socket to listen at, instead of the address in the settings.
    """

    def __init__(
        self, gateway: Gateway, *, head_seconds: float = HEAD_SECONDS, bound: socket.socket | None = None
    ) -> None:
        self._gateway = gateway
        self._head_seconds = head_seconds
        self._bound = bound
        self._settings = gateway.settings.server
        self.url = ""

    async def __aenter__(self) -> Server:
        self._api = Api(self._gateway)
        app = make_app(self._gateway, self._api)
        self._runner = web.AppRunner(app, shutdown_timeout=_HANDLERS_SECONDS)
        await self._runner.setup()
        loop, host, port = asyncio.get_running_loop(), self._settings.host, self._settings.port
        # Not a site of aiohttp: that takes no protocol factory.
        self.accept = connection_factory(
            self._settings.connections_per_peer,
            Proxies(self._settings.trusted_proxies),
            self._head_seconds,
            self._runner,
            loop,
            access_log=None,
            logger=_ParserLog(logging.getLogger(__name__)),
        )
        try:
            if self._bound is None:
                self._listener = await loop.create_server(
                    self.accept, host, port, backlog=1024, reuse_address=True
                )
            else:
                self._listener = await loop.create_server(self.accept, sock=self._bound, backlog=1024)
        except OSError as error:
            await self._runner.cleanup()
            kind = AddressInUseError if error.errno in _TEMPORARY else SettingsError
            of_port = error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EPERM)
            key = "server.port" if of_port else "server.host"
            raise kind(f"cannot listen on {host}:{port}: {error.strerror}; choose another {key}") from None
        self._tasks = await asyncio.TaskGroup().__aenter__()
        self._observing = self._tasks.create_task(self._api.observer.run(), name="observer")
        host, port = self._listener.sockets[0].getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        await self._gateway.stop_background()
        self._api.close()
        self._observing.cancel()
        await self._tasks.__aexit__(None, None, None)
        await self._runner.cleanup()


class _ParserLog(logging.LoggerAdapter[logging.Logger]):
    """Adapter that logs aiohttp's parse errors by their class alone: their text quotes the request.

    It logs no ConnectionError: the client left in the middle of its response, or the guard logged the cause.
    """

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message of aiohttp."""
        if not isinstance(kwargs.get("exc_info"), ConnectionError):
            super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        cause = kwargs.pop("exc_info", None)
        return (f"{msg} ({type(cause).__name__})" if isinstance(cause, Exception) else msg), kwargs
