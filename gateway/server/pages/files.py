"""Files of the web page, read and compressed at the first request and served from memory."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import mimetypes
from collections.abc import Mapping
from pathlib import Path

from aiohttp import ETag, web
from msgspec import Struct

from gateway.contract.errors import NotFoundError
from gateway.server.pages.compact import compact

SHARED = Path(__file__).parent / "shared"
"""The modules and styles that several pages use."""

_HEADERS = {"Cache-Control": "no-cache"}
"""The browser keeps files in its cache, and revalidates them with each request."""


_TYPES = {".webmanifest": "application/manifest+json", ".js": "text/javascript", ".svg": "image/svg+xml"}


_PLAIN = ("image/png", "application/octet-stream")
"""Types that are not compressed, because they are already or may be."""


class _File(Struct, frozen=True):
    """A file; ``body`` is its content, in gzip if it ``is_packed``. Each form has a tag of its own."""

    body: bytes
    kind: str
    tag: str
    is_packed: bool


class PageFiles:
    """Snapshot of the files in a folder. No request can open any other file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: Mapping[str, _File] = {}
        self._reading = asyncio.Lock()

    async def respond(self, request: web.Request, name: str) -> web.Response:
        """Return a file, in gzip if the browser accepts it, or 304 if it has it. Raises NotFoundError."""
        # All at once, so that a page never has files of two versions while the gateway is updated; not at
        # the start, because many gateways never show a page, and its files take a quarter of a megabyte.
        async with self._reading:
            self._files = self._files or await asyncio.to_thread(_read_folder, self._folder)
        file = self._files.get(name)
        if file is None:
            raise NotFoundError("the page has no such file")
        headers, is_packed = dict(_HEADERS), file.is_packed and _accepts_gzip(request)
        tag = f"{file.tag}-gzip" if is_packed else file.tag
        if file.is_packed:
            headers["Vary"] = "Accept-Encoding"
        if any(known.value in (tag, "*") for known in request.if_none_match or ()):
            answer = web.Response(status=304, headers=headers)
        else:
            # One copy of each file is kept, for nearly all clients take gzip.
            body = gzip.decompress(file.body) if file.is_packed and not is_packed else file.body
            answer = web.Response(
                body=body, content_type=file.kind, charset=_charset(file.kind), headers=headers
            )
            if is_packed:
                answer.headers["Content-Encoding"] = "gzip"
        answer.etag = ETag(tag)
        return answer


def _accepts_gzip(request: web.Request) -> bool:
    """Return whether the request names gzip or any encoding, without refusing it by ``q=0``."""
    offered = request.headers.get("Accept-Encoding", "").lower().replace(" ", "").split(",")
    weights = {name: weight for name, _, weight in (one.partition(";q=") for one in offered)}
    weight = weights.get("gzip", weights.get("*", "0"))
    return weight == "" or weight.strip("0.") != ""


def _read_folder(folder: Path) -> Mapping[str, _File]:
    return {path.name: _read(path) for path in folder.iterdir() if path.is_file()}


def _read(path: Path) -> _File:
    content = compact(path)
    # Some systems have no type for manifests.
    kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    is_packed = kind not in _PLAIN
    body = gzip.compress(content, mtime=0) if is_packed else content
    return _File(body, kind, hashlib.blake2b(content, digest_size=12).hexdigest(), is_packed)


def _charset(kind: str) -> str | None:
    return "utf-8" if kind.startswith("text/") else None
