"""GitHub Copilot: a device's login gives a token of GitHub's, which is exchanged for one that soon ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec
import structlog
from msgspec import Struct

from gateway import (
    EARLY_SECONDS,
    GARBLED,
    AuthFailedError,
    DeltaParseError,
    HttpProvider,
    OAuth,
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

log = structlog.get_logger("trunkline.copilot")

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
    refresh_token: str = ""
    expires_in: float = 0.0
    error: str = ""
    error_description: str = ""


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except GARBLED as error:
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
        self._login = config.oauth or OAuth(config.api_key or "")
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
        key = await self._github(session)
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

    async def _github(self, session: aiohttp.ClientSession) -> str:
        """GitHub's own token, renewed if it ends; the new one is kept, for the old one is of no more use."""
        login = self._login
        if not login.access:
            raise AuthFailedError("not signed in to GitHub Copilot: use `trunkline auth login copilot`")
        if not login.refresh or login.expires - EARLY_SECONDS > time.time():
            return login.access
        form = {"refresh_token": login.refresh, "grant_type": "refresh_token"}
        answer = await _ask_github(self._config, session, "/login/oauth/access_token", form)
        if not (fresh := _read(answer, _Login)).access_token:
            raise AuthFailedError(
                f"the login to GitHub ended ({fresh.error or 'no reason'}): `trunkline auth login copilot`"
            )
        self._login = _login_of(fresh)
        await self._keep(self._login)
        return self._login.access

    async def _keep(self, login: OAuth) -> None:
        if self._config.renewed is None:
            return
        try:
            await asyncio.to_thread(self._config.renewed, login)
        except (SettingsError, OSError) as error:
            log.error(
                "a renewed login could not be kept; it is good until the gateway stops", reason=str(error)
            )


class CopilotProvider(HttpProvider):
    """The provider, which a person can sign in to."""

    async def sign_in(self, show: Callable[[str], None]) -> OAuth:
        """Sign in by GitHub's device flow; ``show`` says what to do."""
        session = self._open_session()
        answer = await _ask_github(self._config, session, "/login/device/code", {"scope": SCOPE})
        device = _read(answer, _Device)
        show(f"Open {device.verification_uri} and enter the code {device.user_code}")
        form = {"device_code": device.device_code, "grant_type": _GRANT}
        pause = device.interval
        try:
            async with asyncio.timeout(device.expires_in):
                while True:
                    await asyncio.sleep(pause)
                    answer = await _ask_github(self._config, session, "/login/oauth/access_token", form)
                    if (login := _read(answer, _Login)).access_token:
                        return _login_of(login)
                    pause += _again(login)
        except TimeoutError:
            raise AuthFailedError("nobody entered the code in time") from None


async def _ask_github(
    config: ProviderConfig, session: aiohttp.ClientSession, path: str, form: Mapping[str, str]
) -> bytes:
    """One question of the login, as the program that the settings name."""
    form = {"client_id": config.credentials.get("client_id", CLIENT_ID), **form}
    url = config.credentials.get("login_url", LOGIN_URL).rstrip("/") + path
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    return await fetched(session, RequestSpec(url, "POST", headers, urlencode(form).encode()))


def _login_of(login: _Login) -> OAuth:
    ends = time.time() + login.expires_in if login.expires_in and login.refresh_token else 0.0
    return OAuth(login.access_token, login.refresh_token if ends else "", ends)


def _again(login: _Login) -> float:
    """By how many seconds to ask less often. Raises AuthFailedError if the answer is no."""
    if login.error == "authorization_pending":
        return 0.0
    if login.error == "slow_down":
        return _LATER
    raise AuthFailedError(
        f"GitHub refused the login: {login.error_description or login.error or 'no reason'}"
    )
