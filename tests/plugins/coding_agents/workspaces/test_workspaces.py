"""Workspaces: made of repositories at a real git server, read, kept, restored and removed."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from plugins.coding_agents.errors import (
    CredentialDeniedError,
    DiskQuotaError,
    InvalidRefError,
    MissingParentError,
    MissingRepoError,
    ServiceUnavailableError,
    WorkspaceNotFoundError,
)
from plugins.coding_agents.workspaces.service import UNUSED_MS
from tests.plugins.coding_agents.workspaces.forge import TOKEN, Desk, plain, run_git, serving

pytestmark = pytest.mark.slow


def texts(folder: Path) -> str:
    """The content of all files below a folder."""
    return subprocess.run(["grep", "-rac", TOKEN, folder], capture_output=True, text=True).stdout


async def test_003_15_a_workspace_is_a_worktree_on_its_own_branch(desk: Desk) -> None:
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url, task="Fix the auth bug in acme/app, please!")
    assert re.fullmatch(r"trunkline/\d{8}-fix-the-auth-bug-in-acme-app-p-[0-9a-f]{4}", record.branch)
    assert (record.status, record.base, record.strategy) == ("ready", "main", "worktree")
    tree = workspaces.places.tree(record.id)
    assert (tree / "src/app.py").read_text() == "print(1)\n"
    assert run_git(tree, "branch", "--show-current") == record.branch
    assert run_git(tree, "status", "--porcelain") == ""
    assert run_git(tree, "log", "--format=%s") == "First"
    assert run_git(tree, "rev-parse", "--abbrev-ref", "origin/main") == "origin/main"
    assert desk.names == ["workspace:provisioning", "worktree:added", "workspace:ready"]
    assert [line for line in texts(desk.base).splitlines() if not line.endswith(":0")] == []
    assert record.owner == "ada"
    assert workspaces.get(record.short_id, "ada") == record
    assert workspaces.list("ada") == [record]


async def test_003_05_a_workspace_is_a_clone_with_all_objects_if_asked(desk: Desk) -> None:
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url, branch="mine", strategy="clone")
    tree = workspaces.places.tree(record.id)
    run_git(tree, "fsck", "--full")
    (mirror,) = (desk.base / "mirrors").iterdir()
    mirror.rename(desk.base / "elsewhere")
    assert run_git(tree, "show", "HEAD:README.md") == "# App"
    assert run_git(tree, "branch", "--show-current") == "mine"


async def test_003_15_a_branch_of_the_host_is_continued_and_another_base_is_possible(desk: Desk) -> None:
    work = desk.hub.root / "work/acme/app"
    run_git(work, "checkout", "-q", "-b", "next")
    (work / "next.txt").write_text("next\n")
    run_git(work, "add", "-A")
    run_git(work, "commit", "-q", "-m", "Next")
    run_git(work, "push", "-q", str(desk.hub.bare()), "next")
    workspaces = await desk.open()
    continued = await workspaces.provision("ada", desk.url, branch="next")
    assert (workspaces.places.tree(continued.id) / "next.txt").exists()
    based = await workspaces.provision("ada", desk.url, branch="other", base="next")
    assert (workspaces.places.tree(based.id) / "next.txt").exists()
    with pytest.raises(InvalidRefError, match="no branch 'none'"):
        await workspaces.provision("ada", desk.url, base="none")
    assert len(workspaces.list("ada")) == 2, "what could not be made is forgotten"


async def test_003_16_worktrees_beside_a_parent_are_made_in_parallel(desk: Desk) -> None:
    workspaces = await desk.open()
    parent = await workspaces.provision("ada", desk.url, branch="parent")
    fetches = len(desk.hub.asked)
    children = await asyncio.gather(
        *(workspaces.provision("ada", "", parent=parent.id, branch=f"child-{n}") for n in range(6))
    )
    assert {child.parent for child in children} == {parent.id}
    assert {child.repository for child in children} == {f"{desk.hub.host}/acme/app"}
    for child in children:
        tree = workspaces.places.tree(child.id)
        (tree / "only-here").write_text(child.branch)
        assert run_git(tree, "branch", "--show-current") == child.branch
    assert sum(workspaces.places.tree(c.id).joinpath("only-here").exists() for c in children) == 6
    assert not (workspaces.places.tree(parent.id) / "only-here").exists()
    shared = [path for path, _ in desk.hub.asked[fetches:] if "info/refs" in path]
    assert len(shared) < 6 * 2 * 2, "those that wait share a fetch"
    with pytest.raises(MissingParentError):
        await workspaces.provision("ada", "", parent="ws-1-00000000")
    with pytest.raises(MissingParentError):
        await workspaces.provision("eve", "", parent=parent.id)
    desk.hub.make("acme/other")
    with pytest.raises(MissingParentError, match="belongs to"):
        await workspaces.provision("ada", f"{desk.hub.url}/acme/other", parent=parent.id)


async def test_another_users_workspace_does_not_exist(desk: Desk) -> None:
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url)
    for call in (
        workspaces.changes,
        workspaces.checkpoint,
        workspaces.undo,
        workspaces.finalize,
        workspaces.remove,
    ):
        with pytest.raises(WorkspaceNotFoundError):
            await call(record.id, "eve")
    assert workspaces.list("eve") == []


async def test_a_repeated_request_with_a_key_has_one_workspace_also_after_a_crash(desk: Desk) -> None:
    workspaces = await desk.open()
    one, two = await asyncio.gather(
        *(workspaces.provision("ada", desk.url, key="call-1", task="fix") for _ in range(2))
    )
    assert workspaces.list("ada") in ([one], [two])
    # The gateway ended while the files were being made.
    table = desk.tables.open("coding_agents", "workspaces")
    for key in ("call-2", ""):
        broken = msgspec.structs.replace(one, id=f"ws-1-0000000{len(key)}", status="provisioning", key=key)
        await table.put(broken.id, msgspec.to_builtins(broken))
        workspaces.places.tree(broken.id).mkdir()
    again = await desk.open()
    await again.recover()
    assert len(again.list("ada")) == 2
    made = await again.provision("ada", desk.url, key="call-2")
    assert (made.id, made.status) == ("ws-1-00000006", "ready")
    assert (again.places.tree(made.id) / "README.md").exists()


async def test_changes_are_listed_and_a_large_patch_is_cut(desk: Desk) -> None:
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url)
    tree = workspaces.places.tree(record.id)
    nothing = await workspaces.changes(record.id, "ada")
    assert (nothing.stat, nothing.files, nothing.patch) == ("", (), "")
    (tree / "src/app.py").write_text("print(1)\n\nprint(2)\n")
    (tree / "README.md").unlink()
    (tree / "a b\tü.txt").write_text("new\n")
    (tree / "link").symlink_to("/etc/passwd")
    found = await workspaces.changes(record.id, "ada")
    assert {(c.path, c.status, c.added, c.removed) for c in found.files} == {
        ("src/app.py", "M", 2, 0),
        ("README.md", "D", 0, 1),
        ("a b\tü.txt", "A", 1, 0),
        ("link", "A", 1, 0),
    }
    assert "+/etc/passwd" in found.patch, "a link is shown and not followed"
    assert "root:" not in found.patch
    assert " print(1)\n+\n+print(2)\n" in found.patch
    assert "4 files changed" in found.stat
    assert not found.truncated
    run_git(tree, "add", "src")
    run_git(tree, "commit", "-q", "-m", "By the agent")
    assert (await workspaces.changes(record.id, "ada")).files == found.files, "also what the agent committed"
    (tree / "big.txt").write_text("0123456789abcdef\n" * 100_000)
    big = await workspaces.changes(record.id, "ada")
    assert big.truncated
    assert 900_000 < len(big.patch) <= 1024 * 1024
    assert big.patch.endswith("0123456789abcdef\n")
    assert run_git(tree, "log", "--format=%s", "-1") == "By the agent"


async def test_undo_restores_a_checkpoint_and_can_be_undone(desk: Desk) -> None:
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url)
    tree = workspaces.places.tree(record.id)
    first = await workspaces.checkpoint(record.id, "ada", "before")
    assert await workspaces.checkpoint(record.id, "ada") == first, "the same files are kept once"
    (tree / "src/app.py").write_text("broken\n")
    (tree / "new").mkdir()
    (tree / "new/file").write_text("x\n")
    (tree / "README.md").unlink()
    assert await workspaces.undo(record.id, "ada") == first
    assert (tree / "src/app.py").read_text() == "print(1)\n"
    assert (tree / "README.md").exists()
    assert not (tree / "new").exists()
    assert run_git(tree, "status", "--porcelain") == ""
    await workspaces.undo(record.id, "ada", 2)
    assert (tree / "new/file").read_text() == "x\n"
    assert (tree / "src/app.py").read_text() == "broken\n"
    refs = run_git(tree, "for-each-ref", "--format=%(refname)", "refs/trunkline")
    assert refs.splitlines() == [f"refs/trunkline/{record.id}/{n}" for n in (1, 2, 3)]
    with pytest.raises(InvalidRefError, match="no checkpoint 9"):
        await workspaces.undo(record.id, "ada", 9)


async def test_a_workspace_on_the_machine_of_another_node_is_left_to_it(desk: Desk) -> None:
    desk.node = "one"
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url)
    file = workspaces.places.tree(record.id) / "work"
    file.write_text("not pushed\n")
    table = desk.tables.open("coding_agents", "workspaces")
    assert record.host
    await table.put(record.id, plain(msgspec.structs.replace(record, host="another machine")))
    desk.node = "two"
    other = await desk.open()
    for use in (other.changes, other.checkpoint, other.undo, other.finalize, other.remove):
        with pytest.raises(ServiceUnavailableError, match="on the machine of node one"):
            await use(record.id, "ada")
    assert list(other.list("ada")) == []
    desk.now += 30 * 86_400_000
    await other.recover()
    await other.sweep()
    assert file.read_text() == "not pushed\n"
    # A folder that all nodes have, and a node of the same machine.
    for node, host in (("", "another machine"), ("one", "another machine"), ("three", record.host)):
        desk.node = node
        await table.put(record.id, plain(msgspec.structs.replace(record, host=host)))
        again = await desk.open()
        assert [one.path for one in (await again.changes(record.id, "ada")).files] == ["work"]


async def test_setup_copies_files_that_no_commit_contains_and_runs_a_command(
    desk: Desk, tmp_path: Path
) -> None:
    secret = tmp_path / "secrets"
    secret.write_text("KEY=1\n")
    name = f"{desk.hub.host}/acme/app"
    command = ["sh", "-c", "cat .env; echo problem >&2; exit 3"]
    prepared = {name: {"files": {".env": str(secret), "deep/er/.env": str(secret)}, "command": command}}
    desk = Desk(desk.base, desk.hub, desk.tables._store, workspaces={"setup": prepared, "exclude": ["*.log"]})
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url)
    tree = workspaces.places.tree(record.id)
    assert record.setup is not None
    assert (record.setup.code, record.setup.output) == (3, "KEY=1\nproblem\n")
    (tree / "build.log").write_text("x")
    assert (tree / "deep/er/.env").read_text() == "KEY=1\n"
    assert run_git(tree, "status", "--porcelain") == ""
    assert (await workspaces.changes(record.id, "ada")).files == ()
    assert not (tree / ".gitignore").exists()


async def test_a_link_in_the_repository_does_not_lead_a_copied_file_out(desk: Desk, tmp_path: Path) -> None:
    work = desk.hub.root / "work/acme/app"
    target, secret = tmp_path / "target", tmp_path / "secret"
    target.mkdir()
    secret.write_text("KEY=1\n")
    (work / "deep").symlink_to(target)
    (work / ".env").symlink_to(target / "file")
    run_git(work, "add", "-A")
    run_git(work, "commit", "-q", "-m", "Links")
    run_git(work, "push", "-q", str(desk.hub.bare()), "main")
    name = f"{desk.hub.host}/acme/app"
    for path in ("deep/.env", "../x", "/x", ".git/config"):
        given = {"setup": {name: {"files": {path: str(secret)}}}}
        workspaces = await Desk(desk.base, desk.hub, desk.tables._store, workspaces=given).open()
        with pytest.raises(Exception, match=r"setup\.files"):
            await workspaces.provision("ada", desk.url)
    given = {"setup": {name: {"files": {".env": str(secret)}}}}
    workspaces = await Desk(desk.base, desk.hub, desk.tables._store, workspaces=given).open()
    record = await workspaces.provision("ada", desk.url)
    assert (workspaces.places.tree(record.id) / ".env").read_text() == "KEY=1\n"
    assert list(target.iterdir()) == []


async def test_a_repository_that_is_missing_or_closed_is_refused_with_the_reason(desk: Desk) -> None:
    workspaces = await desk.open()
    with pytest.raises(MissingRepoError, match="was not found"):
        await workspaces.provision("ada", f"{desk.hub.url}/acme/none")
    desk.hub.tokens.clear()
    with pytest.raises(CredentialDeniedError, match="token"):
        await workspaces.provision("ada", desk.url)
    assert list((desk.base / "mirrors").iterdir()) == []
    assert not any((desk.base / "workspaces").iterdir())


async def test_no_redirect_to_another_host_is_followed(desk: Desk, tmp_path: Path) -> None:
    workspaces = await desk.open()
    async with serving(tmp_path / "other") as other:
        other.make()
        desk.hub.redirect = other.url
        with pytest.raises(ServiceUnavailableError, match="302"):
            await workspaces.provision("ada", desk.url)
        assert desk.hub.asked
        assert other.asked == []


async def test_003_20_files_are_below_base_dir_and_removed_with_the_workspace(desk: Desk) -> None:
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url)
    assert desk.base.stat().st_mode & 0o777 == 0o700
    folders = workspaces.places.folders(record.id)
    assert all(folder.is_dir() and folder.is_relative_to(desk.base) for folder in folders)
    (workspaces.places.tree(record.id) / "work").write_text("x")
    with pytest.raises(ServiceUnavailableError, match="not pushed"):
        await workspaces.remove(record.id, "ada")
    locked = workspaces.places.tree(record.id) / "locked"
    (locked / "deep").mkdir(parents=True)
    locked.chmod(0o500)
    await workspaces.remove(record.id, "ada", force=True)
    assert not any(folder.exists() for folder in folders)
    assert desk.names[-2:] == ["worktree:removed", "workspace:cleaned_up"]
    assert (await desk.open()).list("ada") == []


async def test_limits_of_number_and_space_are_held(desk: Desk) -> None:
    given = {"max_workspaces": 1, "max_bytes": 2_000_000}
    desk = Desk(desk.base, desk.hub, desk.tables._store, workspaces=given)
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url)
    with pytest.raises(DiskQuotaError, match="max_workspaces"):
        await workspaces.provision("eve", desk.url)
    await workspaces.use(record.id, "ada", in_use=True)
    desk.used = {record.id}
    big = workspaces.places.tree(record.id) / "big"
    big.write_bytes(b"x" * 3_000_000)
    await workspaces.sweep()
    await workspaces.sweep()
    assert [(name, "max_bytes" in reason) for name, reason in desk.paused] == [(record.id, True)], "told once"
    with pytest.raises(DiskQuotaError, match="max_bytes"):
        await workspaces.changes(record.id, "ada")
    big.unlink()
    await workspaces.sweep()
    assert desk.paused[1:] == [(record.id, "")]
    small = Desk(desk.base, desk.hub, desk.tables._store, workspaces={"max_bytes": 20})
    with pytest.raises(DiskQuotaError, match="may take 20"):
        await (await small.open()).provision("eve", desk.url)


async def test_a_repository_that_is_too_large_blocks_no_other_one(desk: Desk) -> None:
    desk.hub.make("acme/large", {"large": random.Random(1).randbytes(3_000_000).hex()})
    given = {"max_bytes": 2_000_000, "max_total_bytes": 2_000_000}
    desk = Desk(desk.base, desk.hub, desk.tables._store, workspaces=given)
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url)
    for _ in range(2):
        with pytest.raises(DiskQuotaError, match="acme/large takes"):
            await workspaces.provision("eve", f"{desk.hub.url}/acme/large")
    await workspaces.sweep()
    assert desk.paused == []
    assert workspaces.get(record.id, "ada").status == "ready"
    with pytest.raises(DiskQuotaError, match="acme/large takes"):
        await workspaces.provision("eve", f"{desk.hub.url}/acme/large")
    await workspaces.provision("ada", desk.url)


async def test_the_fetch_of_a_repository_ends_at_the_limit_of_space(desk: Desk) -> None:
    desk = Desk(desk.base, desk.hub, desk.tables._store, workspaces={"max_total_bytes": 1})
    workspaces = await desk.open()
    with pytest.raises(DiskQuotaError, match="acme/app takes more than 1 bytes"):
        await workspaces.provision("ada", desk.url)
    assert list(workspaces.places.mirrors.iterdir()) == []
    with pytest.raises(MissingRepoError):
        await workspaces.provision("ada", f"{desk.hub.url}/acme/none")


async def test_a_workspace_whose_session_never_began_is_free_again(desk: Desk) -> None:
    workspaces = await desk.open()
    used, left = [await workspaces.provision("ada", desk.url, branch=name) for name in ("a", "b")]
    for record in (used, left):
        await workspaces.use(record.id, "ada", in_use=True)
    desk.used = {used.id}
    await workspaces.sweep()
    with pytest.raises(ServiceUnavailableError, match="stop it first"):
        await workspaces.remove(left.id, "ada")  # its session may be starting
    desk.now += UNUSED_MS + 1
    await workspaces.sweep()
    assert [workspaces.get(one.id, "ada").status for one in (used, left)] == ["in_use", "ready"]


async def test_unused_workspaces_are_removed_but_never_work_that_is_nowhere_else(
    desk: Desk, tmp_path: Path
) -> None:
    workspaces = await desk.open()
    changed, committed, unused, merged = [
        await workspaces.provision("ada", desk.url, branch=name) for name in ("a", "b", "c", "d")
    ]
    (workspaces.places.tree(changed.id) / "new").write_text("x")
    tree = workspaces.places.tree(committed.id)
    (tree / "new").write_text("x")
    run_git(tree, "add", "-A")
    run_git(tree, "commit", "-q", "-m", "By the agent")
    orphan = desk.base / "workspaces" / "ws-1-ffffffff"
    orphan.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("x")
    (desk.base / "workspaces" / "link").symlink_to(outside)
    (orphan / "link").symlink_to(outside)
    await workspaces.note_pull(merged.id, "merged")
    await workspaces.sweep()
    desk.now += 86_400_000 - 1
    await workspaces.sweep()
    # It may be of a workspace that a restored database does not know yet.
    assert orphan.exists()
    desk.now += 1
    await workspaces.sweep()
    assert {r.id for r in workspaces.list("ada")} == {changed.id, committed.id, unused.id}
    assert not orphan.exists()
    assert not (desk.base / "workspaces" / "link").is_symlink()
    assert (outside / "file").read_text() == "x"
    desk.now += 7 * 86_400_000
    await workspaces.sweep()
    assert {r.id for r in workspaces.list("ada")} == {changed.id, committed.id}


async def test_what_was_cancelled_is_usable_again_after_a_while(desk: Desk) -> None:
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url)
    table = desk.tables.open("coding_agents", "workspaces")
    await table.put(record.id, plain(msgspec.structs.replace(record, status="finalizing")))
    unmade = msgspec.structs.replace(record, id="ws-1-00000001", status="provisioning", key="call")
    await table.put(unmade.id, plain(unmade))
    workspaces = await desk.open()
    desk.now += 1_000_000
    await workspaces.sweep()
    assert workspaces.get(record.id, "ada").status == "ready"
    assert workspaces.get(unmade.id, "ada").status == "error"
    with pytest.raises(ServiceUnavailableError, match="is error"):
        await workspaces.changes(unmade.id, "ada")
    assert (await workspaces.provision("ada", desk.url, key="call")).status == "ready"
    assert (await workspaces.finalize(record.id, "ada")).nothing_to_commit


async def test_an_agent_can_write_its_own_refs_and_objects_and_not_those_of_others(desk: Desk) -> None:
    """Git of an agent needs no folder that is not named; the settings of its repository are not writable."""
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url, branch="work")
    writable, readable = await workspaces.git_folders(record.id, "ada")
    places = workspaces.places
    repository = places.repository(record.id)
    assert set(writable) == {
        places.tree(record.id),
        repository / "worktrees" / record.id,
        *(repository / name for name in ("objects", "refs", "logs")),
    }
    (mirror,) = places.mirrors.iterdir()
    assert {repository, mirror / "objects", places.own(record.id) / "objects"} < set(readable)
    assert not any((repository / "config").is_relative_to(path) for path in writable)
    others = [path for path in repository.iterdir() if path not in writable and path.name != "worktrees"]
    before = {path: path.stat().st_mtime_ns for path in others}
    tree = places.tree(record.id)
    (tree / "new").write_text("x\n")
    run_git(tree, "add", "-A")
    run_git(tree, "commit", "-q", "-m", "One")
    run_git(tree, "checkout", "-q", "-b", "side")
    run_git(tree, "commit", "-q", "--amend", "-m", "Two")
    run_git(tree, "rebase", "-q", "work")
    run_git(tree, "stash", "list")
    assert {path: path.stat().st_mtime_ns for path in others} == before
    assert {path.name for path in repository.iterdir()} == {path.name for path in others} | {
        "objects",
        "refs",
        "logs",
        "worktrees",
    }
