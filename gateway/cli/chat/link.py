"""A websocket connection to a gateway that reconnects, and the frames of its protocol.

After a reconnect it resumes its sessions after the last event that it saw, and sends unacknowledged messages
again with the same id, so that no message is lost or processed twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp
import msgspec
from msgspec import Struct

from gateway.backoff import Backoff
from gateway.cli.gateway_client import GatewayUnreachableError
from gateway.contract.errors import (
    InvalidRequestError,
    TooManyRequestsError,
    TrunklineError,
    UnauthorizedError,
)
from gateway.session.frames import Frame

PROTOCOL = 1
SUBPROTOCOL, UI_SUBPROTOCOL = "trunkline.v1", "trunkline.v1.ui"


class Command(Struct, frozen=True):
    """A slash command of the gateway."""

    name: str
    description: str = ""


class Ready(Struct, frozen=True, tag_field="type", tag="ready"):
    """The first frame of the gateway."""

    protocol: int
    model: str = ""
    version: str = ""
    user: str = ""
    commands: tuple[Command, ...] = ()


class Ack(Struct, frozen=True, tag_field="type", tag="ack"):
    """A message is durable; ``answer_id`` is the id of its future answer."""

    client_msg_id: str
    message_id: str
    answer_id: str
    session: str
    seq: int
    duplicate: bool = False
    refused: bool = False


class Refusal(Struct, frozen=True, tag_field="type", tag="error"):
    """A frame of this client was rejected; ``retryable`` is None if a retry may or may not succeed."""

    error_name: str
    message: str
    retryable: bool | None = None
    client_msg_id: str | None = None


class Segment(Struct, frozen=True):
    """A piece of the status line of plugins."""

    text: str
    color: str | None = None
    dim: bool = False


class Contributions(Struct, frozen=True, tag_field="type", tag="contributions"):
    """The status line of plugins, the keys that they handle, and the triggers of their mentions."""

    status: tuple[Segment, ...] = ()
    shortcuts: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()


class Offer(Struct, frozen=True):
    """A completion of a mention; ``value`` replaces the trigger and the text after it."""

    value: str
    label: str = ""
    description: str = ""


class Completions(Struct, frozen=True, tag_field="type", tag="completions"):
    """The completions of a mention. ``id`` is that of the request."""

    id: int
    completions: tuple[Offer, ...] = ()


class Pong(Struct, frozen=True, tag_field="type", tag="pong"):
    """The response to a ping."""


class Disconnected(Struct, frozen=True):
    """The connection closed and the link reconnects. Made by the link, not sent by the gateway."""

    reason: str


ServerFrame = Frame | Ready | Ack | Refusal | Contributions | Completions | Pong | Disconnected


class _Envelope(Struct, frozen=True):
    session: str = ""
    seq: int = 0


_envelope = msgspec.json.Decoder(_Envelope).decode
_frame = msgspec.json.Decoder(Frame | Ready | Ack | Refusal | Contributions | Completions | Pong).decode
_encode = msgspec.json.Encoder().encode


def parse(payload: bytes | str) -> tuple[str, int, ServerFrame] | None:
    """Parse one frame. Return its session, its number and the frame, or None for an unknown kind."""
    try:
        envelope = _envelope(payload)
        return envelope.session, envelope.seq, _frame(payload)
    except msgspec.DecodeError:
        return None


def render(kind: str, **fields: Any) -> str:
    """Render one frame; omits fields that are None."""
    given = {name: value for name, value in fields.items() if value is not None}
    return _encode({"type": kind, **given}).decode()


Receive = Callable[[str, ServerFrame], None]

_UNAUTHORIZED, _TOO_MANY_GUESSES = 4001, 4029
_CONNECT_SECONDS = 10.0
_HEARTBEAT = 20.0
_LONGEST_FRAME = 64 * 1024 * 1024
_BACKOFF = Backoff(0.25, 2)
_TRY_AGAIN_SECONDS = 1.0


class Link:
    """A connection to the gateway at ``url``. Calls ``receive`` with each frame and its session.

    With ``contributions`` it also receives the status line, keys and triggers of plugins.
    """

    def __init__(self, url: str, token: str | None, receive: Receive, *, contributions: bool = False) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._receive = receive
        # An older gateway without the first protocol selects the second one.
        self._protocols = (UI_SUBPROTOCOL, SUBPROTOCOL) if contributions else (SUBPROTOCOL,)
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._connected_before = False
        self._failures = 0
        self._unacknowledged: dict[str, str] = {}
        self._unsent: list[str] = []
        self._seen: dict[str, int] = {}

    async def run(self) -> None:
        """Stay connected until cancelled.

        Raises GatewayUnreachableError when the first connection fails, InvalidRequestError when another
        program responds, and UnauthorizedError when the gateway rejects the token.
        """
        async with aiohttp.ClientSession() as http:
            while True:
                reason = await self._connection(http)
                self._receive("", Disconnected(reason))
                self._failures += 1
                await asyncio.sleep(_BACKOFF.pause(self._failures))

    async def send(self, session: str, text: str, client_msg_id: str) -> None:
        """Send a message, with retries until it is acknowledged or rejected."""
        frame = render(
            "message",
            client_msg_id=client_msg_id,
            session=session,
            text=text,
            seen=self._seen.get(session, 0),
        )
        self._unacknowledged[client_msg_id] = frame
        if self._socket is not None:
            await self._send_frame(self._socket, frame)

    async def follow(self, session: str) -> None:
        """Subscribe to a session, from its beginning or after the last event that was seen."""
        after = self._seen.setdefault(session, 0)
        if self._socket is not None:
            await self._send_frame(self._socket, render("resume", session=session, after=after))

    async def follow_again(self, session: str) -> None:
        """Request the running answer again from its beginning, after a gap."""
        self._seen[session] = max(0, self._seen.get(session, 0) - 1)
        await self.follow(session)

    async def abort(self, session: str) -> None:
        """Stop the answer of a session."""
        await self._send_or_keep(render("abort", session=session))

    async def approve(self, session: str, approval_id: str, decision: str | Sequence[str]) -> None:
        """Send the decision on a tool call (``once``, ``always`` or ``deny``), or another answer."""
        frame = render("approval", session=session, approval_id=approval_id, decision=decision)
        await self._send_or_keep(frame)

    async def press(self, key: str) -> None:
        """Report a pressed key that a plugin handles."""
        if self._socket is not None:
            await self._send_frame(self._socket, render("key", key=key))

    async def complete(self, request_id: int, trigger: str, partial: str) -> None:
        """Request the completions of a mention; they arrive as a frame with this id."""
        if self._socket is not None:
            frame = render("complete_mention", id=request_id, trigger=trigger, partial=partial)
            await self._send_frame(self._socket, frame)

    async def _connection(self, http: aiohttp.ClientSession) -> str:
        """Connect, and read the connection until it closes. Return the reason."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                socket = await self._open(http)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if not self._connected_before:
                # With 500 and above, a proxy may say that the gateway is down.
                is_other = isinstance(error, aiohttp.WSServerHandshakeError) and error.status < 500
                kind = InvalidRequestError if is_other else GatewayUnreachableError
                raise kind(self._why(error)) from None
            return self._why(error)
        try:
            return await self._serve(socket)
        finally:
            self._socket = None
            await socket.close()

    async def _open(self, http: aiohttp.ClientSession) -> aiohttp.ClientWebSocketResponse:
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return await http.ws_connect(
            websocket_address(self.url),
            headers=headers,
            protocols=self._protocols,
            heartbeat=_HEARTBEAT,
            max_msg_size=_LONGEST_FRAME,
        )

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse) -> str:
        ending: TrunklineError | None = None
        async with asyncio.TaskGroup() as tasks:
            if self._token is None:
                # A gateway with a token waits for it in the first frame; a ping makes it reject at once.
                await self._send_frame(socket, render("ping"))
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    ending = await self._take(message.data, socket, tasks)
                if ending is not None:
                    break
        if socket.close_code == _TOO_MANY_GUESSES:
            ending = TooManyRequestsError(f"too many wrong tokens at {self.url}; retry in a minute")
        elif socket.close_code == _UNAUTHORIZED:
            ending = UnauthorizedError(
                f"the gateway at {self.url} rejected the token; use the one in its server.token"
                if self._token
                else f"the gateway at {self.url} needs a token: use --token, "
                "or set server.token in the settings and omit --url"
            )
        if ending is not None:
            raise ending
        return "the connection was closed"

    async def _take(
        self, payload: str, socket: aiohttp.ClientWebSocketResponse, tasks: asyncio.TaskGroup
    ) -> TrunklineError | None:
        """Process one frame. Return an error that must end the link."""
        parsed = parse(payload)
        if parsed is None:
            return None
        session, seq, frame = parsed
        match frame:
            case Ready() if frame.protocol != PROTOCOL:
                return InvalidRequestError(
                    f"the gateway at {self.url} uses protocol {frame.protocol}, this client {PROTOCOL}; "
                    "use the same version of Trunkline on both sides"
                )
            case Ready():
                await self._resume(socket)
            case Ack():
                self._unacknowledged.pop(frame.client_msg_id, None)
                self._seen.setdefault(frame.session, frame.seq)
                if frame.duplicate:
                    await self.follow(frame.session)  # its answer may have progressed
            case Refusal(client_msg_id=str() as name, retryable=True):
                tasks.create_task(self._send_again(name, socket))
            case Refusal(client_msg_id=str() as name):
                self._unacknowledged.pop(name, None)
            case _ if session in self._seen:
                self._seen[session] = seq
            case _:
                pass
        self._receive(session, frame)
        return None

    async def _resume(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Resume the sessions, then send the unacknowledged frames."""
        self._connected_before, self._failures = True, 0
        self._socket = socket
        for session, after in self._seen.items():
            await self._send_frame(socket, render("resume", session=session, after=after))
        kept, self._unsent = self._unsent, []
        for frame in [*self._unacknowledged.values(), *kept]:
            await self._send_frame(socket, frame)

    async def _send_again(self, client_msg_id: str, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Send a message again after a delay, because the gateway was overloaded."""
        await asyncio.sleep(_TRY_AGAIN_SECONDS)
        frame = self._unacknowledged.get(client_msg_id)
        if frame is not None:
            await self._send_frame(socket, frame)

    async def _send_or_keep(self, frame: str) -> None:
        if self._socket is None:
            self._unsent.append(frame)
        else:
            await self._send_frame(self._socket, frame)

    async def _send_frame(self, socket: aiohttp.ClientWebSocketResponse, frame: str) -> None:
        """Send a frame. The reader of the socket detects a failure and reconnects."""
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            await socket.send_str(frame)

    def _why(self, error: Exception) -> str:
        if isinstance(error, aiohttp.WSServerHandshakeError):
            cause = (
                "a proxy there does not reach its gateway, or no node of the cluster is active"
                if error.status >= 500
                else "it is not a gateway, or its websocket channel is disabled"
            )
            return f"{self.url} responds with status {error.status}; {cause}"
        if isinstance(error, aiohttp.InvalidURL):
            return f"{self.url!r} is not a URL; example: http://127.0.0.1:8080"
        if isinstance(error, aiohttp.ClientSSLError):
            return f"no TLS connection to {self.url}: {_reason_of_tls(error)}"
        reason = f" ({text})" if (text := _reason(error)) else ""
        return f"no gateway responds at {self.url}{reason}; start one: trunkline run"


def _reason(error: Exception) -> str:
    """Return why a connection failed, as the system names it; empty if it does not."""
    if isinstance(error, TimeoutError):
        return f"no answer within {_CONNECT_SECONDS:.0f} s"
    while isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    number = error.errno if isinstance(error, OSError) else None
    # asyncio describes a refused connection in its own words; an unknown host has a negative number.
    return os.strerror(number) if number and number > 0 else getattr(error, "strerror", None) or ""


def _reason_of_tls(error: aiohttp.ClientSSLError) -> str:
    """Return what is wrong with the TLS of a gateway, and how to correct it."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
        return f"its certificate is not accepted ({reason}); SSL_CERT_FILE names further authorities"
    # The number of an error of OpenSSL is not that of the system.
    return f"{error.os_error.strerror or error}; a gateway without a proxy serves http://"


def websocket_address(url: str) -> str:
    """Return the websocket URL of a gateway: ``http://host`` becomes ``ws://host/ws``."""
    scheme, host, path, _, _ = urlsplit(url if "://" in url else f"http://{url}")
    path = path.rstrip("/").removesuffix("/ws")
    return urlunsplit(({"http": "ws", "https": "wss"}.get(scheme, scheme), host, f"{path}/ws", "", ""))
