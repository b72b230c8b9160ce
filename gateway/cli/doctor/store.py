"""Checks of the store: access, schema, durability and disk space."""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import Engine, select, text
from sqlalchemy.exc import DBAPIError

from gateway.api.owned_files import exists
from gateway.cli.doctor.finding import Finding, fail, ok, warn
from gateway.cli.store_reader import check_restored, reader, store_file
from gateway.contract.errors import StoreError, WeakDurabilityError
from gateway.contract.messages import now_ms
from gateway.settings import Settings
from gateway.store import migrate
from gateway.store import schema as t
from gateway.store.engine import connect, open_engine
from gateway.tables.clock import find_jump

_GIB = 1 << 30
_TOO_LITTLE, _LITTLE = _GIB // 10, _GIB
_OLDEST_SQLITE = (3, 35)
_UPGRADE = "run: trunkline db upgrade (a starting gateway does it too)"


def store(settings: Settings) -> Iterator[Finding]:
    """Run all checks of the store."""
    try:
        file = store_file(settings)
    except StoreError as error:
        yield fail("store", str(error), "correct store.url")
        return
    # First, since it raises PermissionError where the data directory is closed: that names the database.
    is_missing = file is not None and not exists(file)
    try:
        check_restored(settings)
    except StoreError as error:
        yield fail("restore", str(error), "docs/backup.md")
    if is_missing:
        yield ok("store", f"does not exist yet; it will be {file}")
    else:
        yield from _opened(settings)
    yield durability(settings)
    if file is not None:
        yield from sqlite()
    yield from free_space((file or settings.data_dir / "x").absolute().parent)


def _opened(settings: Settings) -> Iterator[Finding]:
    shown = store_file(settings) or "PostgreSQL"
    try:
        engine = reader(settings)
        try:
            with connect(engine) as connection:
                connection.execute(text("SELECT 1"))
            damage = migrate.find_damage(engine)
            revision = migrate.current(engine)
            more = [*_unseen_rooms(engine, settings), *_jump(engine)] if revision == migrate.head() else []
        finally:
            engine.dispose()
    except (StoreError, DBAPIError) as error:
        reason = str(error.orig).split("\n")[0] if isinstance(error, DBAPIError) else str(error)
        damaged = "malformed" in reason or "not a database" in reason
        advice = "restore a backup: docs/backup.md" if damaged else "check store.url and data_dir"
        yield fail("store", f"cannot read {shown}: {reason}", advice)
        return
    if damage is not None:
        yield fail("store", damage, "`trunkline db check` shows details")
        return
    yield ok("store", f"{shown} opens")
    yield schema(revision)
    yield from more


def _unseen_rooms(engine: Engine, settings: Settings) -> Iterator[Finding]:
    """Find rooms of the settings in which no message was seen, on channels that have seen others."""
    with connect(engine) as connection:
        seen = {
            (channel.partition(".")[0], chat)
            for channel, chat in connection.execute(select(t.room.c.channel, t.room.c.chat))
        }
    for name, channel in settings.channels.items():
        tables = (channel.rooms, *(account.rooms for account in channel.accounts.values()))
        chats = dict.fromkeys(chat for rooms in tables for chat in rooms.named)
        if not any(active == name for active, _ in seen):
            continue
        for chat in chats:
            if (name, chat) not in seen:
                yield warn(
                    f"rooms of {name}",
                    f"no message was seen in the room {json.dumps(chat)} of the settings",
                    f"compare its id with `trunkline channels rooms {name}`",
                )


def _jump(engine: Engine) -> Iterator[Finding]:
    """Find that retention does not believe the clock."""
    with connect(engine) as connection:
        jump = find_jump(connection, now_ms())
    if jump:
        yield warn("retention", jump, "set the clock if it is wrong; nothing has to be done if it is right")


def schema(revision: str | None) -> Finding:
    """Check that the tables are those of this version."""
    head = migrate.head()
    if revision == head:
        return ok("schema", f"revision {head}, the newest")
    if revision is not None and revision > head:
        return fail(
            "schema",
            f"revision {revision} is newer than this version, which has {head}",
            "use the newer version, or restore a backup",
        )
    return warn("schema", f"revision {revision or 'none'}, this version needs {head}", _UPGRADE)


def durability(settings: Settings) -> Finding:
    """Check that acknowledged messages survive a power loss."""
    if settings.durability == "relaxed":
        return warn(
            "durability",
            "relaxed: a power loss may lose the last messages",
            'set durability = "full" to keep every acknowledged message',
        )
    try:
        if store_file(settings) is None:
            open_engine(settings.store_url, "full").dispose()
    except WeakDurabilityError as error:
        return fail("durability", str(error), "ask the administrator of the database server")
    except StoreError as error:
        return fail("durability", str(error), "connect to the database server to check it")
    file = store_file(settings)
    if file is not None and _is_in_memory(file.absolute().parent):
        return warn(
            "durability",
            f"{file.absolute().parent} is in memory (tmpfs): a restart of the machine loses all messages",
            "choose a data_dir on a disk",
        )
    return ok("durability", "full: acknowledged messages survive a power loss")


def _is_in_memory(folder: Path) -> bool:
    """Return whether a directory, or the one in which it will be created, is on a tmpfs of Linux."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return False
    kinds = {mount[1]: mount[2] for mount in mounts}
    path = folder.resolve()
    return next((kinds[str(each)] for each in (path, *path.parents) if str(each) in kinds), "") == "tmpfs"


def sqlite(found: tuple[int, ...] = sqlite3.sqlite_version_info) -> Iterator[Finding]:
    """Find a SQLite that lacks RETURNING. Python brings it along, or uses that of the system."""
    if found < _OLDEST_SQLITE:
        shown, oldest = (".".join(map(str, version)) for version in (found, _OLDEST_SQLITE))
        yield fail(
            "sqlite",
            f"this Python has SQLite {shown}; the gateway needs {oldest} or newer",
            "use another Python, for example of a newer system, or PostgreSQL",
        )


def free_space(folder: Path) -> Iterator[Finding]:
    """Check the free space and that files can be written."""
    there = folder
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    shown = f"{free / _GIB:,.1f} GiB free at {folder}"
    if free < _TOO_LITTLE:
        yield fail("disk", shown, "free disk space: the gateway stops when it cannot store a message")
    elif free < _LITTLE:
        yield warn("disk", shown, "free disk space soon")
    else:
        yield ok("disk", shown)
    try:
        with tempfile.TemporaryFile(dir=there):
            yield ok("writable", str(folder) if there == folder else f"{folder} can be created")
    except OSError as error:
        yield fail("writable", f"{there}: {error.strerror}", "choose another data_dir, or change its owner")
