"""Records of workspaces and grants, the events about them, and their folders.

In: facts of workspaces. Out: frozen records, as JSON in the plugin's tables ``workspaces`` and ``grants``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct

from gateway.events import BusEvent

Status = Literal["provisioning", "ready", "in_use", "finalizing", "cleaned_up", "error"]
Strategy = Literal["worktree", "clone"]
Rights = Literal["read", "write"]
PullState = Literal["", "open", "merged", "closed"]


class Table(Protocol):
    """The durable table of a plugin, as ``PluginContext.table`` opens it."""

    async def get(self, key: str) -> Any:
        """Return the value of a key; None if there is none."""
        ...

    async def put(self, key: str, value: Any, *, expected: Any = ...) -> bool:
        """Store a value. Return False if the entry is not as expected."""
        ...

    async def delete(self, key: str, *, expected: Any = ...) -> bool:
        """Remove an entry. Return False if there is none, or it is not as expected."""
        ...

    async def keys(self, prefix: str = "") -> list[str]:
        """Return the keys with a prefix, sorted."""
        ...

    async def items(self, prefix: str = "") -> list[tuple[str, Any]]:
        """Return the entries whose keys have a prefix, sorted by key."""
        ...


class Checkpoint(Struct, frozen=True):
    """A state of the files of a workspace, as a commit. ``at`` is in ms."""

    number: int
    commit: str
    tree: str
    at: int
    label: str = ""


class SetupResult(Struct, frozen=True):
    """The preparation of a workspace: the exit status of its command, and the end of its output."""

    code: int
    output: str


class Finalizing(Struct, frozen=True, kw_only=True):
    """A request to commit, push and open a pull request, and which of its steps are done.

    It is stored before the first step, with the time that the commit gets: a repeated commit is the same one.
    """

    message: str
    title: str
    body: str
    base: str
    draft: bool
    pr: bool
    at: int
    push: bool = True
    by_name: str = ""
    by_email: str = ""
    commit: str = ""


class WorkspaceRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A workspace: a worktree of a repository, on its own branch. Times are in ms.

    ``url`` is the address of the repository without credentials, ``repository`` the same as HOST/OWNER/NAME.
    ``base_commit`` is where its branch began. ``key`` is that of the request which made it. ``commit`` is the
    last one that was pushed. ``paused`` says why its agent was paused. ``node`` and ``host`` are the node and
    the machine that has the files, "" if all nodes share them.
    """

    id: str
    owner: str
    url: str
    repository: str
    branch: str
    base: str
    status: Status
    created_at: int
    last_used: int
    strategy: Strategy = "worktree"
    base_commit: str = ""
    key: str = ""
    parent: str = ""
    error: str = ""
    setup: SetupResult | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    finalizing: Finalizing | None = None
    commit: str = ""
    pr_number: int = 0
    pr_url: str = ""
    pr_state: PullState = ""
    pr_ended_at: int = 0
    paused: str = ""
    node: str = ""
    host: str = ""

    @property
    def short_id(self) -> str:
        """The last part of the id, which users read and type."""
        return self.id.rpartition("-")[2]


class Grant(Struct, frozen=True):
    """A permission to get the credentials of one repository, for one workspace. Times are in ms."""

    id: str
    workspace: str
    host: str
    path: str
    rights: Rights
    issued_at: int
    expires_at: int

    def is_within(self, now: int) -> bool:
        """Return whether a time is within that of the grant.

        A grant of the future counts no longer than one of the past: the clock was set back since.
        """
        return abs(now - self.issued_at) < self.expires_at - self.issued_at


class Places(Struct, frozen=True):
    """The folders below ``base``. Only the gateway writes the mirrors and ``gateway/``."""

    base: Path

    @property
    def mirrors(self) -> Path:
        """The cache: one bare repository for each repository."""
        return self.base / "mirrors"

    @property
    def home(self) -> Path:
        """An empty home folder for git."""
        return self.base / "home"

    def tree(self, workspace: str) -> Path:
        """Return the folder in which the agent works."""
        return self.base / "workspaces" / workspace

    def repository(self, workspace: str) -> Path:
        """Return the bare repository of a workspace, with its own refs and objects."""
        return self.base / "repositories" / f"{workspace}.git"

    def own(self, workspace: str) -> Path:
        """Return the folder of what only the gateway writes for a workspace: its index and objects."""
        return self.base / "gateway" / workspace

    def folders(self, workspace: str) -> tuple[Path, ...]:
        """Return all folders of a workspace."""
        return self.tree(workspace), self.repository(workspace), self.own(workspace)

    def prepare(self) -> None:
        """Make the folders that do not exist, readable by the gateway's user only."""
        for folder in (self.mirrors, self.home, *(path.parent for path in self.folders("x"))):
            folder.mkdir(parents=True, exist_ok=True)
        self.base.chmod(0o700)

    def contains(self, path: Path) -> bool:
        """Return whether the real path is below the base folder."""
        real = Path(os.path.realpath(path))
        return real != self.base and real.is_relative_to(os.path.realpath(self.base))


class WorkspaceEvent(BusEvent, frozen=True):
    """An event about a workspace of a user."""

    workspace: str
    owner: str
    detail: str = ""


class Provisioning(WorkspaceEvent, frozen=True, tag="workspace:provisioning"):
    """A workspace is being made."""


class Ready(WorkspaceEvent, frozen=True, tag="workspace:ready"):
    """A workspace can be used."""


class Failed(WorkspaceEvent, frozen=True, tag="workspace:error"):
    """A workspace could not be made or finalized; ``detail`` is the reason."""


class FinalizeStarted(WorkspaceEvent, frozen=True, tag="workspace:finalizing"):
    """The changes of a workspace are being committed and pushed."""


class CleanedUp(WorkspaceEvent, frozen=True, tag="workspace:cleaned_up"):
    """The files of a workspace were removed; ``detail`` is the reason."""


class WorktreeAdded(WorkspaceEvent, frozen=True, tag="worktree:added"):
    """A worktree was made; ``detail`` is its branch."""


class WorktreeRemoved(WorkspaceEvent, frozen=True, tag="worktree:removed"):
    """A worktree was removed; ``detail`` is its branch."""


class CredentialGranted(WorkspaceEvent, frozen=True, tag="credential:granted"):
    """An agent may get credentials; ``detail`` has the repository, the rights and the seconds."""


class CredentialRevoked(WorkspaceEvent, frozen=True, tag="credential:revoked"):
    """An agent may no longer get credentials; ``detail`` is the reason."""


class PullCreated(WorkspaceEvent, frozen=True, tag="pr:created"):
    """A pull request was opened; ``detail`` is its address."""
