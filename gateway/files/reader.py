"""Conversion of received files to parts of messages."""

from __future__ import annotations

import asyncio
import base64
import re
import signal
import sys
import unicodedata
from pathlib import Path

import structlog
from msgspec import Struct

from gateway.confinement import Confinement, RunScript, run_confined
from gateway.contract.errors import OverloadedError, PartValidationError
from gateway.contract.messages import FilePart, ImagePart, Part
from gateway.files.formats import Document, document_kind, is_locked_office_file, picture_type, plain_text
from gateway.files.worker import Outcome

log = structlog.get_logger("trunkline.files")

_WORKER = Path(__file__).with_name("worker.py")
_MIME = re.compile(r"[a-z0-9][a-z0-9.+-]{0,60}/[a-z0-9][a-z0-9.+-]{0,80}")
_LONGEST_NAME = 120
_REASONS = {
    Outcome.WHOLE: "",
    Outcome.CUT: "",
    Outcome.LOCKED: "it is protected by a password",
    Outcome.MISSING: "PDF and Word documents cannot be read: install trunkline[documents]",
    Outcome.UNREADABLE: "it is damaged or too complex, and cannot be read",
    Outcome.MEMORY: "reading it needs too much memory",
    Outcome.TOO_LARGE: "it is too large when it is unpacked",
}


class ReadingLimits(Struct, frozen=True):
    """The limits of reading documents. ``seconds`` is wall time and CPU time, ``memory`` is in bytes.

    At most ``workers`` documents are read at once; others wait, each for ``wait`` seconds at most.
    """

    characters: int = 200_000
    pages: int = 500
    seconds: int = 20
    memory: int = 512 * 1024 * 1024
    workers: int = 2
    wait: float = 30.0


_LIMITS = ReadingLimits()


class FileReader:
    """Converts the bytes of files to parts. Documents are read by processes that start when needed.

    ``python`` is the interpreter of these processes, and ``run`` starts them.
    """

    def __init__(
        self, limits: ReadingLimits = _LIMITS, python: str = sys.executable, run: RunScript = run_confined
    ) -> None:
        self._limits = limits
        self._run = run
        self._python = python
        self._slots = asyncio.Semaphore(limits.workers)

    async def read(
        self,
        name: str,
        mime_type: str | None,
        data: bytes,
        *,
        width: int | None = None,
        height: int | None = None,
        alt_text: str | None = None,
        strict: bool = False,
    ) -> Part:
        """Return a file as a part: a picture by its content, other files with their text.

        A file without readable text has a note in square brackets as its content; if ``strict``, it raises
        PartValidationError, or OverloadedError if it may be readable later. The announced type decides
        nothing that the content shows. ``alt_text`` of a picture is its name if not given.
        """
        name = clean_name(name)
        mime = (mime_type or "").partition(";")[0].strip().lower()
        picture = picture_type(data)
        if picture is not None:
            return ImagePart(base64.b64encode(data).decode(), picture, alt_text or name, width, height)
        try:
            return FilePart(name, await self._content(name, mime, data))
        except (PartValidationError, OverloadedError) as error:
            if strict:
                raise
            return FilePart(name, f"[{error}]")

    async def _content(self, name: str, mime: str, data: bytes) -> str:
        """Return the text of a file. Raises PartValidationError or OverloadedError if there is none."""
        if not data:
            raise PartValidationError(f"{name}: the file is empty")
        kind = document_kind(name, mime, data)
        if kind is not None:
            return await self._document(name, kind, data)
        most = self._limits.characters
        text = plain_text(name, mime, data, most)
        if text is not None:
            return _clean(text[:most]) + ("\n[cut]" if len(text) > most else "")
        if is_locked_office_file(data):
            raise PartValidationError(f"{name}: {_REASONS[Outcome.LOCKED]}")
        shown = mime if _MIME.fullmatch(mime) else "unknown type"
        raise PartValidationError(f"{shown}, {len(data):,} bytes: this kind of file cannot be read")

    async def _document(self, name: str, kind: Document, data: bytes) -> str:
        """Return the text of a document. Raises PartValidationError or OverloadedError if there is none."""
        try:
            async with asyncio.timeout(self._limits.wait):
                await self._slots.acquire()
        except TimeoutError:
            raise OverloadedError(
                f"{name}: not read, because too many documents are being read; send it again later"
            ) from None
        output = bytearray()
        try:
            status = await self._extract(kind, data, output)
        except OSError as error:
            log.error("the reader of documents cannot start", reason=str(error))
            raise PartValidationError(
                f"{name}: PDF and Word documents cannot be read at the moment"
            ) from None
        finally:
            self._slots.release()
        text = _clean(output.decode(errors="replace")).strip()[: self._limits.characters]
        reason = self._reason(status)
        if reason:
            log.info("a document was not read to its end", kind=kind, size=len(data), reason=reason)
        if text:
            return f"{text}\n[cut{reason and f': {reason}'}]" if status != Outcome.WHOLE else text
        raise PartValidationError(f"{name}: {reason or 'it contains no text; it may be a scan'}")

    async def _extract(self, kind: Document, data: bytes, output: bytearray) -> int | None:
        """Run a worker and add what it writes to ``output``. Return its exit status; None if it was killed
        because of a limit."""
        limits = self._limits
        most = Confinement(limits.seconds, limits.seconds, limits.memory, 4 * limits.characters)
        arguments = (kind, str(limits.characters), str(limits.pages))
        return await self._run(self._python, _WORKER, arguments, data, most, output)

    def _reason(self, status: int | None) -> str:
        """Return why a document was not read; "" if its text was, at least up to the limits."""
        if status is None or status == -signal.SIGXCPU:
            return f"reading it took more than {self._limits.seconds} s"
        return _REASONS[Outcome(status)] if status in set(Outcome) else _REASONS[Outcome.UNREADABLE]


def clean_name(given: str) -> str:
    """Return a file name without folders and control characters, of at most 120 characters."""
    name = given.replace("\\", "/").rstrip("/").rpartition("/")[2]
    name = "".join(c for c in name if unicodedata.category(c)[0] not in "CZ" or c == " ").strip()
    if len(name) > _LONGEST_NAME:
        suffix = Path(name).suffix[:16]
        name = name[: _LONGEST_NAME - len(suffix)] + suffix
    return name or "file"


def _clean(text: str) -> str:
    """Return text that every database stores."""
    return text.replace("\0", "\ufffd")
