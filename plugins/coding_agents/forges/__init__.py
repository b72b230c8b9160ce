"""Forges: the services that host repositories, found by the host of a repository's URL.

In: URLs of repositories and ``[plugins.coding_agents.forges]``. Out: ``Forge``, one for each repository, and
the login with which git pushes. ``workspaces``, ``tools`` and ``chat`` import it; nothing else opens clients.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct

from gateway.provider_http import open_client
from plugins.coding_agents.errors import InvalidRepoDomainError
from plugins.coding_agents.forges import gitea, github, gitlab
from plugins.coding_agents.forges.client import SECONDS, ForgeApi
from plugins.coding_agents.forges.contract import Forge, ForgeError
from plugins.coding_agents.settings import TOKEN_VARIABLES, CodingAgentSettings, ForgeKind, ForgeSettings

_PUBLIC: Mapping[str, ForgeKind] = {"github.com": "github", "gitlab.com": "gitlab", "codeberg.org": "gitea"}
_SCP = re.compile(r"(?:[\w.-]+@)?([\w.-]+):(?![/\\:])(.+)", re.ASCII)
_PATH = re.compile(r"[\w.-]+(/[\w.-]+)+", re.ASCII)


class _Kind(Struct, frozen=True):
    """The differences between the services: the class, headers, address, and the user name for git."""

    make: Callable[[ForgeApi, str], Forge]
    headers: Callable[[str], dict[str, str]]
    api: str
    user: str


# Gitea and Forgejo take the token as the password of any user.
_GITEA = _Kind(gitea.Gitea, gitea.headers, "/api/v1", "trunkline")
_KINDS: Mapping[ForgeKind, _Kind] = {
    "github": _Kind(github.GitHub, github.headers, "/api/v3", "x-access-token"),
    "gitlab": _Kind(gitlab.GitLab, gitlab.headers, "/api/v4", "oauth2"),
    "gitea": _GITEA,
    "forgejo": _GITEA,
}


class RepositoryPlace(Struct, frozen=True):
    """The place of a repository: its host, with a port if the URL has one, and its path there."""

    host: str
    path: str


class Forges:
    """The configured services, with one HTTP client for all. Create it in a running loop."""

    def __init__(
        self, settings: CodingAgentSettings, environ: Mapping[str, str], *, seconds: float = SECONDS
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._client = open_client()
        self._seconds = seconds
        self._apis: dict[str, ForgeApi] = {}

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    def forge_for(self, url: str) -> Forge:
        """Return the service of a repository.

        Raises InvalidRepoDomainError if the text is not the URL of a repository, and ForgeError if the
        settings do not say which service the host runs.
        """
        place = locate(url)
        settings = self._find(place.host)
        if settings is None:
            raise ForgeError(
                f"it is not known which service runs at {place.host}; add "
                f'[plugins.coding_agents.forges."{place.host}"] with kind = "github", "gitlab" or "gitea"'
            )
        kind = _KINDS[settings.kind]
        base_url = settings.base_url or (
            "https://api.github.com" if place.host == "github.com" else f"https://{place.host}{kind.api}"
        )
        if place.host not in self._apis:
            token = self._token(place.host, settings)
            self._apis[place.host] = ForgeApi(
                self._client, place.host, base_url, kind.headers(token), token, seconds=self._seconds
            )
        # A service below a path, https://example.org/git/api/v1: the path is no part of the repository's.
        prefix = urlsplit(base_url).path.partition("/api/")[0].strip("/")
        return kind.make(self._apis[place.host], place.path.removeprefix(f"{prefix}/"))

    def login_for(self, url: str, rights: Literal["read", "write"] = "write") -> tuple[str, str] | None:
        """Return user and password for git over HTTPS; None without a token for these rights.

        A token for reading is one of its own: the other one could also push.
        """
        host = locate(url).host
        settings = self._find(host)
        token = ""
        if settings is not None and rights == "write":
            token = self._token(host, settings)
        elif settings is not None and settings.read_token is not None:
            token = settings.read_token.get_secret_value().strip()
        return (_KINDS[settings.kind].user, token) if settings is not None and token else None

    def _find(self, host: str) -> ForgeSettings | None:
        found = self._settings.forges.get(host) or self._settings.forges.get(host.partition(":")[0])
        if found is None and host in _PUBLIC:
            return ForgeSettings(kind=_PUBLIC[host])
        return found

    def _token(self, host: str, settings: ForgeSettings) -> str:
        given = settings.token
        if given is None and host == "github.com":
            given = self._settings.credentials.github.token
        if given is not None:
            return given.get_secret_value().strip()
        found = (self._environ.get(name, "").strip() for name in TOKEN_VARIABLES.get(host, ()))
        return next(filter(None, found), "")


def locate(url: str) -> RepositoryPlace:
    """Return the place of a repository by its URL: https, http, ssh, or ``git@host:owner/name``.

    Raises InvalidRepoDomainError for other texts, such as ``ext::``, local folders and options.
    """
    refused = InvalidRepoDomainError(
        f"{url[:200]!r} is not the address of a repository; write https://HOST/OWNER/NAME or "
        "git@HOST:OWNER/NAME"
    )
    if any(not c.isprintable() or c.isspace() for c in url):
        raise refused
    if found := _SCP.fullmatch(url):
        host, path = found[1], found[2]
    else:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise refused from None
        host, path = parts.hostname or "", parts.path
        if parts.scheme not in ("https", "http", "ssh") or parts.query or parts.fragment:
            raise refused
        if port is not None and parts.scheme != "ssh":
            host = f"{host}:{port}"
    path = path.strip("/").removesuffix(".git")
    if not host or host.startswith("-") or not _PATH.fullmatch(path) or ".." in path.split("/"):
        raise refused
    return RepositoryPlace(host.lower(), path)
