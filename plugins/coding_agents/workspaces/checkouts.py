"""The files of one workspace: a worktree and the bare repository that it belongs to.

In: commits of the cache. Out: snapshots, differences, commits on the branch. A workspace has its own refs
and objects and borrows those of the mirror, so an agent cannot change what another workspace uses. The
gateway trusts no file that the agent can write: it has its own index and object folder, finds the repository
by its path, and reads the files of the worktree within the sandbox of the agent. It runs no hook or filter.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from plugins.coding_agents.errors import ServiceUnavailableError
from plugins.coding_agents.workspaces.records import Places
from plugins.coding_agents.workspaces.repositories import FETCH_SECONDS, Remote, write_config
from plugins.coding_agents.workspaces.sources import Source
from plugins.programs.git import DIFF_OPTIONS, Git, GitError

FILES_SECONDS = 120.0
"""The time limit of a command that reads or writes all files."""
PATCH_BYTES = 1024 * 1024
MOST_FILES = 2_000
_COMMIT = re.compile(r"[0-9a-f]{40,64}")


class Confine(Protocol):
    """Confines a program that works on the files of a workspace, as an agent in it is confined."""

    async def __call__(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        *,
        writable: Sequence[Path],
        readable: Sequence[Path],
        network: bool = False,
    ) -> Sequence[str]:
        """Return the arguments with those of a launcher before them. Raises SandboxUnavailableError.

        With ``network`` the program has the network if agents have all of it.
        """
        ...


async def unconfined(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    writable: Sequence[Path],
    readable: Sequence[Path],
    network: bool = False,
) -> Sequence[str]:
    """Return the arguments: nothing confines the program."""
    return argv


class FileChange(Struct, frozen=True):
    """A changed file. ``status`` is git's letter: A, M, D or T. The lines of a binary file are -1."""

    path: str
    status: str
    added: int
    removed: int


class Changes(Struct, frozen=True):
    """The difference of a workspace to where its branch began: a summary, files, and a patch.

    ``truncated``: the patch has more than 1 MiB, or there are more than 2,000 files; the rest is left out.
    """

    stat: str
    files: tuple[FileChange, ...]
    patch: str
    truncated: bool = False


