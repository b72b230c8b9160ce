"""Sizes of pictures, and safe file names. Pure."""

from __future__ import annotations

import re
import unicodedata
from pathlib import PurePosixPath

from gateway.channel import picture_type

_SIZED = (0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF)
"""JPEG segment types that contain the picture's size."""
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)
_LONGEST_NAME = 100
_MAX_EDGES, _MAX_RATIO = 10_000, 20
_MAX_PHOTO = 10 * 1024 * 1024


def is_photo(data: bytes) -> bool:
    """Return whether Telegram accepts the data as a photo; it accepts other pictures only as documents."""
    size = _size(data)
    if size is None or len(data) > _MAX_PHOTO:
        return False
    return min(size) > 0 and sum(size) <= _MAX_EDGES and max(size) <= _MAX_RATIO * min(size)


def safe_name(given: str) -> str:
    """Return a file name without path parts, control characters and device names, and with its suffix."""
    name = PurePosixPath(given.replace("\\", "/")).name
    name = "".join(c for c in name if unicodedata.category(c)[0] not in "CZ" or c == " ").strip(" .")
    if not name or _DEVICES.fullmatch(name.split(".")[0]):
        name = f"file-{name}" if name else "file"
    if len(name) > _LONGEST_NAME:
        suffix = PurePosixPath(name).suffix[:16]
        name = name[: _LONGEST_NAME - len(suffix)] + suffix
    return name


def _size(data: bytes) -> tuple[int, int] | None:
    """Return width and height of a PNG or JPEG, in pixels; None for other data."""
    if picture_type(data) == "image/png" and len(data) >= 24:
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    return _jpeg_size(data) if picture_type(data) == "image/jpeg" else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        if data[at + 1] in _SIZED:
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))
    return None
