"""Content of files: safe reading, what counts as text, and pages of numbered lines."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections import OrderedDict
from io import StringIO
from itertools import islice

from msgspec import Struct

from gateway import ToolError
from plugins.files.places import Place, folder_of, refuse

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags to open a file: not through a link, and never waiting for the writer of a FIFO."""

_IMAGES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
)
_BOM = b"\xef\xbb\xbf"
_LONGEST_LINE = 2_000
_PAGE_BYTES = 40_000
_MOST_STAMPS = 5_000


class Stamp(Struct, frozen=True):
    """The state of a file that was read: modification time in ns, bytes, SHA-256."""

    modified: int
    size: int
    digest: bytes


class Content(Struct, frozen=True):
    """The bytes of a file with its permission bits."""

    data: bytes
    mode: int
    modified: int

    @property
    def stamp(self) -> Stamp:
        """The state to compare with later."""
        return Stamp(self.modified, len(self.data), hashlib.sha256(self.data).digest())


class Text(Struct, frozen=True):
    r"""Text with ``\n`` as its line ends. ``encode`` restores those of the file, and its byte order mark."""

    text: str
    bom: bool = False
    crlf: bool = False

    def encode(self, text: str) -> bytes:
        """Return a new text as the bytes of this file."""
        if self.crlf:
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        try:
            return (_BOM if self.bom else b"") + text.encode()
        except UnicodeEncodeError:
            raise ToolError("the new text has characters that UTF-8 cannot store") from None


class ReadLog:
    """The files that each session has read, with their state then. The oldest entries are forgotten."""

    def __init__(self) -> None:
        self._stamps: OrderedDict[tuple[str, str], Stamp] = OrderedDict()

    def note(self, session: str, place: Place, stamp: Stamp) -> None:
        """Record the state of a file as the session knows it now."""
        self._stamps[session, place.path] = stamp
        self._stamps.move_to_end((session, place.path))
        if len(self._stamps) > _MOST_STAMPS:
            self._stamps.popitem(last=False)

    def forget(self, session: str, place: Place) -> None:
        """Remove the record of a file that was deleted."""
        self._stamps.pop((session, place.path), None)

    def check(self, session: str, place: Place, content: Content) -> None:
        """Raise ToolError if a session has not read a file, or not in its present state."""
        known = self._stamps.get((session, place.path))
        if known is None:
            raise ToolError(f"{place.shown} exists and was not read in this conversation; read it first")
        if known != content.stamp:
            raise ToolError(f"{place.shown} was changed since it was read; read it again")


def read_file(place: Place, most_bytes: int) -> Content:
    """Read a regular file of at most ``most_bytes``. Raises ToolError."""
    with folder_of(place) as (folder, name):
        return read_in(folder, name, place, most_bytes)


def read_in(folder: int, name: str, place: Place, most_bytes: int) -> Content:
    """Read a regular file by its name in an open folder. Raises ToolError."""
    try:
        # Before it is opened, because opening a device may have effects.
        _check_kind(place, os.stat(name, dir_fd=folder, follow_symlinks=False))
        descriptor = os.open(name, READ, dir_fd=folder)
    except OSError as error:
        refuse(place, error)
    try:
        state = os.fstat(descriptor)
        _check_kind(place, state)
        if state.st_size > most_bytes:
            raise ToolError(f"{place.shown} has {state.st_size} bytes; at most {most_bytes} can be read")
        pieces: list[bytes] = []
        room = most_bytes + 1
        while room > 0 and (piece := os.read(descriptor, min(room, 1 << 20))):
            pieces.append(piece)
            room -= len(piece)
        if room <= 0:
            raise ToolError(f"{place.shown} has more than the {most_bytes} bytes that can be read")
        return Content(b"".join(pieces), stat.S_IMODE(state.st_mode), state.st_mtime_ns)
    except OSError as error:
        refuse(place, error)
    finally:
        os.close(descriptor)


def find_file(place: Place, most_bytes: int) -> Content | None:
    """Read a regular file; None if there is none at this place. Raises ToolError."""
    try:
        with folder_of(place) as (folder, name):
            try:
                os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return None
            return read_in(folder, name, place, most_bytes)
    except ToolError as error:
        if is_missing(error):
            return None
        raise


def is_missing(error: ToolError) -> bool:
    """Return whether an operation failed because a folder of the path does not exist."""
    cause = error.__context__
    return isinstance(cause, OSError) and cause.errno == errno.ENOENT


def image_type(data: bytes) -> str | None:
    """Return the media type of a picture that models accept, by its first bytes."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _IMAGES if data.startswith(magic)), None)


def as_text(place: Place, data: bytes) -> Text:
    """Decode a text file. Raises ToolError for any other."""
    if b"\0" in data:
        raise ToolError(f"{place.shown} is a binary file")
    bom = data.startswith(_BOM)
    try:
        text = data[len(_BOM) :].decode() if bom else data.decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"{place.shown} is not UTF-8 text (byte {error.start})") from None
    # Only if all lines end so: in a mixed file every line keeps its own end.
    crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")
    return Text(text.replace("\r\n", "\n") if crlf else text, bom, crlf)


def numbered(text: str, first: int, count: int) -> str:
    """Return lines with their numbers, from line ``first`` on, and a note if there are more."""
    total = text.removesuffix("\n").count("\n") + 1 if text else 0
    if first > max(total, 1):
        raise ToolError(f"offset {first} is beyond the last line, {total}")
    shown: list[str] = []
    size = 0
    # Read as a stream: a list of all lines may take a hundred times the memory of the text.
    page = islice(StringIO(text, newline="\n"), first - 1, first - 1 + count)
    for number, ended in enumerate(page, first):
        line = ended.removesuffix("\n")
        if len(line) > _LONGEST_LINE:
            line = f"{line[:_LONGEST_LINE]}… ({len(line) - _LONGEST_LINE} more characters)"
        size += len(line.encode(errors="replace")) + 8
        if shown and size > _PAGE_BYTES:
            break
        shown.append(f"{number:>6}\t{line}")
    last = first + len(shown) - 1
    if last < total:
        shown.append(f"(lines {first} to {last} of {total}; continue at offset {last + 1})")
    return "\n".join(shown) or "(the file is empty)"


def _check_kind(place: Place, state: os.stat_result) -> None:
    if stat.S_ISLNK(state.st_mode):
        refuse(place, OSError(errno.ELOOP, "it is a link"))
    if not stat.S_ISREG(state.st_mode):
        kind = next((words for test, words in _KINDS if test(state.st_mode)), "a device")
        advice = "; use list" if stat.S_ISDIR(state.st_mode) else ""
        raise ToolError(f"{place.shown} is {kind}, not a file{advice}")
