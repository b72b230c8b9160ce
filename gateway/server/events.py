"""A session's events as server-sent events: the same JSON as a websocket gets, one event each.

The event's id is ``seq:characters``: its number, and how much of the running text part was sent by then. A
reader that comes back with it as ``Last-Event-ID`` continues there, in the middle of a text, too.
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
from gateway.server.routes import Call, Route
from gateway.server.sessions import SessionPath
from gateway.server.streaming import STILL_HERE, Streamed, cut
from gateway.session.feed import Feed
from gateway.session.frames import Event, TurnStart

log = structlog.get_logger("trunkline.events")

_HEARTBEAT = 15.0
_Seq = Annotated[int, Meta(ge=0, le=2**53, description="The last event seen; 0 for all")]


class After(Struct, frozen=True):
    """Where to begin."""

    after: _Seq = 0


class LastEvent(Struct, frozen=True):
    """The id of the last event that a reader has; it counts more than the query.

    A bare number is a ``seq``: a running answer is then replayed from its beginning.
    """

    seen: Annotated[str, Meta(pattern=r"^\d{1,15}(:\d{1,15})?$")] | UnsetType = msgspec.field(
        default=UNSET, name="Last-Event-ID"
    )


class StreamEnd(TrunklineError):
    """The gateway stops."""


class EventStreams:
    """The streams that are open. Slow readers are dropped; what they follow goes on without them."""

    def __init__(self, host: Host, heartbeat: float = _HEARTBEAT) -> None:
        self._host = host
        self._heartbeat = heartbeat
        self._open: set[Feed] = set()

    def routes(self) -> list[Route]:
        """The stream, at its two addresses."""
        return [
            Route(
                method="GET",
                path=f"{root}/sessions/{{id}}/events",
                name=name,
                summary="What happens in a session, as server-sent events.",
                call=self._stream,
                takes=SessionPath,
                query=After,
                headers=LastEvent,
                media="text/event-stream",
                errors=(NotFoundError,),
            )
            for root, name in (("", "followSession"), ("/api", "followSessionUnderApi"))
        ]

    def close(self) -> None:
        """End all streams."""
        for feed in tuple(self._open):
            feed.close(StreamEnd("the gateway stops; come back"))

    async def _stream(self, call: Call[SessionPath, After, LastEvent, None]) -> web.StreamResponse:
        session, request = call.path.id, call.request
        after, characters = call.query.after, None
        if isinstance(call.headers.seen, str):
            seq, _, count = call.headers.seen.partition(":")
            after, characters = int(seq), int(count) if count else None
        feed = self._host.feed(lambda: cut(request))
        await self._host.follow(session, feed, after, characters)
        self._open.add(feed)
        self._host.counters.clients["sse"] += 1
        stream = Streamed(request)
        try:
            await stream.begin(b": connected\n\n")
            await self._pump(stream, feed, Written(characters or 0))
        except (ConnectionError, BackpressureError, StreamEnd) as error:
            log.debug("a stream ended", session=session, reason=type(error).__name__)
        finally:
            self._open.discard(feed)
            self._host.unfollow(session, feed)
            self._host.counters.clients["sse"] -= 1
        return stream.response

    async def _pump(self, stream: Streamed, feed: Feed, written: Written) -> None:
        while True:
            before = stream.written
            await feed.pour(lambda events: stream.put(written.more(events)), self._heartbeat)
            if stream.written == before:
                stream.put(STILL_HERE)
            await stream.drain()


class Written:
    """The events of one stream as they are sent. ``characters`` is how much of a text part the reader has."""

    def __init__(self, characters: int = 0) -> None:
        self._characters = characters

    def more(self, events: Sequence[Event]) -> bytes:
        """Return events as bytes. The JSON holds no line breaks."""
        pieces: list[bytes] = []
        for event in events:
            frame = event.frame
            if isinstance(frame, TextDelta):
                self._characters = frame.accumulated_length
            elif isinstance(frame, TurnStart | Complete) or hasattr(frame, "part_index"):
                self._characters = 0
            pieces.append(b"id: %d:%d\ndata: %b\n\n" % (event.at, self._characters, event.json))
        return b"".join(pieces)
