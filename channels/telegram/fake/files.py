"""Files of messages: their ids, their download links, and the sizes of pictures."""

from __future__ import annotations

import mimetypes
import struct
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from msgspec import Struct

from channels.telegram.fake.calls import Refused, Upload, bad, mistaken
from gateway.testing.fake_platform import Clock


def size_of(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG, GIF, WebP or JPEG in pixels; None for other data."""
    if data.startswith(b"\x89PNG\r\n\x1a\n") and len(data) >= 24:
        return struct.unpack(">II", data[16:24])
    if data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        return struct.unpack("<HH", data[6:10])
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) >= 30:
        return _webp(data)
    return _jpeg(data) if data.startswith(b"\xff\xd8") else None


def _webp(data: bytes) -> tuple[int, int] | None:
    match data[12:16]:
        case b"VP8X":
            return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
        case b"VP8L":
            bits = int.from_bytes(data[21:25], "little")
            return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
        case b"VP8 ":
            width, height = struct.unpack("<HH", data[26:30])
            return width & 0x3FFF, height & 0x3FFF
        case _:
            return None


def _jpeg(data: bytes) -> tuple[int, int] | None:
    """Return the size from the frame header: the first segment C0 to CF that is not a table."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None


MAX_FETCHED = 20 * 1024 * 1024
MAX_PHOTO = 10 * 1024 * 1024
_LINK_SECONDS = 3600
_SIZES = ((90, "s"), (320, "m"), (800, "x"), (1280, "y"))
_FOLDERS = {
    "photo": "photos",
    "document": "documents",
    "voice": "voice",
    "audio": "music",
    "video": "videos",
} | {
    "animation": "animations",
    "thumbnail": "thumbnails",
}


class Stored(Struct, frozen=True):
    """A file on the platform. It can be sent again only as the same ``kind``."""

    id: str
    unique_id: str
    kind: str
    upload: Upload
    path: str
    attributes: Mapping[str, Any] = {}


class Files:
    """The platform's files. Each kind has its own ids; a link expires after one hour."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, Stored] = {}
        self._links: dict[str, tuple[Stored, float]] = {}

    def store(self, kind: str, upload: Upload, attributes: Mapping[str, Any] | None = None) -> Stored:
        """Store a file. Raises Refused if the platform does not accept it as that kind."""
        if not upload.data:
            raise mistaken("file must be non-empty")
        more = dict(attributes or {})
        if kind == "photo":
            more |= _photo_size(upload.data)
        number = len(self._known) + 1
        suffix = PurePosixPath(upload.name).suffix or mimetypes.guess_extension(upload.mime) or ""
        stored = Stored(
            id=f"{kind[:2].upper()}AgAD{number:08d}",
            unique_id=f"AQAD{number:08d}",
            kind=kind,
            upload=upload,
            path=f"{_FOLDERS.get(kind, 'documents')}/file_{number}{suffix}",
            attributes=more,
        )
        self._known[stored.id] = stored
        return stored

    def by_id(self, kind: str, file_id: str) -> Stored:
        """Return the file with an id. Raises Refused if it is unknown or of another kind."""
        if "." in file_id:
            raise Refused(
                "Bad Request: failed to get HTTP URL content",
                problem="this platform fetches nothing from addresses",
            )
        if (stored := self._known.get(_bare(file_id))) is None:
            raise mistaken("wrong file identifier/HTTP URL specified")
        if stored.kind != kind:
            raise mistaken(f"can't use file of type {stored.kind.title()} as {kind.title()}")
        return stored

    def link(self, file_id: str) -> dict[str, Any]:
        """Return the result of ``getFile``; its path is valid for one hour."""
        if (stored := self._known.get(_bare(file_id))) is None:
            raise mistaken("invalid file_id")
        size = len(stored.upload.data)
        if size > MAX_FETCHED:
            raise bad("file is too big")
        self._links[stored.path] = stored, self._clock.now() + _LINK_SECONDS
        return {
            "file_id": file_id,
            "file_unique_id": stored.unique_id,
            "file_size": size,
            "file_path": stored.path,
        }

    def at(self, path: str) -> Upload | None:
        """Return the file of a link; None if the link is unknown or expired."""
        stored, until = self._links.get(path, (None, 0.0))
        return stored.upload if stored is not None and self._clock.now() < until else None

    def data(self, file_id: str) -> bytes:
        """Return the bytes of a file, for tests. Raises KeyError if it is unknown."""
        return self._known[_bare(file_id)].upload.data


def check_voice(data: bytes) -> None:
    """Raise Refused unless the data can be a voice message: Opus in Ogg, MP3 or M4A."""
    opus = data.startswith(b"OggS") and b"OpusHead" in data[:64]
    mp3 = data.startswith(b"ID3") or (data[:1] == b"\xff" and data[1:2] >= b"\xe0")
    if not (opus or mp3 or data[4:8] == b"ftyp"):
        raise mistaken("wrong file type", "a voice message is Opus in an Ogg file, MP3 or M4A")


def file_json(stored: Stored) -> Any:
    """Return the field of a message for a file: a list of sizes for a picture, otherwise one object."""
    size = len(stored.upload.data)
    common = {"file_id": stored.id, "file_unique_id": stored.unique_id, "file_size": size}
    if stored.kind == "photo":
        return _photo_sizes(stored, size)
    if stored.kind == "voice":
        mime = {"mime_type": stored.upload.mime or "audio/ogg"}
        return common | {"duration": 0} | mime | dict(stored.attributes)
    named = {"file_name": stored.upload.name} if stored.upload.name else {}
    more = {"mime_type": stored.upload.mime} if stored.upload.mime else {}
    if stored.kind == "audio":
        return common | {"duration": 0} | named | more | dict(stored.attributes)
    if stored.kind in ("video", "animation"):
        return common | {"duration": 0, "width": 0, "height": 0} | named | more | dict(stored.attributes)
    return common | named | more


def _photo_sizes(stored: Stored, size: int) -> list[dict[str, Any]]:
    """Return the sizes of a photo, smallest first; all have the same bytes."""
    width, height = stored.attributes["width"], stored.attributes["height"]
    longest = max(width, height)
    found: list[dict[str, Any]] = []
    for edge, letter in _SIZES:
        factor = min(1, edge / longest)
        found.append(
            {
                "file_id": f"{stored.id}-{letter}",
                "file_unique_id": f"{stored.unique_id}{letter}",
                "width": max(1, round(width * factor)),
                "height": max(1, round(height * factor)),
                "file_size": size,
            }
        )
        if factor == 1:
            break
    return found


def _photo_size(data: bytes) -> dict[str, int]:
    """Return the size of a picture in pixels. Raises Refused if it cannot be a photo."""
    if len(data) > MAX_PHOTO:
        raise mistaken(
            f"file of size {len(data)} bytes is too big for a photo; the maximum size is {MAX_PHOTO} bytes"
        )
    if (found := size_of(data)) is None:
        raise mistaken("IMAGE_PROCESS_FAILED", "a photo that is not a picture")
    if data.startswith(b"\x89PNG") and b"IEND" not in data[-12:]:
        raise bad("IMAGE_PROCESS_FAILED")  # a sender cannot be expected to decode pictures
    width, height = found
    if not width or not height or width + height > 10_000 or max(found) > 20 * min(found):
        raise mistaken("PHOTO_INVALID_DIMENSIONS", f"a photo of {width} by {height}")
    return {"width": width, "height": height}


def _bare(file_id: str) -> str:
    """Return the id of a file without the suffix of one of its sizes."""
    return file_id.partition("-")[0]
