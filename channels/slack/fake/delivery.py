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

from channels.slack.fake.calls import Call, RefusalError
from channels.slack.fake.state import (
    SCOPE_FAMILY,
    Chat,
    Delivery,
    Json,
    ReplyUrl,
    State,
    Trigger,
    User,
    Workspace,
)
from gateway.testing.fake_platform import FakeServer, FaultScript

ACKNOWLEDGE_SECONDS = 3
"""Platform seconds to wait for an acknowledgement."""


class Webhooks:
    """Sender of signed HTTP requests to ``url``."""

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
        """Post a delivery. Returns None if acknowledged, else the reason; ``no_retry`` ends the attempts."""
        assert self.url is not None
        try:
            async with self._state.clock.within(ACKNOWLEDGE_SECONDS):
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
        """Return whether a URL answers the challenge that precedes its registration."""
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
        """Post a signed body, dated ``skew`` seconds off the platform's time. Returns status, headers and
        answer.
        """
        assert self._client is not None
        signed = {**headers, **self.signature(body, skew)}
        async with self._client.post(
            url, data=body.encode(), headers=signed, allow_redirects=False
        ) as answer:
            return answer.status, answer.headers, _read(await answer.text())

    def signature(self, body: str, skew: float = 0) -> dict[str, str]:
        """Return the headers that sign a body."""
        stamp = str(int(self._state.stamps.seconds() + skew))
        base = f"v0:{stamp}:{body}".encode()
        digest = hmac.new(self._state.app.signing_secret.encode(), base, hashlib.sha256).hexdigest()
        return {
            "X-Slack-Request-Timestamp": stamp,
            "X-Slack-Signature": f"v0={digest}",
            "User-Agent": "Slackbot 1.0 (+https://api.slack.com/robots)",
        }


def _request(delivery: Delivery) -> tuple[str, dict[str, str]]:
    """Return the body and headers of a delivery."""
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
CLOSE_DELAY = 10
"""Platform seconds between the warning and the close of a connection."""
TICKET_LIFE = 30
_ABORTED = object()


class Socket:
    """Socket Mode connection. One that is ``closing`` receives no further deliveries."""

    def __init__(self, websocket: web.WebSocketResponse, request: web.Request) -> None:
        self.websocket = websocket
        self.closing = False
        self.waiting: dict[str, asyncio.Future[Any]] = {}
        self._request = request

    async def send(self, frame: Json) -> None:
        """Send a frame; abort the connection if that fails."""
        try:
            await self.websocket.send_str(json.dumps(frame))
        except ConnectionError:
            self.abort()

    def abort(self) -> None:
        """Break the connection, losing pending acknowledgements."""
        self.closing = True
        for future in self.waiting.values():
            if not future.done():
                future.set_result(_ABORTED)
        if self._request.transport is not None:
            self._request.transport.abort()

    async def close_with(self, reason: str) -> None:
        """Send a disconnect frame with a reason, then close."""
        self.closing = True
        await self.send({"type": "disconnect", "reason": reason, "debug_info": {"host": "fake"}})
        await self.websocket.close()


