"""One websocket client: its frames in, its sessions' events out."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from aiohttp import WSMsgType, web

from channels.websocket.parse import (
    AbortFrame,
    ApprovalFrame,
    AuthFrame,
    ClientFrame,
    MessageFrame,
    PingFrame,
    ResumeFrame,
    parse_frame,
    parse_message,
)
from gateway import BackpressureError, Event, Feed, Host, TrunklineError, UnauthorizedError

if TYPE_CHECKING:
    from channels.websocket.view import HtmlView

log = structlog.get_logger("trunkline.websocket")

_encode = msgspec.json.Encoder().encode
_PONG = b'{"type":"pong"}'


class Connection:
    """A client's socket. Events are pumped by a task that is only there once a session is followed."""

    def __init__(
        self,
        host: Host,
        channel: str,
        socket: web.WebSocketResponse,
        transport: asyncio.Transport | None,
        *,
        html: bool,
    ) -> None:
        self._host = host
        self._channel = channel
        self._socket = socket
        self._transport = transport
        self._html = html
        self._user = ""
        self._feed: Feed | None = None
        self._followed: set[str] = set()
        self._second = 0.0
        self._frames = 0

    async def first_token(self) -> str:
        """The token of the first frame. Raises UnauthorizedError if it is anything else."""
        message = await self._socket.receive()
        if message.type is not WSMsgType.TEXT:
            raise UnauthorizedError("the first frame must carry the token")
        try:
            frame = parse_frame(message.data)
        except TrunklineError:
            raise UnauthorizedError("the first frame must carry the token") from None
        if not isinstance(frame, AuthFrame):
            raise UnauthorizedError("the first frame must carry the token")
        return frame.token

    async def run(self, user: str) -> None:
        """Serve the client until it goes."""
        self._user = user
        await self._send(_encode(self._ready()))
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._read(tasks)
                raise _Gone
        except* (_Gone, ConnectionError):
            pass
        finally:
            for session in self._followed if self._feed is not None else ():
                self._host.unfollow(session, self._feed)  # type: ignore[arg-type]

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        async for message in self._socket:
            if message.type is not WSMsgType.TEXT:
                await self._refuse(TrunklineError("send text frames"), None)
                continue
            await self._throttle()
            frame: ClientFrame | None = None
            try:
                frame = parse_frame(message.data)
                await self._handle(frame, tasks)
            except TrunklineError as error:
                await self._refuse(error, frame)

    async def _handle(self, frame: ClientFrame, tasks: asyncio.TaskGroup) -> None:
        match frame:
            case MessageFrame():
                await self._message(frame, tasks)
            case ResumeFrame():
                await self._follow(frame.session, frame.after, tasks)
            case AbortFrame():
                await self._host.abort(frame.session)
            case ApprovalFrame():
                self._host.approve(frame.approval_id, frame.decision, session=frame.session)
            case PingFrame():
                await self._send(_PONG)
            case AuthFrame():
                pass

    async def _message(self, frame: MessageFrame, tasks: asyncio.TaskGroup) -> None:
        session = frame.session or f"s-{secrets.token_hex(8)}"
        inbound = parse_message(self._channel, frame, session, self._user)
        receipt = await self._host.accept(self._channel, inbound, fresh=frame.session is None)
        ack: dict[str, Any] = {
            "type": "ack",
            "client_msg_id": frame.client_msg_id,
            "message_id": receipt.message_id,
            "answer_id": receipt.answer_id,
            "session": receipt.session,
            "seq": receipt.seq,
        }
        if receipt.duplicate:
            ack["duplicate"] = True
        await self._send(_encode(ack))
        if receipt.session not in self._followed:
            await self._follow(receipt.session, receipt.seq, tasks)

    async def _follow(self, session: str, after: int, tasks: asyncio.TaskGroup) -> None:
        if self._feed is None:
            self._feed = Feed(self._host.limits.queue, self._drop)
            tasks.create_task(self._pump(self._feed))
        await self._host.follow(session, self._feed, after)
        self._followed.add(session)

    async def _pump(self, feed: Feed) -> None:
        view = _html_view() if self._html else None
        try:
            while True:
                for event in await feed.take():
                    await self._show(event, view)
        except BackpressureError:
            await self._socket.close(code=4008, message=b"too slow; resume")

    async def _show(self, event: Event, view: HtmlView | None) -> None:
        if view is None:
            await self._send(event.json)
            return
        for payload in view.frames(event):
            await self._send(payload)

    async def _send(self, payload: bytes) -> None:
        await self._socket.send_frame(payload, WSMsgType.TEXT)

    async def _refuse(self, error: TrunklineError, frame: ClientFrame | None) -> None:
        answer: dict[str, Any] = {
            "type": "error",
            "error_name": error.name,
            "message": str(error),
            "retryable": error.retryable,
        }
        if isinstance(frame, MessageFrame):
            answer["client_msg_id"] = frame.client_msg_id
        await self._send(_encode(answer))

    async def _throttle(self) -> None:
        """Let one connection send so many frames a second; what is more waits in its own socket."""
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._frames = now, 0
        self._frames += 1
        if self._frames > self._host.limits.frames_per_second:
            await asyncio.sleep(1.0 - (now - self._second))

    def _drop(self) -> None:
        """The client does not read: its socket is cut, for a farewell would wait as well."""
        if self._transport is not None:
            self._transport.abort()

    def _ready(self) -> dict[str, Any]:
        commands = [{"name": c.name, "description": c.description} for c in self._host.commands()]
        return {
            "type": "ready",
            "protocol": 1,
            "user": self._user,
            "model": self._host.model,
            "version": self._host.version,
            "commands": commands,
        }


def _html_view() -> HtmlView:
    # Markdown and its renderer weigh as much as the rest of the channel, and only pages want them.
    from channels.websocket.view import HtmlView

    return HtmlView()


class _Gone(Exception):
    """The client went; raised to end the task group with its pump."""