class Checkout:
    """The worktree and the repository of one workspace."""

    def __init__(
        self, git: Git, places: Places, workspace: str, branch: str, mirror: Path | None, confine: Confine
    ) -> None:
        self._git = git
        self._branch = branch
        self._mirror = mirror
        self._confine = confine
        self.tree = places.tree(workspace)
        self.repository = places.repository(workspace)
        self.own = places.own(workspace)
        self._home = places.home
        self._admin = self.repository / "worktrees" / workspace

    @property
    def writable(self) -> Sequence[Path]:
        """The folders that an agent may write: its files, and the refs and objects of its repository."""
        names = ("objects", "refs", "logs")
        return self.tree, self._admin, *(self.repository / name for name in names)

    @property
    def readable(self) -> Sequence[Path]:
        """The folders that an agent may read, too: its whole repository, and the objects it borrows."""
        borrowed = () if self._mirror is None else (self._mirror / "objects",)
        return self.repository, self.own / "objects", *borrowed

    async def create(
        self,
        source: Source,
        commit: str,
        refs: Sequence[tuple[str, str]],
        remote: Remote,
        config: str,
        exclude: Sequence[str],
        *,
        is_partial: bool = False,
    ) -> None:
        """Make the repository and the worktree at a commit of the mirror, on a new branch.

        ``is_partial``: git fetches contents that the mirror lacks, when it needs them.
        """
        await self._git.run("init", "--quiet", "--bare", "--template=", str(self.repository), folder="/")
        packed = "".join(f"{target} {name_at_origin(ref)}\n" for ref, target in refs)
        partial = is_partial and self._mirror is not None
        await asyncio.to_thread(write_config, self.repository, source, is_partial=partial, more=config)
        await asyncio.to_thread(self._prepare, packed, exclude)
        # Files whose content the mirror lacks are fetched into it, so that other workspaces have them too.
        borrowed = {} if self._mirror is None else {"GIT_OBJECT_DIRECTORY": str(self._mirror / "objects")}
        add = ("worktree", "add", "--quiet", "--no-track", "-b", self._branch, str(self.tree), commit)
        await remote.run(source, *add, folder=str(self.repository), env=borrowed)
        await asyncio.to_thread(shutil.copyfile, self._admin / "index", self.own / "index")

    async def fetch_all(self, source: Source, remote: Remote) -> None:
        """Fetch all branches of the host into the repository of the workspace, which borrows nothing then."""
        await self._git.run("init", "--quiet", "--bare", "--template=", str(self.repository), folder="/")
        await asyncio.to_thread(write_config, self.repository, source, is_partial=False)
        spec = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
        fetch = ("fetch", "--quiet", "--no-auto-gc", "--no-write-fetch-head", "origin", *spec)
        await remote.run(source, *fetch, folder=str(self.repository), seconds=FETCH_SECONDS)

    async def head(self) -> str:
        """Return the commit that the worktree is at. Git is not asked for it where the agent can write."""
        await self._check()
        name = await asyncio.to_thread(self._read_head)
        return await self._run("rev-parse", "--verify", "--end-of-options", name)

    async def snapshot(self, head: str) -> str:
        """Return a tree of all files that are not ignored. Raises GitError."""
        await self._check()
        env = self._files_env()
        await self._run("read-tree", "--reset", head, more=env)
        await self._git.stage_all(folder=str(self.tree), env=env, seconds=FILES_SECONDS, wrap=self._wrap)
        return await self._run("write-tree", more=env)

    async def tree_of(self, commit: str) -> str:
        """Return the tree of a commit."""
        return await self._run("rev-parse", "--verify", f"{commit}^{{tree}}")

    async def fork_point(self, base: str, base_commit: str, head: str) -> str:
        """Return the newest commit that the branch shares with its base."""
        for other in (f"refs/remotes/origin/{base}", base_commit):
            with suppress(GitError):
                return (await self._run("merge-base", other, head)).splitlines()[0]
        return base_commit

    async def changes(self, before: str, after: str) -> Changes:
        """Return the difference of two trees or commits."""
        options = (*DIFF_OPTIONS, "--no-renames")
        stat = await self._run("diff", "--stat", "--stat-count=100", *options, before, after)
        numbers = (await self._run("diff", "--numstat", "-z", *options, before, after)).split("\0")
        states = (await self._run("diff", "--name-status", "-z", *options, before, after)).split("\0")
        letters = dict(zip(states[1::2], states[::2], strict=False))
        files = [_file_change(line, letters) for line in numbers if line]
        patch = await self._git.capture(
            *("diff", "--patch", *options, before, after),
            folder=str(self._home),
            env=self._env(),
            seconds=FILES_SECONDS,
            most=PATCH_BYTES,
        )
        text = patch.data.decode(errors="replace")
        if patch.is_cut:
            text = text[: text.rfind("\n") + 1]
        is_cut = patch.is_cut or len(files) > MOST_FILES
        return Changes(stat, tuple(files[:MOST_FILES]), text, is_cut)

    async def commit(self, tree: str, parent: str, message: str, author: tuple[str, str], at: int) -> str:
        """Make a commit object and return its id: the same one for the same arguments."""
        date = f"@{at // 1_000} +0000"
        name, email = author
        who = {
            f"GIT_{role}_{kind}": value
            for role in ("AUTHOR", "COMMITTER")
            for kind, value in (("NAME", name), ("EMAIL", email), ("DATE", date))
        }
        return await self._run("commit-tree", tree, "-p", parent, "-m", message, more=who)

    async def move_branch(self, commit: str) -> None:
        """Let the branch be at a commit whose tree is the latest snapshot, and the agent's index with it."""
        await self._check()
        await self._run("update-ref", f"refs/heads/{self._branch}", commit)
        await asyncio.to_thread(self._hand_over_index)

    async def keep(self, ref: str, commit: str) -> None:
        """Let a ref name a commit."""
        await self._check()
        await self._run("update-ref", ref, commit)

    async def restore(self, current: str, target: str) -> None:
        """Change the files from one tree, the latest snapshot, to another one."""
        await self._check()
        await self._git.run(
            *("read-tree", "-m", "-u", current, target),
            folder=str(self.tree),
            env=self._files_env(),
            seconds=FILES_SECONDS,
            wrap=self._wrap,
        )
        await asyncio.to_thread(self._hand_over_index)

    async def unpushed(self, base_commit: str, pushed: str) -> bool:
        """Return whether there are changes or commits that the host does not have."""
        head = await self.head()
        if await self.snapshot(head) != await self.tree_of(head):
            return True
        known = [commit for commit in (base_commit, pushed) if commit]
        left = await self._run(
            "rev-list",
            "--max-count=1",
            head,
            f"refs/heads/{self._branch}",
            "--not",
            *known,
            "--remotes=origin",
        )
        return bool(left)

    async def push(self, remote: Remote, source: Source, commit: str) -> None:
        """Push a commit to the branch at the host, never with force. Raises GitError."""
        await self._check()
        await remote.push(source, self.repository, f"{commit}:refs/heads/{self._branch}", self._env())
        await self._run("update-ref", f"refs/remotes/origin/{self._branch}", commit)

    def _files_env(self) -> dict[str, str]:
        return {**self._env(), "GIT_WORK_TREE": str(self.tree), "GIT_INDEX_FILE": str(self.own / "index")}

    async def _wrap(self, argv: Sequence[str], environ: Mapping[str, str]) -> Sequence[str]:
        """Confine a command that reads or writes the files of the worktree, as the agent is confined.

        Outside of the sandbox an agent could replace a folder by a link while git reads it.
        """
        # Git writes objects into ``own``, which an agent may only read.
        readable = (path for path in self.readable if not path.is_relative_to(self.own))
        return await self._confine(
            argv, environ, writable=(*self.writable, self.own), readable=(*readable, self._home)
        )

    async def _run(self, *arguments: str, more: Mapping[str, str] | None = None) -> str:
        env = {**self._env(), **(more or {})}
        return await self._git.run(*arguments, folder=str(self._home), env=env, seconds=FILES_SECONDS)

    def _env(self) -> dict[str, str]:
        borrowed = [self.repository / "objects"]
        borrowed += [] if self._mirror is None else [self._mirror / "objects"]
        return {
            "GIT_DIR": str(self.repository),
            "GIT_OBJECT_DIRECTORY": str(self.own / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.pathsep.join(map(str, borrowed)),
        }

    def _prepare(self, packed: str, exclude: Sequence[str]) -> None:
        """Write what git would write in many calls."""
        if packed:
            (self.repository / "packed-refs").write_text(packed)
        (self.repository / "info").mkdir(exist_ok=True)
        (self.repository / "info" / "exclude").write_text("".join(f"{line}\n" for line in exclude))
        (self.repository / "logs").mkdir(exist_ok=True)
        (self.own / "objects").mkdir(parents=True, exist_ok=True)
        (self.repository / "objects" / "info" / "alternates").write_text(self._alternates())

    def _alternates(self) -> str:
        borrowed = [self.own / "objects"] + ([] if self._mirror is None else [self._mirror / "objects"])
        return "".join(f"{path}\n" for path in borrowed)

    async def _check(self) -> None:
        """Check that the gateway writes into the repository, and reads no objects but the workspace's.

        The agent can write in there: a link would lead elsewhere. Raises ServiceUnavailableError.
        """
        if problem := await asyncio.to_thread(self._find_problem):
            raise ServiceUnavailableError(f"{problem}; the agent has changed the repository of its workspace")

    def _find_problem(self) -> str:
        branch = self.repository / "refs" / "heads" / self._branch
        for path in (
            self.repository / "objects",
            self._admin,
            self.repository / "refs" / "trunkline",
            branch.parent,
            branch,
        ):
            if os.path.realpath(path) != str(
                Path(os.path.realpath(self.repository)) / path.relative_to(self.repository)
            ):
                return f"{path} leads elsewhere"
        alternates = self.repository / "objects" / "info" / "alternates"
        try:
            is_known = not alternates.is_symlink() and alternates.read_text() == self._alternates()
        except (OSError, ValueError):
            is_known = False
        return "" if is_known else f"{alternates} has unexpected content"

    def _read_head(self) -> str:
        """Return the ref or commit in HEAD of the worktree."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(self._admin / "HEAD", flags), "rb") as file:
                text = file.read(4_096).decode(errors="replace").strip()
        except OSError as error:
            raise GitError("rev-parse", f"HEAD cannot be read: {error}") from None
        name = text.removeprefix("ref:").strip()
        if not (_COMMIT.fullmatch(name) or name.startswith("refs/")):
            raise GitError("rev-parse", "HEAD is neither a branch nor a commit")
        return name

    def _hand_over_index(self) -> None:
        """Give the agent's git the index that fits to the files: a copy, which replaces a link too.

        Raises GitError on a full disk, and if the agent has put a folder there.
        """
        fresh = self._admin / "index.trunkline"
        try:
            fresh.unlink(missing_ok=True)
            with fresh.open("xb") as file:
                file.write((self.own / "index").read_bytes())
            fresh.replace(self._admin / "index")
        except OSError as error:
            raise GitError("update-index", f"the index of the agent cannot be replaced: {error}") from None


def name_at_origin(ref: str) -> str:
    """Return the name under which a workspace knows a branch or tag of the host."""
    return ref.replace("refs/heads/", "refs/remotes/origin/", 1)


def _file_change(line: str, letters: Mapping[str, str]) -> FileChange:
    added, removed, path = line.split("\t", 2)
    numbers = [int(number) if number.isdigit() else -1 for number in (added, removed)]
    return FileChange(path, letters.get(path, "M"), *numbers)
