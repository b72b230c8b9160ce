"""PDF and Word documents for tests, made with the libraries that read them and by hand."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import docx
import pypdf
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

WORD = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_FONT = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}


def pdf(*pages: str, password: str | None = None) -> bytes:
    """A PDF with a line of text on each page; with ``password=""`` it opens without one."""
    writer = pypdf.PdfWriter()
    font = DictionaryObject({NameObject(key): NameObject(value) for key, value in _FONT.items()})
    fonts = DictionaryObject({NameObject("/F1"): font})
    for text in pages:
        content = DecodedStreamObject()
        content.set_data(f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode())
        page = writer.add_blank_page(300, 300)
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        page[NameObject("/Contents")] = writer._add_object(content.flate_encode())
    if password is not None:
        writer.encrypt(password, owner_password="of the owner", algorithm="AES-256")
    return written(writer.write)


def word(fill: Any = None) -> bytes:
    """A Word document that ``fill`` wrote; without it, with a heading, a list and a table."""
    document = docx.Document()
    if fill is not None:
        fill(document)
    else:
        document.add_heading("Quarter", 2)
        document.add_paragraph("Sales rose.")
        document.add_paragraph("north", style="List Bullet")
        table = document.add_table(2, 2)
        for cell, text in zip(
            [c for row in table.rows for c in row.cells], ("a|b", "c", "1", "2"), strict=True
        ):
            cell.text = text
    return written(document.save)


def written(write: Any) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def raw_pdf(objects: Sequence[bytes]) -> bytes:
    """A PDF of these objects, numbered from 1; the first is its catalog."""
    body, offsets = bytearray(b"%PDF-1.7\n"), []
    for number, content in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    end = b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % (len(objects) + 1, len(body))
    return bytes(body) + b"xref\n0 %d\n0000000000 65535 f \n%b%b" % (len(objects) + 1, table, end)


def stream(data: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %b >>\nstream\n%b\nendstream" % (len(data), entries, data)


def nested_bomb(size: int, layers: int = 3) -> bytes:
    """A PDF whose page has ``size`` bytes of content, compressed several times."""
    piece = b"BT /F1 9 Tf (x) Tj ET " * 50_000
    first = zlib.compressobj(9)
    data = b"".join(first.compress(piece) for _ in range(size // len(piece))) + first.flush()
    for _ in range(layers - 1):
        data = zlib.compress(data, 9)
    filters = b"/Filter [%b]" % (b" /FlateDecode" * layers)
    return raw_pdf(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R"
            b" /Resources << /Font << /F1 5 0 R >> >> >>",
            stream(data, filters),
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        ]
    )


def page_tree_bomb(width: int, depth: int) -> bytes:
    """A PDF of a few hundred bytes with ``width ** depth`` pages: each node lists one child many times."""
    nodes = [
        b"<< /Type /Pages /Count %d /Kids [%b] >>"
        % (width ** (depth - level), b"%d 0 R " % (level + 3) * width)
        for level in range(depth)
    ]
    page = b"<< /Type /Page /MediaBox [0 0 9 9] >>"
    return raw_pdf([b"<< /Type /Catalog /Pages 2 0 R >>", *nodes, page])


def zip_bomb(size: int) -> bytes:
    """A Word document whose text has ``size`` bytes when it is unpacked."""
    file = io.BytesIO(word())
    with zipfile.ZipFile(file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
        with archive.open("word/media/image1.png", "w") as picture:
            for _ in range(size // 1_000_000):
                picture.write(bytes(1_000_000))
    return file.getvalue()
