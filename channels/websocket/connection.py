"""One websocket client: its frames in, its sessions' events out."""

from __future__ import annotations

import asyncio
import secrets
import time

from aiohttp import WSMsgType, web
from aiohttp.abc import AbstractStreamWriter

from channels.websocket.parse import (
    AbortFrame,
    ApprovalFrame,
    AuthFrame,
    ClientFrame,
    MessageFrame,
    PingFrame,
    ResumeFrame,
    parse_frame,
)
from channels.websocket.server_frames import PONG, Command, Ready, ack, refused, to_bytes
from channels.websocket.text_frames import text_frames
from gateway import (
    BackpressureError,
    ClientMessage,
    Feed,
    Host,
    InvalidRequestError,
    TrunklineError,
    UnauthorizedError,
)

_NO_TOKEN = "the first frame must carry the token"  # noqa: S105 - a sentence, not a token


class Connection:
    """A client's socket. Events are pumped by a task that is only there once a session is followed."""

    def __init__(
        self,
        host: Host,
        channel: str,
        socket: web.WebSocketResponse,
        transport: asyncio.Transport | None,
        writer: AbstractStreamWriter | None,
        *,
        html: bool,
    ) -> None:
        self._host = host
        self._channel = channel
        self.socket = socket
        self._transport = transport
        self._writer = writer
        self.html = html
        self._user = ""
        self._feed: Feed | None = None
        self._followed: set[str] = set()
        self._second = 0.0
        self._frames = 0

    async def first_token(self) -> str:
        """The token of the first frame. Raises UnauthorizedError if it is anything else."""
        message = await self.socket.receive()
        if message.type is not WSMsgType.TEXT:
            raise UnauthorizedError(_NO_TOKEN)
        try:
            frame = parse_frame(message.data)
        except InvalidRequestError:
            raise UnauthorizedError(_NO_TOKEN) from None
        if not isinstance(frame, AuthFrame):
            raise UnauthorizedError(_NO_TOKEN)
        return frame.token

    async def run(self, user: str) -> None:
        """Serve the client until it goes."""
        self._user = user
        await self._send(to_bytes(self._ready()))
        try:
            async with asyncio.TaskGroup() as tasks:
                await self._read(tasks)
                raise _Gone
        except* (_Gone, ConnectionError):
            pass
        finally:
            if self._feed is not None:
                for session in self._followed:
                    self._host.unfollow(session, self._feed)

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        async for message in self.socket:
            if message.type is WSMsgType.TEXT:
                await self._throttle()
                await self._take(message.data, tasks)
            elif message.type is WSMsgType.ERROR:
                return
            else:
                await self._send(refused(InvalidRequestError("send text frames"), None))

    async def _take(self, payload: bytes, tasks: asyncio.TaskGroup) -> None:
        """Do what a frame asks for, or say why not."""
        frame: ClientFrame | None = None
        try:
            frame = parse_frame(payload)
            await self._do(frame, tasks)
        except TrunklineError as error:
            await self._send(refused(error, frame.client_msg_id if isinstance(frame, MessageFrame) else None))

    async def _do(self, frame: ClientFrame, tasks: asyncio.TaskGroup) -> None:
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
                await self._send(PONG)
            case AuthFrame():
                pass

    async def _message(self, frame: MessageFrame, tasks: asyncio.TaskGroup) -> None:
        session = frame.session or f"s-{secrets.token_hex(8)}"
        said = ClientMessage.checked(frame.client_msg_id, frame.text, frame.parts, frame.audio)
        inbound = said.inbound(self._channel, session, self._user)
        receipt = await self._host.accept(self._channel, inbound, fresh=frame.session is None)
        await self._send(ack(frame.client_msg_id, receipt))
        if receipt.session not in self._followed:
            await self._follow(receipt.session, receipt.seq, tasks)

    async def _follow(self, session: str, after: int, tasks: asyncio.TaskGroup) -> None:
        if self._feed is None:
            self._feed = self._host.feed(self._cut)
            tasks.create_task(self._pump(self._feed))
        await self._host.follow(session, self._feed, after)
        self._followed.add(session)

    async def _pump(self, feed: Feed) -> None:
        view = None
        if self.html:
            from channels.websocket.view import HtmlView  # a gateway without browsers needs no renderer

            view = HtmlView()
        try:
            while True:
                events = await feed.take()
                if view is None:
                    await self._send(*[event.json for event in events])
                else:
                    await self._send(*[payload for event in events for payload in view.frames(event)])
        except BackpressureError:
            return

    async def _send(self, *payloads: bytes) -> None:
        """Send each as a text frame, and wait while the client does not read."""
        transport, writer = self._transport, self._writer
        if transport is None or writer is None or transport.is_closing() or self.socket.closed:
            raise ConnectionResetError("the client is gone")
        transport.write(text_frames(payloads))
        await writer.drain()

    async def _throttle(self) -> None:
        """Let one connection send so many frames a second; what is more waits in its own socket."""
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._frames = now, 0
        self._frames += 1
        if self._frames > self._host.limits.frames_per_second:
            await asyncio.sleep(1.0 - (now - self._second))

    def _cut(self) -> None:
        """The client does not read: its socket is cut, for a farewell would wait as well."""
        if self._transport is not None:
            self._transport.abort()

    def _ready(self) -> Ready:
        commands = tuple(Command(c.name, c.description) for c in self._host.commands())
        return Ready(self._user, self._host.model, self._host.version, commands)


class _Gone(Exception):
    """The client went; raised to end the task group with its pump."""
