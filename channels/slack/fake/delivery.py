"""Deliveries to the app: their payloads, and their attempts over sockets or signed HTTP requests."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp
from aiohttp import WSMsgType, web

from channels.slack.fake.calls import Asked, RefusalError
from channels.slack.fake.state import (
    SCOPE_FAMILY,
    Delivery,
    Json,
    ReplyUrl,
    Room,
    State,
    Trigger,
    User,
    Workspace,
)
from gateway.testing.fake_platform import FakeServer, FaultScript

PATIENCE = 3
"""Platform seconds to wait for an acknowledgement."""


class Webhooks:
    """Posts to ``url``. ``refused`` is set for a delivery whose app asked not to be sent it again."""

    def __init__(self, state: State) -> None:
        self.url: str | None = None
        self._state = state
        self._client: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Webhooks:
        self._client = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def attempt(self, delivery: Delivery) -> str | None:
        """Post a delivery. None once it is acknowledged, else why not; ``no_retry`` ends the attempts."""
        assert self.url is not None
        try:
            async with self._state.clock.within(PATIENCE):
                status, headers, answer = await self.post(self.url, *_request(delivery))
        except TimeoutError:
            return "http_timeout"
        except aiohttp.ClientError:
            return "connection_failed"
        if 200 <= status < 300:
            delivery.acknowledge(answer)
            return None
        return "no_retry" if headers.get("X-Slack-No-Retry") == "1" else "http_error"

    async def verify(self, url: str) -> bool:
        """Return whether an address answers a challenge, which it must before it is registered."""
        body = json.dumps(
            {
                "token": self._state.app.verification_token,
                "challenge": (challenge := self._state.names.next("")),
                "type": "url_verification",
            }
        )
        status, _, answer = await self.post(url, body, {"Content-Type": "application/json"})
        return status == 200 and answer in (challenge, {"challenge": challenge})

    async def post(
        self, url: str, body: str, headers: Mapping[str, str], *, skew: float = 0
    ) -> tuple[int, Mapping[str, str], Any]:
        """Post something signed, ``skew`` seconds off the platform's time: status, headers, answer."""
        assert self._client is not None
        signed = {**headers, **self.signature(body, skew)}
        async with self._client.post(
            url, data=body.encode(), headers=signed, allow_redirects=False
        ) as answer:
            return answer.status, answer.headers, _read(await answer.text())

    def signature(self, body: str, skew: float = 0) -> dict[str, str]:
        """The headers that prove where a body comes from."""
        stamp = str(int(self._state.stamps.seconds() + skew))
        base = f"v0:{stamp}:{body}".encode()
        digest = hmac.new(self._state.app.signing_secret.encode(), base, hashlib.sha256).hexdigest()
        return {
            "X-Slack-Request-Timestamp": stamp,
            "X-Slack-Signature": f"v0={digest}",
            "User-Agent": "Slackbot 1.0 (+https://api.slack.com/robots)",
        }


def _request(delivery: Delivery) -> tuple[str, dict[str, str]]:
    """The body and headers of a delivery."""
    if delivery.kind == "events_api":
        headers = {"Content-Type": "application/json"}
        if delivery.reasons:
            headers["X-Slack-Retry-Num"] = str(delivery.attempts - 1)
            headers["X-Slack-Retry-Reason"] = delivery.reasons[-1]
        return json.dumps(delivery.payload), headers
    form: Json = delivery.payload
    if delivery.kind == "interactive":
        form = {"payload": json.dumps(delivery.payload)}
    return urlencode(form), {"Content-Type": "application/x-www-form-urlencoded"}


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


MOST_SOCKETS = 10
WARNING = 10
"""Seconds between the warning and the end of a connection."""
TICKET_LIFE = 30
_LOST = object()


