"""Connection to Discord's gateway: discord.py's websocket, and the loop that opens it again when it breaks.

discord.py sends heartbeats, decompresses and resumes. Events bypass its parsers, because one malformed event
would end the connection there: each event is passed on as it arrived.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import aiohttp
import discord
import msgspec
import structlog
import yarl
from discord.gateway import DiscordWebSocket, ReconnectWebSocket
from discord.http import Route

from channels.discord.api import UNREACHABLE, Api, Refused, Rest, ServerFailure
from channels.discord.cursor import LoginBudget, Position, StoredState
from channels.discord.inflow import MAX_QUEUED, PARSE_ERRORS, Event, EventReader, Inflow
from channels.discord.options import Options
from gateway import now_ms
from gateway.channel import Backoff, InboundMessage, Receipt, Receive, Rejected

log = structlog.get_logger("trunkline.discord")

INTENTS = discord.Intents(guilds=True, guild_messages=True, dm_messages=True, message_content=True)
NOT_RESUMABLE = frozenset({4003, 4007, 4009})
"""Close codes after which a session cannot be resumed."""
FATAL = {
    4004: "Discord rejects the bot token",
    4010: "Discord rejects the shard",
    4011: "the bot is in too many servers for one connection",
    4012: "Discord no longer supports this version of the gateway",
    4013: "Discord rejects the intents",
    4014: "enable the Message Content Intent on the bot's page at Discord",
}
"""Close codes after which a retry cannot succeed."""

_BACKOFF = Backoff(0.2, 60, jitter=-0.5)
_RESUME_FAILURES = 4
"""Failures in a row, with the end of a working connection, after which a new session is started."""
_NEW_SESSION_SECONDS = 1.0
_STARTED = ("READY", "RESUMED")
_SILENT_SECONDS = 100.0
"""Seconds without a frame after which the connection counts as broken; Discord sends one every 41 s."""
_CLOSING_SECONDS = 2.0
_KEEP_SESSION = 4000
"""Close code that keeps the session resumable; 1000 and 1001 would end it."""


class FatalClosure(Exception):
    """End of the connection that a retry cannot fix: a close code of ``FATAL``, or a refused login."""


class Disconnected(Exception):
    """End of the connection. ``resumable``: the session can be resumed."""

    def __init__(self, reason: str, *, resumable: bool) -> None:
        super().__init__(reason)
        self.resumable = resumable


class _Parsers(dict[str, Callable[[Any], None]]):
    """Replacement of discord.py's parsers: for every event name, a function that passes the event on."""

    def __init__(self, socket: Socket) -> None:
        super().__init__()
        self._socket = socket

    def __missing__(self, name: object) -> Callable[[Any], None]:
        if not isinstance(name, str):
            raise ValueError("an event without a name")
        return lambda data: self._socket.on_event(Event(name, data, self._socket.sequence))


class Socket(DiscordWebSocket):
    """One websocket to the gateway.

    ``on_event`` is called with each event, ``on_invalid`` with each invalid frame and the reason.
    """

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        token: str,
        on_event: Callable[[Event], None],
        on_invalid: Callable[[str, str], None],
    ) -> None:
        super().__init__(socket, loop=asyncio.get_running_loop())
        self.token = token
        self.on_event = on_event
        self.shard_id = None
        self.gateway = self.DEFAULT_GATEWAY
        self._on_invalid = on_invalid
        self._last_frame = time.monotonic()
        self._max_heartbeat_timeout = 60.0
        self._discord_parsers = _Parsers(self)

    @property
    def problem(self) -> str:
        """Return why the connection does not work; empty if it works."""
        if not self.open:
            return "not connected"
        silent = time.monotonic() - self._last_frame
        return f"no data from Discord for {silent:.0f} s" if silent > _SILENT_SECONDS else ""

    async def identify(self) -> None:
        """Log in, which starts a new session."""
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
        """Process a frame. An invalid one is passed to ``on_invalid``, and the connection stays open."""
        self._last_frame = time.monotonic()
        try:
            await super().received_message(msg)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if self._keep_alive is None:  # without the hello frame there can be no heartbeat
                raise aiohttp.ClientError("the gateway's first frame is invalid") from error
            self._on_invalid(msg if isinstance(msg, str) else repr(msg), f"{type(error).__name__}: {error}")

    async def leave(self) -> None:
        """Close the connection so that the session stays resumable. Waits at most two seconds for Discord."""
        try:
            async with asyncio.timeout(_CLOSING_SECONDS):
                await self.close(_KEEP_SESSION)
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass  # Discord does not answer: the connection counts as closed


async def connect(
    rest: Rest,
    url: str,
    token: str,
    position: Position | None,
    on_event: Callable[[Event], None],
    on_invalid: Callable[[str, str], None],
) -> Socket:
    """Connect, and resume the session of ``position``, or log in if that is None.

    Raises Disconnected, FatalClosure and the errors of aiohttp.
    """
    compression = discord.utils._ActiveDecompressionContext.COMPRESSION_TYPE  # pyright: ignore[reportPrivateUsage]
    address = yarl.URL(url).with_query(v=10, encoding="json", compress=compression)
    socket = Socket(await rest.ws_connect(str(address)), token, on_event, on_invalid)
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
    """Process the next frame. Raises Disconnected, FatalClosure and the errors of aiohttp."""
    try:
        await socket.poll_event()
    except ReconnectWebSocket as reconnect:
        code = socket.socket.close_code
        resumable = reconnect.resume and code not in NOT_RESUMABLE
        raise Disconnected(f"closed with {code}", resumable=resumable) from None
    except discord.ConnectionClosed as closed:
        if closed.code in FATAL:
            raise FatalClosure(FATAL[closed.code]) from None
        resumable = closed.code not in NOT_RESUMABLE
        raise Disconnected(f"closed with {closed.code}", resumable=resumable) from None


