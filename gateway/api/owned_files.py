"""Files of the gateway: replaced as a whole, durable, and owned by the user of the service.

Commands of root must not leave files that a service with its own user cannot read or replace.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def exists(path: Path) -> bool:
    """Return whether a path leads to something. Raises OSError if that cannot be found out.

    ``Path.exists`` returns False then since Python 3.14, so that data which cannot be read counts as missing.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def may_exist(path: Path) -> bool:
    """Return whether a path leads to something, also if that cannot be found out: reading it says why."""
    try:
        return exists(path)
    except OSError:
        return True


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file as a whole, durable afterwards. Raises OSError; then the former file remains.

    A missing folder is made for its owner alone. A file that root writes gets the owner of the former one, or
    else of its folder.
    """
    owned_folder(path.parent)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            keep_owner(file.fileno(), path if exists(path) else path.parent)
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def keep_owner(descriptor: int, like: Path) -> None:
    """Give a file that root writes the owner of ``like``: its directory, or the file that it replaces.

    Commands of root must not leave files that a service with its own user cannot read.
    """
    if os.geteuid() == 0:
        found = like.stat()
        with suppress(OSError):  # a container may lack this user
            os.fchown(descriptor, found.st_uid, found.st_gid)


def owned_folder(folder: Path, mode: int = 0o700) -> None:
    """Make a folder with those above it that are missing; each new one gets the owner of the folder above."""
    missing = [each for each in (folder, *folder.parents) if not exists(each)]
    folder.mkdir(mode, parents=True, exist_ok=True)
    for each in reversed(missing):
        keep_owner_of_tree(each, each.parent)


def keep_owner_of_tree(folder: Path, like: Path) -> None:
    """Give a folder that root made, and all that is in it, the owner of ``like``."""
    if os.geteuid() != 0:
        return
    found = like.stat()
    for _, _, files, descriptor in os.fwalk(folder):
        with suppress(OSError):
            os.fchown(descriptor, found.st_uid, found.st_gid)
            for name in files:
                os.chown(name, found.st_uid, found.st_gid, dir_fd=descriptor, follow_symlinks=False)
