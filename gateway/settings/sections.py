"""The settings: every key with its type, default and description. ``config/example.toml`` shows them all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from msgspec import Struct, structs
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    IPvAnyNetwork,
    PrivateAttr,
    SecretStr,
    field_validator,
)
from pydantic_core.core_schema import ValidationInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.contract.provider import Effort
from gateway.settings.channels import AccountSettings, ChannelRules, ChannelSettings
from gateway.settings.entries import Entry, KeyPath, Layer, dotted, flat
from gateway.settings.layers.remote import RemoteFile
from gateway.settings.models import (
    AgentSettings,
    AgentTables,
    Aliases,
    BudgetSettings,
    Compaction,
    ModelTables,
    ProviderSettings,
    StopSequences,
    Trigger,
)
from gateway.settings.plugins import (
    McpServerSettings,
    PluginSettings,
    PluginsSettings,
    TeamsSettings,
    check_names,
)
from gateway.settings.secrets import (
    MASK,
    Secret,
    TokenSettings,
    check_token,
    sounds_secret,
    token_names,
    url_secrets,
    without_passwords,
)
from gateway.settings.section import (
    Days,
    Milliseconds,
    Minutes,
    Seconds,
    Section,
    is_loopback,
    networks,
    not_blank,
)
from gateway.settings.store import ClusterSettings, StoreSettings
from gateway.settings.validation import (
    hint,
    known_entries,
    looks_like_seconds,
    resolve_key,
    settings_error,
    validated,
)

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

Action = Literal["allow", "ask", "deny"]

_NEAR = 0.8
"""Similarity, 0 to 1, from which a key of a channel without declared keys is taken for a misspelt one."""


class ServerSettings(Section):
    """The HTTP server: address, token and connection limits."""

    # The token precedes the host, because pydantic validates the host with the fields before it.
    token: Secret = Field(
        default=None,
        description="Bearer token for clients, 32 characters or more; required if other machines can connect",
    )
    tokens: Annotated[dict[str, TokenSettings], AfterValidator(token_names)] = Field(
        default={}, description="Further tokens by name, so that the audit log names a person; default none"
    )
    viewer_reads: Literal["figures", "messages"] = Field(
        default="figures",
        description='What viewers see: "figures" and states, or also "messages"; default "figures"',
    )
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to bind; 0.0.0.0 for all interfaces; default 127.0.0.1",
    )
    port: int = Field(default=8080, ge=0, le=65535, description="TCP port, 0 for any free one; default 8080")
    announce: bool = Field(
        default=False,
        description="Announce the gateway on the local network by mDNS (extra discovery); default false",
    )
    allowed_origins: tuple[str, ...] = Field(
        default=(),
        description="Origins of further web pages that may connect; others than those of this machine "
        "require a token; default none",
    )

    trusted_proxies: Annotated[tuple[str, ...], AfterValidator(networks)] = Field(
        default=(),
        description="Addresses or networks of reverse proxies that name their clients in X-Forwarded-For, "
        "such as 127.0.0.1 or 10.0.0.0/24; default none",
    )
    connections_per_peer: int = Field(
        default=100,
        ge=0,
        description="Connections per client address, trusted proxies excluded; 0: unlimited; default 100",
    )

    @field_validator("allowed_origins")
    @classmethod
    def _require_origins(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for each in given:
            if not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\s@*]+/?", each, re.IGNORECASE):
                raise ValueError(f"{each!r} is not an origin, such as https://bot.example.org")
        return given

    @field_validator("allowed_origins", "trusted_proxies")
    @classmethod
    def _require_long_token(cls, given: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        # A page of this machine is no way in for others.
        if all(is_loopback(urlsplit(each).hostname or "") for each in given):
            return given
        token: SecretStr | None = info.data.get("token")
        # A proxy may forward shared pages alone, or check its users itself; named tokens are long already.
        if token or (info.field_name == "allowed_origins" and not info.data.get("tokens")):
            value = token.get_secret_value() if token else ""
            check_token(value, "lets others in, so server.token must have at least")
        return given

    @field_validator("host")
    @classmethod
    def _require_token(cls, host: str, info: ValidationInfo) -> str:
        token: SecretStr | None = info.data.get("token")
        if is_loopback(host):
            return host
        value = token.get_secret_value() if token else ""
        check_token(value, "is reachable from other machines, so server.token must have at least")
        return host


class ShareSettings(Section):
    """Public read-only pages of conversations."""

    # The address precedes the switch, because pydantic validates the switch with the fields before it.
    base_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/?#\s@]+/?$",
        examples=["https://bot.example.org"],
        description="Public address of this gateway in links, such as https://bot.example.org",
    )
    enabled: bool = Field(default=False, description="Let users share conversations; default false")
    days: Days = Field(default=7, gt=0, le=365, description="Days until a link expires; default 7")

    @field_validator("enabled")
    @classmethod
    def _require_address(cls, enabled: bool, info: ValidationInfo) -> bool:
        if enabled and not info.data.get("base_url"):
            raise ValueError("requires share.base_url, the public address of this gateway")
        return enabled


class FetchSettings(Section):
    """Limits on downloads of addresses in messages."""

    allow: tuple[IPvAnyNetwork, ...] = Field(
        default=(),
        description="Private networks that downloads may access, such as 10.1.0.0/16; default none",
    )
    max_bytes: int = Field(default=5_000_000, gt=0, description="Largest download, in bytes; default 5000000")
    timeout: Milliseconds = Field(
        default=20_000, gt=0, description="Timeout of a download, in ms; default 20000"
    )


class Limits(Section):
    """Limits that keep one sender, tool or model from exhausting the gateway."""

    session_inbox: int = Field(
        default=50, gt=0, description="Queued messages per conversation in memory; default 50"
    )
    session_backlog: int = Field(
        default=1_000,
        ge=0,
        description="Queued messages per conversation on disk, beyond which a notice is sent; default 1000",
    )
    sender_backlog: int = Field(
        default=200,
        ge=0,
        description="Queued messages per sender on disk, beyond which a notice is sent; default 200",
    )
    global_inbox: int = Field(
        default=100_000,
        gt=0,
        description="Queued messages of all conversations, beyond which none is accepted; default 100000",
    )
    backlog_minutes: Minutes = Field(
        default=10,
        gt=0,
        description="Age in minutes from which queued messages are answered together, unless a plugin "
        "changes or answers messages; default 10",
    )
    max_attempts: int = Field(
        default=8, gt=0, description="Attempts to answer a message before it becomes a dead letter; default 8"
    )
    max_llm_calls: int = Field(default=50, gt=0, description="Model calls per turn; default 50")
    approval_timeout_ms: Milliseconds = Field(
        default=60_000, gt=0, description="Timeout of an approval, in ms; default 60000"
    )
    drain_seconds: Seconds = Field(
        default=20,
        ge=0,
        description="Time for running turns to finish when the gateway stops, in seconds; default 20",
    )
    frame_bytes: int = Field(
        default=1_000_000,
        gt=0,
        description="Largest frame or request body of a client, in bytes; default 1000000",
    )
    upload_bytes: int = Field(
        default=10_000_000,
        gt=0,
        le=20_000_000,
        description="Largest file that a client uploads with POST /api/files, in bytes; default 10000000, at "
        "most 20000000",
    )
    frames_per_second: int = Field(
        default=200, gt=0, description="Frames per second from one connection; default 200"
    )
    websocket_queue: int = Field(
        default=100,
        gt=0,
        description="Queued frames for a slow client before it is disconnected; default 100",
    )
    tool_output_bytes: int = Field(
        default=51_200,
        gt=0,
        description="Cut a tool output longer than this many bytes, or 2000 lines, at head and tail; the "
        "full text is kept for 7 days for the tool read_output; default 51200",
    )
    provider_stream_bytes: int = Field(
        default=1_048_576,
        gt=0,
        description="Abort an answer of a model after this many bytes; default 1048576",
    )


class LogSettings(Section):
    """The log: level, format and files."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level to log; default info"
    )
    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="auto: console on a terminal, JSON otherwise; default auto"
    )
    file: bool = Field(
        default=True, description="Also write logs to data_dir/logs, for `trunkline logs`; default true"
    )
    file_bytes: int = Field(
        default=10_000_000,
        ge=10_000,
        description="Size at which a log file is rotated, in bytes; five files are kept; default 10000000",
    )


