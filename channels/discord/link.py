"""Gateway connection: discord.py's websocket under the channel's supervision.

discord.py sends heartbeats, decompresses and resumes. Events bypass its parsers, where one malformed event
would end the connection: each event is passed on as it arrived.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

import aiohttp
import discord
import yarl
from discord.gateway import DiscordWebSocket, ReconnectWebSocket
from discord.http import Route
from msgspec import Struct

from channels.discord.api import Broken, Later, Refused, Rest
from channels.discord.cursor import Position

INTENTS = discord.Intents(guilds=True, guild_messages=True, dm_messages=True, message_content=True)
GONE = frozenset({4003, 4007, 4009})
"""Close codes after which a session cannot be resumed."""
FATAL = {
    4004: "Discord does not know this token",
    4010: "Discord does not want this shard",
    4011: "the bot is in too many servers for one connection",
    4012: "Discord has no such version of the gateway any more",
    4013: "Discord does not know one of the intents",
    4014: "switch on the Message Content Intent on the bot's page at Discord",
}
UNREACHABLE = (aiohttp.ClientError, OSError, TimeoutError, Later, Broken)

_SILENT_SECONDS = 100.0
_CLOSING_SECONDS = 2.0
_KEPT_OPEN = 4000
"""Close code that keeps the session resumable; 1000 and 1001 would end it."""


class Event(Struct, frozen=True):
    """A received event. ``seq`` is its number in the session.

    For an event that is processed outside of the ordered stream, ``durable`` is done when it is stored.
    """

    name: str
    data: Any
    seq: int | None
    durable: asyncio.Future[None] | None = None


Hear = Callable[[Event], None]
Reject = Callable[[str, str], None]
"""Callback for an invalid frame, with the reason."""


class FatalClosure(Exception):
    """A retry cannot fix the connection: settings here or at Discord have to change first."""


class Disconnected(Exception):
    """The connection ended. ``resumable`` says whether the session can be resumed."""

    def __init__(self, why: str, *, resumable: bool) -> None:
        super().__init__(why)
        self.resumable = resumable


class _Parsers(dict[str, Callable[[Any], None]]):
    """Takes the place of discord.py's parsers: every event has one, and it is ours."""

    def __init__(self, socket: Socket) -> None:
        super().__init__()
        self._socket = socket

    def __missing__(self, name: object) -> Callable[[Any], None]:
        if not isinstance(name, str):
            raise ValueError("an event without a name")
        return lambda data: self._socket.hear(Event(name, data, self._socket.sequence))


class Socket(DiscordWebSocket):
    """One connection. ``heard_at`` is when something came last, in monotonic seconds."""

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, token: str, hear: Hear, reject: Reject
    ) -> None:
        super().__init__(socket, loop=asyncio.get_running_loop())
        self.token = token
        self.hear = hear
        self.shard_id = None
        self.gateway = self.DEFAULT_GATEWAY
        self.heard_at = time.monotonic()
        self._reject = reject
        self._max_heartbeat_timeout = 60.0
        self._discord_parsers = _Parsers(self)

    async def identify(self) -> None:
        """Log in."""
        properties = {"os": "linux", "browser": "trunkline", "device": "trunkline"}
        data = {
            "token": self.token,
            "properties": properties,
            "compress": True,
            "large_threshold": 50,
            "intents": INTENTS.value,
        }
        await self.send_as_json({"op": self.IDENTIFY, "d": data})

    async def received_message(self, msg: Any, /) -> None:
        """Process a frame. An invalid one is quarantined; the connection stays open."""
        self.heard_at = time.monotonic()
        try:
            await super().received_message(msg)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if self._keep_alive is None:  # without the hello frame there can be no heartbeat
                raise aiohttp.ClientError("the gateway did not say hello") from error
            self._reject(msg if isinstance(msg, str) else repr(msg), f"{type(error).__name__}: {error}")

    async def leave(self) -> None:
        """Close so that the session stays resumable, with a short wait for the other side."""
        try:
            async with asyncio.timeout(_CLOSING_SECONDS):
                await self.close(_KEPT_OPEN)
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass  # the other side does not answer: treat it as closed


class Link(Protocol):
    """Keeper of a connection, as the connection calls it."""

    def hear(self, event: Event) -> None: ...

    def reject(self, raw: str, why: str) -> None: ...


async def connect(rest: Rest, url: str, token: str, position: Position | None, link: Link) -> Socket:
    """Connect and resume, or log in without a stored position.

    Raises Disconnected, FatalClosure and what aiohttp raises.
    """
    compression = discord.utils._ActiveDecompressionContext.COMPRESSION_TYPE  # pyright: ignore[reportPrivateUsage]
    address = yarl.URL(url).with_query(v=10, encoding="json", compress=compression)
    socket = Socket(await rest.ws_connect(str(address)), token, link.hear, link.reject)
    try:
        await poll(socket)
        if position is None:
            await socket.identify()
        else:
            socket.session_id, socket.sequence = position.session, position.seq
            await socket.resume()
    except BaseException:
        await socket.leave()
        raise
    return socket


async def poll(socket: Socket) -> None:
    """Process the next frame. Raises Disconnected, FatalClosure and what aiohttp raises."""
    try:
        await socket.poll_event()
    except ReconnectWebSocket as again:
        code = socket.socket.close_code
        gone = not again.resume or code in GONE
        raise Disconnected(f"closed with {code}", resumable=not gone) from None
    except discord.ConnectionClosed as closed:
        if closed.code in FATAL:
            raise FatalClosure(FATAL[closed.code]) from None
        raise Disconnected(f"closed with {closed.code}", resumable=closed.code not in GONE) from None


def trouble(socket: Socket | None) -> str:
    """Return the reason why the connection does not count as working; empty if it works."""
    if socket is None or not socket.open:
        return "not connected"
    silent = time.monotonic() - socket.heard_at
    return f"nothing was heard for {silent:.0f} s" if silent > _SILENT_SECONDS else ""


async def gateway_of(rest: Rest) -> tuple[str, int, float]:
    """Return the gateway's address, the remaining logins of today, and the seconds until they are reset.

    Raises Refused, and what aiohttp raises.
    """
    try:
        told = await rest.request(Route("GET", "/gateway/bot"))
        limit = told["session_start_limit"]
        return str(told["url"]), int(limit["remaining"]), float(limit["reset_after"]) / 1000
    except discord.HTTPException as error:
        raise Refused(error.status, error.code, error.text) from error
    except (KeyError, TypeError, ValueError) as error:
        raise Broken("the API names no gateway") from error
