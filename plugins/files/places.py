"""Places: the paths that a model names, and the descriptors that they lead to.

A path is made absolute and normal by its text alone. It is then opened below its root without following any
link, and every further operation uses the descriptor of its folder: what happens to the names meanwhile
cannot lead the operation elsewhere.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from msgspec import Struct

from gateway import ToolError
from gateway.api import FOLDER, open_below
from plugins.files.settings import SYSTEM

_LONGEST_PATH = 4096


class Place(Struct, frozen=True):
    """A path: ``parts`` below the folder ``base``, which is a root, or ``/`` outside the roots.

    ``shown`` is the path for models and permissions: relative in the first root, else absolute.
    """

    base: Path
    parts: tuple[str, ...]
    shown: str
    outside: bool = False

    @property
    def path(self) -> str:
        """The absolute path."""
        return posixpath.join(str(self.base), *self.parts)

    @property
    def folder(self) -> str:
        """The absolute path of the folder that contains it."""
        return posixpath.dirname(self.path)

    def below(self, *names: str) -> Place:
        """Return a place in this folder."""
        shown = posixpath.join("" if self.shown == "." else self.shown, *names)
        return Place(self.base, (*self.parts, *names), shown, self.outside)


class Places:
    """The roots, and the folders that no tool may enter.

    ``protected`` are folders of the gateway. A root inside one of them is allowed, the rest is not.
    """

    def __init__(self, roots: Sequence[Path], protected: Sequence[Path] = ()) -> None:
        self._roots = tuple(roots)
        self._first = roots[0]
        self._closed = [str(folder).casefold() for folder in (*protected, *map(Path, SYSTEM))]

    def find(self, text: str) -> Place:
        """Return the place of a path as a model writes it. Raises ToolError."""
        if "\0" in text:
            raise ToolError("a path has no NUL character")
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise ToolError("a path must be valid UTF-8") from None
        if size > _LONGEST_PATH:
            raise ToolError(f"a path may have at most {_LONGEST_PATH} bytes")
        path = Path("/" + posixpath.normpath(posixpath.join(str(self._first), text)).lstrip("/"))
        roots = [root for root in self._roots if path.is_relative_to(root)]
        root = max(roots, key=lambda root: len(root.parts), default=None)
        if root is None:
            place = Place(Path("/"), path.parts[1:], str(path), outside=True)
        else:
            parts = path.relative_to(root).parts
            place = Place(root, parts, "/".join(parts) or "." if root == self._first else str(path))
        if self.is_closed(place):
            raise ToolError(f"{place.shown} belongs to the gateway or the system; tools may not use it")
        return place

    def is_closed(self, place: Place) -> bool:
        """Return whether a place is in a folder that no tool may enter."""
        path = place.path.casefold()
        return any(
            (path + "/").startswith(folder + "/")
            and not (str(place.base).casefold() + "/").startswith(folder + "/")
            for folder in self._closed
        )


@contextmanager
def folder_of(place: Place, *, create: list[Place] | None = None) -> Generator[tuple[int, str]]:
    """Yield the descriptor of the folder that contains a place, and the name in it.

    With ``create`` missing folders are made and added to it. Raises ToolError.
    """
    if not place.parts:
        raise ToolError(f"{place.shown} is a folder")
    parent = Place(place.base, place.parts[:-1], posixpath.dirname(place.shown) or ".", place.outside)
    if create is not None:
        _make_folders(parent, create)
    descriptor = open_folder(parent)
    try:
        yield descriptor, place.parts[-1]
    finally:
        os.close(descriptor)


def open_folder(place: Place) -> int:
    """Return a descriptor of a folder; the caller closes it. Raises ToolError."""
    try:
        base = os.open(place.base, FOLDER)
    except OSError as error:
        raise ToolError(f"the folder {place.base} cannot be opened: {error.strerror}") from None
    try:
        return open_below(base, place.parts, FOLDER)
    except OSError as error:
        refuse(place, error, base)
    finally:
        os.close(base)


def refuse(place: Place, error: OSError, base: int | None = None) -> NoReturn:
    """Raise the ToolError for a failed operation on a place."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR) and (link := _link_in(place, base)):
        raise ToolError(f"{link}; links are not followed: use the path of the file itself") from None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise ToolError(f"{place.shown} was not changed: the disk is full") from None
    if error.errno == errno.EROFS:
        raise ToolError(f"{place.shown} was not changed: the file system is read-only") from None
    reason = {errno.ENOENT: "does not exist", errno.EACCES: "may not be accessed"}.get(error.errno or 0)
    raise ToolError(f"{place.shown} {reason or f'cannot be used: {error.strerror}'}") from None


def _make_folders(place: Place, made: list[Place]) -> None:
    for count in range(len(place.parts)):
        missing = Place(place.base, place.parts[: count + 1], place.shown, place.outside)
        with folder_of(missing) as (folder, name):
            try:
                os.mkdir(name, 0o777, dir_fd=folder)
                made.append(missing)
            except FileExistsError:
                continue
            except OSError as error:
                refuse(place, error)


def _link_in(place: Place, base: int | None) -> str:
    """Return which part of a path is a link and where it leads; "" if none is."""
    opened = os.open(place.base, FOLDER) if base is None else os.dup(base)
    try:
        for count, part in enumerate(place.parts, 1):
            state = os.stat(part, dir_fd=opened, follow_symlinks=False)
            if stat.S_ISLNK(state.st_mode):
                leads = os.readlink(part, dir_fd=opened)
                return f"{'/'.join(place.parts[:count])} is a link to {leads}"
            following = os.open(part, FOLDER, dir_fd=opened)
            os.close(opened)
            opened = following
    except OSError:
        return ""
    finally:
        os.close(opened)
    return ""
