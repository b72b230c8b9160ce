"""Read-only access to the store, without the lock that a running gateway holds."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, OperationalError

from gateway.api.owned_files import exists
from gateway.contract.errors import StoreError
from gateway.settings import Settings
from gateway.store import migrate
from gateway.store.engine import connect, open_engine

UNFINISHED = "restore.unfinished"
"""File in the data directory while a restore replaces the database and the files."""


def check_restored(settings: Settings) -> None:
    """Raise StoreError if a restore was killed while it replaced data."""
    if exists(settings.data_dir / UNFINISHED):
        raise StoreError(
            f"a restore was interrupted, so files in {settings.data_dir} may not belong to the database; "
            "run `trunkline restore FILE --force` again"
        )


@contextmanager
def reading(settings: Settings, *, any_schema: bool = False) -> Generator[Connection]:
    """Open a read-only connection to a store with the schema of this version, or with any.

    Raises StoreError if the store does not exist yet, or has another schema.
    """
    engine = reader(settings)
    try:
        revision, expected = migrate.current(engine), migrate.head()
        if revision != expected and not any_schema:
            newer = revision is not None and revision not in migrate.revisions()
            raise StoreError(
                f"the store has schema {revision or 'none'}, this version needs {expected}; "
                + ("a newer Trunkline made it: use that version" if newer else "run: trunkline db upgrade")
            )
        with connect(engine) as connection:
            yield connection
    except DatabaseError as error:
        reason = str(error.orig).strip().split("\n")[0]
        advice = "" if isinstance(error, OperationalError) else "; `trunkline db check` shows details"
        raise StoreError(f"cannot read the store: {reason}{advice}") from None
    finally:
        engine.dispose()


def check_store(settings: Settings) -> None:
    """Raise StoreError unless there is a store with the schema of this version; opening one migrates it."""
    with reading(settings):
        pass


def reader(settings: Settings) -> Engine:
    """Return an engine with read-only connections. Raises StoreError if the store does not exist yet."""

    file = store_file(settings)
    if file is not None and not exists(file):
        raise StoreError(f"{file} does not exist yet; `trunkline run` creates it")
    if file is None:
        return open_engine(settings.store_url, "relaxed").execution_options(postgresql_readonly=True)
    # The address is not in the URL of the engine, which errors show.
    return create_engine(URL.create("sqlite", database=str(file.absolute())), creator=partial(_open, file))


def _open(file: Path) -> sqlite3.Connection:
    """Open a SQLite file to read it. Raises PermissionError for a file of another user."""
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    try:
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.DatabaseError:
        connection.close()
        # A reader writes beside the file, too: the index of the write-ahead log.
        for path, wanted in ((file, os.R_OK), (file.absolute().parent, os.W_OK)):
            if os.geteuid() and not os.access(path, wanted, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)) from None
        raise
    return connection


def store_file(settings: Settings) -> Path | None:
    """Return the SQLite file of the settings, or None when they name a database server."""
    try:
        url = make_url(settings.store_url)
    except ArgumentError:
        raise StoreError("store.url is not a database address, such as sqlite:///data/trunkline.db") from None
    if url.get_backend_name() != "sqlite":
        return None
    return Path(url.database or "")


def is_locked(settings: Settings) -> bool:
    """Return whether a gateway holds the lock of the SQLite file; True for a database server."""
    try:
        file = store_file(settings)
        if file is None:
            return True
        with Path(f"{file}.lock").open("rb") as locked:
            fcntl.flock(locked, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released at once; a start would wait for it
    except (FileNotFoundError, StoreError):
        return False
    except OSError:
        return True
    return False
