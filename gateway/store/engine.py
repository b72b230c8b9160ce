"""Opening the database: pragmas, durability, and the lock that keeps a second gateway out."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, OperationalError

from gateway.errors import StoreError, StoreLockedError, WeakDurabilityError
from gateway.store import schema

Durability = Literal["full", "relaxed"]

_BUSY_MS = 5_000
_ADVISORY_LOCK = 0x7472756E6B  # one gateway at a time on a PostgreSQL database
_PREDECESSOR_MS = 3_000  # how long a server may take to notice that a killed gateway is gone


Connect = Callable[[], AbstractContextManager[Connection]]


class Lock(NamedTuple):
    """What makes this process the only gateway on a database, and the connection it may write through.

    On PostgreSQL both are one: a killed gateway's lock is free only when nothing of its can be committed
    any more. Otherwise its successor could look at the inbox too early and miss an accepted message.
    """

    connect: Connect
    release: Callable[[], None]


def open_engine(url: str, durability: Durability = "full") -> Engine:
    """An engine for a ``sqlite:///…`` or ``postgresql+psycopg://…`` address.

    Raises StoreError for an address that cannot be used, WeakDurabilityError for a database that may lose
    what it acknowledged.
    """
    target = _parsed(url)
    engine = _sqlite(target, durability) if target.get_backend_name() == "sqlite" else _postgres(target)
    schema.speak(engine.dialect.name)
    if durability == "full":
        try:
            _refuse_weak(engine)
        except StoreError:
            engine.dispose()
            raise
    return engine


def _parsed(url: str) -> URL:
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


def _sqlite(url: URL, durability: Durability) -> Engine:
    if not url.database or url.database == ":memory:":
        raise StoreError("store.url: a SQLite database needs a file, such as sqlite:///data/trunkline.db")
    try:
        Path(url.database).absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot make the directory of {url.database}: {error.strerror}") from None
    engine = create_engine(url.set(drivername="sqlite"), pool_size=4, max_overflow=0)
    level = "FULL" if durability == "full" else "NORMAL"

    def prepare(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        for pragma in (
            f"busy_timeout={_BUSY_MS}",
            "journal_mode=WAL",
            f"synchronous={level}",
            "foreign_keys=ON",
            "temp_store=MEMORY",
        ):
            connection.execute(f"PRAGMA {pragma}")

    event.listen(engine, "connect", prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    """Begin a transaction. The driver would only begin one for INSERT, UPDATE and DELETE as a first word.

    Changes that begin with WITH, and those of the schema, would each be committed alone.
    """
    connection.exec_driver_sql("BEGIN")


def _postgres(url: URL) -> Engine:
    try:
        return create_engine(url, pool_size=4, max_overflow=1, pool_pre_ping=True)
    except (NoSuchModuleError, ModuleNotFoundError):
        raise StoreError(
            "store.url names PostgreSQL, whose driver is not installed: pip install 'trunkline[postgres]'"
        ) from None


def _refuse_weak(engine: Engine) -> None:
    if engine.dialect.name != "postgresql":
        return
    with reached(engine) as connection:
        for setting in ("synchronous_commit", "fsync", "full_page_writes"):
            value = connection.execute(text(f"SHOW {setting}")).scalar_one()
            if value == "off":
                raise WeakDurabilityError(
                    f"PostgreSQL has {setting} = off and may lose messages it acknowledged; "
                    f'turn it on, or set durability = "relaxed" to accept that'
                )


def reached(engine: Engine) -> Connection:
    """A connection. Raises StoreError, without the password, if the database cannot be reached."""
    try:
        return engine.connect()
    except DatabaseError as error:
        raise unusable(engine, error) from None


def unusable(engine: Engine, error: DatabaseError) -> StoreError:
    """The error for a database that cannot be opened; it names the database, without its password."""
    reason = str(error.orig).strip().split("\n")[0]
    return StoreError(f"cannot open {engine.url.render_as_string()}: {reason}")


def lock(engine: Engine) -> Lock:
    """Make this process the only gateway on the database, or raise StoreLockedError."""
    return _lock_server(engine) if engine.dialect.name == "postgresql" else _lock_file(engine)


def _lock_file(engine: Engine) -> Lock:
    path = f"{engine.url.database}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise StoreLockedError(
            f"another gateway already uses {engine.url.database}; stop it, or give this one its own data_dir"
        ) from None
    return Lock(engine.connect, lambda: os.close(descriptor))


def _lock_server(engine: Engine) -> Lock:
    connection = reached(engine)
    connection.execute(text(f"SET LOCAL lock_timeout = {_PREDECESSOR_MS}"))
    try:
        connection.execute(text("SELECT pg_advisory_lock(:id)"), {"id": _ADVISORY_LOCK})
    except OperationalError:
        connection.close()
        raise StoreLockedError(
            "another gateway already uses this PostgreSQL database; stop it first"
        ) from None
    connection.commit()

    def release() -> None:
        connection.invalidate()
        connection.close()

    return Lock(lambda: nullcontext(connection), release)
