"""Loading sessions: those that are asked for together are read together.

Most sessions that are asked for are new, and hundreds may come at once: after a start, or with the first
words of many. One query then tells for all of them whether there is anything to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from sqlalchemy import Connection

from gateway.messages import Message
from gateway.session.log import SessionRow, read_messages, read_some_sessions
from gateway.store import Store

Stored = tuple[SessionRow, list[tuple[int, Message]]]
"""A session and the newest messages of its log, each with its number."""

_TOGETHER = 200


class Loader:
    """Reads sessions by id, one query at a time. ``window`` is how many messages of each are read."""

    def __init__(self, store: Store, window: int) -> None:
        self._store = store
        self._window = window
        self._wanted: dict[str, asyncio.Future[Stored | None]] = {}
        self._reading: dict[str, asyncio.Future[Stored | None]] = {}
        self._started = False

    async def load(self, session_id: str) -> Stored | None:
        """A session as it is stored, or None. Raises what ``Store.read`` raises."""
        waiting = self._reading.get(session_id) or self._wanted.get(session_id)
        if waiting is None:
            loop = asyncio.get_running_loop()
            waiting = self._wanted[session_id] = loop.create_future()
            if not self._started:
                self._started = True
                loop.call_soon(self._read)
        return await asyncio.shield(waiting)

    def _read(self) -> None:
        for session_id in list(self._wanted)[:_TOGETHER]:
            self._reading[session_id] = self._wanted.pop(session_id)
        wanted = tuple(self._reading)
        self._store.reading(lambda c: self._find(c, wanted)).add_done_callback(self._tell)

    def _find(self, connection: Connection, wanted: Collection[str]) -> dict[str, Stored]:
        rows = read_some_sessions(connection, wanted)
        return {row.id: (row, read_messages(connection, row.id, last=self._window)) for row in rows}

    def _tell(self, done: asyncio.Future[dict[str, Stored]]) -> None:
        answered, self._reading = self._reading, {}
        self._started = bool(self._wanted)
        if self._started:
            self._read()
        failure = asyncio.CancelledError() if done.cancelled() else done.exception()
        for session_id, waiting in answered.items():
            if failure is None:
                waiting.set_result(done.result().get(session_id))
            elif isinstance(failure, Exception):
                waiting.set_exception(failure)
                waiting.exception()
            else:
                waiting.cancel()
