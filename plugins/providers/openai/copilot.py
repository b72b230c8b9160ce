"""GitHub Copilot: a device's login gives a token of GitHub's, which is exchanged for one that soon ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec
from msgspec import Struct

from gateway import (
    AuthFailedError,
    DeltaParseError,
    HttpProvider,
    ProviderConfig,
    ProviderError,
    RequestSpec,
    SettingsError,
    Token,
    TokenKeeper,
    fetched,
)

LOGIN_URL = "https://github.com"
API_URL = "https://api.github.com"
CLIENT_ID = "Iv1.b507a08c87ecfe98"
"""The program that GitHub lets exchange tokens; ``credentials.client_id`` names another."""
SCOPE = "read:user"
EDITOR = "Trunkline/1.0"
HEADERS = {
    "Editor-Version": EDITOR,
    "Editor-Plugin-Version": EDITOR,
    "Copilot-Integration-Id": "vscode-chat",
    "User-Agent": EDITOR,
}

T = TypeVar("T")

_KNOWN = ("client_id", "login_url", "api_url")
_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_LATER = 5.0
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
    error: str = ""
    error_description: str = ""


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DeltaParseError(f"GitHub's answer cannot be read: {error}") from None


def check(config: ProviderConfig) -> None:
    """Refuse credentials that mean nothing here. Raises SettingsError."""
    if unknown := sorted(set(config.credentials) - set(_KNOWN)):
        known = ", ".join(_KNOWN)
        raise SettingsError(f"providers.{config.id}.credentials.{unknown[0]} is not known; known are {known}")


class CopilotAuthorizer:
    """Shows a token that lives for minutes, fetched with GitHub's, and goes where that says it is good."""

    def __init__(self, config: ProviderConfig) -> None:
        check(config)
        self._config = config
        self._keeper = TokenKeeper(self._fetch)

    async def authorize(self, request: RequestSpec, session: aiohttp.ClientSession) -> RequestSpec:
        """The request with the token; what goes on after a tool is not billed as a wish of the user."""
        token = await self._keeper.token(session)
        body = request.body or b""
        headers = {
            **request.headers,
            "Authorization": f"Bearer {token.value}",
            "X-Initiator": "agent" if _TOOL_LAST in body else "user",
        }
        if _PICTURE in body:
            headers["Copilot-Vision-Request"] = "true"
        return msgspec.structs.replace(request, url=self._at(request.url, token), headers=headers)

    def forget(self) -> bool:
        """Fetch another one next time."""
        return self._keeper.forget()

    def _at(self, url: str, token: Token) -> str:
        if not token.place or self._config.base_url is not None:
            return url
        return token.place.rstrip("/") + "/" + url.split("/", 3)[3]

    async def _fetch(self, session: aiohttp.ClientSession) -> Token:
        key = self._config.api_key
        if not key:
            raise AuthFailedError("not signed in to GitHub Copilot: use `trunkline login copilot`")
        url = self._config.credentials.get("api_url", API_URL).rstrip("/") + "/copilot_internal/v2/token"
        headers = {**HEADERS, "Authorization": f"token {key}", "Accept": "application/json"}
        try:
            got = _read(await fetched(session, RequestSpec(url, "GET", headers)), _Exchanged)
        except ProviderError as error:
            if error.upstream_status in (401, 403, 404):
                raise AuthFailedError(
                    f"GitHub gives no token for Copilot: {error}", status=error.upstream_status
                ) from None
            raise
        return Token(got.token, got.expires_at, got.endpoints.get("api", ""))


class CopilotProvider(HttpProvider):
    """The provider, which a person can sign in to."""

    async def sign_in(self, show: Callable[[str], None]) -> str:
        """Sign in by GitHub's device flow: ``show`` says what to do; returns the token to keep as the key."""
        config = self._config
        session = self._open_session()
        client = config.credentials.get("client_id", CLIENT_ID)
        device = _read(
            await self._post(session, "/login/device/code", {"client_id": client, "scope": SCOPE}), _Device
        )
        show(f"Open {device.verification_uri} and enter the code {device.user_code}")
        form = {"client_id": client, "device_code": device.device_code, "grant_type": _GRANT}
        pause = device.interval
        try:
            async with asyncio.timeout(device.expires_in):
                while True:
                    await asyncio.sleep(pause)
                    login = _read(await self._post(session, "/login/oauth/access_token", form), _Login)
                    if login.access_token:
                        return login.access_token
                    pause += _again(login)
        except TimeoutError:
            raise AuthFailedError("nobody entered the code in time") from None

    async def _post(self, session: aiohttp.ClientSession, path: str, form: Mapping[str, str]) -> bytes:
        url = self._config.credentials.get("login_url", LOGIN_URL).rstrip("/") + path
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        return await fetched(session, RequestSpec(url, "POST", headers, urlencode(form).encode()))


def _again(login: _Login) -> float:
    """By how many seconds to ask less often. Raises AuthFailedError if the answer is no."""
    if login.error == "authorization_pending":
        return 0.0
    if login.error == "slow_down":
        return _LATER
    raise AuthFailedError(
        f"GitHub refused the login: {login.error_description or login.error or 'no reason'}"
    )
