"""Settings of plugins: which run, their timeouts, and their own keys; and of MCP servers."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, JsonValue, SecretStr, model_validator

from gateway.settings.section import Milliseconds, OpenSection, Section

_SERVER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_PLUGIN_WITH_SETTINGS: dict[str, JsonValue] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "config": {"type": "object"},
        "optional": {"type": "boolean"},
    },
    "required": ["name"],
    "additionalProperties": False,
}
"""JSON schema of a plugin listed with settings; see ``split_plugin_entry``."""


class PluginSettings(OpenSection):
    """The gateway's settings of one plugin; further keys are the plugin's own."""

    optional: bool = Field(
        default=False,
        description="Start without this plugin if it fails, and report the failure; default false",
    )
    hook_timeout_ms: Milliseconds = Field(
        default=2_000, gt=0, description="Timeout of a hook, in ms; default 2000"
    )
    tool_timeout_ms: Milliseconds = Field(
        default=60_000,
        gt=0,
        description="Timeout of a tool call, in ms, unless the tool sets its own; default 60000",
    )
    activate_timeout_ms: Milliseconds = Field(
        default=5_000, gt=0, description="Timeout of the activation, in ms; default 5000"
    )
    trust: Literal["sandbox", "full"] = Field(
        default="sandbox",
        description="Of a plugin with plugin.yml: sandbox confines it to its own process, full runs it in "
        "the gateway's process with all its rights; default sandbox",
    )
    agent_tools: tuple[str, ...] = Field(
        default=(),
        description="Of a plugin with plugin.yml: further tools that its agents may use; default none",
    )
    on_failure: Literal["open", "closed"] | None = Field(
        default=None,
        description="What a failing hook does: closed blocks what it was called for, open changes nothing; "
        "default: on_failure of plugin.yml, or closed where it decides or protects and open elsewhere",
    )


def _hex(value: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", value):
        raise ValueError("must be 64 digits of 0-9 and a-f")
    return value


class PluginIndex(Section):
    """An index of plugins. One at an address is pinned by its hash, or signed."""

    url: str = Field(
        description="Address of the index, or path of a file, relative to the working directory", min_length=1
    )
    sha256: Annotated[str, AfterValidator(_hex)] | None = Field(
        default=None, description="SHA-256 of the file, if it never changes"
    )
    key: str | None = Field(
        default=None,
        description="Public key of Ed25519 in base64, as in its PEM file; the signature is at the address "
        "with .sig (needs the extra interactions)",
    )

    @model_validator(mode="after")
    def _guarded(self) -> PluginIndex:
        scheme = urlsplit(self.url).scheme
        if scheme not in ("", "http", "https"):
            raise ValueError("has a url that is neither an http or https address nor a path")
        if scheme and self.sha256 is None and self.key is None:
            raise ValueError("is at an address, so it needs key or sha256")
        return self


class PluginsSettings(OpenSection):
    """The plugins to load; each may have a table ``[plugins.<name>]``."""

    # pydantic types the extra keys by this annotation, although its base class declares another one.
    __pydantic_extra__: dict[str, PluginSettings] = Field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    tables = PluginSettings

    enabled: tuple[str, ...] = Field(
        default=(),
        description="Plugins to load after the built-in ones, in this order; default none",
        json_schema_extra={"items": {"anyOf": [{"type": "string"}, _PLUGIN_WITH_SETTINGS]}},
    )
    disabled: tuple[str, ...] = Field(
        default=(), description="Plugins not to load, built-in ones included; default none"
    )

    indexes: tuple[PluginIndex, ...] = Field(
        default=(),
        description="Indexes that `trunkline plugin search` and `install` use, the first with a name wins; "
        "default none",
    )
    index_check_ms: Milliseconds = Field(
        default=3_600_000,
        gt=0,
        description="Time between checks of the indexes for withdrawn versions, in ms; default 3600000",
    )

    sandbox: Literal["standard", "strict"] = Field(
        default="standard",
        description="Confinement of plugins with plugin.yml: standard uses the namespaces that the kernel "
        "offers, strict requires all of them; default standard",
    )

    def tables_of_others(self, names: Collection[str]) -> list[str]:
        """Return the names of tables without a plugin; files and folders also count by their stems."""
        stems = {name.rstrip("/").rpartition("/")[2].removesuffix(".py").rpartition(".")[2] for name in names}
        return [name for name in self.__pydantic_extra__ or {} if name not in names and name not in stems]

    def of(self, *names: str) -> PluginSettings:
        """Return the table of a plugin; of several names with a table, later ones override key by key."""
        tables = [table for name in names if (table := (self.__pydantic_extra__ or {}).get(name))]
        if len(tables) == 1:
            return tables[0]
        given = {key: getattr(table, key) for table in tables for key in table.model_fields_set}
        return PluginSettings(**given)


class TeamPlugins(Section):
    """The rules of a team for plugins: blocklist before allowlist, and both before ``plugins``."""

    allowlist: tuple[str, ...] | None = Field(
        default=None, description="The only plugins that may be enabled, by name; default all"
    )
    blocklist: tuple[str, ...] = Field(
        default=(), description="Plugins that must not be enabled, by name; default none"
    )
    required: tuple[str, ...] = Field(
        default=(),
        description="Plugins that must be enabled and must not fail; without one the gateway does not start; "
        "default none",
    )

    def refusal(self, *names: str) -> str | None:
        """Return why a plugin with these names must not be enabled, or None."""
        if blocked := next((name for name in names if name in self.blocklist), None):
            return f"plugin {blocked!r} is in teams.plugins.blocklist; remove it from plugins.enabled"
        if self.allowlist is not None and not {*names} & {*self.allowlist}:
            return f"plugin {names[0]!r} is not in teams.plugins.allowlist; remove it from plugins.enabled"
        return None


def _https_or_path(value: str | None) -> str | None:
    if value is not None and urlsplit(value).scheme not in ("", "https"):
        raise ValueError("must be a path or an https address")
    return value


class TeamsSettings(Section):
    """Rules for all users of a team."""

    id: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        examples=["support-team"],
        description="Id of the team in addresses like /orgs/ID/plugins; default none: these addresses do "
        "not exist",
    )
    policy: Annotated[str | None, AfterValidator(_https_or_path)] = Field(
        default=None,
        min_length=1,
        description="Path or https address of a file with further rules, which no setting overrides: "
        "allowlist, blocklist and required at its top; default none",
    )
    plugins: TeamPlugins = Field(default=TeamPlugins(), description="Which plugins may and must be enabled")


def _folder(path: Path) -> Path:
    path = path.expanduser()
    if not path.is_absolute():
        raise ValueError(f"has {str(path)!r}; write the absolute path of the folder or file")
    return path


class McpFilesystem(Section):
    """Folders and files that a server may use besides its own program."""

    read: bool = Field(default=True, description="Read below the roots; default true")
    write: bool = Field(default=False, description="Write and delete below the roots; default false")
    roots: tuple[Annotated[Path, AfterValidator(_folder)], ...] = Field(
        default=(), description="Folders and files, by absolute path; default none"
    )


class McpNetwork(Section):
    """The network of a server."""

    advice = {"allowlist": "the kernel cannot limit a program to hosts; leave it out, or use a remote server"}

    enabled: bool = Field(default=False, description="Give it a network, to all hosts; default false")


class McpLlm(Section):
    """Model calls that a server requests while one of its tools runs."""

    enabled: bool = Field(default=False, description="Answer its requests with a model; default false")
    budget: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="US dollars per session; unlimited if unset"
    )


class McpCapabilities(Section):
    """Rights of a server; without them it has its program, a /tmp of its own, and no network."""

    filesystem: McpFilesystem = Field(default=McpFilesystem(), description="Folders that it may use")
    network: McpNetwork = Field(default=McpNetwork(), description="Network of the server")
    llm: McpLlm = Field(default=McpLlm(), description="Model calls that it requests")


class McpServerSettings(Section):
    """One MCP server: a program on this machine, or an address."""

    command: tuple[str, ...] = Field(
        default=(), description="Local server: program and arguments, not interpreted by a shell"
    )
    url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s#]+$",
        examples=["https://mcp.example.org/mcp"],
        description="Remote server, in place of a command: address of its streamable HTTP or SSE endpoint",
    )
    headers: dict[str, SecretStr] = Field(default={}, description="HTTP headers for a remote server")
    client_id: str | None = Field(
        default=None, description="OAuth client, where a remote server does not register one by itself"
    )
    client_secret: SecretStr | None = Field(default=None, description="Secret of the OAuth client")
    callback_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port of http://127.0.0.1:PORT/callback, if the OAuth client was registered with one; "
        "default any",
    )
    enabled: bool = Field(default=True, description="Offer its tools; default true")
    env: dict[str, SecretStr] = Field(default={}, description="Environment variables of the server")
    cwd: Annotated[Path, AfterValidator(_folder)] | None = Field(
        default=None, description="Working directory of the server; default: its first root, else /tmp"
    )
    capabilities: McpCapabilities = Field(default=McpCapabilities(), description="Rights of the server")
    tools: tuple[str, ...] = Field(
        default=("*",), description="Tools to offer, by name or pattern with *; default all"
    )
    timeout: Milliseconds = Field(
        default=30_000, gt=0, description="Timeout of a start and of a call, in ms each; default 30000"
    )
    memory_mb: int = Field(
        default=1024, ge=16, description="Most memory of the server and its processes in MB; default 1024"
    )
    processes: int = Field(
        default=64, ge=1, le=10_000, description="Most processes of the server at once; default 64"
    )
    trust: Literal["sandbox", "full"] = Field(
        default="sandbox",
        description="sandbox confines it by the kernel, full gives it all rights of the "
        "gateway; default sandbox",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.command) == (self.url is not None):
            raise ValueError("must have either command, for a local server, or url, for a remote one")
        return self


def check_names(servers: dict[str, McpServerSettings]) -> dict[str, McpServerSettings]:
    """Raise ValueError for a name of a server that cannot begin the names of its tools."""
    for name in servers:
        if not _SERVER_NAME.fullmatch(name):
            raise ValueError(f"has {name!r}; name a server with up to 32 letters, digits, _ and -")
    return servers
