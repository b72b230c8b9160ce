"""``trunkline backup`` and ``trunkline restore``: one archive of the database and the data directory."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import time
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from sqlalchemy import Engine, inspect
from sqlalchemy.exc import DatabaseError

from gateway.api.owned_files import exists, keep_owner
from gateway.cli.database_copy import (
    FORMAT,
    Manifest,
    check_file,
    copy_file,
    dump_server,
    load_server,
    replace_file,
    staging,
)
from gateway.cli.options import REFUSED, AsJson, File, fail, refuse, settings_from, to_json
from gateway.cli.store_reader import UNFINISHED, reader, store_file
from gateway.commands.agent_draft import FOLDER as AGENTS
from gateway.contract.errors import StoreError
from gateway.extensions.admission.secrets import FOLDER as SECRETS
from gateway.mcp.plugin import FOLDER as MCP
from gateway.settings import Settings
from gateway.store import migrate
from gateway.store.engine import lock, open_engine, open_error, sync
from gateway.store.schema import metadata
from gateway.version import VERSION

_MANIFEST = "trunkline.json"
_DATABASES = {"sqlite": "trunkline.db", "postgresql": "trunkline.sql"}
"""Name of the database in an archive, by its kind."""
_FOLDER = "data/"
_STAGING = ".trunkline-backup-"
_FOLDERS: Mapping[str, tuple[str, ...]] = {
    AGENTS: (".md",),
    SECRETS: (".json",),
    MCP: (".json", ".login"),
}
"""Subdirectories of the data directory that a backup contains, with the suffixes of their files."""
_LARGEST_MANIFEST = 65_536
_NOT_KEPT = (".lock", ".new", ".part", ".before-restore", "-wal", "-shm", ".tar.gz", UNFINISHED)
"""Suffixes of files in the data directory that a backup leaves out."""


def backup(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="Archive to write; default: trunkline-<time>.tar.gz in this directory.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Back up the database and the data directory to one archive. The gateway may run meanwhile.

    The archive contains conversations, credentials, secrets of plugins, approved tools and logins of MCP
    servers, and the agents that `/agent new` saved; only you can read it. It does not contain settings,
    environment variables, keys in a keyring, or other subdirectories of the data directory.

    \b
    Examples:
      trunkline backup
      trunkline backup /var/backups/trunkline.tar.gz
    """

    settings = settings_from(config)
    target = file or Path(time.strftime("trunkline-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    if target.is_dir():
        fail(f"{target} is a directory; name a file in it", REFUSED)
    if exists(target):
        fail(f"{target} exists; choose another name or remove it")
    try:
        # First: a user who may not read the database hears that, and not that the archive cannot be written.
        reader(settings).dispose()
    except StoreError as error:
        refuse(error)
    # Beside the archive: the place of temporary files may be in memory, or too small for a database.
    beside = target.absolute().parent
    try:
        with staging(_STAGING, beside) as folder, Console(stderr=True).status(f"writing {target}"):
            names = _write(settings, target, folder)
    except StoreError as error:
        refuse(error)
    except OSError as error:
        if error.filename and not str(error.filename).startswith((str(target), str(beside / _STAGING))):
            raise
        fail(f"cannot write {target}: {error.strerror}")
    size = target.stat().st_size
    if as_json:
        typer.echo(to_json({"file": str(target), "bytes": size, "contents": names}))
    else:
        typer.echo(f"{target}: {size:,} bytes, with {', '.join(names)}")


def restore(
    file: Annotated[Path, typer.Argument(help="Archive of `trunkline backup`.", show_default=False)],
    force: Annotated[
        bool, typer.Option("--force", help="Replace existing data; keeps a SQLite file beside the new one.")
    ] = False,
    as_json: AsJson = False,
    config: File = None,
) -> None:
    """Restore a backup. Stop the gateway first.

    \b
    Examples:
      trunkline restore trunkline-20260131T040000Z.tar.gz
      trunkline restore trunkline-20260131T040000Z.tar.gz --force
    """

    settings = settings_from(config)
    try:
        with tarfile.open(file, "r:gz") as archive, Console(stderr=True).status(f"restoring {file}"):
            found = _read(settings, archive, force=force)
    except StoreError as error:
        refuse(error)
    except (gzip.BadGzipFile, zlib.error, tarfile.TarError, EOFError) as error:
        fail(f"cannot restore {file}: it is damaged, or not an archive of `trunkline backup` ({error})")
    except OSError as error:
        reason = error.strerror or str(error)
        fail(f"cannot restore {file}: {reason}")
    if as_json:
        typer.echo(to_json(found))
    else:
        typer.echo(f"restored {', '.join(found['contents'])} from {found['created']}")
        if found["former"]:
            typer.echo(f"the previous database is {found['former']}")


# --- writing -------------------------------------------------------------------------------------------


def _write(settings: Settings, target: Path, folder: Path) -> list[str]:
    """Write an archive, with ``folder`` for the copy of the database; return the names of its members."""

    partial = folder / target.name
    manifest, copy = _copied(settings, folder)
    described = folder / _MANIFEST
    described.write_bytes(msgspec.json.encode(manifest))
    # The default level of compression takes three times as long, for an archive that is 3 % smaller.
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with (
        os.fdopen(descriptor, "wb") as raw,
        tarfile.open(fileobj=raw, mode="w:gz", compresslevel=6) as archive,
    ):
        archive.add(described, _MANIFEST)
        archive.add(copy, copy.name)
        for path in _files(settings):
            archive.add(path, f"{_FOLDER}{path.relative_to(settings.data_dir).as_posix()}", recursive=False)
        names = [name for name in archive.getnames() if name != _MANIFEST]
    _sync_and_rename(partial, target)
    return names


def _copied(settings: Settings, folder: Path) -> tuple[Manifest, Path]:
    """Copy the database; return its manifest and the copy."""

    engine = reader(settings)
    try:
        with _readable(engine):
            lost, revision = migrate.find_damage(engine), migrate.current(engine)
        if lost is not None or revision is None:
            raise StoreError(lost or "the database is empty; `trunkline run` fills it")
        file = store_file(settings)
        kind = "postgresql" if file is None else "sqlite"
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        copy = folder / _DATABASES[kind]
        if file is None:
            dump_server(engine.url, copy, os.environ)
        else:
            copy_file(file, copy)
        return Manifest(VERSION, kind, revision, created), copy
    finally:
        engine.dispose()


@contextmanager
def _readable(engine: Engine) -> Generator[None]:
    try:
        yield
    except DatabaseError as error:
        raise open_error(engine, error) from None


def _files(settings: Settings) -> Iterator[Path]:
    """Yield the files of the data directory besides the database, such as credentials, and of `_FOLDERS`."""

    database = store_file(settings)
    for path in _files_in(settings.data_dir):
        ours = database is not None and path.absolute() == database.absolute()
        if not ours and not path.name.endswith(_NOT_KEPT):
            yield path
    for folder, suffixes in _FOLDERS.items():
        yield from (path for path in _files_in(settings.data_dir / folder) if path.suffix in suffixes)


def _files_in(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder by name, without links. Raises OSError for what cannot be read."""
    # Not Path.glob and Path.is_file, which leave out what cannot be read.
    for path in sorted(folder.iterdir()) if exists(folder) else ():
        with suppress(FileNotFoundError):
            if stat.S_ISREG(path.lstat().st_mode):
                yield path


def _sync_and_rename(partial: Path, target: Path) -> None:
    sync(partial)
    partial.replace(target)
    sync(target.absolute().parent)


# --- reading -------------------------------------------------------------------------------------------


def _read(settings: Settings, archive: tarfile.TarFile, *, force: bool) -> dict[str, Any]:
    """Restore an archive. Raises StoreError when it does not fit, or data exists and ``force`` is false."""

    manifest = _manifest(archive)
    engine = open_engine(settings.store_url, "relaxed")
    try:
        _check(manifest, engine)
        held = lock(engine)
        try:
            settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = migrate.database_file(engine)
            beside = settings.data_dir if file is None else file.absolute().parent
            # Beside the files they replace: a rename works only within a file system.
            with (
                staging(".restore-", beside) as folder,
                staging(".restore-", settings.data_dir) as kept,
            ):
                database, others = _extracted(archive, folder, kept, manifest.store)
                if not force:
                    _check_free(settings, engine, others)
                # Before the database: a file in place of a folder must stop the restore early.
                for name in others:
                    (settings.data_dir / name).parent.mkdir(mode=0o700, exist_ok=True)
                    _keep_owner((settings.data_dir / name).parent, settings.data_dir)
                    _keep_owner(Path(kept, name), settings.data_dir)
                for path in (database, beside / f"{database.name}.lock"):
                    _keep_owner(path, beside)
                unfinished = settings.data_dir / UNFINISHED
                unfinished.touch(0o600)
                sync(settings.data_dir)
                try:
                    former = _put_database(engine, database)
                except StoreError:  # nothing was replaced
                    unfinished.unlink()
                    raise
                for name in others:
                    Path(kept, name).replace(settings.data_dir / name)
                unfinished.unlink()
        finally:
            held.release()
    finally:
        engine.dispose()
    return {
        "created": manifest.created,
        "revision": manifest.revision,
        "contents": [database.name, *(f"{_FOLDER}{name}" for name in others)],
        "former": None if former is None else str(former),
    }


def _manifest(archive: tarfile.TarFile) -> Manifest:
    first = archive.next()
    reader = archive.extractfile(first) if first is not None and first.name == _MANIFEST else None
    try:
        manifest = msgspec.json.decode(reader.read(_LARGEST_MANIFEST) if reader else b"", type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError):
        manifest = None
    if manifest is None or manifest.format != FORMAT:
        raise StoreError("this is not an archive of `trunkline backup` of this version")
    return manifest


def _check(manifest: Manifest, engine: Engine) -> None:
    if manifest.store != engine.dialect.name:
        raise StoreError(
            f"the backup contains {manifest.store}, but store.url names {engine.dialect.name}; "
            "restore it with settings for the same kind of database"
        )
    if manifest.revision not in migrate.revisions():
        raise StoreError(
            f"the backup has schema {manifest.revision}, newer than {migrate.head()} of this version; "
            f"use Trunkline {manifest.version}, which wrote it, or a newer one"
        )


def _extracted(archive: tarfile.TarFile, folder: Path, kept: Path, kind: str) -> tuple[Path, list[str]]:
    """Extract and check the database, and extract the other files, whose names in the data directory are
    returned. Members elsewhere are ignored.
    """
    database, others = folder / _DATABASES[kind], list[str]()
    for member in archive:
        inner = member.name.removeprefix(_FOLDER)
        name = Path(inner).name
        if not member.isfile() or not name:
            continue
        if member.name == database.name:
            _extract(archive, member, database)
        elif member.name == f"{_FOLDER}{name}" or (
            inner != member.name
            and any(inner == f"{each}/{name}" and name.endswith(ends) for each, ends in _FOLDERS.items())
        ):
            others.append(inner)
            (kept / inner).parent.mkdir(exist_ok=True)
            _extract(archive, member, kept / inner)
    # The checksum follows the last member.
    assert archive.fileobj is not None, "an archive that was opened has a file"
    while archive.fileobj.read(1 << 20):
        pass
    if not database.exists():
        raise StoreError(f"the archive lacks {database.name}")
    if kind == "sqlite":
        check_file(database)
    return database, others


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    source = archive.extractfile(member)
    assert source is not None, "the caller takes only files"
    with source, os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        shutil.copyfileobj(source, file)
        file.flush()
        os.fsync(file.fileno())


def _keep_owner(path: Path, folder: Path) -> None:
    """Give a restored file the owner of its directory; see ``keep_owner``."""
    with suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            keep_owner(descriptor, folder)
        finally:
            os.close(descriptor)


def _check_free(settings: Settings, engine: Engine, names: list[str]) -> None:
    """Raise StoreError if the backup would replace data. An empty database is not data."""

    file = migrate.database_file(engine)
    there = [name for name in names if exists(settings.data_dir / name)]
    if file is not None:
        there += [str(file)] if exists(file) and file.stat().st_size else []
    else:
        with _readable(engine):
            there += sorted(set(inspect(engine).get_table_names()) & metadata.tables.keys())
    if there:
        raise StoreError(f"{', '.join(there)} would be replaced; use --force to replace it")


def _put_database(engine: Engine, fresh: Path) -> Path | None:
    """Put the database in place; return the path of the previous SQLite file."""

    file = migrate.database_file(engine)
    if file is None:
        load_server(engine.url, fresh, os.environ)
        return None
    former = replace_file(file, fresh)
    sync(file.absolute().parent)
    return former
