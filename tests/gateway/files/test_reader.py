"""Documents are read by their own processes, within limits, and whatever they contain gives a part."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway import FilePart
from gateway.files import FileReader
from gateway.files.reader import ReadingLimits
from tests.documents import WORD, nested_bomb, page_tree_bomb, pdf, word, zip_bomb

pytestmark = pytest.mark.slow

SMALL = ReadingLimits(characters=50, pages=3)
DAMAGED = "it is damaged or too complex, and cannot be read"


async def content(reader: FileReader, data: bytes, name: str = "a.pdf", mime_type: str | None = None) -> str:
    part = await reader.read(name, mime_type, data)
    assert isinstance(part, FilePart)
    assert part.path == name
    assert part.content is not None
    return part.content


async def test_a_pdf_is_read_with_any_announced_type():
    data = pdf("First page", "Second page")
    assert await content(FileReader(), data, "a.txt", "text/plain") == "First page\n\nSecond page"
    assert await content(FileReader(), b"\r\n" + data, "a", "application/pdf") == "First page\n\nSecond page"


async def test_a_word_document_keeps_headings_lists_and_tables():
    text = "## Quarter\n\nSales rose.\n\n- north\n\n| a\\|b | c |\n| --- | --- |\n| 1 | 2 |"
    assert await content(FileReader(), word(), "a.docx", WORD) == text
    assert await content(FileReader(), word(), "a.bin") == text


async def test_tracked_changes_and_content_controls_of_word_are_read():
    def fill(document: Any) -> None:
        from docx.oxml import parse_xml

        space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
        run = "<w:r><w:t>{}</w:t></w:r>"
        added = f"<w:ins w:id='1'>{run.format('new')}</w:ins>"
        removed = "<w:del w:id='2'><w:r><w:delText>old</w:delText></w:r></w:del>"
        body = document.element.body
        body.insert(0, parse_xml(f"<w:p {space}>{run.format('a ')}{added}{removed}</w:p>"))
        control = f"<w:sdt {space}><w:sdtContent><w:p>{run.format('field')}</w:p></w:sdtContent></w:sdt>"
        body.insert(1, parse_xml(control))

    assert await content(FileReader(), word(fill), "a.docx") == "a new\n\nfield"


async def test_a_long_document_is_cut_at_the_limit_of_pages_or_characters():
    assert await content(FileReader(SMALL), pdf("1", "2", "3", "4")) == "1\n\n2\n\n3\n[cut]"
    assert await content(FileReader(SMALL), pdf("1", "2", "3")) == "1\n\n2\n\n3"
    assert await content(FileReader(SMALL), pdf("x" * 80)) == "x" * 50 + "\n[cut]"


async def test_a_pdf_with_a_password_is_called_protected_but_not_one_that_opens_without():
    assert (
        await content(FileReader(), pdf("x", password="secret")) == "[a.pdf: it is protected by a password]"
    )
    assert await content(FileReader(), pdf("Open", password="")) == "Open"


async def test_a_pdf_without_text_is_called_so():
    assert await content(FileReader(), pdf("")) == "[a.pdf: it contains no text; it may be a scan]"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (pdf("x")[:200], "a.pdf"),
        (b"%PDF-1.7\n" + bytes(range(256)) * 50, "a.pdf"),
        (word()[:5000], "a.docx"),
        (b"PK\x03\x04" + bytes(100), "a.docx"),
    ],
    ids=["truncated", "garbage", "truncated docx", "garbage docx"],
)
async def test_a_damaged_document_gives_a_note(data: bytes, name: str):
    assert await content(FileReader(), data, name) == f"[{name}: {DAMAGED}]"


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (lambda: nested_bomb(1_000_000_000), "a.pdf", DAMAGED),
        (lambda: page_tree_bomb(100, 3), "a.pdf", DAMAGED),
        (lambda: page_tree_bomb(1_000, 20), "a.pdf", DAMAGED),
        (lambda: zip_bomb(110_000_000), "a.docx", "it is too large when it is unpacked"),
    ],
    ids=["nested streams", "million pages", "endless pages", "zip"],
)
async def test_a_bomb_ends_within_the_limits_and_holds_up_nothing(
    make: Callable[[], bytes], name: str, reason: str
):
    data = make()
    assert len(data) < 300_000
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(content(FileReader(), data, name))
        assert await content(FileReader(), b"another file", "b.txt") == "another file"
        assert not reading.done()
    assert reading.result() == f"[{name}: {reason}]"


async def test_a_document_that_takes_too_long_gives_a_note():
    reader = FileReader(ReadingLimits(seconds=1))
    assert await content(reader, nested_bomb(60_000_000)) == "[a.pdf: reading it took more than 1 s]"


async def test_the_pages_that_were_read_in_time_are_kept(tmp_path: Path):
    slow = interpreter(tmp_path, "cat > /dev/null; echo The first page; sleep 60 & wait")
    reader = FileReader(ReadingLimits(seconds=1), slow)
    expected = "The first page\n[cut: reading it took more than 1 s]"
    assert await content(reader, pdf("x")) == expected


async def test_a_document_that_needs_too_much_memory_gives_a_note():
    reader = FileReader(ReadingLimits(memory=100 * 1024 * 1024))
    assert await content(reader, nested_bomb(60_000_000)) in (
        "[a.pdf: reading it needs too much memory]",
        f"[a.pdf: {DAMAGED}]",
    )


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """An interpreter that has no libraries."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return str(tmp_path / "bare/bin/python")


