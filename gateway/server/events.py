"""Server-sent events: those of a session, and those of the gateway's event bus for its operator.

Each event of a session has the same JSON as on a websocket.
Its id is ``seq:characters``: its sequence number, and how much of the current text part was sent.
A reader that reconnects with it as ``Last-Event-ID`` resumes there, even within a text.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec
import structlog
from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.contract.deltas import Complete, TextDelta
from gateway.contract.errors import BackpressureError, InvalidRequestError, NotFoundError, TrunklineError
from gateway.contract.events import BusEvent
from gateway.contract.messages import now_ms
from gateway.events.bus import EventBus
from gateway.events.types import CommandExecuted, Disposed
from gateway.host import Host
from gateway.server.responses import KEEP_ALIVE, EventStream, abort_connection
from gateway.server.routes import Call, Nothing, Route
from gateway.server.sessions import SessionPath
from gateway.session.feed import Feed
from gateway.session.frames import Event, TurnStart
from gateway.settings.secrets import without_passwords

log = structlog.get_logger("trunkline.events")

_HEARTBEAT = 15.0
_WAITING = 1_000
"""Events of the gateway that may wait for one reader."""
_Seq = Annotated[int, Meta(ge=0, le=2**53, description="The last event that the reader has; 0 for all")]


class EventQuery(Struct, frozen=True):
    """The position to start from."""

    after: _Seq = 0


class EventHeaders(Struct, frozen=True):
    """The id of the last event that the reader has. It overrides the query.

    A number without characters is a ``seq``: a running answer is then replayed from its beginning.
    """

    last: Annotated[str, Meta(pattern=r"^\d{1,15}(:\d{1,15})?$")] | UnsetType = msgspec.field(
        default=UNSET, name="Last-Event-ID"
    )


class ServerStoppingError(TrunklineError):
    """The gateway stops."""


class SessionEvents:
    """The open event streams. A slow reader is disconnected; the answer that it reads continues."""

    def __init__(self, host: Host, heartbeat: float = _HEARTBEAT) -> None:
        self._host = host
        self._heartbeat = heartbeat
        self._open: set[Feed] = set()

    def routes(self) -> list[Route]:
        """Return the route of the stream, under its two paths."""
        return [
            Route(
                "GET",
                f"{root}/sessions/{{id}}/events",
                name,
                "Follow the events of a session, as server-sent events.",
                self._stream,
                media="text/event-stream",
                errors=(NotFoundError,),
            )
            for root, name in (("", "followSession"), ("/api", "followSessionUnderApi"))
        ]

    def close(self) -> None:
        """End all streams."""
        for feed in tuple(self._open):
            feed.close(ServerStoppingError("the gateway stops; reconnect later"))

    async def _stream(self, call: Call[SessionPath, EventQuery, EventHeaders, None]) -> web.StreamResponse:
        session, request = call.path.id, call.request
        after, characters = call.query.after, None
        if isinstance(call.headers.last, str):
            seq, _, count = call.headers.last.partition(":")
            after, characters = int(seq), int(count) if count else None
        feed = self._host.feed(lambda: abort_connection(request))
        await self._host.follow(session, feed, after, characters)
        self._open.add(feed)
        self._host.counters.clients["sse"] += 1
        stream = EventStream(request)
        try:
            await stream.begin(b": connected\n\n")
            await self._pump(stream, feed, EventEncoder(characters or 0))
        except (ConnectionError, BackpressureError, ServerStoppingError) as error:
            log.debug("stream ended", session=session, reason=type(error).__name__)
        finally:
            self._open.discard(feed)
            self._host.unfollow(session, feed)
            self._host.counters.clients["sse"] -= 1
        return stream.response

    async def _pump(self, stream: EventStream, feed: Feed, encoder: EventEncoder) -> None:
        while True:
            before = stream.writes
            await feed.pour(lambda events: stream.put(encoder.encode(events)), self._heartbeat)
            if stream.writes == before:
                stream.put(KEEP_ALIVE)
            await stream.drain()


class EventEncoder:
    """Encoder of one stream. ``characters`` is how much of the current text part the reader has."""

    def __init__(self, characters: int = 0) -> None:
        self._characters = characters

    def encode(self, events: Sequence[Event]) -> bytes:
        """Return events as server-sent events. Their JSON contains no line breaks."""
        pieces: list[bytes] = []
        for event in events:
            frame = event.frame
            if isinstance(frame, TextDelta):
                self._characters = frame.accumulated_length
            elif isinstance(frame, TurnStart | Complete) or hasattr(frame, "part_index"):
                self._characters = 0
            pieces.append(b"id: %d:%d\ndata: %b\n\n" % (event.at, self._characters, event.json))
        return b"".join(pieces)


class BusQuery(Struct, frozen=True):
    """The events to follow."""

    type: (
        Annotated[
            str,
            Meta(
                pattern=r"^[a-z0-9_.]{1,60}(,[a-z0-9_.]{1,60}){0,49}$",
                description="Names of types, separated by commas; all that are not detailed by default",
            ),
        ]
        | UnsetType
    ) = UNSET


class EndedCommand(Struct, frozen=True, forbid_unknown_fields=True):
    """A command of the CLI that ended: its name with its groups, its arguments, and whether it succeeded."""

    command: Annotated[str, Meta(min_length=1, max_length=100, pattern=r"^[a-z][a-z -]*$")]
    args: Annotated[str, Meta(max_length=16_000)]
    ok: bool


class GatewayEvents:
    """The open streams of the event bus. A slow reader loses the oldest events and receives their number.

    ``redact`` masks the gateway's secrets in a text.
    """

    def __init__(self, events: EventBus, redact: Callable[[str], str]) -> None:
        self._events = events
        self._redact = redact
        self._open: set[_BusReader] = set()

    def routes(self) -> list[Route]:
        """Return the routes of the stream, and of the event that another process reports."""
        return [
            Route(
                "GET",
                "/api/events",
                "followEvents",
                "Follow the events of the gateway, as server-sent events.",
                self._stream,
                media="text/event-stream",
            ),
            Route(
                "POST",
                "/api/commands",
                "reportCommand",
                "Report a command of the CLI that ended, for the event command.executed.",
                self._report,
            ),
        ]

    def close(self) -> None:
        """End all streams, after a last event."""
        for reader in tuple(self._open):
            reader.end(Disposed())

    async def _report(self, call: Call[Nothing, Nothing, Nothing, EndedCommand]) -> None:
        if self._events.wants(CommandExecuted):
            ended = call.body
            args = self._redact(without_passwords(ended.args))
            self._events.emit(CommandExecuted(ended.command, args, ended.ok))

    async def _stream(self, call: Call[Nothing, BusQuery, Nothing, None]) -> web.StreamResponse:
        kinds = _named_types(call.query.type) if isinstance(call.query.type, str) else None
        reader = _BusReader()
        if kinds is None:
            removes = [self._events.subscribe_all(reader.offer)]
        else:
            removes = [self._events.subscribe(kind, reader.offer) for kind in kinds]
        removes.append(self._events.once(Disposed, reader.end))
        self._open.add(reader)
        stream = EventStream(call.request)
        try:
            await stream.begin(_as_sent({"name": "server.connected"}))
            while not reader.is_done:
                stream.put(await reader.take(_HEARTBEAT) or KEEP_ALIVE)
                await stream.drain()
        except ConnectionError:
            log.debug("stream of events ended")
        finally:
            self._open.discard(reader)
            for remove in removes:
                remove()
        return stream.response


class _BusReader:
    """The waiting events of one reader."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque(maxlen=_WAITING)
        self._lost = 0
        self._arrived = asyncio.Event()
        self._ended = False

    @property
    def is_done(self) -> bool:
        return self._ended and not self._waiting

    def offer(self, event: BusEvent) -> None:
        if self._ended or isinstance(event, Disposed):  # ``end`` sends the last one
            return
        self._lost += len(self._waiting) == _WAITING
        # Encoded now: its time is the time of the event. Plugins may put anything into theirs.
        self._waiting.append(_as_sent(msgspec.to_builtins(event, enc_hook=repr)))
        self._arrived.set()

    def end(self, event: Disposed) -> None:
        if not self._ended:
            self._waiting.append(_as_sent({"name": event.event_name()}))
            self._ended = True
            self._arrived.set()

    async def take(self, seconds: float) -> bytes:
        """Return what waits, encoded; empty if nothing came for some seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return b""
        self._arrived.clear()
        taken, lost = b"".join(self._waiting), self._lost
        self._waiting.clear()
        self._lost = 0
        return (_as_sent({"name": "server.dropped", "count": lost}) if lost else b"") + taken


def _as_sent(fields: dict[str, object]) -> bytes:
    name = str(fields["name"])
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode({"at": now_ms(), **fields}))


def _named_types(names: str) -> list[type[BusEvent]]:
    """Return the types of events with these names. Raises InvalidRequestError with the known ones."""
    known = {kind.event_name(): kind for kind in _types_below(BusEvent)}
    wanted = list(dict.fromkeys(names.split(",")))
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InvalidRequestError(f"no event {unknown[0]!r}; the events are {', '.join(sorted(known))}")
    return [known[name] for name in wanted]


def _types_below(kind: type[BusEvent]) -> Iterator[type[BusEvent]]:
    for each in kind.__subclasses__():
        yield each
        yield from _types_below(each)