def _known_roles(permissions: dict[str, T]) -> dict[str, T]:
    """Return the permissions if every role in them exists. Raises ValueError."""
    for name in permissions:
        _, at, role = name.partition("@")
        if at and role not in ("admin", "user"):
            raise ValueError(f'has a rule for {name!r}: the suffix after @ must be "admin" or "user"')
    return permissions


def _enough_tokens(tokens: int) -> int:
    if tokens < 1_000:
        raise ValueError(
            f"is {tokens}, but counts tokens and no longer messages: write at least 1000, or remove it; "
            "long conversations are summarized unless compaction = false"
        )
    return tokens


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise ValueError("must be the name of a time zone, like Europe/Berlin or UTC") from None
    return name


def _https(address: str) -> str:
    """Return an address if it is an https one without credentials. Raises ValueError."""
    parts = urlsplit(address)
    if address and (parts.scheme != "https" or not parts.hostname or "@" in parts.netloc):
        raise ValueError("must be an https address, like https://example.org/trunkline.toml")
    return address


def _real_folder(path: Path) -> Path:
    """Return a path if it is absolute and without links. Raises ValueError."""
    if not path.is_absolute():
        raise ValueError("must be absolute paths, without ~")
    real = Path(os.path.realpath(path))
    if real != path:
        raise ValueError(f"must be paths without links; use {real}")
    return path


