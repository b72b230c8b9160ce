"""The routes of the state now: the snapshot, and the streams of its changes.

A stream resumes with the id of an event or snapshot; an old id, one of another process and none at all begin
with a snapshot. A reader that does not read is disconnected, and one whose session ended within a second.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Annotated

import structlog
from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType, field

from gateway.access.tokens import OWNER
from gateway.contract.errors import TooManyRequestsError
from gateway.server.now.observer import Frames, Observer, sse
from gateway.server.now.shapes import NowSnapshot
from gateway.server.responses import KEEP_ALIVE, EventStream, abort_connection, json_response
from gateway.server.routes import Call, Nothing, PlainCall, Route

log = structlog.get_logger("trunkline.now")

MOST_PER_SESSION, MOST_STREAMS, ADMINS_OWN = 4, 200, 10
"""Streams of one session, of all, and those of all that only admins may open."""
_MOST_FULL = 3
"""Sendings in a row that find more than 64 kB unsent, after which a reader is too slow."""
_MOST_EARLY = 15
"""Sendings during the stream's first bytes, after which a reader is too slow."""
_QUIET_SENDINGS = 15
"""Sendings without a change after which a comment keeps the connection open."""
Cursor = Annotated[str, Meta(pattern=r"^[0-9a-f]{1,32}-[0-9]{1,15}$")]


class Reader(Struct, frozen=True):
    """Client of a stream: the id of its login, and its rights at the time of the request.

    ``is_alive`` is asked once a second: whether the session still exists and has the same role. ``name`` is
    what the audit log gets.
    """

    session: str
    is_admin: bool = True
    sees_text: bool = True
    is_alive: Callable[[], bool] = lambda: True
    name: str = OWNER


ReaderOf = Callable[[web.Request], Reader]


def owner_as_reader(request: web.Request) -> Reader:
    """Return the reader of a request that has the gateway's token: the owner, an admin."""
    known = request.headers.get("Authorization", "") + request.headers.get("Cookie", "")
    return Reader(hashlib.sha256(known.encode()).hexdigest() if known else request.remote or "")


def _data_of(frames: Frames, reader: Reader) -> bytes | None:
    """Return what a reader gets of some changes; None if nothing was made for such readers."""
    return frames.whole if reader.sees_text else frames.reduced


class NowQuery(Struct, frozen=True):
    """The id of the snapshot or event after which the stream begins."""

    after: Cursor | UnsetType = UNSET


class NowHeaders(Struct, frozen=True):
    """The id of the last event that the reader has, which overrides the query. Anything else is an old id."""

    last: str | UnsetType = field(default=UNSET, name="Last-Event-ID")


class _Open:
    """An open stream."""

    def __init__(self, reader: Reader, stream: EventStream, request: web.Request) -> None:
        self.reader = reader
        self.stream = stream
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._request = request
        self._full = 0
        self._quiet = 0
        self._early: list[bytes] | None = []
        """Changes since the stream's first bytes were made, which are not sent yet; None once they are."""

    @property
    def is_open(self) -> bool:
        """Return whether the client is connected and its session exists."""
        transport = self._request.transport
        return transport is not None and not transport.is_closing() and self.reader.is_alive()

    def send(self, data: bytes) -> None:
        """Send bytes; none at all become a comment now and then."""
        if self._early is not None:
            self._early.append(data)
            if len(self._early) >= _MOST_EARLY:
                abort_connection(self._request)
                self.end("too slow")
            return
        self._quiet = 0 if data else self._quiet + 1
        if not data and self._quiet < _QUIET_SENDINGS and not self._full:
            return
        if not data:
            self._quiet = 0
        try:
            is_full = self.stream.put(data or KEEP_ALIVE)
        except ConnectionError:
            self.end("disconnected")
            return
        self._full = self._full + 1 if is_full else 0
        if self._full >= _MOST_FULL:
            abort_connection(self._request)
            self.end("too slow")

    async def begin(self, first: bytes) -> None:
        """Send the first bytes, and what changed since they were made."""
        self._early = []
        await self.stream.begin(first)
        early, self._early = b"".join(self._early), None
        if early:
            self.send(early)

    def end(self, reason: str) -> None:
        """End the stream."""
        if not self.ended.done():
            self.ended.set_result(reason)


