"""Recognition of file formats by content, and decoding of plain text. Pure."""

from __future__ import annotations

import codecs
import re
from pathlib import PurePosixPath
from typing import Literal

Document = Literal["pdf", "docx"]

_PICTURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)
_PDF_LEAD = 1024
"""Bytes at the beginning of a file in which readers accept the mark of a PDF."""
_WORD_TYPE = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_TEXT_TYPES = re.compile(
    r"text/.+|application/(.+\+)?(json|xml)|application/(x-)?(csv|javascript|ndjson|sh|sql|toml|yaml)"
)
_TEXT_SUFFIXES = re.compile(
    r"\.(c|cc|cfg|conf|cpp|cs|css|csv|go|h|hpp|html?|ini|java|js|json|jsonl|kt|log|lua|md|php|pl|ps1|py|r|rb"
    r"|rs|rst|scala|sh|sql|srt|svg|swift|tex|toml|ts|tsv|tsx|txt|vtt|xml|ya?ml)"
)
_NOT_TEXT = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def picture_type(data: bytes) -> str | None:
    """Return the type of a picture that models accept, by its first bytes; None for anything else."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for lead, mime in _PICTURES if data.startswith(lead)), None)


def document_kind(name: str, mime_type: str, data: bytes) -> Document | None:
    """Return the kind of a document by its content; name and type count only where that is ambiguous."""
    suffix = PurePosixPath(name).suffix.lower()
    if data.startswith(b"%PDF-"):
        return "pdf"
    if (suffix == ".pdf" or mime_type == "application/pdf") and b"%PDF-" in data[:_PDF_LEAD]:
        return "pdf"
    if data.startswith(b"PK\x03\x04") and (
        suffix == ".docx" or mime_type == _WORD_TYPE or b"word/document.xml" in data
    ):
        return "docx"
    return None


def is_locked_office_file(data: bytes) -> bool:
    """Return whether data is a document of an office program that is encrypted with a password."""
    return data.startswith(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1") and _ENCRYPTED in data


def plain_text(name: str, mime_type: str, data: bytes, most: int) -> str | None:
    """Return text of at most ``most`` characters, and one more if it was longer; None for binary data.

    UTF-8, and UTF-16 with its mark. Other bytes are read as Windows-1252 if name or type announce text.
    """
    lead = data[: 4 * (most + 2)]  # no encoding needs more than four bytes for a character
    is_whole = len(lead) == len(data)
    if data.startswith(_UTF_16):
        return _decoded(lead, "utf-16", is_whole)
    if b"\0" in data:
        return None
    text = _decoded(lead, "utf-8-sig", is_whole)
    if text is not None:
        return text[: most + 1]
    announced = _TEXT_TYPES.fullmatch(mime_type) or _TEXT_SUFFIXES.fullmatch(
        PurePosixPath(name).suffix.lower()
    )
    if not announced:
        return None
    lead = data[: most + 1]
    text = _decoded(lead, "cp1252", is_whole) or lead.decode("latin-1")
    return None if _NOT_TEXT.search(text) else text


def _decoded(data: bytes, encoding: str, is_whole: bool) -> str | None:
    try:
        return codecs.getincrementaldecoder(encoding)().decode(data, is_whole)
    except UnicodeDecodeError:
        return None
