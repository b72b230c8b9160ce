"""Connections to Discord's gateway: discord.py's websocket, and the loop that opens it again when it breaks;
and the endpoint for interactions that Discord posts over HTTP.

discord.py sends heartbeats, decompresses and resumes. Events bypass its parsers, because one malformed event
would end the connection there: each event is passed on as it arrived.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, cast

import aiohttp
import discord
import msgspec
import structlog
import yarl
from aiohttp import web
from discord.gateway import DiscordWebSocket, ReconnectWebSocket
from discord.http import Route
from msgspec import Struct

from channels.discord.api import UNREACHABLE, Api, Refused, Rest, ServerFailure
from channels.discord.commands import Answer
from channels.discord.delivery import Recent
from channels.discord.inflow import (
    MAX_QUEUED,
    PARSE_ERRORS,
    Event,
    EventReader,
    History,
    Inflow,
    Position,
    StoredState,
)
from channels.discord.options import Options
from channels.discord.parse import is_typing, read
from channels.discord.rooms import Chats
from gateway import now_ms
from gateway.channel import Backoff, Cursor, InboundMessage, OverloadedError, Receipt, Receive, Rejected

log = structlog.get_logger("trunkline.discord")

INTENTS = discord.Intents(
    guilds=True,
    guild_messages=True,
    guild_reactions=True,
    dm_messages=True,
    dm_reactions=True,
    message_content=True,
)
NOT_RESUMABLE = frozenset({4003, 4007, 4009})
"""Close codes after which a session cannot be resumed."""
FATAL = {
    4004: "check token, on the page Bot of the application: Discord rejects it",
    4010: "Discord rejects the shard",
    4012: "Discord no longer supports this version of the gateway",
    4013: "Discord rejects the intents",
    4014: "enable the Message Content Intent on the bot's page at Discord",
}
"""Close codes after which a retry cannot succeed."""
_SHARDING_REQUIRED = 4011
"""Close code for a shard that would have too many servers."""

_BACKOFF = Backoff(0.2, 60, jitter=-0.5)
_RESUME_FAILURES = 4
"""Failures in a row, with the end of a working connection, after which a new session is started."""
_NEW_SESSION_SECONDS = 1.0
_STARTED = ("READY", "RESUMED")
_MORE_SHARDS_SECONDS = 60.0
"""Pause before Discord is asked again if it requires more shards than it recommends."""
Shard = tuple[int, int]
"""Number of a shard, and the number of all shards."""
_SILENT_SECONDS = 100.0
"""Seconds without a frame after which the connection counts as broken; Discord sends one every 41 s."""
_CLOSING_SECONDS = 2.0
_LOGIN_SECONDS = 30.0
_INFO_SECONDS = 5.0
_KEEP_SESSION = 4000
"""Close code that keeps the session resumable; 1000 and 1001 would end it."""


class FatalClosure(Exception):
    """End of the connection that a retry cannot fix: a close code of ``FATAL``, or a refused login."""


class ShardingRequired(Exception):
    """End of the connection because the bot is in too many servers for its number of shards."""


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
        shard: Shard,
        on_event: Callable[[Event], None],
        on_invalid: Callable[[str, str], None],
    ) -> None:
        super().__init__(socket, loop=asyncio.get_running_loop())
        self.token = token
        self.on_event = on_event
        self.shard_id, self.shard_count = shard
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
            "shard": [self.shard_id, self.shard_count],
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
    shard: Shard,
    position: Position | None,
    on_event: Callable[[Event], None],
    on_invalid: Callable[[str, str], None],
) -> Socket:
    """Connect, and resume the session of ``position``, or log in if that is None.

    Raises Disconnected, FatalClosure, ShardingRequired and the errors of aiohttp.
    """
    compression = discord.utils._ActiveDecompressionContext.COMPRESSION_TYPE  # pyright: ignore[reportPrivateUsage]
    address = yarl.URL(url).with_query(v=10, encoding="json", compress=compression)
    socket = Socket(await rest.ws_connect(str(address)), token, shard, on_event, on_invalid)
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
    """Process the next frame. Raises Disconnected, FatalClosure, ShardingRequired and aiohttp's errors."""
    try:
        await socket.poll_event()
    except ReconnectWebSocket as reconnect:
        code = socket.socket.close_code
        resumable = reconnect.resume and code not in NOT_RESUMABLE
        raise Disconnected(f"closed with {code}", resumable=resumable) from None
    except discord.ConnectionClosed as closed:
        if closed.code == _SHARDING_REQUIRED:
            raise ShardingRequired from None
        if closed.code in FATAL:
            raise FatalClosure(FATAL[closed.code]) from None
        resumable = closed.code not in NOT_RESUMABLE
        raise Disconnected(f"closed with {closed.code}", resumable=resumable) from None