class Line:
    """One socket. ``leaving`` ones get nothing any more."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        self.socket = socket
        self.leaving = False
        self.waiting: dict[str, asyncio.Future[Any]] = {}
        self._request = request

    async def send(self, frame: Json) -> None:
        """Send, whether or not anybody reads."""
        try:
            await self.socket.send_str(json.dumps(frame))
        except ConnectionError:
            self.lose()

    def lose(self) -> None:
        """The connection is gone, and with it the acknowledgements that were to come."""
        self.leaving = True
        for future in self.waiting.values():
            if not future.done():
                future.set_result(_LOST)
        if self._request.transport is not None:
            self._request.transport.abort()

    async def leave(self, reason: str) -> None:
        """Say goodbye and close."""
        self.leaving = True
        await self.send({"type": "disconnect", "reason": reason, "debug_info": {"host": "fake"}})
        await self.socket.close()


class Sockets:
    """The sockets of the app."""

    def __init__(self, state: State, fake: FakeServer) -> None:
        self.lines: list[Line] = []
        self.opened = 0
        self._state = state
        self._fake = fake
        self._tickets: dict[str, float] = {}
        self._turn = 0

    @property
    def live(self) -> list[Line]:
        """Those that deliveries may go to."""
        return [line for line in self.lines if not line.leaving]

    def connect(self, asked: Asked) -> Json:
        """``apps.connections.open``: the address of one connection."""
        if not self._state.switches.socket_mode:
            raise RefusalError("forbidden_team")
        ticket = str(uuid.uuid4())
        # At least 10 real seconds: at a fast pace the life of a ticket is shorter than a handshake.
        life = max(TICKET_LIFE, 10 * self._state.clock.pace)
        self._tickets[ticket] = self._state.clock.now() + life
        address = self._state.url.replace("http", "ws", 1)
        return {"url": f"{address}/link/?ticket={ticket}&app_id={asked.state.app.id}"}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """A socket, from its greeting to its end."""
        until = self._tickets.pop(request.query.get("ticket", ""), 0.0)
        if until < self._state.clock.now():
            self._fake.record("socket.connect", {}, "no valid ticket", status=403)
            return web.Response(status=403, text="invalid ticket")
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        line = Line(socket, request)
        if len(self.lines) >= MOST_SOCKETS:
            self._fake.record("socket.connect", {}, "more than ten sockets")
            await line.leave("too_many_websockets")
            return socket
        self.lines.append(line)
        self.opened += 1
        self._state.changes.bump()
        try:
            await line.send(self._hello())
            await self._listen(line)
        finally:
            self.lines.remove(line)
            line.lose()
            self._state.changes.bump()
        return socket

    async def attempt(self, delivery: Delivery) -> str | None:
        """Send a delivery over one of the sockets. None once it is acknowledged, else why it was not."""
        live = self.live
        if not live:
            return "timeout"
        line = live[self._turn % len(live)]
        self._turn += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        line.waiting[delivery.envelope] = future
        try:
            async with self._state.clock.within(PATIENCE):
                await line.send(_envelope(delivery))
                answer = await future
        except TimeoutError:
            return "timeout"
        finally:
            line.waiting.pop(delivery.envelope, None)
        if answer is _LOST:
            return "timeout"
        delivery.acknowledge(answer)
        return None

    def drop(self) -> None:
        """Every connection breaks."""
        for line in list(self.lines):
            line.lose()

    async def refresh(self) -> None:
        """The platform renews all connections: a warning, and ten seconds later the end."""
        lines = self.live
        for line in lines:
            line.leaving = True
            await line.send({"type": "disconnect", "reason": "warning", "debug_info": {"host": "fake"}})
        await self._state.clock.sleep(WARNING)
        for line in lines:
            await line.leave("refresh_requested")

    async def disable(self) -> None:
        """Socket Mode is switched off in the app's registration."""
        self._state.switches.socket_mode = False
        for line in list(self.lines):
            await line.leave("link_disabled")

    def _hello(self) -> Json:
        return {
            "type": "hello",
            "num_connections": len(self.lines),
            "debug_info": {"host": "fake", "build_number": 1, "approximate_connection_time": 18060},
            "connection_info": {"app_id": self._state.app.id},
        }

    async def _listen(self, line: Line) -> None:
        async for frame in line.socket:
            if frame.type is not WSMsgType.TEXT:
                continue
            try:
                given: Any = json.loads(frame.data)
            except ValueError:
                given = None
            problem = self._take(line, cast(Json, given) if isinstance(given, dict) else {})
            if problem:
                self._fake.record("socket.ack", {"frame": frame.data}, problem)

    def _take(self, line: Line, given: Json) -> str | None:
        """An acknowledgement. Returns what is wrong with it."""
        known = self._state.envelopes.get(str(given.get("envelope_id")))
        if known is None:
            return "no acknowledgement of anything that was sent"
        answer = given.get("payload")
        future = line.waiting.get(known.envelope)
        if future is not None and not future.done():
            future.set_result(answer)
        else:
            known.acknowledge(answer)
        if answer and not known.answerable:
            return "an answer where only an acknowledgement is taken"
        return None


def _envelope(delivery: Delivery) -> Json:
    frame: Json = {
        "envelope_id": delivery.envelope,
        "payload": delivery.payload,
        "type": delivery.kind,
        "accepts_response_payload": delivery.answerable,
    }
    if delivery.kind == "events_api":
        reason = delivery.reasons[-1] if delivery.reasons else ""
        frame |= {"retry_attempt": delivery.attempts - 1, "retry_reason": reason}
    return frame


WAITS = (0, 0, 60, 300)
"""Seconds before each attempt to deliver an event: at once, at once again, a minute, five minutes."""