class Sockets:
    """Socket Mode server of the app."""

    def __init__(self, state: State, fake: FakeServer) -> None:
        self.sockets: list[Socket] = []
        self.opened = 0
        self._state = state
        self._fake = fake
        self._tickets: dict[str, float] = {}
        self._turn = 0

    @property
    def live(self) -> list[Socket]:
        """Sockets that may receive deliveries."""
        return [socket for socket in self.sockets if not socket.closing]

    def connect(self, call: Call) -> Json:
        """``apps.connections.open``: return the URL of one connection."""
        if not self._state.switches.socket_mode:
            raise RefusalError("forbidden_team")
        ticket = str(uuid.uuid4())
        # At least 10 real seconds, because at a fast pace a ticket would expire during the handshake.
        life = max(TICKET_LIFE, 10 * self._state.clock.pace)
        self._tickets[ticket] = self._state.clock.now() + life
        address = self._state.url.replace("http", "ws", 1)
        return {"url": f"{address}/link/?ticket={ticket}&app_id={call.state.app.id}"}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve a socket from its greeting to its end."""
        until = self._tickets.pop(request.query.get("ticket", ""), 0.0)
        if until < self._state.clock.now():
            self._fake.record("socket.connect", {}, "no valid ticket", status=403)
            return web.Response(status=403, text="invalid ticket")
        websocket = web.WebSocketResponse(max_msg_size=0)
        await websocket.prepare(request)
        socket = Socket(websocket, request)
        if len(self.sockets) >= MOST_SOCKETS:
            self._fake.record("socket.connect", {}, "more than ten sockets")
            await socket.close_with("too_many_websockets")
            return websocket
        self.sockets.append(socket)
        self.opened += 1
        self._state.changes.bump()
        try:
            await socket.send(self._hello())
            await self._listen(socket)
        finally:
            self.sockets.remove(socket)
            socket.abort()
            self._state.changes.bump()
        return websocket

    async def attempt(self, delivery: Delivery) -> str | None:
        """Send a delivery over one socket. Returns None if acknowledged, else the reason."""
        live = self.live
        if not live:
            return "timeout"
        socket = live[self._turn % len(live)]
        self._turn += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        socket.waiting[delivery.envelope] = future
        try:
            async with self._state.clock.within(ACKNOWLEDGE_SECONDS):
                await socket.send(_envelope(delivery))
                answer = await future
        except TimeoutError:
            return "timeout"
        finally:
            socket.waiting.pop(delivery.envelope, None)
        if answer is _ABORTED:
            return "timeout"
        delivery.acknowledge(answer)
        return None

    def drop(self) -> None:
        """Break all connections."""
        for socket in list(self.sockets):
            socket.abort()

    async def refresh(self) -> None:
        """Replace all connections: send a warning, and close them ten seconds later."""
        sockets = self.live
        for socket in sockets:
            socket.closing = True
            await socket.send({"type": "disconnect", "reason": "warning", "debug_info": {"host": "fake"}})
        await self._state.clock.sleep(CLOSE_DELAY)
        for socket in sockets:
            await socket.close_with("refresh_requested")

    async def disable(self) -> None:
        """Disable Socket Mode for the app, and close its connections."""
        self._state.switches.socket_mode = False
        for socket in list(self.sockets):
            await socket.close_with("link_disabled")

    def _hello(self) -> Json:
        return {
            "type": "hello",
            "num_connections": len(self.sockets),
            "debug_info": {"host": "fake", "build_number": 1, "approximate_connection_time": 18060},
            "connection_info": {"app_id": self._state.app.id},
        }

    async def _listen(self, socket: Socket) -> None:
        async for frame in socket.websocket:
            if frame.type is not WSMsgType.TEXT:
                continue
            try:
                given: Any = json.loads(frame.data)
            except ValueError:
                given = None
            problem = self._acknowledge(socket, cast(Json, given) if isinstance(given, dict) else {})
            if problem:
                self._fake.record("socket.ack", {"frame": frame.data}, problem)

    def _acknowledge(self, socket: Socket, given: Json) -> str | None:
        """Handle an acknowledgement. Returns the mistake in it, if any."""
        known = self._state.envelopes.get(str(given.get("envelope_id")))
        if known is None:
            return "acknowledgement of an unknown delivery"
        answer = given.get("payload")
        future = socket.waiting.get(known.envelope)
        if future is not None and not future.done():
            future.set_result(answer)
        else:
            known.acknowledge(answer)
        if answer and not known.answerable:
            return "a payload where only an acknowledgement is accepted"
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


RETRY_DELAYS = (0, 0, 60, 300)
"""Platform seconds before each attempt to deliver an event."""


class DeliveryQueue:
    """Queue of deliveries, sent over sockets, or by HTTP once a URL is registered.

    While ``held`` is a list, deliveries are appended to it instead. ``settled`` is called when one is
    acknowledged or given up.
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
        """Send a delivery; an event twice if the fault script says so."""
        if self.held is not None:
            self.held.append(delivery)
            return
        self._start(delivery)
        if delivery.kind == "events_api" and self._faults.is_repeated():
            self._start(self._state.register(Delivery(delivery.kind, delivery.team, delivery.payload)))

    async def __aenter__(self) -> DeliveryQueue:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running:
            task.cancel()
        await self._tasks.__aexit__(None, None, None)  # an error of the block is not a failure of the tasks

    def _start(self, delivery: Delivery) -> None:
        task = self._tasks.create_task(self._deliver(delivery))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _deliver(self, delivery: Delivery) -> None:
        for wait in RETRY_DELAYS if delivery.kind == "events_api" else (0,):
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
    """Send an event to the app, if it is installed there and subscribed to it."""
    if team.bot is None or not state.subscribed(name or event["type"]):
        return None
    return state.deliver("events_api", team.id, event_callback(state, team, event))


def emit_message(state: State, chat: Chat, message: Json) -> None:
    """Send the event of a message to the app, and ``app_mention`` if it mentions the app."""
    team = state.teams[chat.team]
    state.changes.bump()
    if not team.has_app_in(chat) or team.bot is None:
        return
    event = {**message, "channel": chat.id, "event_ts": message["ts"], "channel_type": chat.kind}
    emit(state, team, event, name=f"message.{SCOPE_FAMILY[chat.kind]}")
    mentioned = re.search(rf"<@{team.bot.id}(\|[^>]*)?>", message.get("text", ""))
    if mentioned and not chat.direct and message.get("user") != team.bot.id and "hidden" not in message:
        kept = {key: value for key, value in event.items() if key not in ("subtype", "channel_type")}
        emit(state, team, {**kept, "type": "app_mention"})


def event_callback(state: State, team: Workspace, event: Json) -> Json:
    """Wrap an event in the callback object of the Events API."""
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
    """Return the common fields of an interaction, with a new ``trigger_id``."""
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
    """Return a new ``trigger_id``, valid for one view within three seconds."""
    trigger = f"{state.names.next('')}.{state.names.next('')}.fake"
    state.triggers[trigger] = Trigger(user=user, until=state.clock.now() + TRIGGER_LIFE)
    return trigger


def new_reply_url(state: State, chat: Chat, user: User, source: str | None, thread: str | None = None) -> str:
    """Return a new ``response_url`` for a user's act in a chat, on the message ``source`` if given."""
    name = state.names.next("R")
    until = state.clock.now() + REPLY_URL_LIFE
    state.reply_urls[name] = ReplyUrl(chat=chat, user=user.id, until=until, source=source, thread=thread)
    return f"{state.url}/actions/{chat.team}/{name}"


def bot_profile(state: State, bot: User) -> Json:
    """Return the app's profile for its messages."""
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
