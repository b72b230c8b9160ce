"""The fake's gateway: websocket connections, sessions of bots, their events, and the required intents."""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

import msgspec
from aiohttp import WSMsgType, web
from msgspec import Struct

from channels.discord.fake.api import Account
from channels.discord.fake.calls import Access, check_payload
from channels.discord.fake.limits import Figures
from channels.discord.fake.payloads import GuildViews, Views, on_shard
from channels.discord.fake.state import World
from gateway.testing.fake_platform import Clock, FakeServer, Window


class Packer(Protocol):
    """Encoder of the payloads of one connection."""

    def __call__(self, payload: bytes) -> str | bytes: ...


def packer(name: str) -> Packer:
    """Return the encoder for a connection's ``compress`` parameter. Raises LookupError for an unknown one."""
    return {"": Plain, "zlib-stream": ZlibStream, "zstd-stream": ZstdStream}[name]()


class Plain:
    """Encoder to JSON text. If ``compress`` is set, payloads over 1 KiB are compressed one by one."""

    def __init__(self) -> None:
        self.compress = False

    def __call__(self, payload: bytes) -> str | bytes:
        if self.compress and len(payload) > 1024:
            return zlib.compress(payload)
        return payload.decode()


class ZlibStream:
    """Encoder to one zlib stream, flushed after every payload."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj()

    def __call__(self, payload: bytes) -> bytes:
        return self._stream.compress(payload) + self._stream.flush(zlib.Z_SYNC_FLUSH)


class ZstdStream:
    """Encoder to one endless zstd frame, flushed after every payload."""

    def __init__(self) -> None:
        # Only bots that have zstandard ask for this.
        import zstandard

        self._flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK
        self._stream = zstandard.ZstdCompressor().compressobj()

    def __call__(self, payload: bytes) -> bytes:
        return self._stream.compress(payload) + self._stream.flush(self._flush)


CLOSED: Final[Mapping[int, str]] = {
    4000: "Unknown error.",
    4001: "Unknown opcode.",
    4002: "Error while decoding payload.",
    4003: "Not authenticated.",
    4004: "Authentication failed.",
    4005: "Already authenticated.",
    4007: "Invalid seq.",
    4008: "Rate limited.",
    4009: "Session timed out.",
    4010: "Invalid shard.",
    4011: "Sharding required.",
    4012: "Invalid API version.",
    4013: "Invalid intent(s).",
    4014: "Disallowed intent(s).",
}
"""Close codes and their reasons."""

HEARTBEAT, IDENTIFY, RESUME, RECONNECT, INVALID_SESSION, HELLO, ACK = 1, 2, 6, 7, 9, 10, 11
_MOST_WAITING: Final = 20_000
_TOLERANCE: Final = 1.5


class Closing(Exception):
    """End of a connection by the gateway, with a close code."""

    def __init__(self, code: int, problem: str | None = None) -> None:
        super().__init__(CLOSED[code])
        self.code = code
        self.problem = problem


class Connection:
    """Websocket of a bot. ``mute`` stops sending while the connection stays open, as a zombie does.

    ``closed`` is the gateway's close code; None if the gateway did not close it.
    """

    def __init__(self, socket: web.WebSocketResponse, pack: Packer, clock: Clock, figures: Figures) -> None:
        self.mute = False
        self.closed: int | None = None
        self._socket = socket
        self._pack = pack
        self._figures = figures
        self._waiting: deque[object] = deque()
        self._news = asyncio.Event()
        self._received = Window(clock, figures.gateway_events, figures.gateway_window)
        self._transport: asyncio.Transport | None = None

    def send(self, payload: object) -> None:
        """Queue a payload: an object, text to send as it is, or a Closing. Abort if the queue is full."""
        self._waiting.append(payload)
        if len(self._waiting) > _MOST_WAITING:  # the bot does not read
            self.abort()
        self._news.set()

    def send_op(self, op: int, data: object = None) -> None:
        """Queue a payload that is not an event."""
        self.send({"t": None, "s": None, "op": op, "d": data})

    def compress(self) -> None:
        """Compress large payloads from now on; a stream is compressed anyway."""
        if isinstance(self._pack, Plain):
            self._pack.compress = True

    def attach(self, transport: asyncio.Transport | None) -> None:
        """Set the transport of the socket, for ``abort``."""
        self._transport = transport

    def abort(self) -> None:
        """Cut the connection without a close frame."""
        if self._transport is not None:
            self._transport.abort()

    async def serve(self, receive: Callable[[int, Any], None], closes: Callable[[Closing], None]) -> None:
        """Read and write until one side closes. ``closes`` is called first if the gateway does."""
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(self._write())
            try:
                await self._read(receive)
            except Closing as closing:
                closes(closing)
                self.closed = closing.code
                if not self.mute:
                    await self._socket.close(code=closing.code, message=CLOSED[closing.code].encode())
            finally:
                writer.cancel()

    async def _read(self, receive: Callable[[int, Any], None]) -> None:
        loop = asyncio.get_running_loop()
        self.send_op(HELLO, {"heartbeat_interval": int(self._figures.heartbeat * 1000), "_trace": ["fake"]})
        patience = self._figures.heartbeat * _TOLERANCE
        try:
            async with asyncio.timeout(patience) as deadline:
                async for frame in self._socket:
                    op, data = self._decoded(frame.type, frame.data)
                    if op == HEARTBEAT:
                        deadline.reschedule(loop.time() + patience)
                        self.send_op(ACK)
                    receive(op, data)
        except TimeoutError:
            raise Closing(4009, "no heartbeat came in time") from None

    def _decoded(self, kind: WSMsgType, data: Any) -> tuple[int, Any]:
        raw: bytes = data.encode() if isinstance(data, str) else bytes(data)
        if kind not in (WSMsgType.TEXT, WSMsgType.BINARY) or len(raw) > self._figures.gateway_bytes:
            raise Closing(4002, f"a payload of {len(raw)} bytes")
        self._received.count()
        if self._received.used > self._received.most:
            raise Closing(4008, "more than 120 payloads in a minute")
        try:
            payload: Any = msgspec.json.decode(raw)
            return int(payload["op"]), payload.get("d")
        except (msgspec.DecodeError, UnicodeDecodeError, TypeError, KeyError, ValueError) as error:
            raise Closing(4002, "a payload that cannot be read") from error

    async def _write(self) -> None:
        while not self._socket.closed:
            await self._news.wait()
            self._news.clear()
            while self._waiting and not self.mute:
                payload = self._waiting.popleft()
                if isinstance(payload, Closing):
                    self.closed = payload.code
                    await self._socket.close(code=payload.code, message=CLOSED[payload.code].encode())
                    return
                raw = payload.encode() if isinstance(payload, str) else msgspec.json.encode(payload)
                packed = self._pack(raw)
                if isinstance(packed, str):
                    await self._socket.send_str(packed)
                else:
                    await self._socket.send_bytes(packed)


GUILDS, MEMBERS, PRESENCES, CONTENT = 1 << 0, 1 << 1, 1 << 8, 1 << 15
_GUILD_MESSAGES, _GUILD_REACTIONS, _GUILD_TYPING = 1 << 9, 1 << 10, 1 << 11
_DM_MESSAGES, _DM_REACTIONS, _DM_TYPING = 1 << 12, 1 << 13, 1 << 14

PRIVILEGED: Final = {"GUILD_MEMBERS": MEMBERS, "GUILD_PRESENCES": PRESENCES, "MESSAGE_CONTENT": CONTENT}
"""Privileged intents, which an application must be granted."""
KNOWN: Final = 0b11_0011_0001_1111_1111_1111_1111
"""All known intents."""

_NEEDED: Final = (
    ("MESSAGE_REACTION", _GUILD_REACTIONS, _DM_REACTIONS),
    ("MESSAGE", _GUILD_MESSAGES, _DM_MESSAGES),
    ("TYPING", _GUILD_TYPING, _DM_TYPING),
    ("GUILD_MEMBER_", MEMBERS, MEMBERS),
    ("GUILD", GUILDS, GUILDS),
    ("CHANNEL", GUILDS, 0),
    ("THREAD", GUILDS, GUILDS),
)


class Event(Struct, frozen=True, kw_only=True):
    """Event. ``redacted`` is its data for bots without the intent to read message content.

    Only bots that can see ``channel`` receive the event; ``guild`` decides which intent and shard it needs.
    """

    name: str
    data: dict[str, Any]
    redacted: dict[str, Any] | None = None
    guild: int | None = None
    channel: int | None = None

    def intent(self) -> int:
        """Return the intent that the event needs; 0 if it needs none."""
        for prefix, guild, direct in _NEEDED:
            if self.name.startswith(prefix):
                return guild if self.guild is not None else direct
        return 0

    def data_for(self, intents: int) -> dict[str, Any]:
        """Return the data for a bot with these intents."""
        return self.data if self.redacted is None or intents & CONTENT else self.redacted


Publish = Callable[[Event], None]


class SentEvent(Struct, frozen=True):
    """Sent event. ``seq`` is its number in the session."""

    seq: int
    name: str
    data: dict[str, Any]

    def payload(self) -> dict[str, Any]:
        """Return the gateway payload of the event."""
        return {"t": self.name, "s": self.seq, "op": 0, "d": self.data}


class Session:
    """Session of a bot, with all its events since the login.

    ``left`` is the time at which its connection closed; None while it is open.
    """

    def __init__(self, key: str, intents: int, shard: tuple[int, int]) -> None:
        self.id = key
        self.intents = intents
        self.shard = shard
        self.connection: Connection | None = None
        self.left: float | None = None
        self.expired = False
        self.events: list[SentEvent] = []

    @property
    def seq(self) -> int:
        """Return the number of the last event."""
        return len(self.events)

    def concerns(self, guild: int | None) -> bool:
        """Return whether the session's shard receives the events of a guild, or of direct messages (None)."""
        return on_shard(guild, self.shard)

    def add_event(self, name: str, data: dict[str, Any]) -> None:
        """Add an event, and send it if the session has a connection."""
        event = SentEvent(self.seq + 1, name, data)
        self.events.append(event)
        if self.connection is not None:
            self.connection.send(event.payload())

    def replay(self, connection: Connection, seq: int) -> None:
        """Continue on another connection: send the events after ``seq`` again, then RESUMED."""
        self.connection, self.left = connection, None
        for event in self.events[seq:]:
            connection.send(event.payload())
        self.add_event("RESUMED", {"_trace": ["fake"]})


