"""The gateway: sessions of bots, the events that they receive, and the intents that these need."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

from aiohttp import web
from msgspec import Struct

from channels.discord.fake.account import Account
from channels.discord.fake.calls import Access
from channels.discord.fake.connection import (
    HEARTBEAT,
    IDENTIFY,
    INVALID_SESSION,
    RECONNECT,
    RESUME,
    Closing,
    Connection,
    packer,
)
from channels.discord.fake.limits import Figures
from channels.discord.fake.payloads import GuildViews, Views, on_shard
from channels.discord.fake.state import World
from channels.discord.fake.validation import check_payload
from gateway.testing.fake_platform import FakeServer

GUILDS, MEMBERS, PRESENCES, CONTENT = 1 << 0, 1 << 1, 1 << 8, 1 << 15
_GUILD_MESSAGES, _GUILD_REACTIONS, _GUILD_TYPING = 1 << 9, 1 << 10, 1 << 11
_DM_MESSAGES, _DM_REACTIONS, _DM_TYPING = 1 << 12, 1 << 13, 1 << 14

PRIVILEGED: Final = {"GUILD_MEMBERS": MEMBERS, "GUILD_PRESENCES": PRESENCES, "MESSAGE_CONTENT": CONTENT}
"""Intents that an application has to be allowed."""
KNOWN: Final = 0b11_0011_0001_1111_1111_1111_1111
"""All intents there are."""

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
    """An event. ``redacted`` is its data for bots without the intent to read message content.

    ``guild`` and ``channel`` are where; an event of a room is not told to a bot that cannot see the room.
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

    def told(self, intents: int) -> dict[str, Any]:
        """Return the data for a bot with these intents."""
        return self.data if self.redacted is None or intents & CONTENT else self.redacted


Tell = Callable[[Event], None]


class Told(Struct, frozen=True):
    """An event that was sent. ``seq`` is its number within the session."""

    seq: int
    name: str
    data: dict[str, Any]

    def payload(self) -> dict[str, Any]:
        """Return the payload of the gateway."""
        return {"t": self.name, "s": self.seq, "op": 0, "d": self.data}


class Reader(Protocol):
    """A connection that a session is read on."""

    def send(self, payload: object) -> None: ...


class Session:
    """Keeps all events since a login. ``left`` is when its connection closed; None while it is open."""

    def __init__(self, key: str, intents: int, shard: tuple[int, int]) -> None:
        self.id = key
        self.intents = intents
        self.shard = shard
        self.reader: Reader | None = None
        self.left: float | None = None
        self.expired = False
        self.told: list[Told] = []

    @property
    def seq(self) -> int:
        """The number of the last event."""
        return len(self.told)

    def concerns(self, guild: int | None) -> bool:
        """Return whether the session receives the events of a guild, or (None) of direct messages."""
        return on_shard(guild, self.shard)

    def tell(self, name: str, data: dict[str, Any]) -> None:
        """One more event."""
        told = Told(self.seq + 1, name, data)
        self.told.append(told)
        if self.reader is not None:
            self.reader.send(told.payload())

    def replay(self, reader: Reader, seq: int) -> None:
        """Read on another connection, from behind a number."""
        self.reader, self.left = reader, None
        for told in self.told[seq:]:
            reader.send(told.payload())
        self.tell("RESUMED", {"_trace": ["fake"]})


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
    """Keeps sessions and connections. ``url`` is where a session is resumed."""

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

    def tell(self, event: Event) -> None:
        """Tell all sessions of an event that may know of it."""
        if self._held is not None:
            self._held.append(event)
            return
        for session in self.sessions.values():
            if self._may_know(session, event):
                for _ in range(2 if self._fake.faults.doubles() else 1):
                    session.tell(event.name, event.told(session.intents))

    def hold(self) -> None:
        """Keep back what happens from now on."""
        self._held = []

    def release(self, *, reverse: bool) -> None:
        """Tell what was held back, in order or the other way round."""
        held, self._held = self._held or [], None
        for event in reversed(held) if reverse else held:
            self.tell(event)

    def invalidate(self, *, resumable: bool) -> None:
        """Tell every bot that its session is not valid: to be resumed, or gone."""
        for connection, session in self.connections.items():
            connection.send_op(INVALID_SESSION, resumable)
            if session is not None and not resumable:
                session.expired = True
                session.reader = None

    def ask_reconnect(self) -> None:
        """Ask every bot to come back on another connection."""
        for connection in self.connections:
            connection.send_op(RECONNECT)

    def close_all(self, code: int) -> None:
        """Close every connection with a code."""
        for connection in self.connections:
            connection.send(Closing(code))

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """One connection, from its handshake to its end."""
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
            pass  # it was cut
        finally:
            self._leave(connection, connection.closed or socket.close_code)
        return socket

    def _note_closing(self, closing: Closing) -> None:
        self._fake.record("CLOSE", {}, closing.problem, status=closing.code)

    def _leave(self, connection: Connection, code: int | None) -> None:
        session = self.connections.pop(connection, None)
        if session is not None and session.reader is connection:
            session.reader = None
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
        early = not self._account.identify()
        if self._account.exhausted:
            self._account.reset()
            self.close_all(4004)
            return
        if early:
            connection.send_op(INVALID_SESSION, False)
            return
        if data.get("compress"):
            connection.compress()
        session = Session(secrets.token_hex(16), intents, shard)
        self.sessions[session.id] = session
        self.connections[connection] = session
        session.reader = connection
        session.tell("READY", self._guilds.ready(session.id, shard, self.url))
        for guild in self._world.guilds.values():
            if intents & GUILDS and session.concerns(guild.id):
                session.tell("GUILD_CREATE", self._guilds.created(guild))

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
        session.tell("GUILD_MEMBERS_CHUNK", chunk | {k: data[k] for k in ("nonce",) if k in data})


def _shard(given: list[Any]) -> tuple[int, int]:
    shard, shards = int(given[0]), int(given[1])
    if not 0 <= shard < shards:
        raise Closing(4010, f"shard {shard} of {shards}")
    return shard, shards


def _listed(given: Any) -> list[Any]:
    return cast("list[Any]", given) if isinstance(given, list) else [given]
