"""Documents, pages and programs in confined processes, and in others where the kernel cannot confine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.confinement import Confinement
from gateway.contract.messages import FilePart
from gateway.extensions.process import kernel
from gateway.extensions.process.launcher import Launcher
from gateway.extensions.process.service import Processes
from gateway.files import FileReader
from plugins.web.pages import PageReader
from tests.documents import pdf, word

pytestmark = pytest.mark.slow
CONFINES = not kernel.missing(kernel.layers(), strict=False)
NONE = kernel.Layers("Linux", "x86_64", 0, seccomp=True, user_namespaces=True)
LIMITS = Confinement(seconds=20, cpu_seconds=1, memory=200_000_000, output=10_000)
SCRIPT = """
import sys
def main(arguments):
    if arguments == ["loop"]:
        while True: pass
    try:
        print(open("/etc/hostname").read() and "open")
    except OSError as error:
        print(type(error).__name__)
    return 7
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("landlock", [True, False])
async def test_documents_and_pages_are_read_with_and_without_the_kernels_help(landlock: bool) -> None:
    processes = Processes() if landlock else Processes(launcher=Launcher(probe=lambda: NONE))
    try:
        reader = FileReader(run=processes.run_script)
        found = await reader.read("a.pdf", None, pdf("First", "Second"))
        assert isinstance(found, FilePart)
        assert found.content == "First\n\nSecond"
        found = await reader.read("a.docx", None, word())
        assert isinstance(found, FilePart)
        assert "Sales rose." in (found.content or "")
        pages = PageReader(run=processes.run_script)
        converted = await pages._convert(
            "markdown", "utf-8", "http://x.example/", b"<h1>Title</h1><p>text</p>"
        )  # pyright: ignore[reportPrivateUsage]
        assert converted == (0, "# Title\n\ntext\n")
    finally:
        await processes.close()


@pytest.mark.skipif(not CONFINES, reason="the kernel cannot confine")
async def test_a_script_is_confined_where_it_can_be_and_limited_everywhere(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for processes, said in (
        (Processes(), b"FileNotFoundError\n"),
        (Processes(launcher=Launcher(probe=lambda: NONE)), b"open\n"),
    ):
        try:
            output = bytearray()
            run = processes.run_script
            assert await run(sys.executable, script, (), b"", LIMITS, output) == 7
            assert output == said
            ended = await run(sys.executable, script, ("loop",), b"", LIMITS, output)
            assert ended is None or ended < 0
        finally:
            await processes.close()
