"""The one route table: all that the server itself offers, and its description."""

from __future__ import annotations

import msgspec
from aiohttp import web

from gateway.access.tokens import cookie_name
from gateway.app import Gateway
from gateway.server.approvals import ApprovalRoutes
from gateway.server.dead import DeadRoutes
from gateway.server.events import EventStreams
from gateway.server.health import HealthRoutes, Plain
from gateway.server.openai.routes import OpenAiRoutes
from gateway.server.openapi import described
from gateway.server.pairs import PairRoutes
from gateway.server.routes import Route
from gateway.server.sessions import SessionRoutes
from gateway.server.usage import UsageRoutes


class Api:
    """The gateway's own routes."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._streams = EventStreams(gateway.parts.host)
        self._openai = OpenAiRoutes(gateway)
        self._metrics: object = None
        self._document: bytes = b""

    def routes(self) -> list[Route]:
        """Every route there is, in the order of the description."""
        return [
            *SessionRoutes(self._gateway.parts.host).routes(),
            *self._streams.routes(),
            *DeadRoutes(self._gateway.parts.dead_letters).routes(),
            *self._openai.routes(),
            *ApprovalRoutes(self._gateway.parts.access).routes(),
            *PairRoutes(self._gateway.parts.access).routes(),
            *UsageRoutes(self._gateway.parts.spending).routes(),
            *HealthRoutes(self._gateway).routes(),
            *self._about(),
        ]

    def close(self) -> None:
        """End the answers that stay open."""
        self._streams.close()
        self._openai.close()

    def _about(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/api/browser",
                name="rememberBrowser",
                summary="Remember the token for this browser session, in a cookie that scripts cannot read.",
                call=self._remember,
                status=204,
            ),
            Route(
                method="GET",
                path="/metrics",
                name="readMetrics",
                summary="Figures for Prometheus.",
                call=self._read_metrics,
                media="text/plain",
            ),
            Route(
                method="GET",
                path="/openapi.json",
                name="describe",
                summary="This description.",
                call=self._describe,
                open=True,
            ),
        ]

    async def _remember(self, call: Plain) -> web.Response:
        request, answer = call.request, web.Response(status=204)
        # Behind a proxy that ends TLS only the page's origin tells that the browser speaks TLS.
        secure = request.secure or request.headers.get("Origin", "").lower().startswith("https://")
        answer.set_cookie(
            cookie_name(request.headers.get("Host", "")),
            self._gateway.parts.host.auth.cookie(),
            path="/",
            httponly=True,
            samesite="Strict",
            secure=secure,
        )
        return answer

    async def _read_metrics(self, _call: Plain) -> web.Response:
        from gateway.server.metrics import Metrics  # many are never asked for it, and it is slow to load

        if not isinstance(self._metrics, Metrics):
            self._metrics = Metrics(self._gateway)
        return await self._metrics.answer()

    async def _describe(self, _call: Plain) -> web.Response:
        if not self._document:
            host = self._gateway.parts.host
            document = described(self.routes(), host.version, guarded=not host.auth.open)
            self._document = msgspec.json.encode(document)
        return web.Response(body=self._document, content_type="application/json")
