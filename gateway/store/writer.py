"""The writer: one thread that commits whatever waits as one transaction.

A caller hands in a unit (some rows for some writes) and awaits its commit. While a commit runs, further
units gather; the thread then takes them all at once. So a durable write costs one fsync however many wait
for it.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Callable, Sequence

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import DataError, IntegrityError

from gateway.errors import StoreError
from gateway.store.engine import Connect
from gateway.store.writes import Row, Write

log = structlog.get_logger("trunkline.store")

Op = tuple[Write, Row]
Inserted = frozenset[str]
_ENOUGH = 512
"""Units after which a transaction waits for no more."""

REFUSED = (IntegrityError, DataError, TypeError, ValueError, OverflowError)
"""What is wrong with some rows, and not with the database as a whole."""


class Unit:
    """Rows that are committed together, and the future of their commit."""

    __slots__ = ("done", "error", "inserted", "ops")

    def __init__(self, ops: Sequence[Op], done: asyncio.Future[Inserted]) -> None:
        self.ops = ops
        self.done = done
        self.inserted: Inserted = frozenset()
        self.error: Exception | None = None


class Writer:
    """Owns the one connection that writes.

    ``on_fatal`` is called (in the thread) when the database fails as a whole: a full disk, a lost server.
    Nothing is written after that.
    """

    def __init__(self, connect: Connect, on_fatal: Callable[[BaseException], None]) -> None:
        self._connect = connect
        self._on_fatal = on_fatal
        self._queue: queue.SimpleQueue[list[Unit] | None] = queue.SimpleQueue()
        self._gathered: list[Unit] = []
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self.commits = 0
        self.units = 0
        self._thread.start()

    async def write(self, *ops: Op) -> Inserted:
        """Commit the rows, all or none. Returns which rows of ``insert-new`` writes went in.

        Raises StoreError if the database refuses these rows, or has failed as a whole.
        """
        return await self.submit(ops)

    def submit(self, ops: Sequence[Op]) -> asyncio.Future[Inserted]:
        """Hand the rows in now, in order; the future is done when they are durable."""
        unit = Unit(ops, self._loop.create_future())
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(unit)
        return unit.done

    def _hand_over(self) -> None:
        """Wake the thread once for all that one round of the event loop handed in."""
        units, self._gathered = self._gathered, []
        if units:
            self._queue.put(units)

    def close(self) -> None:
        """Write what waits and end the thread."""
        self._hand_over()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        batch: list[Unit] | None = []
        try:
            with self._connect() as connection:
                while (batch := self._take()) is not None:
                    self._commit(connection, batch)
                    self._tell(batch)
        except Exception as error:  # noqa: BLE001 - whatever ends the writer ends what relies on it
            if self._loop.is_closed():
                log.debug("the event loop closed before the writer did")
                return
            self._on_fatal(error)
            self._refuse(batch)

    def _tell(self, batch: list[Unit]) -> None:
        self._loop.call_soon_threadsafe(_settle, batch)

    def _refuse(self, batch: list[Unit] | None) -> None:
        """Fail what was being written and whatever comes after it: nobody may wait for ever."""
        while batch is not None and not self._loop.is_closed():
            for unit in batch:
                unit.error = StoreError("the database failed; nothing is written any more")
            self._tell(batch)
            batch = self._take()

    def _take(self) -> list[Unit] | None:
        """What waits, at least one unit; None when the writer is to end."""
        units = self._queue.get()
        if units is None:
            return None
        batch = list(units)
        while len(batch) < _ENOUGH:
            try:
                units = self._queue.get_nowait()
            except queue.Empty:
                break
            if units is None:
                self._queue.put(None)
                break
            batch += units
        return batch

    def _commit(self, connection: Connection, batch: list[Unit]) -> None:
        try:
            inserted = _write(connection, batch)
        except REFUSED as error:
            connection.rollback()
            self._commit_apart(connection, batch, error)
            return
        self.commits += 1
        self.units += len(batch)
        for unit in batch:
            unit.inserted = inserted

    def _commit_apart(self, connection: Connection, batch: list[Unit], error: Exception) -> None:
        """One unit of the batch was refused: commit each alone, so that only the bad one fails."""
        if len(batch) == 1:
            log.error("the database refused a write", error=str(error).split("\n")[0])
            batch[0].error = StoreError("the database refused the rows")
            return
        for unit in batch:
            self._commit(connection, [unit])


def _write(connection: Connection, batch: Sequence[Unit]) -> Inserted:
    rows: dict[Write, list[Row]] = {}
    for write, row in itertools.chain.from_iterable(unit.ops for unit in batch):
        rows.setdefault(write, []).append(row)
    inserted: list[str] = []
    for write in sorted(rows, key=lambda write: write.rank):
        inserted.extend(write.run(connection, rows[write]))
    connection.commit()
    return frozenset(inserted)


def _settle(batch: Sequence[Unit]) -> None:
    for unit in batch:
        if unit.done.done():
            continue
        if unit.error is not None:
            unit.done.set_exception(unit.error)
        else:
            unit.done.set_result(unit.inserted)
