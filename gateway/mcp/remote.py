"""Remote servers over HTTP: streamable HTTP, or SSE from servers that only have that, and their kept logins.

Like ``session``, this is imported with the first connection.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpx2
import msgspec
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from msgspec import Struct, structs

from gateway.api.owned_files import replace_file
from gateway.contract.errors import PluginError
from gateway.mcp.session import MOST_MESSAGE_BYTES, Session
from gateway.settings import McpServerSettings

LOOPBACK = frozenset(("127.0.0.1", "::1", "localhost"))
_SILENCE_SECONDS = 300.0
"""Time without a byte after which a stream is lost."""
_MOST_STREAMED = 2 * MOST_MESSAGE_BYTES
"""Bytes of a stream in a second; more end the session."""
_OK, _BAD_REQUEST, _UNAUTHORIZED, _NOT_FOUND, _FAILED = 200, 400, 401, 404, 500
_UNKNOWN_SESSION = re.compile(rb"session|not initialized", re.IGNORECASE)
_EARLY_SECONDS = 60.0
"""Time before its end at which a token is renewed."""


class Login(Struct, frozen=True):
    """A login at a server. ``expires_at`` is seconds since the epoch; 0: the token does not expire.

    ``token_url`` renews the token, with ``refresh`` and what the authorization server knows of the client.
    Without ``access`` it is the note that the server registers no clients.
    """

    access: str
    refresh: str = ""
    expires_at: float = 0.0
    token_url: str = ""
    client_id: str = ""
    client_secret: str = ""
    with_basic: bool = False
    resource: str = ""

    def __repr__(self) -> str:
        return f"Login(expires_at={self.expires_at!r})"

    def renewal(self) -> httpx2.Request:
        """Return the request for the next token (RFC 6749, section 6)."""
        fields = {
            "grant_type": "refresh_token",
            "refresh_token": self.refresh,
            "client_id": self.client_id,
            **({"resource": self.resource} if self.resource else {}),
        }
        request = httpx2.Request("POST", self.token_url, data=fields)
        if self.client_secret and self.with_basic:
            auth = httpx2.BasicAuth(self.client_id, self.client_secret)
            request = next(auth.auth_flow(request))
        elif self.client_secret:
            fields["client_secret"] = self.client_secret
            request = httpx2.Request("POST", self.token_url, data=fields)
        return request

    def renewed(self, answer: bytes) -> Login:
        """Return the login with the tokens of an answer. Raises msgspec.ValidationError."""
        tokens = msgspec.json.decode(answer, type=_Tokens)
        expires_at = time.time() + tokens.expires_in if tokens.expires_in else 0.0
        refresh = tokens.refresh_token or self.refresh
        return structs.replace(self, access=tokens.access_token, refresh=refresh, expires_at=expires_at)


class _Tokens(Struct):
    access_token: str
    refresh_token: str | None = None
    expires_in: float | None = None


class LoginFile:
    """The file with the login of one server, which only its owner may read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Login | None:
        """Return the login, or None. Raises PluginError."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Login)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise PluginError(f"{self._path} cannot be read: {error}; delete it and log in again") from None

    def save(self, login: Login) -> None:
        """Store a login; durable afterwards. Raises PluginError."""
        try:
            replace_file(self._path, msgspec.json.encode(login))
        except OSError as error:
            raise PluginError(f"{self._path} cannot be written: {error.strerror}") from None


class _Bearer(httpx2.Auth):
    """Sends the token of the kept login, renews it before its end, and once after a refusal."""

    def __init__(self, name: str, file: LoginFile, session: Session, *, has_client: bool) -> None:
        self._name = name
        self._file = file
        self._has_client = has_client
        self._session = session
        self._renewing = asyncio.Lock()

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Make a request with the token, and others to renew that."""
        if "authorization" in request.headers:
            if (yield request).status_code == _UNAUTHORIZED:
                self._session.lose("it rejected the credentials (401); set its headers")
            return
        login = await asyncio.to_thread(self._file.load)
        if login is not None and not login.access:
            if (yield request).status_code == _UNAUTHORIZED:
                self._lose(is_registered=self._has_client)
            return
        if login is not None and 0 < login.expires_at < time.time() + _EARLY_SECONDS and login.refresh:
            async with self._renewing:
                # Another request, or a command, may have renewed it meanwhile.
                login = await asyncio.to_thread(self._file.load) or login
                if login.expires_at < time.time() + _EARLY_SECONDS:
                    login = await self._renewed(login, (yield login.renewal()))
        response = yield self._with(request, login)
        if response.status_code == _UNAUTHORIZED and login is not None and login.refresh:
            async with self._renewing:
                now = await asyncio.to_thread(self._file.load)
                if now is not None and now.access == login.access:
                    now = await self._renewed(login, (yield login.renewal()))
            response = yield self._with(request, now)
        if response.status_code == _UNAUTHORIZED:
            self._lose()

    def _lose(self, *, is_registered: bool = True) -> None:
        self._session.guard.needs = "login" if is_registered else "registration"
        first = "" if is_registered else f"register a client there, set mcp.{self._name}.client_id, and "
        self._session.lose(f"it needs a login (401): {first}run `trunkline mcp login {self._name}`")

    async def _renewed(self, login: Login, response: httpx2.Response) -> Login:
        """Return the login with the tokens of a response, or as it was if that has none."""
        body = await response.aread()
        if response.status_code != _OK:
            return login
        try:
            login = login.renewed(body)
        except msgspec.DecodeError:
            return login
        await asyncio.to_thread(self._file.save, login)
        return login

    def _with(self, request: httpx2.Request, login: Login | None) -> httpx2.Request:
        if login is not None:
            request.headers["Authorization"] = f"Bearer {login.access}"
        return request


