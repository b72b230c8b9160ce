"""Folders in the settings of which another machine may have other content after a takeover."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from gateway.settings import Settings, is_loopback
from gateway.settings.entries import ENABLED

_TABLES = ("plugins", "mcp")
_OF_PROGRAMS = "readable"
"""Further folders that programs may read, such as those of a toolchain: each machine has its own."""
_WITH_LOGINS = "cli_backends"


def find_unshared(settings: Settings) -> Sequence[str]:
    """Return the folders that nodes on other machines may not share, each as its key and path.

    Those are outside the data directory and its file system. Without nodes on other machines there are none.
    """
    address = settings.cluster.address
    if address is None or is_loopback(urlsplit(f"//{address}").hostname or ""):
        return ()
    data = settings.data_dir.resolve()
    return [f"{key} = {path}" for key, path in _named(settings) if not _is_shared(path, data)]


def _named(settings: Settings) -> Iterator[tuple[str, Path]]:
    for entry in settings.entries:
        if entry.path[0] in _TABLES and entry.path != ENABLED and entry.path[-1] != _OF_PROGRAMS:
            for text in _texts(entry.value):
                if text.startswith(("/", "~/")) and (path := Path(text).expanduser()).is_dir():
                    yield entry.key, path
    if _WITH_LOGINS in settings.plugins.enabled:
        yield f"logins of {_WITH_LOGINS} (home folder)", Path.home()


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (each for each in cast("list[Any]", value) if isinstance(each, str))


def _is_shared(path: Path, data: Path) -> bool:
    """Return whether a folder is in the data directory, or in the file system that has it."""
    if path.resolve().is_relative_to(data):
        return True
    try:
        return path.stat().st_dev == data.stat().st_dev
    except OSError:
        return False
