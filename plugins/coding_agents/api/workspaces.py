"""The routes of workspaces: list, create, show, diff, finalize and delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from gateway.api import ApiCall, ApiRoute
from plugins.coding_agents.errors import (
    CodingAgentError,
    CredentialDeniedError,
    DiskQuotaError,
    FinalizeError,
    ForgeRefusedError,
    InvalidRefError,
    InvalidRepoDomainError,
    MissingParentError,
    MissingRepoError,
    ServiceUnavailableError,
    WorkspaceNotFoundError,
)
from plugins.coding_agents.tools.services import FinalizeRequest

if TYPE_CHECKING:
    from plugins.coding_agents.tools.desk import Desk
    from plugins.coding_agents.workspaces import WorkspaceRecord

BASE = "/api/workspaces"
_Errors = tuple[type[CodingAgentError], ...]
_FOUND: _Errors = (WorkspaceNotFoundError, ServiceUnavailableError)
_CREATE: _Errors = (
    MissingRepoError,
    MissingParentError,
    InvalidRepoDomainError,
    InvalidRefError,
    DiskQuotaError,
    CredentialDeniedError,
    ServiceUnavailableError,
)
_FINALIZE: _Errors = (
    *_FOUND,
    FinalizeError,
    InvalidRefError,
    ForgeRefusedError,
    CredentialDeniedError,
    DiskQuotaError,
)

Name = Annotated[str, Meta(max_length=500)]
Text = Annotated[str, Meta(max_length=60_000)]


class WorkspacePath(Struct, frozen=True):
    """A workspace, by its id or its short id."""

    id: Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,80}$", description="Id, or its last part")]


class WorkspaceView(Struct, frozen=True):
    """A workspace of the requesting user. ``path`` is its folder; times are milliseconds.

    ``status`` is provisioning, ready, in_use, finalizing, cleaned_up or error.
    """

    id: str
    short_id: str
    repository: str
    url: str
    branch: str
    base: str
    status: str
    strategy: str
    path: str
    created_at: int
    last_used: int
    commit: str
    pr_number: int
    pr_url: str
    pr_state: str
    paused: str
    error: str


class WorkspaceList(Struct, frozen=True):
    """The workspaces of the requesting user, the newest first."""

    workspaces: list[WorkspaceView]


class CreateBody(Struct, frozen=True):
    """A workspace to make. The other names are those of the seed."""

    repo: Name = ""
    branch: Name = ""
    base: Name = ""
    strategy: Literal["worktree", "clone"] = "worktree"
    parent: Name = ""
    repo_url: Name = field(default="", name="repoUrl")
    parent_workspace_id: Name = field(default="", name="parentWorkspaceId")
    use_worktree: bool = field(default=True, name="useWorktree")


class ChangedFile(Struct, frozen=True):
    """A changed file. ``status`` is A, M, D or T; the lines of a binary file are -1."""

    path: str
    status: str
    added: int
    removed: int


class Diff(Struct, frozen=True):
    """The changes of a workspace. ``truncated``: the rest of the patch is left out."""

    stat: str
    files: list[ChangedFile]
    patch: str
    truncated: bool


class FinalizeBody(Struct, frozen=True):
    """Texts for the commit and the pull request. With ``pr`` false the branch is only pushed."""

    message: Text = ""
    title: Name = ""
    body: Text = ""
    base: Name = ""
    draft: bool = False
    pr: bool = True


class Finalized(Struct, frozen=True):
    """The commit and the branch that were pushed, and the pull request, if there is one."""

    commit: str
    branch: str
    pr_number: int
    pr_url: str
    nothing_to_commit: bool


class DeleteQuery(Struct, frozen=True):
    """With ``force`` also a workspace is removed whose work is nowhere else."""

    force: bool = False


class WorkspaceRoutes:
    """The routes of workspaces. ``desk`` opens the services."""

    def __init__(self, desk: Callable[[], Awaitable[Desk]]) -> None:
        self._desk = desk

    def routes(self) -> list[ApiRoute]:
        """Return the routes."""
        one = f"{BASE}/{{id}}"
        return [
            ApiRoute("GET", BASE, "List the workspaces.", self._list, (ServiceUnavailableError,)),
            ApiRoute("POST", BASE, "Make a workspace of a repository.", self._create, _CREATE),
            ApiRoute("GET", one, "Show a workspace.", self._show, _FOUND),
            ApiRoute("GET", f"{one}/diff", "Show the changes.", self._diff, (*_FOUND, DiskQuotaError)),
            ApiRoute(
                "POST",
                f"{one}/finalize",
                "Commit all changes, push them, and open a pull request.",
                self._finalize,
                _FINALIZE,
            ),
            ApiRoute("DELETE", one, "Remove a workspace.", self._delete, _FOUND),
        ]

    async def _list(self, call: ApiCall[None, None, None]) -> WorkspaceList:
        desk = await self._desk()
        return WorkspaceList([_view(desk, one) for one in desk.services.workspaces.list(call.user)])

    async def _create(self, call: ApiCall[None, None, CreateBody]) -> WorkspaceView:
        body, desk = call.body, await self._desk()
        repo, parent = body.repo or body.repo_url, body.parent or body.parent_workspace_id
        if not repo and not parent:
            raise MissingRepoError("name the repository, such as https://github.com/acme/app")
        record = await desk.services.workspaces.provision(
            call.user,
            repo,
            branch=body.branch,
            base=body.base,
            strategy=body.strategy if body.use_worktree else "clone",
            parent=parent,
            key=f"http {call.key}" if call.key else "",
        )
        return _view(desk, record)

    async def _show(self, call: ApiCall[WorkspacePath, None, None]) -> WorkspaceView:
        desk = await self._desk()
        return _view(desk, desk.services.workspaces.get(call.path.id, call.user))

    async def _diff(self, call: ApiCall[WorkspacePath, None, None]) -> Diff:
        desk = await self._desk()
        changes = await desk.services.workspaces.changes(call.path.id, call.user)
        files = [ChangedFile(one.path, one.status, one.added, one.removed) for one in changes.files]
        return Diff(changes.stat, files, changes.patch, changes.truncated)

    async def _finalize(self, call: ApiCall[WorkspacePath, None, FinalizeBody]) -> Finalized:
        desk = await self._desk()
        request = msgspec.convert(call.body, FinalizeRequest, from_attributes=True)
        result = await desk.finalize_workspace(call.user, call.path.id, request)
        return Finalized(
            result.commit, result.branch, result.pr_number, result.pr_url, result.nothing_to_commit
        )

    async def _delete(self, call: ApiCall[WorkspacePath, DeleteQuery, None]) -> None:
        desk = await self._desk()
        await desk.services.workspaces.remove(call.path.id, call.user, force=call.query.force)


def _view(desk: Desk, record: WorkspaceRecord) -> WorkspaceView:
    own = {name: getattr(record, name) for name in WorkspaceView.__struct_fields__ if name != "path"}
    return WorkspaceView(**own, path=str(desk.services.workspaces.places.tree(record.id)))
