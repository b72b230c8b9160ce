"""The settings of the plugin: ``[plugins.coding_agents]``.

Every key may be written ``like_this`` or ``likeThis``. Each piece of the plugin adds its own keys here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator
from pydantic.alias_generators import to_camel

from plugins.programs.hosts import parse_rules

DAY_MS = 86_400_000
GIB = 1024**3

Preset = Literal["readonly", "standard", "permissive", "autonomous"]
ForgeKind = Literal["github", "gitlab", "gitea", "forgejo"]
"""A service that hosts repositories."""

TOKEN_VARIABLES: Mapping[str, Sequence[str]] = {
    "github.com": ("GH_TOKEN", "GITHUB_TOKEN"),
    "gitlab.com": ("GITLAB_TOKEN",),
}
"""Environment variables with the token for a host, unless the settings have one."""


class Section(BaseModel):
    """A read-only table of settings that rejects unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        loc_by_alias=False,
        hide_input_in_errors=True,
    )


class RuleSettings(Section):
    """An answer to questions without a user; one with the pattern of a shipped rule changes that rule."""

    pattern: str = Field(min_length=1, description="Regular expression that is found in the question")
    enabled: bool = Field(default=True, description="Whether the rule is used")
    response: str = Field(default="", description="Text to answer with, before Enter")
    keys: tuple[str, ...] = Field(default=(), description="Names of keys to answer with, instead of a text")
    description: str = Field(default="", description="Description for the user")
    safe: bool = Field(default=True, description="Answer without asking; otherwise only notify the user")
    once: bool = Field(default=False, description="Answer once in a session")

    @field_validator("pattern")
    @classmethod
    def _compile(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from error
        return pattern


class AgentSettings(Section):
    """The settings of one program."""

    binary: str = Field(default="", description="Program, as a name or an absolute path")
    model: str = Field(default="", description="Model id of the program; the program's default if empty")
    args: tuple[str, ...] = Field(default=(), description="Additional command line arguments")
    env: dict[str, SecretStr] = Field(default={}, description="Additional environment variables")
    preset: Preset = Field(default="standard", description="What the program may do without a question")
    key: Literal["", "proxied", "direct"] = Field(
        default="",
        description="Keep its API keys in the gateway, or give them to it; key of all programs if unset",
    )
    trust_folder: bool = Field(
        default=False, description="Start it also in folders whose files configure it (Aider)"
    )
    rules: tuple[RuleSettings, ...] = Field(default=(), description="Questions to answer without a user")
    shipped_rules: bool = Field(
        default=True, description="Use the rules that come with the program's adapter"
    )


class TokenSettings(Section):
    """The credentials of one service."""

    token: SecretStr | None = Field(default=None, description="Access token")


class CredentialSettings(Section):
    """The credentials of services outside of the gateway."""

    github: TokenSettings = Field(default=TokenSettings(), description="GitHub")


class ForgeSettings(Section):
    """A service that hosts repositories."""

    kind: ForgeKind = Field(description="Service: github, gitlab, gitea or forgejo")
    base_url: str = Field(
        default="",
        pattern=r"^(https?://[^\s?#@]+)?$",
        description="Address of its API, such as https://git.example.org/api/v1; by kind and host if unset",
    )
    token: SecretStr | None = Field(
        default=None, description="Access token that may read, push, and write pull requests"
    )
    read_token: SecretStr | None = Field(
        default=None, description="Access token that may only read; agents that fetch by themselves get it"
    )
    webhook_secret: SecretStr | None = Field(
        default=None,
        min_length=16,
        description="Secret of its webhooks, at least 16 characters; without one they are not accepted",
    )


class SetupSettings(Section):
    """The preparation of each new workspace of one repository."""

    files: dict[str, Path] = Field(
        default={}, description="Files of this machine to copy, by their path in the workspace"
    )
    command: tuple[str, ...] = Field(default=(), description="Program and arguments to run in the workspace")


class WorkspaceSettings(Section):
    """The workspaces: worktrees of repositories. Sizes are bytes, times milliseconds."""

    hosts: tuple[str, ...] = Field(
        default=(),
        description="Hosts of repositories besides github.com, gitlab.com, bitbucket.org, codeberg.org and "
        "those in forges; http://HOST:PORT allows a connection without encryption",
    )
    max_workspaces: int = Field(default=20, ge=1, le=10_000, description="Limit of workspaces; default 20")
    max_bytes: int = Field(default=4 * GIB, ge=1, description="Limit of one workspace; default 4 GiB")
    max_total_bytes: int = Field(
        default=20 * GIB, ge=1, description="Limit of all workspaces and the cache; default 20 GiB"
    )
    idle_ms: int = Field(
        default=7 * DAY_MS, ge=1_000, description="Remove a workspace that was not used for this time"
    )
    merged_ms: int = Field(
        default=DAY_MS, ge=1_000, description="Remove a workspace this time after its pull request ended"
    )
    author_name: str = Field(default="Workspace Agent", min_length=1, description="Author of commits")
    author_email: str = Field(
        default="agent@trunkline.invalid", min_length=3, description="Address of the author of commits"
    )
    agent_may_push: bool = Field(
        default=False,
        description="Whether agents get the token of the forge; otherwise only the gateway does",
    )
    exclude: tuple[str, ...] = Field(
        default=(), description="Patterns of files that no commit contains, as in .gitignore"
    )
    setup: dict[str, SetupSettings] = Field(
        default={}, description="Preparation of workspaces, by HOST/OWNER/NAME of the repository"
    )


class LimitSettings(Section):
    """The limits of one session; 0 means no limit."""

    memory_mb: int = Field(
        default=4096, ge=0, description="Memory of all processes of a session, in MB; default 4096"
    )
    processes: int = Field(
        default=1024, ge=0, le=65_536, description="Processes and threads of a session; default 1024"
    )
    cpu_seconds: int = Field(
        default=0, ge=0, description="Processor time of each process, in seconds; no limit by default"
    )
    cpus: float = Field(
        default=0.0, ge=0, description="Processors for a session where cgroups exist; no limit by default"
    )


def _check_host(text: str) -> str:
    parse_rules(text)
    return text


class CodingAgentSettings(Section):
    """All settings of the plugin. Times are milliseconds."""

    users: Literal["everyone", "admins"] = Field(
        default="everyone",
        description="Who may use coding agents: everyone whom the bot answers, or admins; default everyone",
    )
    max_sessions: int = Field(default=5, ge=1, le=1_000, description="Limit of sessions that run; default 5")
    min_free_memory_mb: int = Field(
        default=512, ge=0, description="Start no session with less free memory than this, in MB; default 512"
    )
    idle_timeout_ms: int = Field(
        default=1_800_000,
        ge=1_000,
        description="Stop a session after this time without input and output, in ms; default 30 minutes",
    )
    blocked_timeout_ms: int = Field(
        default=DAY_MS,
        ge=1_000,
        description="Stop a session that waits for a user after this time, in ms; default 24 hours",
    )
    orphan_ms: int = Field(
        default=DAY_MS,
        ge=1_000,
        description="End a program that has been without a gateway for this time, in ms; default 24 hours",
    )
    base_dir: Path | None = Field(
        default=None, description="Folder of workspaces; coding-workspaces in the data directory if unset"
    )
    allowed_roots: tuple[Path, ...] = Field(
        default=(), description="Folders below which users may start sessions, besides workspaces"
    )
    sandbox: Literal["on", "off"] = Field(
        default="on",
        description="Let the kernel confine programs; off gives them all rights of the gateway; default on",
    )
    network: Literal["model", "list", "open"] = Field(
        default="model",
        description="Hosts that programs reach: of their models, of allow_hosts too, or all; default model",
    )
    allow_hosts: tuple[Annotated[str, AfterValidator(_check_host)], ...] = Field(
        default=(),
        description="Hosts for network = list: names, name:port, *.name, addresses, networks, or groups such "
        "as @npm, @pypi and @github",
    )
    key: Literal["proxied", "direct"] = Field(
        default="proxied",
        description="Keep API keys in the gateway, or give them to programs; default proxied",
    )
    readable: tuple[Path, ...] = Field(
        default=(), description="Further folders that programs may read, such as those of a toolchain"
    )
    limits: LimitSettings = Field(default=LimitSettings(), description="What one session may use")
    credentials: CredentialSettings = Field(
        default=CredentialSettings(), description="Credentials of services outside of the gateway"
    )
    forges: dict[str, ForgeSettings] = Field(
        default={},
        description="Services that host repositories, by host; github.com and gitlab.com are known",
    )
    workspaces: WorkspaceSettings = Field(
        default=WorkspaceSettings(), description="Worktrees of repositories, their limits and preparation"
    )
    stall_model: str = Field(
        default="",
        description="A cheap model that judges screens without change for 8 s; without one they are shown "
        "after 60 s",
    )
    debug: bool = Field(default=False, description="Log each event and status of each session")
    agents: dict[str, AgentSettings] = Field(default={}, description="Settings of each program, by name")

    def of(self, agent: str) -> AgentSettings:
        """Return the settings of a program."""
        return self.agents.get(agent) or AgentSettings()
