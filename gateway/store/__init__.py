"""The store: one database, one writer, readers beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Connection, Engine

from gateway.store import engine as engines
from gateway.store import migrate
from gateway.store.engine import Durability
from gateway.store.writer import Inserted, Op, Writer

T = TypeVar("T")

__all__ = ["Durability", "Inserted", "Op", "Store", "Writer"]


class Store:
    """An open database. ``write`` commits durably; ``read`` runs a query beside the writer."""

    def __init__(self, engine: Engine, lock: engines.Lock, on_fatal: Callable[[BaseException], None]) -> None:
        self.engine = engine
        self.writer = Writer(lock.connect, on_fatal)
        self.write = self.writer.write
        self.submit = self.writer.submit
        self._lock = lock
        self._readers = ThreadPoolExecutor(2, thread_name_prefix="store-reader")

    @classmethod
    def open(cls, url: str, durability: Durability, on_fatal: Callable[[BaseException], None]) -> Store:
        """Open, lock and migrate the database. Call it inside a running event loop; it blocks.

        Raises StoreError, StoreLockedError or WeakDurabilityError.
        """
        engine = engines.open_engine(url, durability)
        lock = engines.lock(engine)
        migrate.upgrade(engine)
        return cls(engine, lock, on_fatal)

    async def read(self, query: Callable[[Connection], T]) -> T:
        """Run a query on a reader's connection, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, self._query, query)

    def _query(self, query: Callable[[Connection], T]) -> T:
        with self.engine.connect() as connection:
            return query(connection)

    async def close(self) -> None:
        """Write what waits, then let the database go."""
        await asyncio.to_thread(self.writer.close)
        self._readers.shutdown(cancel_futures=True)
        self.engine.dispose()
        self._lock.release()
