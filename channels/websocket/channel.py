"""Websocket channel, ``GET /ws``: clients follow the logs of sessions and resume at their last event.

A message is acknowledged when it is durable. Events that a disconnected client misses are in the log, so that
the channel sends no messages itself and cannot send duplicates.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import structlog
from aiohttp import WSCloseCode, web

from channels.websocket.connection import UNAUTHORIZED, Connection
from channels.websocket.share_page import SharePage
from gateway.channel import (
    Address,
    ClientMessage,
    Host,
    OutboundMessage,
    Placed,
    Receive,
    TooManyRequestsError,
    UnauthorizedError,
    bearer_token,
    session_cookie,
)
from gateway.server.pages import NAME, PageFiles

log = structlog.get_logger("trunkline.websocket")

PLAIN, UI, HTML = "trunkline.v1", "trunkline.v1.ui", "trunkline.v1.html"
"""Subprotocols: the events; also the contributions of plugins; also rendered HTML."""
_TOKEN = "token."  # noqa: S105 - the prefix of a subprotocol, not a token
_HEARTBEAT = 30.0
_AUTH_SECONDS = 10.0
_CLOSE_SECONDS = 1.0
_TOO_MANY_ATTEMPTS = 4029
_PAGE = Path(__file__).parent / "page"


class WebsocketChannel:
    """Channel that serves clients and the web page from the gateway's own server."""

    follows_session: Literal[True] = True

    def __init__(self, host: Host, channel_id: str = "websocket") -> None:
        self.id = channel_id
        self._host = host
        self._sockets: set[web.WebSocketResponse] = set()
        self._files = PageFiles(_PAGE, "/page/")
        self._share = SharePage(host, _PAGE)
        self._rendering = asyncio.Lock()
        """Lock held by the client whose slow rendering is in progress; one at a time."""

    async def run(self, receive: Receive) -> None:
        """Accept clients until cancelled; then ask them to reconnect later."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self._close_sockets()

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Do nothing: the message is in the session's log, which the clients follow."""
        return Placed(outbound.message.id)

    def session_of(self, address: Address) -> str:
        """Return the session of an address: its chat. Raises InvalidRequestError for a name of no session."""
        return ClientMessage("announced", "").inbound(self.id, address.chat, "").session

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        """Return the routes of the websocket and the page."""
        return [
            web.get("/ws", self._serve),
            web.get("/", self._index),
            web.get(f"/page/{NAME}", self._file),
            web.get("/share/{link}", self._share.serve),
        ]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        offered = [p.strip() for p in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        protocol = next((p for p in (HTML, UI, PLAIN) if p in offered), None)
        socket = web.WebSocketResponse(
            protocols=(protocol,) if protocol else (),
            compress=False,
            heartbeat=_HEARTBEAT,
            max_msg_size=self._host.limits.frame_bytes,
            decode_text=False,
        )
        token = _offered_token(offered)
        if token is None:
            token = bearer_token(request.headers.get("Authorization", ""))
        writer = await socket.prepare(request)
        self._sockets.add(socket)
        self._host.counters.clients[self.id] += 1
        try:
            connection = Connection(
                self._host,
                self.id,
                socket,
                request.transport,
                writer,
                html=protocol == HTML,
                contributions=protocol in (UI, HTML),
                rendering=self._rendering,
            )
            await self._authenticate_and_run(connection, request, token)
        except ConnectionError as error:
            log.debug("a client disconnected", reason=type(error).__name__)
        except Exception:
            log.exception("a connection failed")
            await socket.close(code=WSCloseCode.INTERNAL_ERROR, message=b"internal error")
        finally:
            self._sockets.discard(socket)
            self._host.counters.clients[self.id] -= 1
        return socket

    async def _authenticate_and_run(
        self, connection: Connection, request: web.Request, token: str | None
    ) -> None:
        socket, auth, logins = connection.socket, self._host.auth, self._host.logins
        unregister: Callable[[], object] | None = None
        try:
            cookie = session_cookie(request.method, request.headers, request.cookies)
            user = None
            if token is None and cookie is not None:
                # Before the look at the store, so that no end of the login is missed.
                unregister = logins.on_end(cookie, connection.signed_out.set)
                user = await logins.user_of(cookie)
            # A page without a valid cookie is refused at once, because it has to ask the user for the token.
            if user is None and token is None and not connection.html and not auth.open:
                async with asyncio.timeout(_AUTH_SECONDS):
                    token = await connection.first_token()
            if user is None:
                user, cookie = auth.user_of(token, request.remote or ""), None
        except (UnauthorizedError, TimeoutError):
            await socket.close(code=UNAUTHORIZED, message=b"Unauthorized")
        except TooManyRequestsError:
            await socket.close(code=_TOO_MANY_ATTEMPTS, message=b"too many wrong tokens; wait a minute")
        else:
            await connection.run(user, cookie)
        finally:
            if unregister is not None:
                unregister()

    async def _close_sockets(self) -> None:
        """Close all sockets; the server aborts those of clients that do not read the close frame."""
        code, reason = WSCloseCode.SERVICE_RESTART, b"the gateway is restarting; reconnect"
        try:
            async with asyncio.timeout(_CLOSE_SECONDS), asyncio.TaskGroup() as tasks:
                for socket in tuple(self._sockets):
                    tasks.create_task(socket.close(code=code, message=reason))
        except TimeoutError:
            log.debug("some clients did not confirm the close")

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return await self._files.respond(request, "index.html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return await self._files.respond(request, request.match_info["name"])


def _offered_token(offered: Sequence[str]) -> str | None:
    """Return the token from the subprotocols: browsers cannot send it in a header, and URLs are logged."""
    encoded = next((p[len(_TOKEN) :] for p in offered if p.startswith(_TOKEN)), None)
    if encoded is None:
        return None
    try:
        return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""
