"""What git knows of the folder that a program works in, asked so that the folder itself has no say.

A repository may name programs in its own settings (hooks, monitors, filters, ssh, drivers of diffs); none of
them is ever run from here.
"""

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
from plugins.cli_backends.environment import program_at
from plugins.cli_backends.process import FloodError, Launch, captured

log = structlog.get_logger("trunkline.cli_backends")

SECONDS = 5.0
"""For each call of git."""
MOST_FILES = 200

_HARMLESS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.sshCommand=false",
    "core.untrackedCache=false",
    "core.quotePath=false",
    "protocol.allow=never",
    "log.showSignature=false",
    "submodule.recurse=false",
)
_FILTERS = r"^filter\..*\.(clean|smudge|process|required)$"
_QUIET = ("--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "--no-color")


class Snapshot(Struct, frozen=True):
    """A moment of a repository: its commit (empty before the first) and everything in its files as a tree."""

    head: str
    tree: str


class Repository:
    """A folder under git, as it is looked at during one dispatch. ``close`` takes away what that left."""

    def __init__(self, git: str, root: str, env: Mapping[str, str], scratch: Path) -> None:
        self._git = git
        self._root = root
        self._env = dict(env)
        self._scratch = scratch
        self._index = {"GIT_INDEX_FILE": str(scratch / "index")}
        self._settings: list[str] = []

    @classmethod
    async def at(cls, folder: str, env: Mapping[str, str]) -> Repository | None:
        """The repository a folder belongs to, or None."""
        git = program_at("git", env)
        if git is None:
            return None
        scratch = Path(tempfile.mkdtemp(prefix="trunkline-"))
        safe = {
            "PATH": env.get("PATH", ""),
            "HOME": str(scratch),
            "LC_ALL": "C.UTF-8",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_ATTR_NOSYSTEM": "1",
        }
        repository = cls(git, folder, safe, scratch)
        try:
            await repository._open()
        except GitError:
            repository.close()
            return None
        return repository

    def close(self) -> None:
        """Take the scratch away."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    async def state(self) -> str:
        """The branch, what is changed, and the latest commits, in git's own words."""
        status = await self._run("status", "--short", "--branch", "--ignore-submodules=all")
        lines = status.splitlines()
        more = [f"… and {len(lines) - MOST_FILES} more"] if len(lines) > MOST_FILES else []
        with suppress(GitError):
            commits = await self._run("log", "--oneline", "--no-decorate", "--no-color", "-5")
            return "\n".join([*lines[:MOST_FILES], *more, "", commits]).strip()
        return "\n".join([*lines[:MOST_FILES], *more])

    async def snapshot(self) -> Snapshot:
        """This moment. What is not committed is put into a tree of its own, outside the repository."""
        head = ""
        with suppress(GitError):
            head = await self._run("rev-parse", "--verify", "HEAD")
        await self._run("add", "--all", "--ignore-errors", ".", index=self._index)
        return Snapshot(head, await self._run("write-tree", index=self._index))

    async def changes(self, before: Snapshot) -> GitChanges | None:
        """What is different since a snapshot; None if nothing is."""
        now = await self.snapshot()
        commits: list[str] = []
        if now.head != before.head:
            span = f"{before.head}..{now.head}" if before.head else now.head
            commits = (await self._run("log", "--oneline", "--no-decorate", "--no-color", span)).splitlines()
        if now.tree == before.tree and not commits:
            return None
        trees = (before.tree, now.tree)
        stat = await self._run("diff", "--stat", *_QUIET, *trees)
        names = await self._run("diff", "--name-only", *_QUIET, *trees)
        return GitChanges(stat, tuple(names.splitlines()), tuple(commits))

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
        self._env |= {
            "GIT_DIR": git_dir,
            "GIT_WORK_TREE": self._root,
            "GIT_OBJECT_DIRECTORY": str(self._scratch / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects,
        }
        with suppress(GitError):
            named = await self._run("config", "--includes", "--name-only", "--get-regexp", _FILTERS)
            self._settings = [f"{key}=" for key in named.splitlines() if not key.endswith("required")]
            self._settings += [f"{key}=false" for key in named.splitlines() if key.endswith("required")]

    def _prepare(self, folder: str, index: str) -> None:
        """An index to write into, which knows already what has not changed."""
        if not Path(folder).resolve().is_relative_to(self._root):
            raise GitError("the repository says that its files are elsewhere")
        with suppress(OSError):
            shutil.copyfile(index, self._scratch / "index")
        (self._scratch / "objects").mkdir()

    async def _run(self, *arguments: str, index: Mapping[str, str] | None = None) -> str:
        settings = [part for setting in (*_HARMLESS, *self._settings) for part in ("-c", setting)]
        argv: Sequence[str] = [self._git, "--no-pager", *settings, *arguments]
        try:
            output = await captured(Launch(argv, {**self._env, **(index or {})}, self._root), SECONDS)
        except (OSError, TimeoutError, FloodError) as error:
            raise GitError(f"git {arguments[0]}: {type(error).__name__}") from None
        if output.code != 0:
            raise GitError(f"git {arguments[0]} failed")
        return output.text


class GitError(Exception):
    """Git would not say."""
