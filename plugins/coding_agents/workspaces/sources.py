"""The addresses of repositories and the names of branches, checked before git gets them.

In: texts of users and models, and the allowed hosts and folders. Out: ``Source``, whose parts are safe as
arguments, and names that git accepts. Everything else is refused with a named error.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from plugins.coding_agents.errors import InvalidRefError, InvalidRepoDomainError, MissingRepoError
from plugins.coding_agents.settings import CodingAgentSettings
from plugins.programs.git import Git, GitError

HOSTS = ("github.com", "gitlab.com", "bitbucket.org", "codeberg.org")
PREFIX = "trunkline"
LONGEST_SLUG = 30

_LONGEST_REF = 200
_SHORT = re.compile(r"(?![-.])[\w.-]+/(?![-.])[\w.-]+", re.ASCII)
_SCP = re.compile(r"git@([\w.-]+):(?![/\\:-])(.+)", re.ASCII)
_HOST = re.compile(r"(?!-)[a-z0-9.-]+(:[0-9]{1,5})?")
_PATH = re.compile(r"[\w.~-]+(/[\w.~-]+)+", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


class Source(Struct, frozen=True):
    """A repository that may be used. ``host`` is "" for a local folder, which then is ``path``."""

    url: str
    transport: Literal["https", "http", "ssh", "file"]
    host: str
    path: str

    @property
    def name(self) -> str:
        """The repository as HOST/OWNER/NAME, or the local folder."""
        return f"{self.host}/{self.path}" if self.host else self.path

    @property
    def settings(self) -> Sequence[str]:
        """The settings with which git may use this transport, and only this host: no redirect is followed."""
        return f"protocol.{self.transport}.allow=always", "http.followRedirects=false"


def find_source(text: str, settings: CodingAgentSettings) -> Source:
    """Return the repository that a text names: a URL, ``git@HOST:OWNER/NAME``, ``OWNER/NAME`` at GitHub, or a
    folder below the allowed roots.

    Raises MissingRepoError for an empty text, and InvalidRepoDomainError for everything that is not allowed.
    """
    text = text.strip()
    if not text:
        raise MissingRepoError(
            "no repository was named; write its address, such as https://github.com/OWNER/NAME"
        )
    if any(not c.isprintable() or c.isspace() for c in text) or text.startswith("-") or "::" in text:
        raise _refused(text)
    if text.startswith(("/", "~/", "file://")):
        return _local(text, settings)
    if _SHORT.fullmatch(text):
        text = f"https://github.com/{text}"
    elif found := _SCP.fullmatch(text):
        text = f"ssh://git@{found[1]}/{found[2]}"
    return _remote(text, settings)


def _remote(text: str, settings: CodingAgentSettings) -> Source:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise _refused(text) from None
    transport, path = parts.scheme, parts.path.strip("/").removesuffix(".git")
    host = f"{parts.hostname or ''}{f':{port}' if port is not None else ''}"
    if transport not in ("https", "http", "ssh") or parts.query or parts.fragment:
        raise _refused(text)
    if parts.password is not None or (parts.username is not None and transport != "ssh"):
        raise InvalidRepoDomainError(
            f"the address of the repository {host}/{path} contains credentials; write it without them and "
            f'set [plugins.coding_agents.forges."{host}"] token'
        )
    if not _HOST.fullmatch(host) or not _is_safe_path(path):
        raise _refused(text)
    if not _is_allowed(transport, host, settings):
        allowed = ", ".join(_allowed(settings))
        raise InvalidRepoDomainError(
            f"repositories of {host} are not allowed over {transport}; allowed are {allowed}. Add the host "
            "to [plugins.coding_agents.workspaces] hosts"
        )
    user = f"{parts.username or 'git'}@" if transport == "ssh" else ""
    if not re.fullmatch(r"(\w[\w.-]*@)?", user, re.ASCII):
        raise _refused(text)
    return Source(f"{transport}://{user}{host}/{path}.git", transport, host, path)


def _is_safe_path(path: str) -> bool:
    """Return whether no part of a path could leave its folder, or be an option of git."""
    parts = path.split("/")
    unsafe = any(part in (".", "..", ".git") or part.startswith("-") for part in parts)
    return _PATH.fullmatch(path) is not None and not unsafe


def _allowed(settings: CodingAgentSettings) -> Sequence[str]:
    return *HOSTS, *settings.forges, *settings.workspaces.hosts


def _is_allowed(transport: str, host: str, settings: CodingAgentSettings) -> bool:
    """Return whether a host is allowed. Over ssh its port is free: it is another service than the web's."""
    allowed = {entry.lower().rstrip("/") for entry in _allowed(settings)}
    if transport == "http":
        return f"http://{host}" in allowed
    names = {host, host.partition(":")[0]} if transport == "ssh" else {host}
    return bool(
        names & {entry.removeprefix("https://") for entry in allowed if not entry.startswith("http://")}
    )


def _local(text: str, settings: CodingAgentSettings) -> Source:
    folder = Path(text.removeprefix("file://")).expanduser().resolve()
    roots = [root.expanduser().resolve() for root in settings.allowed_roots]
    if not any(folder.is_relative_to(root) for root in roots) or not folder.is_dir():
        raise InvalidRepoDomainError(
            f"the folder {text[:200]!r} is not a repository below the allowed folders; add its parent to "
            "[plugins.coding_agents] allowed_roots"
        )
    return Source(f"file://{folder}", "file", "", str(folder))


def _refused(text: str) -> InvalidRepoDomainError:
    return InvalidRepoDomainError(
        f"{text[:200]!r} is not the address of a repository; write https://HOST/OWNER/NAME, "
        "git@HOST:OWNER/NAME or OWNER/NAME"
    )


async def check_branch(git: Git, folder: Path, name: str) -> str:
    """Return a name that git accepts for a branch. Raises InvalidRefError."""
    is_plain = name.isprintable() and not name.startswith("-") and len(name) <= _LONGEST_REF
    if is_plain and name != "HEAD" and not name.startswith("refs/"):
        try:
            await git.run("check-ref-format", f"refs/heads/{name}", folder=str(folder))
        except GitError:
            pass
        else:
            return name
    raise InvalidRefError(f"{name[:_LONGEST_REF]!r} is not a name that git accepts for a branch")


async def check_base(git: Git, folder: Path, name: str) -> str:
    """Return the name of a branch, or a whole commit id. Raises InvalidRefError."""
    return name if _COMMIT.fullmatch(name) else await check_branch(git, folder, name)


def branch_for(task: str, now_ms: int) -> str:
    """Return a new name: ``trunkline/<yyyymmdd>-<slug>-<4 hex>``, without the slug if the task has none."""
    day = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%d")
    slug = re.sub(r"[^a-z0-9]+", "-", task.lower())[: LONGEST_SLUG + 1].strip("-")[:LONGEST_SLUG].strip("-")
    return "-".join(part for part in (f"{PREFIX}/{day}", slug, secrets.token_hex(2)) if part)
