"""Files of the web page, read once and served from memory."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from pathlib import Path

from aiohttp import ETag, web
from msgspec import Struct

from gateway.channel import NotFoundError

_HEADERS = {"Cache-Control": "no-cache"}
"""The browser keeps files in its cache, and revalidates them with each request."""


class _File(Struct, frozen=True):
    content: bytes
    kind: str
    tag: str


class PageFiles:
    """Snapshot of the files in a folder. No request can open any other file."""

    def __init__(self, folder: Path) -> None:
        self._files: Mapping[str, _File] = {
            path.name: _read(path) for path in folder.iterdir() if path.is_file()
        }

    def respond(self, request: web.Request, name: str) -> web.Response:
        """Return a file, or 304 if the browser has it. Raises NotFoundError."""
        file = self._files.get(name)
        if file is None:
            raise NotFoundError("the page has no such file")
        if any(known.value in (file.tag, "*") for known in request.if_none_match or ()):
            answer = web.Response(status=304, headers=_HEADERS)
        else:
            answer = web.Response(
                body=file.content, content_type=file.kind, charset=_charset(file.kind), headers=_HEADERS
            )
        answer.etag = ETag(file.tag)
        return answer


def _read(path: Path) -> _File:
    content = path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return _File(content, kind, hashlib.blake2b(content, digest_size=12).hexdigest())


def _charset(kind: str) -> str | None:
    return "utf-8" if kind.startswith("text/") else None
