"""The websockets of plugins, from the request to the end of the client, the handler, the plugin or the token.

Until a handler first receives or sends, its errors are HTTP responses; after that they are close codes: 4000
and the status of the error, such as 4404.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from gateway.contract.errors import (
    CATCHABLE,
    InternalError,
    OverloadedError,
    TrunklineError,
    is_cancellation_requested,
)
from gateway.contract.plugin import ApiCall
from gateway.extensions.registry import PluginRegistry
from gateway.extensions.routes import PluginRoute
from gateway.server.errors import UpgradeRequiredError
from gateway.server.responses import abort_connection

log = structlog.get_logger("trunkline.server")

FRAME_BYTES = 1024 * 1024
"""The largest frame, in both directions."""
_HEARTBEAT = 30.0
_CLOSE_SECONDS = 1.0
_SLOW_SECONDS = 30.0
_CHECK_SECONDS = 60.0
_ERROR_CODES = 4000
_REASON_BYTES = 120


class PluginSockets:
    """The open websockets of plugins. ``authenticate`` returns the user of a request, or raises.

    A client that does not read for ``slow_seconds`` is dropped. Its token is checked every ``check_seconds``.
    """

    def __init__(
        self, registry: PluginRegistry, authenticate: Callable[[web.Request], Awaitable[str]]
    ) -> None:
        self.slow_seconds = _SLOW_SECONDS
        self.check_seconds = _CHECK_SECONDS
        self._registry = registry
        self._authenticate = authenticate
        self._open: set[_Socket] = set()

    def close(self) -> None:
        """End all of them; clients reconnect later."""
        for socket in tuple(self._open):
            socket.end("the gateway is restarting; reconnect")

    async def serve(
        self, request: web.Request, found: PluginRoute, call: ApiCall[Any, Any, None]
    ) -> web.StreamResponse:
        """Run the handler of a plugin. Raises its error if that comes before the upgrade."""
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise UpgradeRequiredError("this URL is a websocket; send the headers of an upgrade")
        socket = _Socket(request, self.slow_seconds)
        self._open.add(socket)
        remove = self._registry.on_end(found.plugin, lambda: socket.end("the plugin ended; reconnect"))
        try:
            async with asyncio.TaskGroup() as tasks:
                handling = tasks.create_task(self._handle(found, call, socket))
                ending = tasks.create_task(self._until_ended(request, socket))
                await asyncio.wait([handling, ending], return_when=asyncio.FIRST_COMPLETED)
                first = handling if handling.done() else ending
                handling.cancel()
                ending.cancel()
            await socket.finish(first.result())
        finally:
            remove()
            self._open.discard(socket)
        return socket.response

    async def _handle(
        self, found: PluginRoute, call: ApiCall[Any, Any, None], socket: _Socket
    ) -> TrunklineError | None:
        """Return the error that the client gets; None if the socket ends as it should."""
        limit = self._registry.limit_of_route(found.plugin, found.place)
        try:
            async with asyncio.timeout(limit.seconds) as socket.accepting:
                await cast("Any", found.route.handler)(call, socket)
        except TrunklineError as error:
            return error
        except ConnectionError:
            return None
        except CATCHABLE as error:
            if is_cancellation_requested(error):
                raise
            log.exception("a websocket of a plugin failed", plugin=found.plugin, route=found.route.path)
            name = type(error).__name__
            return InternalError(f"plugin {found.plugin!r} could not answer: {name}; see the log")
        return None

    async def _until_ended(self, request: web.Request, socket: _Socket) -> TrunklineError:
        """Return why the socket has to end."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.check_seconds):
                    return await asyncio.shield(socket.ended)
            try:
                await self._authenticate(request)
            except TrunklineError as error:
                return error


class _Socket:
    """The connection that the handler of a plugin gets."""

    def __init__(self, request: web.Request, slow_seconds: float) -> None:
        self.response = web.WebSocketResponse(
            compress=False, heartbeat=_HEARTBEAT, max_msg_size=FRAME_BYTES, timeout=_CLOSE_SECONDS
        )
        self.ended: asyncio.Future[TrunklineError] = asyncio.get_running_loop().create_future()
        self.accepting: asyncio.Timeout | None = None
        self._request = request
        self._slow_seconds = slow_seconds
        self._lock = asyncio.Lock()
        """The upgrade is sent once, also if the first frames are received and sent by two tasks."""

    def end(self, reason: str) -> None:
        """End the socket soon, although its handler runs."""
        if not self.ended.done():
            self.ended.set_result(OverloadedError(reason))

    async def receive(self) -> str | bytes | None:
        """Return the next frame; None after the client closed."""
        await self._accept()
        message = await self.response.receive()
        return message.data if message.type in (WSMsgType.TEXT, WSMsgType.BINARY) else None

    async def send(self, data: str | bytes) -> None:
        """Send a frame. Raises ConnectionError if the client is gone, or does not read."""
        if len(data) > FRAME_BYTES:
            raise ValueError(f"a frame has at most {FRAME_BYTES:,} bytes, not {len(data):,}")
        await self._accept()
        try:
            async with asyncio.timeout(self._slow_seconds):
                if isinstance(data, str):
                    await self.response.send_str(data)
                else:
                    await self.response.send_bytes(data)
        except TimeoutError:
            abort_connection(self._request)
            raise ConnectionResetError("the client does not read") from None

    async def finish(self, error: TrunklineError | None) -> None:
        """Close with the code of an error. Raises it if the request was not upgraded yet."""
        if error is not None and not self.response.prepared:
            raise error
        self.accepting = None  # the handler and its time limit have ended
        await self._accept()
        code, reason = int(WSCloseCode.OK), ""
        if error is not None:
            is_restart = isinstance(error, OverloadedError)
            code = WSCloseCode.SERVICE_RESTART if is_restart else _ERROR_CODES + error.status
            reason = str(error)
        try:
            async with asyncio.timeout(2 * _CLOSE_SECONDS):
                await self.response.close(code=code, message=reason.encode()[:_REASON_BYTES])
        except TimeoutError:
            abort_connection(self._request)

    async def _accept(self) -> None:
        async with self._lock:
            if not self.response.prepared:
                await self.response.prepare(self._request)
                if self.accepting is not None:
                    self.accepting.reschedule(None)
