"""The platform's gateway: bots log in on a websocket, and are told what happens."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final, cast

from aiohttp import web

from channels.discord.fake import events
from channels.discord.fake.access import Access
from channels.discord.fake.account import Account
from channels.discord.fake.checking import shapes
from channels.discord.fake.compression import packer
from channels.discord.fake.connection import (
    HEARTBEAT,
    IDENTIFY,
    INVALID_SESSION,
    RECONNECT,
    RESUME,
    Closing,
    Connection,
)
from channels.discord.fake.events import Event
from channels.discord.fake.figures import Figures
from channels.discord.fake.guild_views import GuildViews
from channels.discord.fake.session import Session
from channels.discord.fake.views import Views
from channels.discord.fake.world import World
from gateway.testing.faults import FaultScript
from gateway.testing.transcript import Transcript

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
        world: World,
        views: Views,
        guilds: GuildViews,
        *,
        account: Account,
        figures: Figures,
        faults: FaultScript,
        transcript: Transcript,
    ) -> None:
        self.url = ""
        self.sessions: dict[str, Session] = {}
        self.connections: dict[Connection, Session | None] = {}
        self._world = world
        self._views = views
        self._guilds = guilds
        self._account = account
        self._figures = figures
        self._faults = faults
        self._transcript = transcript
        self._access = Access(world)
        self._held: list[Event] | None = None

    def tell(self, event: Event) -> None:
        """Tell all sessions of an event that may know of it."""
        if self._held is not None:
            self._held.append(event)
            return
        for session in self.sessions.values():
            if self._may_know(session, event):
                for _ in range(2 if self._faults.doubles() else 1):
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
        self._transcript.record("CONNECT", dict(request.query))
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
        self._transcript.record("CLOSE", {}, status=closing.code, problem=closing.problem)

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
        findings = shapes().payload(op, data)
        shown: dict[str, Any] = {"d": data}
        if isinstance(data, dict):
            shown = cast("dict[str, Any]", data)
            shown = shown | {"token": "…"} if "token" in shown else shown
        self._transcript.record(_NAMES[op], shown, problem=findings.problem)
        self._world.changes.bump()
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
        if intents & ~events.KNOWN:
            raise Closing(4013, f"unknown intents {intents & ~events.KNOWN:#x}")
        denied = [name for name, bit in events.PRIVILEGED.items() if intents & bit]
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
            if intents & events.GUILDS and session.concerns(guild.id):
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
