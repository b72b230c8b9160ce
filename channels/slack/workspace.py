"""Workspaces of the app: running one, and installing the app in more of them by OAuth."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import urlencode

import structlog
from aiohttp import web

from channels.slack.api import INVALID_TOKEN, REMOVED, REMOVED_ADVICE, Api, Displays, Json, RefusedError
from channels.slack.connection import request_socket
from channels.slack.context.directory import Directory
from channels.slack.context.groups import PREFIX, UserGroups
from channels.slack.context.threads import ThreadReader
from channels.slack.delivery import Delivery, Indicators
from channels.slack.history import START
from channels.slack.inflow import Inflow
from channels.slack.manifest import SCOPES
from channels.slack.options import Options
from channels.slack.parse import ASK_COMMAND, AppOpened, QuestionPressed, Rules, StopPressed, user_id_of
from channels.slack.questions import Questions
from channels.slack.surfaces.form import Form
from channels.slack.surfaces.greeting import Greeting
from channels.slack.surfaces.home_tab import HomeTab
from gateway import SettingsError
from gateway.api import replace_file
from gateway.channel import (
    Address,
    Cursor,
    Earlier,
    Health,
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
    """The app in one workspace. ``team`` is the workspace's id, empty until the app has signed in."""

    def __init__(
        self,
        host: Host,
        channel_id: str,
        options: Options,
        token: str,
        on_removed: Callable[[Workspace], Awaitable[None]],
        *,
        home: bool,
    ) -> None:
        self.team = ""
        self.home = home
        """True for the workspace of ``bot_token``, whose user ids have no prefix."""
        self.problem = "starting"
        """Reason why the workspace does not work; empty while it does."""
        self.removed = False
        """True once the app was removed from the workspace, so that no answer can reach it."""
        self.token = token
        self.api = Api(token, options.api_base_url, options.pace, self._report_invalid_token)
        self.delivery = Delivery(self.api, streams=options.streaming)
        self.indicators = Indicators(self.api, options.thinking)
        self.questions = Questions(channel_id, self.api, host)
        self.directory = Directory(self.api)
        self.groups = UserGroups(self.api, self._named_groups)
        self.threads = ThreadReader(self.api, self.directory)
        displays = Displays(self.api)
        self.greeting = Greeting(displays, options.greeting, options.prompts)
        self.home_tab = HomeTab(displays, host, channel_id, options.command_prefix)
        self.inflow = Inflow(
            self.api,
            self.directory,
            file_bytes=options.file_bytes,
            read_file=host.read_file,
            attention=lambda message: host.attention(channel_id, message),
            form=Form(self.api, host, channel_id),
            events=self,
        )
        self._stopping = asyncio.Event()
        self._on_removed = on_removed
        self._host = host
        self._channel_id = channel_id
        self._options = options
        self._rules: Rules | None = None

    async def run(self, receive: Receive, tasks: asyncio.TaskGroup, signed_in: Callable[[], None]) -> None:
        """Sign in, then accept deliveries until stopped. Raises RefusedError if the token is rejected."""
        self.problem = "starting"
        rules = self._rules = await self._sign_in()
        await self._restore(rules, receive)
        self.problem = ""
        try:
            async with self.api.connected(), asyncio.TaskGroup() as own_tasks:
                self.directory.start(own_tasks)
                self.inflow.start(rules, self._recording_authors(receive, tasks), tasks)
                signed_in()
                running = [
                    own_tasks.create_task(self._probe()),
                    own_tasks.create_task(self._sweep()),
                    own_tasks.create_task(self.groups.run(own_tasks)),
                ]
                await self._stopping.wait()
                self.directory.stop()
                for task in running:
                    task.cancel()
        finally:
            self.inflow.stop()
            self.directory.stop()

    def stop(self) -> None:
        """Make ``run`` return."""
        self._stopping.set()

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Post one page."""
        placed = await self.delivery.send(outbound)
        self.inflow.history.note_seen(outbound.address.chat, placed.platform_id)
        await self._clear_indicator(outbound)
        return placed

    async def edit(self, placed: Placed, outbound: OutboundMessage) -> None:
        """Change a posted page to its current content."""
        await self.delivery.edit(placed, outbound)
        await self._clear_indicator(outbound)

    def watermark(self, address: Address) -> str | None:
        """Return the timestamp of the newest known message of a chat."""
        answered = address.reply_to or ""
        seen = self.inflow.history.latest.get(address.chat)
        return max((one for one in (seen, answered) if one and "/" not in one), default=None)

    async def history(self, message: InboundMessage, limit: int) -> Sequence[Earlier]:
        """Return earlier messages of a message's thread; see ``ThreadReader.before``."""
        return () if self._rules is None else await self.threads.before(message, limit, self._rules)

    def groups_of(self, user: str) -> frozenset[str]:
        """Return the user groups of a sender as access rules name them: ``usergroup:S123``."""
        return frozenset(self._group_prefix + group for group in self.groups.of(user_id_of(user)))

    @property
    def _group_prefix(self) -> str:
        """The prefix of this workspace's user groups in access rules, by analogy with the ids of users."""
        return PREFIX if self.home else f"{PREFIX}{self.team}:"

    def _named_groups(self) -> frozenset[str]:
        """Return the ids of this workspace's user groups that the access rules name."""
        prefix = self._group_prefix
        found = (one.removeprefix(prefix) for one in self._listed() if one.startswith(prefix))
        return frozenset(one for one in found if ":" not in one)

    def _heeds(self, bot: str) -> bool:
        """Return whether the access rules name a bot. ``*`` names none, as bots could answer each other."""
        return (bot if self.home else f"{self.team}:{bot}") in self._listed()

    def _listed(self) -> frozenset[str]:
        return self._host.listed(self._channel_id)

    def changed(self, event: Json) -> None:
        """Note a change of users, channels or user groups."""
        self.directory.notice(event)
        if str(event.get("type")).startswith("subteam_"):
            self.groups.notice(event)

    async def _sign_in(self) -> Rules:
        """Ask for the ids of the workspace and the bot until Slack answers. Raises RefusedError."""
        while True:
            try:
                identity = await self.api.call("auth.test")
                break
            except (PlacementDeferred, PlacementUncertain) as error:
                problem = str(error)
                if problem != self.problem:
                    log.warning("sign-in to Slack failed", channel=self._channel_id, reason=problem)
                self.problem = problem
                await asyncio.sleep(getattr(error, "seconds", None) or 1.0)
        self.team = self.delivery.team = str(identity.get("team_id"))
        self.delivery.bot_user = str(identity.get("user_id"))
        return Rules(
            channel=self._channel_id,
            team=self.team,
            bot_user=self.delivery.bot_user,
            bot=str(identity.get("bot_id") or ""),
            home=self.home,
            strategy=self._options.session_strategy,
            edits=self._options.edits == "rerun",
            prefix=self._options.command_prefix,
            follows=self.inflow.history.follows,
            heeds=self._heeds,
            asks=lambda: all(command.name != ASK_COMMAND for command in self._host.commands()),
        )

    async def _restore(self, rules: Rules, receive: Receive) -> None:
        """Load the cursors; the first time, commit the current time as the start."""
        now = f"{self.api.slack_time():.6f}"
        known = self.inflow.history.restore(await self._host.cursors(self._channel_id), rules.team, now)
        if not known:
            await receive(cursor=Cursor(rules.team, now, START))

    def _recording_authors(self, receive: Receive, tasks: asyncio.TaskGroup) -> Receive:
        """Return ``receive``, extended to remember the authors of answered messages for streams.

        A thread that began with the greeting gets its title.
        """

        async def receive_recording(
            *messages: InboundMessage,
            cursor: Cursor | None = None,
            rejected: Sequence[Rejected] = (),
            signals: Sequence[Signal] = (),
        ) -> Sequence[Receipt]:
            for message in messages:
                address, user = message.address, user_id_of(message.sender.id)
                answered = self._host.attention(self._channel_id, message) == "answer"
                # A bot, unlike a user, cannot be the recipient of a stream.
                if answered and address.reply_to is not None and not user.startswith("B"):
                    self.delivery.remember_author(address.chat, address.reply_to, user)
                if answered and self.greeting.awaits_title(address):
                    tasks.create_task(self.greeting.name_thread(message))
            return await receive(*messages, cursor=cursor, rejected=rejected, signals=signals)

        return receive_recording

    async def _clear_indicator(self, outbound: OutboundMessage) -> None:
        if outbound.final and outbound.part + 1 == outbound.parts:
            await self.indicators.clear(outbound.address)

    async def pressed(self, pressed: QuestionPressed) -> Awaitable[None] | None:
        """Store the answer of a pressed button, and return what shows the result."""
        return await self.questions.pressed(pressed)

    async def stopped(self, stopped: StopPressed) -> None:
        """Show that the app does nothing any more in the thread of a stopped answer."""
        await self.indicators.mark_idle(stopped.chat, stopped.thread)

    async def opened(self, opened: AppOpened) -> None:
        """Show the app's tab, or greet a user who may use the bot."""
        visitor = opened.visitor
        if opened.tab == "home":
            await self.home_tab.show(visitor)
        elif await self._host.role(self._channel_id, visitor) is not None:
            await self.greeting.show(visitor.address.chat, visitor.address.thread)

    def _report_invalid_token(self, reason: str) -> None:
        """Report an invalid token at once, whichever call found it."""
        self.removed = self.removed or reason == REMOVED
        problem = REMOVED_ADVICE if self.removed else f"Slack rejected bot_token: {reason}"
        if self.problem != problem and self.team:
            log.error(problem, channel=self._channel_id, team=self.team)
            self.problem = problem

    async def left(self) -> None:
        """Report that the app was removed, unless the token works: the event may be late, after a new
        installation."""
        if not await self._check_token():
            await self._on_removed(self)

    async def revoked(self) -> None:
        """Report that tokens were revoked, then check whether the bot's is among them."""
        self._report_invalid_token("tokens_revoked")
        await self._check_token()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            await self.indicators.clear_stale()

    async def _probe(self) -> None:
        """Check the token regularly."""
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            await self._check_token()

    async def _check_token(self) -> bool:
        """Check whether the Web API answers and accepts the token, and update ``problem``.

        Returns False if the token is rejected. Retries a rate-limited or failed call at once instead of at
        the next probe, because it proves nothing.
        """
        while True:
            try:
                await self.api.call("auth.test", urgent=False)
            except (RefusedError, PlacementDeferred, PlacementUncertain) as error:
                log.warning("a check of the bot token failed", team=self.team, reason=str(error))
                if is_token_error(error):
                    return False
                self.problem = str(error)
                if isinstance(error, RefusedError):
                    return True
                await asyncio.sleep(getattr(error, "seconds", None) or _AGAIN_SECONDS)
            else:
                self.problem, self.removed = "", False
                return True


