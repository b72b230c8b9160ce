"""Contents of files before and after tools changed them, in a bare git repository of each session.

Git only stores contents: it has no work tree, index, hooks, filters and attributes here, and reads no
settings of users. Files are opened folder by folder without following links, and replaced by renaming a
complete copy.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import stat
import subprocess
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

MOST_BYTES = 20_000_000
"""Bytes of a file whose content is stored or compared."""

_MOST_STORED = 500_000_000
"""Bytes of a session on disk."""
_MOST_FILES, _MOST_WATCHED = 2_000, 20_000_000
"""Files and bytes of folders that are read before a command."""
_SECONDS = 60
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SETTINGS = ("core.hooksPath=/dev/null", "core.fsync=all", "gc.auto=0", "protocol.allow=never")
_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EACCES: "access is denied",
    errno.EROFS: "the file system is read-only",
    errno.ELOOP: "a link is in its place",
    errno.ENOTDIR: "a link or a file is in the place of its folder",
    errno.ENOENT: "its folder does not exist",
}


class SnapshotError(Exception):
    """A content could not be stored, read or put in place. The text is the reason."""


class State(Struct, frozen=True):
    """A content: its bytes and permission bits; None for those that new files get."""

    data: bytes
    mode: int | None

    @property
    def blob(self) -> str:
        """The id of the content in git."""
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data, usedforsecurity=False).hexdigest()


class Snapshots:
    """The contents of all sessions, below ``folder``; ``git`` is the program, None if there is none."""

    def __init__(self, folder: Path, git: str | None) -> None:
        self._folder = folder
        self._git = git
        self._lock = threading.Lock()

    def store(self, session: str, contents: Sequence[bytes]) -> None:
        """Make contents durable. Raises SnapshotError."""
        if self._git is None:
            raise SnapshotError("git is not installed")
        if any(len(data) > MOST_BYTES for data in contents):
            raise SnapshotError(f"a content has more than {MOST_BYTES:,} bytes")
        folder = self._of(session)
        try:
            with self._lock:
                if not (folder / "HEAD").exists():
                    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                    self._run(folder, "init", "--quiet", "--bare", "--template=")
                used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
                if used + sum(map(len, contents)) > _MOST_STORED:
                    raise SnapshotError(f"the session has more than {_MOST_STORED:,} bytes of contents")
                stream = b"".join(b"blob\ndata %d\n%s\n" % (len(data), data) for data in contents)
                self._run(folder, "fast-import", "--quiet", stdin=stream)
        except OSError as error:
            raise SnapshotError(reason_of(error)) from None

    def load(self, session: str, blob: str) -> bytes:
        """Return a stored content. Raises SnapshotError."""
        if self._git is None:
            raise SnapshotError("git is not installed")
        return self._run(self._of(session), "cat-file", "blob", blob)

    def forget(self, session: str) -> None:
        """Delete the contents of a session."""
        shutil.rmtree(self._of(session), ignore_errors=True)

    def sweep(self, sessions: Iterable[str]) -> None:
        """Delete the contents of all sessions but these."""
        kept = {self._of(session) for session in sessions}
        with suppress(OSError):
            for path in set(self._folder.iterdir()) - kept:
                shutil.rmtree(path, ignore_errors=True)

    def _of(self, session: str) -> Path:
        name = hashlib.sha256(session.encode(errors="replace")).hexdigest()[:32]
        return self._folder / f"{name}.git"

    def _run(self, folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        environ: Mapping[str, str] = {
            "GIT_DIR": str(folder),
            "HOME": str(folder),
            "PATH": os.defpath,
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
        }
        argv = [str(self._git), *settings, *arguments]
        try:
            done = subprocess.run(  # noqa: S603 - the program is git, without a shell
                argv, input=stdin, capture_output=True, env=environ, cwd=folder, timeout=_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SnapshotError(f"git {arguments[0]} failed: {error}") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
            raise SnapshotError(f"git {arguments[0]} failed: {lines[0][:200]}")
        return done.stdout


class Watch:
    """The contents of folders at one moment, in memory."""

    def __init__(self, roots: Sequence[Path], closed: Path) -> None:
        """Read the folders but ``closed``. Raises SnapshotError if they have too many files or bytes."""
        self._roots = roots
        self._closed = str(closed)
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._states: dict[str, State] = {}
        left = _MOST_WATCHED
        for path, found in _files(roots, self._closed):
            left -= found.st_size
            if len(self._stamps) >= _MOST_FILES or left < 0:
                raise SnapshotError(f"more than {_MOST_FILES:,} files or {_MOST_WATCHED:,} bytes")
            with suppress(SnapshotError):
                state = read_state(path)
                if state is not None:
                    self._stamps[path], self._states[path] = _stamp(found), state

    def changes(self) -> list[tuple[str, State | None, State | None]]:
        """Return the files that differ now, with their contents then and now."""
        found: list[tuple[str, State | None, State | None]] = []
        seen: set[str] = set()
        for path, entry in _files(self._roots, self._closed):
            seen.add(path)
            before = self._states.get(path)
            if before is not None and self._stamps[path] == _stamp(entry):
                continue
            with suppress(SnapshotError):
                after = read_state(path)
                if after != before:
                    found.append((path, before, after))
        gone = [path for path in self._states if path not in seen]
        return found + [(path, self._states[path], None) for path in gone if not os.path.lexists(path)]


def read_state(path: str) -> State | None:
    """Return the content of a regular file; None if there is no file. Raises SnapshotError."""
    try:
        with _opened(path) as (folder, name):
            # Before it is opened, because opening a device may have effects.
            if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise SnapshotError("it is not a regular file")
            with os.fdopen(os.open(name, _READ, dir_fd=folder), "rb") as file:
                found = os.fstat(file.fileno())
                if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
                    raise SnapshotError(f"it has more than {MOST_BYTES:,} bytes")
                data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SnapshotError(reason_of(error)) from None
    if len(data) > MOST_BYTES:
        raise SnapshotError(f"it has more than {MOST_BYTES:,} bytes")
    return State(data, stat.S_IMODE(found.st_mode) & 0o777)


def put_state(root: str, path: str, state: State | None) -> None:
    """Give a file a content, or remove it for None; durable afterwards. Raises SnapshotError.

    Missing folders below ``root`` are made; the root itself must exist.
    """
    temporary = f".trunkline-{secrets.token_hex(8)}.new"
    try:
        with _opened(path, root) as (folder, name):
            if state is None:
                os.unlink(name, dir_fd=folder)
            else:
                try:
                    with os.fdopen(os.open(temporary, _WRITE, 0o666, dir_fd=folder), "wb") as file:
                        if state.mode is not None:
                            os.fchmod(file.fileno(), state.mode)
                        file.write(state.data)
                        file.flush()
                        os.fsync(file.fileno())
                    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    with suppress(OSError):
                        os.unlink(temporary, dir_fd=folder)
                    raise
            os.fsync(folder)
    except OSError as error:
        raise SnapshotError(reason_of(error)) from None


def reason_of(error: OSError) -> str:
    """Return why an operation on a file failed."""
    return _REASONS.get(error.errno or 0) or error.strerror or str(error)


@contextmanager
def _opened(path: str, create_below: str = "") -> Generator[tuple[int, str]]:
    """Open the folder of an absolute path without following links. Yields it with the name of the file."""
    *folders, name = Path(path).parts[1:]
    at, current = "/", os.open("/", _FOLDER)
    try:
        for folder in folders:
            at = f"{at.rstrip('/')}/{folder}"
            try:
                below = os.open(folder, _FOLDER, dir_fd=current)
            except FileNotFoundError:
                if not create_below or not Path(at).is_relative_to(create_below) or at == create_below:
                    raise
                os.mkdir(folder, dir_fd=current)
                os.fsync(current)
                below = os.open(folder, _FOLDER, dir_fd=current)
            os.close(current)
            current = below
        yield current, name
    finally:
        os.close(current)


def _files(roots: Sequence[Path], closed: str) -> Generator[tuple[str, os.stat_result]]:
    """Yield the regular files below folders, without links, ``.git``, and one closed folder."""
    for root in dict.fromkeys(roots):
        if any(root != other and root.is_relative_to(other) for other in roots):
            continue
        for folder, folders, names in os.walk(root):
            if folder == closed:
                folders.clear()
                continue
            folders[:] = [name for name in folders if name != ".git"]
            for name in names:
                path = f"{folder}/{name}"
                with suppress(OSError):
                    found = os.lstat(path)
                    if stat.S_ISREG(found.st_mode) and found.st_size <= MOST_BYTES:
                        yield path, found


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode
