"""Scripts and styles as they are served mean what their files mean."""

from __future__ import annotations

from pathlib import Path

import pytest
from pygments.lexer import Lexer
from pygments.lexers.css import CssLexer
from pygments.lexers.javascript import JavascriptLexer
from pygments.token import Comment, Whitespace

from gateway.server.pages import SHARED
from gateway.server.pages.compact import compact
from tests.e2e.page_server import PAGE

CONSOLE = SHARED.parents[1] / "console" / "page"
FILES = [
    path
    for folder in (CONSOLE, SHARED, PAGE)
    for path in sorted(folder.iterdir())
    if path.suffix in (".js", ".css")
]


def meaning(path: Path, content: bytes) -> list[tuple[object, str]]:
    """Return the words of a file without what separates them."""
    lexer: Lexer = JavascriptLexer() if path.suffix == ".js" else CssLexer()
    return [
        (kind, text)
        for kind, text in lexer.get_tokens(content.decode())
        if kind not in Comment and kind not in Whitespace and text.strip()
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_loses_nothing_but_comments_and_indentation(path: Path) -> None:
    before, after = path.read_bytes(), compact(path)
    assert meaning(path, after) == meaning(path, before)
    assert after.count(b"\n") == before.count(b"\n")


def test_most_scripts_are_a_tenth_smaller() -> None:
    whole, served = (
        sum(map(len, each)) for each in zip(*((p.read_bytes(), compact(p)) for p in FILES), strict=True)
    )
    assert served < 0.9 * whole


CASES = {
    "a comment of several lines": ("/* a\n  b */ x;\n", "\nx;\n"),
    "two comments in a line": ("/* a */ /* b\n c */ x;\n", "\nx;\n"),
    "an address": ('  f("https://x");\n', 'f("https://x");\n'),
    "a comment after code": ("  f(); // why\n", "f(); // why\n"),
    "a template in a line": ("  f(`  // ${x} /* `);\n", "f(`  // ${x} /* `);\n"),
    "a template of two lines": ("  f(`\n  // x`);\n", "  f(`\n  // x`);\n"),
    "a text of two lines": ('  f("a \\\n  b");\n', '  f("a \\\n  b");\n'),
    "a backtick in a comment": ("  // a ` b\n  f();\n", "\nf();\n"),
}


@pytest.mark.parametrize(("written", "served"), CASES.values(), ids=CASES)
def test_a_text_over_several_lines_keeps_its_file_as_it_is(tmp_path: Path, written: str, served: str) -> None:
    path = tmp_path / "x.js"
    path.write_text(written)
    assert compact(path).decode() == served


def test_other_files_are_served_as_they_are(tmp_path: Path) -> None:
    for name in ("x.svg", "x.png", "x.html"):
        (tmp_path / name).write_bytes(b"  // \xff\n")
        assert compact(tmp_path / name) == b"  // \xff\n"
