"""The database engine: pragmas, durability, and the lock that excludes a second gateway."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, OperationalError

from gateway.contract.errors import StoreError, StoreLockedError, StoreUnavailableError, WeakDurabilityError
from gateway.store import schema

Durability = Literal["full", "relaxed"]

_BUSY_SECONDS = 30.0
_STATEMENT_MS = 30_000
_OWN_FILE_PREFIXES = ("trunkline.", "keys.", "slack.", "cli-", "workspace")
"""Prefixes of the files that the gateway keeps in its data directory."""
_ADVISORY_LOCK = 0x7472756E6B  # one gateway at a time on a PostgreSQL database
_LOCK_WAIT_MS = 3_000  # time in which a server notices that a killed gateway is gone
_PROBE_MS = 1_000
"""Milliseconds that the first write waits for another process's lock; the caller retries and logs."""
PING_SECONDS = 1.5
"""Seconds between pings of an idle PostgreSQL connection."""
_LIBPQ_DEFAULTS = {
    "connect_timeout": 5,
    # With a ping every 1.5 s, a server that vanished without closing the connection is noticed within 5 s.
    "tcp_user_timeout": 3_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    # psycopg would return bytes from a database of the encoding SQL_ASCII, before that is refused.
    "client_encoding": "utf8",
}
"""Parameters of libpq, unless the address sets them; seconds, and milliseconds for the user timeout."""
_ENCODING = "UTF8"
_QUERY_CANCELED = "57014"
_LOCK_NOT_AVAILABLE = "55P03"

_TEMPORARY_SQLITE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
    }
)
"""Primary result codes of SQLite that a mount, free disk space or the end of another process can cure."""
_TEMPORARY_SQLSTATES = ("08", "25006", "25P03", "40", "53", "55P03", "57")
"""Prefixes of the SQLSTATE of such errors on PostgreSQL: lost connections, a read-only standby, a client that
was silent in a transaction, rollbacks, exhausted resources, lock timeouts, and a server that starts or
stops."""
_REFUSED_LOGIN = re.compile(
    r"password authentication failed|no password supplied|FATAL: +role .* does not exist"
)
"""Pattern of libpq's messages for wrong credentials: it gives no SQLSTATE for a failed login."""


Connect = Callable[[], AbstractContextManager[Connection]]
Locking = Literal["exclusive", "shared"]
"""``shared`` is the lock of a node of a cluster on a PostgreSQL database; ``exclusive`` excludes it."""


class Lock(NamedTuple):
    """The exclusive lock of a gateway on its database, and the connection it may write through.

    On PostgreSQL both are one: the lock of a killed gateway is free only when nothing of it can be committed
    any more. Otherwise its successor could read the inbox too early and miss an accepted message.
    """

    connect: Connect
    release: Callable[[], None]


def open_engine(url: str, durability: Durability = "full") -> Engine:
    """Open an engine for a ``sqlite:///…`` or ``postgresql+psycopg://…`` address.

    Raises StoreError for an unusable address, WeakDurabilityError for a database that may lose acknowledged
    writes.
    """
    target = _parse_url(url)
    engine = (
        _open_sqlite(target, durability) if target.get_backend_name() == "sqlite" else _open_postgres(target)
    )
    schema.set_dialect_options(engine.dialect.name)
    if durability == "full":
        try:
            _check_durability(engine)
        except (DatabaseError, StoreError) as error:
            engine.dispose()
            raise open_error(engine, error) if isinstance(error, DatabaseError) else error from None
    return engine


def check_address(url: str) -> None:
    """Raise StoreError for an address that cannot be valid; nothing is opened."""
    target = _parse_url(url)
    if target.get_backend_name() == "sqlite" and target.database in (None, "", ":memory:"):
        raise StoreError("store.url: a SQLite database needs a file, such as sqlite:///data/trunkline.db")


def _parse_url(url: str) -> URL:
    try:
        target = make_url(url)
    except ArgumentError:
        raise StoreError("store.url is not a database address, such as sqlite:///data/trunkline.db") from None
    backend = target.get_backend_name()
    if backend == "postgresql":
        return target.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise StoreError(f"store.url: {backend!r} is not supported; use sqlite or postgresql")
    return target


def _open_sqlite(url: URL, durability: Durability) -> Engine:
    if not url.database or url.database == ":memory:":
        raise StoreError("store.url: a SQLite database needs a file, such as sqlite:///data/trunkline.db")
    try:
        _make_private(Path(url.database).absolute().parent, url.database)
    except OSError as error:
        reason = f"cannot create the directory of {url.database}: {error.strerror}"
        raise StoreUnavailableError(reason) from None
    if Path(url.database).is_dir():
        raise StoreError(f"cannot open {url.database}: it is a directory; store.url needs a file")
    engine = create_engine(
        url.set(drivername="sqlite"),
        pool_size=4,
        max_overflow=0,
        connect_args={} if "timeout" in url.query else {"timeout": _BUSY_SECONDS},
    )
    path = url.database
    level = "FULL" if durability == "full" else "NORMAL"

    def prepare(connection: Any, _record: Any) -> None:
        # The driver's own transactions are off; see _begin.
        connection.isolation_level = None
        with _short_busy_timeout(connection):
            # Before WAL mode: SQLite creates the WAL files with the mode of the database file.
            connection.execute("PRAGMA schema_version").fetchone()
            _restrict_files(path)
            for pragma in (
                "journal_mode=WAL",
                f"synchronous={level}",
                "foreign_keys=ON",
                "temp_store=MEMORY",
            ):
                connection.execute(f"PRAGMA {pragma}")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", _begin)
    return engine


