"""Deliveries from Slack to the app, by Socket Mode or HTTP: committed first, acknowledged afterwards."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl

import aiohttp
import structlog
from aiohttp import web
from msgspec import Struct
from slack_bolt.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.request.async_request import AsyncBoltRequest

from channels.slack.api import Api, Json
from gateway.channel import Backoff, PlacementDeferred, PlacementRefused, PlacementUncertain

log = structlog.get_logger("trunkline.slack")

Answer = tuple[bool, Json | None]
"""Whether a delivery is acknowledged, and what is said along with that."""
Handle = Callable[[str, Json], Awaitable[Answer]]
"""Takes the kind of a delivery, its payload, and the whole frame."""

_HEARTBEAT = 10.0
_LARGEST_FRAME = 4 * 1024 * 1024
_AT_ONCE = 64
_BACKOFF = Backoff(0.2, 30)


class Sockets:
    """The connection of one app. ``on_gap`` is called when one follows a time without any."""

    def __init__(self, app_token: str, base_url: str, handle: Handle, on_gap: Callable[[], None]) -> None:
        self._client = Api(app_token, base_url).client
        self._handle = handle
        self._on_gap = on_gap
        self._live = 0
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.problem = "connecting"
        """Why there is no connection; empty while there is one."""

    async def run(self) -> None:
        """Stay connected until cancelled."""
        failures = 1
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as http,
            asyncio.TaskGroup() as tasks,
        ):
            while True:
                leaving = asyncio.Event()
                try:
                    socket = await self._open(http)
                except (PlacementDeferred, PlacementUncertain, aiohttp.ClientError, TimeoutError) as error:
                    self.problem = str(error) or type(error).__name__
                    log.info("no connection to Slack", reason=self.problem)
                    await asyncio.sleep(_BACKOFF.pause(failures))
                    failures += 1
                    continue
                if not self._live:
                    self._on_gap()
                self._live += 1
                tasks.create_task(self._keep(socket, leaving))
                begun = asyncio.get_running_loop().time()
                await leaving.wait()
                lasted = asyncio.get_running_loop().time() - begun
                failures = 1 if lasted > _BACKOFF.pause(failures) else failures + 1
                if not self._live:
                    await asyncio.sleep(_BACKOFF.pause(failures) / 2)

    async def _open(self, http: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        """A new connection. Raises PlacementRefused when the token does not do."""
        client: Any = self._client
        try:
            answer = await client.apps_connections_open(app_token=client.token)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PlacementDeferred(type(error).__name__) from error
        except Exception as error:
            raise _failure(error) from error
        url: Any = answer.get("url")
        return await http.ws_connect(str(url), heartbeat=_HEARTBEAT, max_msg_size=_LARGEST_FRAME)

    async def _keep(self, socket: aiohttp.ClientWebSocketResponse, leaving: asyncio.Event) -> None:
        """Read a connection until it ends; ``leaving`` is set as soon as another one is needed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                async for frame in socket:
                    if frame.type is aiohttp.WSMsgType.TEXT:
                        await self._take(socket, leaving, tasks, frame.data)
        finally:
            self._live -= 1
            if not self._live:
                self.problem = "the connection is lost"
            leaving.set()
            await socket.close()

    async def _take(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        leaving: asyncio.Event,
        tasks: asyncio.TaskGroup,
        text: str,
    ) -> None:
        try:
            frame: object = json.loads(text)
        except (ValueError, RecursionError):
            log.warning("Slack sent a frame that is no JSON")
            return
        if not isinstance(frame, dict):
            return
        given = cast(Json, frame)
        kind = given.get("type")
        if kind == "hello":
            self.problem = ""
        elif kind == "disconnect":
            log.info("Slack ends a connection", reason=str(given.get("reason")))
            leaving.set()
        elif isinstance(given.get("envelope_id"), str):
            await self._slots.acquire()
            tasks.create_task(self._deliver(socket, given))

    async def _deliver(self, socket: aiohttp.ClientWebSocketResponse, frame: Json) -> None:
        """Handle one delivery, and acknowledge it if it is durable."""
        try:
            payload = frame.get("payload")
            given = cast(Json, payload) if isinstance(payload, dict) else {}
            taken, answer = await self._handle(str(frame.get("type")), given)
            if taken:
                told = {"envelope_id": frame["envelope_id"], **({"payload": answer} if answer else {})}
                await socket.send_json(told)
        except ConnectionError as error:
            log.debug("an acknowledgement did not leave", reason=type(error).__name__)
        finally:
            self._slots.release()


def _failure(error: Exception) -> Exception:
    """Why no connection may be opened."""
    response: Any = getattr(error, "response", None)
    told: Any = getattr(response, "data", None)
    name = str(cast(Json, told).get("error", "")) if isinstance(told, dict) else ""
    status = getattr(response, "status_code", 0)
    if status == 429 or status >= 500 or name in ("ratelimited", "fatal_error", "internal_error", ""):
        return PlacementDeferred(name or f"{type(error).__name__}")
    return PlacementRefused(
        f"apps.connections.open: {name}; look at app_token, and whether the app has Socket Mode switched on"
    )


_WINDOW = 300
"""Seconds that a request's time may be off."""
_BODY_SECONDS = 10.0
"""How long a body may take; Slack itself gives up after three seconds."""
_TIME = re.compile(r"[0-9]{1,12}", re.ASCII)


