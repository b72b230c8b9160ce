"""Wheels of unknown authors, unpacked within limits of paths, kinds, number, size and compression."""

from __future__ import annotations

import stat
import zlib
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from gateway.contract.errors import PluginError
from gateway.extensions.admission.tree import MOST_BYTES, MOST_FILES, check_path

MOST_RATIO = 100
"""Largest ratio of the unpacked size to the size of the archive."""
_ENCRYPTED = 0x1
_CHUNK = 1 << 20


class Quota:
    """The files and bytes that a plugin may still have, over all of its archives."""

    def __init__(self, files: int = MOST_FILES, size: int = MOST_BYTES) -> None:
        self._files = files
        self._size = size

    def take(self, files: int, size: int, where: str) -> None:
        """Count files and bytes. Raises PluginError if they exceed the limit."""
        self._files -= files
        self._size -= size
        if self._files < 0:
            raise PluginError(f"{where}: the plugin has more than {MOST_FILES} files")
        if self._size < 0:
            raise PluginError(f"{where}: the plugin has more than {MOST_BYTES} bytes")


def unpack_wheel(wheel: Path, folder: Path, quota: Quota) -> None:
    """Unpack a wheel into a folder, like pip does, but without scripts. Raises PluginError.

    All entries are checked before the first one is written.
    """
    try:
        with ZipFile(wheel) as archive:
            entries = [*_checked(archive, wheel)]
            size = sum(entry.file_size for entry, _ in entries)
            if size > MOST_RATIO * max(wheel.stat().st_size, 1):
                raise PluginError(f"{wheel.name}: is compressed more than {MOST_RATIO} times; it is not safe")
            quota.take(len(entries), size, wheel.name)
            for entry, path in entries:
                _write(archive, entry, folder / path)
    except (BadZipFile, zlib.error, EOFError, RuntimeError, UnicodeError, OSError, ValueError) as error:
        raise PluginError(f"{wheel.name} cannot be unpacked: {error}") from None


def headers_of(wheel: Path) -> Message:
    """Return the metadata of a wheel. Raises PluginError."""
    try:
        with ZipFile(wheel) as archive:
            named = [each for each in archive.infolist() if each.filename.endswith(".dist-info/METADATA")]
            if len(named) != 1 or named[0].file_size > _CHUNK:
                raise PluginError(f"{wheel.name} is not a wheel: it needs one METADATA file")
            return HeaderParser().parsestr(archive.read(named[0]).decode("utf-8"))
    except (BadZipFile, zlib.error, UnicodeError, OSError, RuntimeError) as error:
        raise PluginError(f"{wheel.name} is not a wheel: {error}") from None


def _checked(archive: ZipFile, wheel: Path) -> Iterator[tuple[ZipInfo, str]]:
    """Yield the files to write with their paths. Raises PluginError."""
    seen: set[str] = set()
    for entry in archive.infolist():
        # ZipInfo cuts the name at a zero byte, and so may show another one than it has.
        if entry.filename != entry.orig_filename:
            raise PluginError(f"{wheel.name}: {entry.orig_filename!r} is not a path; the wheel is not safe")
        check_path(entry.filename.removesuffix("/"), wheel.name)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise PluginError(f"{wheel.name}: {entry.filename} is a link or a device; the wheel is not safe")
        if entry.flag_bits & _ENCRYPTED or entry.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
            raise PluginError(f"{wheel.name}: {entry.filename} is encrypted or compressed in an unusual way")
        path = None if entry.is_dir() else _placed(entry.filename)
        if path is not None:
            check_path(path, wheel.name)
            if path in seen:
                raise PluginError(f"{wheel.name}: {path} is in it twice; the wheel is not safe")
            seen.add(path)
            yield entry, path


def _placed(name: str) -> str | None:
    """Return where a file of a wheel belongs; None for scripts and the like, which a plugin cannot use."""
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return name
    kind, _, path = rest.partition("/")
    return path if kind in ("purelib", "platlib") and path else None


def _write(archive: ZipFile, entry: ZipInfo, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as source, file.open("xb") as target:
        while chunk := source.read(_CHUNK):
            target.write(chunk)
    file.chmod(0o755 if (entry.external_attr >> 16) & 0o111 else 0o644)
