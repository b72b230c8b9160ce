"""Routes whose modules are imported with the first request."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import ClientSession

from gateway.server.app import Api, make_app
from gateway.testing.served import serving


async def test_every_described_route_is_found(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        api = Api(served.gateway)
        bound = [each.resource.canonical for each in make_app(served.gateway, api).router.routes()]
        late = tuple(path.removesuffix("{rest}") for path in bound if path.endswith("{rest}"))
        paths = {route.path for route in await api.routes()}
    missing = [path for path in paths if path not in bound and not path.startswith(late)]
    assert "/api/audit" in late
    assert missing == []


async def test_first_requests_that_come_together_are_all_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, ClientSession(served.url) as client:

        async def ask(method: str, path: str) -> int:
            async with client.request(method, path) as answer:
                assert answer.content_type == "application/json"
                return answer.status

        asked = [ask("GET", path) for path in ("/api/audit", "/api/settings", "/v1/models", "/api/dead")]
        assert await asyncio.gather(*asked, *(ask("GET", "/api/audit") for _ in range(10))) == [200] * 14
        assert await ask("DELETE", "/api/audit") == 405
        assert await ask("GET", "/api/audit/nothing") == 404
        assert await ask("GET", "/api/auditors") == 404
        assert await ask("GET", "/api/dead/999") == 404
        # A line break is a part of the id, as it is in a path of the other routes.
        assert await ask("GET", "/api/why/%0d%0aX:y") == 200
