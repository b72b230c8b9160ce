"""Files of confined plugins: opened by the gateway below the granted folders, without following links."""

from __future__ import annotations

import asyncio
import base64
import binascii
import errno
import os
import posixpath
import stat
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from msgspec import Struct

from gateway.api import FOLDER, open_below
from gateway.contract.errors import InvalidRequestError, NotFoundError
from gateway.contract.services import EventService
from gateway.events.types import FileDeleted, FileModified
from gateway.extensions.admission.capabilities import FilesystemAccess
from gateway.extensions.broker.gate import CapabilityDenied, Gate, Use
from gateway.extensions.process.frames import Reply
from gateway.settings.layers.own_files import OwnFiles

WORKSPACE = "workspace"
"""The name of the root that is the gateway's working directory."""
_MOST_ENTRIES = 10_000
_LONGEST_PATH = 4096
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK

Verb = Literal["read", "write", "delete"]
Opener = Callable[[int, tuple[str, ...], int], int]


class PathCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A call that names a path: absolute, or below the workspace."""

    path: str
    session: str = ""


class WriteCall(Struct, frozen=True, forbid_unknown_fields=True):
    """New content of a file, in base64. With ``append`` it is added to the end."""

    path: str
    data: str
    append: bool = False
    session: str = ""


class Entry(Struct, frozen=True):
    """A file or folder in a listing; ``size`` is in bytes, 0 for a folder."""

    name: str
    folder: bool
    size: int


class _Place(Struct, frozen=True):
    """A path below a root: the root as declared, its folder, and the parts below it."""

    declared: str
    root: Path
    parts: tuple[str, ...]

    @property
    def path(self) -> str:
        return posixpath.join(str(self.root), *self.parts)


class Files:
    """Files of one plugin. ``plugin`` is its name.

    ``own`` returns files of the gateway, also those that settings named since the start. What is closed of
    them is not opened by a root that is not in it.
    """

    def __init__(
        self,
        access: FilesystemAccess,
        workspace: Path,
        own: Callable[[], OwnFiles],
        gate: Gate,
        events: EventService,
        plugin: str,
    ) -> None:
        self._access = access
        self._workspace = workspace
        self._own, self._known = own, OwnFiles()
        self._closed: tuple[str, ...] = ()
        self._guarded: tuple[str, ...] = ()
        """The beginnings of the paths in ``_known``."""
        self._roots = [(root, self._folder(root)) for root in access.roots]
        self._gate = gate
        self._events = events
        self._by = f"plugin:{plugin}"
        self._writing = asyncio.Lock()
        """Two calls at once must not mix their contents in one file."""

    async def open(self, call: PathCall) -> Reply:
        """Open a file for reading. The reply carries a descriptor."""
        async with self._checked("read", call.path, call.session) as place:
            return Reply(
                {"size": 0}, await _opened_in_thread(partial(self._below, place, _READ, _open_regular))
            )

    async def list(self, call: PathCall) -> list[Entry]:
        """Return the entries of a folder, sorted by name, without those that are restricted."""
        async with self._checked("read", call.path, call.session) as place:
            # In a thread, as all work that a plugin can make long: it would hold up every conversation.
            entries = await asyncio.to_thread(self._entries, place)
        if len(entries) > _MOST_ENTRIES:
            raise InvalidRequestError(f"the folder {call.path!r} has more than {_MOST_ENTRIES:,} entries")
        return sorted(entries, key=lambda entry: entry.name)

    def _entries(self, place: _Place) -> list[Entry]:
        """Return the entries that are not restricted, at most one more than a listing may have."""
        with self._opened(place, FOLDER, open_below) as descriptor, os.scandir(descriptor) as found:
            shown = (one for one in found if not self._is_restricted((*place.parts, one.name)))
            return [
                Entry(one.name, one.is_dir(follow_symlinks=False), _size(one))
                for one in islice(shown, _MOST_ENTRIES + 1)
            ]

    async def write(self, call: WriteCall) -> int:
        """Write a file and return the number of bytes. Its folder must exist."""
        try:
            data = base64.b64decode(call.data, validate=True)
        except binascii.Error:
            raise InvalidRequestError("fs.write: data is not base64") from None
        flags = _WRITE | (os.O_APPEND if call.append else os.O_TRUNC)
        async with self._checked("write", call.path, call.session) as place, self._writing:
            await asyncio.to_thread(self._put, place, flags, data)
        self._events.emit(FileModified(call.session, place.path, by=self._by))
        return len(data)

    def _put(self, place: _Place, flags: int, data: bytes) -> None:
        with self._opened(place, flags, _open_regular) as descriptor:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]

    async def delete(self, call: PathCall) -> None:
        """Delete a file."""
        async with self._checked("delete", call.path, call.session) as place:
            if not place.parts:
                raise InvalidRequestError(f"{call.path!r} is a folder; only files can be deleted")
            async with self._writing:
                await asyncio.to_thread(self._remove, place)
        self._events.emit(FileDeleted(call.session, place.path, by=self._by))

    def _remove(self, place: _Place) -> None:
        folder = _Place(place.declared, place.root, place.parts[:-1])
        with self._opened(folder, FOLDER, open_below) as descriptor:
            try:
                os.unlink(place.parts[-1], dir_fd=descriptor)
            except OSError as error:
                raise _failed(place.path, error) from None

    @asynccontextmanager
    async def _checked(self, verb: Verb, path: str, session: str) -> AsyncGenerator[_Place]:
        """Yield the place of a path that may be used in this way. Raises CapabilityDenied."""
        place = self._find(path)
        capability = f"filesystem.{verb}"
        declared = place is not None and getattr(self._access, verb)
        grant = f"{capability}:{place.declared}" if place is not None and declared else None
        missing = (
            f"capabilities.filesystem.{verb}: true" if place else f"{path!r} below one of filesystem.roots"
        )
        action = f"{verb} files in {place.root}" if place else f"{verb} {path}"
        restricted = place is not None and self._is_restricted(place.parts)
        refused = f"{path!r} is restricted by the manifest of the plugin" if restricted else ""
        if place is not None and self._is_closed(place, verb):
            refused = f"{path!r} belongs to the gateway, whose data and settings are closed to plugins"
        use = Use(capability, path, grant, action, missing, session, (path,), refused)
        async with self._gate.using(use):
            assert place is not None
            yield place

    def _find(self, path: str) -> _Place | None:
        if "\0" in path or len(path) > _LONGEST_PATH:
            raise InvalidRequestError(f"a path has 1 to {_LONGEST_PATH} characters, and no NUL")
        normal = Path("/" + posixpath.normpath(posixpath.join(str(self._workspace), path)).lstrip("/"))
        below = [(name, root) for name, root in self._roots if normal.is_relative_to(root)]
        if not below:
            return None
        name, root = max(below, key=lambda one: len(one[1].parts))
        return _Place(name, root, normal.relative_to(root).parts)

    @contextmanager
    def _opened(self, place: _Place, flags: int, opener: Opener) -> Generator[int]:
        """Open a place for as long as the block, whose OSError is one of the place."""
        descriptor = self._below(place, flags, opener)
        try:
            yield descriptor
        except OSError as error:
            raise _failed(place.path, error) from None
        finally:
            os.close(descriptor)

    def _below(self, place: _Place, flags: int, opener: Opener) -> int:
        try:
            base = os.open(place.root, FOLDER)
        except OSError as error:
            raise _failed(str(place.root), error) from None
        try:
            return opener(base, place.parts, flags)
        except OSError as error:
            raise _failed(place.path, error) from None
        finally:
            os.close(base)

    def _is_restricted(self, parts: tuple[str, ...]) -> bool:
        """Return whether a restricted glob covers a path, one of its folders, or one of their names."""
        lowered = [part.casefold() for part in parts]
        paths = ["/".join(lowered[: count + 1]) for count in range(len(lowered))]
        tails = ["/".join(lowered[count:]) for count in range(len(lowered))]
        globs = [glob.casefold().rstrip("/") for glob in self._access.restricted]
        return any(fnmatchcase(text, glob) for text in (*paths, *tails, *lowered) for glob in globs)

    def _is_closed(self, place: _Place, verb: Verb) -> bool:
        if (own := self._own()) != self._known:
            self._known, self._closed, self._guarded = own, _texts(own.closed), _texts(own.guarded)
        path, root = (f"{one}/".casefold() for one in (place.path, place.root))
        if verb != "read" and path.startswith(self._guarded):
            return True
        return any(path.startswith(one) and not root.startswith(one) for one in self._closed)

    def _folder(self, root: str) -> Path:
        return self._workspace if root == WORKSPACE else Path(root).expanduser().resolve()


async def _opened_in_thread(opened: Callable[[], int]) -> int:
    """Return a descriptor that a thread opens, and close it if the caller was cancelled meanwhile."""
    opening = asyncio.get_running_loop().run_in_executor(None, opened)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_result)
        raise


def _close_result(opening: asyncio.Future[int]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        os.close(opening.result())


def _texts(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return how paths below these begin: as they are written, and without links."""
    return tuple(f"{each}/".casefold() for path in paths for each in (path, path.resolve()))


def _open_regular(base: int, parts: tuple[str, ...], flags: int) -> int:
    """Open a regular file; a pipe or a device could hold up or harm the gateway. Raises OSError."""
    # Without O_TRUNC, so that nothing is emptied before its kind is known.
    descriptor = open_below(base, parts, flags & ~os.O_TRUNC, 0o644 if flags & os.O_CREAT else 0)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _size(entry: os.DirEntry[str]) -> int:
    return entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0


def _failed(path: str, error: OSError) -> Exception:
    if error.errno == errno.ENOENT:
        return NotFoundError(f"there is no {path!r}")
    if error.errno in (errno.ELOOP, errno.EXDEV):
        return CapabilityDenied(f"filesystem: {path!r} leads over a link, and links are not followed")
    return InvalidRequestError(f"{path!r} cannot be used: {error.strerror}")
