"""Files on messages: how the platform names them, and what it finds out about them."""

from __future__ import annotations

import mimetypes
import re
import struct
from typing import Final

from channels.discord.fake.nouns import Attachment

_UNTIDY: Final = re.compile(r"[^\w.\-]+", re.ASCII)
_PNG: Final = b"\x89PNG\r\n\x1a\n"


def attached(key: int, filename: str, data: bytes, description: str | None = None) -> Attachment:
    """A file as it hangs on a message."""
    name = filename.rsplit("/", 1)[-1]
    tidy = _UNTIDY.sub("_", name).lstrip(".") or "unknown"
    width, height = _size(data)
    return Attachment(
        id=key,
        filename=tidy,
        data=data,
        content_type=_kind(name),
        title=None if tidy == name else name.rsplit(".", 1)[0],
        description=description,
        width=width,
        height=height,
    )


def _kind(name: str) -> str:
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith("text/") else kind


def _size(data: bytes) -> tuple[int | None, int | None]:
    """Width and height of a PNG or GIF."""
    if data.startswith(_PNG) and len(data) >= 24:
        return struct.unpack(">II", data[16:24])
    if data[:6] in (b"GIF87a", b"GIF89a") and len(data) >= 10:
        return struct.unpack("<HH", data[6:10])
    return None, None
