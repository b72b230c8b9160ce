"""The server of a node that stands by: it says which node works, so that a proxy sends clients there."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web
from msgspec import Struct

from gateway.cluster.membership import Membership
from gateway.contract.errors import AddressInUseError, StoreError, StoreUnavailableError
from gateway.settings import ServerSettings


class StandbyServer:
    """Answers ``/healthz`` with 200 and all else with 503, at the address of the gateway's server."""

    def __init__(self, settings: ServerSettings, membership: Membership) -> None:
        self._settings = settings
        self._membership = membership
        self._runner = web.ServerRunner(web.Server(self._answer, access_log=None))

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        settings = self._settings
        site = web.TCPSite(self._runner, settings.host, settings.port, reuse_address=True)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise AddressInUseError(
                f"cannot listen on {settings.host}:{settings.port}: {error.strerror}"
            ) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        name = self._membership.name
        try:
            active = (await self._membership.find_owner()).name
        except StoreError as error:
            active, reason = None, f"node {name} cannot reach the database: {error}"
        else:
            works = "no node works at the moment" if active is None else f"node {active} works"
            reason = f"node {name} stands by; {works}"
        alive = request.path == "/healthz"
        body = _Standby(alive, "standby", name, active, StoreUnavailableError.__name__, reason)
        return web.Response(
            body=msgspec.json.encode(body),
            status=200 if alive else 503,
            headers={} if alive else {"Retry-After": "1"},
            content_type="application/json",
        )


class _Standby(Struct, frozen=True):
    """The body of each response. The last two fields are those of every error of the gateway."""

    ok: bool
    state: str
    node: str
    active: str | None
    error_name: str
    message: str
