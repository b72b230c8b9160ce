"""The tools on real files: what they read, change and refuse."""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import resource
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway import ToolContext, ToolError, ToolOutput
from gateway.api import FileChange
from gateway.contract.tool import as_output
from plugins.files.changes import Change
from plugins.files.places import Places, refuse
from plugins.files.settings import FilesSettings
from plugins.files.tools import FileTools

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def never(*_: object, **_more: object) -> Any:
    raise AssertionError("no tool here begins a run or a call of its own")


class Desk:
    """The tools on a folder, called as a session would."""

    def __init__(self, root: Path, *more: Path, protected: tuple[Path, ...] = (), **settings: Any) -> None:
        self.root = root
        self.changed: list[tuple[str, str]] = []
        made = FilesSettings(roots=(root, *more), **settings)
        tools = FileTools(made, Places(made.roots, protected)).tools()
        self.tools = {tool.name: tool for tool in tools}

    @asynccontextmanager
    async def _changing(self, changes: Sequence[FileChange]) -> AsyncIterator[Callable[[], None]]:
        def made() -> None:
            self.changed += [("deleted" if c.after is None else "modified", c.path) for c in changes]

        yield made

    async def output(self, name: str, session: str = "s", **arguments: Any) -> ToolOutput:
        context = ToolContext(
            session=session,
            message_id="m",
            call_id="c",
            key="k",
            user="u",
            progress=lambda _text: None,
            run_nested=never,
            call_tool=never,
            ask=never,
            changing=self._changing,
            watching=never,
        )
        return as_output(await self.tools[name].execute(arguments, context))

    async def __call__(self, name: str, session: str = "s", **arguments: Any) -> str:
        return (await self.output(name, session, **arguments)).content

    async def refused(self, name: str, match: str, **arguments: Any) -> None:
        with pytest.raises(ToolError, match=match):
            await self(name, **arguments)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def desk(root: Path) -> Desk:
    return Desk(root)


