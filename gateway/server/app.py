"""Putting the server together: the guard, the gateway's own routes, and those that channels add."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import MutableMapping
from types import TracebackType
from typing import Any

from aiohttp import web

from gateway.app import Gateway
from gateway.contract.errors import AddressInUseError, SettingsError
from gateway.server.api import Api
from gateway.server.connections import HEAD_SECONDS, connections
from gateway.server.guard import Guard
from gateway.server.routes import Binder

_HANDLERS_SECONDS = 1.0
_MAY_PASS = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)
"""Why listening fails while a predecessor still ends, or before the network of the machine is up."""


def make_app(gateway: Gateway, api: Api) -> web.Application:
    """The aiohttp application of a running gateway."""
    guard = Guard(gateway.settings.server)
    app = web.Application(middlewares=[guard.middleware], client_max_size=gateway.settings.limits.frame_bytes)
    app.on_response_prepare.append(guard.add_headers)
    app.add_routes(Binder(gateway.parts.host.auth).bind(api.routes()))
    app.add_routes(gateway.routes())
    return app


class Server:
    """Listens for as long as its block lasts. ``url`` is where.

    At the end it takes no more connections, lets the channels say goodbye to theirs, ends its streams, and
    cuts what is left. Answers that are being made go on. ``head_seconds`` is how long the head of a request
    may take to arrive.
    """

    def __init__(self, gateway: Gateway, *, head_seconds: float = HEAD_SECONDS) -> None:
        self._gateway = gateway
        self._head_seconds = head_seconds
        self._settings = gateway.settings.server
        self.url = ""

    async def __aenter__(self) -> Server:
        self._api = Api(self._gateway)
        app = make_app(self._gateway, self._api)
        self._runner = web.AppRunner(app, shutdown_timeout=_HANDLERS_SECONDS)
        await self._runner.setup()
        loop, host, port = asyncio.get_running_loop(), self._settings.host, self._settings.port
        # Without a site of aiohttp's: it cannot be told which protocol to use.
        made = connections(
            self._settings.connections_per_peer,
            self._head_seconds,
            self._runner,
            loop,
            access_log=None,
            logger=_Terse(logging.getLogger(__name__)),
        )
        try:
            self._listener = await loop.create_server(made, host, port, backlog=1024, reuse_address=True)
        except OSError as error:
            await self._runner.cleanup()
            kind = AddressInUseError if error.errno in _MAY_PASS else SettingsError
            raise kind(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another server.port"
            ) from None
        self.url = self._address()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        await self._gateway.stop_background()
        self._api.close()
        await self._runner.cleanup()

    def _address(self) -> str:
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class _Terse(logging.LoggerAdapter[logging.Logger]):
    """Logs what aiohttp could not parse by the kind of error alone: its text quotes what was sent."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        cause = kwargs.pop("exc_info", None)
        return (f"{msg} ({type(cause).__name__})" if isinstance(cause, Exception) else msg), kwargs
