"""GitHub and GitHub Enterprise: docs.github.com/en/rest (pulls, issues, checks, commits).

In: one repository. Out: ``Forge``. A review comment is on a line, an issue comment on the whole pull request,
and a review may have its own text; all three are comments here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from msgspec import Struct

from plugins.coding_agents.forges.client import ForgeApi, create_or_find
from plugins.coding_agents.forges.contract import Check, CheckState, Comment, NewPullRequest, PullRequest

_PAGE = {"per_page": "100"}
_FAILED = ("failure", "timed_out", "startup_failure", "error")


def headers(token: str) -> dict[str, str]:
    """Return the headers of requests."""
    fixed = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
    return {**fixed, "Authorization": f"Bearer {token}"} if token else fixed


class _User(Struct, frozen=True):
    login: str


class _Branch(Struct, frozen=True):
    ref: str
    sha: str


class _Pull(Struct, frozen=True):
    number: int
    html_url: str
    state: str
    title: str
    head: _Branch
    base: _Branch
    merged_at: str | None = None


class _Comment(Struct, frozen=True):
    id: int
    html_url: str
    body: str | None = None
    user: _User | None = None
    state: str = ""
    path: str = ""
    line: int | None = None
    original_line: int | None = None


class _Output(Struct, frozen=True):
    title: str | None = None


class _Run(Struct, frozen=True):
    id: int
    name: str
    status: str
    conclusion: str | None = None
    html_url: str | None = None
    output: _Output = _Output()


class _Runs(Struct, frozen=True):
    check_runs: tuple[_Run, ...] = ()


class _Status(Struct, frozen=True):
    id: int
    context: str
    state: str
    target_url: str | None = None
    description: str | None = None


class _Statuses(Struct, frozen=True):
    statuses: tuple[_Status, ...] = ()


class GitHub:
    """A repository at GitHub."""

    def __init__(self, api: ForgeApi, repository: str) -> None:
        self._api = api
        self.host = api.host
        self.repository = repository
        self._path = f"repos/{quote(repository)}"

    async def create_pr(self, draft: NewPullRequest) -> PullRequest:
        """Open a pull request, or return the open one."""
        body = {
            "title": draft.title,
            "head": draft.head,
            "base": draft.base,
            "body": draft.body,
            "draft": draft.draft,
        }
        return await create_or_find(self._create(body), lambda: self.find_pr(draft.head, draft.base))

    async def find_pr(self, head: str, base: str = "") -> PullRequest | None:
        """Return the open pull request of a branch of this repository, or None."""
        query = {"state": "open", "head": f"{self.repository.partition('/')[0]}:{head}"}
        found = await self._api.get(
            f"{self._path}/pulls", tuple[_Pull, ...], query | ({"base": base} if base else {})
        )
        # A filter that a server does not know is ignored, so the answer is checked.
        return next((_pull(one) for one in found if one.head.ref == head), None)

    async def pr_state(self, number: int) -> PullRequest:
        """Return a pull request as it is now."""
        return _pull(await self._api.get(f"{self._path}/pulls/{number}", _Pull))

    async def checks(self, sha: str) -> Sequence[Check]:
        """Return the check runs of a commit, and the statuses that other services set."""
        commit = f"{self._path}/commits/{quote(sha, safe='')}"
        runs = await self._api.whole_pages(f"{commit}/check-runs", _Runs, _PAGE)
        statuses = await self._api.whole_pages(f"{commit}/status", _Statuses, _PAGE)
        return (
            *(_run(one) for page in runs for one in page.check_runs),
            *(_status(one) for page in statuses for one in page.statuses),
        )

    async def comments(self, number: int) -> Sequence[Comment]:
        """Return the comments, and the texts of submitted reviews."""
        issue, pull = f"{self._path}/issues/{number}", f"{self._path}/pulls/{number}"
        whole = await self._api.pages(f"{issue}/comments", _Comment, _PAGE)
        reviews = await self._api.pages(f"{pull}/reviews", _Comment, _PAGE)
        lines = await self._api.pages(f"{pull}/comments", _Comment, _PAGE)
        submitted = [one for one in reviews if one.body and one.state != "PENDING"]
        return [
            _comment(kind, one)
            for kind, found in (("comment", whole), ("review", submitted), ("line", lines))
            for one in found
        ]

    async def _create(self, body: Mapping[str, object]) -> PullRequest:
        return _pull(await self._api.post(f"{self._path}/pulls", _Pull, body))


def _pull(pull: _Pull) -> PullRequest:
    return PullRequest(
        number=pull.number,
        url=pull.html_url,
        state="merged" if pull.merged_at else "open" if pull.state == "open" else "closed",
        title=pull.title,
        head=pull.head.ref,
        base=pull.base.ref,
        sha=pull.head.sha,
    )


def _run(run: _Run) -> Check:
    # One that was cancelled, skipped or is neutral is not a failure of the code.
    ended: CheckState = "failed" if run.conclusion in _FAILED else "passed"
    return Check(
        id=f"run-{run.id}",
        name=run.name,
        state=ended if run.status == "completed" else "pending",
        url=run.html_url or "",
        summary=run.output.title or "",
    )


def _status(status: _Status) -> Check:
    state = status.state
    return Check(
        id=f"status-{status.id}",
        name=status.context,
        state="failed" if state in _FAILED else "pending" if state == "pending" else "passed",
        url=status.target_url or "",
        summary=status.description or "",
    )


def _comment(kind: str, comment: _Comment) -> Comment:
    return Comment(
        id=f"{kind}-{comment.id}",
        author=comment.user.login if comment.user else "ghost",
        body=comment.body or "",
        url=comment.html_url,
        path=comment.path,
        line=comment.line or comment.original_line or 0,
    )