def snapshot(folder: Path) -> dict[str, bytes]:
    """The files of a folder with their contents."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


async def test_004_t15_a_file_is_written_read_edited_patched_and_found(desk: Desk, root: Path) -> None:
    output = await desk.output("write", path="src/app.py", content="one\ntwo\nthree\n")
    assert (root / "src/app.py").read_text() == "one\ntwo\nthree\n"
    assert output.title == "changed src/app.py (+3 -0)"
    assert "--- /dev/null\n+++ src/app.py\n@@ -0,0 +1,3 @@\n+one" in output.content
    assert await desk("read", path="src/app.py", offset=2) == "     2\ttwo\n     3\tthree"
    assert "-two\n+TWO" in await desk("edit", path="src/app.py", old="two", new="TWO")
    edits = [{"old": "one", "new": "1"}, {"old": "TWO", "new": "2"}]
    await desk("multi_edit", path="src/app.py", edits=edits)
    assert (root / "src/app.py").read_text() == "1\n2\nthree\n"
    patch = "--- a/src/app.py\n+++ b/src/app.py\n@@ -1,3 +1,3 @@\n 1\n 2\n-three\n+3\n"
    await desk("patch", patch=patch)
    assert (root / "src/app.py").read_text() == "1\n2\n3\n"
    assert await desk("glob", pattern="**/*.py") == "src/app.py"
    assert await desk("grep", pattern="^[23]$") == "src/app.py:2: 2\nsrc/app.py:3: 3"
    assert await desk("list") == "src/"
    assert await desk("list", path="src") == "app.py (6 bytes)"
    await asyncio.sleep(0)
    assert desk.changed == [("modified", str(root / "src/app.py"))] * 4


async def test_a_picture_is_an_image_part_and_a_binary_file_is_refused(desk: Desk, root: Path) -> None:
    (root / "dot.png").write_bytes(PNG)
    output = await desk.output("read", path="dot.png")
    [attachment] = output.attachments
    assert (attachment.mime_type, base64.b64decode(attachment.data)) == ("image/png", PNG)
    (root / "data.bin").write_bytes(b"\x7fELF\0\0")
    (root / "latin").write_bytes("grün".encode("latin-1"))
    await desk.refused("read", "binary", path="data.bin")
    await desk.refused("read", "not UTF-8 text", path="latin")


async def test_a_long_file_is_read_page_by_page(desk: Desk, root: Path) -> None:
    (root / "long").write_text("".join(f"line {n}\n" for n in range(1, 10_001)))
    page = await desk("read", path="long", limit=10)
    assert page.endswith("(lines 1 to 10 of 10000; continue at offset 11)")
    assert (await desk("read", path="long", offset=10_000)).endswith(" 10000\tline 10000")
    await desk.refused("read", "beyond the last line", path="long", offset=10_001)
    (root / "wide").write_text("x" * 100_000)
    assert len(await desk("read", path="wide")) < 3_000
    (root / "lines").write_text("\n" * 4_000_000)
    assert (await desk("read", path="lines", offset=3_999_999)).endswith("4000000\t")
    (root / "empty").write_text("")
    assert await desk("read", path="empty") == "(the file is empty)"


def a_socket(path: Path) -> None:
    # In the folder itself: the path of a socket may have 107 bytes at most.
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(path.parent)
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def a_sparse_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 2 << 30)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (os.mkfifo, "a FIFO"),
        (a_socket, "a socket"),
        (Path.mkdir, "a folder, not a file; use list"),
        (a_sparse_file, "2147483648 bytes"),
        (lambda path: path.symlink_to("/dev/zero"), "odd is a link to /dev/zero; links are not followed"),
    ],
    ids=["fifo", "socket", "folder", "2 GB", "link to a device"],
)
@pytest.mark.parametrize("tool", ["read", "write", "edit", "patch", "grep"])
async def test_what_is_not_an_ordinary_file_is_refused_without_waiting(
    desk: Desk, root: Path, make: Callable[[Path], None], match: str, tool: str
) -> None:
    make(root / "odd")
    calls: dict[str, dict[str, Any]] = {
        "read": {},
        "write": {"content": "x"},
        "edit": {"old": "a", "new": "b"},
    }
    if tool == "patch":
        await desk.refused("patch", match, patch="--- odd\n+++ odd\n@@ -1 +1 @@\n-a\n+b\n")
    elif tool == "grep":
        assert await desk("grep", pattern=".") == "(no line matches)"
    else:
        await desk.refused(tool, match, path="odd", **calls[tool])


@pytest.mark.parametrize("path", ["/dev/zero", "/proc/self/environ", "/sys/kernel", "/dev/../proc/self/mem"])
async def test_devices_and_the_gateways_own_process_are_closed(desk: Desk, path: str) -> None:
    await desk.refused("read", "belongs to the gateway or the system", path=path)
    with pytest.raises(ToolError, match="belongs to"):
        desk.tools["read"].asks({"path": path}, "admin")  # type: ignore[misc]


async def test_the_data_directory_of_the_gateway_is_closed_even_inside_a_root(tmp_path: Path) -> None:
    root = tmp_path
    (root / "data/workspace").mkdir(parents=True)
    (root / "data/keys").write_text("secret")
    (root / "data/workspace/a").write_text("fine")
    desk = Desk(root, protected=(root / "data",))
    await desk.refused("read", "belongs to", path="data/keys")
    await desk.refused("read", "belongs to", path="DATA/keys")
    await desk.refused("list", "belongs to", path="data")
    assert await desk("list") == "(the folder is empty)"
    assert await desk("grep", pattern="secret") == "(no line matches)"
    inner = Desk(root / "data/workspace", protected=(root / "data",))
    assert await inner("read", path="a") == "     1\tfine"
    await inner.refused("read", "belongs to", path="../keys")


@pytest.mark.parametrize("path", ["a\0b", "", "\udcff", "x" * 5000, "a/" * 2500])
@pytest.mark.parametrize("tool", ["read", "list", "write", "glob", "grep"])
async def test_paths_that_no_file_has_are_errors(desk: Desk, path: str, tool: str) -> None:
    more = {"write": {"content": ""}, "glob": {"pattern": "*"}, "grep": {"pattern": "x"}}.get(tool, {})
    if path == "" and tool in ("list", "glob", "grep"):
        assert await desk(tool, path=path, **more)
    else:
        with pytest.raises(ToolError):
            await desk(tool, path=path, **more)


@pytest.mark.parametrize("name", ["read", "write", "edit", "multi_edit", "patch", "glob", "grep", "list"])
@pytest.mark.parametrize(
    "arguments", [{"path": 3, "patch": 3}, {"path": None, "patch": None}, {"path": ["a"]}, {"other": 1}]
)
async def test_wrong_arguments_are_errors_and_are_not_asked_about(
    desk: Desk, name: str, arguments: dict[str, Any]
) -> None:
    tool = desk.tools[name]
    assert tool.asks is not None
    assert tool.match_key is not None
    assert tool.asks(arguments, "user") is None
    tool.match_key(arguments)
    with pytest.raises(ToolError, match="wrong arguments"):
        await desk(name, **arguments)


async def test_names_that_are_not_utf_8_or_have_control_characters_are_shown_on_one_line(
    desk: Desk, root: Path
) -> None:
    for name in (b"odd-\xff", b"two\nlines", b"tab\t"):
        (root / os.fsdecode(name)).write_text("here")
    assert await desk("list") == "odd-\\xff (4 bytes)\ntab\\t (4 bytes)\ntwo\\nlines (4 bytes)"
    assert await desk("glob", pattern="*") == "odd-\\xff\ntab\\t\ntwo\\nlines"
    assert await desk("grep", pattern="here") == "odd-\\xff:1: here\ntab\\t:1: here\ntwo\\nlines:1: here"


async def test_a_file_that_was_not_read_or_has_changed_since_is_not_overwritten(
    desk: Desk, root: Path
) -> None:
    (root / "a").write_text("old\n")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("write", {"path": "a", "content": "new\n"}),
        ("edit", {"path": "a", "old": "old", "new": "new"}),
        ("patch", {"patch": "--- a\n+++ a\n@@ -1 +1 @@\n-old\n+new\n"}),
        ("patch", {"patch": "*** Begin Patch\n*** Delete File: a\n*** End Patch"}),
    ]
    for name, arguments in calls:
        await desk.refused(name, "not read in this conversation; read it first", **arguments)
    await desk("read", "other", path="a")
    for name, arguments in calls:
        await desk.refused(name, "not read in this conversation", **arguments)
    await desk("read", path="a")
    state = (root / "a").stat()
    (root / "a").write_text("OLD\n")
    os.utime(root / "a", ns=(state.st_atime_ns, state.st_mtime_ns))
    for name, arguments in calls:
        await desk.refused(name, "changed since it was read", **arguments)
    assert (root / "a").read_text() == "OLD\n"
    await desk("read", path="a")
    await desk("write", path="a", content="new\n")
    await desk("write", path="a", content="newer\n")
    assert (root / "a").read_text() == "newer\n"


async def test_a_write_keeps_mode_line_ends_and_byte_order_mark(desk: Desk, root: Path) -> None:
    file = root / "script"
    file.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    file.chmod(0o4751)
    await desk("read", path="script")
    await desk("edit", path="script", old="one\ntwo", new="1\n2")
    assert file.read_bytes() == b"\xef\xbb\xbf1\r\n2\r\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o751
    file.write_bytes(b"a\r\nb\n")
    await desk("read", path="script")
    await desk("edit", path="script", old="b", new="c")
    assert file.read_bytes() == b"a\r\nc\n"


async def test_a_hard_link_outside_keeps_its_content(desk: Desk, root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("kept\n")
    os.link(tmp_path / "outside", root / "inside")
    await desk("read", path="inside")
    await desk("write", path="inside", content="changed\n")
    assert (tmp_path / "outside").read_text() == "kept\n"
    assert (root / "inside").read_text() == "changed\n"


async def test_a_read_only_file_stays_unchanged(desk: Desk, root: Path) -> None:
    (root / "a").write_text("old")
    (root / "a").chmod(0o444)
    await desk("read", path="a")
    await desk.refused("write", r"read-only \(mode 444\)", path="a", content="new")
    assert snapshot(root) == {"a": b"old"}


@pytest.fixture
def ordinary_root() -> Iterator[Path]:
    """A root whose tools run without the rights of the superuser."""
    with tempfile.TemporaryDirectory() as folder:
        user = os.geteuid() or 65534
        os.chown(folder, user, -1)
        kept, _ = os.geteuid(), os.seteuid(user)
        try:
            yield Path(folder)
        finally:
            os.seteuid(kept)


async def test_what_the_gateways_user_may_not_do_is_an_error(ordinary_root: Path) -> None:
    root, desk = ordinary_root, Desk(ordinary_root)
    (root / "closed").mkdir()
    (root / "closed/a").write_text("x")
    (root / "secret").write_text("x")
    (root / "closed").chmod(0o555)
    (root / "secret").chmod(0)
    try:
        await desk.refused("read", "may not be accessed", path="secret")
        await desk.refused("write", "may not be accessed", path="closed/b", content="x")
        await desk("read", path="closed/a")
        await desk.refused("write", "may not be accessed", path="closed/a", content="y")
        (root / "closed").chmod(0)
        await desk.refused("read", "may not be accessed", path="closed/a")
        await desk.refused("list", "may not be accessed", path="closed")
        assert await desk("glob", pattern="*") == "secret"
    finally:
        (root / "closed").chmod(0o755)
    assert (root / "closed/a").read_text() == "x"


async def test_a_content_that_is_too_large_leaves_the_old_one(root: Path) -> None:
    desk = Desk(root, max_bytes=1000)
    (root / "a").write_text("old")
    await desk("read", path="a")
    await desk.refused("write", "at most 1000 can be written", path="a", content="x" * 1001)
    assert snapshot(root) == {"a": b"old"}


async def test_a_disk_that_fails_in_the_middle_of_a_write_leaves_the_old_content(
    desk: Desk, root: Path
) -> None:
    (root / "a").write_text("old")
    await desk("read", path="a")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        await desk.refused("write", "File too large", path="a", content="x" * 1_000_000)
        await desk.refused("write", "File too large", path="new/b", content="x" * 1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert snapshot(root) == {"a": b"old"}
    assert await desk("list") == "a (3 bytes)"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named(root: Path, number: int) -> None:
    with pytest.raises(ToolError, match="a was not changed: the disk is full"):
        refuse(Places((root,)).find("a"), OSError(number, os.strerror(number)))


async def test_a_root_that_is_removed_at_run_time_is_an_error_and_a_new_one_is_used(
    desk: Desk, root: Path
) -> None:
    os.rmdir(root)  # noqa: PTH106 - ruff takes the method for slow in a coroutine
    for name, more in (("list", {}), ("glob", {"pattern": "*"}), ("grep", {"pattern": "x"})):
        await desk.refused(name, "cannot be opened", **more)
    await desk.refused("read", "cannot be opened", path="a")
    await desk.refused("write", "cannot be opened", path="a", content="x")
    os.mkdir(root)  # noqa: PTH102
    await desk("write", path="a", content="x")
    assert snapshot(root) == {"a": b"x"}


async def test_several_roots_have_absolute_paths(tmp_path: Path, root: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    desk = Desk(root, other)
    await desk("write", path=str(other / "b"), content="x\n")
    assert await desk("glob", pattern="*", path=str(other)) == str(other / "b")
    match_key = desk.tools["read"].match_key
    assert match_key is not None
    assert match_key({"path": str(root / "x/../a")}) == "a"
    assert match_key({"path": str(other / "b")}) == str(other / "b")


async def test_without_writing_there_are_four_tools_that_only_read(root: Path) -> None:
    tools = Desk(root, writable=False).tools
    assert [*tools] == ["read", "list", "glob", "grep"]
    assert all(tool.read_only and tool.idempotent for tool in tools.values())
    writing = set(Desk(root).tools) - set(tools)
    assert writing == {"write", "edit", "multi_edit", "patch"}
    assert not any(Desk(root).tools[name].read_only for name in writing)


async def test_a_cancelled_search_ends_its_thread(desk: Desk, root: Path) -> None:
    for number in range(2_000):
        (root / f"{number:04}").write_text("x\n" * 1000)
    search = asyncio.ensure_future(desk("grep", pattern="y"))
    await asyncio.sleep(0)
    search.cancel()
    with pytest.raises(asyncio.CancelledError):
        await search
    assert await desk("list", path=".")


async def test_changes_of_a_session_are_reported_even_if_the_call_is_cancelled(
    desk: Desk, root: Path
) -> None:
    write = asyncio.ensure_future(desk("write", path="a", content="x"))
    await asyncio.sleep(0)
    write.cancel()
    with pytest.raises(asyncio.CancelledError):
        await write
    await asyncio.sleep(0)
    assert bool(desk.changed) == (root / "a").exists()


def test_a_change_shows_its_diff_also_for_what_is_not_text(root: Path) -> None:
    place = Places((root,)).find("a")
    assert "(3 bytes that are not text)" in Change(place, None, b"a\0b").record.diff().text
