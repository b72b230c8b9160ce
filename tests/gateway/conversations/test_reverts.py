"""Changes of files by tools are reverted and restored, also after a kill, but not against other programs."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from gateway.app import Gateway
from gateway.contract.messages import Message
from gateway.conversations import Reverted
from gateway.files import SnapshotError, State, put_state, snapshots
from gateway.store import schema as t
from gateway.testing.chat import Chat, chatting
from tests.gateway.conversations.test_changes import change, changes_of, use

pytestmark = pytest.mark.slow

DELETE = "*** Begin Patch\n*** Delete File: {}\n*** End Patch"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def other(tmp_path: Path) -> Path:
    folder = tmp_path / "other"
    folder.mkdir()
    return folder


def enabled(*roots: Path) -> dict[str, Any]:
    names = [str(root) for root in roots]
    own = {"files": {"roots": names}, "shell": {"roots": names, "shell": True}}
    return {"plugins": {"enabled": ["files", "shell"], **own}}


def contents(*roots: Path) -> dict[str, tuple[bytes, int]]:
    files = [
        path for root in roots for path in root.rglob("*") if path.is_file() and ".git" not in path.parts
    ]
    return {str(path): (path.read_bytes(), path.stat().st_mode) for path in files}


async def revert(chat: Chat, *answers: Message) -> Reverted:
    return await chat.host.changes.revert("s", [answer.id for answer in answers])


async def restore(chat: Chat, *answers: Message) -> Reverted:
    return await chat.host.changes.restore("s", [answer.id for answer in answers])


async def test_004_t09_the_changes_of_turns_are_reverted_and_restored(
    tmp_path: Path, root: Path, other: Path
) -> None:
    (root / "run.sh").write_text("one\n")
    (root / "run.sh").chmod(0o755)
    (root / "old").write_bytes(b"\xff\0 not text\r\n")
    (other / "a\nb").write_text("x")
    async with chatting(tmp_path / "data", **enabled(root, other)) as chat:
        before = contents(root, other)
        edit = use("edit", path="run.sh", old="one", new="1")
        write = use("write", path="new/folder/file", content="x\n")
        first = await change(chat, use("read", path="run.sh"), edit, write)
        between = contents(root, other)
        shell = use("shell", argv=["sh", "-c", f"echo 2 > run.sh; rm old '{other}/a\nb'; mv new moved"])
        second = await change(chat, shell)
        after = contents(root, other)
        assert len({str(before), str(between), str(after)}) == 3
        assert (await changes_of(chat)).files == 4

        report = await revert(chat, second)
        assert (contents(root, other), report.refused) == (between, {})
        assert (await changes_of(chat)).files == 2
        assert report.done == (
            f"{other}/a\nb",
            *(f"{root}/{name}" for name in ("moved/folder/file", "new/folder/file", "old", "run.sh")),
        )
        assert await revert(chat, second) == Reverted((), {})
        await revert(chat, first)
        assert contents(root, other) == before
        assert (await changes_of(chat)).files == 0
        await restore(chat, first, second)
        assert contents(root, other) == after
        assert (await changes_of(chat)).files == 4
        await revert(chat, first, second)
        assert contents(root, other) == before


async def test_a_file_that_another_program_changed_stays_unchanged(tmp_path: Path, root: Path) -> None:
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        answer = await change(
            chat,
            use("write", path="a", content="1"),
            use("write", path="b", content="1"),
            use("write", path="c", content="1"),
        )
        (root / "a").write_text("by hand")
        (root / "b").unlink()
        report = await revert(chat, answer)
        assert report == Reverted((f"{root}/b", f"{root}/c"), {f"{root}/a": "it was changed since"})
        assert contents(root).keys() == {f"{root}/a"}
        assert (root / "a").read_text() == "by hand"
        assert [one.path for one in (await changes_of(chat)).changes] == [f"{root}/a"]


async def test_links_and_other_kinds_of_files_are_refused(tmp_path: Path, root: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "d").mkdir(parents=True)
    names = ["link", "fifo", "large", "d/file", "folder"]
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        answer = await change(chat, *(use("write", path=name, content="1") for name in names))
        for name in names:
            (root / name).unlink()
        (outside / "target").write_text("1")
        (outside / "d/file").write_text("1")
        (root / "link").symlink_to(outside / "target")
        os.mkfifo(root / "fifo")
        with (root / "large").open("wb") as file:
            file.truncate(2 << 30)
        (root / "d").rmdir()
        (root / "d").symlink_to(outside / "d")
        (root / "folder").mkdir()
        report = await revert(chat, answer)
        assert report.done == ()
        assert {Path(path).name: why for path, why in report.refused.items()} == {
            "link": "it is not a regular file",
            "fifo": "it is not a regular file",
            "large": "it has more than 20,000,000 bytes",
            "file": "a link or a file is in the place of its folder",
            "folder": "it is not a regular file",
        }
        assert (outside / "target").read_text() == (outside / "d/file").read_text() == "1"


async def test_a_root_that_was_removed_is_not_made_again(tmp_path: Path, root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub/a").write_text("1")
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        answer = await change(chat, use("read", path="sub/a"), use("patch", patch=DELETE.format("sub/a")))
        await asyncio.to_thread(shutil.rmtree, root)
        assert (await revert(chat, answer)).refused == {f"{root}/sub/a": "its folder does not exist"}
        assert not any(path == root for path in root.parent.iterdir())
        os.mkdir(root)  # noqa: PTH102 - ruff takes the method for slow in a coroutine
        assert (await revert(chat, answer)).refused == {}
        assert (root / "sub/a").read_text() == "1"


def git(root: Path, *arguments: str) -> bytes:
    """Run git as a user would, and return its output."""
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, check=True).stdout


async def test_a_repository_of_the_user_is_not_touched_and_its_settings_do_not_count(
    tmp_path: Path, root: Path
) -> None:
    mark = tmp_path / "mark"
    git(root, "init", "-q")
    (root / ".gitattributes").write_text("* text eol=crlf filter=evil ident\n")
    (root / ".gitignore").write_text("*\n")
    for key in ("clean", "smudge"):
        git(root, "config", f"filter.evil.{key}", f"touch {mark}; cat")
    (root / "a").write_text("$Id$\none\r\ntwo\n")
    state, own = git(root, "status", "--porcelain", "--ignored"), sorted((root / ".git").rglob("*"))
    mark.unlink(missing_ok=True)
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        before = (root / "a").read_bytes()
        answer = await change(chat, use("shell", argv=["sh", "-c", "echo three >> a"]))
        assert (await revert(chat, answer)).done == (f"{root}/a",)
        assert (root / "a").read_bytes() == before
    assert not mark.exists()
    assert sorted((root / ".git").rglob("*")) == own
    assert git(root, "status", "--porcelain", "--ignored") == state


class Gitless(Gateway):
    """A gateway whose search path has no programs."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, environ={"PATH": "/nowhere"}, **more)


