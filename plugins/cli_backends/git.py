"""Git's view of the folder that a program works in, without running code of the repository."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import structlog
from msgspec import Struct

from plugins.cli_backends.contract import GitChanges
from plugins.programs.environment import find_program
from plugins.programs.git import DIFF_OPTIONS, Git, GitError

log = structlog.get_logger("trunkline.cli_backends")

MAX_FILES = 200


class Snapshot(Struct, frozen=True):
    """A state of a repository: its commit (empty before the first one), and a tree of all its files."""

    head: str
    tree: str


class Repository:
    """A git repository during one dispatch. ``close`` removes its temporary files."""

    def __init__(self, git: Git, root: str, scratch: Path) -> None:
        self._git = git
        self._root = root
        self._env: Mapping[str, str] = {}
        self._scratch = scratch
        self._index = {"GIT_INDEX_FILE": str(scratch / "index")}
        self._settings: Sequence[str] = ()

    @classmethod
    async def at(cls, folder: str, env: Mapping[str, str]) -> Repository | None:
        """Return the repository that a folder belongs to, or None."""
        program = find_program("git", env)
        if program is None:
            return None
        scratch = Path(tempfile.mkdtemp(prefix="trunkline-"))
        repository = cls(Git(program, env, scratch), folder, scratch)
        try:
            await repository._open()
        except GitError:
            repository.close()
            return None
        return repository

    def close(self) -> None:
        """Remove the temporary files."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    async def state(self) -> str:
        """Return the branch, the changed files and the latest commits, as git prints them."""
        status = await self._run("status", "--short", "--branch", "--ignore-submodules=all")
        lines = status.splitlines()
        more = [f"… and {len(lines) - MAX_FILES} more"] if len(lines) > MAX_FILES else []
        with suppress(GitError):
            commits = await self._run("log", "--oneline", "--no-decorate", "--no-color", "-5")
            return "\n".join([*lines[:MAX_FILES], *more, "", commits]).strip()
        return "\n".join([*lines[:MAX_FILES], *more])

    async def snapshot(self) -> Snapshot:
        """Take a snapshot. Uncommitted files go into a tree outside the repository."""
        head = ""
        with suppress(GitError):
            head = await self._run("rev-parse", "--verify", "HEAD")
        env = {**self._env, **self._index}
        await self._git.stage_all(folder=self._root, env=env, settings=self._settings)
        return Snapshot(head, await self._run("write-tree", index=self._index))

    async def changes(self, before: Snapshot) -> GitChanges | None:
        """Return the changes since a snapshot, or None if there are none."""
        now = await self.snapshot()
        commits: list[str] = []
        if now.head != before.head:
            span = f"{before.head}..{now.head}" if before.head else now.head
            commits = (await self._run("log", "--oneline", "--no-decorate", "--no-color", span)).splitlines()
        if now.tree == before.tree and not commits:
            return None
        trees = (before.tree, now.tree)
        stat = await self._run("diff", "--stat", *DIFF_OPTIONS, *trees)
        # Separated by NUL: a name may have any other character.
        found = await self._run("diff", "--name-status", "--no-renames", "-z", *DIFF_OPTIONS, *trees)
        fields = found.split("\0")[:-1]
        states = dict(zip(fields[1::2], fields[::2], strict=True))
        deleted = tuple(name for name, state in states.items() if state == "D")
        return GitChanges(stat, tuple(states), tuple(commits), deleted, self._root)

    async def _open(self) -> None:
        folder = self._root
        self._root, git_dir, objects, index = (
            await self._run(
                "rev-parse",
                "--path-format=absolute",
                "--show-toplevel",
                "--absolute-git-dir",
                *("--git-path", "objects", "--git-path", "index"),
            )
        ).splitlines()
        await asyncio.to_thread(self._prepare, folder, index)
        self._env = {
            "GIT_DIR": git_dir,
            "GIT_WORK_TREE": self._root,
            "GIT_OBJECT_DIRECTORY": str(self._scratch / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects,
        }
        self._settings = await self._git.filters_off(self._root, self._env)

    def _prepare(self, folder: str, index: str) -> None:
        """Copy the index, so that git does not hash unchanged files again."""
        if not Path(folder).resolve().is_relative_to(self._root):
            raise GitError("rev-parse", "the work tree of the repository is another folder")
        with suppress(OSError):
            shutil.copyfile(index, self._scratch / "index")
        (self._scratch / "objects").mkdir()

    async def _run(self, *arguments: str, index: Mapping[str, str] | None = None) -> str:
        env = {**self._env, **(index or {})}
        return await self._git.run(*arguments, folder=self._root, env=env, settings=self._settings)
