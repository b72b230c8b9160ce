"""Events of a session as server-sent events. Each event has the same JSON as on a websocket.

The id of an event is ``seq:characters``: its sequence number, and how much of the current text part was sent.
A reader that reconnects with it as ``Last-Event-ID`` resumes there, even within a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import structlog
from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.contract.deltas import Complete, TextDelta
from gateway.contract.errors import BackpressureError, NotFoundError, TrunklineError
from gateway.host import Host
from gateway.server.responses import KEEP_ALIVE, EventStream, abort_connection
from gateway.server.routes import Call, Route
from gateway.server.sessions import SessionPath
from gateway.session.feed import Feed
from gateway.session.frames import Event, TurnStart

log = structlog.get_logger("trunkline.events")

_HEARTBEAT = 15.0
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
