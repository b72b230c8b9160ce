"""A link to a gateway: a websocket connection that outlives its sockets.

It connects again when it breaks, reads on in its sessions behind the last event it saw, and sends again
what was not acknowledged, under the same name. So nothing is lost, and nothing is said twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from gateway.cli.remote import GatewayUnreachableError
from gateway.cli.wire import PROTOCOL, SUBPROTOCOL, Ack, Heard, Lost, Ready, Refusal, parse, render
from gateway.errors import InvalidRequestError, TooManyRequestsError, TrunklineError, UnauthorizedError

Receive = Callable[[str, Heard], None]

_UNAUTHORIZED, _TOO_MANY_GUESSES = 4001, 4029
_CONNECT_SECONDS = 10.0
_HEARTBEAT = 20.0
_LONGEST_FRAME = 64 * 1024 * 1024
_FIRST_PAUSE = 0.25
_LONGEST_PAUSE = 2.0
_TRY_AGAIN_SECONDS = 1.0


class Link:
    """Talks to the gateway at ``url``. ``receive`` gets every frame with the session it belongs to."""

    def __init__(self, url: str, token: str | None, receive: Receive) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._receive = receive
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._connected_before = False
        self._pause = _FIRST_PAUSE
        self._unacknowledged: dict[str, str] = {}
        self._unsent: list[str] = []
        self._seen: dict[str, int] = {}

    async def run(self) -> None:
        """Stay connected until cancelled.

        Raises GatewayUnreachableError when even the first connection fails, and UnauthorizedError when the
        gateway does not know the token.
        """
        async with aiohttp.ClientSession() as http:
            while True:
                reason = await self._connection(http)
                self._receive("", Lost(reason))
                await asyncio.sleep(self._pause)
                self._pause = min(_LONGEST_PAUSE, self._pause * 2)

    async def say(self, session: str, text: str, client_msg_id: str) -> None:
        """Send a message, again and again until it is acknowledged or refused."""
        frame = render("message", client_msg_id=client_msg_id, session=session, text=text)
        self._unacknowledged[client_msg_id] = frame
        if self._socket is not None:
            await self._send(self._socket, frame)

    async def follow(self, session: str) -> None:
        """Read a session along, from its beginning or from the last event that was seen."""
        after = self._seen.setdefault(session, 0)
        if self._socket is not None:
            await self._send(self._socket, render("resume", session=session, after=after))

    async def follow_again(self, session: str) -> None:
        """Something of the running answer is missing: ask for it from its beginning."""
        self._seen[session] = max(0, self._seen.get(session, 0) - 1)
        await self.follow(session)

    async def abort(self, session: str) -> None:
        """Stop the answer of a session."""
        await self._send_or_keep(render("abort", session=session))

    async def approve(self, session: str, approval_id: str, decision: str) -> None:
        """Answer a tool's question: ``once``, ``always`` or ``deny``."""
        frame = render("approval", session=session, approval_id=approval_id, decision=decision)
        await self._send_or_keep(frame)

    async def _connection(self, http: aiohttp.ClientSession) -> str:
        """Connect, and serve the connection until it breaks. Returns why it did."""
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                socket = await self._open(http)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if not self._connected_before:
                raise GatewayUnreachableError(self._why(error)) from None
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
            protocols=(SUBPROTOCOL,),
            heartbeat=_HEARTBEAT,
            max_msg_size=_LONGEST_FRAME,
        )

    async def _serve(self, socket: aiohttp.ClientWebSocketResponse) -> str:
        ending: TrunklineError | None = None
        async with asyncio.TaskGroup() as tasks:
            if self._token is None:
                # A gateway that wants a token waits for one in the first frame; this lets it refuse at once.
                await self._send(socket, render("ping"))
            async for message in socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    ending = await self._take(message.data, socket, tasks)
                if ending is not None:
                    break
        if socket.close_code == _TOO_MANY_GUESSES:
            ending = TooManyRequestsError(f"too many wrong tokens at {self.url}; wait a minute")
        elif socket.close_code == _UNAUTHORIZED:
            ending = UnauthorizedError(
                f"the gateway at {self.url} wants a token: set server.token in the settings, or give --token"
            )
        if ending is not None:
            raise ending
        return "the connection was closed"

    async def _take(
        self, payload: str, socket: aiohttp.ClientWebSocketResponse, tasks: asyncio.TaskGroup
    ) -> TrunklineError | None:
        """Take one frame in. Returns an error that must end the link."""
        parsed = parse(payload)
        if parsed is None:
            return None
        session, seq, heard = parsed
        match heard:
            case Ready() if heard.protocol != PROTOCOL:
                return InvalidRequestError(
                    f"the gateway at {self.url} speaks protocol {heard.protocol}, this client {PROTOCOL}; "
                    "use the same version of Trunkline on both sides"
                )
            case Ready():
                await self._greeted(socket)
            case Ack():
                self._unacknowledged.pop(heard.client_msg_id, None)
                self._seen.setdefault(heard.session, heard.seq)
                if heard.duplicate:
                    await self.follow(heard.session)  # how far it has come meanwhile
            case Refusal(client_msg_id=str() as name, retryable=True):
                tasks.create_task(self._say_again(name, socket))
            case Refusal(client_msg_id=str() as name):
                self._unacknowledged.pop(name, None)
            case _ if session in self._seen:
                self._seen[session] = seq
            case _:
                pass
        self._receive(session, heard)
        return None

    async def _greeted(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Take up where the last connection ended: sessions first, then what was not acknowledged."""
        self._connected_before, self._pause = True, _FIRST_PAUSE
        self._socket = socket
        for session, after in self._seen.items():
            await self._send(socket, render("resume", session=session, after=after))
        kept, self._unsent = self._unsent, []
        for frame in [*self._unacknowledged.values(), *kept]:
            await self._send(socket, frame)

    async def _say_again(self, client_msg_id: str, socket: aiohttp.ClientWebSocketResponse) -> None:
        """The gateway had no room for a message: offer it again a little later."""
        await asyncio.sleep(_TRY_AGAIN_SECONDS)
        frame = self._unacknowledged.get(client_msg_id)
        if frame is not None:
            await self._send(socket, frame)

    async def _send_or_keep(self, frame: str) -> None:
        if self._socket is None:
            self._unsent.append(frame)
        else:
            await self._send(self._socket, frame)

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, frame: str) -> None:
        """Send a frame. A socket that breaks meanwhile is noticed, and made up for, by whoever reads it."""
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):
            await socket.send_str(frame)

    def _why(self, error: Exception) -> str:
        if isinstance(error, aiohttp.WSServerHandshakeError):
            return (
                f"{self.url} answers with status {error.status}; "
                "it is no gateway, or one without its websocket channel"
            )
        if isinstance(error, aiohttp.InvalidURL):
            return f"{self.url!r} is no address; it looks like http://127.0.0.1:8080"
        return f"no gateway answers at {self.url}; start one with: trunkline run"


def websocket_address(url: str) -> str:
    """Where the websocket of a gateway is: ``http://host`` becomes ``ws://host/ws``."""
    scheme, host, path, _, _ = urlsplit(url if "://" in url else f"http://{url}")
    path = path.rstrip("/").removesuffix("/ws")
    return urlunsplit(({"http": "ws", "https": "wss"}.get(scheme, scheme), host, f"{path}/ws", "", ""))
