"""``/healthz`` and ``/readyz``: whether the process lives, and whether all its parts work."""

from __future__ import annotations

from aiohttp import web

from gateway.app import Gateway


def health_routes(gateway: Gateway) -> list[web.RouteDef]:
    """The two routes; neither needs a token, and neither tells more than names and states."""

    async def healthz(_request: web.Request) -> web.Response:
        return web.json_response({"ok": True})

    async def readyz(_request: web.Request) -> web.Response:
        parts = {name: {"ok": ok, "detail": detail} for name, (ok, detail) in gateway.health().items()}
        ok = all(part["ok"] for part in parts.values())
        return web.json_response({"ok": ok, "parts": parts}, status=200 if ok else 503)

    return [web.get("/healthz", healthz), web.get("/readyz", readyz)]
