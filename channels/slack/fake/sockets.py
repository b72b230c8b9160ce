"""Socket Mode: up to ten sockets, each delivery to one of them, acknowledged by its envelope's id."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any, cast

from aiohttp import WSMsgType, web

from channels.slack.fake.asking import Asked, RefusalError
from channels.slack.fake.delivery import Delivery
from channels.slack.fake.state import State
from channels.slack.fake.workspace import Json
from gateway.testing.transcript import Transcript

MOST_SOCKETS = 10
PATIENCE = 3
"""Seconds for an acknowledgement."""
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

    def __init__(self, state: State, transcript: Transcript) -> None:
        self.lines: list[Line] = []
        self.opened = 0
        self._state = state
        self._transcript = transcript
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
        self._tickets[ticket] = self._state.clock.now() + TICKET_LIFE
        address = self._state.url.replace("http", "ws", 1)
        return {"url": f"{address}/link/?ticket={ticket}&app_id={asked.state.app.id}"}

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """A socket, from its greeting to its end."""
        until = self._tickets.pop(request.query.get("ticket", ""), 0.0)
        if until < self._state.clock.now():
            self._transcript.record("socket.connect", {}, status=403, problem="no valid ticket")
            return web.Response(status=403, text="invalid ticket")
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        line = Line(socket, request)
        if len(self.lines) >= MOST_SOCKETS:
            self._transcript.record("socket.connect", {}, problem="more than ten sockets")
            await line.leave("too_many_websockets")
            return socket
        self.lines.append(line)
        self.opened += 1
        self._state.changed()
        try:
            await line.send(self._hello())
            await self._listen(line)
        finally:
            self.lines.remove(line)
            line.lose()
            self._state.changed()
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
                self._transcript.record("socket.ack", {"frame": frame.data}, problem=problem)

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
