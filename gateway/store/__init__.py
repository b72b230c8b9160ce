"""The store: one database, one writer, readers beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DatabaseError, DataError

from gateway.errors import InvalidRequestError, StoreError
from gateway.store import engine as engines
from gateway.store import migrate
from gateway.store.engine import Durability
from gateway.store.writer import Inserted, Op, Writer

T = TypeVar("T")

__all__ = ["Durability", "Exclusive", "Inserted", "Op", "Store", "Writer", "exclusive"]


class Store:
    """An open database. ``write`` commits durably; ``read`` runs a query beside the writer."""

    def __init__(self, base: Exclusive, on_fatal: Callable[[BaseException], None]) -> None:
        self.engine = base.engine
        self.writer = Writer(base.connect, on_fatal)
        self.write = self.writer.write
        self.submit = self.writer.submit
        self._release = base.kept.pop_all().close
        self._on_fatal = on_fatal
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="store-reader")

    @classmethod
    def open(cls, url: str, durability: Durability, on_fatal: Callable[[BaseException], None]) -> Store:
        """Open, lock and migrate the database. Call it inside a running event loop; it blocks.

        Raises StoreError, StoreLockedError or WeakDurabilityError.
        """
        with exclusive(url, durability) as base:
            migrate.upgrade(base.engine)
            return cls(base, on_fatal)

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query on a reader's connection, in a thread.

        Raises InvalidRequestError if what is looked for is nothing a database can hold, and StoreError if
        the database fails.
        """
        return await self.reading(query)

    def reading(self, query: Callable[[Connection], T]) -> asyncio.Future[T]:
        """Begin what ``read`` waits for."""
        return asyncio.get_running_loop().run_in_executor(self._readers, self._query, query)

    def _query(self, query: Callable[[Connection], T]) -> T:
        try:
            with self.engine.connect() as connection:
                return query(connection)
        except (DataError, UnicodeEncodeError):
            raise InvalidRequestError("what is looked for is no text that a database can hold") from None
        except DatabaseError as error:
            self._on_fatal(error)
            raise StoreError("the database failed") from error

    async def close(self) -> None:
        """Write what waits, then let the database go."""
        await asyncio.to_thread(self.writer.close)
        self._readers.shutdown(cancel_futures=True)
        self.engine.dispose()
        self._release()


class Exclusive(NamedTuple):
    """A database that no other process uses. It is let go when ``kept`` closes."""

    engine: Engine
    connect: engines.Connect
    kept: ExitStack


@contextmanager
def exclusive(url: str, durability: Durability = "full") -> Generator[Exclusive]:
    """Open and lock a database, as it is: not migrated.

    Raises StoreError, StoreLockedError or WeakDurabilityError.
    """
    with ExitStack() as kept:
        engine = engines.open_engine(url, durability)
        kept.callback(engine.dispose)
        try:
            lock = engines.lock(engine)
            kept.callback(lock.release)
            yield Exclusive(engine, lock.connect, kept)
        except DatabaseError as error:
            raise engines.unusable(engine, error) from None