async def gateway_of(rest: Rest) -> tuple[str, int, float]:
    """Return the gateway's URL, the logins left today, and the seconds until Discord resets that number.

    Raises Refused and UNREACHABLE.
    """
    try:
        response = await rest.request(Route("GET", "/gateway/bot"))
        limit = response["session_start_limit"]
        return str(response["url"]), int(limit["remaining"]), float(limit["reset_after"]) / 1000
    except discord.HTTPException as error:
        raise Refused(error.status, error.code, error.text) from error
    except (KeyError, TypeError, ValueError) as error:
        raise ServerFailure("the response names no gateway") from error


class Connection:
    """Connection of a bot that is opened again whenever it breaks. Interactions are tasks of ``tasks``.

    ``position`` is the session and the last event that was queued.
    """

    def __init__(
        self,
        api: Api,
        options: Options,
        inflow: Inflow,
        reader: EventReader,
        state: StoredState,
        receive: Receive,
        interact: Callable[[Any, Receive], Awaitable[None]],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._api = api
        self._options = options
        self._inflow = inflow
        self._reader = reader
        self._state = state
        self._receive = receive
        self._interact = interact
        self._tasks = tasks
        self.position = state.position
        self._budget = state.budget
        self._socket: Socket | None = None
        self._started = False
        self._reason = "connecting"

    @property
    def problem(self) -> str:
        """Return why the connection does not work, or which history is unread; empty if all is well."""
        if not self._started or self._socket is None:
            return self._reason
        return self._socket.problem or self._inflow.problem

    async def run(self) -> None:
        """Keep the connection open until cancelled.

        The first retry is immediate, later ones use backoff. The session is resumed, unless Discord ended it
        or every fourth failure in a row starts a new one. Raises FatalClosure, and Refused if Discord rejects
        the bot.
        """
        failures = 0
        while True:
            try:
                await self._run_once()
            except Disconnected as end:
                self._reason = str(end)
                if not end.resumable:
                    self.position = Position()
                    # Discord requires a random pause before a new session.
                    await asyncio.sleep(_NEW_SESSION_SECONDS * (1 + random.random()))  # noqa: S311 - no secret
            except UNREACHABLE as error:
                self._reason = str(error) or type(error).__name__
            failures = 1 if self._started else failures + 1
            self._started = False
            if failures % _RESUME_FAILURES == 0:
                self.position = Position()
            log.info("reconnecting to Discord", reason=self._reason)
            if failures > 1:
                await asyncio.sleep(_BACKOFF.pause(failures))

    async def _run_once(self) -> None:
        """Process the frames of one connection. Raises Disconnected and the other errors that end it."""
        async with self._api.opened() as rest:
            resume = self.position if self.position.resumable else None
            url = self._options.gateway_url or (resume.url if resume is not None else None)
            if resume is None:
                url = await self._spend_login(rest, url)
            token = self._options.token.get_secret_value()
            self._socket = socket = await connect(
                rest, url or "", token, resume, self.on_event, self._on_invalid
            )
            try:
                while True:
                    await poll(socket)
            finally:
                await socket.leave()

    async def _spend_login(self, rest: Rest, url: str | None) -> str:
        """Wait until the budget allows a login, and store that it is spent. Returns the gateway's URL."""
        while True:
            try:
                named, left, seconds = await gateway_of(rest)
            except Refused as refused:
                raise FatalClosure(str(refused)) from refused
            wait = self._budget.wait(now_ms()) if left else max(seconds, 1.0)
            if wait <= 0:
                break
            self._reason = f"the next login is possible in {wait:.0f} s"
            log.info("waiting to log in", seconds=round(wait, 1))
            await asyncio.sleep(wait)
        # Stored before the login, so that a crash loop cannot spend more than the budget.
        self._budget: LoginBudget = self._budget.spend(now_ms())
        await self._receive(cursor=self._state.cursor(self._budget))
        return url or named

    def on_event(self, event: Event) -> None:
        """Queue an event; process an interaction at once, too. Raises Disconnected if the queue is full."""
        if self._inflow.queued >= MAX_QUEUED:
            # Before the position moves on: the resumed session has to repeat this event.
            raise Disconnected("too many events are waiting to be stored", resumable=True)
        if event.name in _STARTED:
            self._started = True
        if event.name == "READY":
            data = cast("dict[str, Any]", event.data)
            self.position = Position(data["session_id"], event.seq, data["resume_gateway_url"])
        elif event.seq is not None:
            session = self.position
            self.position = Position(session.session, event.seq, session.url)
        if event.name == "INTERACTION_CREATE":
            durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._tasks.create_task(self._process_interaction(event.data, durable))
            event = msgspec.structs.replace(event, durable=durable)
        self._inflow.put(event)

    def _on_invalid(self, raw: str, reason: str) -> None:
        self._tasks.create_task(self._quarantine(self._reader.rejected("frame", raw, reason)))

    async def _quarantine(self, rejected: Rejected) -> None:
        await self._receive(rejected=[rejected])

    async def _process_interaction(self, data: Any, durable: asyncio.Future[None]) -> None:
        """Process an interaction outside of the queue, because its response is due within three seconds.

        ``durable`` is done once a command is stored, or processing ended without one.
        """

        async def receive(*messages: InboundMessage, **more: Any) -> Sequence[Receipt]:
            receipts = await self._receive(*messages, **more)
            durable.set_result(None)
            return receipts

        try:
            await self._interact(data, receive)
        except PARSE_ERRORS as error:
            await self._receive(rejected=[self._reader.rejected("INTERACTION_CREATE", data, error)])
        finally:
            if not durable.done():
                durable.set_result(None)
