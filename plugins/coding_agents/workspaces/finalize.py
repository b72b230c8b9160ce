"""Finalize: commit the changes of a workspace, push them, and open a pull request; each once.

In: a stored request. Out: a commit, a branch at the host, and a pull request. Each step is stored when it is
done, and each can be repeated: the commit has the time of the request, so the same files give the same one; a
push of what is there does nothing; and an open pull request of the branch is found before one is opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct

from plugins.coding_agents.errors import CodingAgentError, FinalizeError
from plugins.coding_agents.forges.contract import Forge, NewPullRequest, PullRequest
from plugins.coding_agents.settings import WorkspaceSettings
from plugins.coding_agents.workspaces.checkouts import Checkout
from plugins.coding_agents.workspaces.records import Finalizing, WorkspaceRecord
from plugins.coding_agents.workspaces.repositories import Remote
from plugins.coding_agents.workspaces.sources import Source
from plugins.programs.git import GitError

Store = Callable[[WorkspaceRecord], Awaitable[None]]
"""Makes a record durable."""
_TITLE_LETTERS = 120


class FinalizeResult(Struct, frozen=True):
    """The outcome: the commit and the branch that were pushed, and the pull request, if there is one."""

    commit: str
    branch: str
    pr_number: int = 0
    pr_url: str = ""
    nothing_to_commit: bool = False


class Finalizer:
    """One finalize of one workspace, from the step at which an earlier attempt ended."""

    def __init__(
        self,
        checkout: Checkout,
        source: Source,
        remote: Remote,
        forge_for: Callable[[str], Forge],
        settings: WorkspaceSettings,
        store: Store,
    ) -> None:
        self._checkout = checkout
        self._source = source
        self._remote = remote
        self._forge_for = forge_for
        self._settings = settings
        self._store = store

    async def run(
        self, record: WorkspaceRecord, request: Finalizing
    ) -> tuple[WorkspaceRecord, FinalizeResult]:
        """Make all steps. Raises FinalizeError, which names the step, and the named errors of hosts."""
        after = "in_use" if record.status == "in_use" else "ready"
        record = msgspec.structs.replace(record, status="finalizing", finalizing=request)
        await self._store(record)
        try:
            record, request = await self._commit(record, request)
            is_new = bool(request.commit) and request.commit != record.commit
            if is_new and request.push:
                await self._checkout.push(self._remote, self._source, request.commit)
                record = msgspec.structs.replace(record, commit=request.commit)
                await self._store(record)
        except GitError as error:
            raise FinalizeError(_explain(error, record.branch), step=_step(error)) from error
        # A local folder has no pull requests.
        wants_pr = request.push and request.pr and bool(self._source.host)
        if wants_pr and record.commit and (is_new or not record.pr_number):
            pull = await self._open(record, request)
            record = msgspec.structs.replace(
                record, pr_number=pull.number, pr_url=pull.url, pr_state=pull.state, pr_ended_at=0
            )
        commit = request.commit or record.commit
        result = FinalizeResult(commit, record.branch, record.pr_number, record.pr_url, not is_new)
        record = msgspec.structs.replace(record, status=after, finalizing=None)
        await self._store(record)
        return record, result

    async def _commit(
        self, record: WorkspaceRecord, request: Finalizing
    ) -> tuple[WorkspaceRecord, Finalizing]:
        """Commit all changes. The request has no commit afterwards if there are none since the base."""
        if request.commit:
            return record, request
        head = await self._checkout.head()
        tree = await self._checkout.snapshot(head)
        commit = head
        if tree != await self._checkout.tree_of(head):
            author = (self._settings.author_name, self._settings.author_email)
            commit = await self._checkout.commit(tree, head, _message(request), author, request.at)
        if commit in (record.base_commit, record.commit):
            return record, request
        # Only now does the branch move: an attempt that ended before makes the same commit again.
        await self._checkout.move_branch(commit)
        request = msgspec.structs.replace(request, commit=commit)
        record = msgspec.structs.replace(record, finalizing=request)
        await self._store(record)
        return record, request

    async def _open(self, record: WorkspaceRecord, request: Finalizing) -> PullRequest:
        """Return the open pull request of the branch, or open one."""
        base = request.base or record.base
        try:
            forge = self._forge_for(self._source.url)
            found = await forge.find_pr(record.branch, base)
            if found is not None:
                return found
            title = request.title or request.message.strip().splitlines()[0][:_TITLE_LETTERS]
            draft = NewPullRequest(
                head=record.branch, base=base, title=title, body=request.body, draft=request.draft
            )
            return await forge.create_pr(draft)
        except CodingAgentError as error:
            raise FinalizeError(
                f"the changes are pushed to {record.branch}, but there is no pull request: {error}",
                step="create_pr",
            ) from error


def _message(request: Finalizing) -> str:
    """Return the message of the commit, with the user who asked for it as co-author."""
    text = request.message.replace("\0", "").strip()
    if not request.by_name:
        return text
    name, email = (
        "".join(c for c in part if c.isprintable() and c not in "<>")
        for part in (request.by_name, request.by_email)
    )
    return f"{text}\n\nCo-authored-by: {name.strip()} <{email.strip()}>"


def _step(error: GitError) -> str:
    return "push" if error.command == "push" else "commit"


def _explain(error: GitError, branch: str) -> str:
    if error.command != "push":
        return f"the changes could not be committed: {error}"
    reason = error.reason
    if "non-fast-forward" in reason or "fetch first" in reason:
        return (
            f"the branch {branch} has commits at the host that the workspace does not have, and nothing is "
            "overwritten; let the agent fetch and merge them, or finalize in a new workspace"
        )
    return f"the host refused the push to {branch}: {reason}"
