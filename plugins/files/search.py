"""Search: listing a folder, finding files by name, and finding lines by a pattern.

Patterns are those of RE2, which takes linear time for every pattern. Folders are walked by descriptors and
links are not followed. Every walk has a limit of entries and time.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any, Protocol

from msgspec import Struct

from gateway import ToolError
from gateway.api import FOLDER
from plugins.files.content import read_in
from plugins.files.places import Place, Places, folder_of, open_folder

MOST_RESULTS = 1_000

_IGNORED = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv"})
"""Folders that a walk leaves out unless it begins in them."""
_MOST_ENTRIES = 200_000
_MOST_DEPTH = 64
_SECONDS = 30.0
_PATTERN_MEMORY = 4 << 20
_LONGEST_PATTERN = 1_000
_MOST_ALTERNATIVES = 64
_SHOWN_CHARACTERS = 300
_BINARY_PROBE = 8_192


class Pattern(Protocol):
    """A compiled pattern of RE2."""

    def search(self, text: bytes, pos: int = 0) -> Any:
        """Return the first match from ``pos`` on, or None."""
        ...


class Entry(Struct, frozen=True):
    """A file that a walk found: its place, and its name in the open folder ``descriptor``."""

    place: Place
    descriptor: int
    name: str


class Walk:
    """A walk over the files below a folder. ``note`` is the reason if it ended early."""

    def __init__(self, places: Places, stopped: Callable[[], bool]) -> None:
        self.note = ""
        self._places = places
        self._stopped = stopped
        self._entries = 0
        self._end = time.monotonic() + _SECONDS

    def files(self, place: Place) -> Iterator[Entry]:
        """Yield the regular files below a folder, sorted by path, or a single file. Raises ToolError."""
        try:
            descriptor = open_folder(place)
        except ToolError as error:
            if not isinstance(error.__context__, NotADirectoryError):
                raise
            with folder_of(place) as (folder, name):
                yield Entry(place, folder, name)
            return
        try:
            yield from self._below(place, descriptor, 0)
        finally:
            os.close(descriptor)

    def _below(self, place: Place, descriptor: int, depth: int) -> Iterator[Entry]:
        for name, state in sorted(_scan(descriptor)):
            self._entries += 1
            if self._is_over():
                return
            below = place.below(name)
            if stat.S_ISREG(state):
                if not name.startswith(".trunkline-"):
                    yield Entry(below, descriptor, name)
            elif stat.S_ISDIR(state) and name not in _IGNORED and not self._places.is_closed(below):
                if depth >= _MOST_DEPTH:
                    self.note = f"folders more than {_MOST_DEPTH} levels deep were left out"
                    continue
                try:
                    opened = os.open(name, FOLDER, dir_fd=descriptor)
                except OSError:
                    continue  # it was removed or replaced meanwhile, or may not be read
                try:
                    yield from self._below(below, opened, depth + 1)
                finally:
                    os.close(opened)

    def _is_over(self) -> bool:
        if self._stopped():
            raise ToolError("the search was stopped")
        if self._entries > _MOST_ENTRIES:
            self.note = f"the search ended after {_MOST_ENTRIES} entries; search a smaller folder"
        elif time.monotonic() > self._end:
            self.note = f"the search ended after {_SECONDS:.0f} s; search a smaller folder"
        else:
            return False
        return True


def load_engine() -> Any:
    """Import RE2. Raises ToolError if it is not installed."""
    try:
        return import_module("re2")
    except ImportError:
        raise ToolError(
            "grep needs the package google-re2, which is not installed; the operator can install "
            "trunkline[files]"
        ) from None


def compile_pattern(pattern: str, *, ignore_case: bool) -> Pattern:
    """Compile a pattern of RE2 that is searched in lines. Raises ToolError for any other."""
    engine = load_engine()
    if not pattern or len(pattern) > _LONGEST_PATTERN:
        raise ToolError(f"a pattern has 1 to {_LONGEST_PATTERN} characters")
    options = engine.Options()
    options.max_mem, options.log_errors = _PATTERN_MEMORY, False
    options.case_sensitive, options.never_nl = not ignore_case, True
    try:
        engine.compile(pattern.encode(), options)
        # Alone first: a pattern must not close the group around it.
        return engine.compile(b"(?m)(?:" + pattern.encode() + b")", options)
    except UnicodeEncodeError:
        raise ToolError("the pattern is not valid UTF-8") from None
    except engine.error as error:
        reason = error.args[0] if error.args else error
        words = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise ToolError(
            f"{pattern[:100]!r} is not a pattern of RE2 ({words}); it has no look-around and no "
            "back-references, and special characters need a backslash"
        ) from None


def grep(
    entries: Iterator[Entry], pattern: Pattern, most_bytes: int, most: int, skipped: Callable[[Place], bool]
) -> list[str]:
    """Return the matching lines as ``path:line: text``. Files that cannot be read as text are left out."""
    found: list[str] = []
    for entry in entries:
        if skipped(entry.place):
            continue
        try:
            data = read_in(entry.descriptor, entry.name, entry.place, most_bytes).data
        except ToolError:
            continue
        if b"\0" in data[:_BINARY_PROBE]:
            continue
        for number, line in _matches(pattern, data):
            if len(found) >= most:
                found.append(
                    f"(only the first {most} matching lines are shown; use a narrower pattern or path)"
                )
                return found
            shown = line.decode(errors="replace")
            if len(shown) > _SHOWN_CHARACTERS:
                shown = shown[:_SHOWN_CHARACTERS] + "…"
            found.append(f"{visible(entry.place.shown)}:{number}: {shown}")
    return found


def _matches(pattern: Pattern, data: bytes) -> Iterator[tuple[int, bytes]]:
    number, counted, at = 1, 0, 0
    while at <= len(data) and (match := pattern.search(data, at)) is not None:
        start = data.rfind(b"\n", 0, match.start()) + 1
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        number += data.count(b"\n", counted, start)
        counted = start
        if start < len(data):
            yield number, data[start:end].removesuffix(b"\r")
        at = end + 1


def glob_filter(glob: str) -> Callable[[Sequence[str]], bool]:
    """Return a test of a path by its parts. ``**`` stands for any folders, ``{a,b}`` for alternatives.

    A glob without a slash is compared with the name alone. Raises ToolError.
    """
    if not glob or len(glob) > _LONGEST_PATTERN or "\0" in glob:
        raise ToolError(f"a glob has 1 to {_LONGEST_PATTERN} characters")
    globs = [one.removeprefix("./").split("/") for one in _alternatives(glob)]
    patterns = [parts if len(parts) > 1 else ["**", *parts] for parts in globs]
    if any(part in ("", "..") for parts in patterns for part in parts):
        raise ToolError(f"{glob[:100]!r} is not a glob relative to the folder; give the folder as path")
    return lambda parts: any(_matches_parts(pattern, parts) for pattern in patterns)


def list_folder(place: Place, places: Places) -> list[str]:
    """Return the entries of a folder: ``name/``, ``name (bytes)`` or ``name -> target``. Raises ToolError."""
    descriptor = open_folder(place)
    try:
        lines: list[tuple[bool, str]] = []
        for name, state in sorted(_scan(descriptor)):
            if not places.is_closed(place.below(name)):
                is_folder = stat.S_ISDIR(state)
                lines.append((not is_folder, _described(descriptor, name, state)))
    finally:
        os.close(descriptor)
    shown = [line for _, line in sorted(lines)]
    more = len(shown) - MOST_RESULTS
    return [*shown[:MOST_RESULTS], f"({more} more entries)"] if more > 0 else shown


def visible(name: str) -> str:
    """Return a name as one line, with escapes for control characters and for bytes that are not UTF-8."""
    text = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _described(descriptor: int, name: str, state: int) -> str:
    if stat.S_ISDIR(state):
        return f"{visible(name)}/"
    try:
        if stat.S_ISLNK(state):
            return f"{visible(name)} -> {visible(os.readlink(name, dir_fd=descriptor))}"
        if stat.S_ISREG(state):
            size = os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_size
            return f"{visible(name)} ({size} bytes)"
    except OSError:
        return f"{visible(name)} (gone)"
    return f"{visible(name)} (not a file)"


def _scan(descriptor: int) -> Iterator[tuple[str, int]]:
    """Yield the names in an open folder with their types, as ``st_mode``."""
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                try:
                    yield entry.name, stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
                except OSError:
                    continue  # it was removed meanwhile
    except OSError:
        return


def _alternatives(glob: str) -> list[str]:
    """Expand ``{a,b}``."""
    done, open_ones = list[str](), [glob]
    while open_ones:
        one = open_ones.pop()
        start = one.find("{")
        end = one.find("}", start)
        if start < 0 or end < 0:
            done.append(one)
            continue
        # The innermost pair first, so that its commas are its own.
        start = one.rfind("{", 0, end)
        open_ones += [one[:start] + each + one[end + 1 :] for each in one[start + 1 : end].split(",")]
        if len(open_ones) + len(done) > _MOST_ALTERNATIVES:
            raise ToolError(f"a glob may have at most {_MOST_ALTERNATIVES} alternatives")
    return done


def _matches_parts(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    # One set of positions per part: trying every length for each ** would take exponential time.
    positions = _behind_stars(pattern, {0})
    for part in parts:
        following: set[int] = set()
        for at in positions:
            if at < len(pattern):
                if pattern[at] == "**":
                    following.add(at)
                elif fnmatchcase(part, pattern[at]):
                    following.add(at + 1)
        positions = _behind_stars(pattern, following)
    return len(pattern) in positions


def _behind_stars(pattern: Sequence[str], positions: set[int]) -> set[int]:
    found = set(positions)
    for at in positions:
        while at < len(pattern) and pattern[at] == "**":
            at += 1
            found.add(at)
    return found
