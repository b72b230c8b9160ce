"""Strangers install the app: OAuth, and the file that keeps what it gives."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast
from urllib.parse import urlencode

import structlog
from aiohttp import web

from channels.slack.api import Api, Json
from channels.slack.manifest import SCOPES
from gateway import SettingsError
from gateway.channel import PlacementDeferred, PlacementRefused, PlacementUncertain

log = structlog.get_logger("trunkline.slack")

_COOKIE = "trunkline_slack_state"
_STATE_SECONDS = 600.0
_MOST_STATES = 1_000


class Installations:
    """The tokens of workspaces, by their ids, in a file that only its owner may read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tokens = self._read()

    @property
    def tokens(self) -> list[str]:
        """The bots' tokens."""
        return [*self._tokens.values()]

    async def keep(self, team: str, token: str) -> None:
        """Keep a token, in place of the workspace's former one."""
        self._tokens[team] = token
        await asyncio.to_thread(self._write)

    async def forget(self, team: str) -> None:
        """The app is no longer installed there."""
        if self._tokens.pop(team, None) is not None:
            await asyncio.to_thread(self._write)

    def _read(self) -> dict[str, str]:
        """Raises SettingsError for a file that is not ours."""
        try:
            found: object = json.loads(self._file.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise SettingsError(f"{self._file}: cannot be read: {type(error).__name__}") from None
        if not isinstance(found, dict):
            raise SettingsError(f"{self._file}: holds no installations")
        return {str(team): str(token) for team, token in cast(Json, found).items()}

    def _write(self) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._file.with_name(f"{self._file.name}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(self._tokens, file)
            file.flush()
            os.fsync(descriptor)
        draft.replace(self._file)


class OAuth:
    """The two pages of an installation. ``installed`` is called with a workspace's id and its bot's token."""

    def __init__(
        self,
        client_id: str,
        client_secret: str,
        base_url: str,
        redirect_url: str | None,
        installed: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._client_id = client_id
        self._client_secret = client_secret
        self._api = Api("", base_url)
        self._redirect_url = redirect_url
        self._installed = installed
        self._states: OrderedDict[str, float] = OrderedDict()

    async def begin(self, _request: web.Request) -> web.StreamResponse:
        """Send a person to Slack, who comes back with the state that their browser keeps."""
        state = secrets.token_urlsafe(24)
        self._states[state] = time.monotonic() + _STATE_SECONDS
        if len(self._states) > _MOST_STATES:
            self._states.popitem(last=False)
        asked = {"client_id": self._client_id, "scope": ",".join(SCOPES), "state": state}
        asked |= {"redirect_uri": self._redirect_url} if self._redirect_url else {}
        there = self._api.client.base_url.removesuffix("api/") + "oauth/v2/authorize?" + urlencode(asked)
        answer = web.Response(status=302, headers={"Location": there})
        answer.set_cookie(
            _COOKIE,
            state,
            max_age=int(_STATE_SECONDS),
            httponly=True,
            secure=(self._redirect_url or "").startswith("https:"),
            samesite="Lax",
        )
        return answer

    async def end(self, request: web.Request) -> web.StreamResponse:
        """A person comes back from Slack."""
        state, code = request.query.get("state", ""), request.query.get("code", "")
        until = self._states.pop(state, 0.0)
        kept = request.cookies.get(_COOKIE, "")
        if until < time.monotonic() or not hmac.compare_digest(state.encode(), kept.encode(errors="replace")):
            return web.Response(status=400, text="This installation was not begun here. Please begin again.")
        if not code:
            return web.Response(status=400, text="The installation was not allowed.")
        try:
            told = await self._api.call(
                "oauth.v2.access",
                client_id=self._client_id,
                client_secret=self._client_secret,
                code=code,
                redirect_uri=self._redirect_url,
            )
        except (PlacementRefused, PlacementDeferred, PlacementUncertain) as error:
            log.warning("an installation failed", reason=str(error))
            return web.Response(status=502, text="Slack did not confirm this. Please begin again.")
        team: object = told.get("team")
        token: object = told.get("access_token")
        if not isinstance(team, dict) or not isinstance(token, str) or told.get("token_type") != "bot":
            return web.Response(status=502, text="Slack gave no bot. Please begin again.")
        await self._installed(str(cast(Json, team).get("id")), token)
        log.info("the app was installed", team=str(cast(Json, team).get("id")))
        answer = web.Response(text="Installed. You can close this page and write to the bot.")
        answer.del_cookie(_COOKIE)
        return answer
