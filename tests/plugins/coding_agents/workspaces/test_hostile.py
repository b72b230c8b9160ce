"""Bad names and hostile repositories: nothing of them runs, and nothing leads out of the workspace."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from plugins.coding_agents.errors import (
    CodingAgentError,
    InvalidRefError,
    InvalidRepoDomainError,
    MissingRepoError,
)
from plugins.coding_agents.settings import CodingAgentSettings
from plugins.coding_agents.workspaces.sources import branch_for, find_source
from tests.plugins.coding_agents.workspaces.forge import Desk, run_git

pytestmark = pytest.mark.slow
SETTINGS = CodingAgentSettings.model_validate(
    {
        "workspaces": {"hosts": ["git.lan:8443", "http://plain.lan:3000"]},
        "forges": {"git.example.org": {"kind": "gitea"}},
    }
)


@pytest.mark.parametrize(
    ("text", "url", "name"),
    [
        ("acme/app", "https://github.com/acme/app.git", "github.com/acme/app"),
        ("https://GitHub.com/acme/app", "https://github.com/acme/app.git", "github.com/acme/app"),
        ("https://gitlab.com/a/b/c.git/", "https://gitlab.com/a/b/c.git", "gitlab.com/a/b/c"),
        ("git@bitbucket.org:acme/app.git", "ssh://git@bitbucket.org/acme/app.git", "bitbucket.org/acme/app"),
        ("https://git.example.org/a/b", "https://git.example.org/a/b.git", "git.example.org/a/b"),
        ("https://git.lan:8443/a/b", "https://git.lan:8443/a/b.git", "git.lan:8443/a/b"),
        (
            "ssh://git@git.example.org:2222/a/b",
            "ssh://git@git.example.org:2222/a/b.git",
            "git.example.org:2222/a/b",
        ),
        ("http://plain.lan:3000/a/b", "http://plain.lan:3000/a/b.git", "plain.lan:3000/a/b"),
    ],
)
def test_003_15_repositories_of_allowed_hosts_are_found(text: str, url: str, name: str) -> None:
    source = find_source(text, SETTINGS)
    assert (source.url, source.name) == (url, name)


@pytest.mark.parametrize(
    "text",
    [
        "ext::sh -c touch% trapped",
        "ext::sh",
        "fd::7",
        "--upload-pack=touch trapped",
        "-acme/app",
        "https://evil.example/acme/app",
        "https://github.com.evil.example/acme/app",
        "https://git.lan/a/b",
        "http://github.com/acme/app",
        "https://plain.lan:3000/a/b",
        "git://github.com/acme/app",
        "file:///etc",
        "/etc",
        "~/../../etc",
        "https://github.com",
        "https://github.com/acme",
        "https://github.com/acme/../../x",
        "https://github.com/acme/-x",
        "https://github.com/acme/app?x=1",
        "https://github.com/acme/app#x",
        "https://github.com:bad/acme/app",
        "https://-oProxyCommand=x/acme/app",
        "ssh://-oProxyCommand=x/acme/app",
        "git@-oProxyCommand:acme/app",
        "git@github.com:-x/y",
        "ssh://-l@github.com/acme/app",
        "https://github.com/acme/app\nx",
        "https://github.com/acme/a b",
        "https://[::1]/acme/app",
        "https://127.0.0.1/acme/app",
        "acme/app/../../x",
    ],
)
def test_003_15_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(InvalidRepoDomainError):
        find_source(text, SETTINGS)


def test_003_15_no_repository_and_credentials_in_an_address_are_refused() -> None:
    with pytest.raises(MissingRepoError):
        find_source("  ", SETTINGS)
    for user in ("ada:secret-word@", "secret-word@"):
        with pytest.raises(InvalidRepoDomainError, match="contains credentials") as refused:
            find_source(f"https://{user}github.com/acme/app", SETTINGS)
        assert "secret-word" not in str(refused.value)


def test_003_15_branches_have_a_date_a_slug_and_four_digits() -> None:
    at = 1_795_000_000_000
    for task, slug in (
        ("Fix the Auth-Bug!! now", "fix-the-auth-bug-now"),
        ("x" * 50, "x" * 30),
        ("a-very-long-title-of-29-chars--b", "a-very-long-title-of-29-chars"),
        ("../../etc/passwd", "etc-passwd"),
    ):
        assert branch_for(task, at)[:-5] == f"trunkline/20261118-{slug}"
    assert len(branch_for("日本語", at)) == len("trunkline/20261118-0000")


@pytest.mark.parametrize(
    "name",
    [
        "--upload-pack=x",
        "-b",
        "a..b",
        "a b",
        "a~1",
        "@{-1}",
        "a.lock",
        "HEAD",
        "/a",
        "refs/heads/a",
        "a\x00b",
        "x" * 300,
    ],
)
async def test_003_15_bad_names_of_branches_are_refused(desk: Desk, name: str) -> None:
    workspaces = await desk.open()
    with pytest.raises(InvalidRefError):
        await workspaces.provision("ada", desk.url, branch=name)
    with pytest.raises(InvalidRefError):
        await workspaces.provision("ada", desk.url, base=name)
    assert desk.hub.asked == []


async def test_a_local_repository_is_used_below_the_allowed_roots_without_its_hooks(
    desk: Desk, tmp_path: Path
) -> None:
    bare = desk.hub.bare()
    for name in ("pre-receive", "update", "post-receive", "post-update", "reference-transaction"):
        arm(bare, name, tmp_path)
    link = tmp_path / "link"
    link.symlink_to(tmp_path.parent)
    desk = Desk(
        desk.base, desk.hub, desk.tables._store, allowed_roots=[str(bare.parent), str(link / "nowhere")]
    )
    workspaces = await desk.open()
    for text in (str(link), str(tmp_path), "/", f"{bare}/../../.."):
        with pytest.raises(InvalidRepoDomainError):
            await workspaces.provision("ada", text)
    record = await workspaces.provision("ada", str(bare), branch="work")
    (workspaces.places.tree(record.id) / "new").write_text("x\n")
    result = await workspaces.finalize(record.id, "ada", message="New")
    assert (result.pr_number, result.nothing_to_commit) == (0, False), "a folder has no pull requests"
    assert desk.hub.log("work") == ["New", "First"]
    assert not (tmp_path / "trapped").exists()


def arm(repository: Path, hook: str, place: Path) -> None:
    """Make a hook that leaves a file."""
    path = repository / "hooks" / hook
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ntouch {place}/trapped\n")
    path.chmod(0o755)


async def test_attributes_submodules_and_lfs_of_a_repository_run_nothing(desk: Desk, tmp_path: Path) -> None:
    work = desk.hub.root / "work/acme/app"
    trap = f"touch {tmp_path}/trapped"
    (work / ".gitattributes").write_text(
        "* filter=lfs diff=x merge=x\n*.txt filter=evil export-subst ident\n"
    )
    (work / ".lfsconfig").write_text(f'[lfs]\n\turl = file:///\n[filter "evil"]\n\tsmudge = {trap}\n')
    (work / ".gitmodules").write_text(
        f'[submodule "x"]\n\tpath = x\n\turl = ext::sh -c "{trap}"\n\tupdate = !{trap}\n'
    )
    (work / "a.txt").write_text("$Id$\n")
    head = run_git(work, "rev-parse", "HEAD")
    run_git(work, "update-index", "--add", "--cacheinfo", f"160000,{head},x")
    run_git(work, "add", ".gitattributes", ".lfsconfig", ".gitmodules", "a.txt")
    run_git(work, "commit", "-q", "-m", "Hostile")
    run_git(work, "push", "-q", str(desk.hub.bare()), "main")
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url, branch="work")
    tree = workspaces.places.tree(record.id)
    (tree / "a.txt").write_text("changed\n")
    assert [c.path for c in (await workspaces.changes(record.id, "ada")).files] == ["a.txt"]
    await workspaces.checkpoint(record.id, "ada")
    await workspaces.finalize(record.id, "ada", message="Fix")
    assert run_git(desk.hub.bare(), "ls-tree", "work", "x").startswith("160000")
    assert not (tmp_path / "trapped").exists()


async def test_what_the_agent_writes_into_its_repository_runs_nothing_in_the_gateway(
    desk: Desk, tmp_path: Path
) -> None:
    """An agent that replaces what git reads: the link to the repository, settings, hooks, attributes."""
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url, branch="work")
    tree, places = workspaces.places.tree(record.id), workspaces.places
    admin = places.repository(record.id) / "worktrees" / record.id
    evil, trap = tmp_path / "evil.git", f"touch {tmp_path}/trapped; cat"
    run_git(tmp_path, "init", "-q", "--bare", str(evil))
    for key in (
        "core.fsmonitor",
        "filter.x.clean",
        "filter.x.smudge",
        "diff.external",
        "core.sshCommand",
        "remote.origin.url",
    ):
        run_git(evil, "config", key, trap)
    for hook in ("pre-commit", "post-checkout", "reference-transaction", "post-index-change", "pre-push"):
        arm(evil, hook, tmp_path)
        arm(places.repository(record.id), hook, tmp_path)
    (tree / ".git").unlink()
    (tree / ".git").write_text(f"gitdir: {evil}\n")
    (admin / "commondir").write_text(f"{evil}\n")
    (admin / "config.worktree").write_text((evil / "config").read_text())
    (tree / ".gitattributes").write_text("* filter=x diff=x\n")
    (tree / "new").write_text("x\n")
    found = await workspaces.changes(record.id, "ada")
    assert {c.path for c in found.files} == {".gitattributes", "new"}
    await workspaces.checkpoint(record.id, "ada")
    (tree / "new").unlink()
    await workspaces.undo(record.id, "ada")
    result = await workspaces.finalize(record.id, "ada", message="Fix")
    assert run_git(desk.hub.bare(), "rev-parse", "work") == result.commit
    assert not (tmp_path / "trapped").exists()


async def test_repositories_within_a_worktree_run_nothing_and_are_in_no_commit(
    desk: Desk, tmp_path: Path
) -> None:
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url, branch="work")
    tree = workspaces.places.tree(record.id)
    nested = tree / os.fsdecode(b"nest\xe9d")  # a name that is not UTF-8
    nested.mkdir()
    run_git(nested, "init", "-q")
    (nested / "file").write_text("x\n")
    run_git(nested, "add", "-A")
    run_git(nested, "commit", "-q", "-m", "Nested")
    for key in ("core.fsmonitor", "filter.x.clean", "filter.x.process"):
        run_git(nested, "config", key, f"touch {tmp_path}/trapped; cat")
    (nested / ".gitattributes").write_text("* filter=x\n")
    os.utime(nested / "file", (1, 1))
    (tree / "own").write_text("x\n")
    for _ in range(2):
        found = await workspaces.changes(record.id, "ada")
        assert [c.path for c in found.files] == ["own"]
    # Also where a commit of the agent has it.
    run_git(tree, "-c", "advice.addEmbeddedRepo=false", "add", nested.name)
    run_git(tree, "commit", "-q", "-m", "With a repository")
    (nested / "file").write_text("y\n")
    (tmp_path / "trapped").unlink(missing_ok=True)  # of the agent's own git
    await workspaces.changes(record.id, "ada")
    kept = await workspaces.checkpoint(record.id, "ada")
    listed = run_git(tree, "ls-tree", kept.commit).splitlines()
    assert [line for line in listed if " commit " in line] == [
        line for line in run_git(tree, "ls-tree", "HEAD").splitlines() if " commit " in line
    ]
    assert not (tmp_path / "trapped").exists()
    shutil.rmtree(nested / ".git")
    (nested / ".gitattributes").unlink()
    found = await workspaces.changes(record.id, "ada")
    assert [(c.path, c.status) for c in found.files] == [("nest\ufffdd/file", "A"), ("own", "A")]


async def test_links_do_not_lead_out_of_the_workspace(desk: Desk, tmp_path: Path) -> None:
    workspaces = await desk.open()
    record = await workspaces.provision("ada", desk.url, branch="work")
    tree, repository = workspaces.places.tree(record.id), workspaces.places.repository(record.id)
    outside = tmp_path / "outside"
    (outside / "src").mkdir(parents=True)
    (outside / "src/app.py").write_text("outside\n")
    first = await workspaces.checkpoint(record.id, "ada")
    shutil.rmtree(tree / "src")
    (tree / "src").symlink_to(outside / "src")
    found = await workspaces.changes(record.id, "ada")
    assert {(c.path, c.status) for c in found.files} == {("src", "A"), ("src/app.py", "D")}
    assert "-print(1)" in found.patch
    assert "outside\n" not in found.patch.replace(f"{outside}/src", "")
    assert await workspaces.undo(record.id, "ada") == first
    assert (outside / "src/app.py").read_text() == "outside\n"
    assert (tree / "src/app.py").read_text() == "print(1)\n"
    # The gateway would write refs through this one.
    (tree / "new").write_text("x\n")
    (repository / "refs/heads").rename(repository / "refs/moved")
    (repository / "refs/heads").symlink_to(outside)
    with pytest.raises(CodingAgentError, match="leads elsewhere"):
        await workspaces.finalize(record.id, "ada", message="x")
    (repository / "refs/heads").unlink()
    (repository / "refs/moved").rename(repository / "refs/heads")
    (repository / "objects/info/alternates").write_text(f"{outside}\n")
    with pytest.raises(CodingAgentError, match="unexpected content"):
        await workspaces.changes(record.id, "ada")
    assert sorted(path.name for path in outside.iterdir()) == ["src"]
    await workspaces.remove(record.id, "ada", force=True)
    assert (outside / "src/app.py").exists()
