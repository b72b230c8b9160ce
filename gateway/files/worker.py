"""Extractor of the text of one document, in its own process, because documents may attack their parser.

``reader.py`` runs this file with ``run_confined``. The document comes on stdin, its text goes to stdout as
UTF-8 while it is extracted, and the exit status is an ``Outcome``. The arguments are the document's kind, and
the most characters and pages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from io import BytesIO
from typing import Any

MAX_UNPACKED = 100_000_000
"""Sum of the sizes of the files in a Word document, which is a ZIP archive, in bytes."""
_MAX_ENTRIES = 10_000
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_SKIPPED = (
    "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",
    f"{_WORD}del",
    f"{_WORD}moveFrom",
    f"{_WORD}pPr",
    f"{_WORD}rPr",
)
_BREAKS = {f"{_WORD}tab": "\t", f"{_WORD}br": "\n", f"{_WORD}cr": "\n", f"{_WORD}noBreakHyphen": "-"}


class Outcome(IntEnum):
    """The exit status of the worker."""

    WHOLE = 0
    CUT = 10
    LOCKED = 11
    MISSING = 12
    UNREADABLE = 13
    MEMORY = 14
    TOO_LARGE = 15


class Stopped(Exception):
    """The end of an extraction with this outcome."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


def main(arguments: list[str]) -> Outcome:
    """Extract the text of the document on stdin. Return the outcome."""
    kind = arguments[0]
    characters, pages = map(int, arguments[1:])
    try:
        data = sys.stdin.buffer.read()
        written = 0
        for text in _pdf(data, pages) if kind == "pdf" else _docx(data):
            sys.stdout.buffer.write(text[: characters - written].encode(errors="replace"))
            sys.stdout.buffer.flush()
            written += len(text)
            if written > characters:
                return Outcome.CUT
    except Stopped as stopped:
        return stopped.outcome
    except ImportError:
        return Outcome.MISSING
    except MemoryError:
        return Outcome.MEMORY
    except Exception:  # noqa: BLE001 - parsers raise anything for damaged documents
        return Outcome.UNREADABLE
    return Outcome.WHOLE


def _pdf(data: bytes, pages: int) -> Iterator[str]:
    """Yield the text of each page."""
    from pypdf import PdfReader

    reader = PdfReader(BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise Stopped(Outcome.LOCKED)
    readable = unreadable = 0
    for number, page in enumerate(reader.pages):
        if number == pages:
            raise Stopped(Outcome.CUT)
        try:
            text = page.extract_text().strip()
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - the other pages may be readable
            unreadable += 1
            continue
        readable += 1
        if text:
            yield f"{text}\n\n"
    if unreadable and not readable:
        raise Stopped(Outcome.UNREADABLE)
    if unreadable:
        yield f"[{unreadable} of {readable + unreadable} pages cannot be read]"


def _docx(data: bytes) -> Iterator[str]:
    """Yield the blocks of a Word document: headings, list items and tables as Markdown."""
    from docx import Document

    _check_archive(data)
    document: Any = Document(BytesIO(data))
    names = {style.style_id: str(style.name) for style in document.styles}
    for block in _blocks(document.element.body, lambda style: _mark(names.get(style, ""))):
        yield f"{block}\n\n"


def _mark(style: str) -> str:
    """Return the Markdown sign of a paragraph with this style."""
    if style == "Title":
        return "#"
    kind, _, level = style.partition(" ")
    if kind == "Heading" and level.isdecimal():
        return "#" * min(int(level), 6)
    return "-" if kind == "List" else ""


def _check_archive(data: bytes) -> None:
    """Raise Stopped for an archive that would become too large. Entries never exceed their stated sizes."""
    from zipfile import ZipFile

    with ZipFile(BytesIO(data)) as archive:
        entries = archive.infolist()
    if len(entries) > _MAX_ENTRIES or sum(entry.file_size for entry in entries) > MAX_UNPACKED:
        raise Stopped(Outcome.TOO_LARGE)


def _blocks(parent: Any, mark: Callable[[str], str]) -> Iterator[str]:
    """Yield paragraphs and tables, also those in content controls and tracked insertions.

    ``mark`` returns the sign before a paragraph of a style.
    """
    for child in parent:
        if child.tag == f"{_WORD}p":
            text = "".join(_runs(child)).strip()
            if text:
                yield " ".join(filter(None, (_sign(child, mark), text)))
        elif child.tag == f"{_WORD}tbl":
            table = "\n".join(_rows(child, mark))
            if table:
                yield table
        elif isinstance(child.tag, str) and child.tag not in _SKIPPED:
            yield from _blocks(child, mark)


def _sign(paragraph: Any, mark: Callable[[str], str]) -> str:
    style = paragraph.find(f"{_WORD}pPr/{_WORD}pStyle")
    heading = "" if style is None else mark(style.get(f"{_WORD}val", ""))
    listed = paragraph.find(f"{_WORD}pPr/{_WORD}numPr") is not None
    return heading or ("-" if listed else "")


def _runs(parent: Any) -> Iterator[str]:
    """Yield the pieces of text in a paragraph."""
    for child in parent:
        if child.tag == f"{_WORD}t":
            yield child.text or ""
        elif child.tag in _BREAKS:
            yield _BREAKS[child.tag]
        elif isinstance(child.tag, str) and child.tag not in _SKIPPED:
            yield from _runs(child)
            if child.tag == f"{_WORD}p":  # a paragraph of a text box
                yield "\n"


def _rows(table: Any, mark: Callable[[str], str]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    for number, row in enumerate(table.iterfind(f"{_WORD}tr")):
        cells = [" ".join(" ".join(_blocks(cell, mark)).split()) for cell in row.iter(f"{_WORD}tc")]
        escaped = (cell.replace("|", "\\|") for cell in cells)
        yield f"| {' | '.join(escaped)} |"
        if number == 0:
            yield "|" + " --- |" * len(cells)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
