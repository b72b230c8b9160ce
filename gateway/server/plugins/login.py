"""Logins of model providers whose tokens a plugin gives: a stream of what the plugin shows, and the end."""

from __future__ import annotations

import asyncio
import math
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from gateway.app import Gateway
from gateway.contract.errors import PluginError
from gateway.server.responses import KEEP_ALIVE, EventStream
from gateway.server.routes import Call, Nothing, Route

_HEARTBEAT = 15.0


class Login(Struct, frozen=True, forbid_unknown_fields=True):
    """A model provider whose setting ``auth`` names a plugin."""

    provider: Annotated[str, Meta(min_length=1, max_length=100)]


class LoginRoutes:
    """The route of logins."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        """Return the route."""
        return [
            Route(
                "POST",
                "/api/plugins/login",
                "logInByPlugin",
                "Start the login of a provider's plugin: events with notice, then error or expires_at.",
                self._log_in,
                media="text/event-stream",
                needs_proof=True,
            )
        ]

    async def _log_in(self, call: Call[Nothing, Nothing, Nothing, Login]) -> web.StreamResponse:
        stream = EventStream(call.request)
        await stream.begin(KEEP_ALIVE)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self._end_of(call.body.provider, stream))
            while not (await asyncio.wait([running], timeout=_HEARTBEAT))[0]:
                stream.put(KEEP_ALIVE)
                await stream.drain()
        stream.put(_event(running.result()))
        await stream.drain()
        return stream.response

    async def _end_of(self, provider: str, stream: EventStream) -> dict[str, Any]:
        def show(text: str) -> None:
            stream.put(_event({"notice": text}))

        try:
            expires_at = await self._gateway.live_plugins.log_in(provider, show)
        except PluginError as error:
            return {"error": str(error)}
        return {"expires_at": 0 if expires_at == math.inf else expires_at}


def _event(fields: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(fields)
