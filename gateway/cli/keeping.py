"""The doctor's look at the store: whether it opens, is up to date, is durable, and has room."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from gateway.cli.finding import Finding, fail, ok, warn
from gateway.cli.reading import reader, store_file
from gateway.errors import StoreError, WeakDurabilityError
from gateway.settings import Settings
from gateway.store import migrate
from gateway.store.engine import open_engine, reached

_GIB = 1 << 30
_TOO_LITTLE, _LITTLE = _GIB // 10, _GIB
_UPGRADE = "run: trunkline db upgrade (starting the gateway does it too)"


def store(settings: Settings) -> Iterator[Finding]:
    """Everything about the store."""
    try:
        file = store_file(settings)
    except StoreError as error:
        yield fail("store", str(error), "correct store.url")
        return
    if file is not None and not file.exists():
        yield ok("store", f"none yet; it will be {file}")
    else:
        yield from _opened(settings)
    yield durability(settings)
    yield from room((file or settings.data_dir / "x").absolute().parent)


def _opened(settings: Settings) -> Iterator[Finding]:
    shown = store_file(settings) or "PostgreSQL"
    try:
        engine = reader(settings)
        try:
            with reached(engine) as connection:
                connection.execute(text("SELECT 1"))
            revision = migrate.current(engine)
        finally:
            engine.dispose()
    except (StoreError, DBAPIError) as error:
        reason = str(error.orig).split("\n")[0] if isinstance(error, DBAPIError) else str(error)
        yield fail("store", f"{shown} cannot be read: {reason}", "see store.url and data_dir in the settings")
        return
    yield ok("store", f"{shown} opens")
    yield schema(revision)


def schema(revision: str | None) -> Finding:
    """Whether the tables are those of this version."""
    head = migrate.head()
    if revision == head:
        return ok("schema", f"revision {head}, the newest")
    if revision is not None and revision > head:
        return fail(
            "schema",
            f"revision {revision} is of a newer version; this one knows {head}",
            "use the newer version, or restore a backup",
        )
    return warn("schema", f"revision {revision or 'none'}, this version wants {head}", _UPGRADE)


def durability(settings: Settings) -> Finding:
    """Whether what is acknowledged survives a loss of power."""
    if settings.durability == "relaxed":
        return warn(
            "durability",
            "relaxed: a loss of power may take the last moments",
            'set durability = "full" to keep everything that was acknowledged',
        )
    try:
        if store_file(settings) is None:
            open_engine(settings.store_url, "full").dispose()
    except WeakDurabilityError as error:
        return fail("durability", str(error), "ask whoever runs the database server")
    except StoreError as error:
        return fail("durability", str(error), "the database server has to be reached to know")
    return ok("durability", "full: what is acknowledged survives a loss of power")


def room(folder: Path) -> Iterator[Finding]:
    """Whether there is space, and files can be written."""
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    shown = f"{free / _GIB:,.1f} GiB free at {folder}"
    if free < _TOO_LITTLE:
        yield fail("disk", shown, "make room: the gateway ends when it cannot store a message")
    elif free < _LITTLE:
        yield warn("disk", shown, "make room soon")
    else:
        yield ok("disk", shown)
    try:
        with tempfile.TemporaryFile(dir=there):
            yield ok("writable", str(folder) if there == folder else f"{folder} can be made")
    except OSError as error:
        yield fail("writable", f"{there}: {error.strerror}", "choose another data_dir, or change its owner")