async def _quarantine(receive: Receive, rejected: Rejected) -> None:
    """Store an invalid frame or interaction. It is only logged while the gateway is overloaded."""
    try:
        await receive(rejected=[rejected])
    except OverloadedError as error:
        # In the task group of the channel: raised, it would end the connections of all shards.
        log.warning("an invalid event was not stored", kind=rejected.key, reason=str(error))


class GatewayInfo(Struct, frozen=True):
    """Discord's description of its gateway.

    ``shards`` is the recommended number of shards. Of ``total`` logins in a day, ``remaining`` are left until
    Discord resets that number in ``reset_seconds``; ``concurrency`` of them may be made at a time.
    """

    url: str
    shards: int
    total: int
    remaining: int
    reset_seconds: float
    concurrency: int


async def gateway_of(rest: Rest) -> GatewayInfo:
    """Return Discord's description of its gateway. Raises FatalClosure and UNREACHABLE."""
    try:
        response = await rest.request(Route("GET", "/gateway/bot"))
        limit = response["session_start_limit"]
        return GatewayInfo(
            url=str(response["url"]),
            shards=max(1, int(response["shards"])),
            total=int(limit["total"]),
            remaining=int(limit["remaining"]),
            reset_seconds=float(limit["reset_after"]) / 1000,
            concurrency=max(1, int(limit["max_concurrency"])),
        )
    except discord.HTTPException as error:
        raise FatalClosure(str(Refused(error.status, error.code, error.text))) from error
    except (KeyError, TypeError, ValueError) as error:
        raise ServerFailure("the response names no gateway") from error


class Logins:
    """Admission to the logins of a bot, which all its shards share.

    Each login is one of the day's. Shards with the same number modulo ``GatewayInfo.concurrency`` take turns,
    five seconds apart.
    """

    def __init__(self, receive: Receive, state: StoredState) -> None:
        self._receive = receive
        self._state = state
        self._budget = state.budget
        self._last: dict[int, int] = defaultdict(lambda: state.budget.at)
        self._turns: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._asking = asyncio.Lock()
        self._info: GatewayInfo | None = None
        self._asked = 0.0

    @asynccontextmanager
    async def turn(self, rest: Rest, shard: int, report: Callable[[str], None]) -> AsyncGenerator[str]:
        """Wait until a shard may log in, and yield the gateway's URL; the block logs in.

        ``report`` is called with the reason of a wait. Raises FatalClosure and UNREACHABLE.
        """
        turn = shard % (await self._gateway(rest)).concurrency
        if self._turns[turn].locked():
            report("waiting for the login of another shard")
        async with self._turns[turn]:
            url = await self._spend(rest, turn, report)
            try:
                yield url
            finally:
                self._last[turn] = now_ms()

    async def _spend(self, rest: Rest, turn: int, report: Callable[[str], None]) -> str:
        """Wait until a login is allowed, and store that it is spent. Returns the gateway's URL."""
        while True:
            info, now = await self._gateway(rest), now_ms()
            if info.remaining:
                wait, reason = self._budget.wait(now, info.total, last=self._last[turn]), "the next login"
            else:
                wait = max(info.reset_seconds, 1.0)
                reason = f"all {info.total} logins of the day are used up; the next login"
            if wait <= 0:
                break
            report(f"{reason} is possible in {wait:.0f} s")
            log.info("waiting to log in", seconds=round(wait, 1), left_today=info.remaining)
            await asyncio.sleep(wait)
        self._info = msgspec.structs.replace(info, remaining=info.remaining - 1)
        # Stored before the login, so that a crash loop cannot spend more than the budget.
        self._budget = self._budget.spend(now, info.total)
        await self._receive(cursor=self._state.cursor(self._budget))
        return info.url

    async def _gateway(self, rest: Rest) -> GatewayInfo:
        """Return the gateway's description, at most five seconds old, because all shards ask at once."""
        async with self._asking:
            now = asyncio.get_running_loop().time()
            if self._info is None or self._asked < now - _INFO_SECONDS:
                self._info, self._asked = await gateway_of(rest), now
            return self._info


