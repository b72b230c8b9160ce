"""Repositories at their hosts, and the cache of them: one bare mirror for each repository.

In: sources and the credentials of the gateway. Out: commits that are in the mirror. A mirror has what its
host has. Without a sandbox it lacks the contents of files where the host can leave them out, because git can
fetch those when it needs them; in the sandbox it could not. Only the gateway writes mirrors, and one fetch of
a repository runs at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from plugins.coding_agents.errors import (
    CodingAgentError,
    CredentialDeniedError,
    DiskQuotaError,
    InvalidRefError,
    MissingRepoError,
    ServiceUnavailableError,
)
from plugins.coding_agents.workspaces.cleanup import folder_bytes
from plugins.coding_agents.workspaces.credentials import Login, answering, proxy_environment
from plugins.coding_agents.workspaces.records import Places, Rights
from plugins.coding_agents.workspaces.sources import Source
from plugins.programs.git import Git, GitError

FETCH_SECONDS = 600.0
PUSH_SECONDS = 300.0
_LOOK_SECONDS = 2.0
"""The time between two looks at the size of what is fetched."""
_SSH = "ssh -oBatchMode=yes -oStrictHostKeyChecking=yes -oConnectTimeout=20"
# In a local repository of a user these would run its hooks and programs.
_SAFE_RECEIVE = "git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.alternateRefsCommand=true "
_DENIED = re.compile(
    r"Authentication failed|could not read (Username|Password)|trunkline: |Permission denied"
)
_NOT_FOUND = re.compile(r"not found|does not exist|not appear to be a git repository", re.IGNORECASE)


class Remote:
    """Git commands that talk to the host of a repository, with the credentials of the gateway."""

    def __init__(self, git: Git, environ: Mapping[str, str], login: Login) -> None:
        self._git = git
        self._login = login
        self._env = {**proxy_environment(environ), "GIT_SSH_COMMAND": _SSH, "GIT_SSH_VARIANT": "ssh"}

    async def run(
        self,
        source: Source,
        *arguments: str,
        folder: str,
        env: Mapping[str, str] | None = None,
        rights: Rights = "read",
        seconds: float = FETCH_SECONDS,
    ) -> str:
        """Run a command. Raises CredentialDeniedError, MissingRepoError or ServiceUnavailableError."""
        variables = {**self._env, **(env or {})}
        async with answering(source, self.login(source, rights)) as helper:
            try:
                return await self._git.run(
                    *arguments,
                    folder=folder,
                    env=variables,
                    settings=[*source.settings, *helper],
                    seconds=seconds,
                )
            except GitError as error:
                raise explain(source, error) from None

    async def push(self, source: Source, git_dir: Path, refspec: str, env: Mapping[str, str]) -> str:
        """Push without force. Return what git reports of the ref. Raises GitError if the host refuses it."""
        receive = ("--receive-pack", f"{_SAFE_RECEIVE}receive-pack") if source.transport == "file" else ()
        options = ("--porcelain", "--no-verify", "--no-follow-tags", *receive)
        async with answering(source, self.login(source, "write")) as helper:
            output = await self._git.capture(
                *("push", *options, source.url, refspec),
                folder=str(git_dir),
                env={**self._env, **env},
                settings=[*source.settings, *helper],
                seconds=PUSH_SECONDS,
            )
        lines = [line for line in output.text.splitlines() if "\t" in line]
        refused = [line for line in lines if line.startswith("!")]
        if refused or output.code != 0:
            reasons = [line for line in output.errors if line.startswith(("remote:", "trunkline:", "fatal:"))]
            reason = "; ".join([*(line.split("\t")[-1] for line in refused), *reasons])
            raise GitError("push", reason or f"exit status {output.code}", output.code)
        return lines[0] if lines else ""

    def login(self, source: Source, rights: Rights) -> tuple[str, str] | None:
        """Return the credentials of the gateway: those that can push can also read."""
        if source.transport not in ("https", "http"):
            return None
        return self._login(source.url, "write") or (
            self._login(source.url, "read") if rights == "read" else None
        )


def explain(source: Source, error: GitError) -> CodingAgentError:
    """Return the error that names what a host refused."""
    if _DENIED.search(error.reason):
        return CredentialDeniedError(
            f"{source.name} needs credentials that the gateway does not have ({error.reason}); set "
            f'[plugins.coding_agents.forges."{source.host}"] token'
        )
    if _NOT_FOUND.search(error.reason):
        return MissingRepoError(f"the repository {source.name} was not found ({error.reason})")
    return ServiceUnavailableError(f"git cannot reach {source.name}: {error}")


class Mirrors:
    """The cache of repositories, each of at most ``most`` bytes.

    ``is_partial``: new ones are without the contents of files.
    """

    def __init__(self, git: Git, remote: Remote, places: Places, most: int, *, is_partial: bool) -> None:
        self.is_partial = is_partial
        self._most = most
        self._git = git
        self._remote = remote
        self._places = places
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._fetched: dict[str, float] = {}

    def path(self, url: str) -> Path:
        """Return the folder of a mirror, whether it exists or not."""
        name = url.removesuffix(".git").rpartition("/")[2][:60]
        return self._places.mirrors / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:16]}.git"

    async def fetch(self, source: Source) -> Path:
        """Bring a mirror up to date and return its folder.

        Requests that come while another one waits share a fetch that began after they came.
        """
        path, asked_at = self.path(source.url), time.monotonic()
        async with self._locks.setdefault(path.name, asyncio.Lock()):
            if self._fetched.get(path.name, -1.0) < asked_at:
                started = time.monotonic()
                if not await asyncio.to_thread((path / "HEAD").exists):
                    await self._create(source, path)
                else:
                    await self._update(source, path)
                self._fetched[path.name] = started
                # The clean-up goes by it.
                await asyncio.to_thread(os.utime, path)
        return path

    async def commit(self, mirror: Path, name: str) -> str:
        """Return the commit of a branch of a mirror, or a commit itself, "" if there is none."""
        for ref in (f"refs/heads/{name}", name if re.fullmatch(r"[0-9a-f]{40,64}", name) else ""):
            if ref:
                try:
                    return await self._git.run(
                        "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}", folder=str(mirror)
                    )
                except GitError:
                    continue
        return ""

    async def default_branch(self, mirror: Path) -> str:
        """Return the branch that the host checks out by default. Raises InvalidRefError if there is none."""
        try:
            name = await self._git.run("symbolic-ref", "--short", "HEAD", folder=str(mirror))
        except GitError:
            name = ""
        if not name or not await self.commit(mirror, name):
            raise InvalidRefError("the repository has no commits on its default branch; name another base")
        return name

    async def refs(self, mirror: Path) -> Sequence[tuple[str, str]]:
        """Return the branches and tags of a mirror, each with its object."""
        form = "--format=%(objectname) %(refname)"
        found = await self._git.run("for-each-ref", form, "refs/heads", "refs/tags", folder=str(mirror))
        return [(line.split(" ", 1)[1], line.split(" ", 1)[0]) for line in found.splitlines()]

    async def _create(self, source: Source, path: Path) -> None:
        """Make a mirror under another name first, so that a crash leaves none that is incomplete."""
        fresh = path.with_suffix(".new")
        await asyncio.to_thread(shutil.rmtree, fresh, ignore_errors=True)
        try:
            await self._git.run("init", "--quiet", "--bare", "--template=", str(fresh), folder="/")
            await asyncio.to_thread(write_config, fresh, source, is_partial=self.is_partial)
            await self._update(source, fresh)
            await asyncio.to_thread(fresh.rename, path)
        finally:
            await asyncio.to_thread(shutil.rmtree, fresh, ignore_errors=True)

    async def _update(self, source: Source, path: Path) -> None:
        spec = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
        fetch = ("fetch", "--quiet", "--prune", "--no-auto-gc", "--no-write-fetch-head")
        head = await self._remote.run(source, "ls-remote", "--symref", source.url, "HEAD", folder=str(path))
        lacks_files = await asyncio.to_thread(_is_partial, path)
        if lacks_files:
            # A mirror of a time without a sandbox gets all contents once (git 2.36).
            fetch += ("--filter=blob:none",) if self.is_partial else ("--no-filter", "--refetch")
        async with _limited(source, path, self._most):
            await self._remote.run(source, *fetch, "origin", *spec, folder=str(path))
        if lacks_files and not self.is_partial:
            await asyncio.to_thread(write_config, path, source, is_partial=False)
        found = re.match(r"ref: (refs/heads/\S+)\tHEAD", head)
        if found:
            await self._git.run("symbolic-ref", "HEAD", found[1], folder=str(path))


@asynccontextmanager
async def _limited(source: Source, folder: Path, most: int) -> AsyncGenerator[None]:
    """End the fetch in the block once the folder takes too many bytes. Raises DiskQuotaError."""

    async def look() -> None:
        if await asyncio.to_thread(folder_bytes, folder) > most:
            raise DiskQuotaError(f"{source.name} takes more than {most:,} bytes (max_total_bytes)")

    async def watch() -> None:
        while True:
            await look()
            await asyncio.sleep(_LOOK_SECONDS)

    try:
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch())
            yield
            watching.cancel()
            await look()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def _is_partial(folder: Path) -> bool:
    """Return whether a mirror was made without the contents of files. Its settings are the gateway's own."""
    return "partialclonefilter" in (folder / "config").read_text()


def write_config(folder: Path, source: Source, *, is_partial: bool, more: str = "") -> None:
    """Write the settings of a bare repository. The text is ours, so git needs no call for each key."""
    url = source.url.replace("\\", "\\\\").replace('"', '\\"')
    lines = [
        *("[core]", "repositoryformatversion = 1", "bare = true", "logAllRefUpdates = true"),
        *("[gc]", "auto = 0", "[maintenance]", "auto = false"),
        *('[remote "origin"]', f'url = "{url}"', "fetch = +refs/heads/*:refs/remotes/origin/*"),
    ]
    if is_partial:
        lines += [
            "promisor = true",
            "partialclonefilter = blob:none",
            "[extensions]",
            "partialClone = origin",
        ]
    (folder / "config").write_text("\n".join((*lines, more, "")))