async def test_without_git_changes_are_made_and_the_reason_is_reported(tmp_path: Path, root: Path) -> None:
    async with chatting(tmp_path / "data", kind=Gitless, **enabled(root)) as chat:
        answer = await change(chat, use("write", path="a", content="1"))
        reason = "its contents could not be kept: git is not installed"
        assert await revert(chat, answer) == Reverted((), {f"{root}/a": reason})
        assert (root / "a").read_text() == "1"
        assert (await changes_of(chat)).files == 1


@pytest.mark.parametrize("done", [False, True])
async def test_a_revert_that_a_kill_cut_off_is_finished_at_the_next_start(
    tmp_path: Path, root: Path, done: bool
) -> None:
    (root / "a").write_text("0")
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        await change(chat, use("read", path="a"), use("edit", path="a", old="0", new="1"))
        # What a killed process leaves: the intent, and the file in either state.
        with chat.gateway.parts.store.engine.begin() as connection:
            connection.execute(update(t.file_change).values(state="reverting"))
        if done:
            (root / "a").write_text("0")
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        assert (root / "a").read_text() == "0"
        assert (await changes_of(chat)).files == 0


async def test_changes_keep_their_order_when_the_clock_is_set_back(tmp_path: Path, root: Path) -> None:
    (root / "a").write_text("0")
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        first = await change(chat, use("read", path="a"), use("edit", path="a", old="0", new="1"))
        # What is recorded while the clock is ahead: an id that begins with a later time.
        later = update(t.file_change).values(id="ffffffff-ffff-7fff-bfff-ffffffffffff", at=2**47)
        with chat.gateway.parts.store.engine.begin() as connection:
            connection.execute(later)
        second = await change(chat, use("edit", path="a", old="1", new="2"))
        [summed] = (await changes_of(chat)).changes
        assert (summed.before, summed.after) == ("0", "2")
        assert await revert(chat, first, second) == Reverted((f"{root}/a",), {})
        assert (root / "a").read_text() == "0"