def is_token_error(error: Exception) -> bool:
    """Return whether Slack rejected the token; the text of a call's error is its method and Slack's code."""
    code = error.error if isinstance(error, RefusedError) else str(error).partition(": ")[2].partition(";")[0]
    return code in INVALID_TOKEN


_COOKIE = "trunkline_slack_state"
_STATE_SECONDS = 600.0
_MOST_STATES = 1_000


class Installations:
    """Tokens of workspaces that installed the app, by team id, in a file with mode 0600."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tokens = self._read()

    @property
    def tokens(self) -> list[str]:
        """Tokens of all workspaces."""
        return [*self._tokens.values()]

    async def save(self, team: str, token: str) -> None:
        """Save a workspace's token, replacing its former one."""
        self._tokens[team] = token
        await asyncio.to_thread(self._write)

    async def remove(self, token: str) -> None:
        """Remove a token, but not one that its workspace got since."""
        for team in [team for team, saved in self._tokens.items() if saved == token]:
            del self._tokens[team]
            await asyncio.to_thread(self._write)

    def _read(self) -> dict[str, str]:
        """Read the file; empty if it does not exist. Raises SettingsError if it is not readable."""
        try:
            found: object = json.loads(self._file.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise SettingsError(f"{self._file}: cannot be read: {type(error).__name__}") from None
        if not isinstance(found, dict):
            raise SettingsError(f"{self._file}: contains no installations")
        return {str(team): str(token) for team, token in cast(Json, found).items()}

    def _write(self) -> None:
        replace_file(self._file, json.dumps(self._tokens).encode())


class OAuthPages:
    """The two pages of an OAuth installation. ``installed`` is called with the team id and the bot token."""

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
        """Redirect a browser to Slack, with a state that a cookie binds to this browser."""
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
        """Complete an installation when Slack redirects the browser back."""
        state, code = request.query.get("state", ""), request.query.get("code", "")
        until = self._states.pop(state, 0.0)
        kept = request.cookies.get(_COOKIE, "")
        if until < time.monotonic() or not hmac.compare_digest(state.encode(), kept.encode(errors="replace")):
            return web.Response(
                status=400, text="This installation was not started in this browser. Please start again."
            )
        if not code:
            return web.Response(status=400, text="The installation was denied.")
        try:
            granted = await self._api.call(
                "oauth.v2.access",
                client_id=self._client_id,
                client_secret=self._client_secret,
                code=code,
                redirect_uri=self._redirect_url,
            )
        except (PlacementRefused, PlacementDeferred, PlacementUncertain) as error:
            log.warning("an installation failed", reason=str(error))
            return web.Response(
                status=502, text="Slack did not confirm the installation. Please start again."
            )
        team: object = granted.get("team")
        token: object = granted.get("access_token")
        if not isinstance(team, dict) or not isinstance(token, str) or granted.get("token_type") != "bot":
            return web.Response(status=502, text="Slack returned no bot token. Please start again.")
        await self._installed(str(cast(Json, team).get("id")), token)
        log.info("the app was installed", team=str(cast(Json, team).get("id")))
        answer = web.Response(text="Installed. You can close this page and write to the bot.")
        answer.del_cookie(_COOKIE)
        return answer


_NAMES = frozenset({"channels:read", "groups:read", "usergroups:read", "users:read"})
"""Scopes without which the channel works, but knows no names."""


async def probe(options: Options) -> Sequence[Health]:
    """Ask Slack about the tokens and their scopes, for ``trunkline doctor``; changes nothing there."""
    tokens = [secret.get_secret_value() for secret in (options.bot_token, *options.workspaces)]
    found = [await _probe_bot(Api(token, options.api_base_url)) for token in tokens if token]
    if options.mode == "socket":
        found += await _probe_app(options)
        try:
            await request_socket(Api(options.app_token.get_secret_value(), options.api_base_url).client)
        except (PlacementDeferred, PlacementRefused) as error:
            found.append(Health(ok=False, detail=str(error)))
    return found


_APP = re.compile(r"xapp-\d+-(A[A-Z0-9]+)-.*")


async def _probe_app(options: Options) -> Sequence[Health]:
    """Return that the two tokens are of different apps: the messages of one would go to the other."""
    app = _APP.fullmatch(options.app_token.get_secret_value().strip())
    api = Api(options.bot_token.get_secret_value(), options.api_base_url)
    try:
        bot = (await api.call("auth.test")).get("bot_id") if app else None
        about: object = (await api.call("bots.info", bot=bot)).get("bot") if bot else None
    except (PlacementDeferred, PlacementUncertain, RefusedError):
        return ()  # the other findings say why
    other: object = cast(Json, about).get("app_id") if isinstance(about, dict) else None
    if app is None or not isinstance(other, str) or other == app[1]:
        return ()
    text = f"app_token is of the app {app[1]}, but bot_token of {other}; copy both from the pages of one app"
    return [Health(ok=False, detail=text)]


async def _probe_bot(api: Api) -> Health:
    try:
        identity, scopes = await api.scopes()
    except (PlacementDeferred, PlacementUncertain, RefusedError) as error:
        return Health(ok=False, detail=str(error))
    where = f"{identity.get('user')} in the workspace {identity.get('team')}"
    missing = [scope for scope in SCOPES if scope not in scopes] if scopes else []
    detail = f"signed in as {where}"
    if missing:
        detail += f", without the scopes {', '.join(missing)}; add them and install the app again"
    return Health(ok=_NAMES.issuperset(missing), detail=detail)