_NAMES: Final = {
    1: "HEARTBEAT",
    2: "IDENTIFY",
    3: "PRESENCE_UPDATE",
    4: "VOICE_STATE_UPDATE",
    6: "RESUME",
    8: "REQUEST_GUILD_MEMBERS",
    31: "REQUEST_SOUNDBOARD_SOUNDS",
    43: "REQUEST_CHANNEL_INFO",
}
_REQUEST_MEMBERS: Final = 8
_OVER: Final = (1000, 1001)


class Gateway:
    """Gateway of the fake, with all sessions and connections. ``url`` is the URL for resuming a session."""

    def __init__(
        self,
        fake: FakeServer,
        world: World,
        views: Views,
        guilds: GuildViews,
        account: Account,
        figures: Figures,
    ) -> None:
        self.url = ""
        self.sessions: dict[str, Session] = {}
        self.connections: dict[Connection, Session | None] = {}
        self._world = world
        self._views = views
        self._guilds = guilds
        self._account = account
        self._figures = figures
        self._fake = fake
        self._access = Access(world)
        self._held: list[Event] | None = None
        self.post_interaction: Callable[[dict[str, Any]], None] | None = None
        """Posts an interaction to the application's endpoint; None if it has none."""

    def publish(self, event: Event) -> None:
        """Send an event to all sessions that may receive it."""
        if self._held is not None:
            self._held.append(event)
            return
        if event.name == "INTERACTION_CREATE" and self.post_interaction is not None:
            self.post_interaction(event.data)
            return
        for session in self.sessions.values():
            if self._may_know(session, event):
                for _ in range(2 if self._fake.faults.is_repeated() else 1):
                    session.add_event(event.name, event.data_for(session.intents))

    def hold(self) -> None:
        """Hold back all events from now on."""
        self._held = []

    def release(self, *, reverse: bool) -> None:
        """Send the events that were held back, in order or reversed."""
        held, self._held = self._held or [], None
        for event in reversed(held) if reverse else held:
            self.publish(event)

    def invalidate(self, *, resumable: bool) -> None:
        """Declare every session invalid: still resumable, or ended."""
        for connection, session in self.connections.items():
            connection.send_op(INVALID_SESSION, resumable)
            if session is not None and not resumable:
                session.expired = True
                session.connection = None

    def ask_reconnect(self) -> None:
        """Ask every bot to reconnect."""
        for connection in self.connections:
            connection.send_op(RECONNECT)

    def close_all(self, code: int, shard: int | None = None) -> None:
        """Close every connection with a code, or only that of a shard."""
        for connection in self.connections_of(shard):
            connection.send(Closing(code))

    def connections_of(self, shard: int | None) -> list[Connection]:
        """Return all connections, or only those of a shard."""
        return [
            connection
            for connection, session in self.connections.items()
            if shard is None or (session is not None and session.shard[0] == shard)
        ]

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Serve one connection from its handshake to its end."""
        socket = web.WebSocketResponse(compress=False, max_msg_size=0, autoclose=True, timeout=1)
        await socket.prepare(request)
        try:
            pack = packer(request.query.get("compress", ""))
        except LookupError:
            pack = packer("")
        connection = Connection(socket, pack, self._world.clock, self._figures)
        connection.attach(request.transport)
        self.connections[connection] = None
        self._fake.record("CONNECT", dict(request.query))
        try:
            if request.query.get("v") not in ("9", "10") or request.query.get("encoding", "json") != "json":
                await socket.close(code=4012, message=b"Invalid API version.")
            else:
                await connection.serve(
                    lambda op, data: self._receive(connection, op, data), self._note_closing
                )
        except* ConnectionError:
            pass  # the connection was cut
        finally:
            self._leave(connection, connection.closed or socket.close_code)
        return socket

    def _note_closing(self, closing: Closing) -> None:
        self._fake.record("CLOSE", {}, closing.problem, status=closing.code)

    def _leave(self, connection: Connection, code: int | None) -> None:
        session = self.connections.pop(connection, None)
        if session is not None and session.connection is connection:
            session.connection = None
            session.left = self._world.clock.now()
            if code in _OVER:
                session.expired = True
        self._world.changes.bump()

    def _receive(self, connection: Connection, op: int, data: Any) -> None:
        session = self.connections[connection]
        if op not in _NAMES:
            raise Closing(4001, f"there is no opcode {op}")
        findings = check_payload(op, data)
        shown: dict[str, Any] = {"d": data}
        if isinstance(data, dict):
            shown = cast("dict[str, Any]", data)
            shown = shown | {"token": "…"} if "token" in shown else shown
        self._fake.record(_NAMES[op], shown, findings.problem)
        if findings.wrong:
            raise Closing(4002 if session is None else 4001)
        if op == IDENTIFY:
            self._identify(connection, cast("dict[str, Any]", data))
        elif op == RESUME:
            self._resume(connection, cast("dict[str, Any]", data))
        elif op != HEARTBEAT and session is None:
            raise Closing(4003, f"{_NAMES[op]} before IDENTIFY")
        elif op == _REQUEST_MEMBERS and session is not None:
            self._send_members(session, cast("dict[str, Any]", data))

    def _identify(self, connection: Connection, data: Mapping[str, Any]) -> None:
        if self.connections[connection] is not None:
            raise Closing(4005, "a second IDENTIFY")
        self._authenticate(data["token"])
        intents, shard = int(data["intents"]), _shard(data.get("shard", [0, 1]))
        if intents & ~KNOWN:
            raise Closing(4013, f"unknown intents {intents & ~KNOWN:#x}")
        denied = [name for name, bit in PRIVILEGED.items() if intents & bit]
        denied = [name for name in denied if name not in self._account.privileged]
        if denied:
            raise Closing(4014, f"{', '.join(denied)} is not switched on for the application")
        early = not self._account.identify(shard[0])
        if self._account.exhausted:
            self._account.reset()
            self.close_all(4004)
            return
        if early:
            connection.send_op(INVALID_SESSION, False)
            return
        if shard[1] < self._account.shards:
            raise Closing(4011)
        if data.get("compress"):
            connection.compress()
        session = Session(secrets.token_hex(16), intents, shard)
        self.sessions[session.id] = session
        self.connections[connection] = session
        session.connection = connection
        session.add_event("READY", self._guilds.ready(session.id, shard, self.url))
        for guild in self._world.guilds.values():
            if intents & GUILDS and session.concerns(guild.id):
                session.add_event("GUILD_CREATE", self._guilds.created(guild))

    def _resume(self, connection: Connection, data: Mapping[str, Any]) -> None:
        self._authenticate(data["token"])
        session = self.sessions.get(data["session_id"])
        if session is None or self._is_over(session):
            connection.send_op(INVALID_SESSION, False)
            return
        seq = int(data["seq"])
        if seq > session.seq:
            session.expired = True
            raise Closing(4007, f"RESUME behind event {seq} of {session.seq}")
        for other, reading in self.connections.items():
            if reading is session:
                self.connections[other] = None
                other.abort()
        self.connections[connection] = session
        session.replay(connection, seq)

    def _authenticate(self, token: str) -> None:
        if token.removeprefix("Bot ") != self._account.token:
            raise Closing(4004)

    def _is_over(self, session: Session) -> bool:
        left = self._world.clock.now() if session.left is None else session.left
        return session.expired or self._world.clock.now() > left + self._figures.resumable

    def _may_know(self, session: Session, event: Event) -> bool:
        if session.expired or not session.concerns(event.guild):
            return False
        if (needed := event.intent()) and not session.intents & needed:
            return False
        channel = self._world.channels.get(event.channel or 0)
        return channel is None or self._access.sees(channel)

    def _send_members(self, session: Session, data: Mapping[str, Any]) -> None:
        guild = self._world.guilds.get(int(data["guild_id"]))
        if guild is None:
            return
        users = [self._world.users[user] for user in guild.members]
        if "user_ids" in data:
            wanted = {int(key) for key in _listed(data["user_ids"])}
            users = [user for user in users if user.id in wanted]
        else:
            users = [user for user in users if user.name.startswith(data["query"])]
            users = users[: int(data["limit"]) or None]
        chunk: dict[str, Any] = {
            "guild_id": str(guild.id),
            "members": [self._views.member(guild, user) for user in users],
            "chunk_index": 0,
            "chunk_count": 1,
        }
        session.add_event("GUILD_MEMBERS_CHUNK", chunk | {k: data[k] for k in ("nonce",) if k in data})


def _shard(given: list[Any]) -> tuple[int, int]:
    shard, shards = int(given[0]), int(given[1])
    if not 0 <= shard < shards:
        raise Closing(4010, f"shard {shard} of {shards}")
    return shard, shards


def _listed(given: Any) -> list[Any]:
    return cast("list[Any]", given) if isinstance(given, list) else [given]
