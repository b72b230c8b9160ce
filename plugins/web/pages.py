"""Pages of the web as text for a model: fetched from public addresses, checked, decoded and converted.

Everything here comes from others. Sizes, times, types and charsets are limited, and HTML is converted by a
separate process, which ends with the call.
"""

from __future__ import annotations

import asyncio
import codecs
import re
import sys
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Literal

from msgspec import Struct

from gateway import ToolError
from gateway.provider_http import Confinement, FetchError, Reach, RunScript, fetch, run_confined
from plugins.web import converter

Format = Literal["markdown", "text", "html"]

PAGE_BYTES = 5_000_000
"""Largest page, in bytes."""
CONVERSION_SECONDS = 30
"""Time limit of a conversion, in seconds of the clock; half of it is the limit of CPU time."""
_LIMITS = Confinement(
    seconds=CONVERSION_SECONDS,
    cpu_seconds=CONVERSION_SECONDS // 2,
    memory=1024 * 1024 * 1024,
    output=4 * converter.CHARACTERS,
    threads=True,
)

_CONVERSIONS = 2
_HTML = ("text/html", "application/xhtml+xml")
_TEXT = re.compile(
    r"text/[\w.+-]+|application/(?:[\w.-]+\+)?(?:json|xml|yaml)|application/(?:x-)?(?:javascript|ndjson|toml|yaml)"
)
_META_CHARSET = re.compile(
    rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([A-Za-z0-9_:.-]{1,40})""", re.IGNORECASE
)
_CHARSETS = frozenset(
    (
        *(
            "utf-8",
            "utf-16",
            "utf-16-le",
            "utf-16-be",
            "iso2022_jp",
            "shift_jis",
            "cp932",
            "euc_jp",
            "euc_kr",
        ),
        *("gbk", "gb18030", "gb2312", "big5", "big5hkscs", "cp949", "koi8-r", "koi8-u", "cp866", "tis-620"),
        *("mac-roman", "mac-cyrillic", *(f"cp125{n}" for n in range(9)), "cp874"),
        *(f"iso8859-{n}" for n in range(2, 17)),
    )
)
"""Charsets of the web by Python's names. Others of Python, such as punycode, can take minutes for a page."""
_ASCII = ("ascii", "iso8859-1")
"""Labels that browsers read as windows-1252."""
_MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


class Page(Struct, frozen=True):
    """A page as text, and its final address. ``note`` is a sentence on how it was converted, or empty."""

    url: str
    text: str
    note: str = ""


class PageReader:
    """Reads pages from public addresses, and from the private networks in ``allow``."""

    def __init__(
        self,
        allow: tuple[IPv4Network | IPv6Network, ...] = (),
        python: str = sys.executable,
        run: RunScript = run_confined,
    ) -> None:
        """``python`` is the interpreter of the converters, and ``run`` starts them."""
        self._run = run
        self._allow = allow
        self._python = python
        self._slots = asyncio.Semaphore(_CONVERSIONS)

    async def read(self, url: str, output: Format, seconds: float) -> Page:
        """Fetch a page within ``seconds``, and convert it. Raises ToolError with the reason."""
        try:
            found = await fetch(url, Reach(self._allow, PAGE_BYTES, seconds, same_host=True))
        except FetchError as error:
            raise ToolError(str(error)) from None
        is_html = found.mime_type in _HTML
        if not is_html and not _TEXT.fullmatch(found.mime_type):
            raise ToolError(f"{found.url} is {found.mime_type}, not text; only pages and text can be read")
        charset = charset_of(found.data, found.charset, is_html=is_html)
        if not is_html or output == "html":
            text = await asyncio.to_thread(found.data.decode, charset, "replace")
            return Page(found.url, text.removeprefix("\ufeff"))
        async with self._slots:
            status, text = await self._convert(output, charset, found.url, found.data)
        if status == converter.MISSING:
            raise ToolError(
                "Markdown needs the extra \"web\", which is not installed (pip install 'trunkline[web]'); "
                'use the format "text"'
            )
        if status not in (converter.CONVERTED, converter.FLAT):
            raise ToolError(f"{found.url} is too complex to be converted; use the format html")
        note = "It is nested too deep for Markdown, so this is its plain text." if status else ""
        return Page(found.url, text.removeprefix("\ufeff"), note)

    async def _convert(self, output: Format, charset: str, url: str, data: bytes) -> tuple[int | None, str]:
        """Run a converter. Returns its exit status, and the text that it wrote."""
        text = bytearray()
        script, arguments = Path(converter.__file__), (output, charset, url)
        status = await self._run(self._python, script, arguments, data, _LIMITS, text)
        return status, text.decode(errors="replace")


def charset_of(data: bytes, declared: str, *, is_html: bool) -> str:
    """Return the charset of a page: that of its byte order mark, its header or its ``meta``; else UTF-8."""
    for mark, charset in _MARKS.items():
        if data.startswith(mark):
            return charset
    found = _META_CHARSET.search(data[:2048]) if is_html else None
    for label in (declared, found[1].decode("ascii") if found else ""):
        name = _known(label)
        if name is not None:
            return name
    return "utf-8"


def _known(label: str) -> str | None:
    try:
        name = codecs.lookup(label.strip()).name if label.strip() else ""
    except (LookupError, ValueError):
        return None
    if name in _ASCII:
        return "cp1252"
    return name if name in _CHARSETS else None
