"""Whether the process lives, whether all its parts work, and what it is doing."""

from __future__ import annotations

from aiohttp import web
from msgspec import Struct

from gateway.app import Gateway
from gateway.contract.channel import Health
from gateway.server.answers import json_answer
from gateway.server.routes import Call, Nothing, Route

Plain = Call[Nothing, Nothing, Nothing, None]


class Alive(Struct, frozen=True):
    """The process answers."""

    ok: bool


class Readiness(Struct, frozen=True):
    """Whether all parts work that are not optional, and which do. ``/api/status`` says what is wrong."""

    ok: bool
    parts: dict[str, bool]


class GatewayStatus(Struct, frozen=True):
    """What the gateway is doing: times in seconds; ``waiting`` messages are accepted and not answered yet."""

    version: str
    model: str
    uptime: float
    waiting: int
    sessions: int
    running: int
    clients: dict[str, int]
    channels: dict[str, Health]


class HealthRoutes:
    """``/healthz`` and ``/readyz``, which need no token and tell no more than names; ``/api/status``."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route(
                method="GET",
                path="/healthz",
                name="isAlive",
                summary="Whether the process lives.",
                call=self._alive,
                answer=Alive,
                open=True,
            ),
            Route(
                method="GET",
                path="/readyz",
                name="isReady",
                summary="Whether all parts work, apart from optional channels.",
                call=self._ready,
                answer=Readiness,
                also={503: Readiness},
                open=True,
            ),
            Route(
                method="GET",
                path="/api/status",
                name="showStatus",
                summary="What the gateway is doing.",
                call=self._status,
                answer=GatewayStatus,
            ),
        ]

    async def _alive(self, _call: Plain) -> Alive:
        return Alive(ok=True)

    async def _ready(self, _call: Plain) -> web.Response:
        parts = {name: ok for name, (ok, _detail) in self._gateway.health().items()}
        ok = self._gateway.is_ready()
        return json_answer(Readiness(ok, parts), 200 if ok else 503)

    async def _status(self, _call: Plain) -> GatewayStatus:
        gateway = self._gateway
        live = gateway.parts.sessions.live()
        channels = {name: Health(ok=ok, detail=detail) for name, (ok, detail) in gateway.health().items()}
        for part in ("gateway", "store"):
            channels.pop(part, None)
        return GatewayStatus(
            version=gateway.parts.host.version,
            model=gateway.model,
            uptime=gateway.counters.uptime,
            waiting=gateway.parts.dispatcher.waiting,
            sessions=len(live),
            running=sum(session.turn is not None for session in live),
            clients=dict(gateway.counters.clients),
            channels=channels,
        )