class NowRoutes:
    """The routes. ``reader_of`` returns the reader of a request that the token or a session let pass."""

    def __init__(self, observer: Observer, reader_of: ReaderOf = owner_as_reader) -> None:
        self._observer = observer
        self._reader_of = reader_of
        self._open: set[_Open] = set()
        self._per_session = Counter[str]()
        observer.audience = self

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(
                "GET",
                "/api/now",
                "readNow",
                "Read the state now: what needs a person, figures, running turns, channels and queues.",
                self._read,
                sends=NowSnapshot,
                role="viewer",
            ),
            Route(
                "GET",
                "/api/now/events",
                "followNow",
                "Follow the changes of the state, as server-sent events; each has its id for resuming.",
                self._follow,
                media="text/event-stream",
                role="viewer",
            ),
        ]

    def __len__(self) -> int:
        return len(self._open)

    @property
    def has_reduced(self) -> bool:
        """Return whether a reader may not read messages."""
        return any(not each.reader.sees_text for each in self._open)

    def send(self, frames: Frames) -> None:
        """Send changes to all readers, and end the streams of sessions that ended."""
        self._end_closed()
        for each in tuple(self._open):
            data = _data_of(frames, each.reader)
            if data is not None:
                each.send(data)

    def close(self) -> None:
        """End all streams."""
        for each in tuple(self._open):
            each.end("the gateway stops")

    async def _read(self, call: PlainCall) -> web.Response:
        state = await self._observer.snapshot()
        return json_response(state if self._reader_of(call.request).sees_text else state.without_text())

    async def _follow(self, call: Call[Nothing, NowQuery, NowHeaders, None]) -> web.StreamResponse:
        reader = self._reader_of(call.request)
        last = call.headers.last if isinstance(call.headers.last, str) else call.query.after
        stream = EventStream(call.request)
        one = _Open(reader, stream, call.request)
        self._enter(one)
        try:
            await one.begin(await self._first(last if isinstance(last, str) else "", reader))
            reason = await one.ended
            log.debug("stream ended", reason=reason)
        except ConnectionError:
            log.debug("stream ended", reason="disconnected")
        finally:
            self._leave(one)
        return stream.response

    async def _first(self, last: str, reader: Reader) -> bytes:
        """Return what a stream begins with: the changes since its id, or a snapshot."""
        missed = self._observer.since(last)
        parts = None if missed is None else [_data_of(frames, reader) for frames in missed]
        if parts is not None and None not in parts:
            return b": resumed\n\n" + b"".join(filter(None, parts))
        state = await self._observer.snapshot()
        return sse("snapshot", state.id, state if reader.sees_text else state.without_text())

    def _end_closed(self) -> None:
        """Forget the streams of closed connections, which aiohttp does not report, and of ended sessions."""
        for each in tuple(self._open):
            if not each.is_open:
                each.end("the client or the session is gone")
                self._leave(each)

    def _enter(self, one: _Open) -> None:
        self._end_closed()
        reader = one.reader
        most = MOST_STREAMS if reader.is_admin else MOST_STREAMS - ADMINS_OWN
        if self._per_session[reader.session] >= MOST_PER_SESSION:
            raise TooManyRequestsError(f"a session may follow with {MOST_PER_SESSION} streams")
        if len(self._open) >= most:
            raise TooManyRequestsError("too many readers follow; try again later")
        self._per_session[reader.session] += 1
        self._open.add(one)

    def _leave(self, one: _Open) -> None:
        if one not in self._open:
            return
        self._open.discard(one)
        self._per_session[one.reader.session] -= 1
        if not self._per_session[one.reader.session]:
            del self._per_session[one.reader.session]
