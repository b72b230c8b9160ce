"""Pull requests at GitHub, GitLab and Gitea behind one interface.

In: the drafts and questions of ``workspaces`` and ``watch``. Out: the same frozen values for each service; a
merge request of GitLab is a pull request here. What services refuse becomes one of two errors: ``ForgeError``
(FORGE_REFUSED) and ``CredentialDeniedError`` (CREDENTIAL_DENIED). This module imports no client.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

from msgspec import Struct

from plugins.coding_agents.errors import ForgeRefusedError

PullState = Literal["open", "merged", "closed"]
CheckState = Literal["pending", "passed", "failed"]


class NewPullRequest(Struct, frozen=True, kw_only=True):
    """A pull request to open: from the branch ``head`` into ``base`` of the same repository."""

    head: str
    base: str
    title: str
    body: str = ""
    draft: bool = False


class PullRequest(Struct, frozen=True, kw_only=True):
    """A pull request. ``sha`` is the newest commit of its branch ``head``."""

    number: int
    url: str
    state: PullState
    title: str
    head: str
    base: str
    sha: str


class Check(Struct, frozen=True, kw_only=True):
    """The result of one check of a commit. A repeated check has another ``id``."""

    id: str
    name: str
    state: CheckState
    url: str = ""
    summary: str = ""


class Comment(Struct, frozen=True, kw_only=True):
    """A comment of a user: on the pull request, in a review, or on a line of a file.

    ``id`` is unique among the comments of the pull request. ``path`` and ``line`` are those of a comment on a
    line; else "" and 0.
    """

    id: str
    author: str
    body: str
    url: str = ""
    path: str = ""
    line: int = 0


class Forge(Protocol):
    """One repository at the service that hosts it.

    Every method raises ``ForgeError``, or ``CredentialDeniedError`` if the service rejects the token. No text
    of an error contains the token.
    """

    @property
    def host(self) -> str:
        """The host of the service, such as ``github.com``."""
        ...

    @property
    def repository(self) -> str:
        """The path of the repository at its host, such as ``acme/app``."""
        ...

    async def create_pr(self, draft: NewPullRequest) -> PullRequest:
        """Open a pull request, or return the open one of the same branches."""
        ...

    async def find_pr(self, head: str, base: str = "") -> PullRequest | None:
        """Return the open pull request of a branch, into ``base`` if given, or None."""
        ...

    async def pr_state(self, number: int) -> PullRequest:
        """Return a pull request as it is now."""
        ...

    async def checks(self, sha: str) -> Sequence[Check]:
        """Return the checks of a commit."""
        ...

    async def comments(self, number: int) -> Sequence[Comment]:
        """Return the comments of users, without those that the service made."""
        ...


class ForgeError(ForgeRefusedError):
    """A request that a service refused or did not answer.

    ``retryable``: the same request may succeed later, after ``retry_after`` seconds if the service named a
    time. ``upstream_status`` is its HTTP status; 0 without an answer.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        upstream_status: int = 0,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after
        self.upstream_status = upstream_status
