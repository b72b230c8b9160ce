"""GitLab: docs.gitlab.com/api/merge_requests, /api/notes and /api/commits (statuses).

In: one project. Out: ``Forge``. A merge request is a pull request here, its number the ``iid``; a note is a
comment, unless GitLab wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from msgspec import Struct

from plugins.coding_agents.forges.client import ForgeApi, create_or_find
from plugins.coding_agents.forges.contract import Check, Comment, NewPullRequest, PullRequest, PullState

_PAGE = {"per_page": "100"}
_ENDED = ("success", "failed", "canceled", "skipped", "manual")


def headers(token: str) -> dict[str, str]:
    """Return the headers of requests."""
    return {"Authorization": f"Bearer {token}"} if token else {}


class _User(Struct, frozen=True):
    username: str


class _MergeRequest(Struct, frozen=True):
    iid: int
    web_url: str
    state: str
    title: str
    source_branch: str
    target_branch: str
    sha: str | None = None


class _Position(Struct, frozen=True):
    new_path: str | None = None
    new_line: int | None = None
    old_line: int | None = None


class _Note(Struct, frozen=True):
    id: int
    body: str
    author: _User | None = None
    system: bool = False
    position: _Position | None = None


class _Status(Struct, frozen=True):
    id: int
    name: str
    status: str
    target_url: str | None = None
    description: str | None = None
    allow_failure: bool = False


class GitLab:
    """A project at GitLab."""

    def __init__(self, api: ForgeApi, repository: str) -> None:
        self._api = api
        self.host = api.host
        self.repository = repository
        self._path = f"projects/{quote(repository, safe='')}"

    async def create_pr(self, draft: NewPullRequest) -> PullRequest:
        """Open a merge request, or return the open one."""
        body = {
            "title": f"Draft: {draft.title}" if draft.draft else draft.title,
            "source_branch": draft.head,
            "target_branch": draft.base,
            "description": draft.body,
        }
        return await create_or_find(self._create(body), lambda: self.find_pr(draft.head, draft.base))

    async def find_pr(self, head: str, base: str = "") -> PullRequest | None:
        """Return the open merge request of a branch, or None."""
        query = {"state": "opened", "source_branch": head} | ({"target_branch": base} if base else {})
        found = await self._api.get(f"{self._path}/merge_requests", tuple[_MergeRequest, ...], query)
        return next((_pull(one) for one in found if one.source_branch == head), None)

    async def pr_state(self, number: int) -> PullRequest:
        """Return a merge request as it is now."""
        return _pull(await self._api.get(f"{self._path}/merge_requests/{number}", _MergeRequest))

    async def checks(self, sha: str) -> Sequence[Check]:
        """Return the newest status of each job of a commit."""
        commit = f"{self._path}/repository/commits/{quote(sha, safe='')}"
        return [_check(one) for one in await self._api.pages(f"{commit}/statuses", _Status, _PAGE)]

    async def comments(self, number: int) -> Sequence[Comment]:
        """Return the notes of users, oldest first."""
        path = f"{self._path}/merge_requests/{number}"
        query = {**_PAGE, "sort": "asc", "order_by": "created_at"}
        notes = await self._api.pages(f"{path}/notes", _Note, query)
        address = (await self.pr_state(number)).url if notes else ""
        return [_comment(one, address) for one in notes if not one.system]

    async def _create(self, body: dict[str, str]) -> PullRequest:
        return _pull(await self._api.post(f"{self._path}/merge_requests", _MergeRequest, body))


def _pull(request: _MergeRequest) -> PullRequest:
    states: dict[str, PullState] = {"merged": "merged", "closed": "closed"}
    return PullRequest(
        number=request.iid,
        url=request.web_url,
        # ``locked``: GitLab merges it at the moment.
        state=states.get(request.state, "open"),
        title=request.title,
        head=request.source_branch,
        base=request.target_branch,
        sha=request.sha or "",
    )


def _check(status: _Status) -> Check:
    failed = status.status == "failed" and not status.allow_failure
    return Check(
        id=f"status-{status.id}",
        name=status.name,
        state="failed" if failed else "passed" if status.status in _ENDED else "pending",
        url=status.target_url or "",
        summary=status.description or "",
    )


def _comment(note: _Note, address: str) -> Comment:
    position = note.position or _Position()
    return Comment(
        id=f"note-{note.id}",
        author=note.author.username if note.author else "ghost",
        body=note.body,
        url=f"{address}#note_{note.id}" if address else "",
        path=position.new_path or "",
        line=position.new_line or position.old_line or 0,
    )
