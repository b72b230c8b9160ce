"""Authorization of requests beyond a fixed header: tokens that expire, and signatures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from gateway.contract.errors import AuthFailedError, BadRequestError, DeltaParseError, ModelNotFoundError
from gateway.http_client import HttpClient
from gateway.provider_http.exchange import RequestSpec, send
from gateway.provider_http.upstream_errors import UNDECODABLE, read_checked_body

RENEWAL_MARGIN_SECONDS = 60.0
"""Seconds before its expiry when a token is replaced, so that none expires during a request."""

_SECONDS = 30.0


class Authorizer(Protocol):
    """Authorizes each request, retries included."""

    async def authorize(self, request: RequestSpec, client: HttpClient) -> RequestSpec:
        """Return the request with authorization. Raises a ProviderError if it cannot get a credential."""
        ...

    def forget(self) -> bool:
        """Drop the rejected credential; return whether a new one can be fetched."""
        ...


class Token(Struct, frozen=True):
    """A temporary credential. ``expires_at`` is seconds since the epoch, ``endpoint`` its address, if any."""

    value: str
    expires_at: float
    endpoint: str = ""

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at!r})"


Fetch = Callable[[HttpClient], Awaitable[Token]]


class TokenCache:
    """A token that is fetched at its first use and again before it expires.

    Concurrent calls wait for the same fetch.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._token: Token | None = None
        self._fetching = asyncio.Lock()

    async def token(self, client: HttpClient) -> Token:
        """Return a valid token. Raises the errors of ``fetch``."""
        async with self._fetching:
            if self._token is None or self._token.expires_at - RENEWAL_MARGIN_SECONDS <= time.time():
                self._token = await self._fetch(client)
            return self._token

    def forget(self) -> bool:
        """Drop the token; return whether there was one."""
        had = self._token is not None
        self._token = None
        return had


class BearerAuthorizer:
    """Sends an expiring token as ``Authorization: Bearer``; ``replaces`` is a header to drop."""

    def __init__(self, fetch: Fetch, replaces: str = "") -> None:
        self._cache = TokenCache(fetch)
        self._replaces = replaces

    async def authorize(self, request: RequestSpec, client: HttpClient) -> RequestSpec:
        """Return the request with the token."""
        token = await self._cache.token(client)
        headers = {name: value for name, value in request.headers.items() if name != self._replaces}
        return msgspec.structs.replace(request, headers={**headers, "Authorization": f"Bearer {token.value}"})

    def forget(self) -> bool:
        """Drop the token, so that the next request fetches a new one."""
        return self._cache.forget()


class _TokenResponse(Struct):
    access_token: str
    expires_in: float = 3600.0


_decode_token = msgspec.json.Decoder(_TokenResponse, strict=False).decode


async def fetch_body(client: HttpClient, request: RequestSpec) -> bytes:
    """Send a request and return the body of the response. Raises a ProviderError."""
    return await read_checked_body(await send(client, request, _SECONDS), _SECONDS)


def client_credentials(url: str, form: Mapping[str, str]) -> Fetch:
    """Make a fetcher for OAuth 2 client credentials; ``form`` has client_id, client_secret and scope."""
    body = urlencode({"grant_type": "client_credentials", **form}).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    request = RequestSpec(url, "POST", headers, body)

    async def fetch(client: HttpClient) -> Token:
        try:
            response = _decode_token(await fetch_body(client, request))
        except (BadRequestError, ModelNotFoundError) as error:
            raise AuthFailedError(
                f"the token request was refused: {error}", status=error.upstream_status
            ) from None
        except UNDECODABLE as error:
            raise DeltaParseError(f"the token response cannot be read: {error}") from None
        return Token(response.access_token, time.time() + response.expires_in)

    return fetch
