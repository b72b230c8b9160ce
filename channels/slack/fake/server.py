"""The fake Slack itself: one server for the Web API, the sockets, files, OAuth, and a page to play with."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

from aiohttp import web

from channels.slack.fake import files, page
from channels.slack.fake.api import WebApi
from channels.slack.fake.asking import RefusalError
from channels.slack.fake.clock import Clock
from channels.slack.fake.delivery import Delivery, Envelope
from channels.slack.fake.installing import Installer, every_scope, install, uninstall
from channels.slack.fake.interactions import Interactions
from channels.slack.fake.office import PostOffice
from channels.slack.fake.payloads import event_callback
from channels.slack.fake.responses import respond
from channels.slack.fake.rooms import new_room
from channels.slack.fake.sockets import Sockets
from channels.slack.fake.state import App, State, Switches
from channels.slack.fake.webhooks import Webhooks
from channels.slack.fake.workspace import Grant, Json, Workspace
from gateway.testing.faults import Fault, FaultScript
from gateway.testing.transcript import Transcript


class FakeSlack(Interactions):
    """The platform, with the app installed in every team unless told otherwise.

    ``faults`` is the share of calls that go wrong, ``repeats`` that of events that come twice; ``then`` of
    ``script`` says what the next calls do. ``pace`` makes retries, windows and expiries run faster, and
    ``clock.advance`` moves them on. ``on_applied`` is called when a message of the bot was placed, before its
    answer leaves.
    """

    def __init__(
        self,
        *,
        teams: Sequence[str] = ("acme",),
        installed: bool = True,
        faults: float = 0,
        repeats: float = 0,
        seed: int = 0,
        host: str = "127.0.0.1",
        port: int = 0,
        pace: float = 1,
        app: App | None = None,
        on_applied: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(State(app or App(), Clock(pace)))
        self.transcript = Transcript()
        self.script = FaultScript(faults, repeats=repeats, seed=seed)
        self.installer = Installer(self.state)
        self.sockets = Sockets(self.state, self.transcript)
        self.webhooks = Webhooks(self.state)
        self._host = host
        self._port = port
        self._office = PostOffice(self.state, self.sockets, self.webhooks, self.script, self.settled)
        self._api = WebApi(
            self.state, self.script, self.transcript, self.installer, self.sockets.connect, on_applied
        )
        self._stack = AsyncExitStack()
        self._begin(teams, installed=installed)

    @property
    def url(self) -> str:
        """Where everything is."""
        return self.state.url

    @property
    def api_url(self) -> str:
        """The base of the Web API, as clients want it."""
        return f"{self.state.url}/api/"

    @property
    def app(self) -> App:
        """The app's registration, with its secrets."""
        return self.state.app

    @property
    def app_token(self) -> str:
        """The token that opens sockets."""
        return self.state.app.token

    @property
    def bot_token(self) -> str:
        """The bot's token in the first workspace."""
        return self.token()

    @property
    def clock(self) -> Clock:
        """What waits and windows are measured with."""
        return self.state.clock

    @property
    def switches(self) -> Switches:
        """What may be turned while it runs."""
        return self.state.switches

    @property
    def deliveries(self) -> list[Delivery]:
        """Everything the app was told, and whether it has it."""
        return self.state.deliveries

    def then(self, *faults: Fault, method: str = "") -> None:
        """What happens to the next calls, of one method or of any."""
        self.script.then(*faults, method=method)

    def token(self, team: str | None = None) -> str:
        """The bot's newest token in a workspace. Raises LookupError where the app is not installed."""
        workspace = self.state.team_of(team)
        valid = [grant.token for grant in workspace.grants if grant.kind == "bot" and grant.revoked is None]
        if not valid:
            raise LookupError(f"the app is not installed in {workspace.name}")
        return valid[-1]

    def install(self, team: str | None = None, scopes: Sequence[str] | None = None) -> Grant:
        """Install the app, by default with every scope there is."""
        return install(self.state, self.state.team_of(team), every_scope() if scopes is None else scopes)

    def uninstall(self, team: str | None = None) -> None:
        """Remove the app: its tokens are worth nothing, and it is told."""
        uninstall(self.state, self.state.team_of(team))

    def approve(self, address: str, team: str | None = None, user: str = "ada", *, deny: bool = False) -> str:
        """A person at the OAuth page allows the app, or denies it. Returns where they are sent to."""
        query = dict(parse_qsl(urlsplit(address).query))
        workspace = None if deny else self.state.team_of(team)
        return self.installer.approve(query, workspace, None if deny else self.user(user, team))

    def lose_sockets(self) -> None:
        """All sockets break, without a word."""
        self.sockets.drop()

    async def refresh_sockets(self) -> None:
        """The platform renews the connections: a warning, and ten seconds of its clock later the end."""
        await self.sockets.refresh()

    async def disable_sockets(self) -> None:
        """Socket Mode is switched off in the app's registration."""
        await self.sockets.disable()

    async def register(self, url: str) -> None:
        """Send by HTTP from now on. Raises ValueError when the address does not answer the challenge."""
        if not await self.webhooks.verify(url):
            raise ValueError(f"{url} does not answer the challenge")
        self.webhooks.url = url

    def deliver_raw(self, payload: Json, kind: Envelope = "events_api") -> Delivery:
        """Send something the platform never sends, or does not send yet."""
        return self.state.tell(kind, str(payload.get("team_id", "")), payload)

    def deliver_event(self, event: Json, team: str | None = None) -> Delivery:
        """Send an event that nothing here brings about, in a callback like any other."""
        workspace = self.state.team_of(team)
        return self.state.tell("events_api", workspace.id, event_callback(self.state, workspace, event))

    def limit_events(self, team: str | None = None) -> Delivery:
        """The app gets more than 30,000 events an hour: it is told so, instead of being told the events."""
        payload: Json = {
            "token": self.app.verification_token,
            "type": "app_rate_limited",
            "team_id": self.state.team_of(team).id,
            "minute_rate_limited": self.state.stamps.seconds() // 60 * 60,
            "api_app_id": self.app.id,
        }
        return self.deliver_raw(payload)

    @asynccontextmanager
    async def reordered(self) -> AsyncGenerator[None]:
        """What happens inside the block reaches the app afterwards, the last first."""
        self._office.held = []
        try:
            yield
        finally:
            held, self._office.held = self._office.held, None
            for delivery in reversed(held):
                self._office.send(delivery)

    async def __aenter__(self) -> FakeSlack:
        runner = web.AppRunner(
            self._routes(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, self._host, self._port).start()
        host, port = runner.addresses[0][:2]
        self.state.url = f"http://{host}:{port}"
        await self._stack.enter_async_context(self.webhooks)
        await self._stack.enter_async_context(self._office)
        self._stack.callback(self.sockets.drop)
        self.state.send = self._office.send
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    def _begin(self, teams: Sequence[str], *, installed: bool) -> None:
        app = self.state.app
        for name in teams:
            team = Workspace(id=self.state.names.next("T"), name=name)
            self.state.teams[team.id] = team
            new_room(self.state, team, "channel", "general", set())
            if installed:
                self.install(team.id)
        grant = Grant(token=app.token, kind="app", team="", user="", scopes={"connections:write"})
        self.state.tokens[app.token] = grant

    def _routes(self) -> web.Application:
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
        page.add_routes(app, self)
        return app

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        fault = self.script.of("upload")
        if fault not in ("none", "fail_after", "drop_after"):
            return self._spoilt(request, "upload", fault)
        answer, problem = await files.take(self.state, request)
        if fault != "none":
            return self._spoilt(request, "upload", fault, problem)
        self._record("upload", {"ticket": request.match_info["ticket"]}, answer.status, problem)
        return answer

    async def _download(self, request: web.Request) -> web.StreamResponse:
        fault = self.script.of("download")
        if fault != "none":
            return self._spoilt(request, "download", fault)
        answer, problem = files.give(self.state, request)
        self._record("download", {"file": request.match_info["file"]}, answer.status, problem)
        return answer

    async def _respond(self, request: web.Request) -> web.StreamResponse:
        fault = self.script.of("response_url")
        if fault not in ("none", "fail_after", "drop_after"):
            return self._spoilt(request, "response_url", fault)
        given: Any = await _json(request)
        notes: list[str] = []
        status, answer = 200, cast(Json, {"ok": True})
        try:
            if not isinstance(given, dict):
                raise RefusalError("invalid_payload", "the body is no JSON object")
            respond(self.state, request.match_info["name"], cast(Json, given), notes)
        except RefusalError as refusal:
            status, answer = (
                404 if refusal.error.endswith("_url") else 400,
                {"ok": False, "error": refusal.error},
            )
            notes.append(refusal.problem or refusal.error)
        problem = "; ".join(notes) or None
        if fault != "none":
            return self._spoilt(request, "response_url", fault, problem)
        told = cast(Json, given) if isinstance(given, dict) else {}
        self._record("response_url", told, status, problem)
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

    def _spoilt(
        self, request: web.Request, method: str, fault: Fault, problem: str | None = None
    ) -> web.StreamResponse:
        status = 429 if fault == "slow_down" else 503
        self.transcript.record(method, {}, status=status, fault=fault, problem=problem)
        if fault.startswith("drop") and request.transport is not None:
            request.transport.abort()
        headers = {"Retry-After": str(self.switches.retry_after)} if status == 429 else {}
        return web.Response(status=status, text="unavailable", headers=headers)

    def _record(self, method: str, arguments: Mapping[str, Any], status: int, problem: str | None) -> None:
        self.transcript.record(method, arguments, status=status, problem=problem)
        self.state.changed()


async def _json(request: web.Request) -> Any:
    try:
        return json.loads(await request.read())
    except ValueError:
        return None
