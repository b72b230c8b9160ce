"""Changes: the new contents of one or more files, which all take effect or none.

A file is written under a temporary name in its folder, synced, and renamed. Before that every file is
compared with the content that the change was made from.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

import structlog
from msgspec import Struct

from gateway import ToolError
from gateway.api import FileChange
from plugins.files.content import READ, Content, find_file, read_in
from plugins.files.places import Place, folder_of, refuse

log = structlog.get_logger("trunkline.files")

_NEW_MODE = 0o666
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Change(Struct, frozen=True):
    """The change of one file: None in ``before`` creates it, None in ``after`` deletes it.

    ``mode`` is that of a new file; default: what the gateway's umask leaves.
    """

    place: Place
    before: Content | None
    after: bytes | None
    mode: int | None = None

    @property
    def record(self) -> FileChange:
        """The change as the gateway records it."""
        place, before = self.place, self.before
        mode = None if before is None else before.mode
        return FileChange(
            place.path,
            None if before is None else before.data,
            self.after,
            place.shown,
            "" if place.outside else str(place.base),
            mode,
            self.mode if before is None else mode,
        )


class _Step:
    """A change in progress: the open folder, and the names that rolling back needs."""

    def __init__(self, change: Change, folder: int, name: str) -> None:
        self.change = change
        self.folder = folder
        self.name = name
        token = secrets.token_hex(8)
        self.temporary = f".trunkline-{token}.new"
        self.backup = f".trunkline-{token}.old"
        self.installed = False


class Changes:
    """Applies changes, one set of them at a time."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = threading.Lock()

    def apply(self, changes: Sequence[Change], stopped: Callable[[], bool] = lambda: False) -> None:
        """Make all changes durable, or none. Raises ToolError. ``stopped`` is asked once before the first."""
        for change in changes:
            self._check(change)
        made: list[Place] = []
        with self._lock, ExitStack() as stack:
            steps: list[_Step] = []
            try:
                for change in changes:
                    create = None if change.after is None else made
                    folder, name = stack.enter_context(folder_of(change.place, create=create))
                    steps.append(_Step(change, folder, name))
                    self._prepare(steps[-1])
                if stopped():
                    raise ToolError("the call was stopped; nothing was changed")
                for step in steps:
                    self._install(step, alone=len(steps) == 1)
            except BaseException:
                _roll_back(steps, made)
                raise
            _clean(steps)

    def _check(self, change: Change) -> None:
        if change.after is not None and len(change.after) > self._most_bytes:
            raise ToolError(
                f"{change.place.shown} would have {len(change.after)} bytes; "
                f"at most {self._most_bytes} can be written"
            )
        if change.before is not None and not change.before.mode & 0o222:
            raise ToolError(f"{change.place.shown} is read-only (mode {change.before.mode:o})")

    def _prepare(self, step: _Step) -> None:
        """Write the new content under its temporary name."""
        change = step.change
        if change.after is None:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(step.temporary, flags, _NEW_MODE, dir_fd=step.folder)
            with os.fdopen(descriptor, "wb") as file:
                file.write(change.after)
                mode = change.mode if change.before is None else change.before.mode
                if mode is not None:
                    # Without the set-user-id bits: they were given to the old content.
                    os.fchmod(descriptor, mode & 0o777)
                file.flush()
                os.fsync(descriptor)
        except OSError as error:
            refuse(change.place, error)

    def _install(self, step: _Step, *, alone: bool) -> None:
        """Give the new content its name, if the file is still the one that the change was made from."""
        change, folder, name = step.change, step.folder, step.name
        try:
            if change.before is None:
                # A link and not a rename: it does not replace a file that appeared meanwhile.
                _link(folder, step.temporary, name)
            else:
                self._compare(step)
                if not alone:
                    _link(folder, name, step.backup)
                if change.after is None:
                    os.unlink(name, dir_fd=folder)
                else:
                    os.rename(step.temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            step.installed = True
            os.fsync(folder)
        except FileExistsError:
            raise ToolError(f"{change.place.shown} exists by now; read it first") from None
        except OSError as error:
            refuse(change.place, error)

    def _compare(self, step: _Step) -> None:
        change = step.change
        now = read_in(step.folder, step.name, change.place, self._most_bytes)
        if change.before is None or now.data != change.before.data:
            raise ToolError(f"{change.place.shown} was changed by another program meanwhile; read it again")


def stamp_of(place: Place, most_bytes: int) -> Content | None:
    """Return the content of a file after its change; None if it is gone or unreadable."""
    try:
        return find_file(place, most_bytes)
    except ToolError:
        return None


def summary(changes: Sequence[Change]) -> tuple[str, str]:
    """Return the diff of all changes, and its size as ``+3 -1``."""
    diffs = [change.record.diff() for change in changes]
    size = f"+{sum(diff.added for diff in diffs)} -{sum(diff.removed for diff in diffs)}"
    return "\n".join(diff.text for diff in diffs if diff.text), size


def _roll_back(steps: Sequence[_Step], made: Sequence[Place]) -> None:
    """Undo what was installed, and remove temporary files and new folders."""
    for step in reversed(steps):
        try:
            if step.installed and step.change.before is None:
                os.unlink(step.name, dir_fd=step.folder)
            elif step.installed and _exists(step.backup, step.folder):
                os.rename(step.backup, step.name, src_dir_fd=step.folder, dst_dir_fd=step.folder)
        except OSError as error:
            log.error("a change could not be undone", path=step.change.place.path, reason=str(error))
    _clean(steps)
    for folder in reversed(made):
        with suppress(OSError, ToolError), folder_of(folder) as (parent, name):
            os.rmdir(name, dir_fd=parent)


def _clean(steps: Sequence[_Step]) -> None:
    for step in steps:
        for name in (step.temporary, step.backup):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=step.folder)


def _link(folder: int, source: str, target: str) -> None:
    """Give a file a second name; copy it where the file system has no hard links."""
    try:
        os.link(source, target, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            os.fdopen(os.open(source, READ, dir_fd=folder), "rb") as old,
            os.fdopen(os.open(target, flags, _NEW_MODE, dir_fd=folder), "wb") as new,
        ):
            shutil.copyfileobj(old, new)
            os.fchmod(new.fileno(), stat.S_IMODE(os.fstat(old.fileno()).st_mode))
            new.flush()
            os.fsync(new.fileno())


def _exists(name: str, folder: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