@asynccontextmanager
async def streamable_http(
    settings: McpServerSettings, session: Session, name: str, login: Path
) -> AsyncGenerator[Any]:
    """Carry the messages of a session by requests, whose responses may be streams."""
    assert settings.url is not None, "the server is a remote one"
    async with (
        _client(settings, session, name, login) as client,
        streamable_http_client(settings.url, http_client=client) as streams,
    ):
        yield streams


@asynccontextmanager
async def sse(settings: McpServerSettings, session: Session, name: str, login: Path) -> AsyncGenerator[Any]:
    """Carry the messages of a session by requests, and by one stream for all answers."""
    assert settings.url is not None, "the server is a remote one"

    def make(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return _client(settings, session, name, login)

    async with sse_client(settings.url, httpx_client_factory=make) as streams:
        yield streams


def _client(settings: McpServerSettings, session: Session, name: str, login: Path) -> httpx2.AsyncClient:
    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    return httpx2.AsyncClient(
        auth=_Bearer(name, LoginFile(login), session, has_client=settings.client_id is not None),
        headers=headers,
        timeout=httpx2.Timeout(settings.timeout / 1000, read=_SILENCE_SECONDS),
        transport=_Transport(session),
    )


class Proxied(httpx2.AsyncBaseTransport):
    """Connections through the proxies of the environment, but for this machine."""

    def __init__(self) -> None:
        self._transports: dict[str | None, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Make a request."""
        url = request.url
        is_direct = url.host in LOOPBACK or proxy_bypass(url.host)
        proxy = None if is_direct else getproxies().get(url.scheme)
        if proxy not in self._transports:
            self._transports[proxy] = httpx2.AsyncHTTPTransport(proxy=proxy)
        return await self._transports[proxy].handle_async_request(request)

    async def aclose(self) -> None:
        """Close the connections."""
        for transport in self._transports.values():
            await transport.aclose()


class _Transport(Proxied):
    """Connections that bound what they read, and end the session when the server is lost."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Make a request."""
        try:
            response = await super().handle_async_request(request)
        except httpx2.TransportError as error:
            self._session.lose(f"it cannot be reached: {error or type(error).__name__}")
            raise
        response = bounded(response, self._session.lose)
        status, is_known = response.status_code, "mcp-session-id" in request.headers
        is_lost = status == _NOT_FOUND
        if status == _BAD_REQUEST and is_known:
            # Many servers do not answer an unknown session with 404, as the specification asks.
            is_lost = _UNKNOWN_SESSION.search(await response.aread()) is not None
        if request.method == "POST" and (status >= _FAILED or (is_lost and is_known)):
            self._session.lose(f"it answered with status {status}")
        return response


def bounded(response: httpx2.Response, lose: Callable[[str], None]) -> httpx2.Response:
    """Return a response whose body calls ``lose`` with the reason and raises ReadError beyond the limit."""
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    assert isinstance(response.stream, httpx2.AsyncByteStream), "the transport is asynchronous"
    response.stream = _Bounded(response.stream, lose, is_stream=is_stream)
    return response


class _Bounded(httpx2.AsyncByteStream):
    """The body of a response, up to a limit: of all of it, or of a second of a stream."""

    def __init__(
        self, stream: httpx2.AsyncByteStream, lose: Callable[[str], None], *, is_stream: bool
    ) -> None:
        self._stream = stream
        self._lose = lose
        self._is_stream = is_stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body. Raises ReadError beyond the limit."""
        loop = asyncio.get_running_loop()
        most = _MOST_STREAMED if self._is_stream else MOST_MESSAGE_BYTES
        second, count = loop.time(), 0
        async for chunk in self._stream:
            if self._is_stream and loop.time() - second >= 1:
                second, count = loop.time(), 0
            count += len(chunk)
            if count > most:
                self._lose(f"it sent more than {most // 1024**2} MB at once")
                raise httpx2.ReadError("the response is too large")
            yield chunk

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()
