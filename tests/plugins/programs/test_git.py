"""Git without code of a repository."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gateway import PluginError
from gateway.extensions.loader import load_plugin
from plugins.programs.environment import find_program
from plugins.programs.git import Git, GitError

PROGRAM = find_program("git", os.environ) or "git"


@pytest.fixture
def git(tmp_path: Path) -> Git:
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[alias]\n\tx = !touch trapped\n")
    return Git(PROGRAM, os.environ, home)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose settings name programs for everything that git does."""
    folder = tmp_path / "repository"
    subprocess.run([PROGRAM, "init", "-q", str(folder)], check=True)
    trap = f"touch {tmp_path}/trapped; cat"
    hook = folder / ".git/hooks/post-index-change"
    hook.write_text(f"#!/bin/sh\n{trap}\n")
    hook.chmod(0o755)
    for key in ("core.fsmonitor", "filter.x.clean", "filter.x.process", "filter.x.smudge"):
        subprocess.run([PROGRAM, "-C", str(folder), "config", key, trap], check=True)
    subprocess.run([PROGRAM, "-C", str(folder), "config", "filter.x.required", "true"], check=True)
    (folder / ".gitattributes").write_text("* filter=x\n")
    (folder / "file").write_text("text\n\nmore\n")
    return folder


async def test_git_runs_no_program_that_a_repository_names(
    git: Git, repository: Path, tmp_path: Path
) -> None:
    settings = await git.filters_off(str(repository))
    assert sorted(settings) == [
        "filter.x.clean=",
        "filter.x.process=",
        "filter.x.required=false",
        "filter.x.smudge=",
    ]
    await git.run("add", "--all", ".", folder=str(repository), settings=settings)
    tree = await git.run("write-tree", folder=str(repository), settings=settings)
    assert await git.run("show", f"{tree}:file", folder=str(repository)) == "text\n\nmore"
    assert "file" in await git.run("status", "--short", folder=str(repository), settings=settings)
    assert not (tmp_path / "trapped").exists()


def put_into(outer: Path, repository: Path) -> None:
    """Make a repository that contains another one and a file."""
    subprocess.run([PROGRAM, "init", "-q", str(outer)], check=True)
    repository.rename(outer / "inner")
    (outer / "inner/file").write_text("changed\n")
    (outer / "other").mkdir()
    (outer / "other/file").write_text("x\n")


async def test_all_files_are_staged_without_a_look_into_other_repositories(
    git: Git, repository: Path, tmp_path: Path
) -> None:
    outer = tmp_path / "outer"
    settings = await git.filters_off(str(repository))
    await git.stage_all(folder=str(repository), settings=settings)
    tree = await git.run("write-tree", folder=str(repository), settings=settings)
    who = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    commit = await git.run("commit-tree", tree, "-m", "x", folder=str(repository), env=who)
    await git.run("update-ref", "refs/heads/master", commit, folder=str(repository))
    put_into(outer, repository)
    info = f"160000,{commit},inner"
    await git.run("update-index", "--add", "--cacheinfo", info, folder=str(outer))
    await git.stage_all(folder=str(outer))
    staged = await git.run("ls-files", "--stage", folder=str(outer))
    assert [line.split("\t")[1] for line in staged.splitlines()] == ["inner", "other/file"]
    assert commit in staged
    assert not (tmp_path / "trapped").exists()


async def test_git_uses_no_settings_of_the_user_and_no_transport(git: Git, repository: Path) -> None:
    with pytest.raises(GitError, match="'x' is not a git command"):
        await git.run("x", folder=str(repository))
    with pytest.raises(GitError, match="transport 'file' not allowed") as failed:
        await git.run("ls-remote", f"file://{repository}", folder=str(repository))
    assert (failed.value.command, failed.value.code) == ("ls-remote", 128)


async def test_long_output_is_cut_and_a_missing_program_has_a_reason(git: Git, repository: Path) -> None:
    output = await git.capture("--version", folder=str(repository), most=3)
    assert (output.data, output.is_cut) == (b"git", True)
    with pytest.raises(GitError, match=r"git status: .*No such file"):
        await Git("/no/such/git", {}, repository).run("status", folder=str(repository))


def test_the_library_is_not_a_plugin() -> None:
    with pytest.raises(PluginError, match="'programs' has neither create"):
        load_plugin("programs")
