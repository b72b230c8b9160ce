"""Files of the web page, read and compressed at the first request and served from memory.

A page has many small modules and styles. So that a browser shows it early, and asks for nothing twice:

- the styles that ``index.html`` links are served as one file;
- it names every module that the first one imports, so that all are requested at once;
- addresses in it and in scripts have the digest of their folder, so that a browser keeps those files without
  asking again. The same address without the digest, or with another one, has the file that is there now.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import mimetypes
import re
from collections.abc import Mapping
from pathlib import Path

from aiohttp import ETag, web
from msgspec import Struct

from gateway.contract.errors import NotFoundError
from gateway.server.pages.compact import compact

SHARED = Path(__file__).parent / "shared"
"""The modules and styles that several pages use."""

NAME = "{version:(?:~[0-9a-f]+/)?}{name:[^/]+}"
"""The end of a route to the files of a folder: their name, after a digest if the address has one."""

_REVALIDATED = "no-cache"
"""The browser keeps files in its cache, and revalidates them with each request."""
_KEPT = "max-age=31536000, immutable"
_SHARED_ROOT = "/shared/"
_DOCUMENT, _STYLES = "index.html", "index.css"
_STYLE = re.compile(r' *<link rel="stylesheet" href="(/[\w/]+/)([\w.]+)">\n')
_SCRIPT = re.compile(r' *<script type="module" src="(/[\w/]+/)([\w.]+)"></script>\n')
_LINK = '    <link rel="{}" href="{}{}">\n'
_IMPORT = re.compile(r'^(?:import|\}) ?.*?"(\./|/shared/)([\w.-]+)";$', re.MULTILINE)
_TYPES = {".webmanifest": "application/manifest+json", ".js": "text/javascript", ".svg": "image/svg+xml"}


_PLAIN = ("image/png", "application/octet-stream")
"""Types that are not compressed, because they are already or may be."""


class _File(Struct, frozen=True):
    """A file; ``body`` is its content, in gzip if it ``is_packed``. Each form has its own tag."""

    body: bytes
    kind: str
    tag: str
    is_packed: bool


class PageFiles:
    """Snapshot of the files in a folder. No request can open any other file.

    ``root`` is the address of the folder, such as ``/page/``. Only a browser that asks for ``NAME`` below it
    gets files that it may keep.
    """

    def __init__(self, folder: Path, root: str = _SHARED_ROOT) -> None:
        self._folder = folder
        self._root = root
        self._files: Mapping[str, _File] = {}
        self._digest = ""
        self._reading = asyncio.Lock()

    async def respond(self, request: web.Request, name: str) -> web.Response:
        """Return a file, in gzip if the browser accepts it, or 304 if it has it. Raises NotFoundError."""
        # All at once, so that a page never has files of two versions while the gateway is updated; not at
        # the start, because many gateways never show a page, and its files take a quarter of a megabyte.
        async with self._reading:
            if not self._files:
                self._files, self._digest = await asyncio.to_thread(_read_page, self._folder, self._root)
        file = self._files.get(name)
        if file is None:
            raise NotFoundError("the page has no such file")
        is_kept = request.match_info.get("version") == f"~{self._digest}/"
        headers = {"Cache-Control": _KEPT if is_kept else _REVALIDATED}
        is_packed = file.is_packed and _accepts_gzip(request)
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


def _read_page(folder: Path, root: str) -> tuple[Mapping[str, _File], str]:
    """Return the files of a folder as they are served, and its digest."""
    contents = {_SHARED_ROOT: _read_folder(SHARED), root: _read_folder(folder)}
    own = contents[root]
    if _DOCUMENT in own:
        own[_DOCUMENT], own[_STYLES] = _bundled(contents, root)
    digests = {_SHARED_ROOT: _digest(contents[_SHARED_ROOT])}
    # The files name shared ones by their digest, so that it is part of their own.
    digests[root] = (
        _digest({**own, "": digests[_SHARED_ROOT].encode()}) if root != _SHARED_ROOT else digests[root]
    )
    address = re.compile(rf'"({root}|{_SHARED_ROOT})(?=[\w-]+\.(?:js|css|svg)")')

    def named(name: str, content: bytes) -> bytes:
        if not name.endswith((".js", ".html")):
            return content
        return address.sub(lambda found: f"{found[0]}~{digests[found[1]]}/", content.decode()).encode()

    return {name: _file(name, named(name, content)) for name, content in own.items()}, digests[root]


def _read_folder(folder: Path) -> dict[str, bytes]:
    return {path.name: compact(path) for path in sorted(folder.iterdir()) if path.is_file()}


def _bundled(contents: Mapping[str, Mapping[str, bytes]], root: str) -> tuple[bytes, bytes]:
    """Return the document with one style sheet and the names of all modules, and that style sheet."""
    document = contents[root][_DOCUMENT].decode()
    styles = b"\n".join(contents[base][name] for base, name in _STYLE.findall(document))
    before, _, after = document.partition(next(found[0] for found in _STYLE.finditer(document)))
    one = _LINK.format("stylesheet", root, _STYLES)
    first = _SCRIPT.findall(document)
    modules = list(first)
    for base, name in modules:
        for where, imported in _IMPORT.findall(contents[base][name].decode()):
            module = (base if where == "./" else where, imported)
            if module not in modules:
                modules.append(module)
    rest = [_LINK.format("modulepreload", *module) for module in modules[len(first) :]]
    document = before + one + _STYLE.sub("", after)
    return document.replace("  </head>", "".join(rest) + "  </head>").encode(), styles


def _digest(contents: Mapping[str, bytes]) -> str:
    whole = hashlib.blake2b(digest_size=6)
    for name, content in contents.items():
        whole.update(f"{name} {len(content)}\n".encode() + content)
    return whole.hexdigest()


def _file(name: str, content: bytes) -> _File:
    # Some systems have no type for manifests.
    kind = _TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    is_packed = kind not in _PLAIN
    body = gzip.compress(content, mtime=0) if is_packed else content
    return _File(body, kind, hashlib.blake2b(content, digest_size=12).hexdigest(), is_packed)


def _charset(kind: str) -> str | None:
    return "utf-8" if kind.startswith("text/") else None
