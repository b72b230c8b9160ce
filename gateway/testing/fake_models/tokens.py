"""A fake token service: OAuth 2 grants, the device flow, token exchange, and a Google service account."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from aiohttp import web

from gateway.contract.errors import SettingsError

RIGHT = "right"
"""The only accepted secret: of a client, or as a user's token."""

_DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
_ASSERTION = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class FakeTokens:
    """A service that issues ``token-1``, ``token-2`` …, valid for ``lifetime`` seconds.

    ``asked`` are all received forms and headers. A device login is ``waits`` times pending before it is
    granted, or is refused with the error ``denied``; its code is valid for ``patience`` seconds. ``place`` is
    the endpoint in exchanged tokens; ``broken`` fails every exchange. With ``ends`` a login is valid for so
    many seconds and can be refreshed, each time with the latest refresh token.
    """

    def __init__(
        self,
        lifetime: float = 3600,
        *,
        waits: int = 0,
        denied: str = "",
        patience: float = 900,
        place: str = "",
        broken: bool = False,
        ends: float = 0,
    ) -> None:
        self.lifetime = lifetime
        self.waits = waits
        self.denied = denied
        self.patience = patience
        self.broken = broken
        self.ends = ends
        self.renewed = 0
        self.place = place
        self.asked: list[Mapping[str, str]] = []
        self.given = 0
        self.url = ""
        self._runner: web.AppRunner | None = None

    @property
    def token_url(self) -> str:
        """The URL for grants."""
        return f"{self.url}/login/oauth/access_token"

    async def __aenter__(self) -> FakeTokens:
        app = web.Application()
        app.router.add_post("/login/oauth/access_token", self._grant)
        app.router.add_post("/login/device/code", self._device)
        app.router.add_get("/copilot_internal/v2/token", self._exchange)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _grant(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.asked.append(form)
        match form.get("grant_type"):
            case "client_credentials" if form.get("client_secret") == RIGHT:
                return self._granted()
            case grant if grant == _ASSERTION and form.get("assertion", "").count(".") == 2:
                return self._granted()
            case grant if grant == _DEVICE:
                return self._after_login()
            case "refresh_token":
                return self._renewed(form.get("refresh_token", ""))
            case _:
                error = {"error": "invalid_client", "error_description": "unknown client"}
                return web.json_response(error, status=401)

    def _after_login(self) -> web.Response:
        if self.denied:
            return web.json_response({"error": self.denied})
        if self.waits > 0:
            self.waits -= 1
            return web.json_response({"error": "authorization_pending"})
        return self._logged_in()

    def _renewed(self, shown: str) -> web.Response:
        if shown != f"refresh-{self.renewed}":
            return web.json_response({"error": "bad_refresh_token"})
        self.renewed += 1
        return self._logged_in()

    def _logged_in(self) -> web.Response:
        token = {"access_token": RIGHT, "token_type": "bearer", "scope": "read:user"}
        lifetime = {"expires_in": self.ends, "refresh_token": f"refresh-{self.renewed}"} if self.ends else {}
        return web.json_response(token | lifetime)

    async def _device(self, request: web.Request) -> web.Response:
        self.asked.append({name: str(value) for name, value in (await request.post()).items()})
        return web.json_response(
            {
                "device_code": "device",
                "user_code": "ABCD-1234",
                "verification_uri": f"{self.url}/login/device",
                "expires_in": self.patience,
                "interval": 0,
            }
        )

    async def _exchange(self, request: web.Request) -> web.Response:
        self.asked.append({name.lower(): value for name, value in request.headers.items()})
        if self.broken:
            return web.Response(status=502)
        if request.headers.get("authorization") != f"token {RIGHT}":
            return web.json_response({"message": "Bad credentials", "status": "401"}, status=401)
        token = self._next()
        expires_at = int(time.time() + self.lifetime)
        endpoints = {"api": self.place} if self.place else {}
        return web.json_response({"token": token, "expires_at": expires_at, "endpoints": endpoints})

    def _granted(self) -> web.Response:
        token = {"access_token": self._next(), "expires_in": self.lifetime, "token_type": "Bearer"}
        return web.json_response(token)

    def _next(self) -> str:
        self.given += 1
        return f"token-{self.given}"


@cache
def private_key() -> str:
    """Return a key in PEM, which is created once. Raises SettingsError if the extra is not installed."""
    try:
        # A dependency of Google's library, which is an extra.
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa
    except ImportError:
        raise SettingsError(
            "provider 'vertex' needs the extra vertex: pip install 'trunkline[vertex]'"
        ) from None
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    kind, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, kind, plain).decode()


def account(token_url: str) -> dict[str, str]:
    """Return the content of the service account's file."""
    return {
        "type": "service_account",
        "project_id": "ours",
        "private_key_id": "1",
        "private_key": private_key(),
        "client_email": "bot@ours.example",
        "client_id": "7",
        "token_uri": token_url,
    }


@asynccontextmanager
async def with_account(_: str = "", tokens: FakeTokens | None = None) -> AsyncGenerator[Mapping[str, Any]]:
    """Yield the settings of a provider with this service account."""
    with TemporaryDirectory() as folder:
        async with tokens or FakeTokens() as running:
            file = Path(folder) / "account.json"
            file.write_text(json.dumps(account(running.token_url)))
            yield {"project_id": "ours", "credentials": {"file": str(file)}}
