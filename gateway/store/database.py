"""An open database: locked, migrated, with one writer and a pool of readers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple, TypeVar

import structlog
from sqlalchemy import Connection, Engine, make_url
from sqlalchemy.exc import DatabaseError, DataError

from gateway.api.owned_files import exists
from gateway.contract.errors import InvalidRequestError, StoreError, StoreUnavailableError
from gateway.store import engine as engines
from gateway.store import migrate
from gateway.store.engine import Durability, Locking
from gateway.store.writer import Fence, WriteMonitor, Writer, boot_time

log = structlog.get_logger("trunkline.store")

T = TypeVar("T")

_RETRY_SECONDS = 1.0
_REPORT_SECONDS = 5.0
_OWNED_SECONDS = 2.0
"""Age in seconds of the last fenced transaction up to which a platform may be called."""
_WATCH_SECONDS = 1.0


class Store:
    """An open database. ``write`` commits durably; ``read`` runs a query while the writer works.

    With a ``fence`` the process is a node of a cluster: it shares the lock, and writes while it is the owner.
    """

    def __init__(
        self, base: LockedDatabase, on_fatal: Callable[[BaseException], None], fence: Fence | None = None
    ) -> None:
        self.engine = base.engine
        self._fence = fence
        server = base.engine.dialect.name == "postgresql"
        ping_seconds = engines.PING_SECONDS if server else None
        self.writer = Writer(base.connect, on_fatal, ping_seconds=ping_seconds, fence=fence)
        self.monitor = WriteMonitor(self.writer, on_fatal)
        self.write = self.writer.write
        self.submit = self.writer.submit
        self._release = base.resources.pop_all().close
        self._on_fatal = on_fatal
        # A query of a reader is a separate transaction, and costs one round trip instead of three.
        self._readable = (
            base.engine.execution_options(isolation_level="AUTOCOMMIT") if server else base.engine
        )
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="store-reader")
        self.longest_wait = 60.0
        """Seconds that a reader waits for an answer of PostgreSQL. The server limits statements to 30 s."""

    @classmethod
    def open(cls, url: str, durability: Durability, on_fatal: Callable[[BaseException], None]) -> Store:
        """Open, lock and migrate the database. It blocks, and needs a running event loop.

        Raises StoreError, StoreLockedError or WeakDurabilityError.
        """
        return cls(_open_migrated(url, durability), on_fatal)

    @classmethod
    async def open_when_available(
        cls,
        url: str,
        durability: Durability,
        on_fatal: Callable[[BaseException], None],
        seconds: float,
        stop: asyncio.Event,
        fence: Fence | None = None,
    ) -> Store:
        """Open the database like ``open``, in a thread; wait up to ``seconds`` while it is unavailable.

        The reason is logged at once and then every 5 s. Raises StoreUnavailableError when the time is up or
        ``stop`` is set, and any other StoreError at once.
        """
        begun = time.monotonic()
        reported = -_REPORT_SECONDS
        while True:
            try:
                locking = "exclusive" if fence is None else "shared"
                return cls(await asyncio.to_thread(_open_migrated, url, durability, locking), on_fatal, fence)
            except StoreUnavailableError as error:
                waited = time.monotonic() - begun
                if waited >= seconds or stop.is_set():
                    raise
                if waited - reported >= _REPORT_SECONDS:
                    reported = waited
                    left = round(seconds - waited)
                    log.warning("waiting for the database", reason=str(error), seconds_left=left)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(_RETRY_SECONDS, seconds - waited)):
                    await stop.wait()

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query on a reader's connection, in a thread.

        Raises InvalidRequestError if a value of the query cannot be stored in a database, and StoreError if
        the query takes too long or the database fails.
        """
        return await self.start_read(query)

    def start_read(self, query: Callable[[Connection], T]) -> asyncio.Future[T]:
        """Start the query of ``read`` and return its future."""
        return asyncio.get_running_loop().run_in_executor(self._readers, self._query, query)

    async def confirm_owner(self) -> None:
        """Return once this process is known to own the database, as it must to call a platform.

        A node that was frozen, or that lost the database, learns here that another one has taken over: the
        write fails, which ends the process.
        """
        while self._fence is not None and boot_time() - self.writer.confirmed_at > _OWNED_SECONDS:
            await self.write()

    async def watch_owner(self) -> None:
        """Notice within seconds that another node took over, also while nothing is written; end then."""
        with suppress(StoreError):  # the writer reports it
            while self._fence is not None:
                await self.confirm_owner()
                await asyncio.sleep(_WATCH_SECONDS)

    async def wait_for_earlier_owner(self) -> None:
        """Wait until no call of an earlier owner that was not stopped in order can reach a platform."""
        if self._fence is not None and (seconds := self._fence.settled_at - boot_time()) > 0:
            await asyncio.sleep(seconds)

    def _query(self, query: Callable[[Connection], T], *, repeated: bool = False) -> T:
        try:
            with self._readable.connect() as connection:
                engines.limit_waits(connection, self.longest_wait)
                return query(connection)
        except (DataError, UnicodeEncodeError):
            raise InvalidRequestError(
                "the request contains characters that the database cannot store"
            ) from None
        except DatabaseError as error:
            if engines.is_canceled(error):
                raise StoreError("the query exceeded the statement timeout") from None
            if error.connection_invalidated and not repeated:
                # The server or a firewall may end an idle connection of the pool.
                return self._query(query, repeated=True)
            # A gateway whose database fails must not look alive; the process ends with status 70.
            self._on_fatal(error)
            raise StoreError("the database failed; see the log for the cause") from error

    async def close(self) -> None:
        """Commit the pending writes, then close the database and release its lock."""
        await asyncio.to_thread(self.writer.close)
        self._readers.shutdown(cancel_futures=True)
        self.engine.dispose()
        self._release()