DataDir = Annotated[Path, BeforeValidator(not_blank), AfterValidator(Path.expanduser)]


class RemoteFields(Section):
    """The settings that decide where the file of an organization is."""

    organization: Annotated[str, AfterValidator(_https)] = ""
    data_dir: DataDir = Path("data")
    fetch_allow: tuple[IPvAnyNetwork, ...] = ()


class Source(Struct, frozen=True):
    """A source of settings that is in effect: its layer, and its file, address or kind."""

    layer: Layer
    name: str


class Origin(Struct, frozen=True):
    """The origin of settings: their written values and sources, without defaults.

    ``bases`` has the folder of the settings file that lists each plugin. ``file`` is the operator's settings
    file, or the user's if there is no other. ``reread`` reads the same sources again.
    """

    entries: tuple[Entry, ...] = ()
    bases: Mapping[str, Path] = {}
    sources: tuple[Source, ...] = ()
    warnings: tuple[str, ...] = ()
    remote: RemoteFile | None = None
    file: Path | None = None
    reread: Callable[[], Settings] | None = None


class Settings(BaseSettings):
    """All settings, read-only. ``load_settings`` reads them; ``Settings()`` has the defaults.

    The class itself reads no file and no variable: each value must keep its place, so ``load_settings``
    merges the sources and passes the values in.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        env_prefix="TRUNKLINE_",
        env_nested_delimiter="__",
        title="Trunkline settings",
        json_schema_extra={"description": "config/trunkline.toml; config/example.toml shows every key"},
    )

    organization: Annotated[str, AfterValidator(_https)] | None = Field(
        default=None,
        description="https address of your organization's settings file; these settings override it; "
        "default none",
    )
    trusted_projects: tuple[Annotated[Path, AfterValidator(_real_folder)], ...] = Field(
        default=(),
        description="Folders whose .trunkline/trunkline.toml may set every key; only in the personal "
        "settings; default none",
    )
    model: str | None = Field(
        default=None,
        min_length=1,
        description="Default model as provider/name; the first available provider's model if unset",
    )
    small_model: str | None = Field(
        default=None,
        min_length=1,
        description="Cheap model as provider/name for titles and summaries; the session's model if unset",
    )
    fallback: tuple[str, ...] = Field(
        default=(), description="Fallback chain, in order: provider or provider/model; default empty"
    )
    fallback_triggers: tuple[Trigger, ...] = Field(
        default=("rate_limit", "auth_failure", "server_error", "stall"),
        description="Failures that trigger fallback; default all",
    )
    system_prompt: str = Field(default="", description="System prompt; default empty")
    max_tokens: int | None = Field(
        default=None,
        gt=0,
        description="Longest answer with reasoning, in tokens; the provider's default if unset",
    )
    temperature: float | None = Field(
        default=None, ge=0, le=2, description="Sampling temperature, 0 to 2; the provider's default if unset"
    )
    stop_sequences: StopSequences = Field(
        default=(), description="Texts that end an answer, at most 4; default none"
    )
    effort: Effort | None = Field(default=None, description="How much a model reasons; its default if unset")
    skills: tuple[str, ...] | None = Field(
        default=None, description="Skills that the agent may use, by name; all if unset"
    )
    stream_timeout_ms: Milliseconds = Field(
        default=60_000,
        gt=0,
        description="Abort a model stream after this many ms without data; default 60000",
    )
    http_client: Literal["auto", "httptools", "aiohttp"] = Field(
        default="auto",
        description="HTTP client for model providers; default auto: httptools, or aiohttp for proxies "
        "other than http://",
    )
    compaction: Compaction = Field(
        default=0.9,
        description="Share of a model's context window, 0.5 to 0.95, from which the earlier messages of a "
        "conversation are summarized, or false; default 0.9",
    )
    history_window: Annotated[int, AfterValidator(_enough_tokens)] = Field(
        default=32_000,
        description="With compaction = false: tokens of a conversation sent to the model; the oldest half is "
        "dropped when there are more; at least 1000, default 32000",
    )
    titles: bool | None = Field(
        default=None,
        description="Title conversations with a model; if unset, only where a small_model is set",
    )
    steer: bool = Field(
        default=False,
        description="Apply a message that arrives during an answer to that answer; default false (queue it)",
    )
    timezone: Annotated[str, AfterValidator(_known_zone)] | None = Field(
        default=None,
        description="Time zone of the times that models get, like Europe/Berlin; the machine's if unset",
    )
    data_dir: DataDir = Field(
        default=Path("data"),
        description="Data directory (database, keys, logs), relative to the working directory; default data",
    )
    durability: Literal["full", "relaxed"] = Field(
        default="full",
        description="full survives power loss; relaxed may lose the last commits; default full",
    )
    server: ServerSettings = Field(
        default=ServerSettings(), description="HTTP server: address, token and connection limits"
    )
    fetch: FetchSettings = Field(default=FetchSettings(), description="Downloads of addresses in messages")
    share: ShareSettings = Field(
        default=ShareSettings(), description="Public read-only pages of conversations"
    )
    store: StoreSettings = Field(default=StoreSettings(), description="Database")
    cluster: ClusterSettings = Field(
        default=ClusterSettings(), description="Several nodes: one is active, the others stand by"
    )
    providers: dict[str, ProviderSettings] = Field(default={}, description="Model providers, by id")
    models: ModelTables = Field(default={}, description="Facts of models, by provider/name")
    aliases: Aliases = Field(
        default={}, description="Short names of models, usable wherever a model is named"
    )
    agents: AgentTables = Field(default={}, description="Agents besides main, by name")
    channels: dict[str, ChannelSettings] = Field(
        default={"websocket": ChannelSettings(enabled=True)},
        description="Channels (connections to platforms), by name",
    )
    plugins: PluginsSettings = Field(
        default=PluginsSettings(), description="Plugins to load, and the settings of each"
    )
    teams: TeamsSettings = Field(default=TeamsSettings(), description="Rules for all users of a team")
    mcp: Annotated[dict[str, McpServerSettings], AfterValidator(check_names)] = Field(
        default={}, description="MCP servers, by name"
    )
    permissions: Annotated[dict[str, Action | dict[str, Action]], AfterValidator(_known_roles)] = Field(
        default={},
        description=(
            "Permission by tool, or by tool and pattern (the first match counts, no match denies): "
            "allow, ask or deny; * is every other tool. "
            "Without a rule, built-in read-only tools are allowed, and all others ask"
        ),
    )
    budgets: dict[str, BudgetSettings] = Field(
        default={}, description="Limits on the cost of model calls, by names of your choice"
    )
    limits: Limits = Field(
        default=Limits(), description="Limits that keep one sender, tool or model from exhausting the gateway"
    )
    log: LogSettings = Field(default=LogSettings(), description="Log: level, format and files")

    _origin: Origin = PrivateAttr(Origin())

    @field_validator("agents")
    @classmethod
    def _distinct_from_aliases(
        cls, agents: dict[str, AgentSettings], info: ValidationInfo
    ) -> dict[str, AgentSettings]:
        both = sorted(agents.keys() & info.data.get("aliases", {}).keys())
        if both:
            raise ValueError(f"has {both[0]!r}, which is also an alias of a model; the names must differ")
        return agents

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only the values passed in; ``load_settings`` reads the other sources."""
        return (init_settings,)

    @property
    def store_url(self) -> str:
        """The database as an SQLAlchemy URL; it may contain a password."""
        return self.store.url or f"sqlite:///{self.data_dir / 'trunkline.db'}"

    def secrets(self) -> Iterator[str]:
        """Yield every secret, by its type or by the name of its key."""
        given = [self.server.token, *(named.token for named in self.server.tokens.values())]
        for provider in self.providers.values():
            given += [provider.api_key, *provider.api_keys, *provider.credentials.values()]
            given += provider.custom_headers.values()
        for server in self.mcp.values():
            given += server.headers.values()
            given += [value for name, value in server.env.items() if sounds_secret(name)]
        yield from (secret.get_secret_value() for secret in given if secret is not None)
        for url in (self.store.url, self.cluster.url):
            yield from url_secrets(url or "")
        for entry in self._origin.entries:
            value: Any = entry.value
            for each in cast("list[Any]", value) if isinstance(value, list) else [value]:
                if isinstance(each, str):
                    yield from (each,) if sounds_secret(entry.path[-1]) else url_secrets(each)

    @property
    def origin(self) -> Origin:
        """All written values with their places, and the sources in effect."""
        return self._origin

    @property
    def file(self) -> Path:
        """The operator's settings file, which commands edit; it need not exist."""
        return self._origin.file or Path("config/trunkline.toml")

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All written values with their places, in the order of the sources, without defaults."""
        return self._origin.entries

    def reread(self) -> Settings:
        """Return the settings as their sources are now. Raises SettingsError."""
        return self if self._origin.reread is None else self._origin.reread()

    def with_origin(self, origin: Origin) -> Settings:
        """Return a copy that knows the place of each value, and the folder of each plugin file."""
        copy = self.model_copy()
        copy._origin = origin
        return copy

    def plugin_base(self, name: str) -> Path:
        """Return the folder that a plugin's file name is relative to: that of its settings file."""
        return self._origin.bases.get(name, Path())

    def with_plugins_again(self) -> Settings:
        """Return a copy with the settings of plugins as the sources have them now. Raises SettingsError."""
        now = self.reread()
        copy = self.model_copy(update={"plugins": now.plugins, "teams": now.teams})
        return copy.with_origin(now.origin)

    def with_keys_again(self, provider: str) -> Settings:
        """Return a copy with the keys of a provider as the sources have them now. Raises SettingsError."""
        now = self.reread()
        given, fresh = (each.providers.get(provider, ProviderSettings()) for each in (self, now))
        keys = {name: getattr(fresh, name) for name in ("api_key", "api_keys")}
        providers = {**self.providers, provider: given.model_copy(update=keys)}
        return self.model_copy(update={"providers": providers}).with_origin(now.origin)

    def duration_warnings(self) -> list[str]:
        """Return warnings about milliseconds that look like seconds."""
        return [
            f"{entry.place}: {entry.key} = {entry.value} means {entry.value} milliseconds; "
            f'write "{entry.value}s" for seconds, or "{entry.value}ms"'
            for entry in self._origin.entries
            if looks_like_seconds(Settings, entry.path, entry.value)
        ]

    def rules(self, channel_id: str) -> ChannelRules | None:
        """Return the access rules of a channel or account; None without a table for it."""
        name, _, account = channel_id.partition(".")
        settings = self.channels.get(channel_id) or self.channels.get(name)
        own = settings.accounts.get(account) if settings else None
        return own.over(settings) if settings and own else self.channels.get(channel_id)

    def accounts(self, name: str) -> tuple[str | None, ...]:
        """Return the enabled accounts of a channel; only None if it has no table of accounts."""
        settings = self.channels.get(name)
        if settings is None or not settings.accounts:
            return (None,)
        return tuple(account for account, own in settings.accounts.items() if own.enabled)

    def agent_of(self, channel_id: str, chat: str = "") -> str | None:
        """Return the configured agent of a room, or else of its account or channel, or None."""
        name, _, account = channel_id.partition(".")
        settings = self.channels.get(channel_id) or self.channels.get(name)
        if settings is None:
            return None
        own = settings.accounts.get(account)
        rules = self.rules(channel_id) or settings
        room = rules.rooms.named.get(chat)
        return (room.agent if room else None) or (own.agent if own else None) or settings.agent

    def tools_of_rooms(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the key of each room that names its tools, with these names."""
        for channel, settings in self.channels.items():
            tables = {("channels", channel): settings.rooms}
            tables |= {
                ("channels", channel, "accounts", name): own.rooms for name, own in settings.accounts.items()
            }
            for key, rooms in tables.items():
                for room, own in rooms.named.items():
                    yield dotted((*key, "rooms", room, "tools")), own.tools or ()

    def unknown_agents(self, names: Collection[str]) -> list[str]:
        """Return a complaint for each channel or room with an agent that is not among these names."""
        places = {entry.path: f"{entry.place}: {entry.key}" for entry in self._origin.entries}
        return [
            f'{places.get(key, dotted(key))} = "{name}" is not an agent; {hint(name, names)}'
            for key, name in self._agents_of_channels()
            if name not in names
        ]

    def _agents_of_channels(self) -> Iterator[tuple[KeyPath, str]]:
        for channel, settings in self.channels.items():
            tables: dict[KeyPath, ChannelSettings | AccountSettings] = {("channels", channel): settings}
            for account, own in settings.accounts.items():
                tables["channels", channel, "accounts", account] = own
            for key, table in tables.items():
                given = {(*key, "agent"): table.agent}
                given |= {
                    (*key, "rooms", room, "agent"): own.agent for room, own in table.rooms.named.items()
                }
                yield from ((path, name) for path, name in given.items() if name is not None)

    def channel(self, name: str, model: type[M], account: str | None = None) -> M:
        """Return a channel's own settings as its model; an account's values override the shared ones.

        Raises SettingsError like ``load_settings``.
        """
        settings = self.channels.get(name, ChannelSettings())
        section: tuple[str, ...] = ("channels", name)
        shared = tuple(ChannelSettings.model_fields)
        known, complaints = self._known_entries(section, settings.options, model, shared)
        if account is not None:
            section = (*section, "accounts", account)
            shared = tuple(AccountSettings.model_fields)
            given, more = self._known_entries(section, settings.accounts[account].options, model, shared)
            taken = {entry.path for entry in given}
            known = [entry for entry in known if entry.path not in taken] + given
            complaints += more
        return validated(model, known, complaints, f"{'.'.join(section)}.")

    def channel_table(
        self, name: str, account: str | None = None, names: Collection[str] | None = None
    ) -> dict[str, Any]:
        """Return a channel's own settings as written; an account's values override the shared ones.

        Any other key than ``names`` is a mistake. If they are None, a channel may have any key, except one
        that is nearly a key of the gateway. Raises SettingsError like ``load_settings``.
        """
        settings = self.channels.get(name, ChannelSettings())
        table, section = dict(settings.options), ("channels", name)
        complaints = self._odd_keys(section, table, names, ChannelSettings)
        if account is not None:
            own = settings.accounts[account].options
            complaints += self._odd_keys((*section, "accounts", account), own, names, AccountSettings)
            table = _overridden(table, own)
        if complaints:
            raise settings_error(complaints)
        return table

    def _odd_keys(
        self,
        section: KeyPath,
        options: Mapping[str, Any],
        names: Collection[str] | None,
        shared: type[BaseModel],
    ) -> list[str]:
        """Return a complaint for each key of a channel that is not one of its names."""
        found: list[str] = []
        for key in options if names is None else options.keys() - set(names):
            known = (*shared.model_fields, *(names or ()))
            near = get_close_matches(key, known, n=1, cutoff=0.6 if names is not None else _NEAR)
            if near or names is not None:
                path = (*section, key)
                places = (entry.place for entry in self._origin.entries if entry.path[: len(path)] == path)
                place = next(places, "settings")
                advice = (
                    f"did you mean {dotted((*section, *near))}?" if near else hint(key, sorted(names or ()))
                )
                found.append(f"{place}: {dotted(path)} is not a setting; {advice}")
        return sorted(found)

    def plugin(self, names: Sequence[str], model: type[M]) -> M:
        """Return a plugin's own settings as its model; of several tables, later ones override key by key.

        Raises SettingsError like ``load_settings``.
        """
        known: dict[tuple[str, ...], Entry] = {}
        complaints: list[str] = []
        shared = tuple(PluginSettings.model_fields)
        for name in names:
            section = ("plugins", name)
            given, more = self._known_entries(section, self.plugins.of(name).options, model, shared)
            known |= {entry.path: entry for entry in given}
            complaints += more
        return validated(model, [*known.values()], complaints, f"plugins.{names[-1]}.")

    def _known_entries(
        self,
        section: tuple[str, ...],
        options: Mapping[str, Any],
        model: type[BaseModel],
        shared: Sequence[str] = (),
    ) -> tuple[list[Entry], list[str]]:
        """Return the entries of a section in snake_case, and complaints about unknown keys."""
        written = {entry.path: entry for entry in self._origin.entries}
        given = [
            structs.replace(written[(*section, *path)], path=path)
            if (*section, *path) in written
            else Entry(path=path, value=value, place="settings", base=Path())
            for path, value in flat(options)
        ]
        return known_entries(model, given, f"{'.'.join(section)}.", shared)


class Effective(Struct, frozen=True):
    """One setting in effect. ``source`` is where it was written, or ``default``, as is its layer."""

    key: str
    value: Any
    source: str
    layer: str


def _overridden(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the values of another one in place of its own, also in the tables inside."""
    table = dict(shared)
    for key, value in own.items():
        old = table.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = _overridden(cast("Mapping[str, Any]", old), cast("Mapping[str, Any]", value))
        table[key] = value
    return table


def effective(settings: Settings) -> list[Effective]:
    """Return all settings in effect in the order of ``config/example.toml``, with secrets masked."""
    written = {entry.path: entry for entry in settings.entries}
    return [
        Effective(
            key=dotted(path),
            value=_masked(path, value, entry := written.get(path)),
            source=entry.place if entry else "default",
            layer=", ".join(entry.layers if entry else ("default",)),
        )
        for path, value in flat(settings.model_dump(mode="json"))
    ]


def _masked(path: KeyPath, value: Any, entry: Entry | None) -> Any:
    """Mask secrets by type, name and form; of a plugin's value with a reference, show the reference."""
    known = resolve_key(Settings, path)
    if value and (known.secret or value == MASK):
        return MASK
    if entry and entry.written and not known.typed:
        return entry.written
    return json.loads(without_passwords(json.dumps(value)))