async def test_the_contents_are_private_and_deleted_with_the_session(tmp_path: Path, root: Path) -> None:
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        await change(chat, use("write", path="a", content="1"))
        [kept] = (tmp_path / "data/snapshots").iterdir()
        assert kept.stat().st_mode & 0o77 == 0
        assert not list((kept / "hooks").glob("*"))
        await chat.gateway.parts.sessions.delete("s")
        assert not kept.exists()
        kept.mkdir()
    async with chatting(tmp_path / "data", **enabled(root)):
        assert not kept.exists(), "a kill between the two deletions leaves nothing"


async def test_large_folders_are_not_watched_and_their_commands_run(tmp_path: Path, root: Path) -> None:
    for number in range(2_001):
        (root / f"{number}").write_text("1")
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        answer = await change(chat, use("shell", argv=["sh", "-c", "echo 2 > 7"]))
        assert (root / "7").read_text() == "2\n"
        assert (await changes_of(chat)).files == 0
        assert await revert(chat, answer) == Reverted((), {})


async def test_a_write_that_fails_leaves_the_file_and_is_tried_again(tmp_path: Path, root: Path) -> None:
    (root / "a").write_text("old" * 50_000)
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        answer = await change(chat, use("shell", argv=["sh", "-c", "echo 1 > a"]))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            # Only this part: the limit holds for the database, too.
            with pytest.raises(SnapshotError, match="File too large"):
                put_state(str(root), f"{root}/a", State(b"old" * 50_000, None))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert {path: data for path, (data, _) in contents(root).items()} == {f"{root}/a": b"1\n"}
        assert (await revert(chat, answer)).done == (f"{root}/a",)
        assert (root / "a").read_text() == "old" * 50_000


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named(number: int) -> None:
    assert "disk" in snapshots.reason_of(OSError(number, os.strerror(number)))


async def test_an_undo_reverts_the_files_and_a_redo_restores_them(tmp_path: Path, root: Path) -> None:
    (root / "a").write_text("0")
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        await change(chat, use("read", path="a"), use("edit", path="a", old="0", new="1"))
        write = [use("write", path=name, content="x") for name in ("b", "c`d")]
        await change(chat, use("shell", argv=["sh", "-c", "echo 2 > a"]), *write)
        assert (await chat.say("/undo")).text.startswith("Undone.")
        assert contents(root).keys() == {f"{root}/a"}
        assert (root / "a").read_text() == "1"
        assert (await chat.say("/redo")).text.startswith("Redone.")
        assert (root / "a").read_text() == "2\n"
        (root / "c`d").write_text("by hand")
        said = (await chat.say("/undo")).text
        assert "These files stay as they are:" in said
        assert f"{root}/c" in said
        assert said.endswith("it was changed since")
        assert contents(root).keys() == {f"{root}/a", f"{root}/c`d"}
        assert [one.path for one in (await changes_of(chat)).changes] == [f"{root}/a", f"{root}/c`d"]


async def test_an_undo_that_a_kill_cut_off_reverts_its_files_at_the_next_start(
    tmp_path: Path, root: Path
) -> None:
    async with chatting(tmp_path / "data", **enabled(root)) as chat:
        answer = await change(chat, use("write", path="a", content="1"))
        # The transaction of the undo, without what follows it.
        intent = chat.host.changes.intend("s", [answer.id], back=True)
        await chat.gateway.parts.store.write(*intent)
        assert (root / "a").exists()
    async with chatting(tmp_path / "data", **enabled(root)):
        assert contents(root) == {}
