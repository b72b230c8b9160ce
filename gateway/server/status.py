"""Health checks, the status of the gateway, and the use of models."""

from __future__ import annotations

from aiohttp import web
from msgspec import Struct

from gateway.app import Gateway
from gateway.contract.channel import Health
from gateway.models.report import UsageQuery, UsageReport, usage_report
from gateway.server.responses import json_response
from gateway.server.routes import Call, Nothing, PlainCall, Route


class Liveness(Struct, frozen=True):
    """The process is alive."""

    ok: bool


class Readiness(Struct, frozen=True):
    """Readiness: whether all required parts work, and the state of each. ``/api/status`` has the details."""

    ok: bool
    parts: dict[str, bool]


class GatewayStatus(Struct, frozen=True):
    """Status of the gateway. ``uptime`` is in seconds; ``waiting`` counts messages without an answer."""

    version: str
    model: str
    uptime: float
    waiting: int
    sessions: int
    running: int
    clients: dict[str, int]
    channels: dict[str, Health]


class StatusRoutes:
    """``/api/status`` and ``/api/usage``; ``/healthz`` and ``/readyz``, which need no token."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "GET",
                "/api/usage",
                "readUsage",
                "Tokens and cost of model calls, and the state of the budgets.",
                self._usage,
            ),
            Route("GET", "/healthz", "isAlive", "Check that the process is alive.", self._alive, open=True),
            Route(
                "GET",
                "/readyz",
                "isReady",
                "Check that all parts work, optional channels excepted.",
                self._ready,
                sends=Readiness,
                also={503: Readiness},
                open=True,
            ),
            Route("GET", "/api/status", "showStatus", "Show the status of the gateway.", self._status),
        ]

    async def _usage(self, call: Call[Nothing, UsageQuery, Nothing, None]) -> UsageReport:
        spending = self._gateway.parts.spending
        return await usage_report(spending.ledger, spending.budgets.all, call.query)

    async def _alive(self, _call: PlainCall) -> Liveness:
        return Liveness(ok=True)

    async def _ready(self, _call: PlainCall) -> web.Response:
        parts = {name: ok for name, (ok, _detail) in self._gateway.health().items()}
        ok = self._gateway.is_ready()
        return json_response(Readiness(ok, parts), 200 if ok else 503)

    async def _status(self, _call: PlainCall) -> GatewayStatus:
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
