"""Which service is asked for a repository, with which address and login."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from plugins.coding_agents.errors import InvalidRepoDomainError
from plugins.coding_agents.forges import Forges, RepositoryPlace, locate
from plugins.coding_agents.forges.contract import ForgeError
from plugins.coding_agents.settings import CodingAgentSettings


@asynccontextmanager
async def configured(environ: dict[str, str] | None = None, **settings: Any) -> AsyncGenerator[Forges]:
    forges = Forges(CodingAgentSettings(**settings), environ or {})
    try:
        yield forges
    finally:
        await forges.close()


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("https://github.com/acme/app", "github.com", "acme/app"),
        ("https://user:secret@GitHub.com/acme/app.git/", "github.com", "acme/app"),
        ("git@gitlab.com:group/sub/app.git", "gitlab.com", "group/sub/app"),
        ("ssh://git@git.example.org:2222/acme/app.git", "git.example.org", "acme/app"),
        ("http://127.0.0.1:3000/acme/app", "127.0.0.1:3000", "acme/app"),
    ],
)
def test_a_repository_has_a_host_and_a_path(url: str, host: str, path: str) -> None:
    assert locate(url) == RepositoryPlace(host, path)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "app",
        "ext::sh -c id% acme/app",
        "ext::sh",
        "file:///etc/passwd",
        "/srv/app",
        "--upload-pack=id",
        "-oProxyCommand=id:acme/app",
        "ssh://-oProxyCommand=id/acme/app",
        "https://github.com/acme",
        "https://github.com/../acme/app",
        "https://github.com/acme/app?x=1",
        "https://github.com/acme/app\nhost",
        "https://[::1/acme/app",
    ],
)
def test_other_texts_are_not_a_repository(url: str) -> None:
    with pytest.raises(InvalidRepoDomainError):
        locate(url)


async def test_a_host_selects_its_service() -> None:
    forges = {"git.example.org": {"kind": "forgejo"}, "127.0.0.1:3000": {"kind": "gitlab"}}
    async with configured(forges=forges) as found:
        named = {
            url: type(found.forge_for(url)).__name__
            for url in (
                "https://github.com/acme/app",
                "git@gitlab.com:acme/app.git",
                "https://codeberg.org/acme/app",
                "ssh://git@git.example.org:2222/acme/app",
                "http://127.0.0.1:3000/acme/app",
            )
        }
    assert list(named.values()) == ["GitHub", "GitLab", "Gitea", "Gitea", "GitLab"]


async def test_an_unknown_host_is_refused_with_the_setting_to_add() -> None:
    async with configured() as found:
        with pytest.raises(ForgeError, match=r'forges\."git\.example\.org"\] with kind') as refused:
            found.forge_for("https://git.example.org/acme/app")
    assert not refused.value.retryable
    assert refused.value.name == "FORGE_REFUSED"


async def test_a_service_below_a_path_keeps_it_out_of_the_repository() -> None:
    settings = {"example.org": {"kind": "gitea", "base_url": "https://example.org/git/api/v1"}}
    async with configured(forges=settings) as found:
        assert found.forge_for("https://example.org/git/acme/app").repository == "acme/app"
        assert found.forge_for("git@example.org:acme/app").repository == "acme/app"


async def test_003_20_the_github_token_is_effective_and_goes_to_its_host_only() -> None:
    credentials = {"github": {"token": "ghp-0123456789"}}
    async with configured(credentials=credentials) as found:
        assert found.login_for("https://github.com/acme/app") == ("x-access-token", "ghp-0123456789")
        assert found.login_for("https://gitlab.com/acme/app") is None
        assert found.login_for("https://github.com.example.org/acme/app") is None


async def test_a_token_of_the_environment_is_used_unless_the_settings_have_one() -> None:
    environ = {"GITHUB_TOKEN": "from-env", "GITLAB_TOKEN": "lab-env"}
    forges = {"gitlab.com": {"kind": "gitlab", "token": "lab-set"}, "git.example.org": {"kind": "github"}}
    async with configured(environ, forges=forges) as found:
        assert found.login_for("https://github.com/acme/app") == ("x-access-token", "from-env")
        assert found.login_for("https://gitlab.com/acme/app") == ("oauth2", "lab-set")
        assert found.login_for("https://git.example.org/acme/app") is None
