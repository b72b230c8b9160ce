"""Finding files and lines: globs, patterns of RE2, and limits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway import ToolError, ToolResultPart
from gateway.testing.chat import chatting
from gateway.testing.fake_models.script import Reply, Use
from plugins.files import search
from plugins.files.places import Places
from plugins.files.search import Walk, compile_pattern, glob_filter, grep
from plugins.files.settings import FilesSettings


def find(root: Path, pattern: str, *, ignore_case: bool = False, most: int = 100) -> list[str]:
    found = Places((root,))
    entries = Walk(found, bool).files(found.find("."))
    return grep(entries, compile_pattern(pattern, ignore_case=ignore_case), 1_000_000, most, lambda _: False)


@pytest.mark.parametrize(
    ("pattern", "lines"),
    [
        ("b", ["f:2: b", "f:4: ab b"]),
        ("^b$", ["f:2: b"]),
        ("B", []),
        (r"\bb\b", ["f:2: b", "f:4: ab b"]),
        ("a.*b", ["f:4: ab b"]),
        (r"a\s+b", []),
        (r"[^x]{3,}", ["f:4: ab b", "f:5: grün"]),
        ("ü", ["f:5: grün"]),
        ("^$", ["f:3: "]),
        ("x*", ["f:1: a", "f:2: b", "f:3: ", "f:4: ab b", "f:5: grün"]),
        ("n$", ["f:5: grün"]),
    ],
)
def test_a_pattern_is_searched_in_each_line(tmp_path: Path, pattern: str, lines: list[str]) -> None:
    (tmp_path / "f").write_text("a\nb\n\nab b\ngrün")
    assert find(tmp_path, pattern) == lines


def test_case_limits_and_what_is_left_out(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/config").write_text("Hit")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules/x").write_text("Hit")
    (tmp_path / "binary").write_bytes(b"Hit\0")
    (tmp_path / "large").write_bytes(b"Hit" + b"x" * 1_000_000)
    (tmp_path / "wide").write_text("hit" + "x" * 1000 + "\r\n")
    (tmp_path / "many").write_text("hit\n" * 200)
    assert find(tmp_path, "Hit") == []
    found = find(tmp_path, "Hit", ignore_case=True)
    assert len(found) == 101
    assert found[-1].startswith("(only the first 100")
    assert find(tmp_path, "xxx")[0] == f"wide:1: hit{'x' * 297}…"


@pytest.mark.parametrize(
    "pattern",
    [
        "(?=a)",
        "(?<!a)b",
        r"(a)\1",
        "(",
        "a)(b",
        "[",
        "a{2000}",
        "",
        "x" * 1001,
        "\ud800",
        "(((a{99}){99}){99})",
    ],
)
def test_what_is_not_a_pattern_of_re2_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ToolError, match=r"not a pattern of RE2|1 to 1000 characters|not valid UTF-8"):
        compile_pattern(pattern, ignore_case=False)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(x+x+)+y", "a*" * 30 + "b", "(.*)*=(.*)*;"])
def test_a_pattern_that_others_backtrack_on_takes_linear_time(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "f").write_text("a" * 300_000 + "!" + "x" * 300_000)
    assert len(find(tmp_path, pattern)) <= 1


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", "deep/er/a.py", True),
        ("*.py", "a.pyc", False),
        ("src/*.py", "src/a.py", True),
        ("src/*.py", "src/b/a.py", False),
        ("src/**/*.py", "src/a.py", True),
        ("src/**/*.py", "src/b/c/a.py", True),
        ("**", "a/b", True),
        ("**/b/**", "a/b", True),
        ("**/b/**", "a/c", False),
        ("./a.{js,ts}", "a.ts", True),
        ("{a,b{c,d}}", "bd", True),
        ("{a,b{c,d}}", "b", False),
        ("[ab]?", "bx", True),
        ("/".join(["**"] * 25 + ["x"]), "/".join("abcdefghij" * 6), False),
        ("*a" * 30 + "b", "a" * 200, False),
    ],
)
def test_globs(glob: str, path: str, matches: bool) -> None:
    assert glob_filter(glob)(path.split("/")) is matches


@pytest.mark.parametrize("glob", ["", "../*", "/etc/*", "a//b", "\0", "{a,b}" * 10, "x" * 1001])
def test_a_glob_that_leaves_its_folder_or_explodes_is_refused(glob: str) -> None:
    with pytest.raises(ToolError):
        glob_filter(glob)


def test_a_deep_and_a_wide_tree_end_the_walk_with_a_note(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(80):
        deep /= "d"
        deep.mkdir()
    (deep / "f").touch()
    found = Places((tmp_path,))
    walk = Walk(found, bool)
    assert [*walk.files(found.find("."))] == []
    assert "64 levels" in walk.note
    wide = Walk(found, bool)
    wide._entries = search._MOST_ENTRIES
    assert [*wide.files(found.find("."))] == []
    assert "200000 entries" in wide.note
    with pytest.raises(ToolError, match="stopped"):
        [*Walk(found, lambda: True).files(found.find("."))]


@pytest.mark.parametrize(
    ("path", "secret"),
    [
        ("/r/.env", True),
        ("/r/.ENV", True),
        ("/r/.env.local", True),
        ("/r/prod.env", True),
        ("/r/.env.example", False),
        ("/r/a.env.template", False),
        ("/home/a/.ssh/config", True),
        ("/home/a/.ssh/id_rsa.pub", False),
        ("/r/server.key", True),
        ("/r/environment.py", False),
        ("/r/.env/readme", False),
        ("/r/config/trunkline.json5", True),
        ("/r/config/agents/helper.md", True),
        ("/r/.trunkline/trunkline.toml", True),
        ("/r/.agents/skills/x/SKILL.md", True),
        ("/r/trunkline.md", False),
    ],
)
def test_names_that_may_hold_secrets(tmp_path: Path, path: str, secret: bool) -> None:
    assert FilesSettings(roots=(tmp_path,)).is_secret(path) is secret


async def test_without_re2_only_grep_is_missing_and_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/a").write_text("x")
    plugins = {"enabled": ["files"], "files": {"roots": [str(tmp_path / "root")]}}
    kept = sys.modules.get("re2")
    sys.modules["re2"] = None  # type: ignore[assignment] - an import of it fails now
    try:
        async with chatting(tmp_path / "data", plugins=plugins) as chat:
            for call in (Use("grep", '{"pattern": "x"}'), Use("read", '{"path": "a"}')):
                chat.model.then(Reply((call,), "tools"))
            said = [part for part in (await chat.say("go")).parts if isinstance(part, ToolResultPart)]
    finally:
        sys.modules.pop("re2")
        if kept is not None:
            sys.modules["re2"] = kept
    assert "the operator can install trunkline[files]" in said[0].output
    assert said[1].output == "     1\tx"
