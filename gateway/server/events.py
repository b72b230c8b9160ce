"""A session's events as server-sent events: the same JSON as a websocket gets, one event each.

The event's id is its ``seq``; a reader that comes back with ``Last-Event-ID`` gets what it missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
import structlog
from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from gateway.errors import BackpressureError, NotFoundError, TrunklineError
from gateway.feed import Feed
from gateway.frames import Event
from gateway.host import Host
from gateway.server.routes import Call, Route
from gateway.server.sessions import SessionPath
from gateway.server.streaming import STILL_HERE, Streamed, cut

log = structlog.get_logger("trunkline.events")

_HEARTBEAT = 15.0
_Seq = Annotated[int, Meta(ge=0, le=2**53, description="The last event seen; 0 for all")]


class After(Struct, frozen=True):
    """Where to begin."""

    after: _Seq = 0


class LastEvent(Struct, frozen=True):
    """Where a reader that comes back begins; it counts more than the query."""

    seen: _Seq | UnsetType = msgspec.field(default=UNSET, name="Last-Event-ID")


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
        seen = call.headers.seen
        feed = self._host.feed(lambda: cut(request))
        await self._host.follow(session, feed, seen if isinstance(seen, int) else call.query.after)
        self._open.add(feed)
        self._host.figures.clients["sse"] += 1
        stream = Streamed(request)
        try:
            await stream.begin(b": connected\n\n")
            await self._pump(stream, feed)
        except (ConnectionError, BackpressureError, StreamEnd) as error:
            log.debug("a stream ended", session=session, reason=type(error).__name__)
        finally:
            self._open.discard(feed)
            self._host.unfollow(session, feed)
            self._host.figures.clients["sse"] -= 1
        return stream.response

    async def _pump(self, stream: Streamed, feed: Feed) -> None:
        while True:
            before = stream.written
            await feed.pour(lambda events: stream.put(written(events)), self._heartbeat)
            if stream.written == before:
                stream.put(STILL_HERE)
            await stream.drain()


def written(events: Sequence[Event]) -> bytes:
    """Events as they are sent. The JSON holds no line breaks."""
    return b"".join(b"id: %d\ndata: %b\n\n" % (event.seq, event.json) for event in events)