class LockedDatabase(NamedTuple):
    """A database that this process has locked. Closing ``resources`` releases it.

    ``created`` is set if its SQLite file did not exist before.
    """

    engine: Engine
    connect: engines.Connect
    resources: ExitStack
    created: bool


@contextmanager
def open_locked(
    url: str, durability: Durability = "full", locking: Locking = "exclusive"
) -> Generator[LockedDatabase]:
    """Open and lock a database without migrating it. A missing SQLite file is created with the newest schema.

    Raises StoreError, StoreLockedError or WeakDurabilityError.
    """
    with ExitStack() as resources:
        engine = engines.open_engine(url, durability)
        resources.callback(engine.dispose)
        try:
            lock = engines.lock(engine, locking)
            resources.callback(lock.release)
            created = _create_missing_file(url, engine)
            if (lost := migrate.find_damage(engine)) is not None:
                raise StoreError(lost)
            engines.check_writable(engine)
            yield LockedDatabase(engine, lock.connect, resources, created)
        except DatabaseError as error:
            raise engines.open_error(engine, error) from None


def _create_missing_file(url: str, engine: Engine) -> bool:
    """Create a missing SQLite file under a temporary name; rename it once its schema is on disk.

    A crash in between leaves no file, so an empty file always means lost contents.
    """
    path = migrate.database_file(engine)
    if path is None or exists(path):
        return False
    # SQLite discards a write-ahead log whose database is new, and with it the last committed messages.
    log_file = path.with_name(f"{path.name}-wal")
    if exists(log_file) and log_file.stat().st_size:
        raise StoreError(
            f"{path} is missing, but {log_file.name}, its write-ahead log, holds data; put the file back, "
            "restore a backup with `trunkline restore FILE`, or remove the log as well to start empty"
        )
    fresh = path.with_name(f"{path.name}.new")
    for leftover in path.parent.glob(f"{fresh.name}*"):
        leftover.unlink()
    maker = engines.open_engine(make_url(url).set(database=str(fresh)).render_as_string())
    try:
        with maker.begin() as connection:
            migrate.create_schema(connection)
    finally:
        maker.dispose()  # closing the last connection moves the write-ahead log into the file
    fresh.chmod(0o600)
    # The rename must not reach the disk before the contents, or a power cut leaves an empty database.
    engines.sync(fresh)
    fresh.rename(path)
    engines.sync(path.parent)
    return True


def _open_migrated(url: str, durability: Durability, locking: Locking = "exclusive") -> LockedDatabase:
    """Lock and migrate a database. The lock is held until ``resources`` of the result closes."""
    with open_locked(url, durability, locking) as base:
        migrate.upgrade(base.engine)
        return base._replace(resources=base.resources.pop_all())
