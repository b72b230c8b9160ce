"""The lock file, ``plugins.lock.toml``: which content of each plugin the operator approved, and its grants.

It is beside the operator's settings file and only read there: a lock in a project would approve the plugins
that come with it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import tomllib
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gateway.api.owned_files import replace_file
from gateway.contract.errors import PluginError
from gateway.extensions.admission.capabilities import Grant
from gateway.extensions.admission.manifest import is_name

LOCK = "plugins.lock.toml"
_VERSION = 1
_HEADER = "Written by `trunkline plugin`. It holds what you approved: edit it only to remove an entry."


class Granted(Struct, frozen=True, forbid_unknown_fields=True):
    """A grant with its grantor and the time (ISO 8601, UTC)."""

    grant: Grant
    by: str
    at: str


class Wheel(Struct, frozen=True, forbid_unknown_fields=True):
    """A wheel that was unpacked into the plugin's ``site``: its file name and hash."""

    file: str
    sha256: str


class Locked(Struct, frozen=True, forbid_unknown_fields=True):
    """An approved plugin. ``digest`` is the hash of its folder, dependencies included.

    ``source`` is the exact origin, ``requested`` the one to look for updates. ``wheels`` are the packages to
    install it from, the plugin's own first if it is one.
    """

    version: str
    source: str
    digest: str
    approved_by: str
    approved_at: str
    requested: str = ""
    grants: tuple[Granted, ...] = ()
    wheels: tuple[Wheel, ...] = ()


class _File(Struct, forbid_unknown_fields=True):
    version: int
    plugins: dict[str, Locked] = {}


class Lock:
    """The approved plugins by name."""

    def __init__(self, path: Path, plugins: Mapping[str, Locked] | None = None) -> None:
        self.path = path
        self.plugins: dict[str, Locked] = dict(plugins or {})

    @classmethod
    def read(cls, path: Path) -> Lock:
        """Read a lock file; a missing one is empty. Raises PluginError."""
        try:
            # Not followed: a link could lead to the lock of another place.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return cls(path)
        except OSError as error:
            raise PluginError(f"{path} cannot be read: {error.strerror}") from None
        with os.fdopen(descriptor, "rb") as file:
            if os.fstat(descriptor).st_mode & stat.S_IWOTH:
                raise PluginError(f"every user can write to {path}, so it is not read; run chmod o-w {path}")
            return cls(path, _parsed(file.read(), path))

    def get(self, name: str) -> Locked | None:
        """Return the entry of a plugin, or None."""
        return self.plugins.get(name)

    def put(self, name: str, locked: Locked) -> None:
        """Add or replace an entry."""
        self.plugins[name] = locked

    def remove(self, name: str) -> None:
        """Remove an entry, if there is one."""
        self.plugins.pop(name, None)

    def dumps(self) -> str:
        """Return the text of the file."""
        import tomlkit  # at first use: only commands write the file

        document = tomlkit.document()
        document.add(tomlkit.comment(_HEADER))
        content: dict[str, Any] = msgspec.to_builtins(_File(_VERSION, dict(sorted(self.plugins.items()))))
        for key, value in content.items():
            document.add(key, tomlkit.item(value))
        return tomlkit.dumps(document)

    def write(self) -> None:
        """Replace the file; durable afterwards. Raises PluginError."""
        try:
            # It has no secrets. An operator writes it as root, and a service reads it as its own user.
            replace_file(self.path, self.dumps().encode(), 0o644)
        except OSError as error:
            raise PluginError(f"{self.path} cannot be written: {error.strerror}") from None


@contextmanager
def editing(path: Path) -> Generator[Lock]:
    """Yield the lock to change it; it is written at the end of the block, if that raises nothing.

    Other processes wait meanwhile, so no change is lost. Raises PluginError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        lock = Lock.read(path)
        before = dict(lock.plugins)
        yield lock
        if lock.plugins != before:
            lock.write()
    finally:
        os.close(descriptor)


def granted(grants: Iterable[Grant], by: str) -> tuple[Granted, ...]:
    """Return grants that are given now."""
    return tuple(Granted(grant, by, now()) for grant in grants)


def now() -> str:
    """Return the time as it is written to the lock."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _parsed(data: bytes, path: Path) -> dict[str, Locked]:
    try:
        tree: Any = tomllib.loads(data.decode("utf-8"))
        file = msgspec.convert(tree, _File)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        advice = "restore it, or delete it and approve the plugins again"
        raise PluginError(f"{path} is not a lock file: {error}; {advice}") from None
    if file.version != _VERSION:
        raise PluginError(f"{path} has version {file.version}, but this gateway reads {_VERSION}; upgrade it")
    if wrong := next((name for name in file.plugins if not is_name(name)), None):
        raise PluginError(f"{path}: {wrong!r} is not the name of a plugin; remove the entry")
    return file.plugins