class Connection:
    """Connection of one shard that is opened again whenever it breaks. Interactions are tasks of ``tasks``.

    ``position`` is the session and the last event that was queued.
    """

    def __init__(
        self,
        api: Api,
        options: Options,
        shard: Shard,
        logins: Logins,
        inflow: Inflow,
        reader: EventReader,
        position: Position,
        receive: Receive,
        interact: Callable[[Any, Receive], Awaitable[None]],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._api = api
        self._options = options
        self._shard = shard
        self._logins = logins
        self._inflow = inflow
        self._reader = reader
        self._receive = receive
        self._interact = interact
        self._tasks = tasks
        self.position = position
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
        or every fourth failure in a row starts a new one. Raises FatalClosure and ShardingRequired, and
        Refused if Discord rejects the bot.
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
            log.info("reconnecting to Discord", reason=self._reason, shard=self._shard[0])
            if failures > 1:
                await asyncio.sleep(_BACKOFF.pause(failures))

    async def _run_once(self) -> None:
        """Process the frames of one connection. Raises Disconnected and the other errors that end it."""
        async with self._api.opened() as rest:
            resume = self.position if self.position.resumable else None
            if resume is None:
                async with self._logins.turn(rest, self._shard[0], self._report) as url:
                    socket = await self._log_in(rest, url)
            else:
                socket = self._socket = await self._connect(rest, resume.url or "", resume)
            try:
                while True:
                    await poll(socket)
            finally:
                await socket.leave()

    async def _log_in(self, rest: Rest, url: str) -> Socket:
        """Connect without a session, and process frames until one begins: the login has arrived by then."""
        socket = self._socket = await self._connect(rest, url, None)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOGIN_SECONDS):
                    while not socket.session_id:
                        await poll(socket)
        except BaseException:
            await socket.leave()
            raise
        return socket

    async def _connect(self, rest: Rest, url: str, resume: Position | None) -> Socket:
        token, url = self._options.token.get_secret_value(), self._options.gateway_url or url
        return await connect(rest, url, token, self._shard, resume, self.on_event, self._on_invalid)

    def _report(self, reason: str) -> None:
        self._reason = reason

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
            if not is_typing(event.data):
                event = msgspec.structs.replace(event, durable=durable)
        self._inflow.put(event)

    def _on_invalid(self, raw: str, reason: str) -> None:
        rejected = self._reader.rejected("frame", raw, reason)
        self._tasks.create_task(_quarantine(self._receive, rejected))

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
            await _quarantine(self._receive, self._reader.rejected("INTERACTION_CREATE", data, error))
        finally:
            if not durable.done():
                durable.set_result(None)


