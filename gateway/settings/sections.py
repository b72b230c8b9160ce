"""Every setting, its type, its default and what it is for; ``config/example.toml`` shows them filled in."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from msgspec import structs
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    IPvAnyNetwork,
    PrivateAttr,
    SecretStr,
    field_validator,
)
from pydantic_core.core_schema import ValidationInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.settings.budgets import BudgetSettings
from gateway.settings.entries import Entry, KeyPath, dotted, flat
from gateway.settings.models import (
    AgentSettings,
    AgentTables,
    Aliases,
    ModelTables,
    ProviderSettings,
    Trigger,
)
from gateway.settings.open import ChannelSettings, PluginsSettings
from gateway.settings.rules import ChannelRules, of_known_roles
from gateway.settings.section import Secret, Section
from gateway.settings.validation import in_our_spelling, validated

M = TypeVar("M", bound=BaseModel)

Action = Literal["allow", "ask", "deny"]

SHORTEST_TOKEN = 32
"""Characters of a token that guards a listener beyond this machine."""


class ServerSettings(Section):
    """Where the gateway listens, and for whom."""

    # The token stands before the host, so that the host can be judged by it.
    token: Secret = Field(
        default=None, description="What clients must show; needed to listen beyond this machine"
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on; 0.0.0.0 for all")
    port: int = Field(default=8080, ge=0, le=65535, description="TCP port; 0 for any free one")
    allowed_origins: tuple[str, ...] = Field(
        default=(), description="Origins of web pages, besides our own, that may connect"
    )

    @field_validator("host")
    @classmethod
    def _guarded(cls, host: str, info: ValidationInfo) -> str:
        token: SecretStr | None = info.data.get("token")
        if not is_loopback(host) and (token is None or len(token.get_secret_value()) < SHORTEST_TOKEN):
            raise ValueError(
                f"is reachable from other machines, so server.token must have at least {SHORTEST_TOKEN} "
                'characters; `python3 -c "import secrets; print(secrets.token_urlsafe(32))"` makes one'
            )
        return host


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a listener at the host."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class StoreSettings(Section):
    """Where messages are kept."""

    url: str | None = Field(
        default=None, repr=False, description="SQLAlchemy URL; a SQLite file in data_dir when not given"
    )
    keep_days: int = Field(
        default=30, gt=0, description="Days to recognise a message that a platform or client repeats"
    )


class FetchSettings(Section):
    """What the gateway fetches because a message names it."""

    allow: tuple[IPvAnyNetwork, ...] = Field(
        default=(),
        description="Networks that messages may name although they are private, such as 10.1.0.0/16",
    )
    max_bytes: int = Field(default=5_000_000, gt=0, description="Bytes of what is fetched")
    timeout: int = Field(default=20_000, gt=0, description="Milliseconds that a fetch may take")


class Limits(Section):
    """Bounds that keep one sender, tool or model from taking everything."""

    session_inbox: int = Field(default=50, gt=0, description="Messages that may wait in one conversation")
    global_inbox: int = Field(
        default=10_000, gt=0, description="Messages that may wait in all conversations together"
    )
    backlog_minutes: int = Field(
        default=10, gt=0, description="Age from which waiting messages are answered as one"
    )
    max_attempts: int = Field(default=8, gt=0, description="Tries to answer a message before it is set aside")
    max_llm_calls: int = Field(default=50, gt=0, description="Calls of the model in one turn")
    approval_timeout_ms: int = Field(
        default=60_000, gt=0, description="Milliseconds a tool waits to be allowed"
    )
    drain_seconds: int = Field(
        default=20, ge=0, description="Seconds that running turns get when the gateway stops"
    )
    frame_bytes: int = Field(
        default=1_000_000, gt=0, description="Bytes of one frame or request body from a client"
    )
    frames_per_second: int = Field(
        default=200, gt=0, description="Frames that one connection may send in a second"
    )
    websocket_queue: int = Field(
        default=100, gt=0, description="Frames kept for a slow reader before it is dropped"
    )
    tool_output_bytes: int = Field(default=262_144, gt=0, description="Bytes of one tool's output")
    provider_stream_bytes: int = Field(default=1_048_576, gt=0, description="Bytes of one answer of a model")


class LogSettings(Section):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severity to log"
    )
    format: Literal["auto", "console", "json"] = Field(
        default="auto",
        description="console for people, json for machines; auto looks whether a terminal reads",
    )


class Settings(BaseSettings):
    """All settings of a gateway, read-only. ``load_settings`` makes one; ``Settings()`` has the defaults.

    It reads no file and no variable by itself: every value must remember where it was written, so
    ``load_settings`` merges the sources and hands them in.
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

    model: str | None = Field(
        default=None,
        min_length=1,
        description="Model to use, provider/name; the first provider found when not given",
    )
    fallback: tuple[str, ...] = Field(
        default=(),
        description="Who answers when the model does not: provider or provider/model, in this order",
    )
    fallback_triggers: tuple[Trigger, ...] = Field(
        default=("rate_limit", "auth_failure", "server_error", "stall"),
        description="Failures after which the next one is asked",
    )
    system_prompt: str = Field(default="", description="What the model is told before every conversation")
    max_tokens: int = Field(default=4096, gt=0, description="Longest answer of the model, in tokens")
    temperature: float | None = Field(
        default=None,
        ge=0,
        le=2,
        description="How freely the model chooses words, 0 to 2; its own way when not given",
    )
    stream_timeout_ms: int = Field(
        default=60_000, gt=0, description="Milliseconds without a byte before a stream is dead"
    )
    history_window: int = Field(
        default=200, gt=0, description="Latest messages of a conversation sent to the model"
    )
    steer: bool = Field(
        default=False, description="Whether a message during an answer changes it, instead of waiting"
    )
    data_dir: Annotated[Path, AfterValidator(Path.expanduser)] = Field(
        default=Path("data"), description="Directory of all that is kept, relative to the working directory"
    )
    durability: Literal["full", "relaxed"] = Field(
        default="full",
        description="full survives power loss; relaxed accepts a database that may lose the last moments",
    )
    server: ServerSettings = Field(
        default=ServerSettings(), description="Where the gateway listens, and for whom"
    )
    fetch: FetchSettings = Field(
        default=FetchSettings(), description="What the gateway fetches because a message names it"
    )
    store: StoreSettings = Field(default=StoreSettings(), description="Where messages are kept")
    providers: dict[str, ProviderSettings] = Field(default={}, description="Model backends, by id")
    models: ModelTables = Field(default={}, description="What is to be known of models, by provider/name")
    aliases: Aliases = Field(default={}, description="Short names of models")
    agents: AgentTables = Field(default={}, description="Agents besides main, by name")
    channels: dict[str, ChannelSettings] = Field(
        default={"websocket": ChannelSettings(enabled=True)}, description="Connections to platforms, by name"
    )
    plugins: PluginsSettings = Field(
        default=PluginsSettings(), description="Which plugins run, and their own settings"
    )
    permissions: Annotated[dict[str, Action | dict[str, Action]], AfterValidator(of_known_roles)] = Field(
        default={},
        description="What a tool may do without asking, by tool or by tool and pattern; * is the rest",
    )
    budgets: dict[str, BudgetSettings] = Field(
        default={}, description="How much may be spent on models, by names of your own"
    )
    limits: Limits = Field(default=Limits(), description="Bounds that keep one from taking everything")
    log: LogSettings = Field(default=LogSettings(), description="What is logged, and how")

    _entries: tuple[Entry, ...] = PrivateAttr(())

    @field_validator("agents")
    @classmethod
    def _apart(cls, agents: dict[str, AgentSettings], info: ValidationInfo) -> dict[str, AgentSettings]:
        both = sorted(agents.keys() & info.data.get("aliases", {}).keys())
        if both:
            raise ValueError(f"has {both[0]!r}, which is an alias of a model, too; requests may name either")
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
        """Take only what is handed in; ``load_settings`` calls the other sources itself."""
        return (init_settings,)

    @property
    def store_url(self) -> str:
        """The database to use, as an SQLAlchemy URL; it may hold a password."""
        return self.store.url or f"sqlite:///{self.data_dir / 'trunkline.db'}"

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What was written where, in the order of the sources; defaults are not among them."""
        return self._entries

    def remembering(self, entries: Sequence[Entry]) -> Settings:
        """The same settings, which know where each of them was written."""
        copy = self.model_copy()
        copy._entries = tuple(entries)
        return copy

    def rules(self, channel_id: str) -> ChannelRules | None:
        """The rules of a channel, or of one of its accounts, if there is a table for it."""
        name, _, account = channel_id.partition(".")
        settings = self.channels.get(channel_id) or self.channels.get(name)
        own = settings.accounts.get(account) if settings else None
        return own.instead(settings) if settings and own else self.channels.get(channel_id)

    def accounts(self, name: str) -> tuple[str | None, ...]:
        """The accounts of a channel that are to be started; just None when it has no table of accounts."""
        settings = self.channels.get(name)
        if settings is None or not settings.accounts:
            return (None,)
        return tuple(account for account, own in settings.accounts.items() if own.enabled)

    def agent_of(self, channel_id: str) -> str | None:
        """The agent of a channel, or of one of its accounts, if the settings give it one."""
        name, _, account = channel_id.partition(".")
        settings = self.channels.get(channel_id) or self.channels.get(name)
        if settings is None:
            return None
        own = settings.accounts.get(account)
        return (own.agent if own else None) or settings.agent

    def unknown_agents(self, names: Collection[str]) -> list[str]:
        """Complaints about channels whose agent is none of these, each with its place and those near."""
        places = {entry.path: f"{entry.place}: {entry.key}" for entry in self._entries}
        return [
            f'{places.get(key, dotted(key))} = "{name}" is no agent; {_hint(name, names)}'
            for key, name in self._agents_of_channels()
            if name not in names
        ]

    def _agents_of_channels(self) -> Iterator[tuple[KeyPath, str]]:
        for channel, settings in self.channels.items():
            given: dict[KeyPath, str | None] = {("channels", channel, "agent"): settings.agent}
            for account, own in settings.accounts.items():
                given["channels", channel, "accounts", account, "agent"] = own.agent
            yield from ((key, name) for key, name in given.items() if name is not None)

    def channel(self, name: str, model: type[M], account: str | None = None) -> M:
        """A channel's own settings, read as its model; an account's go before those it shares.

        Raises SettingsError like ``load_settings``.
        """
        settings = self.channels.get(name, ChannelSettings())
        section: tuple[str, ...] = ("channels", name)
        known, complaints = self._spelled(section, settings.options, model)
        if account is not None:
            section = (*section, "accounts", account)
            given, more = self._spelled(section, settings.accounts[account].options, model)
            taken = {entry.path for entry in given}
            known = [entry for entry in known if entry.path not in taken] + given
            complaints += more
        return validated(model, known, complaints, f"{'.'.join(section)}.")

    def plugin(self, name: str, model: type[M]) -> M:
        """A plugin's own settings, read as its model. Raises SettingsError like ``load_settings``."""
        return self._own(("plugins", name), self.plugins.options(name), model)

    def _own(self, section: tuple[str, ...], options: Mapping[str, Any], model: type[M]) -> M:
        known, complaints = self._spelled(section, options, model)
        return validated(model, known, complaints, f"{'.'.join(section)}.")

    def _spelled(
        self, section: tuple[str, ...], options: Mapping[str, Any], model: type[BaseModel]
    ) -> tuple[list[Entry], list[str]]:
        """What is written in a section, in our spelling, and complaints about the rest."""
        written = {entry.path: entry for entry in self._entries}
        given = [
            structs.replace(written[(*section, *path)], path=path)
            if (*section, *path) in written
            else Entry(path=path, value=value, place="settings", base=Path())
            for path, value in flat(options)
        ]
        return in_our_spelling(model, given, f"{'.'.join(section)}.")


def _hint(name: str, names: Collection[str]) -> str:
    near = get_close_matches(name, names, n=3)
    return "".join((f"did you mean {' or '.join(near)}? " if near else "", f"there are {', '.join(names)}"))
