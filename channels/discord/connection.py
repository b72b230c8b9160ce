"""Gateway connection: discord.py's websocket under the channel's supervision.

discord.py sends heartbeats, decompresses and resumes. Events bypass its parsers, where one malformed event
would end the connection: each event is passed on as it arrived.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

import aiohttp
import discord
import msgspec
import structlog
import yarl
from discord.gateway import DiscordWebSocket, ReconnectWebSocket
from discord.http import Route

from channels.discord.api import Api, Broken, Later, Refused, Rest
from channels.discord.cursor import Budget, Kept, Position
from channels.discord.inflow import MISFITS, MOST_WAITING, Event, Inflow, Reader
from channels.discord.options import Options
from gateway import now_ms
from gateway.channel import Backoff, InboundMessage, Receipt, Receive, Rejected

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


log = structlog.get_logger("trunkline.discord")

_BACKOFF = Backoff(0.2, 60, jitter=-0.5)
_TRIES_TO_RESUME = 4
_NEW_SESSION_AFTER = 1.0
_STARTED = ("READY", "RESUMED")

Interact = Callable[[Any, Receive], Awaitable[None]]


class Keeper:
    """Keeper of one connection. Its tasks run in the given task group."""

    def __init__(
        self,
        api: Api,
        options: Options,
        inflow: Inflow,
        reader: Reader,
        kept: Kept,
        receive: Receive,
        interact: Interact,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._api = api
        self._options = options
        self._inflow = inflow
        self._reader = reader
        self._kept = kept
        self._receive = receive
        self._interact = interact
        self._tasks = tasks
        self._position = kept.position
        self._budget = kept.budget
        self._socket: Socket | None = None
        self._started = False
        self._why = "connecting"

    def trouble(self) -> str:
        """Return the reason why the connection does not count as working; empty if it works."""
        if not self._started:
            return self._why
        return trouble(self._socket) or self._inflow.problem

    async def run(self) -> None:
        """Keep the connection open until cancelled. Raises FatalClosure, and Refused for a wrong token."""
        failures = 0
        while True:
            try:
                await self._once()
            except Disconnected as gone:
                self._why = str(gone)
                if not gone.resumable:
                    self._position = Position()
                    await asyncio.sleep(_NEW_SESSION_AFTER * (1 + random.random()))  # noqa: S311 - no secret
            except UNREACHABLE as error:
                self._why = str(error) or type(error).__name__
            failures = 1 if self._started else failures + 1
            self._started = False
            if failures % _TRIES_TO_RESUME == 0:
                self._position = Position()
            log.info("connecting to Discord again", reason=self._why)
            if failures > 1:
                await asyncio.sleep(_BACKOFF.pause(failures))

    async def _once(self) -> None:
        """Run one connection until it ends."""
        async with self._api.opened() as rest:
            resume = self._position if self._position.resumable else None
            url = self._options.gateway_url or (resume.url if resume is not None else None)
            if resume is None:
                url = await self._may_log_in(rest, url)
            token = self._options.token.get_secret_value()
            self._socket = socket = await connect(rest, url or "", token, resume, self)
            try:
                while True:
                    await poll(socket)
            finally:
                await socket.leave()

    async def _may_log_in(self, rest: Rest, url: str | None) -> str:
        """Wait until the login budget allows a login, and store that it is used. Returns the gateway's
        address."""
        while True:
            try:
                named, left, seconds = await gateway_of(rest)
            except Refused as refused:
                raise FatalClosure(str(refused)) from refused
            wait = self._budget.wait(now_ms()) if left else max(seconds, 1.0)
            if wait <= 0:
                break
            self._why = f"the next login is possible in {wait:.0f} s"
            log.info("waiting to log in", seconds=round(wait, 1))
            await asyncio.sleep(wait)
        self._budget: Budget = self._budget.spend(now_ms())
        await self._receive(cursor=self._kept.cursor(self._budget))
        return url or named

    def hear(self, event: Event) -> None:
        """Take an event from the connection. Raises Disconnected when nobody takes them further."""
        if event.name in _STARTED:
            self._started = True
        if event.name == "READY":
            data = cast("dict[str, Any]", event.data)
            self._position = Position(data["session_id"], event.seq, data["resume_gateway_url"])
        elif event.seq is not None:
            session = self._position
            self._position = Position(session.session, event.seq, session.url)
        if self._inflow.waiting >= MOST_WAITING:
            raise Disconnected("too much is waiting to be stored", resumable=True)
        if event.name == "INTERACTION_CREATE":
            durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._tasks.create_task(self._take(event.data, durable))
            event = msgspec.structs.replace(event, durable=durable)
        self._inflow.offer(event)

    def reject(self, raw: str, why: str) -> None:
        """Quarantine an invalid frame."""
        rejected = self._reader.rejected("frame", raw, why)
        self._tasks.create_task(self._quarantine(rejected))

    async def _quarantine(self, rejected: Rejected) -> None:
        await self._receive(rejected=[rejected])

    async def _take(self, data: Any, durable: asyncio.Future[None]) -> None:
        """Process an interaction at once: the response is due within three seconds."""

        async def receive(*messages: InboundMessage, **more: Any) -> Sequence[Receipt]:
            receipts = await self._receive(*messages, **more)
            durable.set_result(None)
            return receipts

        try:
            await self._interact(data, receive)
        except MISFITS as error:
            await self._receive(rejected=[self._reader.rejected("INTERACTION_CREATE", data, error)])
        finally:
            if not durable.done():
                durable.set_result(None)
