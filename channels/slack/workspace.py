"""One workspace that the app is installed in, and its installation by OAuth."""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import urlencode

import structlog
from aiohttp import web

from channels.slack.api import Api, Json, RefusedError
from channels.slack.approvals import Prompts
from channels.slack.delivery import Placing, Presence
from channels.slack.history import START
from channels.slack.inflow import Inflow
from channels.slack.manifest import SCOPES
from channels.slack.options import Options
from channels.slack.parse import Rules, Stopped, user_of
from gateway import SettingsError
from gateway.channel import (
    Address,
    Cursor,
    Host,
    InboundMessage,
    OutboundMessage,
    Placed,
    PlacementDeferred,
    PlacementRefused,
    PlacementUncertain,
    Receipt,
    Receive,
    Rejected,
    Signal,
)

log = structlog.get_logger("trunkline.slack")

_PROBE_SECONDS, _SWEEP_SECONDS, _AGAIN_SECONDS = 30.0, 5.0, 2.0


class Workspace:
    """The app in one workspace. ``team`` is empty until Slack has told."""

    def __init__(
        self,
        host: Host,
        channel_id: str,
        options: Options,
        token: str,
        left: Callable[[Workspace], Awaitable[None]],
        *,
        home: bool,
    ) -> None:
        self.team = ""
        self.home = home
        """Whether it is the one that ``bot_token`` opens."""
        self.problem = "starting"
        """What does not work; empty while all does."""
        self.api = Api(token, options.api_base_url, options.pace, self._refused)
        self.placing = Placing(self.api, streams=options.streaming)
        self.presence = Presence(self.api, options.thinking)
        self.prompts = Prompts(self.api, host)
        self.inflow = Inflow(
            self.api,
            file_bytes=options.file_bytes,
            on_press=self.prompts.pressed,
            on_stop=self._stopped,
            on_leave=lambda: left(self),
            on_revoke=self._revoked,
        )
        self._over = asyncio.Event()
        self._host = host
        self._channel_id = channel_id
        self._options = options

    async def run(self, receive: Receive, tasks: asyncio.TaskGroup, signed_in: Callable[[], None]) -> None:
        """Keep it going until it is stopped. Raises RefusedError when the token does not do."""
        self.problem = "starting"
        rules = await self._sign_in()
        await self._restore(rules, receive)
        self.inflow.connected(rules, self._listening(receive), tasks)
        self.problem = ""
        signed_in()
        try:
            async with self.api.connected(), asyncio.TaskGroup() as own_tasks:
                running = [own_tasks.create_task(self._probe()), own_tasks.create_task(self._sweep())]
                await self._over.wait()
                for task in running:
                    task.cancel()
        finally:
            self.inflow.ended()

    def stop(self) -> None:
        """Let ``run`` end."""
        self._over.set()

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Place one page."""
        placed = await self.placing.send(outbound)
        self.inflow.catching.saw(outbound.address.chat, placed.platform_id)
        await self._after(outbound)
        return placed

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Let a page show its content."""
        await self.placing.edit(placed, outbound)
        await self._after(outbound)

    def watermark(self, address: Address) -> str | None:
        """The newest message known in a room."""
        return self.inflow.catching.latest.get(address.chat)

    async def _sign_in(self) -> Rules:
        """Who we are."""
        while True:
            try:
                told = await self.api.call("auth.test")
                break
            except (PlacementDeferred, PlacementUncertain) as error:
                problem = f"{error}; look at the bot's token" if _is_of_token(error) else str(error)
                if problem != self.problem:
                    log.warning("Slack does not let the app in", channel=self._channel_id, reason=problem)
                self.problem = problem
                await asyncio.sleep(getattr(error, "seconds", None) or 1.0)
        self.team = self.placing.team = str(told.get("team_id"))
        self.placing.bot_user = str(told.get("user_id"))
        return Rules(
            channel=self._channel_id,
            team=self.team,
            bot_user=self.placing.bot_user,
            home=self.home,
            strategy=self._options.session_strategy,
            groups=self._options.groups,
            edits=self._options.edits == "rerun",
            prefix=self._options.command_prefix,
            follows=self.inflow.catching.follows,
        )

    async def _restore(self, rules: Rules, receive: Receive) -> None:
        """Take up how far rooms were read; the first time, note when it begins."""
        now = f"{time.time():.6f}"
        known = self.inflow.catching.restore(await self._host.cursors(self._channel_id), rules.team, now)
        if not known:
            await receive(cursor=Cursor(rules.team, now, START))

    def _listening(self, receive: Receive) -> Receive:
        """``receive``, which also remembers for whom an answer will be."""

        async def listening(
            *messages: InboundMessage,
            cursor: Cursor | None = None,
            rejected: Sequence[Rejected] = (),
            signals: Sequence[Signal] = (),
        ) -> Sequence[Receipt]:
            for message in messages:
                address = message.address
                if address.reply_to is not None:
                    self.placing.heard(address.chat, address.reply_to, user_of(message.sender.id))
            return await receive(*messages, cursor=cursor, rejected=rejected, signals=signals)

        return listening

    async def _after(self, outbound: OutboundMessage) -> None:
        if outbound.final and outbound.part + 1 == outbound.parts:
            await self.presence.done(outbound.address)

    async def _stopped(self, stopped: Stopped) -> None:
        await self.presence.idle(stopped.chat, stopped.thread)

    def _refused(self, reason: str) -> None:
        """Slack does not accept the token: say so at once, whatever call it was."""
        problem = f"Slack refuses the bot's token: {reason}"
        if self.problem != problem and self.team:
            log.error(problem, channel=self._channel_id, team=self.team)
            self.problem = problem

    async def _revoked(self) -> None:
        """Slack says that tokens were revoked; whether ours still does is asked."""
        self._refused("tokens_revoked")
        await self._ask()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            await self.presence.sweep()

    async def _probe(self) -> None:
        """Ask now and then whether the Web API and the token still do."""
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            await self._ask()

    async def _ask(self) -> None:
        """Ask whether the Web API and the token still do, until Slack says so or not.

        One answer that asks to wait says nothing about that, so the next one is not left to the next probe.
        """
        while True:
            try:
                await self.api.call("auth.test", urgent=False)
            except (RefusedError, PlacementDeferred, PlacementUncertain) as error:
                log.warning("Slack does not answer as it should", team=self.team, reason=str(error))
                if _is_of_token(error):
                    return
                self.problem = str(error)
                if isinstance(error, RefusedError):
                    return
                await asyncio.sleep(getattr(error, "seconds", None) or _AGAIN_SECONDS)
            else:
                self.problem = ""
                return


def _is_of_token(error: Exception) -> bool:
    return any(word in str(error) for word in ("_auth", "_authed", "token"))


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
