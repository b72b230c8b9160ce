"""Gitea and Forgejo: docs.gitea.com/api (repository, issue); Forgejo has the same API.

In: one repository. Out: ``Forge``. Neither can filter pull requests by their branch, so the open ones are
read. They send no ETags: each request is answered in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from msgspec import Struct

from plugins.coding_agents.forges.client import ForgeApi, create_or_find
from plugins.coding_agents.forges.contract import Check, Comment, NewPullRequest, PullRequest

_PAGE_SIZE = 50
_PAGE = {"limit": str(_PAGE_SIZE)}


def headers(token: str) -> dict[str, str]:
    """Return the headers of requests."""
    return {"Authorization": f"token {token}"} if token else {}


class _User(Struct, frozen=True):
    login: str


class _Branch(Struct, frozen=True):
    ref: str
    sha: str = ""
    repo_id: int = 0


class _Pull(Struct, frozen=True):
    number: int
    html_url: str
    state: str
    title: str
    head: _Branch
    base: _Branch
    merged: bool = False


class _Comment(Struct, frozen=True):
    id: int
    html_url: str = ""
    body: str | None = None
    user: _User | None = None
    path: str = ""
    position: int | None = None
    original_position: int | None = None


class _Review(Struct, frozen=True):
    id: int
    state: str
    html_url: str = ""
    body: str | None = None
    user: _User | None = None
    comments_count: int = 0


class _Status(Struct, frozen=True):
    id: int
    context: str
    status: str
    target_url: str | None = None
    description: str | None = None


class _Statuses(Struct, frozen=True):
    statuses: tuple[_Status, ...] | None = None


class Gitea:
    """A repository at Gitea or Forgejo."""

    def __init__(self, api: ForgeApi, repository: str) -> None:
        self._api = api
        self.host = api.host
        self.repository = repository
        self._path = f"repos/{quote(repository)}"

    async def create_pr(self, draft: NewPullRequest) -> PullRequest:
        """Open a pull request, or return the open one."""
        body = {
            "title": f"WIP: {draft.title}" if draft.draft else draft.title,
            "head": draft.head,
            "base": draft.base,
            "body": draft.body,
        }
        return await create_or_find(self._create(body), lambda: self.find_pr(draft.head, draft.base))

    async def find_pr(self, head: str, base: str = "") -> PullRequest | None:
        """Return the open pull request of a branch of this repository, or None."""
        for pull in await self._api.pages(f"{self._path}/pulls", _Pull, {**_PAGE, "state": "open"}):
            # A fork may have a branch of the same name.
            same = pull.head.ref == head and pull.head.repo_id == pull.base.repo_id
            if same and base in ("", pull.base.ref):
                return _pull(pull)
        return None

    async def pr_state(self, number: int) -> PullRequest:
        """Return a pull request as it is now."""
        return _pull(await self._api.get(f"{self._path}/pulls/{number}", _Pull))

    async def checks(self, sha: str) -> Sequence[Check]:
        """Return the newest status of each context of a commit."""
        path = f"{self._path}/commits/{quote(sha, safe='')}/status"
        pages = await self._api.whole_pages(path, _Statuses, _PAGE, _is_full)
        return [_check(one) for page in pages for one in page.statuses or ()]

    async def comments(self, number: int) -> Sequence[Comment]:
        """Return the comments, the texts of submitted reviews, and their comments on lines."""
        pull = f"{self._path}/pulls/{number}"
        whole = await self._api.get(f"{self._path}/issues/{number}/comments", tuple[_Comment, ...])
        comments = [_comment("comment", one) for one in whole]
        for review in await self._api.pages(f"{pull}/reviews", _Review, _PAGE):
            if review.state in ("PENDING", "REQUEST_REVIEW"):
                continue
            if review.body:
                comments.append(_comment("review", review))
            if review.comments_count:
                lines = await self._api.get(f"{pull}/reviews/{review.id}/comments", tuple[_Comment, ...])
                comments += [_comment("line", one) for one in lines]
        return comments

    async def _create(self, body: dict[str, str]) -> PullRequest:
        return _pull(await self._api.post(f"{self._path}/pulls", _Pull, body))


def _is_full(page: _Statuses) -> bool:
    """Return whether further statuses may follow: this answer has no header that names the next page."""
    return len(page.statuses or ()) >= _PAGE_SIZE


def _pull(pull: _Pull) -> PullRequest:
    return PullRequest(
        number=pull.number,
        url=pull.html_url,
        state="merged" if pull.merged else "open" if pull.state == "open" else "closed",
        title=pull.title,
        head=pull.head.ref,
        base=pull.base.ref,
        sha=pull.head.sha,
    )


def _check(status: _Status) -> Check:
    failed = status.status in ("failure", "error")
    return Check(
        id=f"status-{status.id}",
        name=status.context,
        state="failed" if failed else "pending" if status.status == "pending" else "passed",
        url=status.target_url or "",
        summary=status.description or "",
    )


def _comment(kind: str, comment: _Comment | _Review) -> Comment:
    on_line = isinstance(comment, _Comment)
    return Comment(
        id=f"{kind}-{comment.id}",
        author=comment.user.login if comment.user else "ghost",
        body=comment.body or "",
        url=comment.html_url,
        path=comment.path if on_line else "",
        line=(comment.position or comment.original_position or 0) if on_line else 0,
    )
