"""Files of messages: their names and sizes, and the signed links that serve them."""

from __future__ import annotations

import hmac
import mimetypes
import re
import struct
from typing import Final

from aiohttp import web

from channels.discord.fake.payloads import Views
from channels.discord.fake.state import Attachment, World

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


class Cdn:
    """Serves ``/cdn/attachments/…``. ``served`` are the files that were fetched, by id."""

    def __init__(self, world: World, views: Views) -> None:
        self.served: list[int] = []
        self._world = world
        self._views = views

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """One file, if the link to it is whole and not too old."""
        found = self._world.files.get(int(request.match_info["attachment"]))
        if found is None or not self._valid(request):
            return web.Response(status=404, text="This content is no longer available.")
        _, attachment = found
        self.served.append(attachment.id)
        return web.Response(
            body=attachment.data,
            headers={"Content-Type": attachment.content_type, "Content-Disposition": "attachment"},
        )

    def _valid(self, request: web.Request) -> bool:
        expires, issued = request.query.get("ex", ""), request.query.get("is", "")
        expected = self._views.signature(int(request.match_info["attachment"]), expires, issued)
        if not hmac.compare_digest(expected, request.query.get("hm", "")):
            return False
        return int(expires, 16) >= self._world.clock.now()
