"""Logging in at a remote server: OAuth 2.1 in the operator's browser, by the SDK.

The SDK finds the authorization server, registers a client there and exchanges the code (PKCE). Only the
command imports this; the gateway uses and renews the login that is kept.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urljoin

import httpx2
from aiohttp import web
from mcp.client.auth import (
    AuthorizationCodeResult,
    OAuthClientProvider,
    OAuthFlowError,
    OAuthRegistrationError,
    OAuthTokenError,
)
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from gateway.contract.errors import PluginError
from gateway.mcp.remote import LOOPBACK, Login, Proxied, bounded
from gateway.settings import McpServerSettings
from gateway.version import VERSION

_BROWSER_SECONDS = 300.0
"""Time that the operator has in the browser."""
_FIRST = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "trunkline", "version": VERSION},
    },
}
"""A request that every server refuses without a login, if it wants one."""


class RegistrationRefused(PluginError):
    """The server has no dynamic registration of clients."""


async def log_in(settings: McpServerSettings, show: Callable[[str], None]) -> Login:
    """Let the operator log in; ``show`` gets the address to open. Raises PluginError."""
    assert settings.url is not None, "the server is a remote one"
    kept = _Tokens()
    try:
        async with (
            asyncio.timeout(_BROWSER_SECONDS),
            _callback(settings.callback_port or 0) as (address, result),
        ):
            kept.client = _registered(settings, address)

            async def redirect(url: str) -> None:
                show(url)

            async def come_back() -> AuthorizationCodeResult:
                return await result

            about = OAuthClientMetadata(
                client_name="Trunkline",
                redirect_uris=[AnyUrl(address)],
                grant_types=["authorization_code", "refresh_token"],
                token_endpoint_auth_method="none",  # noqa: S106 - the name of a method
                application_type="native",
            )
            oauth = OAuthClientProvider(settings.url, about, kept, redirect, come_back)
            timeout = httpx2.Timeout(settings.timeout / 1000)
            client = httpx2.AsyncClient(auth=oauth, timeout=timeout, transport=_Transport())
            accept = {"Accept": "application/json, text/event-stream"}
            with _silenced():
                async with client, client.stream("POST", settings.url, json=_FIRST, headers=accept) as last:
                    status = last.status_code
    except TimeoutError:
        raise PluginError(
            f"the browser did not come back within {_BROWSER_SECONDS / 60:.0f} minutes"
        ) from None
    except OAuthRegistrationError as error:
        text = (
            "the server registers no clients; register one there with the address "
            "http://127.0.0.1:PORT/callback, and set client_id, client_secret and callback_port, or set its "
            f"headers with a token of its own ({error})"
        )
        raise RegistrationRefused(text[:500]) from None
    except (OAuthFlowError, OAuthTokenError, httpx2.HTTPError, ValueError) as error:
        raise PluginError(f"the login failed: {str(error)[:300] or type(error).__name__}") from None
    if kept.tokens is None:
        raise PluginError(f"the server asks for no login; it answered with status {status}")
    return _login(oauth, kept.tokens)


def _registered(settings: McpServerSettings, address: str) -> OAuthClientInformationFull | None:
    """Return the client of the settings, or None."""
    if settings.client_id is None:
        return None
    secret = settings.client_secret
    return OAuthClientInformationFull(
        client_id=settings.client_id,
        client_secret=secret.get_secret_value() if secret else None,
        redirect_uris=[AnyUrl(address)],
        grant_types=["authorization_code", "refresh_token"],
        # The method that all authorization servers have (RFC 6749, section 2.3.1).
        token_endpoint_auth_method="client_secret_basic" if secret else "none",
    )


def _login(oauth: OAuthClientProvider, tokens: OAuthToken) -> Login:
    """Return what is needed to use and renew the tokens."""
    context = oauth.context
    metadata, client = context.oauth_metadata, context.client_info
    default = urljoin(context.get_authorization_base_url(context.server_url), "/token")
    has_resource = context.should_include_resource_param(context.protocol_version)
    return Login(
        access=tokens.access_token,
        refresh=tokens.refresh_token or "",
        expires_at=time.time() + tokens.expires_in if tokens.expires_in else 0.0,
        token_url=str(metadata.token_endpoint) if metadata else default,
        client_id=(client.client_id if client else None) or "",
        client_secret=(client.client_secret if client else None) or "",
        with_basic=client is not None and client.token_endpoint_auth_method == "client_secret_basic",  # noqa: S105
        resource=context.get_resource_url() if has_resource else "",
    )


class _Tokens:
    """Storage of the SDK for one login.

    Without a ``client`` of the settings each one registers a client, because its callback has a new port.
    """

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep nothing; the context of the SDK has it."""


class _Transport(Proxied):
    """Connections with TLS, or to this machine, that bound what they read."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.scheme != "https" and request.url.host not in LOOPBACK:
            # The server names the addresses of the login, and tokens travel there.
            raise OAuthFlowError(f"{request.url.copy_with(query=None)} must be https")
        return bounded(await super().handle_async_request(request), lambda _problem: None)


@asynccontextmanager
async def _callback(port: int) -> AsyncGenerator[tuple[str, asyncio.Future[AuthorizationCodeResult]]]:
    """Serve the address to which the browser comes back; yield it, and what it will bring.

    Raises PluginError if the port is in use; 0 is any.
    """
    result: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    async def come_back(request: web.Request) -> web.Response:
        given = request.query
        if "error" in given:
            said = f"the authorization server refused: {given['error']} {given.get('error_description', '')}"
            if not result.done():
                result.set_exception(OAuthFlowError(said[:300].strip()))
            return web.Response(text="The login was refused. You can close this page.", status=400)
        if not result.done():
            code = AuthorizationCodeResult(
                code=given.get("code", ""), state=given.get("state"), iss=given.get("iss")
            )
            result.set_result(code)
        return web.Response(text="You can close this page and go back to the terminal.")

    app = web.Application()
    app.router.add_get("/callback", come_back)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        try:
            await site.start()
        except OSError as error:
            raise PluginError(f"callback_port {port} cannot be used: {error.strerror}") from None
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/callback", result
    finally:
        await runner.cleanup()
        result.cancel()


@contextmanager
def _silenced() -> Generator[None]:
    """Keep the SDK from logging each failure with a traceback; it is reported in one line."""
    logger: Any = logging.getLogger("mcp.client.auth")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
