"""Putting the server together: the guard, the gateway's own routes, and those that channels add."""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType

from aiohttp import web

from gateway.app import Gateway
from gateway.errors import SettingsError
from gateway.server.guard import Guard
from gateway.server.health import health_routes


def make_app(gateway: Gateway) -> web.Application:
    """The aiohttp application of a running gateway."""
    guard = Guard(gateway.settings.server)
    app = web.Application(middlewares=[guard.middleware], client_max_size=gateway.settings.limits.frame_bytes)
    app.on_response_prepare.append(guard.add_headers)
    app.add_routes(health_routes(gateway))
    app.add_routes(gateway.routes())
    return app


class Server:
    """Listens for as long as its block lasts. ``url`` is where."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.server
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Server:
        app = make_app(self._gateway)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
        await self._runner.setup()
        host, port = self._settings.host, self._settings.port
        site = web.TCPSite(self._runner, host, port, backlog=1024, reuse_address=True)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise SettingsError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another server.port"
            ) from None
        self.url = self._address(site)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _address(self, site: web.TCPSite) -> str:
        server = site._server
        sockets: list[socket.socket] = list(server.sockets) if isinstance(server, asyncio.Server) else []
        port = sockets[0].getsockname()[1] if sockets else self._settings.port
        name = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return f"http://{name}:{port}"
