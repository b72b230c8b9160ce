"""The writer: one thread that commits all pending units in one transaction.

A caller submits a unit (rows for some writes) and awaits its commit. While a commit runs, further units queue
up; the thread then takes all of them at once. So a durable write costs one fsync, however many units wait.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from gateway.contract.errors import StoreError
from gateway.store.drivers import BEGIN, COMMIT, PING, Driver, driver_of
from gateway.store.engine import Connect
from gateway.store.writes import Op, Row, Statement, Write

log = structlog.get_logger("trunkline.store")

Inserted = frozenset[str]
_MAX_BATCH = 512
"""Units per transaction; at this size a batch waits for no further units."""

SLOW_SECONDS = 5.0
"""Age of the oldest uncommitted write, in seconds, at which the gateway reports itself as not ready."""
STUCK_SECONDS = 30.0
"""Age, in seconds, at which the gateway exits so that it can be restarted."""
_CHECK_SECONDS = 1.0
_SUSPENDED_SECONDS = 5.0
"""Seconds without a check that only a suspended process or a blocked event loop explains."""

_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux alone has this clock; others do not count the time of a suspended machine."""

_ROW_ERRORS = (TypeError, ValueError, OverflowError)
"""Errors of Python caused by individual rows and not by the database as a whole."""


def boot_time() -> float:
    """Return seconds since the machine started, which also pass while it is suspended."""
    return time.clock_gettime(_BOOT_CLOCK)


class Fence(NamedTuple):
    """Proof of ownership, which lets only one process of several write.

    ``statement`` locks the row that names the owner, and fails if that is another process. Messages that an
    earlier owner may be sending have arrived, or never will, from ``settled_at`` on (``boot_time``).
    """

    statement: Statement
    settled_at: float


class Unit:
    """Rows that are committed together, and the future of their commit."""

    __slots__ = ("done", "error", "inserted", "ops")

    def __init__(self, ops: Sequence[Op], done: asyncio.Future[Inserted]) -> None:
        self.ops = ops
        self.done = done
        self.inserted: Inserted = frozenset()
        self.error: Exception | None = None