@contextmanager
def _short_busy_timeout(connection: Any) -> Generator[None]:
    """Shorten a SQLite connection's wait for locks inside the block."""
    usual = connection.execute("PRAGMA busy_timeout").fetchone()[0]
    connection.execute(f"PRAGMA busy_timeout={min(usual, _PROBE_MS)}")
    try:
        yield
    finally:
        connection.execute(f"PRAGMA busy_timeout={usual}")


def _make_private(folder: Path, database: str) -> None:
    """Make the directory of a database readable by its owner only, unless it also holds other files."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    # A shared directory (the home directory, /tmp) belongs to other programs, too; leave its mode alone.
    ours = found.st_uid == os.geteuid() and not found.st_mode & stat.S_ISVTX
    apart = folder not in (Path.cwd(), Path.home()) and all(
        each.name.startswith(_OWN_FILE_PREFIXES) or each == Path(database).absolute()
        for each in folder.iterdir()
    )
    if ours and apart and stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)


def _restrict_files(database: str) -> None:
    """Make the files of a database readable by their owner only. Files of another owner are left alone."""
    for path in (Path(database), Path(f"{database}-wal"), Path(f"{database}-shm")):
        with suppress(OSError):
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                path.chmod(0o600)


def _begin(connection: Connection) -> None:
    """Begin a transaction explicitly.

    The driver begins one only for statements that start with INSERT, UPDATE or DELETE. Statements that start
    with WITH, and schema changes, would each be committed alone.
    """
    connection.exec_driver_sql("BEGIN")


def _open_postgres(url: URL) -> Engine:
    try:
        engine = create_engine(
            url,
            pool_size=4,
            max_overflow=1,
            connect_args={name: value for name, value in _LIBPQ_DEFAULTS.items() if name not in url.query},
        )
    except (NoSuchModuleError, ModuleNotFoundError):
        raise StoreError(
            "store.url names PostgreSQL, but its driver is not installed: pip install 'trunkline[postgres]'"
        ) from None
    event.listen(engine, "connect", _check_encoding)
    event.listen(engine, "connect", _limit_statements)
    return engine


def _check_encoding(connection: Any, _record: Any) -> None:
    """Raise StoreError for a database that cannot store every text."""
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != _ENCODING:
        raise StoreError(
            f"store.url: the database {connection.info.dbname} has the encoding {encoding}, which cannot"
            " store every text; create another one:"
            f" CREATE DATABASE … ENCODING '{_ENCODING}' TEMPLATE template0"
        )


def _limit_statements(connection: Any, _record: Any) -> None:
    """Set a statement timeout, unless the address, the user or the database has one; compile no statement.

    Let the server end the session of a machine that vanished after 11 s. By default it would keep its locks
    for two hours.

    Compiling took 100 ms of a search that takes 20 ms: without statistics PostgreSQL takes it for expensive.
    They are set by a statement and not by start-up options, because connection poolers refuse those.
    """
    usual, connection.autocommit = connection.autocommit, True
    connection.execute(
        "SELECT set_config('jit', 'off', false), set_config('tcp_keepalives_idle', '5', false), "
        "set_config('tcp_keepalives_interval', '2', false), set_config('tcp_user_timeout', '10000', false), "
        "CASE WHEN current_setting('statement_timeout') = '0' "
        "THEN set_config('statement_timeout', %s, false) END",
        (str(_STATEMENT_MS),),
    )
    connection.autocommit = usual


def limit_waits(connection: Connection, seconds: float) -> None:
    """Let a connection of PostgreSQL wait no longer than this for any answer; a longer wait closes it.

    The server ends long statements itself, but not if its process hangs, or a proxy holds the statement back.
    """
    driver: Any = connection.connection.driver_connection
    if isinstance(driver, sqlite3.Connection) or "wait" in vars(driver):
        return
    from psycopg.errors import QueryCanceled

    def limited(answer: Any) -> Generator[Any, Any, Any]:
        """Yield what psycopg has to wait for; while nothing comes, it looks here each 0.1 s."""
        ends = time.monotonic() + seconds
        try:
            waits_for = next(answer)
            while (ready := (yield waits_for)) or time.monotonic() < ends:
                waits_for = answer.send(ready)
        except StopIteration as end:
            return end.value
        driver.close()
        raise QueryCanceled(f"the server has not answered for {seconds:.0f} s")

    wait: Callable[..., Any] = driver.wait

    def wait_limited(answer: Any, *options: Any) -> Any:
        return wait(limited(answer), *options)

    driver.wait = wait_limited


def is_canceled(error: DatabaseError) -> bool:
    """Return whether a statement was cancelled because it exceeded the statement timeout."""
    return getattr(error.orig, "sqlstate", None) == _QUERY_CANCELED


def _check_durability(engine: Engine) -> None:
    if engine.dialect.name != "postgresql":
        return
    with connect(engine) as connection:
        for setting in ("synchronous_commit", "fsync", "full_page_writes"):
            value = connection.execute(text(f"SHOW {setting}")).scalar_one()
            if value == "off":
                raise WeakDurabilityError(
                    f"PostgreSQL has {setting} = off and may lose messages it acknowledged; "
                    f'turn it on, or set durability = "relaxed" to accept that'
                )


def connect(engine: Engine) -> Connection:
    """Return a connection. Raises StoreError, without the password, if the database is unreachable."""
    try:
        return engine.connect()
    except DatabaseError as error:
        raise open_error(engine, error) from None


def open_error(engine: Engine, error: DatabaseError) -> StoreError:
    """Return the error for a database that cannot be opened; it names the database without its password.

    It is a StoreUnavailableError where a later attempt may succeed.
    """
    reason = str(error.orig).strip().split("\n")[0]
    kind = StoreUnavailableError if is_temporary(error) else StoreError
    # SQLite has this class for a damaged file and for one that is not a database.
    advice = "; restore a backup: docs/backup.md" if type(error.orig) is sqlite3.DatabaseError else ""
    return kind(f"cannot open {engine.url.render_as_string()}: {reason}{advice}")


def is_temporary(error: DatabaseError) -> bool:
    """Return whether the cause may go away without a change of the settings."""
    if isinstance(error.orig, sqlite3.Error):
        return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in _TEMPORARY_SQLITE
    state: str | None = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state.startswith(_TEMPORARY_SQLSTATES)
    return isinstance(error, OperationalError) and not _REFUSED_LOGIN.search(str(error.orig))


def check_writable(engine: Engine) -> None:
    """Take and release the write lock. Raises StoreUnavailableError if the database is not writable."""
    with connect(engine) as connection:
        if engine.dialect.name == "postgresql":
            if connection.execute(text("SHOW transaction_read_only")).scalar_one() == "on":
                where = engine.url.render_as_string()
                raise StoreUnavailableError(f"cannot write {where}: the server is read-only")
            return
        driver = connection.connection.driver_connection
        assert driver is not None, "an open connection has a driver connection"
        try:
            with _short_busy_timeout(driver):
                driver.execute("BEGIN IMMEDIATE")
                driver.execute("ROLLBACK")
        except sqlite3.OperationalError as error:
            raise open_error(engine, OperationalError(None, None, error)) from None


def sync(path: Path) -> None:
    """Flush a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(engine: Engine, locking: Locking = "exclusive") -> Lock:
    """Lock the database for this process. Raises StoreLockedError if another gateway holds the lock."""
    return _lock_postgres(engine, locking) if engine.dialect.name == "postgresql" else _lock_sqlite(engine)


