"""GitHub Copilot: a device login yields a GitHub token, which is exchanged for short-lived Copilot tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import urlencode

import msgspec
import structlog
from msgspec import Struct

from gateway import ProviderConfig, ProviderError, SettingsError
from gateway.provider_http import (
    RENEWAL_MARGIN_SECONDS,
    UNDECODABLE,
    AuthFailedError,
    DeltaParseError,
    HttpClient,
    HttpProvider,
    OAuth,
    RequestSpec,
    Token,
    TokenCache,
    fetch_body,
)
from plugins.providers.protocol import check_credentials

LOGIN_URL = "https://github.com"
API_URL = "https://api.github.com"
CLIENT_ID = "Iv1.b507a08c87ecfe98"
"""The OAuth client that may exchange tokens; ``credentials.client_id`` overrides it."""
SCOPE = "read:user"
EDITOR = "Trunkline/1.0"
HEADERS = {
    "Editor-Version": EDITOR,
    "Editor-Plugin-Version": EDITOR,
    "Copilot-Integration-Id": "vscode-chat",
    "User-Agent": EDITOR,
}

log = structlog.get_logger("trunkline.copilot")

T = TypeVar("T")

_KNOWN = ("client_id", "login_url", "api_url")
_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_SLOW_DOWN_SECONDS = 5.0
_TOOL_LAST = b'"role":"tool"}]'
_PICTURE = b'{"type":"image_url"'


class _Exchanged(Struct):
    token: str
    expires_at: float
    endpoints: dict[str, str] = {}


class _Device(Struct):
    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float = 900.0
    interval: float = 5.0


class _Login(Struct):
    access_token: str = ""
    refresh_token: str = ""
    expires_in: float = 0.0
    error: str = ""
    error_description: str = ""


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNDECODABLE as error:
        raise DeltaParseError(f"GitHub's response cannot be read: {error}") from None


class CopilotAuthorizer:
    """Sends a Copilot token, fetched with the GitHub token, to the endpoint that came with it."""

    def __init__(self, config: ProviderConfig) -> None:
        check_credentials(config, _KNOWN)
        self._config = config
        self._login = config.oauth or OAuth(config.api_key or "")
        self._cache = TokenCache(self._fetch)

    async def authorize(self, request: RequestSpec, client: HttpClient) -> RequestSpec:
        """Return the request with the token."""
        token = await self._cache.token(client)
        body = request.body or b""
        headers = {
            **request.headers,
            "Authorization": f"Bearer {token.value}",
            # Requests that continue after a tool call are not billed as user requests.
            "X-Initiator": "agent" if _TOOL_LAST in body else "user",
        }
        if _PICTURE in body:
            headers["Copilot-Vision-Request"] = "true"
        return msgspec.structs.replace(request, url=self._endpoint_url(request.url, token), headers=headers)

    def forget(self) -> bool:
        """Drop the token, so that the next request fetches a new one."""
        return self._cache.forget()

    def _endpoint_url(self, url: str, token: Token) -> str:
        if not token.endpoint or self._config.base_url is not None:
            return url
        return token.endpoint.rstrip("/") + "/" + url.split("/", 3)[3]

    async def _fetch(self, client: HttpClient) -> Token:
        key = await self._github_token(client)
        url = self._config.credentials.get("api_url", API_URL).rstrip("/") + "/copilot_internal/v2/token"
        headers = {**HEADERS, "Authorization": f"token {key}", "Accept": "application/json"}
        try:
            got = _read(await fetch_body(client, RequestSpec(url, "GET", headers)), _Exchanged)
        except ProviderError as error:
            if error.upstream_status in (401, 403, 404):
                raise AuthFailedError(
                    f"GitHub refused a Copilot token: {error}", status=error.upstream_status
                ) from None
            raise
        return Token(got.token, got.expires_at, got.endpoints.get("api", ""))

    async def _github_token(self, client: HttpClient) -> str:
        """Return the GitHub token; renew and store it if it expired, which invalidates the old one."""
        login = self._login
        if not login.access:
            raise AuthFailedError("not signed in to GitHub Copilot: run `trunkline auth login copilot`")
        if not login.refresh or login.expires - RENEWAL_MARGIN_SECONDS > time.time():
            return login.access
        form = {"refresh_token": login.refresh, "grant_type": "refresh_token"}
        answer = await _post_login(self._config, client, "/login/oauth/access_token", form)
        if not (fresh := _read(answer, _Login)).access_token:
            raise AuthFailedError(
                f"the GitHub login expired ({fresh.error or 'no reason'}): run `trunkline auth login copilot`"
            )
        self._login = _login_of(fresh)
        await self._store(self._login)
        return self._login.access

    async def _store(self, login: OAuth) -> None:
        if self._config.save_login is None:
            return
        try:
            await asyncio.to_thread(self._config.save_login, login)
        except (SettingsError, OSError) as error:
            log.error("cannot store the renewed login; it works until the gateway stops", reason=str(error))


class CopilotProvider(HttpProvider):
    """The Copilot provider, with a login."""

    async def sign_in(self, show: Callable[[str], None]) -> OAuth:
        """Sign in with GitHub's device flow; ``show`` displays the address and the code."""
        client = self._open_client()
        answer = await _post_login(self._config, client, "/login/device/code", {"scope": SCOPE})
        device = _read(answer, _Device)
        show(f"Open {device.verification_uri} and enter the code {device.user_code}")
        form = {"device_code": device.device_code, "grant_type": _GRANT}
        pause = device.interval
        try:
            async with asyncio.timeout(device.expires_in):
                while True:
                    await asyncio.sleep(pause)
                    answer = await _post_login(self._config, client, "/login/oauth/access_token", form)
                    if (login := _read(answer, _Login)).access_token:
                        return _login_of(login)
                    pause += _extra_pause(login)
        except TimeoutError:
            raise AuthFailedError("the code was not entered in time") from None


async def _post_login(
    config: ProviderConfig, client: HttpClient, path: str, form: Mapping[str, str]
) -> bytes:
    """Send one request of the login as the configured OAuth client."""
    form = {"client_id": config.credentials.get("client_id", CLIENT_ID), **form}
    url = config.credentials.get("login_url", LOGIN_URL).rstrip("/") + path
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    return await fetch_body(client, RequestSpec(url, "POST", headers, urlencode(form).encode()))


def _login_of(login: _Login) -> OAuth:
    ends = time.time() + login.expires_in if login.expires_in and login.refresh_token else 0.0
    return OAuth(login.access_token, login.refresh_token if ends else "", ends)


def _extra_pause(login: _Login) -> float:
    """Return the seconds to add to the poll interval. Raises AuthFailedError if the login was refused."""
    if login.error == "authorization_pending":
        return 0.0
    if login.error == "slow_down":
        return _SLOW_DOWN_SECONDS
    raise AuthFailedError(
        f"GitHub refused the login: {login.error_description or login.error or 'no reason'}"
    )
