"""Reading what is kept, beside a gateway that may be running: without its lock, and without a write."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from gateway.settings import Settings


@contextmanager
def reading(settings: Settings) -> Generator[Connection]:
    """A connection that only reads, to a store with the schema this version expects.

    Raises StoreError that says what to do when there is no store yet, or its schema is another one.
    """
    from sqlalchemy.exc import OperationalError

    from gateway.errors import StoreError
    from gateway.store import migrate
    from gateway.store.engine import reached

    engine = reader(settings)
    try:
        revision, expected = migrate.current(engine), migrate.head()
        if revision != expected:
            raise StoreError(
                f"the store has schema {revision or 'none'}, this version needs {expected}; "
                "run: trunkline db upgrade"
            )
        with reached(engine) as connection:
            yield connection
    except OperationalError as error:
        reason = str(error.orig).strip().split("\n")[0]
        raise StoreError(f"cannot read the store: {reason}") from None
    finally:
        engine.dispose()


def reader(settings: Settings) -> Engine:
    """An engine whose connections only read. Raises StoreError when there is nothing to read."""
    from sqlalchemy import create_engine

    from gateway.errors import StoreError
    from gateway.store.engine import open_engine

    file = store_file(settings)
    if file is None:
        return open_engine(settings.store_url, "relaxed").execution_options(postgresql_readonly=True)
    if not file.exists():
        raise StoreError(f"there is nothing in {file} yet; `trunkline run` makes it")
    return create_engine(f"sqlite:///file:{quote(str(file.absolute()))}?mode=ro&uri=true")


def store_file(settings: Settings) -> Path | None:
    """The SQLite file of the settings; None when they name a server."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    from gateway.errors import StoreError

    try:
        url = make_url(settings.store_url)
    except ArgumentError:
        raise StoreError("store.url is not a database address, such as sqlite:///data/trunkline.db") from None
    if url.get_backend_name() != "sqlite":
        return None
    return Path(url.database or "")
