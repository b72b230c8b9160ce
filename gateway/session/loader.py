"""The loader of sessions: concurrent requests are answered by one read.

Hundreds of sessions may be requested at once: after a start, or when many users write their first message.
One query then finds those that are stored, and one for each table loads all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from sqlalchemy import Connection

from gateway.contract.messages import Message
from gateway.session.compaction import MOST_MESSAGES
from gateway.session.log import SessionRow, read_injected, read_logs, read_sessions_by_id
from gateway.store import Store

StoredSession = tuple[SessionRow, list[tuple[int, Message]], list[Message]]
"""A session, the newest messages of its log with their numbers, and the messages for its next turn."""

_MAX_BATCH = 200


class SessionLoader:
    """Loader of sessions by id, one read at a time.

    Each comes with its newest ``window`` messages and with those that its model gets.
    """

    def __init__(self, store: Store, window: int) -> None:
        self._store = store
        self._window = window
        self._queued: dict[str, asyncio.Future[StoredSession | None]] = {}
        self._reading: dict[str, asyncio.Future[StoredSession | None]] = {}
        self._scheduled = False

    async def load(self, session_id: str) -> StoredSession | None:
        """Return a stored session, or None. Raises the errors of ``Store.read``."""
        waiting = self._reading.get(session_id) or self._queued.get(session_id)
        if waiting is None:
            loop = asyncio.get_running_loop()
            waiting = self._queued[session_id] = loop.create_future()
            if not self._scheduled:
                self._scheduled = True
                # In the next round, so that every request of this round joins the query.
                loop.call_soon(self._read)
        # Others may wait for the same session; a cancelled request must not cancel theirs.
        return await asyncio.shield(waiting)

    def _read(self) -> None:
        for session_id in list(self._queued)[:_MAX_BATCH]:
            self._reading[session_id] = self._queued.pop(session_id)
        wanted = tuple(self._reading)
        self._store.start_read(lambda c: self._find(c, wanted)).add_done_callback(self._resolve)

    def _find(self, connection: Connection, wanted: Collection[str]) -> dict[str, StoredSession]:
        rows = read_sessions_by_id(connection, wanted)
        ids = [row.id for row in rows]
        most = max(2 * MOST_MESSAGES, self._window)
        logs, injected = read_logs(connection, ids, self._window, most), read_injected(connection, ids)
        return {row.id: (row, logs.get(row.id, []), injected.get(row.id, [])) for row in rows}

    def _resolve(self, done: asyncio.Future[dict[str, StoredSession]]) -> None:
        answered, self._reading = self._reading, {}
        self._scheduled = bool(self._queued)
        if self._scheduled:
            self._read()
        failure = asyncio.CancelledError() if done.cancelled() else done.exception()
        for session_id, waiting in answered.items():
            if failure is None:
                waiting.set_result(done.result().get(session_id))
            elif isinstance(failure, Exception):
                waiting.set_exception(failure)
                # Mark it as retrieved: the request may have been cancelled, and asyncio would log it.
                waiting.exception()
            else:
                waiting.cancel()
