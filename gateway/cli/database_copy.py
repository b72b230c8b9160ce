"""Backups of the database: consistent copies while a gateway runs, checked and restored."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from msgspec import Struct
from sqlalchemy import Engine, inspect, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import DatabaseError

from gateway.api.owned_files import exists
from gateway.contract.errors import StoreError
from gateway.store import migrate
from gateway.store.engine import is_temporary, open_error
from gateway.store.schema import metadata

FORMAT = 1


class Manifest(Struct, frozen=True):
    """Manifest of an archive. ``store`` is the kind of database, ``created`` a time in UTC."""

    version: str
    store: Literal["sqlite", "postgresql"]
    revision: str
    created: str
    format: int = FORMAT


@contextmanager
def staging(prefix: str, parent: Path) -> Generator[Path]:
    """Yield an empty folder, and remove it at the end. Removes first what killed commands left.

    The lock of a folder shows that its command still runs.
    """
    for other in parent.glob(f"{prefix}*"):
        with suppress(OSError), _locked(other):
            shutil.rmtree(other)
    with TemporaryDirectory(prefix=prefix, dir=parent) as folder, ExitStack() as held:
        with suppress(OSError):  # NFS has no locks of folders, so nothing is removed there
            held.enter_context(_locked(Path(folder)))
        yield Path(folder)


@contextmanager
def _locked(folder: Path) -> Generator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


_TABLES = (*sorted(metadata.tables), "alembic_version")


def find_problems(engine: Engine) -> Iterator[str]:
    """Read the whole database, of any revision; yield its problems.

    Raises StoreError if it cannot be read now, for example because another program has locked it.
    """
    try:
        lost, revision = migrate.find_damage(engine), migrate.current(engine)
    except DatabaseError as error:
        if is_temporary(error):
            raise open_error(engine, error) from None
        lost, revision = str(error.orig).strip().splitlines()[0], None
    if lost is not None:
        yield lost
        return
    if revision == migrate.head():
        yield from _find_missing_columns(engine)
    try:
        yield from (
            _find_damaged_pages(engine)
            if engine.dialect.name == "sqlite"
            else _find_unreadable_tables(engine)
        )
    except DatabaseError as error:
        if is_temporary(error):
            raise open_error(engine, error) from None
        yield str(error.orig).strip().split("\n")[0]


def _find_missing_columns(engine: Engine) -> Iterator[str]:
    found = inspect(engine)
    for table in metadata.sorted_tables:
        there = {column["name"] for column in found.get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                yield f"the table {table.name} has no column {column.name}"


def _find_damaged_pages(engine: Engine) -> Iterator[str]:
    with engine.connect() as connection:
        for (found,) in connection.exec_driver_sql("PRAGMA integrity_check"):
            if found != "ok":
                yield str(found)
        for table, row, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"):
            yield f"row {row} of {table} refers to a row of {parent} that does not exist"


def _find_unreadable_tables(engine: Engine) -> Iterator[str]:
    """Read every value of every table, which makes the server check its pages."""
    for name in sorted({*_TABLES} & {*inspect(engine).get_table_names()}):
        try:
            with engine.connect() as connection:
                connection.execute(text("SET LOCAL statement_timeout = 0"))
                connection.execute(text(f'SELECT sum(length(t::text)) FROM "{name}" AS t'))  # noqa: S608
        except DatabaseError as error:
            yield f"{name}: {str(error.orig).strip().splitlines()[0]}"


def copy_file(source: Path, target: Path) -> None:
    """Copy a SQLite database as of one moment, while other processes may write to it.

    Raises StoreError if it cannot be read, or if the copy is damaged.
    """
    try:
        with (
            closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as reader,
            closing(sqlite3.connect(target)) as writer,
        ):
            # All pages in one step: one read transaction, which in WAL mode blocks no writer.
            reader.backup(writer, pages=-1)
        check_file(target)
    except sqlite3.Error as error:
        raise StoreError(f"cannot copy {source} to {target.parent}: {error}") from None


def check_file(path: Path) -> None:
    """Raise StoreError unless a file is an undamaged SQLite database."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            found = connection.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        found = str(error)
    if found != "ok":
        raise StoreError(f"{path.name} is not a sound database: {' '.join(found.split())[:200]}")


def replace_file(path: Path, fresh: Path) -> Path | None:
    """Replace a database with another one; the caller holds its lock.

    Returns the path of the former database; None if it was empty. Raises StoreError if another program has it
    open.
    """
    former = path.with_name(f"{path.name}.before-restore")
    kept = exists(path) and path.stat().st_size > 0
    former.unlink(missing_ok=True)
    if kept:
        with closing(sqlite3.connect(path)) as connection:
            try:
                # Closing the only connection removes the write-ahead log, which would spoil the new file.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in (
                    sqlite3.SQLITE_BUSY,
                    sqlite3.SQLITE_LOCKED,
                ):
                    raise StoreError(f"another program uses {path}; close it, then restore again") from None
                _set_aside_log(path)
        # A link, not a rename: at each moment one complete database has the configured name.
        os.link(path, former)
    _set_aside_log(path)
    fresh.replace(path)
    return former if kept else None


def _set_aside_log(path: Path) -> None:
    for suffix in ("-wal", "-shm"):
        side = path.with_name(path.name + suffix)
        if exists(side):
            side.replace(path.with_name(f"{path.name}.before-restore{suffix}"))


def dump_server(url: URL, target: Path, environ: Mapping[str, str]) -> None:
    """Write the tables of a PostgreSQL database as SQL, as of one moment. Raises StoreError."""
    tables = [f"--table={name}" for name in _TABLES]
    _run(url, environ, "pg_dump", "--no-owner", "--no-privileges", f"--file={target}", *tables)


def load_server(url: URL, script: Path, environ: Mapping[str, str]) -> None:
    """Replace the tables of a PostgreSQL database with those of a dump, all or nothing. Raises StoreError."""
    names = ", ".join(f'"{name}"' for name in _TABLES)
    drop = f"DROP TABLE IF EXISTS {names} CASCADE"
    _run(
        url,
        environ,
        "psql",
        "--no-psqlrc",
        "--quiet",
        "--output=/dev/null",
        "--single-transaction",
        "--set=ON_ERROR_STOP=1",
        f"--command={drop}",
        f"--file={script}",
    )


def _run(url: URL, environ: Mapping[str, str], program: str, *arguments: str) -> None:
    """Run a PostgreSQL client program, with the password in its environment, hidden from other users."""
    password = url.password or url.query.get("password")
    # URL.set() takes None for "unchanged", so the address is rebuilt to leave the password out.
    address = URL.create(
        "postgresql", url.username, None, url.host, url.port, url.database, url.query
    ).difference_update_query(["password"])
    command: Sequence[str] = (program, f"--dbname={address.render_as_string()}", *arguments)
    if shutil.which(program) is None:
        raise StoreError(
            f"{program} is not installed; install the client programs of PostgreSQL (apt install "
            f"postgresql-client), or run this on a machine that has them: {' '.join(command)}"
        )
    environ = {**environ, **({"PGPASSWORD": str(password)} if password else {})}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise StoreError(f"{program} failed: {done.stderr.strip()}")
