"""Edits and patches: exact, then tolerant; applied as a whole, or not at all."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway import ToolError
from gateway.contract.tool import unified_diff
from plugins.files import patches
from plugins.files.changes import Change, Changes
from plugins.files.content import Content, find_file
from plugins.files.edits import replace
from plugins.files.places import Places

LINES = st.lists(st.sampled_from(["a", "b", " a", "\tb", "", "c d", "c  d", "+x", "-y", "@@"]), max_size=12)


@pytest.mark.parametrize(
    ("text", "old", "new", "result"),
    [
        ("one two", "two", "2", "one 2"),
        ("def f():\n    return 1\n", "return 1", "return 2", "def f():\n    return 2\n"),
        ("  if a:\n      b\n", "if a:\n    b\n", "if c:\n    d\n", "  if c:\n      d\n"),
        ("\tx = 1\n\ty = 2\n", "x = 1\ny = 2", "x = 3\ny = 4", "\tx = 3\n\ty = 4\n"),
        ("a  b\n", "a b", "c", "c\n"),
        ("gone\nkept\n", "gone\n", "", "kept\n"),
        ("a\r\nb", "a\r\nb", "c", "a\r\nb"),
    ],
)
def test_a_text_is_replaced_exactly_or_else_without_regard_to_white_space(
    text: str, old: str, new: str, result: str
) -> None:
    if "\r" in text:
        with pytest.raises(ToolError, match="does not occur"):
            replace(text, old + "x", new)
    else:
        assert replace(text, old, new) == result


@pytest.mark.parametrize(
    ("text", "old", "new", "match"),
    [
        ("a\nb\na\n", "a", "c", "occurs 2 times, at lines 1, 3"),
        ("aaa", "aa", "b", "occurs 2 times, at lines 1, 1"),
        (" x\n\ty\n  x\n\t\ty\n", "x\ny", "z", "occurs 2 times, at lines 1, 3"),
        ("a", "b", "c", "does not occur"),
        ("a", "a", "a", "are the same"),
        ("a", "", "b", "is empty"),
        ("a\n\n", " \n ", "b", "does not occur"),
    ],
)
def test_an_edit_without_one_place_is_refused(text: str, old: str, new: str, match: str) -> None:
    with pytest.raises(ToolError, match=match):
        replace(text, old, new)


def test_all_places_are_replaced_on_demand() -> None:
    assert replace("a b a", "a", "c", every=True) == "c b c"
    assert replace(" x\ny\n  x\n", "x ", "z", every=True) == " z\ny\n  z\n"


MARKED = "*** Begin Patch\n*** Update File: f\n{}\n*** End Patch"
BEFORE = "def one():\n    return 1\n\n\ndef two():\n    return 2\n"


@pytest.mark.parametrize(
    ("patch", "after"),
    [
        (
            "--- a/f\n+++ b/f\n@@ -5,2 +5,2 @@\n def two():\n-    return 2\n+    return 3\n",
            BEFORE.replace("2", "3"),
        ),
        (
            "--- f\n+++ f\n@@ -1,9 +1,7 @@\n def two():\n-    return 2\n+    return 3\n",
            BEFORE.replace("2", "3"),
        ),
        (
            MARKED.format("@@ def two():\n-    return 2\n+    return 3"),
            BEFORE.replace("2", "3"),
        ),
        (
            MARKED.format("@@\n-  return 2\n+    return 3\n*** End of File"),
            BEFORE.replace("2", "3"),
        ),
        ("--- f\n+++ f\n@@ -0,0 +1 @@\n+last\n", BEFORE + "last\n"),
        (
            "--- f\n+++ f\n@@ -6 +6 @@\n-    return 2\n+    return 2\n\\ No newline at end of file\n",
            BEFORE.removesuffix("\n"),
        ),
    ],
    ids=["unified", "wrong numbers", "marked", "white space", "appended", "no end of line"],
)
def test_a_patch_of_either_format_is_applied(patch: str, after: str) -> None:
    [part] = patches.parse(patch)
    assert patches.apply(part, BEFORE) == after


@pytest.mark.parametrize(
    ("patch", "match"),
    [
        ("", "changes no file"),
        ("hello", "changes no file"),
        ("*** Begin Patch\n*** Update File: f", "does not end with"),
        ("*** Begin Patch\nnonsense\n*** End Patch", "'nonsense' where"),
        ("*** Begin Patch\n*** Add File: f\nx\n*** End Patch", "begins with \\+"),
        ("*** Begin Patch\n*** Delete File: f\n-x\n*** End Patch", "a deletion has no lines"),
        ("*** Begin Patch\n*** Update File: f\n@@\n?x\n*** End Patch", "begins with neither"),
        ("@@ -1 +1 @@\n-a\n+b", "no lines --- and"),
        ("--- f\n+++ f\n", "no hunk"),
        ("--- f\n+++ f\n@@ -1 +1 @@\n", "has no lines"),
        ("diff --git a/f b/f\nGIT binary patch\nx", "only changes of text files"),
        (
            "diff --git a/f b/f\nnew file mode 120000\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+/etc",
            "only changes",
        ),
        ("*** Begin Patch\n" + "*** Delete File: f\n" * 101 + "*** End Patch", "at most 100 files"),
    ],
)
def test_a_damaged_patch_is_refused(patch: str, match: str) -> None:
    with pytest.raises(ToolError, match=match):
        patches.parse(patch)


@pytest.mark.parametrize(
    ("hunk", "match"),
    [
        ("@@\n-missing\n+x", "do not occur"),
        ("@@ no such line\n-a\n+x", "'no such line' does not occur"),
        ("@@\n-a\n+x", "occur 2 times, at lines 1, 3"),
    ],
)
def test_a_hunk_without_one_place_is_refused(hunk: str, match: str) -> None:
    [part] = patches.parse(MARKED.format(hunk))
    with pytest.raises(ToolError, match=match):
        patches.apply(part, "a\nb\na\n")


@given(before=LINES, after=LINES, ends=st.booleans())
def test_a_diff_is_a_patch_that_makes_the_new_text(before: list[str], after: list[str], ends: bool) -> None:
    old, new = ("\n".join(lines) + ("\n" if lines and ends else "") for lines in (before, after))
    diff = unified_diff(old, new, "f", "f")
    made = diff.text
    if old == new:
        assert made == ""
    elif "(only line ends differ)" not in made and ends and old and new:
        [part] = patches.parse(made)
        assert patches.apply(part, old) == new
        assert diff.added - diff.removed == len(after) - len(before)


def test_the_diff_of_a_large_change_takes_no_quadratic_time() -> None:
    old = "".join(f"{n % 7}\n" for n in range(50_000))
    made = unified_diff(old, old.replace("3", "4"), "f", "f").text
    assert made.count("\n-") == 50_000 - 4 - 2 or made.count("\n-") > 10_000


def content(text: bytes) -> Content:
    return Content(text, 0o644, 0)


FILES = st.dictionaries(st.sampled_from(["a", "b", "d/c", "d/e/f"]), st.binary(max_size=20), max_size=4)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(before=FILES, after=FILES, obstacle=st.sampled_from(["none", "folder", "changed", "stopped", "large"]))
def test_several_changes_are_made_completely_or_not_at_all(
    before: dict[str, bytes], after: dict[str, bytes], obstacle: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name, data in before.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        found = Places((root,))
        changes = [
            Change(found.find(name), content(before[name]) if name in before else None, after.get(name))
            for name in sorted(before.keys() | after.keys())
        ]
        if obstacle == "folder":
            (root / "z").mkdir()
            changes.append(Change(found.find("z"), None, b"x"))
        elif obstacle == "changed":
            (root / "z").write_bytes(b"new")
            changes.append(Change(found.find("z"), content(b"old"), b"x"))
        elif obstacle == "large":
            changes.append(Change(found.find("z"), None, b"x" * 101))
        there = state(root)
        try:
            Changes(100).apply(changes, lambda: obstacle == "stopped")
        except ToolError:
            assert obstacle != "none"
            assert state(root) == there
        else:
            assert obstacle == "none"
            assert {n: d for n, d in state(root).items() if d is not None} == after


def state(root: Path) -> dict[str, bytes | None]:
    """Every entry below a folder; None for folders."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")
    }


