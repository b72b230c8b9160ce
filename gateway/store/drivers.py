"""Drivers: run the statements of a transaction on the connection of the writer.

They call the database's own driver. SQLAlchemy's execution costs more CPU than a small statement itself, and
waits for PostgreSQL's result of each one: here all of them, from BEGIN to COMMIT, are sent at once.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, cast

from sqlalchemy import Connection, Dialect

from gateway.contract.errors import StoreError
from gateway.store.writes import Statement, Value

if TYPE_CHECKING:
    from psycopg import Connection as PostgresConnection
    from psycopg.abc import PQGen
    from psycopg.pq.abc import PGresult

BEGIN, COMMIT, PING = Statement("BEGIN", ()), Statement("COMMIT", ()), Statement("SELECT 1", ())


class FencedError(StoreError):
    """Another node has taken over, so this process must not write any more."""


_DIVISION_BY_ZERO = b"22012"
_MAX_PREPARED = 100
"""Prepared statements of a connection; each takes memory of the server."""


Errors = Sequence[type[Exception]]


class Driver(Protocol):
    """The connection of the writer. ``row_errors`` are the driver's errors that are caused by single rows."""

    dialect: Dialect
    row_errors: Errors

    def run(self, statements: Sequence[Statement]) -> list[str]:
        """Run statements in order, up to the first error. Return the first column of the rows they return."""
        ...

    def rollback(self) -> None:
        """End a transaction that failed."""
        ...


def driver_of(connection: Connection) -> Driver:
    """Return the driver for an open connection."""
    raw = connection.connection.driver_connection
    if isinstance(raw, sqlite3.Connection):
        return SqliteDriver(connection.dialect, raw)
    return PostgresDriver(connection.dialect, cast("PostgresConnection", raw))


class SqliteDriver:
    """Driver for SQLite."""

    # The last one is a value of a type that SQLite does not know.
    row_errors: Errors = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError)

    def __init__(self, dialect: Dialect, connection: sqlite3.Connection) -> None:
        self.dialect = dialect
        self._execute = connection.execute
        self.rollback = connection.rollback

    def run(self, statements: Sequence[Statement]) -> list[str]:
        """Run statements; see ``Driver``."""
        found: list[str] = []
        for text, values in statements:
            cursor = self._execute(text, values)
            if cursor.description is not None:
                found += [row[0] for row in cursor]
        return found


class PostgresDriver:
    """Driver for PostgreSQL. It sends all statements in one pipeline, which costs one round trip.

    Values are sent as text, so that the server infers their types from the columns. A statement that was sent
    more often than psycopg's ``prepare_threshold`` is prepared; none is if that is None.
    """

    def __init__(self, dialect: Dialect, connection: PostgresConnection) -> None:
        import psycopg
        from psycopg.generators import fetch_many

        self.dialect = dialect
        errors = psycopg.errors
        # The last one is a key that is too long for its index.
        self.row_errors: Errors = (errors.IntegrityError, errors.DataError, errors.ProgramLimitExceeded)
        self._psycopg, self._fetch = psycopg, fetch_many
        self._connection = connection
        self._server = connection.pgconn
        self._threshold = connection.prepare_threshold
        self._sent: Counter[str] = Counter()
        self._names: dict[str, bytes] = {}
        # It stays in this mode: nothing but the writer uses the connection until it is closed.
        self._server.enter_pipeline_mode()

    def run(self, statements: Sequence[Statement]) -> list[str]:
        """Run statements; see ``Driver``. It is an error if the server does not confirm a COMMIT."""
        errors, statuses, names = self._psycopg.errors, self._psycopg.pq.ExecStatus, self._names.copy()
        # Encoded before the first is sent: an error in between would leave a part of them in the pipeline.
        encoded = [(text, list(map(_as_text, values))) for text, values in statements]
        expected = sum(self._send(text, values) for text, values in encoded)
        results = self._connection.wait(self._communicate())
        found: list[str] = []
        for result in results:
            if result.status == statuses.FATAL_ERROR:
                self._names = names  # what was to be prepared may not be
                if result.error_field(self._psycopg.pq.DiagnosticField.SQLSTATE) == _DIVISION_BY_ZERO:
                    # Only a fence divides: by the number of ownership rows with the epoch of this process.
                    raise FencedError("another node of the cluster took over")
                raise errors.error_from_result(result, self._connection.info.encoding)
            if result.status == statuses.TUPLES_OK:
                values = (result.get_value(row, 0) for row in range(result.ntuples))
                found += [value.decode() for value in values if value is not None]
        if len(results) != expected:
            raise errors.OperationalError("the server closed the connection during a transaction")
        # The server ends a transaction that failed with ROLLBACK, and reports no error for its COMMIT.
        if statements[-1] is COMMIT and results[-1].command_status != b"COMMIT":
            raise errors.InternalError(f"the server answered COMMIT with {results[-1].command_status}")
        return found

    def rollback(self) -> None:
        """End a transaction that failed."""
        self.run([Statement("ROLLBACK", ())])

    def _send(self, text: str, values: list[bytes | None]) -> int:
        """Put a statement into the buffer that is sent. Return the number of results to expect."""
        name = self._names.get(text)
        if name is not None:
            self._server.send_query_prepared(name, values)
            return 1
        self._sent[text] += 1
        # Named by the number of statements ever sent unprepared: a name is never used again.
        frequent = self._threshold is not None and self._sent[text] > self._threshold
        if not frequent or len(self._names) >= _MAX_PREPARED:
            self._server.send_query_params(text.encode(), values)
            return 1
        name = self._names[text] = f"write_{self._sent.total()}".encode()
        self._server.send_prepare(name, text.encode())
        self._server.send_query_prepared(name, values)
        return 2

    def _communicate(self) -> PQGen[list[PGresult]]:
        """Send the buffer, and return the results once the server has finished with all of it."""
        server, waits, ready = self._server, self._psycopg.waiting.Wait, self._psycopg.waiting.Ready
        server.pipeline_sync()
        # The server reads no more while its own results are not read.
        while server.flush():
            if (yield waits.RW) & ready.R:
                server.consume_input()
        results: list[PGresult] = []
        # The reason why the server closed the connection is in one of the results before that.
        with suppress(self._psycopg.OperationalError):
            while fetched := (yield from self._fetch(server)):
                if fetched[0].status == self._psycopg.pq.ExecStatus.PIPELINE_SYNC:
                    break
                results += fetched
        return results


def _as_text(value: Value) -> bytes | None:
    return None if value is None else str(value).encode()
