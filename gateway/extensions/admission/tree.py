"""The files of a plugin's folder: their limits, and one hash over path, mode and content of all of them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gateway.contract.errors import PluginError

MOST_FILES = 5_000
MOST_BYTES = 100_000_000
SITE = "site"
"""Folder of a plugin's dependencies."""
FORBIDDEN = ("sitecustomize.py", "usercustomize.py")
"""Files that an interpreter runs at its start, beside ``.pth`` files."""
_REPOSITORY = ".git"
_CHUNK = 1 << 20


def tree_digest(folder: Path, *, compiled: bool = False) -> str:
    """Return the hash of a folder: ``sha256:`` and 64 digits.

    A repository's own data (``.git``) does not count, nor does compiled code if ``compiled`` allows it, which
    an environment has beside its packages. Raises PluginError for links, devices, compiled code,
    files that run at the start of an interpreter, and too many or too large files.
    """
    total = hashlib.sha256()
    for path, found in files_of(folder, compiled=compiled):
        try:
            content = _content_digest(folder / path)
        except OSError as error:
            raise PluginError(f"{folder / path} cannot be read: {error.strerror}") from None
        name = os.fsencode(path)
        total.update(b"%d:%s %o %s\n" % (len(name), name, stat.S_IMODE(found.st_mode), content))
    return f"sha256:{total.hexdigest()}"


def files_of(folder: Path, *, compiled: bool = False) -> list[tuple[str, os.stat_result]]:
    """Return the files below a folder, sorted, with their relative paths. Raises PluginError."""
    try:
        files = sorted(_walk(folder, compiled=compiled))
    except OSError as error:
        raise PluginError(f"{folder} cannot be read: {error.strerror}") from None
    size = sum(found.st_size for _, found in files)
    if size > MOST_BYTES:
        raise PluginError(f"{folder} has {size} bytes; at most {MOST_BYTES} are allowed")
    return files


def check_path(path: str, where: str) -> None:
    """Raise PluginError for a path in a plugin that leads out of it, or that an interpreter runs itself."""
    parts = path.split("/")
    if not path or "\\" in path or "\0" in path or {"", ".", ".."} & {*parts}:
        raise PluginError(f"{where}: {path!r} leads out of the folder; the plugin is not safe")
    if path.endswith(".pth") or parts[-1] in FORBIDDEN:
        raise PluginError(f"{where}: {path} would run at the start of an interpreter; the plugin is not safe")


def _walk(folder: Path, *, compiled: bool) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files of a folder and of those below it."""
    count = 0
    waiting = [""]
    while waiting:
        at = waiting.pop()
        with os.scandir(folder / at) as entries:
            for entry in entries:
                path = f"{at}/{entry.name}" if at else entry.name
                if path == _REPOSITORY or (compiled and _is_compiled(path)):
                    continue
                found = entry.stat(follow_symlinks=False)
                _check_entry(folder, path, found)
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(path)
                    continue
                count += 1
                if count > MOST_FILES:
                    raise PluginError(f"{folder} has more than {MOST_FILES} files")
                yield path, found


def _check_entry(folder: Path, path: str, found: os.stat_result) -> None:
    check_path(path, str(folder))
    if stat.S_ISLNK(found.st_mode):
        raise PluginError(f"{folder}: {path} is a link; replace it by the file")
    if not stat.S_ISDIR(found.st_mode) and not stat.S_ISREG(found.st_mode):
        raise PluginError(f"{folder}: {path} is not a regular file; remove it")
    if _is_compiled(path):
        raise PluginError(f"{folder}: {path} is compiled code, which may differ from its source; delete it")


def _is_compiled(path: str) -> bool:
    return path.endswith((".pyc", "__pycache__"))


def _content_digest(file: Path) -> bytes:
    content = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            content.update(chunk)
    return content.hexdigest().encode()