def test_a_failure_after_the_first_file_restores_it(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (root / "a").write_bytes(b"a")
    (root / "a").chmod(0o640)
    found = Places((root,))
    (root / "b").write_bytes(b"other")
    changes = [
        Change(found.find("a"), content(b"a"), b"A"),
        Change(found.find("new/c"), None, b"C"),
        Change(found.find("b"), content(b"b"), b"B"),
    ]
    with pytest.raises(ToolError, match="b was changed by another program"):
        Changes(100).apply(changes)
    assert state(root) == {"a": b"a", "b": b"other"}
    assert (root / "a").stat().st_mode & 0o777 == 0o640


def test_a_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    place = Places((root,)).find("a")
    assert find_file(place, 100) is None
    (root / "a").write_bytes(b"theirs")
    with pytest.raises(ToolError, match="a exists by now"):
        Changes(100).apply([Change(place, None, b"ours")])
    assert [path.name for path in root.iterdir()] == ["a"]
    assert (root / "a").read_bytes() == b"theirs"


WRITER = """
import sys
from pathlib import Path
from plugins.files.changes import Change, Changes
from plugins.files.content import find_file
from plugins.files.places import Places

place, changes = Places((Path(sys.argv[1]),)).find("a"), Changes(10_000_000)
while True:
    for letter in (b"x", b"y"):
        changes.apply([Change(place, find_file(place, 10_000_000), letter * 1_000_000)])
        print("written", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("writes", [1, 4, 9])
def test_a_killed_gateway_leaves_the_old_or_the_new_content(tmp_path: Path, writes: int) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path.resolve())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]) as writer:
        assert writer.stdout is not None
        for _ in range(writes):
            assert writer.stdout.readline() == b"written\n"
        writer.kill()
    data = (tmp_path / "a").read_bytes()
    assert data in (b"x" * 1_000_000, b"y" * 1_000_000)
