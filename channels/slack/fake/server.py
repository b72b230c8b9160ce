"""Fake Slack on a real socket: the Web API, sockets, files, OAuth, and a page to write to the app."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Unpack, cast
from urllib.parse import parse_qsl, urlsplit

import msgspec
from aiohttp import web

from channels.slack.fake import files
from channels.slack.fake.accounts import Installer, all_scopes, install, uninstall
from channels.slack.fake.api import WebApi
from channels.slack.fake.calls import RefusalError
from channels.slack.fake.chats import new_chat
from channels.slack.fake.delivery import DeliveryQueue, Sockets, Webhooks, event_callback
from channels.slack.fake.messages import respond
from channels.slack.fake.people import People, shown_message
from channels.slack.fake.state import App, Chat, Delivery, Envelope, Grant, Json, State, Switches, Workspace
from gateway.testing.fake_platform import (
    Clock,
    Control,
    FakeServer,
    Fault,
    ServerOptions,
    announce,
    cut,
    options,
)


class FakeSlack(People, FakeServer):
    """Fake platform, with the app installed in each workspace unless ``installed`` is false.

    ``pace`` is the number of platform seconds in a real second, for retries, rate limits and expiries.
    """

    def __init__(
        self,
        *,
        teams: Sequence[str] = ("acme",),
        installed: bool = True,
        pace: float = 1,
        app: App | None = None,
        **server: Unpack[ServerOptions],
    ) -> None:
        FakeServer.__init__(self, Clock(pace=pace), server)
        People.__init__(self, State(app or App(), self.clock, self.changes), self)
        self.installer = Installer(self.state)
        self.sockets = Sockets(self.state, self)
        self.webhooks = Webhooks(self.state)
        self._queue = DeliveryQueue(self.state, self.sockets, self.webhooks, self.faults, self.settled)
        self._api = WebApi(self, self.state, self.installer, self.sockets.connect)
        self._begin(teams, installed=installed)

    @property
    def api_url(self) -> str:
        """Base URL of the Web API."""
        return f"{self.state.url}/api/"

    @property
    def app(self) -> App:
        """Registration of the app, with its secrets."""
        return self.state.app

    @property
    def app_token(self) -> str:
        """Token that opens sockets."""
        return self.state.app.token

    @property
    def bot_token(self) -> str:
        """Bot token in the first workspace."""
        return self.token()

    @property
    def switches(self) -> Switches:
        """Settings that a test may change at any time."""
        return self.state.switches

    @property
    def deliveries(self) -> list[Delivery]:
        """Deliveries to the app so far, with their state."""
        return self.state.deliveries

    def token(self, team: str | None = None) -> str:
        """Return the newest bot token of a workspace. Raises LookupError if there is none."""
        workspace = self.state.team_of(team)
        valid = [grant.token for grant in workspace.grants if grant.kind == "bot" and grant.revoked is None]
        if not valid:
            raise LookupError(f"the app is not installed in {workspace.name}")
        return valid[-1]

    def install(self, team: str | None = None, scopes: Sequence[str] | None = None) -> Grant:
        """Install the app, by default with every scope."""
        return install(self.state, self.state.team_of(team), all_scopes() if scopes is None else scopes)

    def uninstall(self, team: str | None = None) -> None:
        """Remove the app: its tokens are revoked, and it receives events."""
        uninstall(self.state, self.state.team_of(team))

    def approve(self, address: str, team: str | None = None, user: str = "ada", *, deny: bool = False) -> str:
        """Allow or deny the app at the OAuth page, as a user. Returns the URL of the redirect."""
        query = dict(parse_qsl(urlsplit(address).query))
        workspace = None if deny else self.state.team_of(team)
        return self.installer.approve(query, workspace, None if deny else self.user(user, team))

    def lose_sockets(self) -> None:
        """Break all sockets without a close frame."""
        self.sockets.drop()

    async def refresh_sockets(self) -> None:
        """Replace the connections: send a warning, and close them ten platform seconds later."""
        await self.sockets.refresh()

    async def disable_sockets(self) -> None:
        """Disable Socket Mode for the app."""
        await self.sockets.disable()

    async def register(self, url: str) -> None:
        """Deliver by HTTP from now on. Raises ValueError if the URL does not answer the challenge."""
        if not await self.webhooks.verify(url):
            raise ValueError(f"{url} does not answer the challenge")
        self.webhooks.url = url

    def deliver_raw(self, payload: Json, kind: Envelope = "events_api") -> Delivery:
        """Send any payload, also one that Slack never sends."""
        return self.state.deliver(kind, str(payload.get("team_id", "")), payload)

    def deliver_event(self, event: Json, team: str | None = None) -> Delivery:
        """Send any event, wrapped in the callback object of the Events API."""
        workspace = self.state.team_of(team)
        return self.state.deliver("events_api", workspace.id, event_callback(self.state, workspace, event))

    def limit_events(self, team: str | None = None) -> Delivery:
        """Send the event for more than 30,000 events an hour."""
        payload: Json = {
            "token": self.app.verification_token,
            "type": "app_rate_limited",
            "team_id": self.state.team_of(team).id,
            "minute_rate_limited": self.state.stamps.seconds() // 60 * 60,
            "api_app_id": self.app.id,
        }
        return self.deliver_raw(payload)

    @contextmanager
    def reordered(self) -> Generator[None]:
        """Hold deliveries until the block ends, then send them in reverse order."""
        self._queue.held = []
        try:
            yield
        finally:
            held, self._queue.held = self._queue.held, None
            for delivery in reversed(held):
                self._queue.send(delivery)

    async def start(self, stack: AsyncExitStack) -> None:
        """Start to deliver to the app."""
        self.state.url = self.url
        await stack.enter_async_context(self.webhooks)
        await stack.enter_async_context(self._queue)
        stack.callback(self.sockets.drop)
        self.state.send = self._queue.send

    def _begin(self, teams: Sequence[str], *, installed: bool) -> None:
        app = self.state.app
        for name in teams:
            team = Workspace(id=self.state.names.next("T"), name=name)
            self.state.teams[team.id] = team
            new_chat(self.state, team, "channel", "general", set())
            if installed:
                self.install(team.id)
        grant = Grant(token=app.token, kind="app", team="", user="", scopes={"connections:write"})
        self.state.tokens[app.token] = grant

    def routes(self) -> web.Application:
        """Return the application that serves the platform."""
        app = web.Application(client_max_size=files.LARGEST_UPLOAD)
        app.router.add_route("GET", "/api/{method}", self._api.handle)
        app.router.add_route("POST", "/api/{method}", self._api.handle)
        app.router.add_get("/link/", self.sockets.handle)
        app.router.add_post("/upload/v1/{ticket}", self._upload)
        app.router.add_get("/files-pri/{file}/{name}", self._download)
        app.router.add_get("/files-pri/{file}/download/{name}", self._download)
        app.router.add_post("/actions/{team}/{name}", self._respond)
        app.router.add_get("/oauth/v2/authorize", self._ask)
        app.router.add_post("/oauth/v2/authorize", self._allow)
        SlackControl(self).add_to(app)
        return app

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        fault = self.faults.of("upload")
        if fault not in ("none", "fail_after", "drop_after"):
            return self._fail(request, "upload", fault)
        answer, problem = await files.receive_content(self.state, request)
        if fault != "none":
            return self._fail(request, "upload", fault, problem)
        self.record("upload", {"ticket": request.match_info["ticket"]}, problem, status=answer.status)
        return answer

    async def _download(self, request: web.Request) -> web.StreamResponse:
        fault = self.faults.of("download")
        if fault != "none":
            return self._fail(request, "download", fault)
        answer, problem = files.serve_content(self.state, request)
        self.record("download", {"file": request.match_info["file"]}, problem, status=answer.status)
        return answer

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        fault = self.faults.of("response_url")
        if fault not in ("none", "fail_after", "drop_after"):
            return self._fail(request, "response_url", fault)
        given: Any = await _json(request)
        notes: list[str] = []
        status, answer = 200, cast(Json, {"ok": True})
        try:
            if not isinstance(given, dict):
                raise RefusalError("invalid_payload", "the body is not a JSON object")
            respond(self.state, request.match_info["name"], cast(Json, given), notes)
        except RefusalError as refusal:
            status, answer = (
                404 if refusal.error.endswith("_url") else 400,
                {"ok": False, "error": refusal.error},
            )
            notes.append(refusal.problem or refusal.error)
        problem = "; ".join(notes) or None
        if fault != "none":
            return self._fail(request, "response_url", fault, problem)
        arguments = cast(Json, given) if isinstance(given, dict) else {}
        self.record("response_url", arguments, problem, status=status)
        return web.Response(text="ok") if status == 200 else web.json_response(answer, status=status)

    async def _ask(self, request: web.Request) -> web.StreamResponse:
        status, text = self.installer.page(request.query)
        return web.Response(text=text, status=status, content_type="text/html")

    async def _allow(self, request: web.Request) -> web.StreamResponse:
        form = {name: value for name, value in (await request.post()).items() if isinstance(value, str)}
        team = self.state.teams.get(form.pop("install", ""))
        try:
            person = self.user("ada", team.id) if team else None
            target = self.installer.approve(form, team, person)
        except ValueError as wrong:
            return web.Response(text=str(wrong), status=400)
        return web.Response(status=302, headers={"Location": target})

    def _fail(
        self, request: web.Request, method: str, fault: Fault, problem: str | None = None
    ) -> web.StreamResponse:
        status = 429 if fault == "slow_down" else 503
        self.record(method, {}, problem, status=status, fault=fault)
        if fault.startswith("drop"):
            cut(request)
        headers = {"Retry-After": str(self.switches.retry_after)} if status == 429 else {}
        return web.Response(status=status, text="unavailable", headers=headers)


async def _json(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except ValueError:
        return None


async def serve(argv: Sequence[str] | None = None, on_applied: Callable[[], None] | None = None) -> None:
    """Run until cancelled. Prints the address, then the tokens and settings of an app."""
    parser = options("Fake Slack, and a page to write to the app.", "slack")
    parser.add_argument("--teams", default="acme", help="names of the workspaces, separated by commas")
    parser.add_argument("--uninstalled", action="store_true", help="do not install the app")
    parser.add_argument(
        "--pace", type=float, default=1, help="platform seconds in a real second (default: 1)"
    )
    parser.add_argument("--limits", action="store_true", help="enforce the platform's rate limits")
    parser.add_argument("--events", metavar="URL", help="deliver by HTTP to this address, not by sockets")
    parser.add_argument("--outage", type=float, default=0, help="seconds of each 12 in which histories fail")
    given = vars(parser.parse_args(argv))
    outage = given.pop("outage")
    teams = tuple(given.pop("teams").split(","))
    installed, limited, events = not given.pop("uninstalled"), given.pop("limits"), given.pop("events")
    async with FakeSlack(**given, teams=teams, installed=installed, on_applied=on_applied) as fake:
        fake.switches.limited = limited
        for method in ("conversations.history", "conversations.replies"):
            fake.fail_regularly(method, outage, 12)
        fake.webhooks.url = events
        await announce(fake.url, "slack", _settings(fake, by_http=events is not None), _facts(fake))


def _facts(fake: FakeSlack) -> list[str]:
    """Return the tokens and addresses for an app; open a direct chat with each of two users where it is
    installed.
    """
    facts = [
        f"api {fake.api_url}",
        f"app_token {fake.app_token}",
        f"signing_secret {fake.app.signing_secret}",
        f"client_id {fake.app.client_id}",
        f"client_secret {fake.app.client_secret}",
    ]
    for team in fake.state.teams.values():
        if team.bot is not None:
            fake.chat("@ada", team.id)
            fake.chat("@ben", team.id)
            facts.append(f"bot_token {fake.token(team.id)} {team.name}")
    return facts


def _settings(fake: FakeSlack, *, by_http: bool) -> dict[str, str]:
    """Return the settings that connect a gateway to the first workspace; empty if no app is installed."""
    tokens = [fake.token(team.id) for team in fake.state.teams.values() if team.bot is not None]
    if not tokens:
        return {}
    settings: dict[str, str] = {"bot_token": tokens[0], "api_base_url": fake.api_url, "allow": "*"}
    if by_http:
        settings |= {"mode": "http", "signing_secret": fake.app.signing_secret}
    else:
        settings["app_token"] = fake.app_token
    return settings


class SlackControl(Control):
    """Page and control interface of the fake. ``/?redir=`` serves the sign-in page."""

    def __init__(self, fake: FakeSlack) -> None:
        def open(chat: str, team: str | None = None) -> str:
            return fake.chat(chat, team).id

        def say(chat: str, text: str, files: Mapping[str, str] | None = None, **given: Any) -> str:
            pairs = (files or {}).items()
            stored = [(name, base64.b64decode(data, validate=True)) for name, data in pairs]
            return fake.say(chat, text, files=stored, **given)

        def press(**given: Any) -> str:
            return fake.press(**given).envelope

        def is_acknowledged(envelope: str) -> bool:
            return fake.state.envelopes[envelope].acknowledged

        acts = (say, fake.edit, fake.delete, fake.react, press, fake.command, fake.stop, is_acknowledged)
        super().__init__(
            fake,
            Path(__file__).with_name("page"),
            lambda _most: _page_state(fake),
            (*acts, fake.lose_sockets, open),
        )

    async def page(self, request: web.Request) -> web.StreamResponse:
        """Serve a file of the page, or the sign-in page."""
        return files.sign_in() if "redir" in request.query else await super().page(request)


def _page_state(fake: FakeSlack) -> Json:
    teams = [_team_view(fake, team) for team in fake.state.teams.values()]
    failure = fake.notices[-1][1] if fake.notices else None
    return {"teams": teams, "failures": len(fake.notices), "failure": failure}


def _team_view(fake: FakeSlack, team: Workspace) -> Json:
    chats = [_chat_view(fake, team, chat) for chat in team.chats.values()]
    names = {user.id: user.name for user in team.users.values()}
    persons = [user.name for user in team.users.values() if not user.is_bot]
    bot = team.bot.name if team.bot else None
    return {"id": team.id, "name": team.name, "bot": bot, "users": persons, "names": names, "rooms": chats}


def _chat_view(fake: FakeSlack, team: Workspace, chat: Chat) -> Json:
    members = [team.users[one].name for one in sorted(chat.members) if one in team.users]
    shown = [
        msgspec.to_builtins(shown_message(fake.state, chat, message)) for message in chat.messages.values()
    ]
    hidden = [
        {**msgspec.to_builtins(shown_message(fake.state, chat, one)), "only_for": team.users[user].name}
        for user, ones in chat.hidden.items()
        for one in ones
    ]
    status = {
        root: text
        for (where, root), (text, until) in fake.state.statuses.items()
        if where == chat.id and fake.clock.now() < until
    }
    sessions = {
        root: {"status": session.status, "title": session.title}
        for (where, root), session in fake.state.sessions.items()
        if where == chat.id
    }
    return {
        "id": chat.id,
        "name": chat.name,
        "kind": chat.kind,
        "members": members,
        "messages": sorted([*shown, *hidden], key=lambda one: one["ts"]),
        "status": status,
        "sessions": sessions,
    }
