"""Health checks, the status of the gateway, and the use and choice of models."""

from __future__ import annotations

from typing import Annotated, Literal

from aiohttp import web
from msgspec import Meta, Struct

from gateway.app import Gateway
from gateway.contract.errors import ForbiddenError
from gateway.conversations import AgentChoice, ModelChoice, Selection
from gateway.models.report import UsageQuery, UsageReport, usage_report, usage_table
from gateway.server.responses import csv_response, json_response
from gateway.server.routes import Call, Nothing, PlainCall, Route


class Liveness(Struct, frozen=True):
    """The process is alive."""

    ok: bool


class Readiness(Struct, frozen=True):
    """Readiness: whether all required parts work, and the state of each. ``/api/status`` has the details."""

    ok: bool
    parts: dict[str, bool]


class ChannelState(Struct, frozen=True):
    """State of a channel: ``ok`` if it works, and the reason if it does not."""

    ok: bool
    detail: str = ""


class GatewayStatus(Struct, frozen=True):
    """Status of the gateway. ``uptime`` is in seconds; ``waiting`` counts messages without an answer."""

    version: str
    model: str
    uptime: float
    waiting: int
    sessions: int
    running: int
    clients: dict[str, int]
    channels: dict[str, ChannelState]


class ModelChoices(Struct, frozen=True):
    """The models that a session can use, the gateway's first."""

    models: list[ModelChoice]


class AgentChoices(Struct, frozen=True):
    """The agents that a session can use, ``main`` first."""

    agents: list[AgentChoice]


class UsageRequest(UsageQuery, frozen=True, omit_defaults=True):
    """A query with the format of its answer. Users are named by channel and id, such as ``telegram:42``."""

    format: Annotated[Literal["json", "csv"], Meta(description="csv: the rows alone, as a table")] = "json"


class StatusRoutes:
    """Routes of status, usage, models, agents and health; ``/healthz`` and ``/readyz`` need no token."""

    def __init__(self, gateway: Gateway, selection: Selection) -> None:
        self._gateway = gateway
        self._selection = selection

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "GET",
                "/api/usage",
                "readUsage",
                "Tokens and cost of model calls by one or two keys, and the state of the budgets.",
                self._usage,
                sends=UsageReport,
                media="text/csv",
                errors=(ForbiddenError,),
                role="viewer",
                hides=("top.title",),
            ),
            Route(
                "GET",
                "/api/models",
                "listChoices",
                "List the models that a session can use.",
                self._models,
                role="viewer",
            ),
            Route(
                "GET",
                "/api/agents",
                "listAgents",
                "List the agents that a session can use.",
                self._agents,
                role="viewer",
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
            Route(
                "GET",
                "/api/status",
                "showStatus",
                "Show the status of the gateway.",
                self._status,
                role="viewer",
            ),
        ]

    async def _usage(self, call: Call[Nothing, UsageRequest, Nothing, None]) -> UsageReport | web.Response:
        spending, asked = self._gateway.parts.spending, call.query
        report = await usage_report(spending.ledger, spending.budgets.all, asked)
        if asked.format == "csv":
            return csv_response(usage_table(report), f"usage-by-{asked.by}-{asked.days}-days")
        return report

    async def _models(self, _call: PlainCall) -> ModelChoices:
        return ModelChoices([*await self._selection.models()])

    async def _agents(self, _call: PlainCall) -> AgentChoices:
        return AgentChoices([*self._selection.agents()])

    async def _alive(self, _call: PlainCall) -> Liveness:
        return Liveness(ok=True)

    async def _ready(self, _call: PlainCall) -> web.Response:
        parts = {name: ok for name, (ok, _detail) in self._gateway.health().items()}
        ok = self._gateway.is_ready()
        return json_response(Readiness(ok, parts), 200 if ok else 503)

    async def _status(self, _call: PlainCall) -> GatewayStatus:
        gateway = self._gateway
        live = gateway.parts.sessions.live()
        channels = {name: ChannelState(ok, detail) for name, (ok, detail) in gateway.health().items()}
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