def _lock_sqlite(engine: Engine) -> Lock:
    path = f"{engine.url.database}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StoreUnavailableError(f"cannot write {path}: {error.strerror}") from None
    try:
        # The kernel releases the lock when the process dies, so a crash leaves no stale lock file to judge.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StoreLockedError(
            f"another gateway already uses {engine.url.database}; stop it first, or choose another data_dir"
        ) from None
    return Lock(engine.connect, lambda: os.close(descriptor))


def _lock_postgres(engine: Engine, locking: Locking) -> Lock:
    connection = connect(engine)
    # A restart follows its predecessor closely: give the server time to notice that the old client died.
    connection.execute(text(f"SET LOCAL lock_timeout = {_LOCK_WAIT_MS}"))
    try:
        function = "pg_advisory_lock_shared" if locking == "shared" else "pg_advisory_lock"
        connection.execute(text(f"SELECT {function}(:id)"), {"id": _ADVISORY_LOCK})
        if locking == "shared":
            # A node that freezes within a transaction must not keep the row that the next owner waits for.
            connection.execute(text("SET idle_in_transaction_session_timeout = '5s'"))
    except OperationalError as error:
        connection.close()
        if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise open_error(engine, error) from None
        raise StoreLockedError(
            "a gateway without cluster.url already uses this PostgreSQL database; stop it, or use another one"
            if locking == "shared"
            else "another gateway already uses this PostgreSQL database; stop it, use another database, or "
            "set cluster.url if it is a node of a cluster"
        ) from None
    connection.commit()

    def release() -> None:
        # Back in the pool the connection would keep the advisory lock; it must be closed.
        connection.invalidate()
        connection.close()

    return Lock(lambda: nullcontext(connection), release)
