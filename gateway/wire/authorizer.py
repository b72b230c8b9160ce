"""Proof of who we are, where a fixed header is not enough: tokens that expire, and signatures."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol
from urllib.parse import urlencode

import aiohttp
import msgspec
from msgspec import Struct

from gateway.errors import AuthFailedError, BadRequestError, DeltaParseError, ModelNotFoundError
from gateway.wire.exchange import RequestSpec, send
from gateway.wire.upstream import GARBLED, whole_body

EARLY_SECONDS = 60.0
"""How long before its end a token is replaced, so that none ends on the way."""

_SECONDS = 30.0


class Authorizer(Protocol):
    """Adds the proof to each request, retries included."""

    async def authorize(self, request: RequestSpec, session: aiohttp.ClientSession) -> RequestSpec:
        """The request with the proof. Raises a ProviderError if there is none to be had."""
        ...

    def forget(self) -> bool:
        """The last proof was refused: drop it. Whether a fresh one may do better."""
        ...


class Token(Struct, frozen=True):
    """A credential for a time. ``expires_at`` is in seconds since the epoch, ``place`` where it is good."""

    value: str
    expires_at: float
    place: str = ""

    def __repr__(self) -> str:
        return f"Token(expires_at={self.expires_at!r})"


Fetch = Callable[[aiohttp.ClientSession], Awaitable[Token]]


class TokenKeeper:
    """A token that is fetched when it is needed, kept, and fetched again before it ends.

    Calls that need one at the same time wait for the same fetch.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._token: Token | None = None
        self._fetching = asyncio.Lock()

    async def token(self, session: aiohttp.ClientSession) -> Token:
        """A token that is still good. Raises what fetching it raises."""
        async with self._fetching:
            if self._token is None or self._token.expires_at - EARLY_SECONDS <= time.time():
                self._token = await self._fetch(session)
            return self._token

    def forget(self) -> bool:
        """Drop the token; whether there was one."""
        had = self._token is not None
        self._token = None
        return had


class BearerAuthorizer:
    """Shows a token that expires as ``Authorization: Bearer``; ``instead_of`` is the header it replaces."""

    def __init__(self, fetch: Fetch, instead_of: str = "") -> None:
        self._keeper = TokenKeeper(fetch)
        self._instead_of = instead_of

    async def authorize(self, request: RequestSpec, session: aiohttp.ClientSession) -> RequestSpec:
        """The request with the token."""
        token = await self._keeper.token(session)
        headers = {name: value for name, value in request.headers.items() if name != self._instead_of}
        return msgspec.structs.replace(request, headers={**headers, "Authorization": f"Bearer {token.value}"})

    def forget(self) -> bool:
        """Fetch another one next time."""
        return self._keeper.forget()


class _Granted(Struct):
    access_token: str
    expires_in: float = 3600.0


_granted = msgspec.json.Decoder(_Granted, strict=False).decode


async def fetched(session: aiohttp.ClientSession, request: RequestSpec, seconds: float = _SECONDS) -> bytes:
    """The body of the answer to one request. Raises a ProviderError if it is refused or does not come."""
    return await whole_body(await send(session, request, seconds), seconds)


def client_credentials(url: str, form: Mapping[str, str]) -> Fetch:
    """Fetch tokens by OAuth 2's client credentials; ``form`` has client_id, client_secret and scope."""
    body = urlencode({"grant_type": "client_credentials", **form}).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    request = RequestSpec(url, "POST", headers, body)

    async def fetch(session: aiohttp.ClientSession) -> Token:
        try:
            granted = _granted(await fetched(session, request))
        except (BadRequestError, ModelNotFoundError) as error:
            raise AuthFailedError(f"no token was granted: {error}", status=error.upstream_status) from None
        except GARBLED as error:
            raise DeltaParseError(f"what was granted cannot be read: {error}") from None
        return Token(granted.access_token, time.time() + granted.expires_in)

    return fetch