class Writer:
    """Owner of the only connection that writes.

    ``on_fatal`` is called (in the thread) when the database fails as a whole: a full disk, a lost server.
    Nothing is written after that. An idle connection is pinged every ``ping_seconds``, so that its loss is
    noticed without a write. With a ``fence``, transactions and pings fail once another process has taken
    over. ``clock`` returns seconds.
    """

    def __init__(
        self,
        connect: Connect,
        on_fatal: Callable[[BaseException], None],
        *,
        ping_seconds: float | None = None,
        fence: Fence | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._ping_seconds = ping_seconds
        self._begin = [BEGIN] if fence is None else [BEGIN, fence.statement]
        self._ping_statements = [PING] if fence is None else [*self._begin, COMMIT]
        # A node may have been frozen since it took over, and be followed by another one.
        self.confirmed_at = float("-inf")
        """Time by ``boot_time`` at which the last successful transaction or ping was sent."""
        self._started: deque[float] = deque()
        """Start time of each group of units that is not committed, oldest first."""
        self._batch_groups = 0
        """Number of groups in the batch that the thread is writing."""
        self._ping_started: float | None = None
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
        """Commit the rows, all or none. Returns the ids of the rows that ``insert-new`` writes inserted.

        Raises StoreError if the database refuses these rows, or has failed as a whole.
        """
        return await self.submit(ops)

    def submit(self, ops: Sequence[Op]) -> asyncio.Future[Inserted]:
        """Queue the rows at once, in call order; the future is done when they are durable."""
        unit = Unit(ops, self._loop.create_future())
        # Wake the thread once per round of the event loop: units submitted together share one commit.
        if not self._gathered:
            self._started.append(self.clock())
            self._loop.call_soon(self._hand_over)
        self._gathered.append(unit)
        return unit.done

    @property
    def oldest_started(self) -> float | None:
        """Start time of the oldest unfinished write or ping, by the clock; None if there is none."""
        begun = [self._ping_started, next(iter(tuple(self._started)), None)]
        return min((at for at in begun if at is not None), default=None)

    def _hand_over(self) -> None:
        """Wake the thread once for everything that one round of the event loop submitted."""
        units, self._gathered = self._gathered, []
        if units:
            self._queue.put(units)

    def close(self) -> None:
        """Commit the pending units and end the thread."""
        self._hand_over()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        batch: list[Unit] | None = []
        try:
            with self._connect() as connection:
                driver = driver_of(connection)
                while (batch := self._next_batch()) is not None:
                    if batch:
                        self._commit(driver, batch)
                        self._notify(batch)
                    else:
                        self._ping(driver)
        except Exception as error:  # noqa: BLE001 - any failure of the writer ends the gateway
            if self._loop.is_closed():
                log.debug("the event loop closed before the writer")
                return
            self._on_fatal(error)
            self._fail_pending(batch)

    def _ping(self, driver: Driver) -> None:
        self._ping_started = self.clock()
        # The lock is bound to this connection, so with its loss another gateway may start.
        sent = boot_time()
        driver.run(self._ping_statements)
        self.confirmed_at = sent
        self._ping_started = None

    def _notify(self, batch: list[Unit]) -> None:
        for _ in range(self._batch_groups):
            self._started.popleft()
        self._batch_groups = 0
        self._loop.call_soon_threadsafe(_resolve, batch)

    def _fail_pending(self, batch: list[Unit] | None) -> None:
        """Fail the current batch and every later one: a caller must not wait forever."""
        while batch is not None and not self._loop.is_closed():
            for unit in batch:
                unit.error = StoreError(
                    "the database failed; the gateway stops writing and exits, see the log for the cause"
                )
            self._notify(batch)
            batch = self._next_batch()

    def _next_batch(self) -> list[Unit] | None:
        """Return the pending units; an empty list when a ping is due, None when the writer is closed."""
        try:
            units = self._queue.get(timeout=self._ping_seconds)
        except queue.Empty:
            return []
        if units is None:
            return None
        batch = list(units)
        self._batch_groups = 1
        while len(batch) < _MAX_BATCH:
            try:
                units = self._queue.get_nowait()
            except queue.Empty:
                break
            if units is None:
                # The end of the queue: put it back, and commit first what was submitted before it.
                self._queue.put(None)
                break
            batch += units
            self._batch_groups += 1
        return batch

    def _commit(self, driver: Driver, batch: list[Unit]) -> None:
        sent = boot_time()
        try:
            inserted = frozenset(driver.run([*self._begin, *_statements(driver, batch), COMMIT]))
        except (*_ROW_ERRORS, *driver.row_errors) as error:
            driver.rollback()
            self._commit_separately(driver, batch, error)
            return
        self.confirmed_at = sent
        self.commits += 1
        self.units += len(batch)
        for unit in batch:
            unit.inserted = inserted

    def _commit_separately(self, driver: Driver, batch: list[Unit], error: Exception) -> None:
        """Commit each unit of a refused batch alone, so that only the bad one fails."""
        if len(batch) == 1:
            log.error("the database refused a write; its rows are dropped", error=str(error).split("\n")[0])
            batch[0].error = StoreError("the database refused the rows; see the log for the reason")
            return
        for unit in batch:
            self._commit(driver, [unit])


def _statements(driver: Driver, batch: Sequence[Unit]) -> list[Statement]:
    """Return the statements that write a batch."""
    rows: dict[Write, list[Row]] = {}
    for write, row in itertools.chain.from_iterable(unit.ops for unit in batch):
        rows.setdefault(write, []).append(row)
    statements: list[Statement] = []
    # Ranks order statements across units, so that parents exist before rows that refer to them.
    for write in sorted(rows, key=lambda write: write.rank):
        statements += write.statements(driver.dialect, rows[write])
    return statements


def _resolve(batch: Sequence[Unit]) -> None:
    for unit in batch:
        # The caller may have been cancelled while it waited; its rows are committed all the same.
        if unit.done.done():
            continue
        if unit.error is not None:
            unit.done.set_exception(unit.error)
        else:
            unit.done.set_result(unit.inserted)


class WriteMonitor:
    """Monitor that judges the database by the age of its oldest uncommitted write.

    It notices a database that neither answers nor fails. ``on_fatal`` is called when a write is stuck. Time
    during which the process itself did not run is not counted.
    """

    def __init__(self, writer: Writer, on_fatal: Callable[[BaseException], None]) -> None:
        self._writer = writer
        self._on_fatal = on_fatal
        self._checked_at = self._resumed_at = writer.clock()

    @property
    def age(self) -> float:
        """Seconds since the oldest uncommitted write started; 0 if there is none."""
        oldest = self._writer.oldest_started
        return 0.0 if oldest is None else self._writer.clock() - max(oldest, self._resumed_at)

    def health(self) -> tuple[bool, str]:
        """Return whether writes are committed in time, and if not, the age of the oldest."""
        age = self.age
        return age <= SLOW_SECONDS, f"a write has been waiting for {age:.0f} s" if age > SLOW_SECONDS else ""

    async def run(self) -> None:
        """Check once a second until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(_CHECK_SECONDS)

    def check(self) -> None:
        """Report a stuck write as fatal."""
        now = self._writer.clock()
        if now - self._checked_at > _SUSPENDED_SECONDS:
            # After a suspend every pending write looks old, although the database had no time to commit it.
            self._resumed_at = now
        self._checked_at = now
        if (age := self.age) > STUCK_SECONDS:
            self._on_fatal(StoreError(f"the database has not committed a write for {age:.0f} s"))