class Webhook:
    """The one address that Slack sends to."""

    def __init__(
        self,
        secret: str,
        handle: Handle,
        clock: Callable[[], float] = time.time,
        body_seconds: float = _BODY_SECONDS,
    ) -> None:
        self._secret = secret.encode()
        self._handle = handle
        self._clock = clock
        self._body_seconds = body_seconds

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Answer one request: 200 once it is durable, 503 so that Slack comes again."""
        try:
            # Before the signature can be checked: anyone may have sent this.
            async with asyncio.timeout(self._body_seconds):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408, text="the body did not arrive in time")
        if not self.is_genuine(request.headers, body):
            return web.Response(status=401, text="the signature is not valid")
        payload = _payload(request.content_type, body)
        if payload is None:
            return web.Response(status=400, text="this cannot be read")
        if payload.get("type") == "url_verification":
            return web.Response(text=str(payload.get("challenge", ""))[:1000])
        if "ssl_check" in payload and "command" not in payload:
            return web.Response()
        taken, answer = await self._handle(str(payload.get("type", "")), payload)
        if not taken:
            return web.Response(status=503, text="please send this again")
        return web.json_response(answer) if answer else web.Response()

    def is_genuine(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether Slack signed this, and lately."""
        stamp, signature = headers.get("X-Slack-Request-Timestamp", ""), headers.get("X-Slack-Signature", "")
        if not _TIME.fullmatch(stamp) or abs(self._clock() - int(stamp)) > _WINDOW:
            return False
        digest = hmac.new(self._secret, b"v0:" + stamp.encode() + b":" + body, hashlib.sha256).hexdigest()
        return hmac.compare_digest(f"v0={digest}".encode(), signature.encode(errors="surrogateescape"))


def _payload(kind: str, body: bytes) -> Json | None:
    """What a request says: JSON, or a form that holds JSON, or a slash command as a form."""
    try:
        if kind != "application/x-www-form-urlencoded":
            return _object(json.loads(body))
        form = dict(parse_qsl(body.decode(), keep_blank_values=True))
        return _object(json.loads(form["payload"])) if "payload" in form else dict(form)
    except (ValueError, RecursionError):
        return None


def _object(value: object) -> Json | None:
    return cast(Json, value) if isinstance(value, dict) else None


_ANYTHING = re.compile(r".*", re.DOTALL)


class Taker(Protocol):
    """Makes deliveries of one workspace durable."""

    async def commit(self, payload: Json) -> bool: ...


class _Taken(Struct):
    """One delivery on its way: whether anybody looked at it, and whether it is durable."""

    begun: bool = False
    durable: bool = False


class Deliveries:
    """Takes the deliveries of one app. ``taker`` tells whose a delivery is, by the workspace's id."""

    def __init__(self, taker: Callable[[str], Taker | None]) -> None:
        self._taker = taker
        self._app = self._bolt()

    async def handle(self, kind: str, payload: Json) -> Answer:
        """Take one delivery: whether it may be acknowledged, and what is to be said with that."""
        taken = _Taken()
        answer: Json | None = None
        try:
            request = AsyncBoltRequest(mode="socket_mode", body=payload)
            request.context["taken"] = taken
            response = await self._app.async_dispatch(request)
            if response.status == 200 and response.body:
                answer = cast(Json, json.loads(response.body))
        except Exception as error:  # noqa: BLE001 - the library stumbles over payloads that are not as usual
            log.debug("bolt cannot read a delivery", kind=kind, reason=type(error).__name__)
        if not taken.begun:
            await self._commit(payload, taken)
        return taken.durable, answer

    async def _commit(self, payload: Json, taken: _Taken) -> None:
        taken.begun = True
        team = team_of(payload)
        taker = self._taker(team)
        if taker is None:
            log.warning("Slack tells of a workspace that is none of ours", team=team)
        else:
            taken.durable = await taker.commit(payload)

    def _bolt(self) -> AsyncApp:
        """The app: everything is made durable before a listener acknowledges it."""
        quiet = logging.getLogger("trunkline.slack.bolt")
        quiet.setLevel(logging.CRITICAL)  # what goes wrong is told here, without what people wrote

        async def authorize(team_id: str | None) -> AuthorizeResult:
            return AuthorizeResult(enterprise_id=None, team_id=team_id)

        app: Any = AsyncApp(
            logger=quiet,
            signing_secret="checked before",  # noqa: S106 - signatures are checked where requests come in
            authorize=authorize,
            request_verification_enabled=False,
            ignoring_self_events_enabled=False,
        )

        async def commit(body: Json, context: dict[str, Any], next: Callable[[], Awaitable[None]]) -> None:
            taken: _Taken = context["taken"]
            await self._commit(body, taken)
            if taken.durable:
                await next()

        async def acknowledge(ack: Callable[[], Awaitable[None]]) -> None:
            await ack()

        app.use(commit)
        for kind in ("event", "command", "action", "shortcut", "view", "view_closed", "options"):
            getattr(app, kind)(_ANYTHING)(acknowledge)
        return cast(AsyncApp, app)


def team_of(payload: Json) -> str:
    """The workspace whose installation a delivery is for; empty if it does not say so.

    In rooms that workspaces share, the author's workspace may be another one.
    """
    authorized: object = payload.get("authorizations")
    first: object = cast(list[object], authorized)[0] if isinstance(authorized, list) and authorized else None
    for place, key in ((first, "team_id"), (payload, "team_id"), (payload.get("team"), "id")):
        found: object = cast(Json, place).get(key) if isinstance(place, dict) else None
        if isinstance(found, str) and found:
            return found
    return ""
