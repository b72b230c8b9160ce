"""The websocket channel: ``GET /ws``. Its clients follow sessions' logs and resume where they stopped.

A message is acknowledged when it is durable. What a client misses while it is away is in the log, so
nothing is placed and nothing can double.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import structlog
from aiohttp import WSCloseCode, web

from channels.websocket.connection import Connection
from gateway import Host, OutboundMessage, Placed, Receive, UnauthorizedError

log = structlog.get_logger("trunkline.websocket")

PLAIN, HTML = "trunkline.v1", "trunkline.v1.html"
_TOKEN = "token."  # noqa: S105 - the prefix of a subprotocol, not a token
_HEARTBEAT = 30.0
_AUTH_SECONDS = 10.0
_PAGE = Path(__file__).parent / "page"


class WebsocketChannel:
    """Serves clients and the web page from the gateway's own server."""

    follows_session: Literal[True] = True

    def __init__(self, host: Host, channel_id: str = "websocket") -> None:
        self.id = channel_id
        self._host = host
        self._connections: set[web.WebSocketResponse] = set()

    async def run(self, receive: Receive) -> None:
        """Keep clients until cancelled; then tell them to come back later."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self._close_all()

    async def send(self, outbound: OutboundMessage) -> Placed:
        """Nothing to do: the message is in the session's log, which the clients follow."""
        return Placed(outbound.message.id)

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        """The websocket and the page."""
        return [web.get("/ws", self._serve), web.get("/", self._index), web.get("/page/{name}", self._file)]

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        offered = [p.strip() for p in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        protocol = next((p for p in (HTML, PLAIN) if p in offered), None)
        socket = web.WebSocketResponse(
            protocols=(protocol,) if protocol else (),
            compress=False,
            heartbeat=_HEARTBEAT,
            max_msg_size=self._host.limits.frame_bytes,
            decode_text=False,
        )
        token = _offered_token(offered) or _bearer(request)
        await socket.prepare(request)
        self._connections.add(socket)
        try:
            await self._converse(request, socket, token, html=protocol == HTML)
        except (ConnectionError, asyncio.IncompleteReadError) as error:
            log.debug("a client went away", reason=type(error).__name__)
        finally:
            self._connections.discard(socket)
        return socket

    async def _converse(
        self, request: web.Request, socket: web.WebSocketResponse, token: str | None, *, html: bool
    ) -> None:
        connection = Connection(self._host, self.id, socket, request.transport, html=html)
        peer = request.remote or ""
        try:
            if token is None and not self._host.auth.open:
                async with asyncio.timeout(_AUTH_SECONDS):
                    token = await connection.first_token()
            user = self._host.auth.user_of(token, peer)
        except (UnauthorizedError, TimeoutError):
            await socket.close(code=4001, message=b"Unauthorized")
            return
        await connection.run(user)

    async def _close_all(self) -> None:
        for socket in tuple(self._connections):
            await socket.close(code=WSCloseCode.SERVICE_RESTART, message=b"the gateway stops; come back")

    async def _index(self, _request: web.Request) -> web.StreamResponse:
        return web.FileResponse(_PAGE / "index.html", headers={"Cache-Control": "no-cache"})

    async def _file(self, request: web.Request) -> web.StreamResponse:
        path = _PAGE / request.match_info["name"]
        if path.parent != _PAGE or not path.is_file():
            raise web.HTTPNotFound
        return web.FileResponse(path, headers={"Cache-Control": "no-cache"})


def _bearer(request: web.Request) -> str | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _offered_token(offered: Sequence[str]) -> str | None:
    """The token among the subprotocols: browsers cannot send it in a header, and an address is logged."""
    encoded = next((p[len(_TOKEN) :] for p in offered if p.startswith(_TOKEN)), None)
    if encoded is None:
        return None
    try:
        return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return ""
