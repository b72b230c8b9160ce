"""Connection from Slack: deliveries by Socket Mode or HTTP, committed before they are acknowledged."""

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

from channels.slack.api import NOT_SLACKS, Api, Json
from channels.slack.parse import QUESTION, FormError
from gateway.channel import Backoff, PlacementDeferred, PlacementRefused, PlacementUncertain

log = structlog.get_logger("trunkline.slack")

Answer = tuple[bool, Json | None]
"""True to acknowledge a delivery, with the payload of the acknowledgement."""
Handle = Callable[[str, Json], Awaitable[Answer]]
"""Handles a delivery, given its kind (such as ``events_api``) and its payload."""

_HEARTBEAT = 10.0
_LARGEST_FRAME = 4 * 1024 * 1024
_AT_ONCE = 64
_BACKOFF = Backoff(0.2, 30)


class SocketMode:
    """Socket Mode connection of one app, replaced by a new one before Slack closes it.

    ``on_gap`` is called when a connection opens while no other was open, since deliveries may be missing
    then.
    """

    def __init__(self, app_token: str, base_url: str, handle: Handle, on_gap: Callable[[], None]) -> None:
        self._client = Api(app_token, base_url).client
        self._handle = handle
        self._on_gap = on_gap
        self._connections = 0
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.problem = "connecting"
        """Reason why no connection is open; empty while one is."""

    async def run(self) -> None:
        """Keep a connection open until cancelled, with backoff after failures."""
        failures = 1
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=True) as http,
            asyncio.TaskGroup() as tasks,
        ):
            while True:
                closing = asyncio.Event()
                try:
                    socket = await self._open(http)
                except (PlacementDeferred, PlacementUncertain, aiohttp.ClientError, TimeoutError) as error:
                    self.problem = str(error) or type(error).__name__
                    log.info("no connection to Slack", reason=self.problem)
                    await asyncio.sleep(_BACKOFF.pause(failures))
                    failures += 1
                    continue
                if not self._connections:
                    self._on_gap()
                self._connections += 1
                tasks.create_task(self._read_frames(socket, closing))
                begun = asyncio.get_running_loop().time()
                await closing.wait()
                lasted = asyncio.get_running_loop().time() - begun
                failures = 1 if lasted > _BACKOFF.pause(failures) else failures + 1
                if not self._connections:
                    await asyncio.sleep(_BACKOFF.pause(failures) / 2)

    async def _open(self, http: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        """Open a connection. Raises PlacementRefused if the app token is rejected."""
        url = await request_socket(self._client)
        return await http.ws_connect(url, heartbeat=_HEARTBEAT, max_msg_size=_LARGEST_FRAME)

    async def _read_frames(self, socket: aiohttp.ClientWebSocketResponse, closing: asyncio.Event) -> None:
        """Read a connection until it ends. ``closing`` is set as soon as a replacement is needed."""
        async with asyncio.TaskGroup() as tasks:
            try:
                async for frame in socket:
                    if frame.type is aiohttp.WSMsgType.TEXT:
                        await self._read_frame(socket, closing, tasks, frame.data)
            finally:
                # Not after the group: its deliveries may still wait for a commit.
                self._connections -= 1
                if not self._connections:
                    self.problem = "connection lost"
                closing.set()
                await socket.close()

    async def _read_frame(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        closing: asyncio.Event,
        tasks: asyncio.TaskGroup,
        text: str,
    ) -> None:
        try:
            frame: object = json.loads(text)
        except (ValueError, RecursionError):
            log.warning("Slack sent a frame that is not JSON")
            return
        if not isinstance(frame, dict):
            return
        given = cast(Json, frame)
        kind = given.get("type")
        if kind == "hello":
            self.problem = ""
        elif kind == "disconnect":
            log.info("Slack closes a connection", reason=str(given.get("reason")))
            closing.set()
        elif isinstance(given.get("envelope_id"), str):
            await self._slots.acquire()
            tasks.create_task(self._deliver(socket, given))

    async def _deliver(self, socket: aiohttp.ClientWebSocketResponse, frame: Json) -> None:
        """Handle one delivery, and acknowledge it if it was committed."""
        try:
            payload = frame.get("payload")
            given = cast(Json, payload) if isinstance(payload, dict) else {}
            acknowledged, answer = await self._handle(str(frame.get("type")), given)
            if acknowledged:
                acknowledgement = {
                    "envelope_id": frame["envelope_id"],
                    **({"payload": answer} if answer else {}),
                }
                await socket.send_json(acknowledgement)
        except ConnectionError as error:
            log.debug("an acknowledgement was not sent", reason=type(error).__name__)
        finally:
            self._slots.release()


async def request_socket(client: Any) -> str:
    """Return the URL of a new Socket Mode connection. Raises PlacementDeferred and PlacementRefused."""
    try:
        answer = await client.apps_connections_open(app_token=client.token)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise PlacementDeferred(f"Slack cannot be reached: {error or type(error).__name__}") from error
    except Exception as error:
        raise _open_error(error) from error
    return str(answer.get("url"))


_OPEN = "apps.connections.open"


def _open_error(error: Exception) -> Exception:
    """Map an error of ``apps.connections.open``: temporary, or a wrong token or app configuration."""
    response: Any = getattr(error, "response", None)
    data: Any = getattr(response, "data", None)
    name = str(cast(Json, data).get("error", "")) if isinstance(data, dict) else ""
    status = getattr(response, "status_code", 0)
    if status == 429 or name == "ratelimited":
        return PlacementDeferred(f"{_OPEN}: Slack asked to wait")
    if status >= 500 or name in ("fatal_error", "internal_error"):
        return PlacementDeferred(f"{_OPEN}: status {status} {name}".rstrip())
    if not name:
        return PlacementDeferred(f"{_OPEN}: status {status} with {NOT_SLACKS}")
    advice = "check app_token, and that Socket Mode is enabled for the app"
    if name == "missing_scope":
        advice = "app_token needs the scope connections:write"
    return PlacementRefused(f"{_OPEN}: {name}; {advice}")


_WINDOW = 300
"""Largest accepted age of a signed request, in seconds."""
_BODY_SECONDS = 10.0
"""Timeout for reading a request body; Slack itself gives up after three seconds."""
_TIME = re.compile(r"[0-9]{1,12}", re.ASCII)


class Webhook:
    """HTTP endpoint for Slack's deliveries."""

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
        self._reported: dict[str, None] = {}

    @property
    def refused(self) -> str:
        """Why requests were refused since the last one that Slack has signed; empty if none were."""
        return "; ".join(f"a request was refused: {one}" for one in self._reported)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Handle a request: 200 once its delivery is committed, 503 to make Slack retry."""
        try:
            # The sender is unverified until the body is read, so it must not keep the connection open.
            async with asyncio.timeout(self._body_seconds):
                body = await request.read()
        except TimeoutError:
            return web.Response(status=408, text="timeout while reading the body")
        if problem := self._find_forgery(request.headers, body):
            # Once for each reason: everyone can send forged requests.
            if problem not in self._reported:
                log.warning("refused a request that Slack has not signed", reason=problem)
                self._reported[problem] = None
            return web.Response(status=401, text="invalid signature")
        self._reported.clear()
        payload = _payload(request.content_type, body)
        if payload is None:
            return web.Response(status=400, text="malformed body")
        if payload.get("type") == "url_verification":
            return web.Response(text=str(payload.get("challenge", ""))[:1000])
        if "ssl_check" in payload and "command" not in payload:
            return web.Response()
        acknowledged, answer = await self._handle(str(payload.get("type", "")), payload)
        if not acknowledged:
            return web.Response(status=503, text="please retry")
        return web.json_response(answer) if answer else web.Response()

    def _find_forgery(self, headers: Mapping[str, str], body: bytes) -> str:
        """Return what is wrong with a request that Slack should have signed just now; empty if nothing is."""
        stamp, signature = headers.get("X-Slack-Request-Timestamp", ""), headers.get("X-Slack-Signature", "")
        if not _TIME.fullmatch(stamp) or abs(self._clock() - int(stamp)) > _WINDOW:
            return "its time is more than five minutes off; check the clock of this machine"
        digest = hmac.new(self._secret, b"v0:" + stamp.encode() + b":" + body, hashlib.sha256).hexdigest()
        if hmac.compare_digest(f"v0={digest}".encode(), signature.encode(errors="surrogateescape")):
            return ""
        return "its signature is wrong; check signing_secret, on the page Basic Information of the app"


def _payload(kind: str, body: bytes) -> Json | None:
    """Decode a request body: JSON, a form with JSON in ``payload``, or the form of a slash command.

    Returns None if it is malformed.
    """
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


class Committer(Protocol):
    """Receiver of the deliveries of one workspace. ``commit`` raises FormError."""

    async def commit(self, payload: Json) -> bool: ...


class _Commitment(Struct):
    """State of one delivery: whether a commit was attempted, whether it succeeded, and the problem that is
    shown in a submitted form.
    """

    attempted: bool = False
    durable: bool = False
    problem: str = ""


class Dispatcher:
    """Dispatcher of an app's deliveries to its workspaces. ``committer_of`` finds one by its team id."""

    def __init__(self, committer_of: Callable[[str], Committer | None]) -> None:
        self._committer_of = committer_of
        self._app = self._bolt()

    async def handle(self, kind: str, payload: Json) -> Answer:
        """Commit a delivery. Return whether to acknowledge it, and the payload of the acknowledgement."""
        commitment = _Commitment()
        answer: Json | None = None
        try:
            request = AsyncBoltRequest(mode="socket_mode", body=payload)
            request.context["commitment"] = commitment
            response = await self._app.async_dispatch(request)
            if response.status == 200 and response.body:
                answer = cast(Json, json.loads(response.body))
        except Exception as error:  # noqa: BLE001 - Bolt fails on unusual payloads; the commit below handles them
            log.debug("Bolt cannot parse a delivery", kind=kind, reason=type(error).__name__)
        if not commitment.attempted:
            await self._commit(payload, commitment)
        if commitment.problem:
            return True, {"response_action": "errors", "errors": {QUESTION: commitment.problem}}
        return commitment.durable, answer

    async def _commit(self, payload: Json, commitment: _Commitment) -> None:
        commitment.attempted = True
        team = team_of(payload)
        committer = self._committer_of(team)
        if committer is None:
            log.warning("delivery for an unknown workspace", team=team)
        else:
            try:
                commitment.durable = await committer.commit(payload)
            except FormError as error:
                commitment.problem = str(error)
            except Exception:  # Bolt would drop it; without an acknowledgement Slack repeats the delivery
                log.exception("a delivery could not be committed", team=team)

    def _bolt(self) -> AsyncApp:
        """Return the Bolt app, whose middleware commits a delivery before a listener acknowledges it."""
        quiet = logging.getLogger("trunkline.slack.bolt")
        quiet.setLevel(logging.CRITICAL)  # Bolt would log message texts

        async def authorize(team_id: str | None) -> AuthorizeResult:
            return AuthorizeResult(enterprise_id=None, team_id=team_id)

        app: Any = AsyncApp(
            # Without a name it reads the sources of its callers for one, which takes 50 ms.
            name="trunkline",
            logger=quiet,
            signing_secret="unused",  # noqa: S106 - the webhook checks signatures
            authorize=authorize,
            request_verification_enabled=False,
            ignoring_self_events_enabled=False,
        )

        async def commit(body: Json, context: dict[str, Any], next: Callable[[], Awaitable[None]]) -> None:
            commitment: _Commitment = context["commitment"]
            await self._commit(body, commitment)
            if commitment.durable:
                await next()

        async def acknowledge(ack: Callable[[], Awaitable[None]]) -> None:
            await ack()

        app.use(commit)
        for kind in ("event", "command", "action", "shortcut", "view", "view_closed", "options"):
            getattr(app, kind)(_ANYTHING)(acknowledge)
        return cast(AsyncApp, app)


def team_of(payload: Json) -> str:
    """Return the team id of the installation that a delivery is for; empty if it names none.

    ``authorizations`` comes first, because ``team_id`` may be the author's workspace in a shared channel.
    """
    authorized: object = payload.get("authorizations")
    first: object = cast(list[object], authorized)[0] if isinstance(authorized, list) and authorized else None
    for place, key in ((first, "team_id"), (payload, "team_id"), (payload.get("team"), "id")):
        found: object = cast(Json, place).get(key) if isinstance(place, dict) else None
        if isinstance(found, str) and found:
            return found
    return ""