class Shards:
    """Gateway connections of a bot, one for each shard, and the intake of their events.

    Discord sends the events of a server always over the same shard, and those of direct messages over
    shard 0. ``cursors`` returns the bot's stored cursors.
    """

    def __init__(
        self,
        api: Api,
        options: Options,
        reader: EventReader,
        chats: Chats,
        receive: Receive,
        interact: Callable[[Any, Receive], Awaitable[None]],
        cursors: Callable[[], Awaitable[Iterable[Cursor]]],
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._api = api
        self._options = options
        self._reader = reader
        self._chats = chats
        self._receive = receive
        self._interact = interact
        self._cursors = cursors
        self._tasks = tasks
        self._logins: Logins | None = None
        self._connections: Sequence[Connection] = ()
        self._reason = "asking Discord for the number of shards"

    @property
    def problem(self) -> str:
        """Return the problem of each shard that has one; empty if all is well."""
        if len(self._connections) < 2:
            return self._connections[0].problem if self._connections else self._reason
        problems = [connection.problem for connection in self._connections]
        of = len(problems)
        return "; ".join(f"shard {shard} of {of}: {why}" for shard, why in enumerate(problems) if why)

    @property
    def number(self) -> int:
        """Return the number of shards; 0 before it is known."""
        return len(self._connections)

    async def run(self) -> None:
        """Keep all connections open until cancelled, with more of them when Discord requires that.

        Raises groups of FatalClosure, of Refused if Discord rejects the bot, and of the errors of the intake.
        """
        shards = 0
        while True:
            shards = await self._number(above=shards)
            state = await self._divide(shards)
            try:
                await self._run(state, shards)
            except* ShardingRequired:
                self._connections = ()
                self._reason = f"the bot is in too many servers for {shards} shards"
                log.warning("Discord requires more shards", shards=shards)

    async def _number(self, above: int) -> int:
        """Return the number of shards. Raises FatalClosure if that of the settings is not over ``above``."""
        if self._options.shards != "auto":
            if self._options.shards <= above:
                raise FatalClosure(f"the bot is in too many servers for shards = {above}; increase it")
            return self._options.shards
        failures = 0
        while True:
            try:
                async with self._api.opened() as rest:
                    shards = (await gateway_of(rest)).shards
                if shards > above:
                    return shards
                pause = _MORE_SHARDS_SECONDS
            except UNREACHABLE as error:
                self._reason = str(error) or type(error).__name__
                failures += 1
                pause = _BACKOFF.pause(failures)
            log.info("waiting for the number of shards", reason=self._reason)
            await asyncio.sleep(pause)

    async def _divide(self, shards: int) -> StoredState:
        """Return the stored state. Another number of shards invalidates the sessions of before."""
        account = str(self._api.me["id"])
        state = StoredState(await self._cursors(), account)
        if state.layout.shards != shards:
            log.info("the number of shards has changed", before=state.layout.shards, now=shards)
            await self._receive(cursor=state.cursor(state.divided(shards)))
            state = StoredState(await self._cursors(), account)
        return state

    async def _run(self, state: StoredState, shards: int) -> None:
        logins = self._logins = self._logins or Logins(self._receive, state)
        connections: list[Connection] = []
        async with asyncio.TaskGroup() as tasks:
            for index in range(shards):
                own = state.of(index)
                inflow = Inflow(self._receive, self._reader, self._chats, History(self._api), own)
                await inflow.store_start(self._api.discord_ms())
                connection = Connection(
                    self._api,
                    self._options,
                    (index, shards),
                    logins,
                    inflow,
                    self._reader,
                    own.position,
                    self._receive,
                    self._interact,
                    self._tasks,
                )
                connections.append(connection)
                tasks.create_task(inflow.run())
            self._connections = connections
            for connection in connections:
                tasks.create_task(connection.run())


_PING = 1
"""Type of an interaction with which Discord checks the endpoint; also that of its response."""
_WINDOW = 300
"""Largest accepted age of a signed request, in seconds."""
_TIME = re.compile(r"[0-9]{1,12}", re.ASCII)
_MAX_BODY = 1024 * 1024
_BODY_SECONDS = 10.0
_RESPONSE_SECONDS = 2.5
"""Seconds after which a request ends without a response: Discord waits for three seconds."""


class _Reply:
    """Response to an interaction over HTTP: its body, None if there is none, and whether it was sent."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.body: asyncio.Future[dict[str, Any] | None] = loop.create_future()
        self._sent: asyncio.Future[bool] = loop.create_future()

    async def answer(self, body: dict[str, Any]) -> bool:
        """Send the body as the response. Returns False if the request has ended."""
        if self.body.done():
            return False
        self.body.set_result(body)
        return await self._sent

    def end(self, *, sent: bool) -> None:
        """Note that the request has ended, if that is not known yet."""
        self.body.cancel()
        if not self._sent.done():
            self._sent.set_result(sent)


class Endpoint:
    """HTTP endpoint of the gateway's server to which Discord posts interactions.

    Each has a signature of Discord, at most five minutes old. A repeated interaction gets the response of the
    first one. Outside of ``opened`` the response is 503.
    """

    def __init__(
        self,
        path: str,
        public_key: str,
        clock: Callable[[], float] = time.time,
        body_seconds: float = _BODY_SECONDS,
    ) -> None:
        # cryptography is optional, and only few bots need it.
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        self._path = path
        self._key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        self._clock = clock
        self._body_seconds = body_seconds
        self._begin: Callable[[Any, _Reply], None] | None = None
        self._replies: Recent[_Reply] = Recent()
        self._reported = False

    def routes(self) -> Sequence[web.AbstractRouteDef]:
        """Return the endpoint's only route."""
        return [web.post(self._path, self._serve)]

    @contextmanager
    def opened(
        self,
        interact: Callable[[Any, Receive, Answer], Awaitable[None]],
        receive: Receive,
        reader: EventReader,
        tasks: asyncio.TaskGroup,
    ) -> Generator[None]:
        """Process interactions by tasks of ``tasks`` during the block."""

        async def process(data: Any, reply: _Reply) -> None:
            try:
                await interact(data, receive, reply.answer)
            except PARSE_ERRORS as error:
                await _quarantine(receive, reader.rejected("INTERACTION_CREATE", data, error))
            finally:
                if not reply.body.done():
                    reply.body.set_result(None)

        def begin(data: Any, reply: _Reply) -> None:
            tasks.create_task(process(data, reply))

        self._begin = begin
        try:
            yield
        finally:
            self._begin = None

    def is_signed(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Return whether a request has a valid signature that is at most five minutes old."""
        from cryptography.exceptions import InvalidSignature

        stamp = headers.get("X-Signature-Timestamp", "")
        if not _TIME.fullmatch(stamp):
            return False
        if abs(self._clock() - int(stamp)) > _WINDOW:
            # Once: everyone can send forged requests. Discord itself sends some with a wrong signature.
            if not self._reported:
                log.warning(
                    "refused a request that is more than five minutes off; check the clock of this machine"
                )
            self._reported = True
            return False
        try:
            self._key.verify(bytes.fromhex(headers.get("X-Signature-Ed25519", "")), stamp.encode() + body)
        except (InvalidSignature, ValueError):
            return False
        self._reported = False
        return True

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        """Respond to a request once its interaction is durable."""
        body = bytearray()
        try:
            # The sender is unverified until the body is read, so it must not keep the connection open.
            async with asyncio.timeout(self._body_seconds):
                async for chunk in request.content.iter_chunked(_MAX_BODY):
                    body += chunk
                    if len(body) > _MAX_BODY:
                        return web.Response(status=413, text="the body is too large")
        except TimeoutError:
            return web.Response(status=408, text="timeout while reading the body")
        if not self.is_signed(request.headers, bytes(body)):
            return web.Response(status=401, text="invalid request signature")
        try:
            data: Any = msgspec.json.decode(body)
            key, kind = read(data["id"], str), read(data["type"], int)
        except (msgspec.DecodeError, *PARSE_ERRORS):
            return web.Response(status=400, text="malformed body")
        if kind == _PING:
            return web.json_response({"type": _PING})
        return await self._respond(request, data, key)

    async def _respond(self, request: web.Request, data: Any, key: str) -> web.StreamResponse:
        reply = self._replies.get(key)
        if reply is None:
            if self._begin is None:
                return web.Response(status=503, text="not connected to Discord")
            reply = self._replies.put(key, _Reply())
            self._begin(data, reply)
        sent = False
        try:
            await asyncio.wait([reply.body], timeout=_RESPONSE_SECONDS)
            if not reply.body.done() or reply.body.cancelled():
                return web.Response(status=503, text="no response in time")
            body = reply.body.result()
            if body is None:
                return web.Response(status=400, text="unknown interaction")
            response = web.json_response(body)
            await response.prepare(request)
            await response.write_eof()
            sent = True
            return response
        finally:
            reply.end(sent=sent)