async def test_without_the_extra_the_note_says_what_to_install(bare_python: str):
    reader = FileReader(python=bare_python)
    advice = "PDF and Word documents cannot be read: install trunkline[documents]"
    assert await content(reader, pdf("x")) == f"[a.pdf: {advice}]"
    assert await content(reader, word(), "a.docx") == f"[a.docx: {advice}]"


async def test_a_worker_gets_no_environment_and_leaves_no_process(tmp_path: Path):
    spy = interpreter(tmp_path, f"env > {tmp_path}/env; sleep 60 & echo $! > {tmp_path}/child; wait")
    assert await content(FileReader(ReadingLimits(seconds=1), spy), pdf("x")) == (
        "[a.pdf: reading it took more than 1 s]"
    )
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names <= {"PWD", "_", "SHLVL"}
    assert await ended(tmp_path / "child")


async def test_a_cancelled_reading_ends_its_process(tmp_path: Path):
    # It reads first: asyncio kills a process without its group if the call is cancelled while that starts.
    spy = interpreter(tmp_path, f"cat > /dev/null; sleep 60 & echo $! > {tmp_path}/child; wait")
    reading = asyncio.ensure_future(FileReader(python=spy).read("a.pdf", None, pdf("x")))
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await ended(tmp_path / "child")


async def test_a_worker_that_writes_without_end_is_stopped(tmp_path: Path):
    reader = FileReader(SMALL, interpreter(tmp_path, "cat > /dev/null; yes"))
    assert (await content(reader, pdf("x"))).startswith("y\ny\n")


async def test_a_few_documents_are_read_at_once_and_others_wait_for_a_limited_time(tmp_path: Path):
    counts = interpreter(tmp_path, f"cat > /dev/null; echo x >> {tmp_path}/runs; sleep 60 & wait")
    reader = FileReader(ReadingLimits(workers=1, seconds=2, wait=0.1), counts)
    found = await asyncio.gather(*(content(reader, pdf("x")) for _ in range(3)))
    busy = "[a.pdf: not read, because too many documents are being read; send it again later]"
    assert sorted(found) == sorted(["[a.pdf: reading it took more than 2 s]", busy, busy])
    assert (tmp_path / "runs").read_text() == "x\n"
    assert await content(FileReader(), pdf("Back")) == "Back"


async def test_an_interpreter_that_is_gone_gives_a_note(tmp_path: Path):
    reader = FileReader(python=str(tmp_path / "none"))
    assert await content(reader, pdf("x")) == "[a.pdf: PDF and Word documents cannot be read at the moment]"


def test_the_parsers_are_not_loaded_into_the_gateway():
    code = "import sys, gateway.app; print(sorted({'pypdf', 'docx', 'lxml', 'zipfile'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("[]", "['zipfile']")


def interpreter(folder: Path, script: str) -> str:
    """A program in the place of the interpreter."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


async def ended(file: Path) -> bool:
    """Wait until the process with this id has ended."""
    while is_running(int(file.read_text())):  # noqa: ASYNC240 - a short file
        await asyncio.sleep(0.01)
    return True


def is_running(process: int) -> bool:
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
