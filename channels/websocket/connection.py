"""Connection of one websocket client: receives its frames and sends the events of its sessions."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
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
    ShowFrame,
    parse_frame,
)
from channels.websocket.server_frames import (
    PONG,
    Command,
    Completion,
    Completions,
    Contributions,
    Panel,
    Ready,
    Segment,
    ack,
    refusal,
    text_frames,
    to_bytes,
)
from gateway import NotFoundError, TrunklineError
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

UNAUTHORIZED = 4001
"""Close code for a client without a valid token or login."""

_MAX_SLICE_SECONDS = 0.01
"""Seconds of rendering before other tasks run; a single block may take longer."""

_MAX_UNSENT = 64 * 1024
"""Bytes that wait for a client before its feed keeps further events."""

_MAX_FRAMES = 100
"""Frames of one round of the event loop, such as those of a replay, before the feed keeps further events."""

_CONTRIBUTIONS_PAUSE = 0.1
"""Seconds between two lists of contributions."""

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
        self._cookie: str | None = None
        self.signed_out = asyncio.Event()
        """Set when the login of its cookie was ended."""
        self._feed: Feed | None = None
        self._unregister: Callable[[], None] = lambda: None
        self._followed: set[str] = set()
        self._acks: list[bytes] = []
        """Acknowledgements, and names of deleted sessions, that leave with the next frames, before them."""
        self._outgoing: list[bytes] = []
        self._flush_due = False
        self._loop = asyncio.get_running_loop()
        self._second = 0.0
        self._frames = 0
        self._reading: asyncio.Task[None] | None = None
        """Reads the files of a message; later messages wait for it, other frames do not."""

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

    async def run(self, user: str, cookie: str | None) -> None:
        """Serve the client until it disconnects. ``cookie`` is what authenticated it, None for a token."""
        self._user, self._cookie = user, cookie
        await self._send(to_bytes(self._ready()))
        try:
            async with asyncio.TaskGroup() as tasks:
                if cookie is not None:
                    tasks.create_task(self._until_signed_out())
                if self._sends_contributions:
                    tasks.create_task(self._send_contributions())
                await self._read(tasks)
                raise _Disconnected
        except* (_Disconnected, ConnectionError):
            pass
        finally:
            if self._feed is not None:
                self._unregister()
                for session in self._followed:
                    self._host.unfollow(session, self._feed)
        if self.signed_out.is_set():
            await self.socket.close(code=UNAUTHORIZED, message=b"signed out")

    async def _until_signed_out(self) -> None:
        await self.signed_out.wait()
        raise _Disconnected

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
            await self._refuse(error, frame)

    async def _refuse(self, error: TrunklineError, frame: ClientFrame | None) -> None:
        message = frame.client_msg_id if isinstance(frame, MessageFrame) else None
        session = frame.session if isinstance(frame, ResumeFrame) else None
        await self._send(refusal(error, message, session))

    async def _execute(self, frame: ClientFrame, tasks: asyncio.TaskGroup) -> None:
        match frame:
            case MessageFrame():
                await self._message(frame, tasks)
            case ResumeFrame() | ShowFrame():
                await self._show(frame, tasks)
            case AbortFrame():
                await self._host.abort(frame.session)
            case ApprovalFrame():
                await self._settle(frame)
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

    async def _settle(self, frame: ApprovalFrame) -> None:
        values = (frame.decision,) if isinstance(frame.decision, str) else frame.decision
        if "always" in values and not (self._cookie is None or self._host.auth.confirms(self._cookie)):
            raise UnauthorizedError("confirm an always with your token: send it to /api/sessions")
        await self._host.settle(frame.approval_id, values, session=frame.session)

    async def _show(self, frame: ResumeFrame | ShowFrame, tasks: asyncio.TaskGroup) -> None:
        if isinstance(frame, ResumeFrame):
            await self._follow(frame.session, frame.after, tasks)
        elif self._feed is not None and frame.session in self._followed:
            await self._host.show(frame.session, self._feed, frame.message_id)

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
                # Limits the rate of updates: plugins may change them at any rate.
                await asyncio.sleep(_CONTRIBUTIONS_PAUSE)
                await changed.wait()
        finally:
            remove()

    def _contributions(self) -> Contributions:
        status = tuple(Segment(one.text, one.color, one.dim, one.texts) for one in self._host.status_line())
        return Contributions(
            status, tuple(self._host.shortcuts()), tuple(self._host.triggers()), self._panels()
        )

    def _panels(self) -> tuple[Panel, ...]:
        panels = self._host.panels()
        if not panels:
            return ()
        # The parser of Markdown, which a gateway without panels does not load before its first answer.
        from gateway.server.pages.blocks import panel_blocks

        return tuple(Panel(plugin, panel_blocks(text)) for plugin, text in panels)

    async def _message(self, frame: MessageFrame, tasks: asyncio.TaskGroup) -> None:
        if self._reading is not None:
            await asyncio.wait([self._reading])
            self._reading = None
        message = ClientMessage.checked(
            frame.client_msg_id, frame.text, frame.parts, frame.audio, frame.files, frame.uploads
        )
        if message.files:
            self._reading = tasks.create_task(self._read_files(message, frame, tasks))
        else:
            await self._accept(message, frame, tasks)

    async def _read_files(
        self, message: ClientMessage, frame: MessageFrame, tasks: asyncio.TaskGroup
    ) -> None:
        """Accept a message after its files are read, or send the error."""
        try:
            await self._accept(await message.read_files(self._host.read_file), frame, tasks)
        except TrunklineError as error:
            await self._refuse(error, frame)

    async def _accept(self, message: ClientMessage, frame: MessageFrame, tasks: asyncio.TaskGroup) -> None:
        session = frame.session or f"s-{secrets.token_hex(8)}"
        inbound = message.inbound(self._channel, session, self._user, frame.seen)
        receipt = await self._host.accept(
            self._channel, inbound, fresh=frame.session is None, uploads=message.uploads
        )
        self._acks.append(ack(frame.client_msg_id, receipt))
        self._flush_soon()
        if receipt.session not in self._followed:
            await self._follow(receipt.session, receipt.seq, tasks)
        elif self._is_congested:
            await self._drain()

    async def _follow(self, session: str, after: int, tasks: asyncio.TaskGroup) -> None:
        if self._feed is None:
            self._feed = self._host.feed(self._abort)
            self._unregister = self._host.on_delete(self._deleted)
            tasks.create_task(self._pump(self._feed))
        await self._host.follow(session, self._feed, after)
        self._followed.add(session)

    def _deleted(self, session: str) -> None:
        """Send a NotFoundError for a deleted session, and stop following it."""
        if session in self._followed:
            self._followed.discard(session)
            self._acks.append(refusal(NotFoundError(f"session {session!r} was deleted"), session=session))
            self._flush_soon()

    async def _pump(self, feed: Feed) -> None:
        try:
            if self.html:
                from channels.websocket.render import HtmlView  # loaded with the first browser

                view = HtmlView()
                while True:
                    await self._render(view, await feed.take())
            while True:
                await feed.pour(self._take)
                await self._drain()
        except BackpressureError:
            return

    def _take(self, events: list[Event]) -> bool:
        """Send events soon. Returns whether the client has to catch up before more are taken."""
        self._outgoing += [event.json for event in events]
        self._flush_soon()
        return len(self._outgoing) > _MAX_FRAMES or self._is_congested

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
        """Send each payload as a text frame, and wait while the client does not read."""
        self._outgoing += payloads
        await self._drain()

    async def _drain(self) -> None:
        """Send what waits, and wait while the client does not read. Raises ConnectionResetError."""
        self._flush()
        transport, writer = self._transport, self._writer
        if transport is None or writer is None or transport.is_closing() or self.socket.closed:
            raise ConnectionResetError("the client disconnected")
        await writer.drain()

    def _flush_soon(self) -> None:
        # Once for each round of the event loop: the acknowledgement of a message and the first frames of its
        # turn leave in one system call, and no task is woken for a token.
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send what waits as text frames, the acknowledgements first."""
        self._flush_due = False
        payloads = self._acks + self._outgoing
        self._acks.clear()
        self._outgoing.clear()
        transport = self._transport
        if payloads and transport is not None and not (transport.is_closing() or self.socket.closed):
            transport.write(text_frames(payloads))

    @property
    def _is_congested(self) -> bool:
        return self._transport is None or self._transport.get_write_buffer_size() > _MAX_UNSENT

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
            self._user,
            self._host.model_of(self._channel),
            self._host.version,
            commands,
            self._channel,
            self._host.limits.upload_bytes,
            self._host.limits.frame_bytes,
            signed_in=self._cookie is not None and not self._host.auth.open,
        )


class _Disconnected(Exception):
    """Raised when the client disconnected or signed out, to end the task group with its sending task."""
