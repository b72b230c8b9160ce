"""Connection of one websocket client: receives its frames and sends the events of its sessions."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, assert_never

from aiohttp import WSMsgType, web
from aiohttp.abc import AbstractStreamWriter

from channels.websocket.parse import (
    AbortFrame,
    ApprovalFrame,
    AuthFrame,
    ClientFrame,
    KeyFrame,
    MentionFrame,
    MessageFrame,
    PingFrame,
    ResumeFrame,
    parse_frame,
)
from channels.websocket.server_frames import (
    PONG,
    Command,
    Completion,
    Completions,
    Contributions,
    Ready,
    Segment,
    ack,
    refusal,
    text_frames,
    to_bytes,
)
from gateway import TrunklineError
from gateway.channel import (
    BackpressureError,
    ClientMessage,
    Event,
    Feed,
    Host,
    InvalidRequestError,
    UnauthorizedError,
)

if TYPE_CHECKING:
    from channels.websocket.render import HtmlView

_NO_TOKEN = "the first frame must carry the token"  # noqa: S105 - a sentence, not a token

_MAX_SLICE_SECONDS = 0.01
"""Seconds of rendering before other tasks run; a single block may take longer."""

_MAX_COMPLETIONS = 50
"""Maximum number of completions of a mention in one response."""


class Connection:
    """Socket of one client. The task that sends events starts when the client follows its first session."""

    def __init__(
        self,
        host: Host,
        channel: str,
        socket: web.WebSocketResponse,
        transport: asyncio.Transport | None,
        writer: AbstractStreamWriter | None,
        *,
        html: bool,
        contributions: bool,
        rendering: asyncio.Lock,
    ) -> None:
        self._host = host
        self._channel = channel
        self.socket = socket
        self._transport = transport
        self._writer = writer
        self.html = html
        self._sends_contributions = contributions
        self._rendering = rendering
        self._user = ""
        self._feed: Feed | None = None
        self._followed: set[str] = set()
        self._acks: list[bytes] = []
        """Acknowledgements that leave with the next frames, before them."""
        self._second = 0.0
        self._frames = 0

    async def first_token(self) -> str:
        """Return the token of the first frame. Raises UnauthorizedError if it is another frame."""
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
        """Serve the client until it disconnects."""
        self._user = user
        await self._send(to_bytes(self._ready()))
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._sends_contributions:
                    tasks.create_task(self._send_contributions())
                await self._read(tasks)
                raise _Disconnected
        except* (_Disconnected, ConnectionError):
            pass
        finally:
            if self._feed is not None:
                for session in self._followed:
                    self._host.unfollow(session, self._feed)

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        async for message in self.socket:
            if message.type is WSMsgType.TEXT:
                await self._throttle()
                await self._handle(message.data, tasks)
            elif message.type is WSMsgType.ERROR:
                return
            else:
                await self._send(refusal(InvalidRequestError("send text frames")))

    async def _handle(self, payload: bytes, tasks: asyncio.TaskGroup) -> None:
        """Execute a frame, or send the error."""
        frame: ClientFrame | None = None
        try:
            frame = parse_frame(payload)
            await self._execute(frame, tasks)
        except TrunklineError as error:
            message = frame.client_msg_id if isinstance(frame, MessageFrame) else None
            session = frame.session if isinstance(frame, ResumeFrame) else None
            await self._send(refusal(error, message, session))

    async def _execute(self, frame: ClientFrame, tasks: asyncio.TaskGroup) -> None:
        match frame:
            case MessageFrame():
                await self._message(frame, tasks)
            case ResumeFrame():
                await self._follow(frame.session, frame.after, tasks)
            case AbortFrame():
                await self._host.abort(frame.session)
            case ApprovalFrame():
                await self._host.approve(frame.approval_id, frame.decision, session=frame.session)
            case KeyFrame():
                await self._host.press(frame.key)
            case MentionFrame():
                await self._complete(frame)
            case PingFrame():
                await self._send(PONG)
            case AuthFrame():
                pass
            case _:
                assert_never(frame)

    async def _complete(self, frame: MentionFrame) -> None:
        found = await self._host.complete(frame.partial, frame.trigger)
        completions = tuple(
            Completion(one.value, one.label, one.description) for one in found[:_MAX_COMPLETIONS]
        )
        await self._send(to_bytes(Completions(frame.id, completions)))

    async def _send_contributions(self) -> None:
        """Send the contributions of plugins now and after each change."""
        changed = asyncio.Event()
        remove = self._host.on_contributions(changed.set)
        try:
            while True:
                changed.clear()
                await self._send(to_bytes(self._contributions()))
                await changed.wait()
        finally:
            remove()

    def _contributions(self) -> Contributions:
        status = tuple(Segment(one.text, one.color, one.dim) for one in self._host.status_line())
        return Contributions(status, tuple(self._host.shortcuts()), tuple(self._host.triggers()))

    async def _message(self, frame: MessageFrame, tasks: asyncio.TaskGroup) -> None:
        session = frame.session or f"s-{secrets.token_hex(8)}"
        message = ClientMessage.checked(frame.client_msg_id, frame.text, frame.parts, frame.audio)
        inbound = message.inbound(self._channel, session, self._user, frame.seen)
        receipt = await self._host.accept(self._channel, inbound, fresh=frame.session is None)
        self._acks.append(ack(frame.client_msg_id, receipt))
        if receipt.session not in self._followed:
            await self._follow(receipt.session, receipt.seq, tasks)
        # The turn usually begins in this round of the event loop. Its first frames then leave in the same
        # system call, which is a tenth of the cost of a short turn.
        await asyncio.sleep(0)
        if self._acks:
            await self._send()

    async def _follow(self, session: str, after: int, tasks: asyncio.TaskGroup) -> None:
        if self._feed is None:
            self._feed = self._host.feed(self._abort)
            tasks.create_task(self._pump(self._feed))
        await self._host.follow(session, self._feed, after)
        self._followed.add(session)

    async def _pump(self, feed: Feed) -> None:
        view = None
        if self.html:
            from channels.websocket.render import HtmlView  # loaded with the first browser

            view = HtmlView()
        try:
            while True:
                events = await feed.take()
                if view is None:
                    await self._send(*[event.json for event in events])
                else:
                    await self._render(view, events)
        except BackpressureError:
            return

    async def _render(self, view: HtmlView, events: list[Event]) -> None:
        """Send events with their HTML. A slow rendering pauses regularly, and only one client renders slowly
        at a time.

        Otherwise many clients would each block the event loop for a slice per iteration.
        """
        payloads: list[bytes] = []
        begun, slow = time.monotonic(), False
        try:
            for event in events:
                for payload in view.frames(event):
                    if payload is not None:
                        payloads.append(payload)
                    if time.monotonic() - begun > _MAX_SLICE_SECONDS:
                        slow = slow or await self._rendering.acquire()
                        await asyncio.sleep(0)
                        begun = time.monotonic()
        finally:
            if slow:
                self._rendering.release()
        await self._send(*payloads)

    async def _send(self, *payloads: bytes) -> None:
        """Send each payload as a text frame, after waiting acknowledgements; wait while the client does not
        read."""
        transport, writer = self._transport, self._writer
        if transport is None or writer is None or transport.is_closing() or self.socket.closed:
            raise ConnectionResetError("the client disconnected")
        if self._acks:
            payloads = (*self._acks, *payloads)
            self._acks.clear()
        transport.write(text_frames(payloads))
        await writer.drain()

    async def _throttle(self) -> None:
        """Limit the frames per second of a connection; further frames wait in the socket's buffer."""
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._frames = now, 0
        self._frames += 1
        if self._frames > self._host.limits.frames_per_second:
            await asyncio.sleep(1.0 - (now - self._second))

    def _abort(self) -> None:
        """Abort the socket of a client that does not read, because a close frame would wait as well."""
        if self._transport is not None:
            self._transport.abort()

    def _ready(self) -> Ready:
        commands = tuple(Command(c.name, c.description) for c in self._host.commands())
        return Ready(
            self._user, self._host.model_of(self._channel), self._host.version, commands, self._channel
        )


class _Disconnected(Exception):
    """Raised when the client disconnected, to end the task group with its sending task."""