class PostOffice:
    """Sends over sockets, or by HTTP once an address is registered.

    ``held`` collects what is sent while it is a list. ``settled`` is called for each delivery in the end.
    """

    def __init__(
        self,
        state: State,
        sockets: Sockets,
        webhooks: Webhooks,
        faults: FaultScript,
        settled: Callable[[Delivery], None],
    ) -> None:
        self.held: list[Delivery] | None = None
        self._tasks = asyncio.TaskGroup()
        self._state = state
        self._sockets = sockets
        self._webhooks = webhooks
        self._faults = faults
        self._settled = settled
        self._running: set[asyncio.Task[None]] = set()

    def send(self, delivery: Delivery) -> None:
        """Take a delivery, and an event once more if the script says so."""
        if self.held is not None:
            self.held.append(delivery)
            return
        self._start(delivery)
        if delivery.kind == "events_api" and self._faults.doubles():
            self._start(self._state.keep(Delivery(delivery.kind, delivery.team, delivery.payload)))

    async def __aenter__(self) -> PostOffice:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running:
            task.cancel()
        await self._tasks.__aexit__(None, None, None)  # what went wrong outside is not a task's failure

    def _start(self, delivery: Delivery) -> None:
        task = self._tasks.create_task(self._deliver(delivery))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _deliver(self, delivery: Delivery) -> None:
        for wait in WAITS if delivery.kind == "events_api" else (0,):
            if wait:
                await self._state.clock.sleep(wait)
            if delivery.acknowledged:
                break
            delivery.attempts += 1
            self._state.changes.bump()
            reason = await (self._webhooks if self._webhooks.url else self._sockets).attempt(delivery)
            if reason is None:
                break
            delivery.reasons.append(reason)
            self._state.changes.bump()
            if reason == "no_retry":
                break
        if not delivery.acknowledged:
            late = delivery.reasons[-1] in ("timeout", "http_timeout") and bool(self._sockets.live)
            delivery.refused = "operation_timeout" if late else "dispatch_failed"
            delivery.give_up()
        self._settled(delivery)
        self._state.changes.bump()


REPLY_URL_LIFE = 30 * 60
TRIGGER_LIFE = 3


def emit(state: State, team: Workspace, event: Json, *, name: str | None = None) -> Delivery | None:
    """Tell the app of an event, if it is installed there and subscribed to it."""
    if team.bot is None or not state.subscribed(name or event["type"]):
        return None
    return state.tell("events_api", team.id, event_callback(state, team, event))


def emit_message(state: State, room: Room, message: Json) -> None:
    """Tell the app of a message, and again that it was mentioned in it, in the same breath."""
    team = state.teams[room.team]
    state.changes.bump()
    if not team.sees(room) or team.bot is None:
        return
    event = {**message, "channel": room.id, "event_ts": message["ts"], "channel_type": room.kind}
    emit(state, team, event, name=f"message.{SCOPE_FAMILY[room.kind]}")
    mentioned = re.search(rf"<@{team.bot.id}(\|[^>]*)?>", message.get("text", ""))
    if mentioned and not room.direct and message.get("user") != team.bot.id and "hidden" not in message:
        kept = {key: value for key, value in event.items() if key not in ("subtype", "channel_type")}
        emit(state, team, {**kept, "type": "app_mention"})


def event_callback(state: State, team: Workspace, event: Json) -> Json:
    """An event inside what is the same for all of them."""
    bot = team.bot
    authorized = {
        "enterprise_id": None,
        "team_id": team.id,
        "user_id": bot.id if bot else "",
        "is_bot": True,
        "is_enterprise_install": False,
    }
    return {
        "token": state.app.verification_token,
        "team_id": team.id,
        "api_app_id": state.app.id,
        "event": event,
        "type": "event_callback",
        "event_id": state.names.next("Ev"),
        "event_time": state.stamps.seconds(),
        "authorizations": [authorized],
        "is_ext_shared_channel": False,
        "event_context": "4-" + state.names.next("Ec"),
    }


def interaction(state: State, kind: str, user: User) -> Json:
    """The part that every interaction begins with, a fresh ``trigger_id`` included."""
    team = state.teams[user.team]
    return {
        "type": kind,
        "token": state.app.verification_token,
        "api_app_id": state.app.id,
        "team": {"id": team.id, "domain": team.name},
        "enterprise": None,
        "is_enterprise_install": False,
        "user": {"id": user.id, "username": user.name, "name": user.name, "team_id": team.id},
        "trigger_id": new_trigger(state, user),
    }


def new_trigger(state: State, user: User) -> str:
    """A ``trigger_id``: opens one view within three seconds."""
    trigger = f"{state.names.next('')}.{state.names.next('')}.fake"
    state.triggers[trigger] = Trigger(user=user, until=state.clock.now() + TRIGGER_LIFE)
    return trigger


def new_reply_url(state: State, room: Room, user: User, source: str | None, thread: str | None = None) -> str:
    """A ``response_url`` for what a user did in a room, on a message if ``source`` names one."""
    name = state.names.next("R")
    until = state.clock.now() + REPLY_URL_LIFE
    state.reply_urls[name] = ReplyUrl(room=room, user=user.id, until=until, source=source, thread=thread)
    return f"{state.url}/actions/{room.team}/{name}"


def bot_profile(state: State, bot: User) -> Json:
    """Return the profile of the app in its messages."""
    icons = {f"image_{size}": f"{state.url}/icon-{size}.png" for size in (36, 48, 72)}
    return {
        "id": bot.bot_id,
        "deleted": False,
        "name": state.app.name,
        "updated": 1,
        "app_id": state.app.id,
        "icons": icons,
        "team_id": bot.team,
    }
